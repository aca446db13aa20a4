"""How many client ids are new, by study and hour, without keeping any: what shows that somebody invents clients.

The compactor, through which every ping goes, remembers in a Bloom filter (Bloom 1970) which ids it has seen: bits of a
table of fixed size, by hashes whose keys are drawn when it starts and written nowhere. Nobody can read ids out of it,
and it goes with the process. When half of its bits are set it becomes the older one of two, and the oldest is dropped.
What is written down is counts. Of ids that were seen lately, none counts as new; of new ones, at most one in eight is
taken for seen.
"""

from __future__ import annotations

import os
import secrets
from collections import Counter, defaultdict
from collections.abc import Mapping
from pathlib import Path

import msgspec
import numpy as np
from numpy.typing import NDArray

from fedping.protocol.draws import mixed
from fedping.protocol.local_files import make_folder
from fedping.server_jobs.ingest.counters import write_counts

_SUFFIX = ".newcomers"

BITS = 2**24
"""Of a filter, two megabytes: room for 2.9 million ids, of which there are two a study."""

HASHES = 4
HOUR_MS = 3_600_000
KEPT_HOURS = 72
"""Of which counts are written."""


class Seen:
    """The ids that have been seen, in two filters.

    Args:
        keys: four numbers of 64 bits, which nobody else may know.
        bits: of a filter, a power of two.
    """

    def __init__(self, keys: NDArray[np.uint64], bits: int = BITS) -> None:
        self._keys, self._bits = keys, bits
        self._now, self._before = np.zeros(bits, np.bool_), np.zeros(0, np.bool_)

    def add(self, ids: NDArray[np.uint8]) -> int:
        """See ids of shape (k, 16), which may repeat; return how many of them are new."""
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
    """The counts of one compactor."""

    def __init__(self, folder: Path) -> None:
        make_folder(folder)
        self._path = folder / f"{os.getpid()}-{secrets.token_hex(4)}{_SUFFIX}"
        self._seen: dict[str, Seen] = {}
        self._counts: dict[str, Counter[int]] = defaultdict(Counter)

    def add(self, study: str, ids: NDArray[np.uint8], received_ms: int) -> None:
        """Count the new ones among the clients of landed pings, at a time in milliseconds since 1970."""
        if study not in self._seen:
            self._seen[study] = Seen(np.frombuffer(secrets.token_bytes(32), np.uint64))
        hours, hour = self._counts[study], received_ms // HOUR_MS
        hours[hour] += self._seen[study].add(ids)
        for old in [each for each in hours if each <= hour - KEPT_HOURS]:
            del hours[old]

    def write(self) -> None:
        """Let others see what has been counted."""
        write_counts(self._path, self._counts)


def newcomers(folder: Path) -> Mapping[str, Mapping[int, int]]:
    """Return by study and hour since 1970 how many new clients there were, since ingest was started."""
    sums: dict[str, Counter[int]] = defaultdict(Counter)
    for path in sorted(folder.glob(f"*{_SUFFIX}")):
        for study, hours in msgspec.json.decode(path.read_bytes(), type=dict[str, dict[int, int]]).items():
            sums[study].update(hours)
    return sums
