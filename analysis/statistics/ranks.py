"""Two arms compared by ranks, from value counts: the Mann-Whitney test, the probability of superiority, the shift.

A rank test needs only value counts, whatever the number of pings, and value counts add up: the counts of two files,
days or shards merge into the counts of both.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import expit, log_ndtr, logit, ndtr, ndtri, stdtrit

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class ValueCounts:
    """One arm's values of a metric.

    Attributes:
        values: the distinct values, ascending and finite, shape (k,).
        counts: number of occurrences of each, at least 1, shape (k,).
    """

    values: Floats
    counts: Integers

    def __post_init__(self) -> None:
        ascending = bool((np.diff(self.values) > 0).all()) and bool(np.isfinite(self.values).all())
        if self.values.shape != self.counts.shape or not ascending or (self.counts < 1).any():
            raise ValueError("value counts need finite, ascending, distinct values with a positive count each")

    @classmethod
    def of(cls, data: ArrayLike) -> ValueCounts:
        """Count the values of raw data, shape (n,)."""
        values, counts = np.unique(np.asarray(data, dtype=np.float64), return_counts=True)
        return cls(values, counts.astype(np.int64))

    @classmethod
    def summed(cls, values: ArrayLike, counts: ArrayLike) -> ValueCounts:
        """Make value counts from values in any order; repeated values are added up, and zero counts dropped."""
        distinct, where = np.unique(np.asarray(values, dtype=np.float64), return_inverse=True)
        total = np.zeros(len(distinct), dtype=np.int64)
        np.add.at(total, where, np.asarray(counts, dtype=np.int64))
        return cls(distinct[total > 0], total[total > 0])

    def merged(self, other: ValueCounts) -> ValueCounts:
        """Return the combined counts of both."""
        return self.summed(np.concatenate([self.values, other.values]), np.concatenate([self.counts, other.counts]))

    @property
    def n(self) -> int:
        """The number of observations."""
        return int(self.counts.sum())

    @property
    def mean(self) -> float:
        """The mean; NaN without observations."""
        return math.fsum((self.values * self.counts).tolist()) / self.n if len(self.values) else math.nan

    @property
    def variance(self) -> float:
        """The unbiased variance; NaN with fewer than two observations."""
        if self.n < 2:
            return math.nan
        return math.fsum((self.counts * (self.values - self.mean) ** 2).tolist()) / (self.n - 1)

    def quantile(self, q: float) -> float:
        """Return the smallest value that is at least as large as a share q of the observations."""
        reached = np.searchsorted(np.cumsum(self.counts), math.ceil(q * self.n), side="left")
        return float(self.values[min(int(reached), len(self.values) - 1)])

    def winsorised(self, tails: float) -> ValueCounts:
        """Return the counts with the given share of observations at either end moved to the nearest remaining value.

        Of three or more observations, at least one is moved at either end, unless the share is 0, so that no single
        observation determines the mean.
        """
        beyond = min(max(1, math.floor(tails * self.n)), (self.n - 1) // 2) if tails else 0
        if beyond <= 0:
            return self
        below = np.cumsum(self.counts)
        low = self.values[np.searchsorted(below, beyond, side="right")]
        high = self.values[np.searchsorted(below, self.n - beyond, side="left")]
        return self.summed(np.clip(self.values, low, high), self.counts)

    def to_mapping(self) -> Mapping[float, int]:
        """Return the counts by value."""
        return dict(zip(self.values.tolist(), self.counts.tolist(), strict=True))


def aligned(a: ValueCounts, b: ValueCounts) -> tuple[Floats, Integers, Integers]:
    """Return the distinct values of both arms, and each arm's counts of them (0 if absent), shape (k,) each."""
    values = np.union1d(a.values, b.values)
    counts = np.zeros((2, len(values)), dtype=np.int64)
    counts[0, np.searchsorted(values, a.values)] = a.counts
    counts[1, np.searchsorted(values, b.values)] = b.counts
    return values, counts[0], counts[1]


def refuse_empty(*arms: ValueCounts) -> None:
    """Raise ValueError if an arm has no observation."""
    if any(len(arm.values) == 0 for arm in arms):
        raise ValueError("an arm has no observation; there is nothing to compare")


@dataclass(frozen=True)
class Estimate:
    """A point estimate and an interval that covers the truth with probability ``confidence``."""

    value: float
    low: float
    high: float
    confidence: float

    def excludes(self, null: float) -> bool:
        """Return whether the interval excludes a value."""
        return not self.low <= null <= self.high


def refuse_level(confidence: float) -> None:
    """Raise ValueError if a confidence is not strictly between 0 and 1."""
    if not 0 < confidence < 1:
        raise ValueError(f"a confidence lies between 0 and 1, not at {confidence}")


@dataclass(frozen=True)
class MannWhitney:
    """The result of the test.

    Attributes:
        twice_u: 2U of the first arm, an exact integer: two for each pair (x, y) with x > y, one for each with x = y.
        ties: the sum of t³ - t over the distinct values, where t is a value's number of occurrences in both arms
            together.
        n_a: number of observations in the first arm.
        n_b: number of observations in the second.
        z: distance of U from its mean under the null, in standard deviations (corrected for ties and continuity).
        p: the two-sided p-value; 0.0 if it is too small for a double.
        log10_p: the decimal logarithm of the p-value, which does not underflow.
    """

    twice_u: int
    ties: int
    n_a: int
    n_b: int
    z: float
    p: float
    log10_p: float

    @property
    def u(self) -> float:
        """U of the first arm."""
        return self.twice_u / 2


def mann_whitney(a: ValueCounts, b: ValueCounts) -> MannWhitney:
    """Test the null hypothesis that both arms draw from one distribution.

    Asymptotic, two-sided, with continuity and tie correction: `scipy.stats.mannwhitneyu(x, y, method="asymptotic")`.
    If all observations are equal, p is 1.

    Raises:
        ValueError: an arm is empty.
    """
    refuse_empty(a, b)
    n_a, n_b = a.n, b.n
    twice_u, ties = _exact(a, b)
    z = _z(twice_u, ties, n_a, n_b)
    return MannWhitney(twice_u, ties, n_a, n_b, z, min(1.0, 2 * float(ndtr(-z))), log10_two_sided(z))


def log10_two_sided(z: float) -> float:
    """Return log10 of the probability that a standard normal is at least z away from 0 (z >= 0), at most 0."""
    return min(0.0, (float(log_ndtr(-z)) + math.log(2)) / math.log(10))


def rank_interval(test: MannWhitney, confidence: float) -> Estimate:
    """Return the probability of superiority with the interval that excludes 0.5 exactly if the test rejects.

    Its half-width is the distance from 0.5 at which the test of level 1 - confidence rejects (corrected for ties and
    continuity), so it decides as the test does. Far from 0.5, :func:`superiority` has the better interval, because the
    test's standard error assumes equal arms.

    Raises:
        ValueError: the confidence is out of range.
    """
    refuse_level(confidence)
    pairs = test.n_a * test.n_b
    value = test.twice_u / (2 * pairs)
    deviation = math.sqrt(_spread(test.ties, test.n_a, test.n_b))
    half = (-float(ndtri((1 - confidence) / 2)) * deviation + 0.5) / pairs
    return Estimate(value, max(0.0, value - half), min(1.0, value + half), confidence)


def _exact(a: ValueCounts, b: ValueCounts) -> tuple[int, int]:
    _, counts_a, counts_b = aligned(a, b)
    # Python integers: t³ exceeds 64 bits at two million equal values.
    ours, theirs = counts_a.astype(object), counts_b.astype(object)
    both = ours + theirs
    less = np.cumsum(theirs) - theirs
    return int((ours * (2 * less + theirs)).sum()), int((both**3 - both).sum())


def _z(twice_u: int, ties: int, n_a: int, n_b: int) -> float:
    larger = max(twice_u, 2 * n_a * n_b - twice_u)
    spread = _spread(ties, n_a, n_b)
    return ((larger - n_a * n_b) / 2 - 0.5) / math.sqrt(spread) if spread else 0.0


def _spread(ties: int, n_a: int, n_b: int) -> float:
    """Return the variance of U under the null: a ratio of integers, which Python divides with one rounding."""
    n = n_a + n_b
    return n_a * n_b * ((n + 1) * n * (n - 1) - ties) / (12 * n * (n - 1))


def superiority(a: ValueCounts, b: ValueCounts, confidence: float = 0.95) -> Estimate:
    """Estimate P(X > Y) + P(X = Y) / 2 for X of the first arm and Y of the second; 0.5 means no tendency.

    The interval uses Brunner and Munzel's variance (which does not need equal shapes and is exact with ties) and
    degrees of freedom, on the logit scale, so that it stays within [0, 1]. If that variance is 0, because the arms do
    not overlap or all values are equal, Newcombe's interval is used (2006, method 5), whose width is not 0 then.

    Raises:
        ValueError: an arm is empty, or the confidence is out of range.
    """
    refuse_empty(a, b)
    refuse_level(confidence)
    value, part_a, part_b = placement_variances(a, b)
    squared = part_a + part_b
    if not squared > 0:
        return Estimate(value, *_newcombe(value, a.n, b.n, confidence), confidence)
    freedom = squared**2 / sum(part**2 / (n - 1) for part, n in ((part_a, a.n), (part_b, b.n)))
    half = float(stdtrit(freedom, (1 + confidence) / 2)) * math.sqrt(squared) / (value * (1 - value))
    centre = float(logit(value))
    return Estimate(value, float(expit(centre - half)), float(expit(centre + half)), confidence)


def placement_variances(a: ValueCounts, b: ValueCounts) -> tuple[float, float, float]:
    """Return the probability of superiority, and the two parts of its variance; the parts are NaN for n = 1.

    The placement of a value in an arm is the share of the arm below it, counting half of the equal ones.
    """
    _, counts_a, counts_b = aligned(a, b)
    in_b, in_a = _placements(counts_b), _placements(counts_a)
    value = float(in_b @ counts_a) / a.n
    return value, _variance_of_mean(in_b - value, counts_a), _variance_of_mean(in_a - (1 - value), counts_b)


def _placements(counts: Integers) -> Floats:
    placed: Floats = (np.cumsum(counts) - counts / 2) / counts.sum()
    return placed


def _variance_of_mean(deviations: Floats, counts: Integers) -> float:
    n = int(counts.sum())
    return float(deviations**2 @ counts) / (n - 1) / n if n > 1 else math.nan


def _newcombe(value: float, n_a: int, n_b: int, confidence: float) -> tuple[float, float]:
    from scipy.optimize import brentq  # half a second to import, and seldom needed

    z2 = float(ndtri((1 + confidence) / 2)) ** 2
    extra = (n_a + n_b) / 2 - 1

    def beyond(theta: float) -> float:
        shape = 1 + extra * ((1 - theta) / (2 - theta) + theta / (1 + theta))
        return (theta - value) ** 2 - z2 * theta * (1 - theta) * shape / (n_a * n_b)

    # At 0 and 1 themselves the equation has a spurious root, so both searches stop just short of them.
    hair = 1e-12
    low = float(brentq(beyond, hair, value - hair)) if value > 2 * hair and beyond(hair) > 0 else 0.0
    high = float(brentq(beyond, value + hair, 1 - hair)) if value < 1 - 2 * hair and beyond(1 - hair) > 0 else 1.0
    return low, high


RESOLUTION = 1e-12
"""Share of the largest difference below which two differences are taken as equal."""


def hodges_lehmann(a: ValueCounts, b: ValueCounts, confidence: float = 0.95) -> Estimate:
    """Estimate the median of all differences x - y between an observation of the first arm and one of the second.

    The interval is the distribution-free one of the Mann-Whitney test (Hollander and Wolfe, 4.3), including both ends
    and without tie correction: with ties its coverage is at least the stated one. Estimate and bounds are differences
    that occur (or the midpoint of two), so for counted metrics the shift changes in whole steps.

    Raises:
        ValueError: an arm is empty, or the confidence is out of range.
    """
    refuse_empty(a, b)
    refuse_level(confidence)
    pairs = _Differences(a, b)
    deviation = math.sqrt(pairs.n * (a.n + b.n + 1) / 12)
    outside = max(1, math.floor(pairs.n / 2 - float(ndtri((1 + confidence) / 2)) * deviation))
    lower_middle, upper_middle = pairs.smallest((pairs.n + 1) // 2), pairs.smallest(pairs.n // 2 + 1)
    low, high = pairs.smallest(outside), pairs.smallest(pairs.n + 1 - outside)
    return Estimate((lower_middle + upper_middle) / 2, low, high, confidence)


class _Differences:
    """The n_a · n_b differences between two arms, which are counted by bisection and never stored."""

    def __init__(self, a: ValueCounts, b: ValueCounts) -> None:
        self.n = a.n * b.n
        kind = np.int64 if self.n < 2**62 else object
        self._values: Floats = a.values
        self._others: Floats = b.values
        self._below = np.concatenate([[0], np.cumsum(a.counts)]).astype(kind)
        self._weights = b.counts.astype(kind)

    def smallest(self, k: int) -> float:
        """Return the k-th smallest difference, counted from 1."""
        low = math.nextafter(float(self._values[0] - self._others[-1]), -math.inf)
        high = float(self._values[-1] - self._others[0])
        enough = RESOLUTION * max(abs(low), abs(high))
        while high - low > enough:
            middle = (low + high) / 2
            if not low < middle < high:
                break
            low, high = (low, middle) if self._at_most(middle) >= k else (middle, high)
        return self._largest_at_most(high)

    def _at_most(self, difference: float) -> int:
        where = np.searchsorted(self._values, self._others + difference, side="right")
        return int(np.dot(self._below[where], self._weights))

    def _largest_at_most(self, difference: float) -> float:
        where = np.searchsorted(self._values, self._others + difference, side="right") - 1
        exists = where >= 0
        return float((self._values[where[exists]] - self._others[exists]).max())
