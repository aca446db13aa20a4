"""XofTurboShake128, the draft's random oracle, which expands a seed into field elements or derives another seed.

Its input is the length of the domain separation tag (2 bytes), the tag, the length of the seed (1 byte), the seed, and
a binder. The tag ends with the context, a byte string of the application. TurboSHAKE128 runs with the domain byte 1.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import repeat
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from fedping.protocol.proofs.field import Elements, P

Rows: TypeAlias = NDArray[np.uint8]
"""Byte strings of k clients, shape (k, bytes)."""

Context: TypeAlias = bytes | Sequence[bytes]
"""The application's byte string: one for all rows, or one for each."""

SEED_BYTES = 32

_ELEMENT_BYTES = 8


def seeds(tag: bytes, context: Context, rows: Rows) -> Rows:
    """Return a derived seed for each row, shape (k, 32).

    Args:
        tag: the tag without the context, 8 bytes.
        context: at most 65,527 bytes each.
        rows: seeds of 32 bytes, each followed by its binder; shape (k, bytes).
    """
    drawn = b"".join(read(SEED_BYTES) for read in _streams(tag, context, rows))
    return np.frombuffer(drawn, np.uint8).reshape(-1, SEED_BYTES)


def elements(tag: bytes, context: Context, rows: Rows, count: int) -> Elements:
    """Return pseudorandom field elements for each row, shape (k, count); other arguments as in :func:`seeds`."""
    return uniform(_streams(tag, context, rows), count)


def uniform(streams: Iterable[Callable[[int], bytes]], count: int) -> Elements:
    """Return the first ``count`` 64-bit numbers below p of each of k byte streams, shape (k, count).

    One number in 2^32 is p or above, and is skipped.
    """
    reads = list(streams)
    first = b"".join(read(_ELEMENT_BYTES * count) for read in reads)
    numbers = np.frombuffer(first, "<u8").reshape(-1, count).astype(np.uint64)
    for row in np.flatnonzero((numbers >= np.uint64(P)).any(axis=1)):
        kept = [int(number) for number in numbers[row] if number < P]
        while len(kept) < count:
            number = int.from_bytes(reads[row](_ELEMENT_BYTES), "little")
            kept += [number] if number < P else []
        numbers[row] = kept
    return numbers


def _streams(tag: bytes, context: Context, rows: Rows) -> Iterator[Callable[[int], bytes]]:
    from Crypto.Hash import TurboSHAKE128

    width, data = rows.shape[1], np.ascontiguousarray(rows).tobytes()
    prefixes = repeat(_prefix(tag, context)) if isinstance(context, bytes) else (_prefix(tag, each) for each in context)
    for start, prefix in zip(range(0, len(data), width), prefixes, strict=False):
        yield TurboSHAKE128.new(domain=1, data=prefix + data[start : start + width]).read


def _prefix(tag: bytes, context: bytes) -> bytes:
    return (len(tag) + len(context)).to_bytes(2, "little") + tag + context + bytes([SEED_BYTES])
