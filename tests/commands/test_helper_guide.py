"""The helper's guide, typed as written, with a leader that sends requests over HTTP and by files."""

import re
import shlex
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any, get_args

import msgspec
import pytest

from fedping.experiments.server_process import helper_process
from fedping.helper.serving import STATUS
from fedping.main import main
from fedping.protocol.privacy import Privacy, Shared
from fedping.protocol.sharing.exchange import Reason
from fedping.protocol.sharing.offer import Offer
from fedping.protocol.study import public_study
from tests.support.helping import CENTRAL
from tests.support.private import private_study
from tests.support.private_rounds import land_private
from tests.support.rounds import store_with
from tests.support.shared_rounds import SharedLine

ROOT = Path(__file__).parents[2]
GUIDE = (ROOT / "docs" / "helper.md").read_text(encoding="utf-8")
BLOCK = re.compile(r"^```sh\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def commands() -> Iterator[str]:
    for block in BLOCK.findall(GUIDE):
        yield from block.splitlines()


def run(capfd: pytest.CaptureFixture[str], *words: str, code: int = 0) -> str:
    capfd.readouterr()
    ended = main(list(words))
    said = capfd.readouterr()
    assert ended == code, f"{words}\n{said.out}{said.err}"
    return said.out + said.err


def test_the_guide_is_typed_as_it_stands(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["privacy", "key", "leader.key"]) == 0
    leader = run(capfd, "privacy", "identity", "leader.key").strip()
    line, served = None, ""
    with ExitStack() as running:
        for command in commands():
            program, *words = shlex.split(command.replace("$LEADER", leader).replace("/backups", str(tmp_path)))
            assert program == "fedping"
            if words[:2] == ["helper", "serve"]:
                served = running.enter_context(helper_process(tmp_path / "helper", tmp_path / "log")).address
                assert line is not None
                assert "published version 1" in round_of(capfd, "--helper", served)
                land(line, 1)
                continue
            if words[:2] == ["helper", "answer"]:  # version 1, as the leader finds it in its store
                assert "store/private/main/asked/1.request" in round_of(capfd)
                words[2] = str(Path("store/private/main/asked/1.request"))
                assert run(capfd, *words).startswith(f"{words[2]}.answer: the answer to version 1")
                assert "published version 2" in round_of(capfd, "--answer", f"{words[2]}.answer")
                continue
            if words[:2] == ["helper", "join"]:
                line = prepared(tmp_path)
            if words[:2] == ["helper", "restore"]:
                words[-1] = "private/main=3"
            said = run(capfd, *words)
            if words[:2] == ["helper", "join"]:
                assert re.search(
                    r"noise of ± \d+.* on each number; you guarantee epsilon \S+ and delta \S+ for \d+ rounds", said
                ), said
            if words[1] in ("join", "rotate"):
                offer = msgspec.json.decode(Path("offer.json").read_bytes(), type=Offer)
                run(capfd, "study", "offer", "private", "main", "offer.json")
                if words[1] == "join":
                    assert line is not None
                    line = SharedLine(line.study, line.helper, offer)
                    land(line, 0)
            if words[1] == "status":
                assert "answered 2 of 5 versions" in said
    assert served


def test_a_printed_offer_is_alone_and_what_it_promises_is_said_beside_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    run(capfd, "helper", "init")
    prepared(tmp_path)
    for what in ("takes part in", "already takes part in"):
        assert main(["helper", "join", "study.json", "--leader", "ab" * 32]) == 0
        said = capfd.readouterr()
        msgspec.json.decode(said.out, type=Offer)
        assert f"this helper {what} line 'main' of study 'private': sums of 7 numbers, 5 clients or more" in said.err
        assert "for the leader abababababababab…" in said.err


def test_machines_are_told_in_json(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    identity = told(capfd, "init")["identity"]
    prepared(tmp_path)
    joined = told(capfd, "join", "study.json", "--leader", "ab" * 32)
    assert (joined["study"], joined["line"], joined["leader"]) == ("private", "main", "ab" * 32)
    assert joined["numbers"] == 7
    assert joined["sigma"] > 0
    assert joined["promise"]["epsilon"] > 0
    assert joined["file"] is None
    first = msgspec.convert(joined["signed"], Offer)
    rotated = told(capfd, "rotate", "private", "main", "--offer", "offer.json")
    assert rotated["file"] == "offer.json"
    assert rotated["offer"] != joined["offer"] == first.id.hex()
    assert msgspec.convert(rotated["signed"], Offer) == msgspec.json.decode(Path("offer.json").read_bytes(), type=Offer)
    assert told(capfd, "retire", "private", "main")["retired"] == [joined["offer"]]
    assert told(capfd, "retire", "private", "main")["retired"] == []
    assert told(capfd, "backup", "copy") == {"backup": "copy", "identity": identity}
    restored = told(capfd, "restore", "copy", "--folder", "again", "--from", "private/main=1")
    assert restored == {"folder": "again", "identity": identity}


def told(capfd: pytest.CaptureFixture[str], *words: str) -> dict[str, Any]:
    found: dict[str, Any] = msgspec.json.decode(run(capfd, "helper", *words, "--json"))
    return found


def land(line: SharedLine, version: int) -> None:
    """Land the pings of both arms' clients on a version."""
    pings = [*line.crowd(110, version=version), *line.crowd(8, arm="control", version=version)]
    land_private(Path("landing"), line.study, pings, iteration=version)


def round_of(capfd: pytest.CaptureFixture[str], *more: str) -> str:
    return run(capfd, "round", "private", "main", "--engine", "numpy", "--privacy-key", "leader.key", *more)


def prepared(folder: Path) -> SharedLine:
    """Return a study with a helper in a folder, its store, and its public document."""
    from fedping.helper.folder import open_folder

    helper = open_folder(folder / "helper")
    privacy = Privacy(central=CENTRAL, shared=Shared(helper=helper.identity, min_batch=5))
    study = private_study(privacy=privacy)
    store_with(folder / "store", study)
    (folder / "study.json").write_bytes(msgspec.json.encode(public_study(study)))
    return SharedLine(study, helper, None)  # type: ignore[arg-type]


def test_every_reason_is_in_the_guide_with_its_status() -> None:
    rows = dict(re.findall(r"^\| `(\w+)` \| (\d{3}) \|", GUIDE, re.MULTILINE))
    assert {reason: int(status) for reason, status in rows.items()} == STATUS
    assert set(STATUS) == set(get_args(Reason))
