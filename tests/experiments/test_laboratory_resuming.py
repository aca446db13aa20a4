"""A killed run resumes at its round, and ends with the same bits as an uninterrupted one."""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedping.client_sim.learning import MemoryStates
from fedping.experiments.laboratory import resuming
from fedping.experiments.laboratory.one_run import run_unit
from fedping.experiments.laboratory.results import Row, read_progress
from fedping.experiments.laboratory.resuming import CHECKPOINT
from fedping.experiments.laboratory.units import Unit
from fedping.main import main
from tests.experiments.test_laboratory_run import ROOT, contents
from tests.support import forked
from tests.support.laboratory import small, small_file

CHANGES: dict[str, Any] = {
    "rounds": 30,
    "server__optimizer": {"optimizer": "adam", "rate": 0.05},
    "server__staleness": {"most": 2},
    "lateness": {"shares": [0.6, 0.2, 0.2]},
    "sampling": {"sampling": "uniform", "clients": 3},
    "training": {"algorithm": "local", "epochs": 1, "batch": 8, "rate": 0.1},
    "early_stopping": {"patience": 1000},
    "evaluation__every": 4,
}


def unit(**changes: Any) -> Unit:
    [setup] = small(**{**CHANGES, **changes}).variants.values()
    return Unit("only", None, setup, 1, None)


class Killed(BaseException):
    pass


def killed_after(rounds: int, folder: Path) -> None:
    def on_round(done: int, rows: object) -> None:
        if done == rounds:
            raise Killed

    with pytest.raises(Killed):
        run_unit(unit(), folder, on_round)


def test_it_goes_on_at_its_round_to_the_same_bits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resuming, "MOST_OF_THE_TIME", np.inf)
    whole = run_unit(unit(), tmp_path / "whole")
    killed_after(7, tmp_path / "killed")
    killed_after(23, tmp_path / "killed")
    told: list[int] = []
    measured: list[int] = []

    def on_round(done: int, rows: list[Row]) -> None:
        told.append(done)
        measured.append(len(rows))

    after = run_unit(unit(), tmp_path / "killed", on_round)  # type: ignore[arg-type]
    assert told == list(range(23, 31))
    assert measured[0] > 23, "who watches is told at once of what was measured before"
    assert contents(tmp_path / "killed") == contents(tmp_path / "whole")
    assert after.seconds > 0
    assert whole.versions == after.versions == 30


def test_who_follows_the_progress_finds_all_rows_in_the_new_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(resuming, "MOST_OF_THE_TIME", np.inf)
    killed_after(10, tmp_path)
    folder = unit().folder(tmp_path).path
    before = read_progress(folder)
    killed_after(12, tmp_path)
    after = read_progress(folder)
    assert before is not None
    assert after is not None
    assert after.begun > before.begun
    assert after.rows[: len(before.rows)] == before.rows
    assert len(after.rows) > len(before.rows)


@pytest.mark.parametrize("damage", [b"", b"PK\x03\x04 no more than the beginning"])
def test_a_damaged_state_is_none_and_the_run_begins_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, damage: bytes
) -> None:
    monkeypatch.setattr(resuming, "MOST_OF_THE_TIME", np.inf)
    run_unit(unit(), tmp_path / "whole")
    killed_after(5, tmp_path / "killed")
    (unit().folder(tmp_path / "killed").path / CHECKPOINT).write_bytes(damage)
    told: list[int] = []
    outcome = run_unit(unit(), tmp_path / "killed", lambda done, _: told.append(done))
    assert told[0] == 0
    assert sum("its state, checkpoint.npz, is damaged" in note for note in outcome.notes) == 1
    after, whole = (contents(tmp_path / name) for name in ("killed", "whole"))
    [run] = (name for name in after if name.endswith("run.json"))
    said = json.loads(after.pop(run)) | {"notes": json.loads(whole[run])["notes"]}
    assert (said, after) == (json.loads(whole.pop(run)), whole)


@pytest.mark.long
def test_a_process_that_is_killed_at_any_moment_comes_to_the_same_bits(tmp_path: Path) -> None:
    options = [
        "--set",
        "rounds=400",
        "--set",
        "evaluation.every=100",
        "--set",
        "seeds=1",
        "--set",
        "evaluation.baselines=[]",
        "--jobs",
        "1",
    ]
    command = [sys.executable, "-m", "fedping", "simulate", str(small_file(tmp_path)), *options]
    assert main([*command[3:], "--out", str(tmp_path / "whole")]) == 0
    checkpoint = tmp_path / "killed/runs/gradient/seed-1" / CHECKPOINT
    with forked.Popen([*command, "--out", str(tmp_path / "killed")], cwd=ROOT) as process:
        while not checkpoint.is_file():
            assert process.poll() is None
            time.sleep(0.001)
        os.kill(process.pid, signal.SIGKILL)
    assert checkpoint.is_file()
    assert main([*command[3:], "--out", str(tmp_path / "killed")]) == 0
    runs = contents(tmp_path / "killed/runs")
    assert runs == contents(tmp_path / "whole/runs")


def test_what_clients_keep_is_the_same_when_it_is_restored() -> None:
    first = {"variate": np.zeros(2), "count": np.zeros((), np.int64)}
    states = MemoryStates(first)
    states.save(np.array([7, 3]), {"variate": np.array([[1.0, 2.0], [3.0, 4.0]]), "count": np.array([5, 6])})
    other = MemoryStates(first)
    other.restore(states.snapshot())
    for each in (states, other):
        each.save(np.array([9]), {"variate": np.array([[8.0, 8.0]]), "count": np.array([1])})
        found = each.load(np.array([3, 4, 7, 9]))
        assert found["variate"].tolist() == [[3.0, 4.0], [0.0, 0.0], [1.0, 2.0], [8.0, 8.0]]
        assert found["count"].tolist() == [6, 0, 5, 1]
