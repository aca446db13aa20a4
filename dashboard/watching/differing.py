"""Runs side by side: only the settings, results and conditions that differ between them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from fedping.dashboard.runs.entries import Kept, kept
from fedping.dashboard.runs.places import Place, place
from fedping.dashboard.watching.comparing import ABSENT, MOST, Row
from fedping.experiments.laboratory.summary import Band, shown_as, told
from fedping.experiments.run_folder import DamagedRun, environments_in, noted_of
from fedping.protocol.errors import InvalidSettings

T = TypeVar("T")

LEAST = 2
"""Minimum number of compared runs."""

_SHORT = 12
"""Number of displayed characters of a digest."""


@dataclass(frozen=True)
class Differences:
    """Differences between runs; values are in the order of the runs.

    Attributes:
        wheres: the runs.
        settings: the settings that differ; a run whose variants differ shows the values of all of them.
        results: the results that differ, each of the run's best variant.
        conditions: the other conditions that differ: seeds, data, the version of fedping, the machine.
        same: the number of settings that are the same in all runs.
    """

    wheres: tuple[Place, ...]
    settings: list[Row]
    results: list[Row]
    conditions: list[Row]
    same: int


def differences(runs: Path, ids: Sequence[str]) -> Differences:
    """Return the differences between runs of a folder.

    Raises:
        UnknownRun: a run does not exist.
        InvalidSettings: there are fewer than two runs, or too many.
    """
    ids = list(dict.fromkeys(ids))
    if not LEAST <= len(ids) <= MOST:
        raise InvalidSettings(f"{len(ids)} runs can't be compared side by side; choose {LEAST} to {MOST}")
    wheres = tuple(place(runs, id) for id in ids)
    known = [kept(runs, where) for where in wheres]
    settings = _rows(known, _settings_of)
    differing = [row for row in settings if _differs(row)]
    return Differences(
        wheres,
        settings=differing,
        results=[row for row in _rows(known, _results_of) if _differs(row)],
        conditions=[row for row in _rows(list(zip(wheres, known, strict=True)), _conditions_of) if _differs(row)],
        same=len(settings) - len(differing),
    )


def _differs(row: Row) -> bool:
    return len(set(row.values)) > 1


def _rows(runs: Sequence[T], of: Callable[[T], Mapping[str, str]]) -> list[Row]:
    each = [of(run) for run in runs]
    names = dict.fromkeys(name for one in each for name in one)
    return [Row(name, tuple(one.get(name, ABSENT) for one in each)) for name in names]


def _settings_of(run: Kept) -> dict[str, str]:
    several: dict[str, dict[str, None]] = {}
    for settings in run.differing.values():
        for name, value in settings.items():
            several.setdefault(name, {})[value] = None
    together = {**run.settings, **{name: ", ".join(values) for name, values in several.items()}}
    return dict(sorted(together.items()))


def _results_of(run: Kept) -> dict[str, str]:
    found = {"state": str(run.row["state"])}
    if run.best is not None:
        found["best variant"] = run.best
    for name, (mean, half) in run.row["metrics"].items():
        split, metric = name.split(" ", 1)
        seeds = run.of_best[name].seeds if name in run.of_best else 1
        found[f"{shown_as(metric)}, {split.replace('_', ' ')}"] = told(Band(mean, half, seeds))
    return found


def _conditions_of(run: tuple[Place, Kept]) -> dict[str, str]:
    where, known = run
    try:
        made_of = {name: digest[:_SHORT] for name, digest in noted_of(where.out).items()}
        machines = environments_in(where.out)
    except DamagedRun:  # its own page reports it
        return {}
    found = {"seeds": ", ".join(map(str, known.seeds)) or ABSENT, **made_of}
    for machine in machines[-1:]:
        found |= {"machine": machine.machine, "Python": machine.python, "NumPy": machine.numpy}
        found["matrix products"] = ", ".join(machine.blas) or ABSENT
    return found
