"""Aggregations inside compiled rounds, in JAX, with the formulas of `fedping.server_jobs.round.robust`.

A rule gets all updates of a round, shape (k, m), as float32, and their votes, shape (k,), which are 0 for rows without
a client. Each client is one row. Order statistics are found by bisection of the numbers' 32 bits, because XLA takes
many times longer to sort a matrix on processors; they are exact.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from importlib.util import find_spec
from typing import Any, TypeAlias

import numpy as np

from fedping.protocol.pipeline import (
    CenteredClip,
    Combination,
    GeometricMedian,
    Krum,
    Median,
    OwnAggregation,
    TrimmedMean,
)
from fedping.server_jobs.round import ACCUMULATORS, EQUAL, Finished, Kept, OfAll

Arrays: TypeAlias = dict[str, Any]

Rule: TypeAlias = Callable[[Any, Any, Arrays], tuple[Any, Arrays]]
"""Maps updates, votes and the server's state to a direction, shape (m,), and the new values in the state."""

OF_ALL_UPDATES = (Median, TrimmedMean, GeometricMedian, Krum, CenteredClip)
"""The rules that need all updates of a round."""


def needs_all(settings: Combination) -> bool:
    """Return whether an aggregation inside compiled rounds needs all updates of a round."""
    return isinstance(settings, (*OF_ALL_UPDATES, OwnAggregation))


class _NotInside:
    """A placeholder for values that compiled rounds don't have, such as a round's key; any use of it is an error."""

    def __getattr__(self, name: str) -> Any:
        raise TypeError(f"compiled rounds have no value for {name!r}")


@lru_cache(maxsize=64)
def own_finish(settings: OwnAggregation) -> OfAll | None:
    """Return an extension's function of all updates if JAX can compile it; None if NumPy has to run it.

    The compilation is tried on abstract arrays. The function may use the updates, their votes and the weights.
    """
    if find_spec("jax") is None:
        return None
    import jax
    from jax import numpy as jnp

    accumulator = ACCUMULATORS[OwnAggregation](settings)
    finish = accumulator.of_all
    if finish is None or "senders" in accumulator.asks:
        return None
    with jax.enable_x64(True):
        abstract: Any = jax.ShapeDtypeStruct
        shapes = abstract((5, 7), jnp.float32), abstract((5,), jnp.float64), abstract((7,), jnp.float64)
        try:
            found = jax.eval_shape(lambda *arrays: _by_own(finish, *arrays), *shapes)
        except Exception:  # of any kind: NumPy then runs the function, and reports its errors
            return None
    return finish if found.shape == (7,) else None


def _by_own(finish: OfAll, updates: Any, votes: Any, weights: Any) -> Any:
    """Return the direction of an extension's function.

    Raises:
        TypeError: the function keeps a state from round to round.
    """
    from jax import numpy as jnp

    nothing: Any = _NotInside()
    found: Any = finish(Kept(updates, votes), nothing, weights, {}, nothing)
    direction, state = (found.direction, found.state) if isinstance(found, Finished) else (found, {})
    if state:
        raise TypeError("compiled rounds keep nothing of an extension's aggregation")
    return jnp.asarray(direction).astype(jnp.float64)


CENTER, CENTERED = "center of the clip", "has a center"
"""Keys of the server's state: the previous round's direction, and whether there was a previous round."""


def rule_of(settings: Combination) -> Rule:
    """Return the rule of an aggregation that needs all updates (:func:`needs_all`)."""
    match settings:
        case Median():
            return lambda updates, votes, state: (median_of(updates, votes), {})
        case TrimmedMean():
            return lambda updates, votes, state: (trimmed_mean_of(updates, votes, settings.share), {})
        case GeometricMedian():
            return lambda updates, votes, state: (geometric_median_of(updates, votes, settings), {})
        case Krum():
            return lambda updates, votes, state: (krum_of(updates, votes, settings), {})
        case OwnAggregation():
            finish = own_finish(settings)
            assert finish is not None
            return lambda updates, votes, state: (_by_own(finish, updates, votes, state["weights"]), {})
        case _:
            assert isinstance(settings, CenteredClip)
            return lambda updates, votes, state: centered_clip_of(updates, votes, state, settings)


def first_state_of(settings: Combination, m: int) -> Arrays:
    """Return a rule's part of the server's state before the first round."""
    return {CENTER: np.zeros(m), CENTERED: np.zeros(())} if isinstance(settings, CenteredClip) else {}


def _keys(values: Any) -> Any:
    """Return 32-bit whole numbers that have the same order as these float32 numbers."""
    from jax import lax
    from jax import numpy as jnp

    bits = lax.bitcast_convert_type(values, jnp.uint32)
    return jnp.where(bits >> 31 > 0, ~bits, bits | jnp.uint32(1 << 31))


def _values(keys: Any) -> Any:
    """Return the float32 numbers of :func:`_keys`, in double precision."""
    from jax import lax
    from jax import numpy as jnp

    bits = jnp.where(keys >> 31 > 0, keys & jnp.uint32((1 << 31) - 1), ~keys)
    return lax.bitcast_convert_type(bits, jnp.float32).astype(jnp.float64)


def _summed(weights: Any, rows: Any) -> Any:
    """Return the weighted sum of rows, shape (m,), in double precision.

    It is computed as a product, because XLA's sum over the first axis takes 37 times as long on a processor (20
    clients, 25,450 weights).
    """
    from jax import numpy as jnp

    return weights @ rows.astype(jnp.float64)


def _votes_below(keys: Any, votes: Any, bound: Any) -> Any:
    return _summed(votes, keys < bound)


def _largest(keys: Any, votes: Any, is_low: Callable[[Any], Any]) -> Any:
    """Return each column's largest key below which the sum of votes is low, shape (m,).

    Including the votes of that key itself, the sum is no longer low.
    """
    from jax import lax
    from jax import numpy as jnp

    def bit(number: Any, found: Any) -> Any:
        more = found | (jnp.uint32(1) << (jnp.uint32(31) - number.astype(jnp.uint32)))
        return jnp.where(is_low(_votes_below(keys, votes, more)), more, found)

    return lax.fori_loop(0, 32, bit, jnp.zeros(keys.shape[1], jnp.uint32))


def median_of(updates: Any, votes: Any) -> Any:
    """Return the weighted median of each column; between two values, their mean."""
    from jax import numpy as jnp

    keys, half = _keys(updates), jnp.sum(votes) / 2
    low = _largest(keys, votes, lambda below: below < half * (1 - EQUAL))
    high = _largest(keys, votes, lambda below: below < half * (1 + EQUAL))
    one, other = _values(low), _values(high)
    return jnp.where(low == high, one, (one + other) / 2)


def trimmed_mean_of(updates: Any, votes: Any, share: float) -> Any:
    """Return the mean of each column without ``share`` of the votes at each end; votes partly inside count in part."""
    from jax import numpy as jnp

    keys, total = _keys(updates), jnp.sum(votes)
    low, high = share * total, (1 - share) * total
    off = EQUAL * (high - low)
    first = _largest(keys, votes, lambda below: below <= low + off)
    last = _largest(keys, votes, lambda below: below < high - off)
    inner = (keys > first) & (keys < last)
    between = _summed(votes, jnp.where(inner, updates, 0.0))
    of_first = (_summed(votes, keys <= first) - low) * _values(first)
    of_last = (high - _votes_below(keys, votes, last)) * _values(last)
    return jnp.where(first == last, _values(first), (between + of_first + of_last) / (high - low))


def _median_of_few(values: Any, votes: Any) -> Any:
    """Return the weighted median of numbers in double precision, shape (k,)."""
    from jax import numpy as jnp

    order = jnp.argsort(jnp.where(votes > 0, values, jnp.inf))
    below, half = jnp.cumsum(votes[order]), jnp.sum(votes) / 2
    one, other = (values[order][jnp.argmax(below >= half * share)] for share in (1 - EQUAL, 1 + EQUAL))
    return (one + other) / 2


def _distances(updates: Any, center: Any) -> Any:
    from jax import numpy as jnp

    return jnp.sqrt(jnp.sum(jnp.square(updates.astype(jnp.float64) - center), axis=1))


def _weighted_mean(updates: Any, weights: Any) -> Any:
    from jax import numpy as jnp

    return _summed(weights / jnp.sum(weights), updates)


def geometric_median_of(updates: Any, votes: Any, settings: GeometricMedian) -> Any:
    """Return an approximation of the point with the smallest weighted sum of distances."""
    from jax import lax
    from jax import numpy as jnp

    begin = median_of(updates, votes)
    apart = _distances(updates, begin)
    scale = _median_of_few(apart, votes)

    def goes_on(carry: Any) -> Any:
        number, _, _, moved = carry
        return (number < settings.iterations) & (moved > 1e-9 * scale)

    def step(carry: Any) -> Any:
        number, center, apart, _ = carry
        pull = votes / jnp.maximum(apart, settings.smoothing * jnp.where(scale > 0, scale, 1.0))
        there = _weighted_mean(updates, pull)
        return number + 1, there, _distances(updates, there), jnp.sqrt(jnp.sum(jnp.square(there - center)))

    found = lax.while_loop(goes_on, step, (0, begin, apart, jnp.where(scale > 0, jnp.inf, 0.0)))[1]
    return jnp.where(scale > 0, found, begin)


def krum_of(updates: Any, votes: Any, settings: Krum) -> Any:
    """Return the mean of the ``keep`` updates with the nearest neighbours by squared distance.

    Distances are computed with products, in double precision, of differences from the mean.
    """
    from jax import numpy as jnp

    there, total = votes > 0, jnp.sum(votes)
    usual = total / jnp.maximum(jnp.sum(there), 1)
    wanted = jnp.maximum((1 - settings.hostile) * total - 2 * usual, usual)
    points = jnp.where(there[:, None], updates.astype(jnp.float64) - _weighted_mean(updates, votes), 0.0)
    squares = jnp.sum(jnp.square(points), axis=1)
    apart = jnp.maximum(squares[:, None] + squares - 2 * jnp.matmul(points, points.T, precision="highest"), 0.0)
    far = jnp.where(there & ~jnp.eye(len(votes), dtype=bool), apart, jnp.inf)
    order = jnp.argsort(far, axis=1)
    sorted_ = jnp.take_along_axis(far, order, axis=1)
    others = jnp.where(jnp.isfinite(sorted_), votes[order], 0.0)
    parts = jnp.diff(jnp.minimum(jnp.cumsum(others, axis=1), wanted), prepend=0.0, axis=1)
    scores = jnp.sum(jnp.where(parts > 0, sorted_ * parts, 0.0), axis=1)
    best = jnp.argsort(jnp.where(there, scores, jnp.inf))
    unlikely_hostile = jnp.cumsum(votes[best]) <= (1 - settings.hostile) * total * (1 + EQUAL)
    most = jnp.maximum(jnp.sum(unlikely_hostile & there[best]), 1)
    rank = jnp.zeros(len(votes), jnp.int64).at[best].set(jnp.arange(len(votes)))
    return _weighted_mean(updates, jnp.where(rank < jnp.minimum(settings.keep, most), votes, 0.0))


def centered_clip_of(updates: Any, votes: Any, state: Arrays, settings: CenteredClip) -> tuple[Any, Arrays]:
    """Return the mean of updates clipped around the previous round's direction, and the state for the next round."""
    from jax import lax
    from jax import numpy as jnp

    def nearer(_: Any, center: Any) -> Any:
        apart = _distances(updates, center)
        kept = jnp.minimum(1.0, settings.radius / jnp.where(apart > 0, apart, 1.0)) * (votes / jnp.sum(votes))
        return center + _summed(kept, updates.astype(jnp.float64) - center)

    before, has_one = state[CENTER], state[CENTERED] > 0
    center = lax.fori_loop(0, settings.iterations, nearer, before)
    direction = jnp.where(has_one, settings.beta * before + (1.0 - settings.beta) * center, center)
    return direction, {CENTER: direction, CENTERED: jnp.ones(())}
