"""Clipping of updates before aggregation, so that updates with a large norm have no larger influence.

The bound is a setting, or is computed from the norms of earlier rounds, because a stream needs it before the updates
arrive. The first round reads its updates twice: first to measure the norms, then to aggregate. To move the bound, an
attacker must control the share of clients given by the quantile, and can move it only by a bounded factor per round.
The first bound is chosen so that a share :data:`HOSTILE` of all clients can't raise it, even if most other clients
send only zeros. If attackers may have lowered it, it isn't kept, and the next round measures again.

Norms are counted in bins, 16 for each power of two, so a quantile is accurate to one part in 16, and the counts have
a fixed size. The first and the last bin also count all values beyond them.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from functools import reduce
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedping.protocol.pipeline import Clip, ClipByNorm, ClipByQuantile
from fedping.protocol.study import Line
from fedping.server_jobs.optimize.transformation import Arrays, Vector
from fedping.server_jobs.round.accumulator import Accumulator, Clipped, Finished, Updates, no_moments

BOUND = "clip.bound"
"""Name of the bound in the accumulator's state."""

FINE = 4
"""Number of the mantissa's bits that select a bin: 16 bins for each power of two."""

HOSTILE = 0.025
"""Assumed maximum share of hostile clients, which can't raise the first bound. Clients that send zeros count too."""

LOWEST, HIGHEST = -150, 140
"""Lowest and highest power of two with bins: the range of norms of two million float32 numbers."""

BINS = (HIGHEST - LOWEST) << FINE

_SMALLEST_SHARE = 1e-300
"""A number below any client's share."""

_SHIFT = 52 - FINE
_FIRST = (1023 + LOWEST) << FINE


def clipped(inner: Accumulator[Any], settings: Clip | None, bound: float | None) -> Accumulator[Clipped[Any]]:
    """Return an accumulator that clips updates before it passes them to another accumulator.

    Args:
        inner: the accumulator of the clipped updates.
        settings: the settings of the clipping.
        bound: the maximum norm in this round, if it isn't a setting.
    """
    carries = isinstance(settings, ClipByQuantile)
    at = limit(settings, bound)

    def init(line: Line) -> Clipped[Any]:
        assert at is not None, "the bound has not been measured"
        return Clipped(at, np.zeros(BINS + 1 if carries else 0), inner.init(line))

    def add(total: Clipped[Any], updates: Updates, votes: Vector, **asked: Any) -> Clipped[Any]:
        norms = asked["norms"]
        counts = total.norms + measured(norms, asked["shares"]) if carries else total.norms
        arguments = {name: asked[name] for name in inner.asks}
        own = inner.add(total.own, shortened(updates, norms, total.bound), votes, **arguments)
        return Clipped(total.bound, counts, own)

    def merge(a: Clipped[Any], b: Clipped[Any]) -> Clipped[Any]:
        return Clipped(a.bound, a.norms + b.norms, inner.merge(a.own, b.own))

    def finish(total: Clipped[Any], line: Line, weights: Vector, state: Arrays, key: bytes) -> Finished:
        own = {name: vector for name, vector in state.items() if name != BOUND}
        finished = inner.finish(total.own, line, weights, own, key)
        if line.pipeline.quorum is not None:
            finished = Finished(in_votes(finished.direction, total.bound, units_of(line)), finished.state)
        if not isinstance(settings, ClipByQuantile):
            return finished
        following = next_bound(settings, total.bound, total.norms)
        is_known = math.isfinite(following) and (BOUND in state or is_settled(settings, total.norms))
        bound_state = {BOUND: np.array([following])} if is_known else {}
        return Finished(finished.direction, {**finished.state, **bound_state})

    asks = tuple(dict.fromkeys((*inner.asks, "norms", *(("shares",) if carries else ()))))
    return Accumulator(init, add, merge, finish, lambda total: inner.moments(total.own), inner.room, asks)


def limit(settings: Clip | None, bound: float | None) -> float | None:
    """Return the norm at which a round clips, from the settings or the state; None without clipping."""
    if isinstance(settings, ClipByNorm):
        return settings.norm
    return bound if isinstance(settings, ClipByQuantile) else None


def measuring() -> Accumulator[Vector]:
    """Return an accumulator that only counts norms, for the first of two passes over the same updates."""
    return Accumulator(
        init=lambda _: np.zeros(BINS + 1),
        add=lambda total, updates, votes, shares, norms: total + measured(norms, shares),
        merge=lambda a, b: a + b,
        finish=lambda total, line, *_: Finished(np.zeros(line.spec.m)),
        moments=lambda _: no_moments(0),
        asks=("shares", "norms"),
    )


def bound_of(state: Arrays) -> float | None:
    """Return the norm at which this round clips, from an accumulator's state; None if it isn't there."""
    return float(state[BOUND][0]) if BOUND in state else None


def has_to_measure(line: Line, bound: float | None) -> bool:
    """Return whether a round has to measure its updates before it can clip them."""
    return isinstance(line.pipeline.clip, ClipByQuantile) and bound is None


def first_bound(line: Line, totals: Iterable[Vector]) -> float:
    """Return the norm at which the first round clips, from its shards' measured norms, in the shards' order.

    If nearly all clients sent zeros, the quantile is computed without the largest norms, which may be hostile; if no
    other norms remain, the smallest norm is used. The result is infinite if all updates were zero.
    """
    settings = line.pipeline.clip
    assert isinstance(settings, ClipByQuantile)
    norms = reduce(np.add, totals, np.zeros(BINS + 1))
    hostile, nonzero = _hostile_and_nonzero(norms)
    others = 1.0 if is_settled(settings, norms) else max(0.0, 1 - hostile / nonzero)
    norm = quantile(norms[:-1], settings.quantile * others)
    return math.inf if norm is None else settings.multiple * norm


def is_settled(settings: ClipByQuantile, norms: Vector) -> bool:
    """Return whether enough clients sent nonzero updates, so that hostile clients can't determine the first bound."""
    hostile, nonzero = _hostile_and_nonzero(norms)
    return nonzero == 0 or settings.quantile * (nonzero - hostile) >= hostile


def _hostile_and_nonzero(norms: Vector) -> tuple[float, float]:
    """Return the assumed number of hostile clients, and the number of clients with a nonzero update."""
    return HOSTILE * float(norms.sum()), float(norms[:-1].sum())


def next_bound(settings: ClipByQuantile, bound: float, norms: Vector) -> float:
    """Return the norm at which the next round clips, from this round's bound and norms; unchanged if all are zero."""
    norm = quantile(norms[:-1], settings.quantile)
    if norm is None:
        return bound
    return min(max(settings.multiple * norm, bound / settings.growth), bound * settings.growth)


def in_votes(direction: Vector, bound: float, units: Vector | None) -> Vector:
    """Return, for each weight, the minimum share of votes for its mean update, shape (m,), with its sign.

    A vote can move a single weight by at most the bound.
    """
    return (direction if units is None else direction * units) / bound


def units_of(line: Line) -> Vector | None:
    """Return the weights' factors in the clipped norm, shape (m,); None if there are no factors."""
    clip = line.pipeline.clip
    return line.spec.steps.start if isinstance(clip, ClipByQuantile) and clip.units == "step" else None


def norms_of(updates: Updates, units: Vector | None = None) -> Vector:
    """Return the Euclidean norm of each update, shape (k,). Its bits don't depend on the batch or the processor.

    With ``units``, shape (m,), updates are multiplied by them first.
    """
    squares = np.array(updates, dtype=np.float64, order="C")
    if units is not None:
        np.multiply(squares, units, out=squares)
    np.multiply(squares, squares, out=squares)
    return np.asarray(np.sqrt(np.add.reduce(squares, axis=1)))


def shortened(updates: Updates, norms: Vector, bound: float) -> Updates:
    """Return updates of the same type with norms of at most ``bound``. Larger updates keep their direction."""
    longer = norms > bound
    if not longer.any():
        return updates
    # In float64, and rounded once. Multiplying short updates by 1 is faster than selecting the long ones.
    factors = np.divide(bound, norms, out=np.ones(len(norms)), where=longer)
    return (updates * factors[:, None]).astype(updates.dtype)


def measured(norms: Vector, shares: Vector) -> Vector:
    """Return the sums of shares by norm bin, followed by the sum for norms of zero, shape (bins + 1,)."""
    return np.append(counted(norms, shares), np.where(norms > 0, 0.0, shares).sum())


def counted(norms: Vector, shares: Vector) -> Vector:
    """Return the sums of shares by norm bin, shape (bins,), without norms of zero."""
    bins = np.clip((norms.view(np.int64) >> _SHIFT) - _FIRST, 0, BINS - 1)
    return np.asarray(np.bincount(bins, np.where(norms > 0, shares, 0.0), BINS), np.float64)


def quantile(counts: Vector, share: float) -> float | None:
    """Return a norm that at least ``share`` of the counted norms don't exceed; None if the count is 0.

    It is the upper edge of a bin, so it is at most a sixteenth above the smallest such norm; for a share of 0, above
    the smallest norm.
    """
    reached = np.cumsum(counts)
    if reached[-1] == 0:
        return None
    return edge(int(np.searchsorted(reached, max(share * reached[-1], _SMALLEST_SHARE))))


def edge(number: int) -> float:
    """Return the exact upper edge of a bin."""
    bits: NDArray[np.int64] = np.array([(number + 1 + _FIRST) << _SHIFT])
    return float(bits.view(np.float64)[0])
