"""Multiples of a step: the encoding `steps`. Zeros stay zeros, and most bytes are equal, so that they compress well.

Each number is rounded at random to one of the two nearest multiples of the step, so that its expectation stays; its
variance is step² f (1 - f), where f is its position between them. A payload is f32 step, little-endian, followed by
i8[m], the multiples, or by a zlib stream of them if it is shorter than m bytes; the length shows which it is. Browsers
send the multiples uncompressed.
"""

from __future__ import annotations

import zlib
from typing import TYPE_CHECKING, Any, ClassVar, TypeAlias

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from fedping.protocol.draws import Keys, child_keys, uniforms
from fedping.protocol.encodings.payloads import (
    joined_payloads,
    payload_column,
    payload_lengths,
    rows_of,
    split_payloads,
)
from fedping.protocol.errors import UnfitTable
from fedping.protocol.link_ends import ClientEnd, Decoded, Ends, ServerEnd
from fedping.protocol.rules import Traits
from fedping.protocol.weights import LARGEST, Positive

if TYPE_CHECKING:
    import pyarrow as pa

    from fedping.protocol.spec import ModelSpec


class Steps(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True, tag_field="link", tag="steps"):
    """Round each number at random to a multiple of a step, so that zeros stay zeros, and compress the multiples.

    The step is ``size`` times the root of the update's mean square, or ``step`` for all clients; give one of the two. A
    step is never less than the update's largest number over 127.

    Raises:
        InvalidSettings: both ``size`` and ``step`` are given, or neither.
    """

    traits: ClassVar[Traits] = frozenset({"encodes", "inexact", "follows a mask"})

    size: Positive | None = None
    step: Positive | None = None

    def __post_init__(self) -> None:
        if (self.size is None) == (self.step is None):
            raise UnfitTable(
                "the upload link 'steps' needs either 'size', a multiple of the root of an update's mean square, or "
                "'step', the same for all clients. Set one, such as size = 2.0"
            )

    def ends(self, spec: ModelSpec) -> Ends:
        """Return the link's two ends (`fedping.protocol.link_ends`)."""

        def encode(updates: Floats, keys: Keys) -> pa.BinaryArray:
            steps, m = step_of(updates, self), updates.shape[1]
            # Not of the seed of a mask before: the server could undo the rounding.
            return steps_payloads(steps, multiples(updates, steps, uniforms(child_keys(keys, 1), m)))

        def lengths(m: int) -> tuple[int, int]:
            return _HEAD + min(m, _SHORTEST_STREAM), _HEAD + m

        return ClientEnd(encode=encode), ServerEnd(decode=steps_updates, lengths=lengths, trouble=steps_trouble)


EXAMPLES = (Steps(size=2.0), Steps(step=0.125))
"""Example settings for tests."""

Floats: TypeAlias = NDArray[np.floating[Any]]

MOST = 127
"""The largest multiple; -128 is never sent."""

_HEAD = 4
_LEVEL = 6
_SHORTEST_STREAM = 9
"""Minimum bytes of a nonempty zlib stream: a head of 2, a block of 3 or more, a checksum of 4."""


def step_of(updates: Floats, settings: Steps) -> NDArray[np.float32]:
    """Return the step of each of k updates, shape (k,); with ``size``, 0 for updates of zeros.

    Steps are rounded up, so that every number is at most 127 steps.
    """
    least = np.abs(updates).max(axis=1, initial=0.0).astype(np.float64) / MOST  # in float32 it might be rounded down
    if settings.step is not None:
        preferred = np.full(len(updates), settings.step)
    else:
        assert settings.size is not None
        squares = np.einsum("ij,ij->i", updates, updates, dtype=np.float64) / updates.shape[1]
        preferred = np.minimum(settings.size * np.sqrt(squares), LARGEST)
    exact = np.maximum(preferred, least)
    steps = exact.astype(np.float32)
    return np.asarray(np.where(steps < exact, np.nextafter(steps, np.float32(np.inf)), steps))


def multiples(updates: Floats, steps: NDArray[np.float32], rounding: Floats) -> NDArray[np.int8]:
    """Return numbers as multiples of their row's step, rounded at random by ``rounding``, uniform in [0, 1)."""
    exact = updates / np.where(steps > 0, steps, 1).astype(np.float64)[:, None]
    exact += rounding
    return np.clip(np.floor(exact, out=exact), -MOST, MOST).astype(np.int8)


def steps_payloads(steps: NDArray[np.float32], counts: NDArray[np.int8]) -> pa.BinaryArray:
    """Return steps of shape (k,) and multiples of them, shape (k, m), as k payloads."""
    bodies = [min(row.tobytes(), zlib.compress(row, _LEVEL), key=len) for row in counts]
    return joined_payloads(steps.astype("<f4").view(np.uint8).reshape(-1, _HEAD), payload_column(bodies))


def steps_updates(payloads: pa.BinaryArray, m: int) -> Decoded:
    """Return updates of shape (k, m), and which of k payloads could be read."""
    heads, fits, behind = split_payloads(payloads, _HEAD)
    counts, read = _multiples_in(behind, m)
    steps = heads.view("<f4")[:, 0]
    most = np.maximum(counts.max(axis=1, initial=0).astype(np.int16), -counts.min(axis=1, initial=0).astype(np.int16))
    with np.errstate(over="ignore", invalid="ignore"):
        ok = fits & read & ~np.signbit(steps) & (steps * most.astype(np.float32) <= LARGEST)
    ok &= (most <= MOST) & ((steps > 0) | (most == 0))
    return np.multiply(counts, np.where(ok, steps, 0)[:, None], dtype=np.float32), ok


def _multiples_in(bodies: pa.BinaryArray, m: int) -> tuple[NDArray[np.int8], NDArray[np.bool_]]:
    """Return the multiples for m weights in the bytes after the step, shape (k, m), and which rows are readable."""
    rows, readable = rows_of(bodies, m)
    lengths = payload_lengths(bodies)
    for row in np.flatnonzero((lengths < m) & (lengths >= _SHORTEST_STREAM)).tolist():
        row_bytes = inflated(bodies[row].as_buffer(), m)
        if row_bytes is not None:
            rows[row], readable[row] = np.frombuffer(row_bytes, np.uint8), True
    return rows.view(np.int8), readable


def inflated(stream: bytes | pa.Buffer, size: int) -> bytes | None:
    """Return the ``size`` bytes of a zlib stream; None if it is not exactly one stream of that length.

    At most one byte beyond ``size`` is inflated, however long the stream is.
    """
    inflating = zlib.decompressobj()
    try:
        data = inflating.decompress(stream, size + 1)
    except zlib.error:
        return None
    is_whole = inflating.eof and not inflating.unused_data and len(data) == size
    return data if is_whole else None


def steps_trouble(payload: bytes, m: int) -> str | None:
    """Return why a payload of a valid length isn't an update of m weights; None if it is."""
    step = np.frombuffer(payload, "<f4", count=1)[0]
    if not np.isfinite(step) or np.signbit(step):
        return "has a step that is negative or not finite"
    body = payload[_HEAD:]
    counts = np.frombuffer(body if len(body) == m else inflated(body, m) or b"", np.int8)
    if len(counts) != m:
        return f"has no zlib stream of {m:,} bytes, and no more, after its step"
    if counts.min() < -MOST:
        return "has the multiple -128, which there is not"
    if step == 0 and counts.any():
        return "has a step of 0 and multiples other than 0"
    with np.errstate(over="ignore"):
        largest = step * np.float32(np.abs(counts).max())  # in float32, like the decoder
    if largest > LARGEST:
        return f"has a number beyond {LARGEST:g}"
    return None
