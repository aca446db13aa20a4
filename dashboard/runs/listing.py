"""The list of runs that a page shows and follows."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import lru_cache
from pathlib import Path
from typing import Any

import msgspec

from fedping.dashboard.feeds import Change, last_lines
from fedping.dashboard.runs.places import Place, labels_of, places
from fedping.dashboard.runs.registry import RunBook
from fedping.experiments.laboratory.report import columns_of
from fedping.experiments.laboratory.results import PROGRESS, UnitNote, read_units
from fedping.experiments.laboratory.settings import experiment_of
from fedping.experiments.laboratory.summary import Summary
from fedping.experiments.run_folder import NOTE, DamagedRun
from fedping.experiments.simulate.run import read_study_progress
from fedping.protocol.errors import FedpingError
from fedping.protocol.formats import NewerFormat, without_format
from fedping.protocol.local_files import is_settled
from fedping.protocol.settings_file import tables_in

_TAIL = 8192
"""Bytes at the end of a run's progress that are searched for its last round."""

_USUAL_ROUNDS = 10
"""Rounds that a baseline counts for, since its number of rounds is unknown beforehand."""


@dataclass(frozen=True)
class RunsFeed:
    """All runs of a folder, sent whole at every change."""

    folder: Path
    at_most: int

    def since(self, position: str | None) -> Change | None:
        """Return the list if it differs from that of ``position``."""
        changed = _changed(self.folder)
        if position is not None and _at_rest.get(self.folder) == (changed, position):
            return None
        runs = visible_runs(RunBook(self.folder, self.at_most))
        rows = [row(self.folder, where) for where in runs]
        digest = hashlib.sha256(msgspec.json.encode(rows)).hexdigest()[:16]
        if changed is not None and all(where.over for where in runs):
            _at_rest[self.folder] = (changed, digest)
        return None if digest == position else Change(digest, {"whole": True, "runs": rows})


_at_rest: dict[Path, tuple[int, str]] = {}
"""For folders whose runs are all over, the time of the last change and the position: no need to read them again."""


def _changed(folder: Path) -> int | None:
    """Return when a folder was changed, if long enough ago that a further change would have another time."""
    try:
        changed = folder.stat().st_mtime_ns
    except FileNotFoundError:
        return None
    return changed if is_settled(changed) else None


def visible_runs(book: RunBook) -> list[Place]:
    """Return all runs of a folder, also those of the command line, the newest first, after starting waiting ones."""
    book.look()
    return sorted(places(book.folder), key=_described_at, reverse=True)


def _described_at(where: Place) -> datetime:
    if where.run is not None:
        return where.run.described
    try:
        return datetime.fromtimestamp((where.out / NOTE).stat().st_mtime, UTC)
    except FileNotFoundError:  # it was deleted in this moment
        return datetime.fromtimestamp(0, UTC)


def row(runs: Path, where: Place) -> Mapping[str, Any]:
    """Return a run as the list shows it."""
    run, labels, result = where.run, labels_of(runs, where.id), result_of(where.out)
    described = _described(run.description, where.id) if run else _size_of(where)
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
        **described,
        "done": 1.0 if where.state == "finished" else _done(where, described["kind"]),
        "best": result.best if result else None,
        "metrics": result.metrics if result else {},
        "tags": labels.tags,
        "note": labels.note,
    }


def _size_of(where: Place) -> Mapping[str, Any]:
    """Return the size of a run of the command line."""
    if where.kind == "study":
        return {"kind": "study", "variants": None, "seeds": None}
    units = [unit for unit in _units(where.out) if not unit.baseline]
    names, seeds = {unit.name for unit in units}, {unit.seed for unit in units}
    return {"kind": "laboratory", "variants": len(names) or None, "seeds": len(seeds) or None}


@dataclass(frozen=True)
class Result:
    """The result of a finished run: its best variant, and its means with half their intervals, by "split metric"."""

    best: str | None
    metrics: Mapping[str, tuple[float, float | None]]


def result_of(out: Path) -> Result | None:
    """Return the result of the run in a folder; None before it is finished, and for a study, which has its pages."""
    file = out / "summary.json"
    try:
        return _result(file, file.stat().st_mtime_ns)
    except (FileNotFoundError, NotADirectoryError):
        return None


@lru_cache(maxsize=1024)
def _result(file: Path, changed: int) -> Result | None:
    try:
        summary = msgspec.json.decode(without_format(file.read_bytes(), str(file)), type=Summary)
    except (msgspec.MsgspecError, UnicodeDecodeError, NewerFormat):  # a study's; or damaged, as its own page says
        return None
    if summary.best is None or summary.best not in summary.variants:
        return Result(None, {})
    metrics = summary.variants[summary.best].metrics
    return Result(
        summary.best,
        {
            f"{split} {metric}": (band.mean, band.half)
            for split, metric in columns_of(summary)
            if (band := metrics.get(split, {}).get(metric)) is not None and band.mean is not None
        },
    )


MOST_COLUMNS = 4
"""The most metric columns in the list: those that most runs have."""

_SORTED_BY = ("title", "state", "described", "took")


def metric_columns(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return the metrics that are columns, as "split metric"."""
    counts = Counter(name for each in rows for name in each["metrics"])
    return [name for name, _ in counts.most_common(MOST_COLUMNS)]


def chosen_rows(
    rows: Sequence[Mapping[str, Any]], search: str = "", tag: str = "", sort: str = "", backwards: bool = False
) -> list[Mapping[str, Any]]:
    """Return the rows with all words of ``search`` and the ``tag``, sorted by a column; rows without it come last."""
    words = search.lower().split()
    matching = [
        each for each in rows if (not tag or tag in each["tags"]) and all(word in _text(each) for word in words)
    ]
    having = [each for each in matching if _sort_key(each, sort) is not None]
    having.sort(key=lambda each: _sort_key(each, sort), reverse=backwards)
    return having + [each for each in matching if _sort_key(each, sort) is None]


def _text(row: Mapping[str, Any]) -> str:
    """Return all searchable text."""
    texts = (
        row["title"],
        row["id"],
        row["state"],
        row["kind"],
        row["by"],
        row["best"] or "",
        row["note"],
        *row["tags"],
    )
    return " ".join(texts).lower()


def _sort_key(row: Mapping[str, Any], sort: str) -> Any:
    if sort == "took":
        return _took(row)
    if sort in _SORTED_BY:
        return str(row[sort]).lower()
    return row["metrics"][sort][0] if sort in row["metrics"] else None


def _took(row: Mapping[str, Any]) -> float | None:
    if row["started"] is None or row["ended"] is None:
        return None
    return (datetime.fromisoformat(row["ended"]) - datetime.fromisoformat(row["started"])).total_seconds()


def moment_text(moment: datetime | None) -> str | None:
    """Return a time as ISO 8601 in UTC."""
    return None if moment is None else moment.astimezone(UTC).isoformat(timespec="seconds")


@lru_cache(maxsize=1024)
def _described(description: Path, id: str) -> Mapping[str, Any]:
    """Return what a description says about its size; a run's description never changes."""
    try:
        tables = tables_in(description.read_text(encoding="utf-8"), "this")
        if "study" in tables:
            return {"kind": "study", "variants": None, "seeds": None}
        experiment = experiment_of(tables, name="experiment", folder=description.parent)
    except (OSError, ValueError, FedpingError):
        return {"kind": "laboratory", "variants": None, "seeds": None}
    return {"kind": "laboratory", "variants": len(experiment.variants), "seeds": len(experiment.seeds)}


def _done(run: Place, kind: str) -> float | None:
    """Return the share of a run that is done; None if unknown."""
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
