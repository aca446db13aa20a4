"""A run's entry in the index of runs: its row in the list, its settings, its metrics, and the stamp of its files."""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping
from datetime import UTC, datetime
from functools import lru_cache
from hashlib import sha256
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import msgspec
from msgspec import Struct

from fedping.dashboard.feeds import last_lines
from fedping.dashboard.runs.flat import Flat, flat
from fedping.dashboard.runs.places import FOLDER, Place, label_name, labels_of, place
from fedping.dashboard.runs.registry import NOTE as RUN_NOTE
from fedping.dashboard.runs.registry import UnknownRun
from fedping.experiments.laboratory.report import columns_of
from fedping.experiments.laboratory.results import PROGRESS, UnitNote, read_units
from fedping.experiments.laboratory.settings import experiment_of
from fedping.experiments.laboratory.summary import Band, Summary, t_quantile
from fedping.experiments.laboratory.tallies import higher_is_better
from fedping.experiments.run_folder import NOTE, DamagedRun, noted_of
from fedping.experiments.simulate.run import read_study_progress
from fedping.protocol.errors import FedpingError
from fedping.protocol.formats import NewerFormat, without_format
from fedping.protocol.local_files import is_settled
from fedping.protocol.settings_file import tables_in

MOST_TEXT = 200
"""Maximum characters of a setting's value in the index."""

MOST_SETTINGS = 2000
"""Maximum number of a variant's settings in the index."""

MOST_VARIANTS = 1000
"""Maximum number of a run's variants in the index."""

_MOST_BYTES = 64_000_000
"""Maximum bytes of a run's note or summary; a larger file is not read."""

_TAIL = 8192
"""Bytes at the end of a run's progress that are searched for its last round."""

_USUAL_ROUNDS = 10
"""Number of rounds assumed for a baseline, whose number is unknown beforehand."""


class Found(NamedTuple):
    """A variant's metric: mean and standard deviation over seeds (None for one seed), and the number of seeds."""

    mean: float
    deviation: float | None
    seeds: int

    @property
    def half(self) -> float | None:
        """Half the 95 % t interval of the mean."""
        return None if self.deviation is None else _quantile(self.seeds) * self.deviation / self.seeds**0.5


class Kept(Struct, frozen=True):
    """A run's entry in the index.

    Attributes:
        row: the run's values in the list.
        settings: the settings that its variants share, by dotted name.
        differing: by variant, the settings that differ between variants; empty with one variant.
        metrics: the metrics by variant, each named "split metric".
        best: the best variant; None before the run is finished.
        decides: the metric that decides which variant is best, as "split metric".
        upwards: whether a higher value of that metric is better.
        seeds: its seeds.
        alike: a text that is the same for finished runs that differ only by seed; None if the run is never grouped.
    """

    row: dict[str, Any]
    settings: Flat = {}
    differing: dict[str, Flat] = {}
    metrics: dict[str, dict[str, Found]] = {}
    best: str | None = None
    decides: str | None = None
    upwards: bool = True
    seeds: tuple[int, ...] = ()
    alike: str | None = None

    @property
    def names(self) -> list[str]:
        """The names of the run's variants, in order; empty with one variant."""
        names = sorted({*self.differing, *self.metrics})
        return names if len(names) > 1 else []

    @property
    def of_best(self) -> Mapping[str, Found]:
        """The metrics of the best variant."""
        return self.metrics.get(self.best or "", {})


def kept_of(runs: Path, id: str) -> Kept | None:
    """Return the index entry of a run; None if no run has the id."""
    try:
        where = place(runs, id)
    except UnknownRun:
        return None
    return kept(runs, where)


def kept(runs: Path, where: Place) -> Kept:
    """Return the index entry of a run."""
    kind = where.kind
    setups = _setups_of(where) if kind == "laboratory" else Setups()
    summary = summary_of(where.out) if kind == "laboratory" else None
    common, differing = _split(setups.variants)
    shown = _row(runs, where, setups, summary)
    if summary is None:
        return Kept(shown, settings=common, differing=differing, seeds=setups.seeds)
    return Kept(
        shown,
        settings=common,
        differing=differing,
        metrics=_metrics_of(summary),
        best=shown["best"],
        decides=f"{summary.chosen_on} {summary.metric}",
        upwards=higher_is_better(summary.metric),
        seeds=setups.seeds,
        alike=_alike(where, setups.variants) if where.state == "finished" and setups.variants else None,
    )


def _row(runs: Path, where: Place, setups: Setups, summary: Summary | None) -> dict[str, Any]:
    """Return a run's values in the list."""
    run, labels, kind = where.run, labels_of(runs, where.id), where.kind
    best = summary.best if summary is not None and summary.best in summary.variants else None
    return {
        "id": where.id,
        "title": where.title,
        "state": where.state,
        "stopping": run is not None and run.stopping,
        "described": moment_text(_described_at(where)),
        "started": moment_text(run.started) if run else None,
        "ended": moment_text(run.ended) if run else None,
        "message": run.message if run else None,
        "can_go_on": run is not None and run.can_resume,
        "is_over": where.over,
        "by": "dashboard" if run else "command line",
        "kind": kind,
        "variants": len(setups.variants) or None,
        "seeds": len(setups.seeds) or None,
        "done": 1.0 if where.state == "finished" else _done(where, kind),
        "best": best,
        "metrics": _shown(summary, best) if summary is not None and best is not None else {},
        "tags": labels.tags,
        "note": labels.note,
    }


def _shown(summary: Summary, best: str) -> dict[str, tuple[float, float | None]]:
    """Return a variant's means with half their intervals, by "split metric", in the order of the columns."""
    metrics = summary.variants[best].metrics
    return {
        f"{split} {metric}": (band.mean, band.half)
        for split, metric in columns_of(summary)
        if (band := metrics.get(split, {}).get(metric)) is not None and band.mean is not None
    }


def _described_at(where: Place) -> datetime:
    if where.run is not None:
        return where.run.described
    try:
        return datetime.fromtimestamp((where.out / NOTE).stat().st_mtime, UTC)
    except FileNotFoundError:  # it was deleted in this moment
        return datetime.fromtimestamp(0, UTC)


def moment_text(moment: datetime | None) -> str | None:
    """Return a time as ISO 8601 in UTC."""
    return None if moment is None else moment.astimezone(UTC).isoformat(timespec="seconds")


class Setups(NamedTuple):
    """The seeds of a run, and the settings of its variants; both are empty if they cannot be read."""

    seeds: tuple[int, ...] = ()
    variants: Mapping[str, Flat] = MappingProxyType({})


def _setups_of(where: Place) -> Setups:
    """Return the setups of a run, from its note, or from its description if the note does not exist yet."""
    file = where.out / NOTE
    try:
        if file.stat().st_size > _MOST_BYTES:
            return Setups()
        note = msgspec.json.decode(without_format(file.read_bytes(), NOTE), type=_Note)
    except FileNotFoundError:
        return _described(where.run.description, where.id) if where.run else Setups()
    except (OSError, msgspec.DecodeError, UnicodeDecodeError, NewerFormat):  # its own page reports it
        return Setups()
    variants = list(note.variants.items())[:MOST_VARIANTS]
    return Setups(note.seeds, {name: _bounded(flat(setup)) for name, setup in variants})


class _Note(Struct):
    seeds: tuple[int, ...] = ()
    variants: dict[str, dict[str, Any]] = {}


@lru_cache(maxsize=64)
def _described(description: Path, id: str) -> Setups:
    """Return the setups of a run's description, which never changes."""
    try:
        tables = tables_in(description.read_text(encoding="utf-8"), "this")
        experiment = experiment_of(tables, name="experiment", folder=description.parent)
    except (OSError, ValueError, FedpingError):  # its own page reports it
        return Setups()
    variants = {name: flat(msgspec.to_builtins(setup)) for name, setup in experiment.variants.items()}
    return Setups(experiment.seeds, variants)


def _bounded(settings: Flat) -> Flat:
    return {name: value[:MOST_TEXT] for name, value in list(settings.items())[:MOST_SETTINGS]}


def _split(variants: Mapping[str, Flat]) -> tuple[Flat, dict[str, Flat]]:
    """Return the settings that all variants share, and each variant's other settings."""
    first = next(iter(variants.values()), {})
    if len(variants) < 2:
        return first, {}
    common = {name: value for name, value in first.items() if all(one.get(name) == value for one in variants.values())}
    return common, {
        variant: {name: value for name, value in settings.items() if name not in common}
        for variant, settings in variants.items()
    }


def _metrics_of(summary: Summary) -> dict[str, dict[str, Found]]:
    return {
        name: {
            f"{split} {metric}": found
            for split, metrics in variant.metrics.items()
            for metric, band in metrics.items()
            if (found := _found(band)) is not None
        }
        for name, variant in list(summary.variants.items())[:MOST_VARIANTS]
    }


def _found(band: Band) -> Found | None:
    if band.mean is None:
        return None
    known = band.half is not None and band.seeds > 1
    deviation = band.half * band.seeds**0.5 / _quantile(band.seeds) if known and band.half is not None else None
    return Found(band.mean, deviation, band.seeds)


@lru_cache(maxsize=1024)
def _quantile(seeds: int) -> float:
    return t_quantile(seeds - 1)


def _alike(where: Place, variants: Mapping[str, Flat]) -> str:
    """Return a digest of a run's inputs except the seeds: settings, data and the program's version."""
    try:
        made_of = noted_of(where.out)
    except DamagedRun:
        made_of = {"damaged": where.id}
    document = {"variants": {name: dict(sorted(variants[name].items())) for name in sorted(variants)}, "of": made_of}
    return sha256(msgspec.json.encode(document, order="sorted")).hexdigest()[:16]


_OF_BOOK = ("", RUN_NOTE, "out", f"out/{NOTE}", "out/summary.json")
_OF_COMMAND_LINE = ("", NOTE, "summary.json")


class Stamp(NamedTuple):
    """A text that changes with a run's files; ``settled`` if it is sure to change with any further change."""

    text: str
    settled: bool


def stamp_of(runs: Path, id: str, labels: Collection[str] | None) -> Stamp | None:
    """Return the stamp of a run's files; None if the folder holds no run.

    Args:
        runs: the folder of the runs.
        id: the name of the run's folder.
        labels: the names of the files in the folder of labels; None if it has not been listed.
    """
    base = f"{runs}/{id}/"
    stats = [_stat(base + name) for name in _OF_BOOK]
    if stats[1] is None:
        stats = [_stat(base + name) for name in _OF_COMMAND_LINE]
        if stats[1] is None:
            return None
    own = label_name(id)
    if (labels is None or own in labels) and (found := _stat(f"{runs}/{FOLDER}/{own}")) is not None:
        stats.append(found)
    text = " ".join("-" if each is None else f"{each[0]:x}.{each[1]:x}" for each in stats)
    newest = max((each[0] for each in stats if each is not None), default=0)
    return Stamp(text, is_settled(newest))


def _stat(file: str) -> tuple[int, int] | None:
    try:
        found = os.stat(file)  # noqa: PTH116 - half the time of a Path, for ten thousand runs
    except (OSError, ValueError):
        return None
    return found.st_mtime_ns, found.st_size


def summary_of(out: Path) -> Summary | None:
    """Return the summary of the run in a folder; None before it is finished, for a study, and if it is damaged."""
    file = out / "summary.json"
    try:
        found = file.stat()
    except (FileNotFoundError, NotADirectoryError):
        return None
    return _summary(file, found.st_mtime_ns) if found.st_size <= _MOST_BYTES else None


@lru_cache(maxsize=64)
def _summary(file: Path, changed: int) -> Summary | None:
    try:
        return msgspec.json.decode(without_format(file.read_bytes(), str(file)), type=Summary)
    except (msgspec.MsgspecError, UnicodeDecodeError, NewerFormat):  # a study's, or damaged
        return None


def _done(run: Place, kind: str) -> float | None:
    """Return the completed share of a run; None if unknown."""
    if run.state == "waiting":
        return None
    if kind == "study":
        now = read_study_progress(run.out)
        return now.done / now.total if now is not None and now.total else None
    units = _units(run.out)
    if not units:
        return None
    works = [max(1, _USUAL_ROUNDS if unit.rounds is None else unit.rounds) for unit in units]
    return sum(map(_work_done, units, works, [run.out] * len(units))) / sum(works)


def _units(out: Path) -> list[UnitNote]:
    try:
        return _units_at(out, (out / "units.json").stat().st_mtime_ns)
    except FileNotFoundError:
        return []


@lru_cache(maxsize=64)
def _units_at(out: Path, changed: int) -> list[UnitNote]:
    try:
        return read_units(out) or []
    except DamagedRun:  # its own page reports it
        return []


def _work_done(unit: UnitNote, work: int, out: Path) -> int:
    folder = out / unit.folder
    if (folder / "run.json").exists():
        return work
    return min(work, _last_round(folder / PROGRESS))


def _last_round(file: Path) -> int:
    """Return the number of rounds in the last whole line of a run's progress."""
    try:
        whole = last_lines(file, _TAIL)[:-1]
        return max((int(row[0]) for row in msgspec.json.decode(whole[-1])), default=0)
    except (msgspec.DecodeError, UnicodeDecodeError, TypeError, KeyError, IndexError):
        return 0
