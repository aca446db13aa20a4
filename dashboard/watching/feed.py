"""The feed of an experiment's page: the progress of each run, and new points of a metric.

A page's position is a short text that is sent with every change, and that the page sends back after an interruption:

    running/f12,1a3_5_5_1764062400.5,b,w40

These are the state, then the runs in order: 12 finished ones; one with the known numbers of bytes of its file, of
points and of rounds, and its start; one that has reported nothing yet; and 40 that wait.
"""

from __future__ import annotations

import re
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Any, Literal, NamedTuple, TypeAlias

from fedping.dashboard.feeds import Change, last_lines
from fedping.dashboard.runs.entries import moment_text
from fedping.dashboard.runs.places import Place, place
from fedping.dashboard.watching.curves import Grown, Measured, Points, Reached, finished, grown, measured_by
from fedping.dashboard.watching.units import Pace, Unit, seconds_left, units_in
from fedping.experiments.laboratory.results import PROGRESS, Outcome
from fedping.experiments.laboratory.summary import t_quantile
from fedping.experiments.simulate.run import read_study_progress


class Seen(NamedTuple):
    """A run at this moment: its outcome, or its progress since the page's position; neither if it has no report yet."""

    unit: Unit
    before: Known | None
    outcome: Outcome | None
    grown: Grown | None

    @property
    def known(self) -> Known:
        """The position of a page that has received this."""
        if self.outcome is not None:
            return "f"
        if self.grown is not None:
            return self.grown.reached
        return "b" if self.unit.begun else "w"


@dataclass(frozen=True)
class RunFeed:
    """The feed of an experiment in the folder ``runs``, with one metric.

    A change has the state of the experiment and, for each of its runs with news, the progress and the new points, which
    replace the page's points if ``again``.

    Raises:
        UnknownRun: the experiment does not exist (any more).
    """

    runs: Path
    id: str
    of: Measured

    def since(self, position: str | None) -> Change | None:
        """Return the changes after a position."""
        where = place(self.runs, self.id)
        units = units_in(where.out) if where.kind == "laboratory" else []
        before = read_position(position)
        whole = before is None or len(before.runs) != len(units)
        known: Sequence[Known | None] = [None] * len(units) if before is None or whole else before.runs
        seen = [_look(unit, self.of, last) for unit, last in zip(units, known, strict=True)]
        study = _study(where)
        after = Position(_word(where, study), tuple(one.known for one in seen))
        if after == before:
            return None
        data = {
            "whole": whole,
            **_state(where, _left(where, seen)),
            "study": study,
            "units": [
                _changes(where.out, number, one, self.of) for number, one in enumerate(seen) if one.known != one.before
            ],
            "measured": _measured(seen),
        }
        if whole:
            data["names"] = [_name(unit) for unit in units]
            data["quantiles"] = quantiles(len({unit.note.seed for unit in units}))
        return Change(position_text(after), data)


def quantiles(most: int) -> list[float]:
    """Return Student's t quantiles for the intervals of means over 2, 3, … values."""
    return [t_quantile(n - 1) for n in range(2, most + 1)]


def _look(unit: Unit, of: Measured, before: Known | None) -> Seen:
    if (outcome := unit.outcome) is not None:
        return Seen(unit, before, outcome, None)
    new = grown(unit, of, before if isinstance(before, Reached) else None)
    return Seen(unit, before, unit.outcome if new is None else None, new)  # it may have finished in this moment


def _changes(out: Path, number: int, one: Seen, of: Measured) -> Mapping[str, Any]:
    """Return a changed run's data for pages."""
    if one.outcome is not None:
        sent = one.before.points if isinstance(one.before, Reached) else 0
        points = finished(out, one.unit, of)
        new = Points(points.rounds[sent:], points.values[sent:])
        progress = {"rounds": one.outcome.rounds, "seconds": one.outcome.seconds, "notes": one.outcome.notes}
        return {"unit": number, "state": "finished", **progress, "again": sent == 0, "x": new.rounds, "y": new.values}
    if one.grown is not None:
        points, reached = one.grown.points, one.grown.reached
        progress = {"rounds": reached.rounds, "again": one.grown.again}
        return {"unit": number, "state": "begun", **progress, "x": points.rounds, "y": points.values}
    state = "begun" if one.unit.begun else "waiting"
    return {"unit": number, "state": state, "rounds": 0, "again": True, "x": [], "y": []}


def _measured(seen: Sequence[Seen]) -> list[Measured]:
    """Return the metrics of all runs with news; a variant's finished runs all have the same metrics."""
    ended = {one.unit.note.name: one.unit.path for one in seen if one.outcome is not None and one.before != "f"}
    kinds = [kind for path in ended.values() for kind in measured_by(path)]
    return list(dict.fromkeys([*kinds, *(kind for one in seen if one.grown for kind in one.grown.measured)]))


def _name(unit: Unit) -> Mapping[str, Any]:
    note = unit.note
    return {
        "name": note.name,
        "baseline": note.baseline,
        "seed": note.seed,
        "fold": note.fold,
        "of": note.rounds,
    }


def _state(where: Place, left: float | None) -> dict[str, Any]:
    run = where.run
    return {
        "state": where.state,
        "stopping": run is not None and run.stopping,
        "message": run.message if run else None,
        "started": moment_text(run.started) if run else None,
        "ended": moment_text(run.ended) if run else None,
        "left": left,
    }


def _word(where: Place, study: Mapping[str, Any] | None) -> str:
    """Return a word that changes with all data of the page except the data of the runs."""
    parts: list[str] = [where.state]
    if where.run is not None and where.run.stopping:
        parts.append("stopping")
    if where.begun is not None:
        parts.append(f"{where.begun.timestamp():.0f}")
    if study is not None:
        parts += [study["phase"], str(study["done"])]
    return ":".join(parts)


def _study(where: Place) -> Mapping[str, Any] | None:
    now = read_study_progress(where.out) if where.kind == "study" else None
    return None if now is None else {"phase": now.phase, "done": now.done, "total": now.total, "pings": now.pings}


def _left(where: Place, seen: Sequence[Seen]) -> float | None:
    return None if where.state != "running" else seconds_left([_pace(one) for one in seen])


def _pace(one: Seen) -> Pace:
    note = one.unit.note
    if one.outcome is not None:
        return Pace(note.name, one.outcome.rounds, note.rounds, one.outcome.seconds, finished=True, begun=True)
    if one.grown is None:
        return Pace(note.name, 0, note.rounds, 0.0, finished=False, begun=one.unit.begun)
    reached = one.grown.reached
    seconds = max(0.0, _written_last(one.unit) - reached.begun)
    return Pace(note.name, reached.rounds, note.rounds, seconds, finished=False, begun=True)


def _written_last(unit: Unit) -> float:
    try:
        return (unit.path / PROGRESS).stat().st_mtime
    except FileNotFoundError:  # it finished in this moment
        return time.time()


@dataclass(frozen=True)
class LogFeed:
    """The ends of a run's standard output and standard error."""

    runs: Path
    id: str

    def since(self, position: str | None) -> Change | None:
        """Return the ends of both outputs if one has grown since ``position``."""
        run = place(self.runs, self.id).run
        texts = {name: _end(run.folder / name) for name in _SAID} if run else {}
        after = ".".join(str(size) for size, _ in texts.values())
        if after == position:
            return None
        return Change(after or "0", {"whole": True, **{name: text for name, (_, text) in texts.items()}})


_SAID = ("stdout", "stderr")
_END = 65_536
"""Number of bytes shown from the end of an output."""


def _end(file: Path) -> tuple[int, str]:
    """Return a file's length before it was read, and the file's end."""
    try:
        size = file.stat().st_size
    except FileNotFoundError:
        return 0, ""
    return size, b"\n".join(last_lines(file, _END)).decode(errors="replace")


Known: TypeAlias = Literal["f", "b", "w"] | Reached
"""A page's knowledge of a run: finished ("f"), begun ("b"), waiting ("w"), or the part that was read."""

_MOST = 100_000


class Position(NamedTuple):
    """The position of a page: the experiment's state as a word, and the known part of each run."""

    state: str
    runs: tuple[Known, ...]


def position_text(position: Position) -> str:
    """Return a position as a text."""
    parts: list[str] = []
    for known, same in groupby(position.runs):
        count = len(list(same))
        if isinstance(known, Reached):
            text = f"{known.offset:x}_{known.points:x}_{known.rounds:x}_{known.begun!r}"
            parts.extend([text] * count)
        else:
            parts.append(known if count == 1 else f"{known}{count}")
    return f"{position.state}/{','.join(parts)}"


def read_position(text: str | None) -> Position | None:
    """Return the position in a text; None if the text is not a position."""
    if text is None or (match := re.fullmatch(r"([a-z0-9:-]*)/([0-9a-z_.,]*)", text)) is None:
        return None
    state, rest = match.groups()
    try:
        runs = [known for part in rest.split(",") if part for known in _read_part(part)]
    except ValueError:
        return None
    return Position(state, tuple(runs)) if len(runs) <= _MOST else None


def _read_part(part: str) -> Sequence[Known]:
    if "_" in part:
        offset, points, rounds, begun = part.split("_")
        return [Reached(int(offset, 16), int(points, 16), int(rounds, 16), float(begun))]
    count = int(part[1:] or "1")
    if not 0 < count <= _MOST:
        raise ValueError(part)
    for kind in ("f", "b", "w"):
        if part[0] == kind:
            return [kind] * count
    raise ValueError(part)
