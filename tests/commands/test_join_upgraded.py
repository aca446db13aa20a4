"""An institution that joined with a program without protection, and is upgraded in the middle of a line."""

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from fedping.client_sim.joining.ledger import Ledger, ledger_of
from fedping.client_sim.joining.protected import ProtectedRows
from tests.golden.frozen import unpack
from tests.golden.reading.common import command
from tests.golden.reading.server import Server, serving
from tests.support.institutions import OPEN

STUDIES = {"tumours": "tumours", "waiting": "tumours", "keeping": "kept", "holding": "held"}
"""The study of each folder left by the earlier program. In two, a ping waits that the server didn't accept."""

PROTECTABLE = sorted({*STUDIES} - {"keeping"})


@pytest.fixture(scope="module")
def before(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Give the folders as left by the earlier program, after version 0."""
    return unpack("clients", tmp_path_factory.mktemp("before"))[0]


@pytest.fixture
def folder(before: Path, tmp_path: Path) -> Path:
    """Give a copy of these folders."""
    return Path(shutil.copytree(before, tmp_path / "here"))


@pytest.fixture
def server(folder: Path) -> Iterator[Server]:
    with serving(folder / "store", newest=2) as running:
        yield running


def join(server: Server, folder: Path, name: str, *options: str, code: int = 0) -> tuple[str, str]:
    """Run the current program in one of the folders, like a service; return its stdout and stderr."""
    own = ["--data", folder / "rows.csv", "--columns", folder / "columns.toml", "--state", folder / name]
    held = ["--hold-out", "0.25"] if name == "holding" else []
    pace = [] if "--show" in options else ["--rounds", "1", "--for", "60s", "--yes"]
    words = ["join", server.url, STUDIES[name], *own, *held, *pace, "--every", "0.1s", *options]
    ended, out, err = command(*words)
    assert ended == code, err
    return out, err


def payloads(server: Server) -> list[dict[str, Any]]:
    return [json.loads(body)["payload"] for body in server.bodies.values()]


@pytest.mark.parametrize("name", sorted(STUDIES))
def test_nothing_is_sent_before_a_person_decides(name: str, folder: Path, server: Server) -> None:
    for _ in range(2):  # like a restarted service
        said = join(server, folder, name, code=2 if name == "keeping" else 6)[1]
        assert OPEN in said
        assert name == "keeping" or "--epsilon 3 to protect each row from now on" in said
    assert not server.bodies


@pytest.mark.parametrize("name", PROTECTABLE)
def test_with_protection_no_ping_of_before_is_sent(
    name: str, folder: Path, server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    noisy: list[float] = []
    summed = ProtectedRows._sum
    monkeypatch.setattr(ProtectedRows, "_sum", lambda self, *given: noisy.append(self._z) or summed(self, *given))
    waits = (folder / name / "waiting.json").exists()
    said = join(server, folder, name, "--epsilon", "3")[1]
    assert ("was computed without protection, so it is not sent" in said) == waits == (name == "waiting")
    assert not (folder / name / "waiting.json").exists()
    assert [each["model_version"] for each in payloads(server)] == [2, 2] if name == "holding" else [2]
    assert len(noisy) == {"holding": 1 + 3}.get(name, 3), "each sum over rows has noise, of three epochs"
    book = ledger_of(folder / "rows.csv").read()
    assert [entry.what for entry in book.entries[:2]] == ["opened", "table"]
    assert [entry.what for entry in book.entries[2:]] == ["release"] * len(server.bodies), "version 0 was not charged"


def test_to_look_at_protection_shows_no_ping_of_before_and_removes_none(folder: Path, server: Server) -> None:
    waiting = (folder / "waiting" / "waiting.json").read_bytes()
    shown, said = join(server, folder, "waiting", "--show", "--epsilon", "3")
    assert "was computed without protection, so it is not sent" in said
    assert json.loads(shown)["payload"]["model_version"] == 2
    assert (folder / "waiting" / "waiting.json").read_bytes() == waiting
    join(server, folder, "waiting", code=6)
    join(server, folder, "waiting", "--epsilon", "3")
    assert payloads(server) == [json.loads(shown)["payload"]]


def test_a_kill_between_the_decision_and_its_record_sends_no_ping_of_before(
    folder: Path, server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    from fedping.client_sim.joining.folder import StateFolder

    class Killed(BaseException):
        pass

    def killed(self: StateFolder, *given: object) -> None:
        raise Killed

    with monkeypatch.context() as patched:
        patched.setattr(StateFolder, "keep_consent", killed)
        with pytest.raises(Killed):
            join(server, folder, "waiting", "--epsilon", "3")
    join(server, folder, "waiting", code=6)
    join(server, folder, "waiting", "--epsilon", "3")
    assert [each["model_version"] for each in payloads(server)] == [2]


def test_a_ping_of_before_is_sent_where_that_is_accepted(folder: Path, server: Server) -> None:
    waiting = json.loads((folder / "waiting" / "waiting.json").read_bytes())
    join(server, folder, "waiting", OPEN)
    assert [json.loads(body) for body in server.bodies.values()] == [waiting["body"]]
    assert not Ledger(folder / "rows.csv.ledger").exists
