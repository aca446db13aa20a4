"""Duplicates: a client that got no answer sends the same document again, which is normal and lands once."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray


def first_of_each(ids: NDArray[np.uint8]) -> NDArray[np.bool_]:
    """Return which rows hold a document id for the first time; ids have shape (k, 16), the mask shape (k,).

    Ids are random, so eight bytes tell almost all of them apart; only rows that agree in those are compared in full.
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
