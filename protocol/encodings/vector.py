"""Vectors of private lines as int32 numbers, little-endian: the encoding `private`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from fedping.protocol.encodings.columns import fixed_payloads, rows_of
from fedping.protocol.link_ends import ClientEnd, Ends, ServerEnd
from fedping.protocol.privacy import METRICS

if TYPE_CHECKING:
    import pyarrow as pa


def vector_payloads(vectors: NDArray[np.integer | np.floating]) -> pa.BinaryArray:
    """Return whole numbers of shape (k, d) as k payloads: d little-endian int32 numbers."""
    values = np.ascontiguousarray(vectors, dtype="<i4")
    return fixed_payloads(values.view(np.uint8).reshape(len(values), 4 * values.shape[1]))


def vector_updates(payloads: pa.BinaryArray, d: int) -> tuple[NDArray[np.float32], NDArray[np.bool_]]:
    """Return vectors of shape (k, d), and which payloads have the length of one, shape (k,); exact up to 2^24."""
    rows, fits = rows_of(payloads, 4 * d)
    return rows.view("<i4").astype(np.float32), fits


def ends() -> Ends:
    """Return the ends of the link `private`."""

    def lengths(m: int) -> tuple[int, int]:
        size = 4 * (m + len(METRICS))
        return size, size

    return ClientEnd(encode=lambda vectors, _: vector_payloads(vectors)), ServerEnd(
        decode=lambda payloads, m: vector_updates(payloads, m + len(METRICS)), lengths=lengths
    )
