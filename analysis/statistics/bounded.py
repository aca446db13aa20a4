"""A confidence sequence for the difference of two means of bounded values, exact from the first client on.

For values in [0, 1] of mean m, and a fraction 0 < θ < 1, the products of 1 + θ (x / m - 1) over the clients so far are
a nonnegative martingale of expectation 1: the wealth of a bet that the mean is larger than m. So is their average over
several θ. It needs no order: value counts suffice. By Ville's inequality it ever reaches 1 / α with probability α at
most. Reflected values bet on a smaller mean, and the product of two arms' wealths bets on a difference; the common mean
is unknown, so the least product over all means counts. Source: Waudby-Smith and Ramdas, "Estimating means of bounded
random variables by betting" (2023), section 4; mixtures over θ instead of its predictable bets.
"""

from __future__ import annotations

import math
from typing import TypeAlias

import numpy as np
from scipy.special import logsumexp

from fedping.analysis.statistics.ranks import Estimate, Floats, ValueCounts, refuse_empty, refuse_level

Bounds: TypeAlias = tuple[float, float]

FRACTIONS: Floats = 2.0 ** (-np.arange(1, 27) / 2)
"""Betting fractions, shape (26,): from .71, which shows large effects in few clients, to 1e-4, for millions."""

_CELLS = 2**20
"""Numbers held at a time, which bounds the memory for any number of distinct values."""

_POINTS, _ZOOMS = 33, 4


def log_wealth(counts: ValueCounts, means: Floats) -> Floats:
    """Return the logarithm of the wealth of the bet that the mean is larger, which falls with the mean.

    Args:
        counts: one arm's values, in [0, 1].
        means: the means to bet against, in [0, 1], shape (k,).

    Returns:
        Shape (k,); infinite where a value is impossible under the mean.
    """
    found = np.empty(len(means))
    for begun in range(0, len(means), portion := max(1, _CELLS // (len(FRACTIONS) * len(counts.values)))):
        against = means[begun : begun + portion, None, None]
        with np.errstate(divide="ignore", invalid="ignore"):
            ratio = np.where(counts.values > 0, counts.values / against, 0.0)  # 0 / 0: the mean 0 allows a value of 0
        logs = np.log1p(FRACTIONS[:, None] * (ratio - 1)) @ counts.counts.astype(np.float64)
        # Under the mean 0 only 0 is possible, and under no mean is a bet worth more than its expectation there.
        logs = np.where(against[..., 0] > 0, logs, math.inf if counts.values[-1] > 0 else 0.0)
        found[begun : begun + portion] = logsumexp(logs, axis=1) - math.log(len(FRACTIONS))
    return found


def evidence(larger: ValueCounts, smaller: ValueCounts, difference: float = 0.0) -> float:
    """Return log of the evidence that mean(larger) - mean(smaller) exceeds a difference, for values in [0, 1].

    At the true difference it ever reaches log(1 / α) with probability α at most.
    """
    low, high = max(0.0, -difference), min(1.0, 1.0 - difference)
    if low > high:
        return math.inf if difference < 0 else 0.0
    mirrored = _scaled(smaller, (1.0, 0.0))
    least = math.inf
    for _ in range(_ZOOMS):
        means = np.linspace(low, high, _POINTS)
        total = log_wealth(larger, np.clip(means + difference, 0, 1)) + log_wealth(mirrored, np.clip(1 - means, 0, 1))
        at = int(total.argmin())
        least = min(least, float(total[at]))
        low, high = float(means[max(0, at - 1)]), float(means[min(_POINTS - 1, at + 1)])
    return least


def bounded_sequence(a: ValueCounts, b: ValueCounts, bounds: Bounds, confidence: float = 0.95) -> Estimate:
    """Estimate mean(a) - mean(b) of bounded values, with an interval that holds at every look at once.

    Valid from the first client on, for any distribution within the bounds, if an observation, once counted, never
    changes. With several distinct values the cost is linear in their number.

    Args:
        a: the values of the first arm so far.
        b: those of the second.
        bounds: the least and the greatest value possible, fixed beforehand.
        confidence: the probability of covering the true difference at all looks.

    Raises:
        ValueError: an arm is empty, a value is out of bounds, or the confidence is out of range.
    """
    refuse_empty(a, b)
    refuse_level(confidence)
    span = bounds[1] - bounds[0]
    ours, theirs = _scaled(a, bounds), _scaled(b, bounds)
    needed = math.log(2 / (1 - confidence))
    value = ours.mean - theirs.mean
    low, high = _reached(ours, theirs, value, needed), -_reached(theirs, ours, -value, needed)
    return Estimate(a.mean - b.mean, low * span, high * span, confidence)


def _reached(larger: ValueCounts, smaller: ValueCounts, value: float, needed: float) -> float:
    """Return the greatest difference below the estimate against which the evidence suffices."""
    if evidence(larger, smaller, 0.0) < needed:  # whether 0 is excluded is decided at 0 itself
        low, high = -1.0, min(0.0, value)
    else:
        low, high = 0.0, value
    while high - low > 1e-4 * max(abs(low), abs(high), 1e-6):
        middle = (low + high) / 2
        low, high = (middle, high) if evidence(larger, smaller, middle) >= needed else (low, middle)
    return low


def _scaled(counts: ValueCounts, bounds: Bounds) -> ValueCounts:
    scaled = (counts.values - bounds[0]) / (bounds[1] - bounds[0])
    if ((scaled < 0) | (scaled > 1)).any():
        raise ValueError(f"a value lies outside of the bounds {bounds[0]:g} and {bounds[1]:g}")
    return ValueCounts.summed(scaled, counts.counts)
