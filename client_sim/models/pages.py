"""Pages of a history and searches over them: one page as an object, and the pages and searches of a fleet as arrays."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields
from enum import IntEnum
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedping.client_sim.models.arrays import BoolArray, IntArray, Rows

MAX_SAMPLED = 10
"""Number of newest visits that a score uses. It is not trained (thesis 7.2)."""

MICROSECONDS_PER_DAY = 86_400_000_000


class VisitType(IntEnum):
    """The kind of a visit, numbered as in ``places.sqlite``. Any other number is an unknown type."""

    UNKNOWN = 0
    LINK = 1
    TYPED = 2
    BOOKMARK = 3
    EMBED = 4
    PERM_REDIRECT = 5
    """The *target* of a permanent redirect."""
    TEMP_REDIRECT = 6
    """The *target* of a temporary redirect."""
    DOWNLOAD = 7
    FRAMED_LINK = 8
    RELOAD = 9


class Onward(IntEnum):
    """The redirect of a visit to another page, if any."""

    NO = 0
    PERMANENTLY = 1
    TEMPORARILY = 2


@dataclass(frozen=True)
class Visit:
    """One visit.

    Attributes:
        time: microseconds since 1970, as in ``places.sqlite``.
        type: a :class:`VisitType`, or any other integer for an unknown one.
        origin_type: type of the visit that led to this one, None if unknown. It is only used for the target of a
            redirect.
        onward: whether this visit redirected onward.
    """

    time: int
    type: int
    origin_type: int | None = None
    onward: Onward = Onward.NO


@dataclass(frozen=True)
class Page:
    """A page that may be suggested.

    Attributes:
        visits: all visits, or at least the 10 newest of any type, in any order.
        visit_count: the stored counter, which omits embed, download, framed link, reload and unknown types.
        typed: whether its address was ever typed.
        bookmarked: whether it has a bookmark.
        is_query: whether its address starts with ``place:``.
    """

    visits: tuple[Visit, ...] = ()
    visit_count: int = 0
    typed: bool = False
    bookmarked: bool = False
    is_query: bool = False


def newest(visits: tuple[Visit, ...]) -> list[Visit]:
    """Return the visits that a score uses: the 10 newest, newest first (visits of equal time in the given order)."""
    return sorted(visits, key=lambda visit: -visit.time)[:MAX_SAMPLED]


def age_in_days(visit: Visit, now: int) -> int:
    """Return the whole days since the visit, rounded down, so that 4 days means less than 5 × 86,400 seconds."""
    return (now - visit.time) // MICROSECONDS_PER_DAY


ORIGIN_NOT_KNOWN = -1

_INT32 = np.iinfo(np.int32)


@dataclass(frozen=True)
class PageTable:
    """P pages with up to V of their newest visits each, newest first; V is at most 10.

    A page uses the first ``sampled`` columns of its row; the others are never read.

    Attributes:
        age_days: whole days since each visit (floor), shape (P, V), int32.
        visit_type: number of each visit's own type, 0 for unknown, shape (P, V), uint8.
        origin_type: type of the visit that led to each visit, 0 for an unknown type, -1 if the origin is not known or
            the visit is not a redirect's target; shape (P, V), int8.
        onward: whether each visit redirected onward, by the numbers of :class:`Onward`, shape (P, V), uint8.
        sampled: number of visits given, 0 to V, shape (P,), int8.
        visit_count: the stored counter, at least 0, shape (P,), int64.
        typed, bookmarked, is_query: see :class:`Page`, shape (P,), bool.

    Raises:
        ValueError: shapes do not match, or a number is out of range.
    """

    age_days: NDArray[np.int32]
    visit_type: NDArray[np.uint8]
    origin_type: NDArray[np.int8]
    onward: NDArray[np.uint8]
    sampled: NDArray[np.int8]
    visit_count: NDArray[np.int64]
    typed: BoolArray
    bookmarked: BoolArray
    is_query: BoolArray

    def __post_init__(self) -> None:
        n, columns = self.age_days.shape
        if not 1 <= columns <= MAX_SAMPLED:
            raise ValueError(f"a page table has 1 to {MAX_SAMPLED} visits a page, not {columns}")
        for field in fields(self):
            values = getattr(self, field.name)
            if values.shape != ((n, columns) if field.name in _PER_VISIT else (n,)):
                raise ValueError(f"{field.name} has shape {values.shape} in a table of {n} pages of {columns} visits")
            if field.name in _RANGES:
                _check_range(field.name, values, *_RANGES[field.name])
        _check_range("sampled", self.sampled, 0, columns)

    def __len__(self) -> int:
        return len(self.visit_count)

    def rows(self, rows: Rows) -> PageTable:
        """Return the table of the given rows; a slice is not copied."""
        return PageTable(*(getattr(self, field.name)[rows] for field in fields(self)))


_PER_VISIT = {"age_days", "visit_type", "origin_type", "onward"}
_RANGES = {
    "visit_type": (0, max(VisitType)),
    "origin_type": (ORIGIN_NOT_KNOWN, max(VisitType)),
    "onward": (0, max(Onward)),
    "visit_count": (0, np.iinfo(np.int64).max),
}


def _check_range(name: str, values: IntArray, least: int, largest: int) -> None:
    if values.size and not (least <= values.min() and values.max() <= largest):
        raise ValueError(f"{name} must lie in {least} to {largest}; it goes from {values.min()} to {values.max()}")


def page_table(pages: Sequence[Page], now: int) -> PageTable:
    """Return the pages as a table, with ages as of ``now`` (microseconds since 1970)."""
    table = table_without_visits(
        visit_count=np.array([page.visit_count for page in pages], np.int64),
        typed=np.array([page.typed for page in pages], np.bool_),
        bookmarked=np.array([page.bookmarked for page in pages], np.bool_),
        is_query=np.array([page.is_query for page in pages], np.bool_),
    )
    for row, page in enumerate(pages):
        for column, visit in enumerate(newest(page.visits)):
            write_visit(table, (row, column), visit)
            table.age_days[row, column] = min(max(age_in_days(visit, now), _INT32.min), _INT32.max)
    return table


def table_without_visits(
    visit_count: NDArray[np.int64], typed: BoolArray, bookmarked: BoolArray, is_query: BoolArray
) -> PageTable:
    """Return a table with room for 10 visits of each page, which :func:`write_visit` fills in."""
    shape = (len(visit_count), MAX_SAMPLED)
    return PageTable(
        age_days=np.zeros(shape, np.int32),
        visit_type=np.zeros(shape, np.uint8),
        origin_type=np.full(shape, ORIGIN_NOT_KNOWN, np.int8),
        onward=np.zeros(shape, np.uint8),
        sampled=np.zeros(len(visit_count), np.int8),
        visit_count=visit_count,
        typed=typed,
        bookmarked=bookmarked,
        is_query=is_query,
    )


def write_visit(table: PageTable, cell: tuple[int, int], visit: Visit) -> None:
    """Write a visit, without its age, into a cell of a table: a page, and the visit's number, 0 for the newest."""
    row, column = cell
    table.visit_type[cell] = known_type(visit.type)
    table.origin_type[cell] = ORIGIN_NOT_KNOWN if visit.origin_type is None else known_type(visit.origin_type)
    table.onward[cell] = visit.onward
    table.sampled[row] = max(table.sampled[row], column + 1)


def ages_in_days(times: NDArray[np.int64], now: int) -> NDArray[np.int32]:
    """Return the whole days since visits at ``times``, of any shape; see :func:`age_in_days`.

    Ages are limited to int32, beyond every cutoff, so that a clock that is far off causes no failure.
    """
    return np.clip((now - times) // MICROSECONDS_PER_DAY, _INT32.min, _INT32.max).astype(np.int32)


def known_type(number: int) -> int:
    """Return the number of a visit type, or 0 for an unknown number."""
    return number if VisitType.LINK <= number <= VisitType.RELOAD else VisitType.UNKNOWN


NO_CANDIDATE = -1
NOTHING_CHOSEN = -1


@dataclass(frozen=True)
class Searches:
    """S searches with up to C candidates each.

    Attributes:
        candidates: rows of the page table in displayed order, the top first, padded at the end with -1; shape (S, C).
        chosen: the position of the chosen candidate in displayed order, -1 without a choice; shape (S,).

    Raises:
        ValueError: shapes do not match, or a choice is not one of the candidates.
    """

    candidates: IntArray
    chosen: IntArray

    def __post_init__(self) -> None:
        if self.candidates.ndim != 2 or self.chosen.shape != self.candidates.shape[:1]:
            raise ValueError(
                f"candidates {self.candidates.shape} and chosen {self.chosen.shape} are not (S, C) and (S,)"
            )
        shown = np.count_nonzero(self.candidates >= 0, axis=1)
        if not np.all((self.chosen >= NOTHING_CHOSEN) & (self.chosen < shown)):
            raise ValueError("a choice is outside the candidates of its search")
        if np.any((self.candidates[:, 1:] >= 0) & (self.candidates[:, :-1] < 0)):
            raise ValueError("a candidate follows the padding of its search")

    def __len__(self) -> int:
        return len(self.chosen)


def searches_from(candidates: Sequence[Sequence[int]], chosen: Sequence[int]) -> Searches:
    """Return searches with different numbers of candidates as one padded table."""
    width = max(map(len, candidates), default=0)
    padded = np.full((len(candidates), width), NO_CANDIDATE, np.int64)
    for row, pages in zip(padded, candidates, strict=True):
        row[: len(pages)] = pages
    return Searches(padded, np.array(chosen, np.int64))


@dataclass(frozen=True)
class Block:
    """Some searches and the pages that they need, processed as one block, which bounds memory.

    Attributes:
        searches: the positions of these searches.
        pages: the rows of the page table that hold their candidates.
        candidates: the candidates as rows *among those pages*, padded with -1; shape (s, C).
        chosen: the position of each chosen candidate, shape (s,).
        in_order: whether the candidates are exactly 0, 1, 2, ..., which saves gathering values.
    """

    searches: slice
    pages: Rows
    candidates: NDArray[np.intp]
    chosen: IntArray
    in_order: bool

    def shown(self, values: NDArray[Any]) -> NDArray[Any]:
        """Return the values of the candidates, shape (s, C, ...), from the values of the block's pages, shape (p, ...).

        Padding gets the value of an arbitrary page.

        Raises:
            IndexError: a search refers to a page beyond the table, so that there are fewer values than pages.
        """
        needed = self.pages.stop - self.pages.start if isinstance(self.pages, slice) else len(self.pages)
        if len(values) != needed:
            raise IndexError("a search names a page that the page table does not have")
        if self.in_order:
            return values.reshape(self.candidates.shape + values.shape[1:])
        return np.take(values, self.candidates, axis=0, mode="wrap")


def blocks(searches: Searches, size: int) -> Iterator[Block]:
    """Yield the searches in blocks of at most ``size``; blocks without any candidate are left out."""
    for start in range(0, len(searches), size):
        part = slice(start, min(start + size, len(searches)))
        candidates = searches.candidates[part]
        present = candidates >= 0
        if present.any():
            pages, local = _local(candidates, present)
            in_order = bool(np.array_equal(local.ravel(), np.arange(local.size)))
            yield Block(part, pages, local, searches.chosen[part], in_order)


def _local(candidates: IntArray, present: NDArray[np.bool_]) -> tuple[Rows, NDArray[np.intp]]:
    """Return the pages that the candidates need, and the candidates as rows among these pages."""
    last = int(candidates.max())
    first = int(np.min(candidates, where=present, initial=last))
    if last - first < 2 * candidates.size:  # close together, as in a made population
        return slice(first, last + 1), np.where(present, candidates - first, NO_CANDIDATE).astype(np.intp)
    pages, inverse = np.unique(candidates[present], return_inverse=True)
    local = np.full(candidates.shape, NO_CANDIDATE, np.intp)
    local[present] = inverse
    return pages.astype(np.intp), local
