"""The module inside real browsers: the same bits, and pings that land although the page has gone."""

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from model_store import open_store
from server_jobs.optimize import first_versions
from tests.browser.pages import BROWSERS, Web, opened, serving
from tests.browser.tools import skip_loudly
from tests.browser.vectors import study_of_pings
from tests.support.ingest_app import landed_ids
from tests.support.ingest_server import running_ingest
from tests.support.versions import WHEN

pytestmark = pytest.mark.browser


@pytest.fixture(params=sorted(BROWSERS))
def browser(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    if BROWSERS[name] is None:
        skip_loudly(f"no {name} on this machine: the JavaScript of browser/ is not tested in it")
    return name


def wait_for(holds: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + 60
    while not holds():
        assert time.monotonic() < deadline, what
        time.sleep(0.05)


@pytest.mark.parametrize("mode", ["cors", "no-cors"])
def test_a_real_browser_computes_the_same_bits_and_takes_part(browser: str, mode: str, tmp_path: Path) -> None:
    study = study_of_pings()
    store = open_store(tmp_path / "store", create=True)
    store.create_study(study, first_versions(study, created=WHEN, code_version="test"))
    with running_ingest(tmp_path / "store", tmp_path / "landing") as server, serving(server.url) as web:
        with opened(browser, f"{web.address}/tests/page.html?mode={mode}&ingest={web.relay}", tmp_path):
            parity = web.hears("parity")
            assert parity["wrong"] == []
            assert parity["compared"] > 300
            assert web.hears("digest") == "the same"
            assert web.hears("benchmark")["scoresAndPing"]["median"] >= 0
            part = web.hears("part")
            assert part["counts"] == {"accepted": 3, "refused": 0, "dropped": 0, "waiting": 0}
            assert part["arm"] == web.hears("leaving")
            # What the page reported when it was left arrives after it has gone.
            wait_for(lambda: len(web.posts()) == 4, "the ping of a page that was left did not arrive")
        server.flush()
    assert_anonymous(web, browser, mode)
    landed = landed_ids(tmp_path / "landing")
    assert len(landed) == 4
    assert {each["documentId"] for each in part["sent"]} < set(landed)


def assert_anonymous(web: Web, browser: str, mode: str) -> None:
    """No cookie although the host has one, no referrer, no request for permission; and who is named as the origin.

    Without CORS Firefox names none, where an extension's would be that of one installation. Chromium names it always;
    there all installations of an extension have the same.
    """
    assert {each.method for each in web.passed} == {"GET", "POST"}
    for each in web.passed:
        assert not {"cookie", "referer", "authorization"} & set(each.headers)
        assert each.status in (200, 304), each
    for post in web.posts():
        headers: dict[str, Any] = post.headers
        assert headers["content-type"] == "text/plain;charset=UTF-8"
        assert headers["sec-fetch-mode"] == mode
        named = "null" if (browser, mode) == ("firefox", "no-cors") else web.address
        assert headers.get("origin", "null") == named
