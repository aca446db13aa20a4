"""The versions of a line as files and as rows, each read once: a version never changes.

If a line has many versions, a page gets some hundreds: evenly spaced ones and the newest. Once all were read, it also
gets those with events and with the highest and lowest losses. A page that enlarges a range requests more of its
versions.
"""

from __future__ import annotations

import threading
import time
import zlib
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TypeVar

from fedping.dashboard.live.rows import Row, Shown, ShownLinks, choose, chosen_at, row_of
from fedping.model_store import ModelStore, StoreError, Version, open_store, store_at
from fedping.protocol.location import Place
from fedping.protocol.storage import Stamp
from fedping.protocol.study import Line


@dataclass(frozen=True)
class LineFiles:
    """A line of a study in a store."""

    place: Place
    study: str
    line: str

    def store(self) -> ModelStore:
        """Return the store; raises :class:`StoreError` if there is none."""
        return open_store(self.place)

    def version(self, number: int) -> Version:
        """Return a version; raises :class:`StoreError` if there is none or it cannot be read."""
        return store_at(self.place).version(self.study, self.line, number)  # opening it would list a bucket

    def sight(self, number: int) -> Stamp | None:
        """Return the file stamp of a version."""
        return store_at(self.place).versions.stamp(self.study, self.line, number)


T = TypeVar("T")

READING_SECONDS = 0.15
"""Maximum seconds of reading before the rows so far are sent: all versions of a large model take longer."""


MOST_ROWS, LEAST_ROWS = 400, 60
"""Approximate maximum number of rows on a page: 400, or fewer (at least 60) if rows are large, as with many arms."""

MOST_VALUES = 60_000
"""Approximate maximum of values in the rows of a page: a megabyte of JSON."""

NEWEST = 50
"""The number of newest versions that every page gets."""

MOST_EVENTS = 200
"""Maximum number of events that are shown, the newest: rollbacks, continuations, changes of settings or of the code."""


@dataclass(frozen=True)
class Page:
    """Rows after some version, in order.

    Attributes:
        rows: one for each chosen version.
        through: the version up to which the rows are complete.
        left_out: the first and last number of each run of versions that exist, but were not chosen.
    """

    rows: tuple[Row, ...]
    through: int
    left_out: tuple[tuple[int, int], ...] = ()


def step_of(count: int, most: int) -> int:
    """Return the smallest power of two s for which every s-th of ``count`` versions is at most ``most`` in number."""
    return 1 << max(0, (-(-count // most) - 1).bit_length())


class KnownLine:
    """Cache of the versions of a line; valid while the line exists.

    ``numbers`` are the line's versions, ascending; ``unreadable`` maps each damaged version that was read to its error
    message. Methods are called by one thread at a time (:class:`LineHistory` ensures this).
    """

    def __init__(self, files: LineFiles) -> None:
        store = files.store()
        self._settings, self.study = store.studies.settings(files.study)
        self.line: Line = self.study.line(files.line)
        self.numbers = store.iterations(files.study, files.line)
        if not self.numbers:
            store.head(files.study, files.line)  # raises an error if there is none
        self.shown = _selection(files, self.line, self.numbers)
        self.links = ShownLinks(self.line)
        self._training = [arm.name for arm in self.study.arms if arm.line == self.line.name and arm.submits]
        self.unreadable: dict[int, str] = {}
        self._files = files
        self._head = files.sight(self.newest)
        self._sights: dict[int, Stamp | None] = {}
        self._rows: dict[int, Row] = {}
        self._marks: dict[int, str] = {}
        self._noted: frozenset[int] | None = None
        self._noted_at = 0
        values = 3 * len(self.shown.names) + 5 * sum(arm.line == self.line.name for arm in self.study.arms)
        self.most = max(LEAST_ROWS, min(MOST_ROWS, MOST_VALUES // values))

    @property
    def newest(self) -> int:
        """The number of the newest version."""
        return self.numbers[-1]

    def is_continued(self) -> bool:
        """Take in new versions; return False if everything must be read again.

        Reading again is necessary if the newest version was removed or replaced, a damaged one was restored, other
        weights are to be shown, or the study's settings have changed.
        """
        if self._files.sight(self.newest) != self._head:
            return False
        if any(self._files.sight(number) != was for number, was in self._sights.items()):
            return False
        store, study, line = self._files.store(), self._files.study, self._files.line
        if store.studies.settings_entry(study) != self._settings:
            return False
        newest = store.lines.newest_from(study, line, self.newest)
        if newest != self.newest:
            self.numbers += (number for number in store.iterations(study, line) if self.newest < number <= newest)
        self._head = self._files.sight(newest)
        return chosen_at(self.line.spec.m, newest) == self.shown.chosen_at

    @property
    def is_thorough(self) -> bool:
        """Whether pages get every version, or a selection that was made after reading every version."""
        return self._fits or self._noted is not None

    @property
    def _fits(self) -> bool:
        """Whether pages get every version."""
        return len(self.numbers) <= self.most + NEWEST

    def page(self, after: int, over: Callable[[], bool]) -> Page:
        """Return the selected rows after version ``after``, read until ``over()`` is true, but at least one if any."""
        first = bisect_right(self.numbers, after)
        step = 1 if self._fits else step_of(len(self.numbers), self.most)
        newest = len(self.numbers) - NEWEST
        return self._page(first, len(self.numbers), lambda i: i % step == 0 or i >= newest, over, after)

    def part(self, first: int, last: int, over: Callable[[], bool]) -> Page:
        """Return rows from version ``first`` to ``last``, selected more densely than from the whole line."""
        start, end = bisect_left(self.numbers, first), bisect_right(self.numbers, last)
        step = step_of(end - start, self.most)
        return self._page(start, end, lambda i: i % step == 0 or i in (start, end - 1), over, first - 1)

    def _page(self, start: int, end: int, chosen: Callable[[int], bool], over: Callable[[], bool], after: int) -> Page:
        rows, left_out, through, before = list[Row](), list[tuple[int, int]](), after, start
        noted = self._noted or frozenset()
        for i in range(start, end):
            number = self.numbers[i]
            if not (chosen(i) or number in noted or self._is_at_a_jump(i)):
                continue
            if i > before:
                left_out.append((self.numbers[before], self.numbers[i - 1]))
            row, through, before = self.row(number), number, i + 1
            if row is not None:
                rows.append(row)
            if over():
                break
        return Page(tuple(rows), through, tuple(left_out))

    def _is_at_a_jump(self, i: int) -> bool:
        """Return whether numbers before or after the i-th one are missing, as where a line was continued."""
        numbers = self.numbers
        return numbers[i] - numbers[max(i - 1, 0)] > 1 or numbers[min(i + 1, len(numbers) - 1)] - numbers[i] > 1

    def all_rows(self) -> tuple[Row, ...]:
        """Return the rows of all readable versions, in order."""
        return tuple(row for number in self.numbers if (row := self.row(number)) is not None)

    def read_on(self, over: Callable[[], bool]) -> None:
        """Read further versions until ``over()``; once all are read, select those with events or extreme losses."""
        if self._fits or (self._noted is not None and len(self.numbers) < self._noted_at + NEWEST):
            return
        for number in self.numbers:
            self.row(number)
            if over():
                return
        self._noted, self._noted_at = frozenset(_worth_a_look(self.all_rows(), self.most)), len(self.numbers)

    def row(self, number: int) -> Row | None:
        """Return the row of a version, or None if it cannot be read."""
        if number not in self._rows and number not in self.unreadable:
            self._read(number)
        return self._rows.get(number)

    def mark(self, number: int) -> str | None:
        """Return a mark that distinguishes versions of the same number; None if the version can't be read."""
        if number in self.numbers[bisect_right(self.numbers, number - 1) :][:1]:
            self.row(number)
        return self._marks.get(number)

    def _read(self, number: int) -> None:
        seen = self._files.sight(number)
        try:
            version = self._files.version(number)
        except StoreError as error:
            self.unreadable[number], self._sights[number] = str(error), seen
            return
        self._marks[number] = version_mark(version)
        self._rows[number] = row_of(version, self.shown, self.links, self._training)


def _worth_a_look(rows: Sequence[Row], most: int) -> Iterator[int]:
    """Yield the versions with events, and in each stretch those with the highest and the lowest loss."""
    events = [
        row.version
        for before, row in pairwise(rows)
        if row.origin in ("rollback", "continued") or (row.settings, row.code) != (before.settings, before.code)
    ]
    yield from events[-MOST_EVENTS:]
    stretch = 4 * step_of(len(rows), most)
    for start in range(0, len(rows), stretch):
        losses = [(_loss(row), row.version) for row in rows[start : start + stretch] if row.arms]
        if losses:
            yield min(losses)[1]
            yield max(losses)[1]


def _loss(row: Row) -> float:
    """Return the mean loss over the arms of a row."""
    losses = [loss for arm in row.arms.values() if (loss := arm.loss) is not None]
    return sum(losses) / len(losses) if losses else 0.0


class LineHistory:
    """A line's history, shared by all viewers."""

    def __init__(self, store: Place, study: str, line: str, clock: Callable[[], float] = time.monotonic) -> None:
        self._files = LineFiles(store, study, line)
        self._clock = clock
        self._lock = threading.Lock()
        self._known: KnownLine | None = None

    def look(self, then: Callable[[KnownLine], T]) -> T:
        """Update the cached line, and return the result of ``then`` for it.

        Raises:
            StoreError: there is no such store or study, or the line has no readable first version.
            InvalidSettings: the study has no such line.
        """
        with self._lock:
            if self._known is None or not self._known.is_continued():
                self._known = None
                self._known = KnownLine(self._files)
            return then(self._known)

    def deadline(self, seconds: float = READING_SECONDS) -> Callable[[], bool]:
        """Return a function that returns whether a number of seconds have passed."""
        until = self._clock() + seconds
        return lambda: self._clock() > until


def version_mark(version: Version) -> str:
    """Return an eight-character hash of time, parent and spec, which distinguishes versions with the same number."""
    text = f"{version.created} {version.parent_digest} {version.spec_digest}"
    return f"{zlib.crc32(text.encode()):08x}"


def seen_as(version: Version) -> str:
    """Return a version's identity for a page; a decision about the version must repeat it."""
    return f"{version.iteration}.{version_mark(version)}"


def _selection(files: LineFiles, line: Line, numbers: Sequence[int]) -> Shown:
    at = chosen_at(line.spec.m, numbers[-1])
    start = files.version(numbers[0]).model
    by = None if at is None else files.version(min(numbers, key=lambda number: abs(number - at))).model
    return choose(line.spec, start, by, at)
