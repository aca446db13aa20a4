"""The module inside real browsers: identical bits, and pings that land although the page has closed."""

import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import pytest

from fedping.model_store import open_store
from fedping.server_jobs.optimize import first_versions
from tests.browser.harness.waiting import wait_for
from tests.browser.pages import Web, serving
from tests.browser.tools import BROWSER, landed_rows
from tests.conformance.vectors import study_of_pings
from tests.support.ingest_app import landed_ids
from tests.support.ingest_server import running_ingest
from tests.support.versions import WHEN

pytestmark = pytest.mark.browser


@dataclass(frozen=True)
class Visitor:
    """A browser by name, with a function that opens a page in it."""

    browser: str
    open: Callable[[str], object]


@pytest.fixture(params=["chromium", "firefox"])
def visitor(request: pytest.FixtureRequest) -> Visitor:
    browser = request.getfixturevalue(request.param)
    return Visitor(request.param, browser.new_page if request.param == "chromium" else browser.page.navigate)


@pytest.mark.parametrize("mode", ["cors", "no-cors"])
def test_a_real_browser_computes_the_same_bits_and_takes_part(visitor: Visitor, mode: str, tmp_path: Path) -> None:
    study = study_of_pings()
    store = open_store(tmp_path / "store", create=True)
    store.create_study(study, first_versions(study, created=WHEN, code_version="test"))
    with running_ingest(tmp_path / "store", tmp_path / "landing") as server, serving(server.url) as web:
        visitor.open(f"{web.address}/tests/page.html?mode={mode}&ingest={web.relay}")
        parity = web.hears("parity")
        assert parity["wrong"] == []
        assert parity["compared"] > 300
        assert web.hears("digest") == "the same"
        assert web.hears("benchmark")["scoresAndPing"]["median"] >= 0
        part = web.hears("part")
        assert part["counts"] == {"accepted": 3, "refused": 0, "dropped": 0, "waiting": 0}
        assert part["arm"] == web.hears("leaving")
        # The page's report on leaving arrives after it has closed.
        wait_for(lambda: len(web.posts()) == 4, "the ping of a page that was left")
        server.flush()
    assert_anonymous(web, visitor.browser, mode)
    landed = landed_ids(tmp_path / "landing")
    assert len(landed) == 4
    assert {each["documentId"] for each in part["sent"]} < set(landed)


def assert_anonymous(web: Web, browser: str, mode: str) -> None:
    """Check that requests have no cookie (the host has one), no referrer, no preflight, and the expected origin.

    Without CORS Firefox sends no origin; an extension's origin would identify the installation. Chromium always sends
    it; there all installations of an extension have the same.
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


DRIVER = """
<script>
  window.pages = Array.from({ length: 30 }, (_, i) => ({
    url: `https://example.org/${i}`,
    visits: [1, 2, 3].map((j) => ({ time: Date.now() - 9e7 * i * j, type: j })),
    visitCount: 1 + (i % 9),
  }));
  const seen = async (holds) => {
    while (!holds()) await new Promise((resolve) => setTimeout(resolve, 20));
  };
  addEventListener("load", async () => {
    const asked = () => performance.getEntriesByType("resource").map(({ name }) => name);
    await seen(() => asked().some((name) => name.endsWith("latest.json")));
    search.value = "example.org/1";
    search.dispatchEvent(new Event("input"));
    await seen(() => list.children.length === 10);
    list.children[3].click();
    await seen(() => asked().some((name) => name.includes("/submit/")));
    await fetch("/told", { method: "POST", body: JSON.stringify({ step: "chosen", value: list.children.length }) });
  });
</script>
"""


def test_the_page_of_the_documentation_works(visitor: Visitor, tmp_path: Path) -> None:
    """The page's code block as written, except for address, study and module path; the test types and clicks."""
    block = re.findall(r"```html\n(.*?)```", (BROWSER.parent / "docs" / "browser.md").read_text(), re.DOTALL)[0]
    study = study_of_pings()
    trained = study.arms[0]
    study = msgspec.structs.replace(study, arms=(msgspec.structs.replace(trained, share=1.0),))
    store = open_store(tmp_path / "store", create=True)
    store.create_study(study, first_versions(study, created=WHEN, code_version="test"))
    with running_ingest(tmp_path / "store", tmp_path / "landing") as server, serving(server.url) as web:
        page = block.replace("https://telemetry.example.org", web.relay).replace('"demo"', '"pings"')
        web.more["/example.html"] = "<!doctype html>" + DRIVER + page.replace("./fedping/fedping.js", "/fedping.js")
        visitor.open(f"{web.address}/example.html")
        assert web.hears("chosen") == 10
        wait_for(lambda: len(web.posts()) == 1, "the ping of the choice")
        server.flush()
    rows = landed_rows(tmp_path / "landing")
    (row,) = rows.values()
    assert (row["study_variation"], row["rank_selected"], row["num_chars_typed"]) == (trained.name, 3, 13)
    assert len(row["frecency_scores"]) == 10
    assert len(row["update"]) == 4 * 22
