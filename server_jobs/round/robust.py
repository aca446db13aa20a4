"""Robust aggregation rules, whose result a minority of clients can't move arbitrarily.

Each rule keeps the updates of a round, and is a function of points and votes. A client is one point for any number of
pings: the weighted mean of its pings' updates, with all its votes. "Most" always refers to votes.

Distances and means are summed in float64 and in a fixed order, without matrix products, whose last bits depend on the
processor; products are only used to exclude irrelevant distances. Numbers that clients can send don't overflow: the
square of the largest float32 is 1e77.

Median and trimmed mean treat each weight separately (:class:`Sketch`). If the updates of a shard fit into memory, they
are kept, and the result is exact. Otherwise the votes for each weight are counted in bins, by sign, exponent and the
first bits of the mantissa of the float32 number. The relative error is then half a bin, 2^-(bits + 1): 0.8 % with 22
weights. The more weights, the fewer bits fit. Above 512 weights, no bits fit, and randomly chosen clients are left
out instead. In bins, each ping counts with its votes; clients aren't merged to points.
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
"""Relative difference up to which sums of votes count as equal, because n times 1/n isn't exactly 1."""

MOST_POINTS = 4096
"""Maximum clients that Krum compares pairwise; if there are more, a round leaves out randomly chosen clients."""

MOST_DIFFERENCES = 2**32
"""Maximum number of subtractions in Krum, which limits the clients of a large model."""

_AT_ONCE = 2**20
"""Number of doubles that are processed at a time."""


@ACCUMULATORS.of(Median)
def median(_: Median) -> Accumulator[WithMoments[Sketch]]:
    """Return the accumulator of the median of each weight."""
    return of_columns(_medians)


@ACCUMULATORS.of(TrimmedMean)
def trimmed_mean(settings: TrimmedMean) -> Accumulator[WithMoments[Sketch]]:
    """Return the accumulator of the trimmed mean of each weight."""
    return of_columns(partial(_trimmed_means, share=settings.share))


@ACCUMULATORS.of(GeometricMedian)
def geometric_median(settings: GeometricMedian) -> Accumulator[WithMoments[tuple[Sent, ...]]]:
    """Return the accumulator of the geometric median, the point with the smallest sum of distances."""

    def finish(kept: Kept, line: Line, weights: Vector, state: Arrays, key: bytes) -> Finished:
        return Finished(geometric_median_of(kept.updates, kept.votes, settings))

    return per_client(finish)


@ACCUMULATORS.of(Krum)
def krum(settings: Krum) -> Accumulator[WithMoments[tuple[Sent, ...]]]:
    """Return the accumulator of the mean of the updates that are closest to their neighbours."""

    def finish(kept: Kept, line: Line, weights: Vector, state: Arrays, key: bytes) -> Finished:
        return Finished(krum_of(kept.updates, kept.votes, settings))

    def room(m: int) -> int:
        return max(1, min(MOST_POINTS, math.isqrt(MOST_DIFFERENCES // m)) // SHARDS)

    return per_client(finish, room)


@ACCUMULATORS.of(CenteredClip)
def centered_clip(settings: CenteredClip) -> Accumulator[WithMoments[tuple[Sent, ...]]]:
    """Return the accumulator of the mean of updates that are clipped around the previous round's direction."""

    def finish(kept: Kept, line: Line, weights: Vector, state: Arrays, key: bytes) -> Finished:
        before = state.get("center")
        center = np.zeros_like(weights) if before is None else before
        direction = centered_clip_of(kept.updates, kept.votes, center, settings)
        if before is not None:
            direction = settings.beta * before + (1.0 - settings.beta) * direction
        return Finished(direction, {"center": direction})

    return per_client(finish)


def bucketed(inner: Accumulator[Any], size: int) -> Accumulator[WithMoments[tuple[Sent, ...]]]:
    """Return an accumulator of the means of buckets of ``size`` clients each, chosen by the round's key.

    Buckets reduce the differences between honest clients, while n hostile clients affect at most n buckets. The last
    bucket has the remaining clients.
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
    """Return the weighted means of buckets of ``size`` points, chosen by the key, and the sums of their votes."""
    drawn = np.random.Philox(key=int.from_bytes(subkey(key, "bucketing")[:16], "little")).random_raw(len(points))
    order = np.argsort(drawn, kind="stable")
    bucket = (np.arange(len(order)) // size).astype(np.uint64)
    return points_of(np.asarray(points[order], np.float32), votes[order], np.stack([bucket, bucket], axis=1))


def median_of(points: NDArray[np.floating], votes: Vector) -> Vector:
    """Return the weighted median of each column of (k, m) points, shape (m,), or the mean of two middle values."""
    return _medians(columns_of(points, votes), np.empty(points.shape[1]))


def trimmed_mean_of(points: NDArray[np.floating], votes: Vector, share: float) -> Vector:
    """Return the mean of each column of (k, m) points without ``share`` of the votes at each end, shape (m,).

    A vote on the border counts in part, so that the mean is continuous.
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
    done = 0
    for block in columns:
        values, below = block[0].T, block[1].T
        low, high = share * below[:, -1:], (1 - share) * below[:, -1:]
        for end in (low, high):  # a value at the cut counts as outside, because it may have any size
            below = np.where(np.abs(below - end) <= EQUAL * (high - low), end, below)
        inside = np.diff(np.clip(below, low, high), prepend=low, axis=1)
        parts, used = inside / inside.sum(axis=1, keepdims=True), inside > 0
        if (used == used[0]).all():  # as with equal votes: all columns at once, each added up as if it were alone
            at = np.flatnonzero(used[0])
            found[done : done + len(values)] = (np.take(values, at, axis=1) * np.take(parts, at, axis=1)).sum(axis=1)
        else:
            for number, (value, part, there) in enumerate(zip(values, parts, used, strict=True), done):
                at = np.flatnonzero(there)
                found[number] = (value[at] * part[at]).sum()
        done += len(values)
    return found


def geometric_median_of(points: NDArray[np.floating], votes: Vector, settings: GeometricMedian) -> Vector:
    """Return approximately the point with the smallest weighted sum of distances to (k, m) points, shape (m,).

    Iterations start at the median of each column, which a minority can't move far. They end if a step is at most a
    billionth of the median distance, or at the maximum number in the settings.
    """
    center = median_of(points, votes)
    apart = _distances(points, center)
    scale = float(median_of(apart[:, None], votes)[0])
    if scale == 0.0:  # most of the votes are at the center, which is then the median
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
    """Return the mean of the ``keep`` points of (k, m) with the nearest neighbours by squared distance, shape (m,).

    With one vote each and f hostile points of k, the neighbours are the k - f - 2 nearest points, as published. With
    other votes, they are the nearest points with the same share of votes, at least one point, and the last one in
    part. If there are few points, fewer than ``keep`` are used: their votes together are at most the share that isn't
    hostile.
    """
    k = len(points)
    usual = votes.sum() / k
    wanted = max((1 - settings.hostile) * votes.sum() - 2 * usual, usual)
    scores = _scores(points, votes, wanted, settings)
    order = np.argsort(scores, kind="stable")
    most = max(1, _unlikely_hostile(votes[order], settings))
    best = np.sort(order[: min(settings.keep, most)])
    return _weighted_mean(points[best], votes[best])


def _scores(points: NDArray[np.floating], votes: Vector, wanted: float, settings: Krum) -> Vector:
    """Return Krum's scores, shape (k,), of which the ``keep`` smallest are certain.

    Matrix products are fast, but their last bits depend on the processor. So they are only used to find points whose
    scores are certainly too large, which get infinity. The other scores are computed without them. If all votes are
    equal, the order doesn't matter, and points that are certainly among the first get minus infinity.
    """
    k = len(points)
    scores, off = _rough_scores(points, votes, wanted)
    least, most = scores - off, scores + off
    first, equal = min(settings.keep, k), bool((votes == votes[0]).all())
    if equal:
        first = min(first, max(1, _unlikely_hostile(votes, settings)))
    out = least > np.partition(most, first - 1)[first - 1]  # at least this many are certainly smaller
    within = equal & (most < np.partition(least, first)[first] if first < k else ~out)
    scores[out], scores[within] = np.inf, -np.inf
    for number in np.flatnonzero(~out & ~within):
        others = np.delete(np.square(_distances(points, points[number].astype(np.float64))), number)
        order = np.argsort(others, kind="stable")
        parts = np.diff(np.minimum(np.cumsum(np.delete(votes, number)[order]), wanted), prepend=0.0)
        scores[number] = (others[order] * parts).sum()
    return scores


def _unlikely_hostile(votes: Vector, settings: Krum) -> int:
    """Return the number of first points whose votes together are at most the share that isn't hostile."""
    return int((np.cumsum(votes) <= (1 - settings.hostile) * votes.sum() * (1 + EQUAL)).sum())


def _rough_scores(points: NDArray[np.floating], votes: Vector, wanted: float) -> tuple[Vector, Vector]:
    """Return Krum's scores by matrix products, and a bound on the error of each, shape (k,) both.

    The rounding error of |a|² + |b|² - 2 a · b over m weights is at most about m times the machine's precision times
    |a|² + |b|². A score is the smallest sum of distances with the wanted votes, so its error is at most the sum of
    the distances' errors.
    """
    k, m = points.shape
    center, products, squares = _weighted_mean(points, votes), np.zeros((k, k)), np.zeros(k)
    width = max(1, _AT_ONCE // k)
    for low in range(0, m, width):
        part = points[:, low : low + width] - center[low : low + width]
        products += part @ part.T
        squares += np.square(part).sum(axis=1)
    scores, rows = np.zeros(k), max(1, _AT_ONCE // k)
    for low in range(0, k, rows):
        apart = squares[low : low + rows, None] + squares - 2.0 * products[low : low + rows]
        own = np.arange(len(apart))
        apart[own, low + own] = np.inf  # the point itself comes last, and is left out
        order = np.argsort(apart, axis=1)[:, :-1]
        within = np.diff(np.minimum(np.cumsum(votes[order], axis=1), wanted), prepend=0.0, axis=1)
        scores[low : low + rows] = (np.maximum(np.take_along_axis(apart, order, axis=1), 0.0) * within).sum(axis=1)
    return scores, 8 * (m + k + 16) * np.finfo(np.float64).eps * wanted * (squares + squares.max(initial=0.0))


def centered_clip_of(points: NDArray[np.floating], votes: Vector, center: Vector, settings: CenteredClip) -> Vector:
    """Return a center after iterations towards the mean of (k, m) clipped points, shape (m,).

    A point beyond the radius is moved to the radius, so an iteration moves the center by at most the radius.
    """
    for _ in range(settings.iterations):
        apart = _distances(points, center)
        kept = np.minimum(1.0, settings.radius / np.where(apart > 0, apart, 1.0)) * (votes / votes.sum())
        center = center + sum(
            ((block - center) * kept[low : low + len(block), None]).sum(axis=0) for low, block in _blocks(points)
        )
    return center


def _blocks(points: NDArray[np.floating]) -> Iterator[tuple[int, NDArray[np.float64]]]:
    """Yield the points as doubles in blocks, each with the number of its first point."""
    rows = max(1, _AT_ONCE // points.shape[1])
    for low in range(0, len(points), rows):
        yield low, points[low : low + rows].astype(np.float64)


def _distances(points: NDArray[np.floating], center: Vector) -> Vector:
    return np.concatenate([norms_of(block - center) for _, block in _blocks(points)])


def _weighted_mean(points: NDArray[np.floating], weights: Vector) -> Vector:
    """Return the weighted mean, shape (m,). Weights are normalised first, to avoid large products."""
    shares = weights / weights.sum()
    mean = np.zeros(points.shape[1])
    for low, block in _blocks(points):
        mean += (block * shares[low : low + len(block), None]).sum(axis=0)
    return mean


LEAST_BITS, MOST_BITS = 2, 10
"""Minimum and maximum bits of the mantissa that select a bin."""

Columns: TypeAlias = Iterable[tuple[NDArray[np.float64], NDArray[np.float64]]]
"""Blocks of weights: for each, the sorted values and the cumulative votes, both of shape (k, weights)."""

_SORTED_AT_ONCE = 2**17
"""Number of values that are sorted at a time."""


@dataclass(frozen=True, slots=True)
class Sketch:
    """Kept updates, ``rows`` in total, and the votes of other updates by bin, shape (m, bins), or None."""

    sent: tuple[Sent, ...] = ()
    rows: int = 0
    counts: NDArray[np.float64] | None = None


def of_columns(finish: Callable[[Columns, Vector], Vector]) -> Accumulator[WithMoments[Sketch]]:
    """Return an accumulator that finishes with a function of each weight's values, exact or in bins.

    Args:
        finish: a function of the columns and a vector; it writes the result into the vector and returns it.
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
        direction = np.zeros(line.spec.m)
        if sketch.counts is not None:
            return Finished(finish(columns_of_bins(sketch), direction))
        if not sketch.sent:
            return Finished(direction)
        return Finished(finish(columns_of(*points_of(*map(np.concatenate, zip(*sketch.sent, strict=True)))), direction))

    def room(m: int) -> int | None:
        return room_for_all(m) if bits_for(m) is None else None

    return with_moments(lambda _: Sketch(), add, merge, finished, room, ("clients",))


def bits_for(m: int) -> int | None:
    """Return the number of mantissa bits that fit for m weights; None if no bits fit."""
    bits = room_for_all(2 * m).bit_length() - 1 - 9
    return min(bits, MOST_BITS) if bits >= LEAST_BITS else None


def folded(sketch: Sketch, m: int) -> Sketch:
    """Return a sketch with all votes in bins, without updates."""
    bits = bits_for(m)
    assert bits is not None
    counts = np.zeros((m, 1 << (9 + bits))) if sketch.counts is None else sketch.counts.copy()
    first = np.arange(m) * counts.shape[1]
    for each in sketch.sent:
        where, votes = bins_of(each.updates, bits) + first, np.broadcast_to(each.votes[:, None], each.updates.shape)
        np.add.at(counts.reshape(-1), where, votes)
    return Sketch(counts=counts)


def bins_of(values: NDArray[np.float32], bits: int) -> NDArray[np.int64]:
    """Return the bin of each number. Bins have the order of the numbers; the lowest is 0."""
    words = np.ascontiguousarray(values).view(np.int32).astype(np.int64)
    size = (words & 0x7FFFFFFF) >> (23 - bits)
    half = 1 << (8 + bits)
    return np.where(values < 0, half - 1 - size, half + size)


def middles(bits: int) -> Vector:
    """Return the value used for each bin: its middle, or zero for the bins of the smallest numbers."""
    half = 1 << (8 + bits)
    words = (np.arange(half, dtype=np.int64) << (23 - bits)) + (1 << (22 - bits))
    words[0] = 0
    words[255 << bits :] = 0  # bins without finite numbers
    above = words.astype(np.int32).view(np.float32).astype(np.float64)
    return np.concatenate([-above[::-1], above])


def columns_of(points: NDArray[np.floating], votes: Vector) -> Columns:
    """Yield the columns of (k, m) points in blocks."""
    width = max(1, _SORTED_AT_ONCE // max(1, len(points)))
    for low in range(0, points.shape[1], width):
        block = np.ascontiguousarray(points[:, low : low + width].T)
        order = np.argsort(block, axis=1, kind="stable")
        yield np.take_along_axis(block, order, axis=1).astype(np.float64).T, np.cumsum(votes[order], axis=1).T


def columns_of_bins(sketch: Sketch) -> Columns:
    """Yield the columns of a sketch without updates, one at a time, because their non-empty bins differ."""
    assert sketch.counts is not None
    values = middles(sketch.counts.shape[1].bit_length() - 1 - 9)
    for counts in sketch.counts:
        there = np.flatnonzero(counts)
        yield values[there][:, None], np.cumsum(counts[there])[:, None]
