"""The extension in real browsers: an unsent ping survives the browser's end."""

import contextlib
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.browser.garden import choose, garden_store, take_part
from tests.browser.harness.waiting import wait_for
from tests.browser.tools import landed_rows
from tests.browser.users import User
from tests.support.ingest_server import IngestServer

pytestmark = pytest.mark.browser


@contextlib.contextmanager
def running(server: IngestServer) -> Iterator[None]:
    server.start()
    try:
        yield
    finally:
        server.stop()


def test_a_ping_lands_under_its_id_although_server_and_browser_were_gone(user: User, tmp_path: Path) -> None:
    garden_store(tmp_path)
    server = IngestServer(tmp_path / "store", tmp_path / "landing")
    with user.browsing():
        with running(server):
            take_part(user, server.url)
        choose(user, 1)
        (waiting,) = wait_for(lambda: user.ask({"ask": "waiting"}), "the ping to wait")
        user.kill()
    with running(server), user.browsing():
        wait_for(lambda: server.flush()["accepted"] == 1, "the ping to land")
        user.open("options/options.html")
        wait_for(lambda: user.ask({"ask": "waiting"}) == [], "the ping to be forgotten")
    (document,) = landed_rows(tmp_path / "landing")
    assert document == waiting["documentId"]
