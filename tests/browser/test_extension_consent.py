"""The extension in real browsers: it works without a server, and sends nothing unless its user has agreed."""

import json
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from fedping.protocol.json_schema import json_schema
from tests.browser.garden import SEEDS, START, choose, garden_store, ranked_by, seeded, set_study
from tests.browser.harness.waiting import wait_for
from tests.browser.pages import serving
from tests.browser.tools import landed_rows
from tests.browser.users import User
from tests.support.ingest_server import running_ingest

pytestmark = pytest.mark.browser


def would_send(user: User) -> dict[str, Any]:
    """Return the ping that the extension's page shows."""
    ping: dict[str, Any] = json.loads(wait_for(lambda: user.text("#would-send-json"), "the ping that would be sent"))
    return ping


def listed_fields(user: User) -> list[str]:
    """Return the technical names that the extension's page lists."""
    return wait_for(lambda: user.texts("#would-send-names dt code:first-child"), "the technical names")


def test_what_is_sent_is_what_was_listed_when_the_user_agreed(user: User, tmp_path: Path) -> None:
    garden_store(tmp_path)
    with (
        running_ingest(tmp_path / "store", tmp_path / "landing") as server,
        serving(server.url) as web,
        user.browsing(),
    ):
        set_study(user, web.relay)
        wait_for(lambda: user.ask({"ask": "state"})["pages"] >= len(SEEDS), "the history to be read")
        user.open("welcome/welcome.html")
        listed = listed_fields(user)
        user.says("#technical-names", "21 technical names")
        user.says("#would-send", "You have sent none to this study yet.")
        groups = user.texts("#would-send .groups dt")
        assert len(groups) == len(user.texts("#would-send .groups .example")) == 7
        user.click("#agree", allowing=True)
        user.says("#message", "You take part")
        choose(user, 1)
        (post,) = wait_for(lambda: web.posts(), "the ping of the choice")
        user.says("#would-send", "The examples are from your last message")  # without a reload
        assert listed_fields(user) == listed
        assert user.texts("#would-send .groups dt") == groups
        examples = " ".join(user.texts("#would-send .groups .example"))
    sent = json.loads(post.body)
    assert sorted(sent.keys() - {"payload"} | sent["payload"].keys()) == sorted(listed)
    assert sent["clientId"][:8] in examples
    assert "the 2nd of 5 pages" in examples
    for never in (*(seed.title for seed in SEEDS), *(seed.url for seed in SEEDS), "example", "garden"):
        assert never.encode() not in post.body, never
    assert "cookie" not in post.headers


def test_nothing_is_sent_before_the_user_agrees_nor_when_switched_off(user: User, tmp_path: Path) -> None:
    garden_store(tmp_path)
    with (
        running_ingest(tmp_path / "store", tmp_path / "landing") as server,
        serving(server.url) as web,
        user.browsing(),
    ):
        user.welcome()
        user.says("#which-study", "nothing to agree to")
        wait_for(lambda: user.ask({"ask": "state"})["pages"] >= len(SEEDS), "the history to be read")
        assert user.type("garden") == ranked_by(START, seeded())  # no server is set yet
        choose(user, 0)
        set_study(user, web.relay)
        choose(user, 1)
        user.says("#newest", "was not sent: you have not agreed to the study")
        user.open("welcome/welcome.html")
        jsonschema.validate(would_send(user), json.loads(json_schema("ping")))
        user.click("#decline")
        user.says("#message", "You do not take part")
        choose(user, 2)
        assert web.passed == []

        user.click("#agree", allowing=True)
        user.says("#message", "You take part")
        choose(user, 3)
        wait_for(lambda: len(web.posts()) == 1, "the ping of the choice")

        user.open("options/options.html")
        user.says("#sent-words", "The newest message")
        user.says("#sent", "accepted")
        shown = would_send(user)
        user.click("#on")
        user.says("#message", "Switched off")
        before = list(web.passed)
        choose(user, 4)
        assert user.ask({"ask": "waiting"}) == []
        assert web.passed == before

        user.click("#on")
        wait_for(lambda: len(web.passed) > len(before), "the study to be asked for again")
        assert len(web.posts()) == 1  # and the choice made in the meantime isn't sent later
        server.flush()
    (row,) = landed_rows(tmp_path / "landing").values()
    assert row["model_version"] == 0
    assert set(shown["payload"]) <= set(row)


def test_private_windows_are_none_of_its_business(user: User, tmp_path: Path) -> None:
    garden_store(tmp_path)
    with (
        running_ingest(tmp_path / "store", tmp_path / "landing") as server,
        serving(server.url) as web,
        user.browsing(),
    ):
        set_study(user, web.relay)
        user.click("#consent", allowing=True)
        user.says("#arm", "treatment")
        user.search_privately("garden", "http://private.example/")
        user.open("options/options.html")
        assert user.ask({"ask": "search", "typed": "private"})["listed"]["pages"] == []
        assert user.ask({"ask": "waiting"}) == []
        choose(user, 0)
        wait_for(lambda: len(web.posts()) == 1, "the ping of the choice in a usual window")
