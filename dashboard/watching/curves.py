"""A run's metric over its rounds, from its growing file or from Parquet, and the available metrics."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from itertools import takewhile
from pathlib import Path
from typing import NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from fedping.dashboard.watching.units import Unit
from fedping.experiments.laboratory.results import Row, read_progress, rounds_of
from fedping.experiments.run_folder import DamagedRun


def read_measurements(
    file: Path, columns: Sequence[str] | None = None, chosen: pc.Expression | None = None
) -> pa.Table:
    """Return a Parquet file of metrics, or only its ``chosen`` rows and some of its columns.

    Raises:
        DamagedRun: the file has other contents.
        OSError: the file cannot be read.
    """
    try:
        return pq.read_table(file, columns=columns, filters=chosen, partitioning=None)
    except (pa.ArrowException, OSError) as error:
        if isinstance(error, OSError) and error.errno is not None:  # a system error; Arrow's have no number
            raise
        # A run counts as finished as long as its folder has run.json, and would not be run again.
        what = "its folder" if (file.parent / "run.json").is_file() else "it"
        raise DamagedRun(f"the file {file} is damaged; delete {what}, and run the experiment again") from error


class Measured(NamedTuple):
    """A split of the examples and a metric on it."""

    split: str
    metric: str


LOSS = Measured("test", "loss")


def one_of_each(units: Iterable[Unit]) -> list[Unit]:
    """Return the first run of each variant, and of each baseline."""
    first: dict[str, Unit] = {}
    for unit in units:
        first.setdefault(unit.note.name, unit)
    return list(first.values())


def measured(units: Iterable[Unit]) -> list[Measured]:
    """Return all metrics that any of the runs has."""
    return list(dict.fromkeys(kind for unit in one_of_each(units) for kind in measured_so_far(unit)))


def default_curve(units: Sequence[Unit]) -> Measured:
    """Return the default metric of a page: the first one in the table of results, even if the table is still empty."""
    for unit in one_of_each(units):
        if (outcome := unit.outcome) is not None:
            return Measured(outcome.split, outcome.shown[0])
    return next((kind for kind in measured(units) if kind.split == "test"), LOSS)


_FIRST = 1 << 18
"""Bytes at the beginning of a run's file that contain the first rounds."""

_COLUMNS = ["variant", "seed", "fold", "round", "split", "metric", "value"]

Repetition = tuple[str, int, int | None]
"""Variant or baseline, seed, fold."""


class Points(NamedTuple):
    """Numbers of rounds, and the values after these rounds; None for a value that is not finite."""

    rounds: list[int]
    values: list[float | None]


class Reached(NamedTuple):
    """The part of a running run that a page knows: bytes, points of the metric, rounds, and the run's start."""

    offset: int
    points: int
    rounds: int
    begun: float


class Grown(NamedTuple):
    """The news of a run: whether they replace the known part, new points, the position reached, and all metrics."""

    again: bool
    points: Points
    reached: Reached
    measured: list[Measured]


def grown(unit: Unit, of: Measured, since: Reached | None) -> Grown | None:
    """Return a running run's news; None if it has reported nothing yet."""
    progress = read_progress(unit.path, since.begun, since.offset) if since else read_progress(unit.path)
    if progress is None:
        return None
    again = since is None or since.begun != progress.begun
    before = Reached(0, 0, 0, progress.begun) if since is None or again else since
    points = _points(progress.rows, of)
    rounds = max(before.rounds, rounds_of(progress.rows))
    reached = Reached(progress.offset, before.points + len(points.rounds), rounds, progress.begun)
    return Grown(again, points, reached, measured_in(progress.rows))


def finished(out: Path, unit: Unit, of: Measured) -> Points:
    """Return all points of a finished run.

    Raises:
        DamagedRun: its metrics cannot be read.
    """
    whole = out / "metrics.parquet"
    if whole.is_file():
        found = _of_all(whole, whole.stat().st_mtime_ns, of)
        if (points := found.get((unit.note.name, unit.note.seed, unit.note.fold))) is not None:
            return points
    return _of_one(unit.path / "metrics.parquet", of)


@lru_cache(maxsize=8)
def _of_all(file: Path, changed: int, of: Measured) -> Mapping[Repetition, Points]:
    table = _read(file, of)
    found: dict[Repetition, Points] = {}
    columns = (table[name].to_pylist() for name in ("variant", "seed", "fold", "round", "value"))
    for variant, seed, fold, round_, value in zip(*columns, strict=True):
        points = found.setdefault((variant, seed, fold), Points([], []))
        points.rounds.append(round_)
        points.values.append(_number(value))
    return found


@lru_cache(maxsize=512)
def _of_one(file: Path, of: Measured) -> Points:
    table = _read(file, of)
    return Points(table["round"].to_pylist(), [_number(value) for value in table["value"].to_pylist()])


def _read(file: Path, of: Measured) -> pa.Table:
    chosen = (pc.field("split") == of.split) & (pc.field("metric") == of.metric)
    return read_measurements(file, _COLUMNS, chosen)


def _points(rows: Iterable[Row], of: Measured) -> Points:
    chosen = [(round_, value) for round_, split, metric, value in rows if split == of.split and metric == of.metric]
    return Points([round_ for round_, _ in chosen], [value for _, value in chosen])


def measured_in(rows: Iterable[Row]) -> list[Measured]:
    """Return the metrics in some rows, from the start version and the first round, which have all metrics."""
    first = takewhile(lambda row: row[0] < 2, rows)
    return [Measured(*key) for key in dict.fromkeys((split, metric) for _, split, metric, _ in first)]


def measured_so_far(unit: Unit) -> list[Measured]:
    """Return the metrics of a run, finished or not."""
    if unit.outcome is not None:
        return measured_by(unit.path)
    progress = read_progress(unit.path, most=_FIRST)
    return measured_in(progress.rows) if progress else []


@lru_cache(maxsize=512)
def measured_by(path: Path) -> list[Measured]:
    """Return the metrics of a finished run."""
    table = read_measurements(path / "metrics.parquet", ["split", "metric"])
    rows = table.group_by(["split", "metric"], use_threads=False).aggregate([])
    return [Measured(row["split"], row["metric"]) for row in rows.to_pylist()]


def _number(value: float) -> float | None:
    return value if math.isfinite(value) else None
