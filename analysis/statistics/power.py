"""Power of the Mann-Whitney test: how many users show an effect (thesis 7.4), by formula and by simulation.

An effect is a pair of distributions. Where only one is known, from a landed pilot or a statement, :func:`tilted` makes
the other: the distribution nearest to it (in relative entropy) that has another mean.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike
from scipy.optimize import brentq
from scipy.stats import norm

from analysis.statistics.counts import Floats, ValueCounts


@dataclass(frozen=True, eq=False)
class Distribution:
    """A discrete distribution: ascending values with their probabilities, which sum to 1; shape (k,) each."""

    values: Floats
    probabilities: Floats

    def __post_init__(self) -> None:
        if (np.diff(self.values) <= 0).any() or (self.probabilities < 0).any():
            raise ValueError("a distribution needs ascending values and probabilities of at least 0")
        if not math.isclose(float(self.probabilities.sum()), 1, abs_tol=1e-9):
            raise ValueError(f"the probabilities sum to {float(self.probabilities.sum()):g}, not to 1")

    @classmethod
    def of(cls, counts: ValueCounts) -> Distribution:
        """Return the distribution of what was observed in a pilot."""
        return cls(counts.values, counts.counts / counts.n)

    @property
    def mean(self) -> float:
        """The mean."""
        return float(self.values @ self.probabilities)


def tilted(distribution: Distribution, mean: float) -> Distribution:
    """Return the distribution proportional to p(v) · exp(θ v), with the θ that gives it this mean.

    Raises:
        ValueError: the mean is not strictly between the smallest and the largest value.
    """
    low, high = float(distribution.values[0]), float(distribution.values[-1])
    if not low < mean < high:
        raise ValueError(f"no tilt gives the mean {mean:g}: the values lie between {low:g} and {high:g}")
    scaled = (distribution.values - distribution.mean) / (high - low)

    def at(theta: float) -> Distribution:
        weights = distribution.probabilities * np.exp(theta * scaled - (abs(theta) * np.abs(scaled).max()))
        return Distribution(distribution.values, weights / weights.sum())

    reach = 1.0
    while not at(-reach).mean <= mean <= at(reach).mean:
        reach *= 2
    return at(float(brentq(lambda theta: at(theta).mean - mean, -reach, reach, xtol=1e-13)))


@dataclass(frozen=True, eq=False)
class Effect:
    """What decides about the power, for X of the first and Y of the second distribution.

    Attributes:
        superiority: P(X > Y) + P(X = Y) / 2.
        spread_a: the variance of the placement of X among Y.
        spread_b: the variance of the placement of Y among X.
        a: the distribution of X.
        b: the distribution of Y.
    """

    superiority: float
    spread_a: float
    spread_b: float
    a: Distribution
    b: Distribution

    def null_spread(self, share: float) -> float:
        """Return the variance of a placement in the pooled distribution t, as the test takes it: (1 - Σ t³) / 12."""
        _, p, q = _aligned(self.a, self.b)
        return (1 - float(((share * p + (1 - share) * q) ** 3).sum())) / 12


def effect_between(a: Distribution, b: Distribution) -> Effect:
    """Return the effect that makes X of ``a`` differ from Y of ``b``."""
    _, p, q = _aligned(a, b)
    in_b, in_a = np.cumsum(q) - q / 2, np.cumsum(p) - p / 2
    value = float(in_b @ p)
    return Effect(value, float((in_b - value) ** 2 @ p), float((in_a - (1 - value)) ** 2 @ q), a, b)


def noether_size(superiority: float, power: float = 0.8, alpha: float = 0.05, share: float = 0.5) -> int:
    """Return how many users in both arms together give the power, by Noether (1987).

    It takes the variance of the null without ties, so with counted metrics it asks for more than is needed.

    Args:
        superiority: P(X > Y) + P(X = Y) / 2 under the effect.
        power: the probability of finding it.
        alpha: the two-sided level of the test, after correction for many tests.
        share: the part of the users that is in the first arm.
    """
    quantiles = float(norm.ppf(1 - alpha / 2) + norm.ppf(power))
    return math.ceil(quantiles**2 / (12 * share * (1 - share) * _distance(superiority) ** 2))


def sample_size(effect: Effect, power: float = 0.8, alpha: float = 0.05, share: float = 0.5) -> int:
    """Return how many users in both arms together give the power, with the exact variances, ties included.

    Under the null the test's own variance decides where it rejects, under the effect that of the placements how often.
    Arguments as of :func:`noether_size`.
    """
    null = math.sqrt(effect.null_spread(share) / (share * (1 - share)))
    there = math.sqrt(effect.spread_a / share + effect.spread_b / (1 - share))
    needed = float(norm.ppf(1 - alpha / 2)) * null + float(norm.ppf(power)) * there
    return math.ceil((needed / _distance(effect.superiority)) ** 2)


def power_of(effect: Effect, n_a: int, n_b: int, alpha: float = 0.05) -> float:
    """Return the probability that the test of n_a against n_b users rejects at the two-sided level alpha."""
    null = math.sqrt(effect.null_spread(n_a / (n_a + n_b)) * (1 / n_a + 1 / n_b))
    there = math.sqrt(effect.spread_a / n_a + effect.spread_b / n_b)
    reach, distance = float(norm.ppf(1 - alpha / 2)) * null, effect.superiority - 0.5
    return float(norm.sf((reach - distance) / there) + norm.cdf((-reach - distance) / there))


@dataclass(frozen=True)
class SimulatedPower:
    """The share of simulated studies that rejected, and the standard error of that share."""

    power: float
    standard_error: float
    studies: int


def simulated_power(
    effect: Effect, n_a: int, n_b: int, rng: np.random.Generator, *, alpha: float = 0.05, studies: int = 2000
) -> SimulatedPower:
    """Draw whole studies and test each; the cost does not depend on the number of users.

    Args:
        effect: the two distributions that users' values are drawn from.
        n_a: users of the first arm.
        n_b: users of the second.
        rng: where the draws come from.
        alpha: the two-sided level of the test.
        studies: how many studies to draw.
    """
    _, p, q = _aligned(effect.a, effect.b)
    a, b = rng.multinomial(n_a, p / p.sum(), studies), rng.multinomial(n_b, q / q.sum(), studies)
    rejected = float((np.abs(rank_scores(a, b)) >= norm.ppf(1 - alpha / 2)).mean())
    return SimulatedPower(rejected, math.sqrt(max(rejected * (1 - rejected), 1 / studies) / studies), studies)


def rank_scores(a: ArrayLike, b: ArrayLike) -> Floats:
    """Return z of the Mann-Whitney test with continuity and tie correction for many studies at once, in doubles.

    Args:
        a: the first arm's counts of each value, shape (studies, k).
        b: the second arm's, of the same values.
    """
    ours, theirs = np.asarray(a, dtype=np.float64), np.asarray(b, dtype=np.float64)
    n_a, n_b = ours.sum(axis=1), theirs.sum(axis=1)
    n, both = n_a + n_b, ours + theirs
    u = (ours * (np.cumsum(theirs, axis=1) - theirs / 2)).sum(axis=1)
    variance = n_a * n_b / 12 * (n + 1 - (both**3 - both).sum(axis=1) / (n * (n - 1)))
    distance = u - n_a * n_b / 2
    scores: Floats = np.sign(distance) * np.maximum(np.abs(distance) - 0.5, 0) / np.sqrt(np.maximum(variance, 1e-300))
    return scores


def _aligned(a: Distribution, b: Distribution) -> tuple[Floats, Floats, Floats]:
    values = np.union1d(a.values, b.values)
    made = np.zeros((2, len(values)))
    made[0, np.searchsorted(values, a.values)] = a.probabilities
    made[1, np.searchsorted(values, b.values)] = b.probabilities
    return values, made[0], made[1]


def _distance(superiority: float) -> float:
    distance = abs(superiority - 0.5)
    if distance < 1e-12:  # what rounding leaves of nothing
        raise ValueError("both distributions are as likely to give the larger value; no number of users shows that")
    return distance
