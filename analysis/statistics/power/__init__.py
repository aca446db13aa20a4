"""Power of the Mann-Whitney test: the number of users that shows an effect (thesis 7.4), by formula and by simulation.

An effect is a pair of distributions. If only one is known, from a landed pilot or a statement, :func:`tilted` derives
the other: the closest distribution (in relative entropy) with another mean.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike
from scipy.optimize import brentq
from scipy.special import ndtr, ndtri

from fedping.analysis.statistics.ranks import Floats, ValueCounts

__all__ = [
    "Distribution",
    "Effect",
    "SimulatedPower",
    "SimulatedSize",
    "effect_between",
    "least_effect",
    "noether_size",
    "power_of",
    "rank_scores",
    "sample_size",
    "simulated_power",
    "simulated_size",
    "split",
    "tilted",
    "tilted_to_superiority",
]


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
        """Return the distribution observed in a pilot."""
        return cls(counts.values, counts.counts / counts.n)

    @property
    def mean(self) -> float:
        """The mean of the distribution."""
        return float(self.values @ self.probabilities)

    def coarsened(self, most: int) -> Distribution:
        """Return a distribution of the same mean with about ``most`` values or fewer, by merging neighbours.

        Merged groups have about equal probability, and a frequent value is not merged with rare ones, so that the power
        of a rank test does not change measurably.
        """
        if len(self.values) <= most:
            return self
        middles = np.cumsum(self.probabilities) - self.probabilities / 2
        frequent = self.probabilities > 1 / most
        runs = np.cumsum(np.concatenate([[False], (frequent[1:] | frequent[:-1])]))
        group = np.unique(np.stack([np.floor(middles * most), runs]), axis=1, return_inverse=True)[1].ravel()
        mass = np.bincount(group, self.probabilities)
        means = np.bincount(group, self.probabilities * self.values) / mass
        return Distribution(means, mass / mass.sum())


def tilted(distribution: Distribution, mean: float) -> Distribution:
    """Return the distribution proportional to p(v) · exp(θ v), with θ chosen so that it has the given mean.

    Of all distributions on the same values with this mean, it is the closest in relative entropy.

    Raises:
        ValueError: the mean is not strictly between the smallest and the largest value.
    """
    low, high = float(distribution.values[0]), float(distribution.values[-1])
    if not low < mean < high:
        raise ValueError(f"no tilt gives the mean {mean:g}: the values lie between {low:g} and {high:g}")

    def at(theta: float) -> Distribution:
        return _tilt(distribution, theta)

    reach = 1.0
    while not at(-reach).mean <= mean <= at(reach).mean:
        reach *= 2
    return at(float(brentq(lambda theta: at(theta).mean - mean, -reach, reach, xtol=1e-13)))


def tilted_to_superiority(distribution: Distribution, superiority: float) -> Distribution:
    """Return a distribution tilted so that its X exceeds the original's Y with a given probability, counting ties half.

    Raises:
        ValueError: no tilt reaches the probability, because ties remain even if all users have an extreme value.
    """
    least = float(distribution.probabilities[0]) / 2
    most = 1 - float(distribution.probabilities[-1]) / 2
    if not least < superiority < most:
        raise ValueError(
            f"no change of these values gives a probability of superiority of {superiority:g}: it lies between "
            f"{least:.4g} and {most:.4g}, since ties count half"
        )

    def excess(theta: float) -> float:
        return effect_between(_tilt(distribution, theta), distribution).superiority - superiority

    reach = 1.0
    while not excess(-reach) <= 0 <= excess(reach):
        reach *= 2
    return _tilt(distribution, float(brentq(excess, -reach, reach, xtol=1e-13)))


def _tilt(distribution: Distribution, theta: float) -> Distribution:
    """Return p(v) · exp(θ u), where u is v on a scale of length 1."""
    scaled = (distribution.values - distribution.mean) / (distribution.values[-1] - distribution.values[0])
    exponents = theta * scaled
    weights = distribution.probabilities * np.exp(exponents - exponents.max())
    return Distribution(distribution.values, weights / weights.sum())


@dataclass(frozen=True, eq=False)
class Effect:
    """The quantities behind the power, for X of the first and Y of the second distribution.

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
        """Return the variance of a placement in the pooled distribution t, as the test computes it: (1 - Σ t³) / 12."""
        p, q = aligned_probabilities(self.a, self.b)
        return (1 - float(((share * p + (1 - share) * q) ** 3).sum())) / 12


def effect_between(a: Distribution, b: Distribution) -> Effect:
    """Return the effect that distinguishes X of ``a`` from Y of ``b``."""
    p, q = aligned_probabilities(a, b)
    in_b, in_a = np.cumsum(q) - q / 2, np.cumsum(p) - p / 2
    value = float(in_b @ p)
    return Effect(value, float((in_b - value) ** 2 @ p), float((in_a - (1 - value)) ** 2 @ q), a, b)


def aligned_probabilities(a: Distribution, b: Distribution) -> tuple[Floats, Floats]:
    """Return both distributions' probabilities of all values that occur in either, ascending; shape (k,) each."""
    values = np.union1d(a.values, b.values)
    probabilities = np.zeros((2, len(values)))
    probabilities[0, np.searchsorted(values, a.values)] = a.probabilities
    probabilities[1, np.searchsorted(values, b.values)] = b.probabilities
    return probabilities[0], probabilities[1]


def noether_size(superiority: float, power: float = 0.8, alpha: float = 0.05, share: float = 0.5) -> int:
    """Return the number of users in both arms together that gives the power, by Noether (1987).

    The formula uses the variance under the null without ties, so for counted metrics it gives more users than needed.

    Args:
        superiority: P(X > Y) + P(X = Y) / 2 under the effect.
        power: the probability of finding the effect.
        alpha: the two-sided level of the test, after correction for many tests.
        share: the share of the users that is in the first arm.
    """
    quantiles = float(-ndtri(alpha / 2) + ndtri(power))
    return math.ceil(quantiles**2 / (12 * share * (1 - share) * _distance(superiority) ** 2))


def sample_size(effect: Effect, power: float = 0.8, alpha: float = 0.05, share: float = 0.5) -> int:
    """Return the number of users in both arms together that gives the power, with the exact variances, ties included.

    The test's variance under the null determines where it rejects; the variance of the placements under the effect
    determines how often it rejects. The arguments are those of :func:`noether_size`.
    """
    null = math.sqrt(effect.null_spread(share) / (share * (1 - share)))
    there = math.sqrt(effect.spread_a / share + effect.spread_b / (1 - share))
    needed = float(-ndtri(alpha / 2)) * null + float(ndtri(power)) * there
    return math.ceil((needed / _distance(effect.superiority)) ** 2)


def power_of(effect: Effect, n_a: int, n_b: int, alpha: float = 0.05) -> float:
    """Return the probability that the test of n_a against n_b users rejects at the two-sided level alpha."""
    null = math.sqrt(effect.null_spread(n_a / (n_a + n_b)) * (1 / n_a + 1 / n_b))
    there = math.sqrt(effect.spread_a / n_a + effect.spread_b / n_b)
    reach, distance = float(-ndtri(alpha / 2)) * null, effect.superiority - 0.5
    return float(ndtr((distance - reach) / there) + ndtr((-reach - distance) / there))


def least_effect(
    distribution: Distribution,
    n_a: int,
    n_b: int,
    direction: Literal["less", "more"],
    *,
    power: float = 0.8,
    alpha: float = 0.05,
) -> Effect | None:
    """Return the smallest change of the mean that n_a changed and n_b unchanged users show with this power.

    Args:
        distribution: distribution of the metric without the change; the change tilts it.
        n_a: number of users whose values are changed.
        n_b: number of users whose values are not changed.
        direction: whether the changed values become smaller or larger.
        power: the probability of finding the effect.
        alpha: the two-sided level of the test, after correction for many tests.

    Returns:
        The effect; None if even the largest change that the values allow lacks the power.
    """
    end = float(distribution.values[0 if direction == "less" else -1])
    far = distribution.mean + 0.9999 * (end - distribution.mean)

    def at(mean: float) -> Effect:
        return effect_between(tilted(distribution, mean), distribution)

    if power_of(at(far), n_a, n_b, alpha) < power:
        return None
    low, high = sorted((distribution.mean, far))
    return at(float(brentq(lambda mean: power_of(at(mean), n_a, n_b, alpha) - power, low, high, rtol=1e-10)))


def _distance(superiority: float) -> float:
    distance = abs(superiority - 0.5)
    if distance < 1e-12:  # zero but for rounding
        raise ValueError(
            "both distributions are equally likely to give the larger value, which no number of users shows"
        )
    return distance


CELLS_AT_A_TIME = 2**20
"""Maximum size of the arrays drawn at a time, which bounds the memory for any number of distinct values."""

_AROUND = np.array([0.7, 0.85, 1.0, 1.15, 1.3])
"""Numbers of users, relative to the guess, at which power is simulated to find the right number."""

_STEP = 1.6
"""Factor that moves the guess if all numbers of ``_AROUND`` are too small or too large; less than their whole range."""

_TRIALS = 40

FEWEST = 4
"""Minimum number of users in both arms; fewer cannot be tested."""


@dataclass(frozen=True)
class SimulatedPower:
    """The share of simulated studies that rejected, and the standard error of that share."""

    power: float
    standard_error: float
    studies: int

    @property
    def interval(self) -> tuple[float, float]:
        """Wilson's 95 % interval for the power that infinitely many studies would show."""
        z2, n, p = float(ndtri(0.975)) ** 2, self.studies, self.power
        middle = (p + z2 / (2 * n)) / (1 + z2 / n)
        half = math.sqrt(z2 * (p * (1 - p) / n + z2 / (4 * n * n))) / (1 + z2 / n)
        return max(0.0, middle - half), min(1.0, middle + half)


@dataclass(frozen=True)
class SimulatedSize:
    """The number of users in both arms together that has the power by simulation, with a 95 % interval."""

    n: int
    low: int
    high: int


def simulated_power(
    effect: Effect, n_a: int, n_b: int, rng: np.random.Generator, *, alpha: float = 0.05, studies: int = 2000
) -> SimulatedPower:
    """Draw studies and test each; the cost does not depend on the number of users.

    Args:
        effect: the two distributions of users' values.
        n_a: number of users in the first arm.
        n_b: number of users in the second.
        rng: the generator of the draws.
        alpha: the two-sided level of the test.
        studies: number of studies to draw.
    """
    p, q = (each / each.sum() for each in aligned_probabilities(effect.a, effect.b))
    beyond, at_a_time, rejections = -ndtri(alpha / 2), max(1, CELLS_AT_A_TIME // len(p)), 0
    for begun in range(0, studies, at_a_time):
        portion = min(at_a_time, studies - begun)
        scores = rank_scores(rng.multinomial(n_a, p, portion), rng.multinomial(n_b, q, portion))
        rejections += int((np.abs(scores) >= beyond).sum())
    rejected = rejections / studies
    return SimulatedPower(rejected, math.sqrt(max(rejected * (1 - rejected), 1 / studies) / studies), studies)


def simulated_size(
    effect: Effect,
    rng: np.random.Generator,
    *,
    guess: int,
    power: float = 0.8,
    alpha: float = 0.05,
    share: float = 0.5,
    studies: int = 2000,
) -> SimulatedSize:
    """Find the number of users that gives the power, from simulated studies around a guess that moves.

    The probit of a test's power is nearly linear in the square root of the number of users. A line is fitted to the
    probits of the simulated powers; the result is the number at which the line reaches the power. A wrong guess only
    costs time.

    Args:
        effect: the two distributions of users' values.
        rng: the generator of the draws.
        guess: the first guess, in users of both arms.
        power: the probability of finding the effect.
        alpha: the two-sided level of the test.
        share: the share of the users that is in the first arm.
        studies: number of studies to draw at each number of users.

    Raises:
        ValueError: the power is not reached, because there is no effect.
    """
    for _ in range(_TRIALS):
        sizes = np.unique(np.maximum(FEWEST, np.round(guess * _AROUND)).astype(int))
        powers = []
        for n in sizes:
            n_a = split(int(n), share)
            powers.append(simulated_power(effect, n_a, int(n) - n_a, rng, alpha=alpha, studies=studies).power)
        if max(powers) < power:
            guess = math.ceil(guess * _STEP)
        elif min(powers) <= power:
            return _where_reached(np.sqrt(sizes), np.array(powers), studies, power)
        elif guess <= FEWEST:
            return SimulatedSize(FEWEST, FEWEST, FEWEST)
        else:
            guess = max(FEWEST, int(guess / _STEP))
    raise ValueError("no number of users reached the power in simulated studies")


def split(n: int, share: float) -> int:
    """Return the first arm's number of users among n; each arm gets at least one."""
    return min(max(round(share * n), 1), n - 1)


def _where_reached(roots: Floats, powers: Floats, studies: int, power: float) -> SimulatedSize:
    """Return the size, between the simulated ones, at which a weighted line through the probits reaches the power."""
    rates = np.clip(powers, 0.5 / studies, 1 - 0.5 / studies)
    probits = ndtri(rates)
    weights = studies * np.exp(-(probits**2)) / (2 * math.pi) / (rates * (1 - rates))
    design = np.stack([np.ones_like(roots), roots], axis=1)
    covariance = np.linalg.pinv(design.T @ (weights[:, None] * design))
    level, slope = covariance @ (design.T @ (weights * probits))
    root = (float(ndtri(power)) - level) / slope
    gradient = np.array([1.0, root]) / slope
    half = float(ndtri(0.975) * math.sqrt(gradient @ covariance @ gradient))
    low, n, high = (max(FEWEST, math.ceil(max(0.0, at) ** 2)) for at in (root - half, root, root + half))
    return SimulatedSize(n, low, high)


def rank_scores(a: ArrayLike, b: ArrayLike) -> Floats:
    """Return the z-scores of many Mann-Whitney tests at once, with continuity and tie correction.

    Args:
        a: the first arm's counts of each value, shape (studies, k).
        b: the second arm's counts of the same values, shape (studies, k).
    """
    ours, theirs = np.asarray(a, dtype=np.float64), np.asarray(b, dtype=np.float64)
    n_a, n_b = ours.sum(axis=1), theirs.sum(axis=1)
    n, both = n_a + n_b, ours + theirs
    u = (ours * (np.cumsum(theirs, axis=1) - theirs / 2)).sum(axis=1)
    variance = n_a * n_b / 12 * (n + 1 - (both**3 - both).sum(axis=1) / (n * (n - 1)))
    distance = u - n_a * n_b / 2
    scores: Floats = np.sign(distance) * np.maximum(np.abs(distance) - 0.5, 0) / np.sqrt(np.maximum(variance, 1e-300))
    return scores
