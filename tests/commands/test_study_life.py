"""Pausing, ending and resuming a study: recorded users, times and reasons, two commands at once, a killed process."""

import json
import signal
import threading
from contextlib import suppress
from pathlib import Path

import pytest

from fedping.main import main
from fedping.model_store import StoreError, open_store
from fedping.model_store.history import HistoryConflict
from fedping.protocol.study import Declared
from fedping.server_jobs.health.snapshot import StudyMonitor, ingest_snapshot
from fedping.server_jobs.ingest.settings import IngestSettings
from tests.support.killed_command import killed_at
from tests.support.versions import WHEN, small_study
from tests.support.walks import walked_store


@pytest.fixture
def store_path(tmp_path: Path) -> Path:
    walked_store(tmp_path / "store", small_study(), 1)
    (tmp_path / "landing").mkdir()
    return tmp_path / "store"


def command(store_path: Path, *words: str) -> int:
    return main([*words, "--store", str(store_path)])


def test_the_history_tells_who_when_and_why(store_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert command(store_path, "study", "history", "study") == 0
    assert "has not changed since" in capsys.readouterr().out
    assert command(store_path, "study", "pause", "study", "--because", "the loss  went\nup") == 0
    assert command(store_path, "study", "resume", "study") == 0
    assert command(store_path, "study", "end", "study", "--because", "it is over") == 0
    capsys.readouterr()
    assert command(store_path, "study", "history", "study", "--json") == 0
    rows = json.loads(capsys.readouterr().out)
    assert [(row["number"], row["kind"], row["because"]) for row in rows] == [
        (1, "paused", "the loss went up"),
        (2, "running", ""),
        (3, "ended", "it is over"),
    ]
    assert all(row["by"] and row["at"] for row in rows)
    assert command(store_path, "study", "history", "study") == 0
    assert f"paused by {rows[0]['by']}, because: the loss went up" in capsys.readouterr().out


def test_why_is_told_wherever_the_state_is(store_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert command(store_path, "study", "pause", "study", "--because", "we look into the loss") == 0
    capsys.readouterr()
    assert command(store_path, "study", "show", "study") == 0
    assert "because: we look into the loss" in capsys.readouterr().out
    landing = store_path.parent / "landing"
    places = IngestSettings(store=store_path, landing=landing, journal=landing / ".journal")
    declared, _ = StudyMonitor(places).study("study", ingest_snapshot(places))
    assert declared.because == "we look into the loss"
    words = ["round", "study", "--engine", "numpy", "--landing", str(landing), "--json"]
    assert command(store_path, *words) == 0
    said = capsys.readouterr()
    told = json.loads(said.out)
    assert (told["status"], told["line"], told["iteration"]) == ("paused", "main", 1)
    assert told["since"]
    assert "because: we look into the loss" in said.err
    assert command(store_path, "study", "end", "study", "--because", "it is over") == 0
    _, health = StudyMonitor(places).study("study", ingest_snapshot(places))
    assert "because: it is over: pings are rejected" in health.headline


def test_a_reason_is_one_line_of_so_many_characters(store_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert command(store_path, "study", "pause", "study", "--because", "x" * 501) == 2
    assert command(store_path, "study", "pause", "study", "--because", "\x1b[2J") == 2
    assert open_store(store_path).studies.declared("study").state == "running"
    assert command(store_path, "study", "history", "other") == 1
    assert "has no study 'other'" in capsys.readouterr().err


def test_of_many_at_once_one_wins(store_path: Path) -> None:
    outcomes: list[str] = []

    def declare(name: str) -> None:
        mine = open_store(store_path)
        with suppress(HistoryConflict):
            mine.studies.declare("study", Declared(state="paused", since=WHEN, by=name), after=0)
            outcomes.append(name)

    threads = [threading.Thread(target=declare, args=(f"operator {n}",)) for n in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(outcomes) == 1
    with pytest.raises(HistoryConflict, match=f"{outcomes[0]} was faster, and has declared the pause of study 'study'"):
        open_store(store_path).studies.declare("study", Declared(state="ended", since=WHEN), after=0)
    assert open_store(store_path).studies.declared("study").by == outcomes[0]
    assert [entry.by for entry in open_store(store_path).studies.history("study")] == outcomes


@pytest.mark.parametrize("write", [1, 2])
def test_a_pause_that_is_killed_has_happened_or_not(store_path: Path, write: int) -> None:
    words = ("study", "pause", "study", "--store", str(store_path))
    assert killed_at(write, *words) == -signal.SIGKILL
    state = open_store(store_path).studies.declared("study").state
    assert state == ("running" if write == 1 else "paused"), "once there is an entry, it holds"
    assert command(store_path, "study", "pause", "study") == 0
    assert open_store(store_path).studies.declared("study").state == "paused"
    assert len(open_store(store_path).studies.history("study")) == 1
    assert command(store_path, "study", "resume", "study") == 0
    assert open_store(store_path).studies.declared("study").state == "running"


def test_a_store_that_cannot_be_written_says_so(store_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (store_path / "study" / "history").write_text("in the way")
    assert command(store_path, "study", "pause", "study") == 1
    assert "cannot write" in capsys.readouterr().err
    assert open_store(store_path).studies.declared("study").state == "running"


@pytest.mark.parametrize("damage", [b"{", b'{"format":9,"number":1}'])
def test_a_damaged_history_is_never_read_as_none(store_path: Path, damage: bytes) -> None:
    store = open_store(store_path)
    store.studies.declare("study", Declared(state="paused", since=WHEN))
    (store_path / "study" / "history" / "1.json").write_bytes(damage)
    with pytest.raises(StoreError, match=r"history/1\.json"):
        open_store(store_path).study("study")
    with pytest.raises(StoreError, match=r"history/1\.json"):
        store.studies.declare("study", Declared(since=WHEN))


def test_a_state_of_before_there_was_a_history_holds(store_path: Path) -> None:
    (store_path / "study" / "state.json").write_text(f'{{"state":"paused","since":"{WHEN}","simulated":false}}')
    assert open_store(store_path).studies.declared("study") == Declared(state="paused", since=WHEN)
    assert command(store_path, "study", "resume", "study") == 0
    assert open_store(store_path).studies.declared("study").state == "running"
