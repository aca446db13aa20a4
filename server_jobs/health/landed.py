"""How many pings have landed for a version, or of arms without one, from footers, each of which is read once."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import chain

from msgspec import Struct

from fedping.protocol.errors import FedpingError
from fedping.protocol.landing import Landing, landed_at, open_landing
from fedping.protocol.location import Place, base_name


class Landed(Struct, frozen=True, kw_only=True):
    """What lies in the partition of one version.

    Attributes:
        version: which.
        pings: in the files, those of all arms, duplicates included.
        files: that can be read.
        newest_ms: when the newest landed (milliseconds since 1970); None without a file.
        unreadable: the names of those that cannot be read, which a round refuses.
    """

    version: int
    pings: int
    files: int
    newest_ms: int | None
    unreadable: tuple[str, ...] = ()


@dataclass
class _Listed:
    version: int
    seen: int
    landed: Landed


class LandedPings:
    """Counts what has landed for one version of a line at a time: the newest."""

    def __init__(self, landing: Place, study: str, line: str) -> None:
        self._landing, self._study, self._line = open_landing(landing), study, line
        self._rows: dict[Place, int | None] = {}
        self._last: _Listed | None = None

    def of(self, version: int, now_ns: int) -> Landed:
        """Return what has landed for a version; one look at the folder if nothing has changed there."""
        seen = self._landing.changed(self._study, self._line, version, now_ns)
        last = self._last
        if last is not None and seen is not None and (last.version, last.seen) == (version, seen):
            return last.landed
        files = self._landing.files(self._study, self._line, version)
        self._rows = {file: self._rows[file] if file in self._rows else _rows(self._landing, file) for file in files}
        landed = self._summed(version)
        self._last = None if seen is None else _Listed(version, seen, landed)
        return landed

    def _summed(self, version: int) -> Landed:
        counted = [rows for rows in self._rows.values() if rows is not None]
        return Landed(
            version=version,
            pings=sum(counted),
            files=len(counted),
            newest_ms=max((stamp for file in self._rows if (stamp := landed_at(file)) is not None), default=None),
            unreadable=tuple(base_name(file) for file, rows in self._rows.items() if rows is None),
        )


class LandedBeside:
    """Counts what has landed of the arms of a study that follow no line."""

    def __init__(self, landing: Place, study: str) -> None:
        self._landing, self._study = open_landing(landing), study
        self._rows: dict[Place, int] = {}

    def between(self, after_ms: int, until_ms: int) -> int:
        """Return how many pings have landed after a moment and until another, in milliseconds since 1970."""
        there = [
            file
            for file in chain.from_iterable(self._landing.files_by_iteration(self._study, None).values())
            if after_ms < (landed_at(file) or 0) <= until_ms
        ]
        self._rows = {
            file: self._rows[file] if file in self._rows else _rows(self._landing, file) or 0 for file in there
        }
        return sum(self._rows.values())


def _rows(landing: Landing, file: Place) -> int | None:
    """Return the pings in a file, None if it is not a whole Parquet file."""
    try:
        return int(landing.open(file).footer.num_rows)
    except (FedpingError, OSError):
        return None
