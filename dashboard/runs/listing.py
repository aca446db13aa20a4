"""The list of runs that a page shows and follows: one page of rows, each a run or a group of runs."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from fedping.dashboard.feeds import Change
from fedping.dashboard.runs.choosing import (
    ON_A_PAGE,
    Cell,
    Group,
    View,
    best_of,
    cell_of,
    chosen,
    deciding_of,
)
from fedping.dashboard.runs.entries import Kept, kept
from fedping.dashboard.runs.index import OWN, SETTINGS, Column, Progress, Row, RunIndex, index_of, number_in
from fedping.dashboard.runs.places import Place
from fedping.dashboard.runs.registry import RunBook
from fedping.protocol.errors import InvalidSettings

PATIENCE = 0.2
"""Seconds that a page waits for the indexing of changes; the rest follows by the feed."""

REST = 1.0
"""Seconds between two scans of the folder for an open page."""

MOST_METRICS, MOST_SETTINGS = 3, 2
"""Default numbers of columns: of metrics that most runs of the page have, and of settings that differ most."""


@dataclass(frozen=True)
class Item:
    """One row of the page.

    Attributes:
        id: the run's id, or the key of the group.
        kept: the index entry of the run, or of the group's newest run.
        group: the runs of the row.
        cells: the values by column.
        best: the best variant; for a group, the best by the means over its runs.
    """

    id: str
    kept: Kept
    group: Group
    cells: Mapping[str, Cell]
    best: str | None

    @property
    def row(self) -> Mapping[str, Any]:
        """The list's values of the run, or of the group's newest run."""
        return self.kept.row

    @property
    def is_group(self) -> bool:
        """Whether the row is a group of runs."""
        return self.group.one is None

    @property
    def mark(self) -> str:
        """A text that changes whenever anything in the row changes except the progress."""
        shown = {**self.row, "done": None}, [row.id for row in self.group.rows], self.cells
        return hashlib.sha256(msgspec.json.encode(shown)).hexdigest()[:12]

    @property
    def told(self) -> dict[str, Any]:
        """The row as the feed sends it: the run; for a group, its newest run, and the numbers of its runs and seeds."""
        told = {**self.row, "mark": self.mark}
        if self.is_group:
            told |= {"id": self.id, "runs": len(self.group.rows), "seeds": len(self.group.seeds)}
        return told


@dataclass(frozen=True)
class Listed:
    """A page of the list.

    Attributes:
        items: the rows of the page.
        columns: the settings and metrics shown.
        all: the number of runs in the folder that are known so far.
        matching: the number of runs that match the view.
        rows: the number of rows on all pages.
        progress: the progress of the index; None if it is complete.
    """

    items: Sequence[Item]
    columns: Sequence[str]
    all: int
    matching: int
    rows: int
    progress: Progress | None

    @property
    def pages(self) -> int:
        """The number of pages."""
        return max(1, -(-self.rows // ON_A_PAGE))


class _Plan(NamedTuple):
    """The groups on a page, the number of all groups, and the number of runs in all groups."""

    page: list[Group]
    rows: int
    matching: int


def _planned(index: RunIndex, view: View) -> _Plan:
    groups = chosen(view, index)
    runs = len({row.key for group in groups for row in group.rows})
    return _Plan(groups[(view.page - 1) * ON_A_PAGE : view.page * ON_A_PAGE], len(groups), runs)


def listed(folder: Path, view: View) -> Listed:
    """Return a page of the runs in a folder, up to date with their files."""
    index = index_of(folder)
    plan = index.remembered(view, lambda: _planned(index, view))
    page = plan.page
    newest = {shown.id: shown.kept for shown in index.fresh(group.newest.id for group in page)}
    there = [group for group in page if group.newest.id in newest]
    columns = list(view.columns) or _usual_columns(index, [newest[group.newest.id] for group in there], view)
    keys = [row.key for group in there for row in group.rows]
    values = {name: index.values(name, keys) for name in columns if name not in OWN}
    deciding = deciding_of(there, index)
    items = []
    for group in there:
        run = newest[group.newest.id]
        cells = (
            {name: _own(run, name) for name in values}
            if group.one is not None
            else {name: cell_of(group, name, of, deciding) for name, of in values.items()}
        )
        place = 0 if group.one is not None else best_of(group, deciding)
        best = run.names[place - 1] if 0 < place <= len(run.names) else run.best
        items.append(Item(group.key, run, group, cells, best))
    return Listed(
        items,
        [name for name in columns if name not in OWN],
        all=index.count(),
        matching=plan.matching,
        rows=plan.rows,
        progress=index.progress if index.is_building else None,
    )


def _own(kept: Kept, column: str) -> Cell:
    """Return a single run's value of a column, from its index entry."""
    if column.startswith(SETTINGS):
        name = column.removeprefix(SETTINGS)
        if name in kept.settings:
            return Cell(kept.settings[name])
        return Cell(", ".join(dict.fromkeys(of[name] for of in kept.differing.values() if name in of)) or None)
    found = kept.of_best.get(column)
    if found is None:
        return Cell(None)
    return Cell(None, found.mean, found.half, found.seeds)


def _usual_columns(index: RunIndex, shown: Sequence[Kept], view: View) -> list[str]:
    counts: dict[str, int] = {}
    for run in shown:
        for name in run.row["metrics"]:
            counts[name] = counts.get(name, 0) + 1
    metrics = sorted(counts, key=lambda name: -counts[name])[:MOST_METRICS]
    settings = [] if not shown else sorted(_differing(index.columns()), key=lambda each: -each.texts)[:MOST_SETTINGS]
    asked = [view.sort] if view.sort and view.sort not in OWN else []
    return list(dict.fromkeys([*(each.name for each in settings), *asked, *metrics]))


def _differing(columns: Sequence[Column]) -> list[Column]:
    return [each for each in columns if each.is_setting and each.texts > 1]


MOST_POINTS = 2000
"""Maximum number of rows in a drawing: the first ones in the order of the view."""

MOST_AXES = 8


@dataclass(frozen=True)
class Point:
    """A row of the list in a drawing: id, title, number of runs, and its value on each axis."""

    id: str
    title: str
    runs: int
    values: tuple[float | str | None, ...]


@dataclass(frozen=True)
class Points:
    """The rows of a drawing, and the number of rows of the view."""

    axes: tuple[str, ...]
    points: list[Point]
    rows: int


def points_of(folder: Path, view: View, axes: Sequence[str]) -> Points:
    """Return the rows of a view with their values of some settings and metrics.

    Raises:
        InvalidSettings: there are no axes, or too many.
    """
    axes = tuple(dict.fromkeys(axes))
    if not 0 < len(axes) <= MOST_AXES:
        raise InvalidSettings(f"axis: {len(axes)} axes can't be drawn; choose 1 to {MOST_AXES} settings and metrics")
    index = index_of(folder)
    groups = chosen(view, index)
    drawn = groups[:MOST_POINTS]
    keys = [row.key for group in drawn for row in group.rows]
    values = [index.values(name, keys) for name in axes]
    deciding = deciding_of(drawn, index)
    points = [
        Point(
            group.key,
            _title(group),
            len(group.rows),
            tuple(_value(cell_of(group, name, of, deciding)) for name, of in zip(axes, values, strict=True)),
        )
        for group in drawn
    ]
    return Points(axes, points, len(groups))


def _title(group: Group) -> str:
    if group.over == "runs":
        return group.key
    return f"{group.newest.title}: {group.name}" if group.variant else group.newest.title


def _value(cell: Cell) -> float | str | None:
    if cell.text is None:
        return cell.mean
    if cell.number != 1:
        return None  # several values have no single position
    number = number_in(cell.text)
    return cell.text if number is None else number


def usual_axes(folder: Path, view: View) -> list[str]:
    """Return the default axes of a drawing: the settings that differ most, then a metric."""
    page = listed(folder, replace(view, columns=(), page=1))
    settings = [name for name in page.columns if name.startswith(SETTINGS)]
    metrics = [name for name in page.columns if not name.startswith(SETTINGS)]
    return [*settings, *metrics[:1]]


def one_item(runs: Path, where: Place, columns: Sequence[str]) -> Item:
    """Return a run as a row with the given columns."""
    found = kept(runs, where)
    facts = Row(0, where.id, where.title, where.state, where.kind, "", None, found.best, None, "", None, 1, "")
    return Item(
        where.id, found, Group(where.id, (facts,), "seeds"), {name: _own(found, name) for name in columns}, found.best
    )


def look(book: RunBook, least: float = 0.0) -> RunIndex:
    """Update the index of a folder of runs, start waiting runs if possible, and return the index."""
    index = index_of(book.folder)
    index.look(PATIENCE, least)
    states = index.states()
    if states.get("waiting") and states.get("running", 0) < book.at_most:
        book.start_waiting()
        index.look(PATIENCE)
    return index


USUAL = View()
"""The view of an address without a query."""


@dataclass(frozen=True)
class RunsFeed:
    """The feed of a page of a folder's runs, which is sent whole at every change."""

    folder: Path
    at_most: int
    view: View = USUAL

    def since(self, position: str | None) -> Change | None:
        """Return the page, or None if it is the same as at ``position``."""
        look(RunBook(self.folder, self.at_most), least=REST)
        page = listed(self.folder, self.view)
        progress = page.progress and [100 * page.progress.known // max(1, page.progress.all), *page.progress]
        data = {
            "whole": True,
            "runs": [item.told for item in page.items],
            "all": page.all,
            "matching": page.matching,
            "rows": page.rows,
            "columns": page.columns,
        }
        digest = hashlib.sha256(msgspec.json.encode([data, progress and progress[0]])).hexdigest()[:16]
        return None if digest == position else Change(digest, {**data, "progress": progress and progress[1:]})
