"""Detection of duplicate documents: within a batch, and among the most recently landed documents.

A retry of an older document lands as a second row, which the round removes.
"""

from __future__ import annotations

import hashlib
import time
from collections import deque
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from fedping.protocol.landed_file import UnreadableFile, open_landed
from fedping.protocol.landing import id_bytes, open_landing, study_of
from fedping.protocol.location import Place, base_name


def keys_of(ids: NDArray[np.uint8], studies: pa.ChunkedArray) -> NDArray[np.uint8]:
    """Return keys that identify documents, shape (k, 16): their ids, shape (k, 16), each mixed with its study's name.

    The same id in two studies means two documents. Mixed keys are as long and as random as ids, and can be compared
    without the study.
    """
    codes = studies.combine_chunks().dictionary_encode()
    codes = codes.chunk(0) if isinstance(codes, pa.ChunkedArray) else codes
    marks = np.array([_mark(name) for name in codes.dictionary.to_pylist()], np.uint8).reshape(-1, 16)
    mixed: NDArray[np.uint8] = ids ^ (marks if len(marks) == 1 else marks[codes.indices.to_numpy()])
    return mixed


def keys_in(study: str, ids: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Return :func:`keys_of` documents that all belong to one study."""
    return ids ^ _mark(study)


@lru_cache(maxsize=1024)
def _mark(study: str) -> NDArray[np.uint8]:
    return np.frombuffer(hashlib.blake2b(study.encode(), digest_size=16).digest(), np.uint8)


def first_of_each(ids: NDArray[np.uint8]) -> NDArray[np.bool_]:
    """Return a mask, shape (k,), of the first occurrence of each id or key; ``ids`` has shape (k, 16).

    Ids are random, so eight bytes distinguish almost all of them. Only rows with the same eight bytes are compared in
    full.
    """
    first = np.ones(len(ids), dtype=np.bool_)
    halves = np.ascontiguousarray(ids[:, 8:]).view(np.uint64).ravel()
    order = np.argsort(halves, kind="stable")
    same = halves[order][1:] == halves[order][:-1]
    suspects = np.zeros(len(ids), dtype=np.bool_)
    suspects[order[1:][same]] = True
    suspects[order[:-1][same]] = True
    seen: set[bytes] = set()
    for row in np.flatnonzero(suspects):
        document = ids[row].tobytes()
        first[row] = document not in seen
        seen.add(document)
    return first


REMEMBERED = 250_000
LOOK_BACK_MS = 3_600_000
_READ_AT_ONCE = 16
"""Number of files that are read concurrently."""


class RecentDocuments:
    """The keys (:func:`keys_of`) of the last :data:`REMEMBERED` documents."""

    def __init__(self) -> None:
        self._blocks: deque[NDArray[np.uint64]] = deque()
        self._sorted = np.zeros((0, 2), dtype=np.uint64)

    def add(self, keys: NDArray[np.uint8]) -> None:
        """Remember keys, shape (k, 16), and forget the oldest."""
        if not len(keys):
            return
        self._blocks.append(_halves(keys)[-REMEMBERED:])
        while sum(map(len, self._blocks)) - len(self._blocks[0]) >= REMEMBERED:
            self._blocks.popleft()
        every = np.concatenate(list(self._blocks))
        self._sorted = every[np.argsort(every[:, 1])]

    def holds(self, keys: NDArray[np.uint8]) -> NDArray[np.bool_]:
        """Return a mask, shape (k,), of the keys, shape (k, 16), that are remembered."""
        asked = _halves(keys)
        if not len(self._sorted):
            return np.zeros(len(keys), dtype=np.bool_)
        where = np.searchsorted(self._sorted[:, 1], asked[:, 1])
        found = self._sorted[np.minimum(where, len(self._sorted) - 1)]
        same: NDArray[np.bool_] = (found == asked).all(axis=1)
        return same


def recently_landed(landing: Place) -> RecentDocuments:
    """Return the documents in recently landed files, so that they are still known after a restart."""
    since = int(time.time() * 1000) - LOOK_BACK_MS
    files = open_landing(landing).all_files(since)
    newest_first = sorted(files, key=base_name, reverse=True)
    blocks: list[NDArray[np.uint8]] = []
    with ThreadPoolExecutor(_READ_AT_ONCE) as pool:  # each file in a bucket takes a request or two
        for start in range(0, len(newest_first), _READ_AT_ONCE):
            if sum(map(len, blocks)) >= REMEMBERED:
                break
            blocks.extend(pool.map(_keys, newest_first[start : start + _READ_AT_ONCE]))
    recent = RecentDocuments()
    for block in reversed(blocks):
        recent.add(block)
    return recent


def _keys(path: Place) -> NDArray[np.uint8]:
    return keys_in(study_of(path), document_ids(path, REMEMBERED))


def _halves(keys: NDArray[np.uint8]) -> NDArray[np.uint64]:
    return np.ascontiguousarray(keys).view(np.uint64).reshape(-1, 2)


def document_ids(path: Place, most: int | None = None) -> NDArray[np.uint8]:
    """Return the last ``most`` ids in a landed file, shape (k, 16); k = 0 if the file can't be read."""
    held: deque[NDArray[np.uint8]] = deque([np.zeros((0, 16), np.uint8)])
    try:
        for batch in open_landed(path).batches(["document_id"]):
            held.append(id_bytes(batch.column(0)))
            while most is not None and sum(map(len, held)) - len(held[0]) >= most:
                held.popleft()
    except (UnreadableFile, OSError, KeyError, ValueError):
        return np.zeros((0, 16), dtype=np.uint8)  # A foreign or damaged file: the round will report it.
    return np.concatenate(held)[-most if most else None :]
