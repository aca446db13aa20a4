"""The stored versions of lines: one file for each number, and the chain that a line's files form.

Numbers are consecutive, except after fences (:class:`fedping.model_store.version.Fence`). A file after any other gap is
foreign, or is left over after versions were lost; it is never the head.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from itertools import groupby

import msgspec

from fedping.model_store.documents import Damaged, Documents, StampCache, StoreError, unsealed
from fedping.model_store.studies import Studies
from fedping.model_store.version import Fence, Link, Outcome, PublicPart, Sources, Version
from fedping.protocol import __version__
from fedping.protocol.errors import FedpingError
from fedping.protocol.formats import unknown_member
from fedping.protocol.storage import Stamp

LARGEST_NUMBER = 2**31 - 1
"""The largest model version that a ping can report."""

MOST_FENCE_BYTES = 4096
_GOES_ON = b'"goes_on_at"'
"""Member of every fence; a small file without it is a version."""


class MissingVersion(StoreError):
    """No version of this number exists."""


@dataclass(frozen=True)
class _LastRead:
    """The last version read; it is reused, with its digest, while the file's bytes stay the same."""

    key: str
    data: bytes
    version: Version


@dataclass(frozen=True)
class Chain:
    """The chain of a line's files, determined from their names and from the contents of the few files at gaps.

    Attributes:
        numbers: numbers of its versions, ascending.
        fences: the number at which the line continues after each fence, by the version before the fence.
        strays: numbers of files that don't follow the chain.
        foreign: file names that don't belong to versions.
        broken: numbers with an unreadable fence, ascending.
        unfinished: the number at which the newest fence continues, if that version was not written yet.
    """

    numbers: tuple[int, ...]
    fences: Mapping[int, int]
    strays: tuple[int, ...] = ()
    foreign: tuple[str, ...] = ()
    broken: tuple[int, ...] = ()
    unfinished: int | None = None


class Versions:
    """The versions of all lines, each in its own file; :class:`fedping.model_store.lines.Lines` has their heads."""

    def __init__(self, documents: Documents, studies: Studies) -> None:
        self._documents = documents
        self._studies = studies
        self._last_read: _LastRead | None = None
        self._fences: StampCache[Fence | None] = StampCache()

    def stamp(self, study: str, line: str, iteration: int) -> Stamp | None:
        """Return the stamp of a version's file; None if it doesn't exist, or the store can't be read."""
        return self._documents.visible_stamp(version_key(study, line, iteration))

    def stored_bytes(self, study: str, line: str, iteration: int) -> bytes | None:
        """Return the bytes of a version's file, damaged or not; None if it doesn't exist."""
        return self._documents.read(version_key(study, line, iteration))

    def version(self, study: str, line: str, iteration: int) -> Version:
        """Return a version; raise :class:`StoreError` if it doesn't exist, can't be read, or doesn't match its key."""
        key, data = self.version_bytes(study, line, iteration)
        last = self._last_read
        if last is None or (last.key, last.data) != (key, data):
            version = self._documents.decode(data, Version, key)
            if (version.study, version.line, version.iteration) != (study, line, iteration):
                raise Damaged(self.another(key, version))
            self._last_read = last = _LastRead(key, data, version)
        return last.version

    def outcome(self, study: str, line: str, iteration: int) -> Outcome:
        """Return the outcome of a version's round, without its weights; raise the errors of :meth:`version`."""
        key, data = self.version_bytes(study, line, iteration)
        return self._documents.decode(data, Outcome, key)

    def sources(self, study: str, line: str, iteration: int) -> Sources:
        """Return the landed files that a version was computed from, without its weights; errors as :meth:`version`."""
        key, data = self.version_bytes(study, line, iteration)
        return self._documents.decode(data, Sources, key)

    def version_bytes(self, study: str, line: str, iteration: int) -> tuple[str, bytes]:
        """Return a version's key and its stored bytes."""
        key = version_key(study, line, iteration)
        data = self._documents.read_whole(key)
        may_be_fence = data is not None and len(data) <= MOST_FENCE_BYTES and _GOES_ON in data
        if data is None or (may_be_fence and self.fence(study, line, iteration)):
            if data is not None and self._documents.stamp(marker_key(study, line, iteration)) is None:
                raise MissingVersion(self.unmarked_fence(study, line, iteration))
            self._studies.study(study).line(line)
            numbers = self.iterations(study, line)
            span = f"its newest is {numbers[-1]}" if numbers else "it has none"
            raise MissingVersion(
                f"line '{line}' of study '{study}' has no version {iteration} in {self._documents.where}; {span}"
            )
        return key, data

    def iterations(self, study: str, line: str) -> list[int]:
        """Return the numbers of the published versions, in numeric order."""
        return list(self.chain(study, line).numbers)

    def chain(self, study: str, line: str) -> Chain:
        """Return the chain of a line's files; this reads only fences, and files that may be fences."""
        names = self._documents.names(f"{study}/{line}/versions")
        numbered = {name: number for name in names if (number := number_in(name)) is not None}
        marked = (number_in(name) for name in self._documents.names(f"{study}/{line}/fences"))
        found = {number: self.fence(study, line, number) for number in marked if number is not None}
        fences = {fence.after: fence.goes_on_at for fence in found.values() if fence is not None}
        broken = {n for n, fence in found.items() if fence is None and not self.is_of_line(study, line, n)}
        taken: list[int] = []
        strays: list[int] = []
        for run in runs(set(numbered.values()) - {after + 1 for after in fences} - broken):
            tied = not taken or fences.get(taken[-1]) == run[0]
            if tied or any(self.was_published(study, line, number) for number in (run[0], run[-1])):
                taken += run
                if unmarked := self.fence(study, line, taken[-1]):
                    fences[taken.pop() - 1] = unmarked.goes_on_at
            else:
                strays += run
        return Chain(
            numbers=tuple(taken),
            fences=fences,
            strays=tuple(strays),
            foreign=tuple(sorted(name for name in names if name not in numbered)),
            unfinished=fences.get(taken[-1]) if taken else None,
            broken=tuple(sorted(broken)),
        )

    def was_published(self, study: str, line: str, number: int) -> bool:
        """Return whether clients could fetch a version."""
        return self._documents.stamp(f"{study}/{line}/public/{number}.json") is not None

    def is_of_line(self, study: str, line: str, number: int) -> bool:
        """Return whether the file under a number is the line's version of that number."""
        try:
            link = self._documents.decode(self._documents.read_whole(version_key(study, line, number)) or b"", Link, "")
        except FedpingError:
            return False
        return (link.study, link.line, link.iteration) == (study, line, number)

    def fence(self, study: str, line: str, number: int) -> Fence | None:
        """Return the fence under a version's number; None if the file isn't a fence."""
        key = version_key(study, line, number)
        stamp = self._documents.stamp(key)
        if stamp is None or stamp[-1] > MOST_FENCE_BYTES:
            return None
        return self._fences.value(key, stamp, lambda: self._read_fence(study, line, number))

    def _read_fence(self, study: str, line: str, number: int) -> Fence | None:
        key = version_key(study, line, number)
        try:
            data = unsealed(self._documents.read_whole(key) or b"")
        except FedpingError:
            return None
        if _GOES_ON not in data:
            return None  # a small version, not a fence
        data = self._documents.without_format(data, key)
        try:
            fence = msgspec.json.decode(data, type=Fence)
        except (msgspec.MsgspecError, UnicodeDecodeError):
            return None
        of_here = (fence.study, fence.line, fence.after + 1) == (study, line, number)
        return fence if of_here and fence.goes_on_at > number else None

    def another(self, key: str, found: Version | Link | PublicPart) -> str:
        """Return the sentence for a file with a version that doesn't match its key."""
        return self._documents.foreign(
            key, f"is version {found.iteration} of line '{found.line}' of study '{found.study}'"
        )

    def unmarked_fence(self, study: str, line: str, slot: int) -> str:
        """Return the sentence for a fence without its marker."""
        return (
            f"{self._documents.where}/{marker_key(study, line, slot)} is missing: {version_key(study, line, slot)} is "
            "a fence and no version, and that file says so; restore it from a copy"
        )

    def written_later(self, study: str, line: str, number: int) -> str | None:
        """Return a sentence if the version just read has a member that this program doesn't know; else None.

        This program would compute a different digest of the version, so no other version could follow it.
        """
        last, key = self._last_read, version_key(study, line, number)
        if last is None or last.key != key:
            return None
        where = unknown_member(unsealed(last.data), last.version)
        return where and (
            f"{self._documents.where}/{key} has '{where}', which fedping {__version__} does not know: a later version "
            f"of fedping has written it, and none can follow version {number} before fedping is upgraded here; then "
            "run the same command again"
        )


def number_in(name: str) -> int | None:
    """Return the number in a version's file name such as ``12.json``; None for others, even ``012.json``."""
    stem = name.removesuffix(".json")
    if stem == name or not (stem.isascii() and stem.isdigit()) or len(stem) > 10 or str(int(stem)) != stem:
        return None
    return int(stem) if int(stem) <= LARGEST_NUMBER else None


def runs(numbers: Collection[int]) -> list[list[int]]:
    """Return distinct numbers in ascending order, grouped into runs of consecutive numbers."""
    ordered = sorted(numbers)
    if ordered and ordered[-1] - ordered[0] == len(ordered) - 1:
        return [ordered]
    placed = enumerate(ordered)
    return [[number for _, number in run] for _, run in groupby(placed, key=lambda pair: pair[1] - pair[0])]


def readable(name: str) -> str:
    """Return a file's name in printable form."""
    return name if name.isprintable() and name.isascii() else ascii(name)


def version_key(study: str, line: str, iteration: int) -> str:
    """Return the key of a version, which is also the key of a fence in its place."""
    return f"{study}/{line}/versions/{iteration}.json"


def marker_key(study: str, line: str, slot: int) -> str:
    """Return the key of the marker file of a fence at this number."""
    return f"{study}/{line}/fences/{slot}.json"
