"""Duplicates: a client that got no answer sends the same document again, which is normal and lands once."""

from __future__ import annotations

import hashlib
from functools import lru_cache

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray


def keys_of(ids: NDArray[np.uint8], studies: pa.ChunkedArray) -> NDArray[np.uint8]:
    """Return what tells documents apart, shape (k, 16): their ids, shape (k, 16), each mixed with its study's name.

    The same id in two studies is two documents. Mixed keys are as long as ids, and as random, so that whoever compares
    them need not know of studies.
    """
    codes = studies.combine_chunks().dictionary_encode()
    codes = codes.chunk(0) if isinstance(codes, pa.ChunkedArray) else codes
    marks = np.array([_mark(name) for name in codes.dictionary.to_pylist()], np.uint8).reshape(-1, 16)
    mixed: NDArray[np.uint8] = ids ^ (marks if len(marks) == 1 else marks[codes.indices.to_numpy()])
    return mixed


def keys_in(study: str, ids: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Return :func:`keys_of` documents that are all of one study."""
    return ids ^ _mark(study)


@lru_cache(maxsize=1024)
def _mark(study: str) -> NDArray[np.uint8]:
    return np.frombuffer(hashlib.blake2b(study.encode(), digest_size=16).digest(), np.uint8)


def first_of_each(ids: NDArray[np.uint8]) -> NDArray[np.bool_]:
    """Return which rows hold a document's id or key for the first time; these have shape (k, 16), the mask shape (k,).

    They are random, so eight bytes tell almost all of them apart; only rows that agree in those are compared in full.
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
