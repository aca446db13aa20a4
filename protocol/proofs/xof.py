"""XofTurboShake128: what seeds are expanded to, and hashed to (section "XofTurboShake128" of the draft).

The message of a row is the length of its domain separation tag in two bytes, the tag, the length of its seed in one byte,
the seed, and what binds it; TurboSHAKE128 with the domain byte 1 expands it. The tag ends with the context, bytes of the
application's own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import repeat
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from fedping.protocol.proofs.field import Elements, P

Rows: TypeAlias = NDArray[np.uint8]
"""Bytes of k clients, shape (k, bytes)."""

Context: TypeAlias = bytes | Sequence[bytes]
"""The application's bytes: of all rows, or a byte string a row."""

SEED_BYTES = 32

_ELEMENT_BYTES = 8


def seeds(tag: bytes, context: Context, rows: Rows) -> Rows:
    """Return a seed a row, shape (k, 32).

    Args:
        tag: what the draft puts before the context, 8 bytes.
        context: see :data:`Context`; at most 65,527 bytes each.
        rows: a seed of 32 bytes, and after it what binds it; shape (k, bytes).
    """
    drawn = b"".join(read(SEED_BYTES) for read in _streams(tag, context, rows))
    return np.frombuffer(drawn, np.uint8).reshape(-1, SEED_BYTES)


def elements(tag: bytes, context: Context, rows: Rows, count: int) -> Elements:
    """Return random elements of the field, shape (k, count); arguments as of :func:`seeds`."""
    return uniform(_streams(tag, context, rows), count)


def uniform(streams: Iterable[Callable[[int], bytes]], count: int) -> Elements:
    """Return the first numbers of 64 bits that are below p of each of k streams of bytes, shape (k, count).

    One number in 2^32 is not, and is left out.
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
    for start, prefix in zip(range(0, len(data), width), prefixes):
        yield TurboSHAKE128.new(domain=1, data=prefix + data[start : start + width]).read


def _prefix(tag: bytes, context: bytes) -> bytes:
    return (len(tag) + len(context)).to_bytes(2, "little") + tag + context + bytes([SEED_BYTES])
