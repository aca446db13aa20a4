"""Each weight on its own where not all updates fit: how many votes there are for which number, to some bits.

As long as the updates of a shard fit, they are kept, and the result is exact. Of more, the votes for each weight are
counted in bins: by sign, exponent and the first bits of the mantissa of the float32 number. So a number is known to the
relative error of half a bin, 2^-(bits + 1), whatever numbers come: with 22 weights 0.8 %. The more weights, the fewer
bits there is room for; beyond 512 weights there are none, and clients are left out by lot instead. In bins pings count
with their own votes, not as one point a client, which has them all the same.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from fedping.protocol.landing import SHARDS
from fedping.protocol.study import Line
from fedping.server_jobs.optimize.transformation import Arrays, Vector
from fedping.server_jobs.round.accumulator import (
    Accumulator,
    Finished,
    Sent,
    Updates,
    WithMoments,
    points_of,
    room_for_all,
    with_moments,
)

LEAST_BITS, MOST_BITS = 2, 10
"""Bits of the mantissa that are looked at: fewer are no sketch of anything, more are of no use."""

Columns: TypeAlias = Iterable[tuple[NDArray[np.float64], NDArray[np.float64]]]
"""Of some weights at a time the values in order, and the sum of votes up to each, both of shape (k, weights)."""

_AT_ONCE = 2**17
"""Numbers that are sorted at a time."""


@dataclass(frozen=True, slots=True)
class Sketch:
    """Updates that are kept, as many as ``rows``, and the votes of others by bin, shape (m, bins); None without any."""

    sent: tuple[Sent, ...] = ()
    rows: int = 0
    counts: NDArray[np.float64] | None = None


def of_columns(finish: Callable[[Columns, Vector], Vector]) -> Accumulator[WithMoments[Sketch]]:
    """Return an accumulator that ends with a function of each weight's values, exact or in bins.

    Args:
        finish: of the columns and a vector to write into, which it returns.
    """

    def add(sketch: Sketch, updates: Updates, votes: Vector, clients: NDArray[np.uint64]) -> Sketch:
        m = updates.shape[1]
        sent = (*sketch.sent, Sent(np.array(updates, dtype=np.float32), votes, clients))
        kept = Sketch(sent, sketch.rows + len(votes), sketch.counts)
        return folded(kept, m) if bits_for(m) is not None and kept.rows > room_for_all(m) else kept

    def merge(a: Sketch, b: Sketch) -> Sketch:
        if a.counts is None and b.counts is None:
            both = Sketch(a.sent + b.sent, a.rows + b.rows)
            m = both.sent[0].updates.shape[1] if both.sent else 0
            # as many as SHARDS shards have room for; more shards, each of which has room, are not kept together
            fits = not m or bits_for(m) is None or both.rows <= SHARDS * room_for_all(m)
            return both if fits else folded(both, m)
        m = (a.counts if a.counts is not None else b.counts).shape[0]  # type: ignore[union-attr]
        one, other = folded(a, m).counts, folded(b, m).counts
        assert one is not None
        assert other is not None
        return Sketch(counts=one + other)

    def finished(sketch: Sketch, line: Line, weights: Vector, state: Arrays, key: bytes) -> Finished:
        found = np.zeros(line.spec.m)
        if sketch.counts is not None:
            return Finished(finish(columns_of_bins(sketch), found))
        if not sketch.sent:
            return Finished(found)
        return Finished(finish(columns_of(*points_of(*map(np.concatenate, zip(*sketch.sent, strict=True)))), found))

    def room(m: int) -> int | None:
        return room_for_all(m) if bits_for(m) is None else None

    return with_moments(lambda _: Sketch(), add, merge, finished, room, ("clients",))


def bits_for(m: int) -> int | None:
    """Return how many bits of the mantissa there is room for where there are m weights; None if there is none."""
    bits = room_for_all(2 * m).bit_length() - 1 - 9
    return min(bits, MOST_BITS) if bits >= LEAST_BITS else None


def folded(sketch: Sketch, m: int) -> Sketch:
    """Return a sketch that keeps no updates, but their votes in bins."""
    bits = bits_for(m)
    assert bits is not None
    counts = np.zeros((m, 1 << (9 + bits))) if sketch.counts is None else sketch.counts.copy()
    first = np.arange(m) * counts.shape[1]
    for each in sketch.sent:
        where, votes = bins_of(each.updates, bits) + first, np.broadcast_to(each.votes[:, None], each.updates.shape)
        np.add.at(counts.reshape(-1), where, votes)
    return Sketch(counts=counts)


def bins_of(values: NDArray[np.float32], bits: int) -> NDArray[np.int64]:
    """Return the bin of each number; the bins are in the order of the numbers, the lowest is 0."""
    words = np.ascontiguousarray(values).view(np.int32).astype(np.int64)
    size = (words & 0x7FFFFFFF) >> (23 - bits)
    half = 1 << (8 + bits)
    return np.where(values < 0, half - 1 - size, half + size)


def middles(bits: int) -> Vector:
    """Return the number that stands for each bin: its middle, but zero for those that hold the smallest numbers."""
    half = 1 << (8 + bits)
    words = (np.arange(half, dtype=np.int64) << (23 - bits)) + (1 << (22 - bits))
    words[0] = 0
    words[255 << bits :] = 0  # of no finite number
    above = words.astype(np.int32).view(np.float32).astype(np.float64)
    return np.concatenate([-above[::-1], above])


def columns_of(points: NDArray[np.floating], votes: Vector) -> Columns:
    """Yield the columns of (k, m) points, many at a time."""
    width = max(1, _AT_ONCE // max(1, len(points)))
    for low in range(0, points.shape[1], width):
        block = np.ascontiguousarray(points[:, low : low + width].T)
        order = np.argsort(block, axis=1, kind="stable")
        yield np.take_along_axis(block, order, axis=1).astype(np.float64).T, np.cumsum(votes[order], axis=1).T


def columns_of_bins(sketch: Sketch) -> Columns:
    """Yield the columns of a sketch that keeps no updates, one at a time: in each other bins have votes."""
    assert sketch.counts is not None
    values = middles(sketch.counts.shape[1].bit_length() - 1 - 9)
    for counts in sketch.counts:
        there = np.flatnonzero(counts)
        yield values[there][:, None], np.cumsum(counts[there])[:, None]
