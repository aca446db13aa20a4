"""The versions of a line as files and as rows, each read once: a version never changes."""

from __future__ import annotations

import threading
import time
import zlib
from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass
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
        return store_at(self.place).version(self.study, self.line, number)  # not opened, which lists a bucket

    def sight(self, number: int) -> Stamp | None:
        """Return what a version's file looks like from outside."""
        return store_at(self.place).versions.stamp(self.study, self.line, number)


T = TypeVar("T")

READING_SECONDS = 0.15
"""How long versions are read before the rows so far are sent: large models take seconds."""


@dataclass(frozen=True)
class Page:
    """Rows after some version, in order; ``through`` is the version up to which they are complete."""

    rows: tuple[Row, ...]
    through: int


class KnownLine:
    """Cache of the versions of a line; valid while the line exists.

    ``numbers`` are its versions, ascending; ``unreadable`` has, among those that were read, the damaged ones with their
    sentences. Methods are called by one thread at a time (:class:`LineHistory` ensures this).
    """

    def __init__(self, files: LineFiles) -> None:
        store = files.store()
        self._settings, self.study = store.studies.settings(files.study)
        self.line: Line = self.study.line(files.line)
        self.numbers = store.iterations(files.study, files.line)
        if not self.numbers:
            store.head(files.study, files.line)  # raises a sentence if there is none
        self.shown = _selection(files, self.line, self.numbers)
        self.links = ShownLinks(self.line)
        self._training = [arm.name for arm in self.study.arms if arm.line == self.line.name and arm.submits]
        self.unreadable: dict[int, str] = {}
        self._files = files
        self._head = files.sight(self.newest)
        self._sights: dict[int, Stamp | None] = {}
        self._rows: dict[int, Row] = {}
        self._marks: dict[int, str] = {}

    @property
    def newest(self) -> int:
        """The number of the newest version."""
        return self.numbers[-1]

    def is_continued(self) -> bool:
        """Take in new versions; return False if everything must be read again.

        That is so if the newest version was removed or replaced, a damaged one was restored, other weights are to be
        shown, or the study's settings have changed.
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

    def page(self, after: int, over: Callable[[], bool]) -> Page:
        """Return the rows after version ``after`` until ``over()``, but at least one if there is any."""
        rows, through = [], after
        for number in self.numbers[bisect_right(self.numbers, after) :]:
            row = self.row(number)
            through = number
            if row is not None:
                rows.append(row)
            if over():
                break
        return Page(tuple(rows), through)

    def row(self, number: int) -> Row | None:
        """Return the row of a version, or None if it cannot be read."""
        if number not in self._rows and number not in self.unreadable:
            self._read(number)
        return self._rows.get(number)

    def mark(self, number: int) -> str | None:
        """Return a mark that distinguishes versions of the same number; None if there is no readable one."""
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


class LineHistory:
    """A line's history, shared by all viewers."""

    def __init__(self, store: Place, study: str, line: str, clock: Callable[[], float] = time.monotonic) -> None:
        self._files = LineFiles(store, study, line)
        self._clock = clock
        self._lock = threading.Lock()
        self._known: KnownLine | None = None

    def look(self, then: Callable[[KnownLine], T]) -> T:
        """Return the result of ``then`` for the line as it is now.

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
    """Return eight characters that hardly any other version of this number, or with other ancestors, would have."""
    text = f"{version.created} {version.parent_digest} {version.spec_digest}"
    return f"{zlib.crc32(text.encode()):08x}"


def seen_as(version: Version) -> str:
    """Return the identity of the version on a page, which a decision about it has to name."""
    return f"{version.iteration}.{version_mark(version)}"


def _selection(files: LineFiles, line: Line, numbers: Sequence[int]) -> Shown:
    at = chosen_at(line.spec.m, numbers[-1])
    start = files.version(numbers[0]).model
    by = None if at is None else files.version(min(numbers, key=lambda number: abs(number - at))).model
    return choose(line.spec, start, by, at)
