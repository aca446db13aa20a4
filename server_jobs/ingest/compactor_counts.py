"""Counts kept by the compactor, which sees every ping: updates by encoding, and new clients by hour.

Each compactor writes its counts since its start to its own files. Readers sum all files, including those of dead
compactors. The counts restart from zero when ingest starts.

A sudden increase of new clients shows that an attacker invents clients. No id is stored: a Bloom filter (Bloom 1970)
records seen ids as bits of a table of fixed size, by hashes with random keys that are never written to disk. Filters
end with the process. When half of a filter's bits are set, it becomes the older of two filters, and the previous
older filter is dropped. A recently seen id never counts as new; at most one new id in eight is mistaken for a known
id.
"""

from __future__ import annotations

import os
import secrets
from collections import Counter, defaultdict
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from fedping.protocol.draws import mixed
from fedping.protocol.local_files import make_folder
from fedping.server_jobs.ingest.counters import write_counts

if TYPE_CHECKING:
    import pyarrow as pa


_UPLOADS = ".uploads"


class Uploaded(NamedTuple):
    """A kind of update: its study, line and encoding."""

    study: str
    line: str
    encoding: str


class UploadCounts:
    """Counts of landed updates by kind, for one compactor."""

    def __init__(self, folder: Path) -> None:
        make_folder(folder)
        self._path = folder / f"{os.getpid()}-{secrets.token_hex(4)}{_UPLOADS}"
        self._counts: dict[Uploaded, tuple[int, int]] = defaultdict(lambda: (0, 0))

    def add(self, study: str, line: str | None, landed: pa.Table) -> None:
        """Count the updates among landed pings of one line."""
        import pyarrow as pa  # not above: counts are read by the supervisor, which forks and may have no threads
        import pyarrow.compute as pc

        from fedping.protocol.arrow import UPDATE, UPDATE_ENCODING

        sizes, tags = pc.binary_length(landed[UPDATE]), landed[UPDATE_ENCODING].cast(pa.string())
        for tag in pc.unique(tags).drop_null().to_pylist():
            mine = sizes.filter(pc.equal(tags, tag))
            what = Uploaded(study, line or "", tag)
            updates, size = self._counts[what]
            self._counts[what] = updates + len(mine), size + (pc.sum(mine).as_py() or 0)

    def write(self) -> None:
        """Write the counts so far to the compactor's file."""
        write_counts(self._path, [(*what, *counts) for what, counts in self._counts.items()])


def uploaded(folder: Path) -> Mapping[Uploaded, tuple[int, int]]:
    """Return the number and total bytes of landed updates, by kind."""
    sums: dict[Uploaded, tuple[int, int]] = {}
    for path in sorted(folder.glob(f"*{_UPLOADS}")):
        for study, line, encoding, updates, size in msgspec.json.decode(
            path.read_bytes(), type=list[tuple[str, str, str, int, int]]
        ):
            what = Uploaded(study, line, encoding)
            before = sums.get(what, (0, 0))
            sums[what] = before[0] + updates, before[1] + size
    return sums


_NEWCOMERS = ".newcomers"

BITS = 2**24
"""Number of bits of a filter: two megabytes, enough for 2.9 million ids. A study has two filters."""

HASHES = 4
HOUR_MS = 3_600_000
KEPT_HOURS = 72
"""Number of hours whose counts are written."""


class Seen:
    """The ids seen so far, in two Bloom filters.

    Args:
        keys: four secret numbers of 64 bits.
        bits: size of a filter in bits, a power of two.
    """

    def __init__(self, keys: NDArray[np.uint64], bits: int = BITS) -> None:
        self._keys, self._bits = keys, bits
        self._now, self._before = np.zeros(bits, np.bool_), np.zeros(0, np.bool_)

    def add(self, ids: NDArray[np.uint8]) -> int:
        """Add ids of shape (k, 16), which may repeat; return the number of new ids."""
        words = np.ascontiguousarray(ids).view("<u8").reshape(-1, 2)
        first = mixed(mixed(words[:, 0] ^ self._keys[0]) + (words[:, 1] ^ self._keys[1]))
        first, where = np.unique(first, return_index=True)
        words = words[where]
        step = mixed(mixed(words[:, 0] ^ self._keys[2]) + (words[:, 1] ^ self._keys[3])) | np.uint64(1)
        probes = np.arange(HASHES).astype(np.uint64)
        places: NDArray[np.uint64] = (first[:, None] + step[:, None] * probes) & np.uint64(self._bits - 1)
        known = np.asarray(self._now[places].all(axis=1))
        if len(self._before):
            known |= np.asarray(self._before[places].all(axis=1))
        self._now[places] = True
        if 2 * np.count_nonzero(self._now) > self._bits:
            self._before, self._now = self._now, np.zeros(self._bits, np.bool_)
        return int(len(known) - np.count_nonzero(known))


class Newcomers:
    """Counts of new clients by study and hour, for one compactor."""

    def __init__(self, folder: Path) -> None:
        make_folder(folder)
        self._path = folder / f"{os.getpid()}-{secrets.token_hex(4)}{_NEWCOMERS}"
        self._seen: dict[str, Seen] = {}
        self._counts: dict[str, Counter[int]] = defaultdict(Counter)

    def add(self, study: str, ids: NDArray[np.uint8], received_ms: int) -> None:
        """Count the new clients among those of landed pings; ``received_ms`` is in milliseconds since 1970."""
        if study not in self._seen:
            self._seen[study] = Seen(np.frombuffer(secrets.token_bytes(32), np.uint64))
        hours, hour = self._counts[study], received_ms // HOUR_MS
        hours[hour] += self._seen[study].add(ids)
        for old in [each for each in hours if each <= hour - KEPT_HOURS]:
            del hours[old]

    def write(self) -> None:
        """Write the counts so far to the compactor's file."""
        write_counts(self._path, self._counts)


def newcomers(folder: Path) -> Mapping[str, Mapping[int, int]]:
    """Return the number of new clients since ingest started, by study and hour (counted from 1970)."""
    sums: dict[str, Counter[int]] = defaultdict(Counter)
    for path in sorted(folder.glob(f"*{_NEWCOMERS}")):
        for study, hours in msgspec.json.decode(path.read_bytes(), type=dict[str, dict[int, int]]).items():
            sums[study].update(hours)
    return sums
