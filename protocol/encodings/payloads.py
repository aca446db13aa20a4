"""Payloads as Arrow columns and as rows of bytes, and the seeds in payloads.

Arrow is imported where it is used: it starts a thread, and ingest makes the ends of links before it forks.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from fedping.protocol.draws import Keys, bits, child_keys

if TYPE_CHECKING:
    import pyarrow as pa


def payload_column(payloads: Iterable[bytes]) -> pa.BinaryArray:
    """Return payloads as a column."""
    import pyarrow as pa

    return pa.array(payloads, pa.binary())


def fixed_payloads(rows: NDArray[np.uint8]) -> pa.BinaryArray:
    """Return rows of shape (k, size) as k payloads."""
    import pyarrow as pa

    k, size = rows.shape
    offsets, data = np.arange(k + 1, dtype=np.int64) * size, pa.py_buffer(np.ascontiguousarray(rows))
    if offsets[-1] < 2**31:
        return pa.BinaryArray.from_buffers(pa.binary(), k, [None, pa.py_buffer(offsets.astype(np.int32)), data])
    return pa.LargeBinaryArray.from_buffers(pa.large_binary(), k, [None, pa.py_buffer(offsets), data])


def payload_lengths(payloads: pa.BinaryArray) -> NDArray[np.signedinteger]:
    """Return the bytes of each payload, -1 for null."""
    lengths = np.diff(_starts(payloads))
    if payloads.null_count:
        lengths[payloads.is_null().to_numpy(zero_copy_only=False)] = -1
    return lengths


def fixed_bytes(payloads: pa.BinaryArray, size: int) -> NDArray[np.uint8]:
    """Return payloads as a (k, size) view of their buffer; all must have ``size`` bytes, and none may be null."""
    k = len(payloads)
    if k == 0:
        return np.zeros((0, size), dtype=np.uint8)
    first = int(_starts(payloads)[0])
    return np.frombuffer(payloads.buffers()[2], np.uint8, count=k * size, offset=first).reshape(k, size)


def _starts(payloads: pa.BinaryArray) -> NDArray[np.signedinteger]:
    """Return the offset of each payload in their buffer, and the end of the last one, shape (k + 1,), as a view."""
    import pyarrow as pa

    kind = np.dtype(np.int64 if pa.types.is_large_binary(payloads.type) else np.int32)
    k = len(payloads)
    if k == 0:
        return np.zeros(1, kind)
    return np.frombuffer(payloads.buffers()[1], kind, count=k + 1, offset=payloads.offset * kind.itemsize)


def rows_of(payloads: pa.BinaryArray, size: int) -> tuple[NDArray[np.uint8], NDArray[np.bool_]]:
    """Return the bytes of k payloads, shape (k, size), and which have this size, shape (k,); the other rows are 0.

    If all have this size, the result is a view of their buffer.
    """
    import pyarrow as pa

    fits = np.asarray(payload_lengths(payloads) == size)
    if fits.all():
        return fixed_bytes(payloads, size), fits
    rows = np.zeros((len(payloads), size), np.uint8)
    rows[fits] = fixed_bytes(payloads.filter(pa.array(fits)), size)
    return rows, fits


def split_payloads(payloads: pa.BinaryArray, size: int) -> tuple[NDArray[np.uint8], NDArray[np.bool_], pa.BinaryArray]:
    """Return the first ``size`` bytes of k payloads, shape (k, size), which payloads are long enough, and the rest.

    Payloads that are too short get rows of zeros.
    """
    import pyarrow as pa

    starts = _starts(payloads)
    lengths, edges = np.diff(starts), starts - starts[0]
    fits = np.asarray(payload_lengths(payloads) >= size)
    count = int(edges[-1])
    data = np.frombuffer(payloads.buffers()[2] or b"", np.uint8, count=count, offset=int(starts[0]) if count else 0)
    at = edges[:-1][fits][:, None] + np.arange(size)
    heads = np.zeros((len(payloads), size), np.uint8)
    heads[fits] = data[at]
    behind = np.repeat(fits, lengths)
    behind[at.ravel()] = False
    rest = np.concatenate([edges[:1], np.cumsum(np.where(fits, lengths - size, 0), dtype=edges.dtype)])
    buffers = [None, pa.py_buffer(rest), pa.py_buffer(data[behind])]
    return heads, fits, type(payloads).from_buffers(payloads.type, len(payloads), buffers)


def joined_payloads(heads: NDArray[np.uint8], payloads: pa.BinaryArray) -> pa.BinaryArray:
    """Return k payloads, each preceded by its row of ``heads``, shape (k, size); no payload may be null."""
    import pyarrow as pa

    k, size = heads.shape
    starts = _starts(payloads)
    edges = starts - starts[0] + np.arange(k + 1, dtype=starts.dtype) * size
    count = int(starts[-1] - starts[0])
    joined, behind = np.empty(int(edges[-1]), np.uint8), np.ones(int(edges[-1]), np.bool_)
    at = edges[:-1, None] + np.arange(size)
    joined[at] = heads
    behind[at] = False
    joined[behind] = np.frombuffer(payloads.buffers()[2] or b"", np.uint8, count=count, offset=int(starts[0]))
    buffers = [None, pa.py_buffer(edges), pa.py_buffer(joined)]
    return type(payloads).from_buffers(payloads.type, k, buffers)


SEED_BYTES = 8

_BITS = np.uint64(53)


def payload_seeds(keys: Keys) -> NDArray[np.uint64]:
    """Return the seed that goes into the payload of each of k random keys, shape (k,).

    Other random numbers of a payload, which stay secret, come from other children of its key.
    """
    seeds: NDArray[np.uint64] = bits(child_keys(keys, 0), 1)[:, 0] >> np.uint64(11)
    return seeds


def seed_bytes(seeds: NDArray[np.uint64]) -> NDArray[np.uint8]:
    """Return seeds as rows of bytes, shape (k, 8)."""
    return np.ascontiguousarray(seeds, "<u8").view(np.uint8).reshape(-1, SEED_BYTES)


def seeds_of(rows: NDArray[np.uint8]) -> tuple[NDArray[np.uint64], NDArray[np.bool_]]:
    """Return the seeds at the start of rows of bytes, and which of them are valid; both of shape (k,)."""
    seeds = np.ascontiguousarray(rows[:, :SEED_BYTES]).view("<u8")[:, 0]
    return seeds, seeds >> _BITS == 0
