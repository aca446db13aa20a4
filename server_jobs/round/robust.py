"""Aggregations that a minority of clients cannot move at will, one point a client.

Each keeps the updates of a round and is a pure function of points and votes. A client's point is the mean of its pings'
updates by their votes, and has all of its votes: however many pings it sends, it is one point. "Most" is always most of
the votes.

Distances and means are summed in float64 and in a fixed order, without matrix products, whose last bits would depend on
the processor. No number that a client can send overflows: the squares of the largest float32 are 1e77.

Median and trimmed mean look at each weight on its own (:class:`Sketch`). As long as the updates of a shard fit in
memory, they are kept, and the result is exact. Beyond that, the votes for each weight are counted in bins: by sign,
exponent and the first bits of the mantissa of the float32 number. A number is then known to the relative error of half
a bin, 2^-(bits + 1): with 22 weights 0.8 %. The more weights, the fewer bits fit; beyond 512 weights there are none,
and clients are left out by lot instead. In bins pings count with their own votes, not as one point a client.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from fedping.protocol.landing import SHARDS
from fedping.protocol.pipeline import CenteredClip, GeometricMedian, Krum, Median, TrimmedMean
from fedping.protocol.study import Line
from fedping.server_jobs.optimize.transformation import Arrays, Vector
from fedping.server_jobs.round.accumulator import (
    ACCUMULATORS,
    Accumulator,
    Finished,
    Kept,
    Sent,
    Updates,
    WithMoments,
    per_client,
    points_of,
    room_for_all,
    subkey,
    with_moments,
)
from fedping.server_jobs.round.clipping import norms_of

EQUAL = 1e-9
"""Sums of votes that differ by this share are equal: those of 1/n, n times over, are not quite 1."""

MOST_POINTS = 4096
"""Clients that Krum compares at most, each with each; of more, a round leaves some out by lot."""

MOST_DIFFERENCES = 2**32
"""Numbers that Krum subtracts from each other at most, which is what bounds the clients of a long model."""

_AT_ONCE = 2**20
"""Doubles of a block that is worked on at a time."""


@ACCUMULATORS.of(Median)
def median(_: Median) -> Accumulator[WithMoments[Sketch]]:
    """Return the accumulator of the median of each weight on its own."""
    return of_columns(_medians)


@ACCUMULATORS.of(TrimmedMean)
def trimmed_mean(settings: TrimmedMean) -> Accumulator[WithMoments[Sketch]]:
    """Return the accumulator of the mean of each weight on its own without the ends."""
    return of_columns(partial(_trimmed_means, share=settings.share))


@ACCUMULATORS.of(GeometricMedian)
def geometric_median(settings: GeometricMedian) -> Accumulator[WithMoments[tuple[Sent, ...]]]:
    """Return the accumulator of the point with the least sum of distances."""

    def finish(kept: Kept, line: Line, weights: Vector, state: Arrays, key: bytes) -> Finished:
        return Finished(geometric_median_of(kept.updates, kept.votes, settings))

    return per_client(finish)


@ACCUMULATORS.of(Krum)
def krum(settings: Krum) -> Accumulator[WithMoments[tuple[Sent, ...]]]:
    """Return the accumulator of the updates that are nearest to their neighbours."""

    def finish(kept: Kept, line: Line, weights: Vector, state: Arrays, key: bytes) -> Finished:
        return Finished(krum_of(kept.updates, kept.votes, settings))

    def room(m: int) -> int:
        return max(1, min(MOST_POINTS, math.isqrt(MOST_DIFFERENCES // m)) // SHARDS)

    return per_client(finish, room)


@ACCUMULATORS.of(CenteredClip)
def centered_clip(settings: CenteredClip) -> Accumulator[WithMoments[tuple[Sent, ...]]]:
    """Return the accumulator of what is near the direction of the round before."""

    def finish(kept: Kept, line: Line, weights: Vector, state: Arrays, key: bytes) -> Finished:
        before = state.get("center")
        center = np.zeros_like(weights) if before is None else before
        found = centered_clip_of(kept.updates, kept.votes, center, settings)
        if before is not None:
            found = settings.beta * before + (1.0 - settings.beta) * found
        return Finished(found, {"center": found})

    return per_client(finish)


def bucketed(inner: Accumulator[Any], size: int) -> Accumulator[WithMoments[tuple[Sent, ...]]]:
    """Return an accumulator of the means of ``size`` clients each, who are drawn by the round's key.

    Honest clients that differ much become alike, while hostile ones spoil at most as many buckets as they are. The last
    bucket has what is left.
    """

    def finish(kept: Kept, line: Line, weights: Vector, state: Arrays, key: bytes) -> Finished:
        buckets = buckets_of(kept.updates, kept.votes, size, key)
        number = np.arange(len(buckets.votes), dtype=np.uint64)
        known = {"clients": np.stack([number, number], axis=1), "shares": np.ones(len(number))}
        total = inner.add(inner.init(line), *buckets, **{name: known[name] for name in inner.asks})
        return inner.finish(total, line, weights, state, key)

    def room(m: int) -> int:
        most = inner.room(m)
        return room_for_all(m) if most is None else size * most

    return per_client(finish, room)


def buckets_of(points: NDArray[np.floating], votes: Vector, size: int, key: bytes) -> Kept:
    """Return the means of ``size`` points each by their votes, and the sums of these, drawn by the key."""
    drawn = np.random.Philox(key=int.from_bytes(subkey(key, "bucketing")[:16], "little")).random_raw(len(points))
    order = np.argsort(drawn, kind="stable")
    bucket = (np.arange(len(order)) // size).astype(np.uint64)
    return points_of(np.asarray(points[order], np.float32), votes[order], np.stack([bucket, bucket], axis=1))


def median_of(points: NDArray[np.floating], votes: Vector) -> Vector:
    """Return the weighted median of each column of (k, m) points, shape (m,); in the middle of two where both are."""
    return _medians(columns_of(points, votes), np.empty(points.shape[1]))


def trimmed_mean_of(points: NDArray[np.floating], votes: Vector, share: float) -> Vector:
    """Return the mean of each column of (k, m) points but for ``share`` of the votes at each end, shape (m,).

    Where a vote is partly within it counts in part, so that the mean has no jumps.
    """
    return _trimmed_means(columns_of(points, votes), np.empty(points.shape[1]), share=share)


def _medians(columns: Columns, found: Vector) -> Vector:
    done = 0
    for values, below in columns:
        half, at = below[-1] / 2, np.arange(values.shape[1])
        low, high = ((below < half * share).sum(axis=0) for share in (1 - EQUAL, 1 + EQUAL))
        one, other = values[low, at], values[high, at]
        found[done : done + len(at)] = np.where(low == high, one, (one + other) / 2)
        done += len(at)
    return found


def _trimmed_means(columns: Columns, found: Vector, *, share: float) -> Vector:
    every = ((values, below) for block in columns for values, below in zip(block[0].T, block[1].T, strict=True))
    for column, (values, below) in enumerate(every):
        low, high = share * below[-1], (1 - share) * below[-1]
        for end in (low, high):  # of a number at the cut nothing is left, for who knows how large it is
            below = np.where(np.abs(below - end) <= EQUAL * (high - low), end, below)
        inside = np.diff(np.clip(below, low, high), prepend=low)
        used = np.flatnonzero(inside > 0)
        found[column] = (values[used] * (inside[used] / inside.sum())).sum()
    return found


def geometric_median_of(points: NDArray[np.floating], votes: Vector, settings: GeometricMedian) -> Vector:
    """Return about the point with the least sum of distances to (k, m) points by votes, shape (m,).

    It begins at the median of each column, which a minority cannot move far, and ends where a step is a billionth of
    the median distance, or after the iterations that are set.
    """
    center = median_of(points, votes)
    apart = _distances(points, center)
    scale = float(median_of(apart[:, None], votes)[0])
    if scale == 0.0:  # most of the votes are at the center, which is then the point
        return center
    for _ in range(settings.iterations):
        pull = votes / np.maximum(apart, settings.smoothing * scale)
        there = _weighted_mean(points, pull)
        moved = float(np.sqrt(np.square(there - center).sum()))
        center = there
        if moved <= 1e-9 * scale:
            break
        apart = _distances(points, center)
    return center


def krum_of(points: NDArray[np.floating], votes: Vector, settings: Krum) -> Vector:
    """Return the mean of the ``keep`` of (k, m) points whose neighbours are nearest by squared distance, shape (m,).

    With one vote each and f hostile of k, the neighbours are the k - f - 2 nearest, as published. By votes they are the
    nearest that have as many votes, the last of them in part; at least one has to be there. Of few points fewer than
    ``keep`` are taken: no more than have the votes that are not hostile, or the mean would have the hostile in it.
    """
    k = len(points)
    usual = votes.sum() / k
    wanted = max((1 - settings.hostile) * votes.sum() - 2 * usual, usual)
    scores = np.zeros(k)
    for number in range(k):
        others = np.delete(np.square(_distances(points, points[number].astype(np.float64))), number)
        order = np.argsort(others, kind="stable")
        within = np.diff(np.minimum(np.cumsum(np.delete(votes, number)[order]), wanted), prepend=0.0)
        scores[number] = (others[order] * within).sum()
    order = np.argsort(scores, kind="stable")
    honest = (1 - settings.hostile) * votes.sum() * (1 + EQUAL)
    most = max(1, int((np.cumsum(votes[order]) <= honest).sum()))
    best = np.sort(order[: min(settings.keep, most)])
    return _weighted_mean(points[best], votes[best])


def centered_clip_of(points: NDArray[np.floating], votes: Vector, center: Vector, settings: CenteredClip) -> Vector:
    """Return where a center is after it has gone to the mean of (k, m) points, each brought to it, shape (m,).

    A point that is farther than the radius from the center is brought to that distance. However far points are, the
    center goes no farther than the radius in an iteration.
    """
    for _ in range(settings.iterations):
        apart = _distances(points, center)
        kept = np.minimum(1.0, settings.radius / np.where(apart > 0, apart, 1.0)) * (votes / votes.sum())
        center = center + sum(
            ((block - center) * kept[low : low + len(block), None]).sum(axis=0) for low, block in _blocks(points)
        )
    return center


def _blocks(points: NDArray[np.floating]) -> Iterator[tuple[int, NDArray[np.float64]]]:
    """Yield the points in order as doubles, some at a time, and the number of the first."""
    rows = max(1, _AT_ONCE // points.shape[1])
    for low in range(0, len(points), rows):
        yield low, points[low : low + rows].astype(np.float64)


def _distances(points: NDArray[np.floating], center: Vector) -> Vector:
    return np.concatenate([norms_of(block - center) for _, block in _blocks(points)])


def _weighted_mean(points: NDArray[np.floating], weights: Vector) -> Vector:
    """Return the mean, shape (m,); weights are made shares first, so that no product is large."""
    shares = weights / weights.sum()
    found = np.zeros(points.shape[1])
    for low, block in _blocks(points):
        found += (block * shares[low : low + len(block), None]).sum(axis=0)
    return found


LEAST_BITS, MOST_BITS = 2, 10
"""Bits of the mantissa that are looked at: fewer are no sketch of anything, more are of no use."""

Columns: TypeAlias = Iterable[tuple[NDArray[np.float64], NDArray[np.float64]]]
"""Of some weights at a time the values in order, and the sum of votes up to each, both of shape (k, weights)."""

_SORTED_AT_ONCE = 2**17
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
    width = max(1, _SORTED_AT_ONCE // max(1, len(points)))
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
