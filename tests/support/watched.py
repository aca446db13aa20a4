"""Runs in a folder in the form of the dashboard's book, without a process."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import msgspec

from fedping.dashboard.runs.registry import DESCRIPTION, NOTE, Note
from fedping.experiments.laboratory.results import MetricLog, ProgressFile, UnitNote, write_units
from fedping.experiments.laboratory.run import run_experiment
from fedping.experiments.laboratory.settings import experiment_from_toml
from fedping.experiments.run_process import ENDED, Ended
from tests.support.laboratory import SMALL

BEGUN = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)


def noted(runs: Path, id: str, title: str, text: str = SMALL) -> Path:
    """Record a run in a folder, as a lost one; return its folder."""
    folder = runs / id
    folder.mkdir(parents=True)
    (folder / NOTE).write_bytes(msgspec.json.encode(Note(title, BEGUN)))
    (folder / DESCRIPTION).write_text(text)
    return folder


def ended(folder: Path, code: int = 0) -> None:
    """Record that a run's process has ended."""
    (folder / ENDED).write_bytes(msgspec.json.encode(Ended(code, BEGUN)))


def finished_run(runs: Path, id: str, title: str, *changes: str) -> Path:
    """Run the small laboratory experiment as a run of the book; return its folder."""
    folder = noted(runs, id, title)
    run_experiment(experiment_from_toml(folder / DESCRIPTION, changes), folder / "out", jobs=1)
    ended(folder)
    return folder


class Going:
    """A run of one variant, which a test advances."""

    def __init__(self, runs: Path, id: str, seeds: int = 1) -> None:
        self.folder = noted(runs, id, "goes on")
        self.out = self.folder / "out"
        self.out.mkdir()
        self.units = [
            UnitNote(name="v", baseline=False, seed=seed, fold=None, folder=f"runs/v/seed-{seed}", rounds=9)
            for seed in range(1, seeds + 1)
        ]
        write_units(self.out, self.units)

    def begin(self, unit: int = 0) -> tuple[MetricLog, ProgressFile]:
        """Begin or restart one of the run's units."""
        folder = self.out / self.units[unit].folder
        folder.mkdir(parents=True, exist_ok=True)
        log = MetricLog("v", self.units[unit].seed, None)
        return log, ProgressFile(folder, log)
