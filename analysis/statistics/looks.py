"""Many tests and many looks: corrections, and confidence sequences, which stay valid over any number of looks.

P-values are decimal logarithms, because those of large studies are too small for a double.

A test that is repeated while data arrive, and stops at the first p below 5 %, gives far more false alarms than 5 %:
with 100 looks, in two of five studies without any difference. A confidence sequence covers the truth at all looks at
once. Source: Waudby-Smith, Arbour, Sinha, Kennedy and Ramdas, "Time-uniform central limit theory and asymptotic
confidence sequences" (2024), theorem 2.2 and appendix on the choice of ρ.

The sequence for bounded values is exact from the first client on. For values in [0, 1] of mean m, and a fraction 0 < θ
< 1, the products of 1 + θ (x / m - 1) over the clients so far are a nonnegative martingale of expectation 1: the wealth
of a bet that the mean is larger than m. Their average over several θ is such a martingale too. The order of clients
does not matter, so value counts suffice. By Ville's inequality, the probability that the wealth ever reaches 1 / α is
at most α. Reflected values bet on a smaller mean, and the product of two arms' wealths bets on a difference; the common
mean is unknown, so the least product over all means counts. Source: Waudby-Smith and Ramdas, "Estimating means of
bounded random variables by betting" (2023), section 4; mixtures over θ instead of its predictable bets.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Literal, TypeAlias

import numpy as np
from scipy.special import logsumexp

from fedping.analysis.statistics.ranks import Estimate, Floats, ValueCounts, refuse_empty, refuse_level

Correction: TypeAlias = Literal["bonferroni", "holm"]


def bonferroni(log10_p: Sequence[float]) -> list[float]:
    """Return log10 of each p-value times the number of tests, at most 0 (p = 1)."""
    return [min(0.0, one + math.log10(len(log10_p))) for one in log10_p]


def holm(log10_p: Sequence[float]) -> list[float]:
    """Return log10 of Holm's step-down adjusted p-values: never larger than Bonferroni's, with the same guarantee."""
    adjusted, reached = [0.0] * len(log10_p), -math.inf
    for step, i in enumerate(sorted(range(len(log10_p)), key=log10_p.__getitem__)):
        reached = max(reached, min(0.0, log10_p[i] + math.log10(len(log10_p) - step)))
        adjusted[i] = reached
    return adjusted


CORRECTIONS: Mapping[Correction, Callable[[Sequence[float]], list[float]]] = MappingProxyType(
    {"bonferroni": bonferroni, "holm": holm}
)


def deciding_level(log10_p: Sequence[float], alpha: float, correction: Correction) -> float:
    """Return the level at which a plan's uncorrected tests reject exactly as they do after correction.

    For Bonferroni this is alpha over the number of tests. For Holm the level grows with every rejection, and the last
    one counts.
    """
    rejected = 0
    if correction == "holm":
        rejected = sum(one <= math.log10(alpha) for one in holm(log10_p))
    return alpha / max(1, len(log10_p) - rejected)


FEWEST_CLIENTS = 200
"""Number of clients in each arm below which :func:`confidence_sequence` decides nothing; see :func:`fewest_clients`.

The sequence is valid in the limit of many clients. With fewer clients, chance too often makes the measured variance too
small: looks from two clients an arm on were wrong in up to 17 % of simulated studies without an effect instead of 5 %.
"""

FEWEST_OTHERS = 50
"""Number of clients in each arm whose value isn't the most common one, below which the sequence decides nothing.

With fewer such clients, a handful of them determines the variance: with arms in a ratio of 49 to 1, looks at a share of
1 in 1,000 were wrong in 75 % of simulated studies.
"""


def fewest_clients(a: ValueCounts, b: ValueCounts) -> int:
    """Return the number of clients in each arm below which :func:`confidence_sequence` decides nothing.

    A small arm next to a large one needs more clients, since its variance alone counts: with arms in a ratio of 9 to 1,
    looks from 200 clients on were wrong in up to 10 % of simulated studies of lognormal values (σ = 1.5), and from
    1,800 on in 4 %.
    """
    return math.ceil(FEWEST_CLIENTS * max(a.n, b.n) / min(a.n, b.n))


def decides(a: ValueCounts, b: ValueCounts) -> bool:
    """Return whether there are enough clients for :func:`confidence_sequence` to decide anything."""
    return min(a.n, b.n) >= fewest_clients(a, b) and fewest_others(a, b) >= FEWEST_OTHERS


def fewest_others(a: ValueCounts, b: ValueCounts) -> int:
    """Return the number of clients whose value isn't their arm's most common one, in the arm with fewer of them."""
    return min(arm.n - int(arm.counts.max()) for arm in (a, b))


LEAST_LEVEL = 1e-12
"""The smallest level of a single test. Confidences are 1 minus a level; a double keeps four digits of this one."""

PLANNED_CLIENTS = 100_000
"""The default number of clients in both arms at which the sequence is narrowest."""


def confidence_sequence(
    a: ValueCounts, b: ValueCounts, confidence: float = 0.95, planned: int = PLANNED_CLIENTS
) -> Estimate:
    """Estimate mean(a) - mean(b), with an interval that is valid at all looks together.

    The interval is valid if an observation, once counted, never changes and the next one is a new client: one value per
    client, fixed at its first interaction. It is about 50 % wider than an interval for a single look. If
    :func:`decides` is false, it is infinite; :func:`bounded_sequence` is exact from the first client on, for values
    with known bounds.

    Args:
        a: the values of the first arm so far.
        b: the values of the second arm so far.
        confidence: the probability of covering the true difference at all looks.
        planned: the number of clients in both arms at which the interval is narrowest, chosen beforehand.

    Raises:
        ValueError: an arm is empty, or the confidence or the planned number is out of range.
    """
    refuse_empty(a, b)
    refuse_level(confidence)
    if planned < 1:
        raise ValueError(f"a sequence is planned for at least one client, not for {planned}")
    value = a.mean - b.mean
    if not decides(a, b):
        return Estimate(value, -math.inf, math.inf, confidence)
    error = math.sqrt(a.variance / a.n + b.variance / b.n)
    half = error * boundary(a.n + b.n, 1 - confidence, planned)
    return Estimate(value, value - half, value + half, confidence)


def boundary(n: float, alpha: float, planned: float) -> float:
    """Return the interval's half-width after n observations, in standard errors."""
    fixed = -2 * math.log(alpha)
    rho2 = (fixed + math.log(fixed + 1)) / planned
    return math.sqrt(2 * (n * rho2 + 1) / (n * rho2) * math.log(math.sqrt(n * rho2 + 1) / alpha))


Bounds: TypeAlias = tuple[float, float]

FRACTIONS: Floats = 2.0 ** (-np.arange(1, 27) / 2)
"""Betting fractions, shape (26,): from .71, which shows large effects in few clients, to 1e-4, for millions."""

_CELLS = 2**20
"""Maximum size of arrays in memory at a time, for any number of distinct values."""

_POINTS, _ZOOMS = 33, 4


def log_wealth(counts: ValueCounts, means: Floats) -> Floats:
    """Return the logarithm of the wealth of a bet that the true mean is larger than each of ``means``.

    Args:
        counts: one arm's values, in [0, 1].
        means: the means to bet against, in [0, 1], shape (k,).

    Returns:
        The logarithms, falling with the mean, shape (k,); infinite where a value is impossible under the mean.
    """
    wealth = np.empty(len(means))
    for begun in range(0, len(means), portion := max(1, _CELLS // (len(FRACTIONS) * len(counts.values)))):
        against = means[begun : begun + portion, None, None]
        with np.errstate(divide="ignore", invalid="ignore"):
            ratio = np.where(counts.values > 0, counts.values / against, 0.0)  # 0 / 0: the mean 0 allows a value of 0
        logs = np.log1p(FRACTIONS[:, None] * (ratio - 1)) @ counts.counts.astype(np.float64)
        # With mean 0, only 0 is possible; with any mean, a bet is worth at most its expectation there.
        logs = np.where(against[..., 0] > 0, logs, math.inf if counts.values[-1] > 0 else 0.0)
        wealth[begun : begun + portion] = logsumexp(logs, axis=1) - math.log(len(FRACTIONS))
    return wealth


def evidence(larger: ValueCounts, smaller: ValueCounts, difference: float = 0.0) -> float:
    """Return log of the evidence that mean(larger) - mean(smaller) exceeds a difference, for values in [0, 1].

    At the true difference, the probability that the result ever reaches log(1 / α) is at most α.
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
    """Estimate mean(a) - mean(b) of bounded values, with an interval that is valid at all looks together.

    The interval is valid from the first client on, for any distribution within the bounds, if an observation, once
    counted, never changes. With several distinct values the cost is linear in their number.

    Args:
        a: the values of the first arm so far.
        b: the values of the second arm so far.
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
    """Return the greatest difference below the estimate for which the evidence suffices."""
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
