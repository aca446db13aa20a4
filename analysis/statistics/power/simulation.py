"""Power of the Mann-Whitney test by simulation: whole studies are drawn and tested, without any power formula."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import ndtri

from fedping.analysis.statistics.power.formula import Effect, aligned_probabilities
from fedping.analysis.statistics.ranks import Floats

CELLS_AT_A_TIME = 2**20
"""Studies are drawn in portions of this many numbers, which bounds the memory for any number of distinct values."""

_AROUND = np.array([0.7, 0.85, 1.0, 1.15, 1.3])
"""The numbers of users, relative to the guess, at which power is simulated in search of the right number."""

_STEP = 1.6
"""Factor by which the guess moves if all of these numbers are too few or too many; less than their whole range."""

_TRIALS = 40

FEWEST = 4
"""Users in both arms; fewer cannot be tested."""


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
    """How many users in both arms together have the power by simulation, with a 95 % interval."""

    n: int
    low: int
    high: int


def simulated_power(
    effect: Effect, n_a: int, n_b: int, rng: np.random.Generator, *, alpha: float = 0.05, studies: int = 2000
) -> SimulatedPower:
    """Draw whole studies and test each; the cost does not depend on the number of users.

    Args:
        effect: the two distributions of users' values.
        n_a: number of users in the first arm.
        n_b: number of users in the second.
        rng: the generator of the draws.
        alpha: the two-sided level of the test.
        studies: how many studies to draw.
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
    """Find how many users give the power, from simulated studies around a guess that moves until it is right.

    The probit of a test's power is nearly linear in the square root of the number of users. A line is fitted to the
    simulated powers, and the answer is where it reaches the power; a wrong guess only costs time.

    Args:
        effect: the two distributions of users' values.
        rng: the generator of the draws.
        guess: the first guess, in users of both arms.
        power: the probability of finding the effect.
        alpha: the two-sided level of the test.
        share: the share of the users that is in the first arm.
        studies: how many studies to draw at each number of users.

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
    """Return how many of n users are in the first arm, at least one in each."""
    return min(max(round(share * n), 1), n - 1)


def _where_reached(roots: Floats, powers: Floats, studies: int, power: float) -> SimulatedSize:
    """Return where a weighted line through the probits reaches the power, which is between those of the ends."""
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
    """Return z of many Mann-Whitney tests at once, with continuity and tie correction, in double precision.

    Args:
        a: the first arm's counts of each value, shape (studies, k).
        b: the second arm's counts of the same values.
    """
    ours, theirs = np.asarray(a, dtype=np.float64), np.asarray(b, dtype=np.float64)
    n_a, n_b = ours.sum(axis=1), theirs.sum(axis=1)
    n, both = n_a + n_b, ours + theirs
    u = (ours * (np.cumsum(theirs, axis=1) - theirs / 2)).sum(axis=1)
    variance = n_a * n_b / 12 * (n + 1 - (both**3 - both).sum(axis=1) / (n * (n - 1)))
    distance = u - n_a * n_b / 2
    scores: Floats = np.sign(distance) * np.maximum(np.abs(distance) - 0.5, 0) / np.sqrt(np.maximum(variance, 1e-300))
    return scores
