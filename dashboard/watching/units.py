"""The runs of a laboratory experiment according to their files, and the remaining time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Literal, NamedTuple, TypeAlias

import msgspec

from fedping.experiments.laboratory.results import Outcome, RunFolder, UnitNote, read_units
from fedping.experiments.laboratory.settings import Experiment
from fedping.experiments.laboratory.units import units_of
from fedping.experiments.run_folder import NOTE, is_study, read_whole
from fedping.protocol.formats import without_format

State: TypeAlias = Literal["waiting", "begun", "finished"]


@dataclass(frozen=True)
class Unit:
    """A run of an experiment, and its folder."""

    note: UnitNote
    path: Path

    @property
    def outcome(self) -> Outcome | None:
        """The outcome of the run; None before it is finished."""
        try:
            changed = (self.path / "run.json").stat().st_mtime_ns
        except FileNotFoundError:
            return None
        return _outcome(self.path, changed)

    @property
    def begun(self) -> bool:
        """Whether the run has been started."""
        return self.path.is_dir()


def units_in(out: Path) -> list[Unit]:
    """Return the runs of the experiment in a folder, in order; empty before it has begun.

    Raises:
        DamagedRun: the file with the list of runs has other contents.
    """
    return [Unit(note, out / note.folder) for note in _notes(out)]


def _notes(out: Path) -> Sequence[UnitNote]:
    for name, read in (("units.json", _listed), (NOTE, _described)):
        try:
            changed = (out / name).stat().st_mtime_ns
        except FileNotFoundError:
            continue
        return read(out, changed)
    return ()


@lru_cache(maxsize=64)
def _listed(out: Path, changed: int) -> Sequence[UnitNote]:
    return read_units(out) or ()


@lru_cache(maxsize=64)
def _described(out: Path, changed: int) -> Sequence[UnitNote]:
    """Return the runs of an experiment by an earlier version of fedping, which wrote no list; empty for a study."""
    if is_study(out):
        return ()
    read_whole(out / NOTE, dict)  # raises if it is damaged
    try:
        experiment = msgspec.json.decode(without_format((out / NOTE).read_bytes(), NOTE), type=Experiment)
    except msgspec.ValidationError:
        return ()
    return [unit.note for unit in units_of(experiment)]


@lru_cache(maxsize=4096)
def _outcome(path: Path, changed: int) -> Outcome | None:
    return RunFolder(path).finished()


class Pace(NamedTuple):
    """The pace of a run: rounds done, the total (None for a baseline), and the seconds that the rounds took."""

    name: str
    rounds: int
    most: int | None
    seconds: float
    finished: bool
    begun: bool


def seconds_left(units: Sequence[Pace]) -> float | None:
    """Return the estimated seconds left, at the present pace and parallelism; None before any round is over.

    A variant without a finished round is given the mean pace of the others. A run that may stop early is assumed to go
    on to its last round.
    """
    paces = _paces(units)
    if not paces:
        return None
    usual = sum(paces.values()) / len(paces)
    left = [_left(unit, paces.get(unit.name, usual)) for unit in units if not unit.finished]
    at_a_time = max(1, sum(unit.begun and not unit.finished for unit in units))
    return max(sum(left) / at_a_time, max(left, default=0.0))


def _left(unit: Pace, pace: float) -> float:
    return 0.0 if unit.most is None else max(0, unit.most - unit.rounds) * pace


def _paces(units: Sequence[Pace]) -> Mapping[str, float]:
    """Return the seconds per round of each variant that has finished a round."""
    rounds: dict[str, int] = {}
    seconds: dict[str, float] = {}
    for unit in units:
        if unit.most is not None and unit.rounds:
            rounds[unit.name] = rounds.get(unit.name, 0) + unit.rounds
            seconds[unit.name] = seconds.get(unit.name, 0.0) + unit.seconds
    return {name: seconds[name] / rounds[name] for name in rounds}
