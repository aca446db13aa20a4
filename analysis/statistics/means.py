"""Differences of means between clients or pings, and whether the arms' sizes match the enrolment.

If the sizes do not match, something (a crash, a filter, lost pings) removed or moved more clients of one arm than of
another, and no comparison of the arms can be trusted.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from scipy.special import chdtrc, ndtri, stdtrit

from fedping.analysis.statistics.ranks import Estimate, ValueCounts, refuse_empty, refuse_level


class Moments(Protocol):
    """The moments of an arm that Welch's interval needs: number of values, mean, and unbiased variance."""

    @property
    def n(self) -> int: ...  # noqa: D102
    @property
    def mean(self) -> float: ...  # noqa: D102
    @property
    def variance(self) -> float: ...  # noqa: D102


def mean_difference(a: ValueCounts, b: ValueCounts, confidence: float = 0.95) -> Estimate:
    """Estimate mean(a) - mean(b) by Welch's interval, which does not assume equal variances.

    With fewer than two observations in an arm, its spread is unknown and the interval is infinite.

    Raises:
        ValueError: an arm is empty, or the confidence is out of range.
    """
    refuse_empty(a, b)
    return welch_difference(a, b, confidence)


def welch_difference(a: Moments, b: Moments, confidence: float = 0.95) -> Estimate:
    """Return :func:`mean_difference` from the moments of the arms; each has at least one value."""
    refuse_level(confidence)
    value = a.mean - b.mean
    if min(a.n, b.n) < 2:
        return Estimate(value, -math.inf, math.inf, confidence)
    parts = [(arm.variance / arm.n, arm.n - 1) for arm in (a, b)]
    squared = sum(part for part, _ in parts)
    if squared == 0:
        return Estimate(value, value, value, confidence)
    freedom = squared**2 / sum(part**2 / degrees for part, degrees in parts)
    half = float(stdtrit(freedom, (1 + confidence) / 2)) * math.sqrt(squared)
    return Estimate(value, value - half, value + half, confidence)


@dataclass(frozen=True)
class ClientSums:
    """Sums over the clients of one arm, where n is a client's number of pings and s the sum of their values.

    Squares of values far from 0 cancel, so ``total``, ``ss`` and ``sn`` may be sums of values minus a ``centre``.

    Attributes:
        clients: number of clients.
        pings: the sum of n.
        total: the sum of s.
        ss: the sum of s².
        sn: the sum of s · n.
        nn: the sum of n².
        centre: value subtracted from each ping's value before the value was added to s.
    """

    clients: int
    pings: int
    total: float
    ss: float
    sn: float
    nn: float
    centre: float = 0.0

    @property
    def mean(self) -> float:
        """The mean over pings."""
        return self.centre + self.total / self.pings

    @property
    def squared_error(self) -> float:
        """The variance of the mean over pings when clients, not pings, are independent (delta method)."""
        if self.clients < 2:
            return math.inf
        mean = self.total / self.pings
        residual = self.ss - 2 * mean * self.sn + mean**2 * self.nn
        return max(0.0, residual) * self.clients / (self.clients - 1) / self.pings**2


def clustered_difference(a: ClientSums, b: ClientSums, confidence: float = 0.95) -> Estimate:
    """Estimate the difference of two means over pings, with an interval that accounts for several pings per client."""
    refuse_level(confidence)
    value = (a.centre - b.centre) + (a.total / a.pings - b.total / b.pings)
    half = float(ndtri((1 + confidence) / 2)) * math.sqrt(a.squared_error + b.squared_error)
    return Estimate(value, value - half, value + half, confidence)


ALARM = 0.001
"""The p-value below which sizes count as mismatched; small, because the check runs at every look at every study."""

_FAR = 300.0
"""Threshold on half the statistic, above which the continued fraction is used; there it converges at once."""

_TERMS = 50


@dataclass(frozen=True)
class SampleRatio:
    """Observed and expected clients by arm, and Pearson's chi-squared test between them."""

    observed: Mapping[str, int]
    expected: Mapping[str, float]
    chi_squared: float
    p: float
    log10_p: float

    @property
    def mismatch(self) -> bool:
        """Whether the sizes differ from the expected ones by more than chance explains."""
        return self.log10_p < math.log10(ALARM)


def sample_ratio(clients: Mapping[str, int], shares: Mapping[str, float]) -> SampleRatio:
    """Compare the numbers of clients per arm with the arms' relative shares.

    Args:
        clients: number of clients in each arm.
        shares: the share of every one of these arms; they need not sum to 1.

    Raises:
        ValueError: there is no client at all.
    """
    n = sum(clients.values())
    if n == 0:
        raise ValueError("no clients have a ratio to check")
    whole = math.fsum(shares[arm] for arm in clients)
    expected = {arm: n * shares[arm] / whole for arm in clients}
    statistic = math.fsum((clients[arm] - expected[arm]) ** 2 / expected[arm] for arm in clients)
    if len(clients) < 2:
        return SampleRatio(dict(clients), expected, 0.0, 1.0, 0.0)
    log_p = log_survival(statistic, len(clients) - 1)
    return SampleRatio(dict(clients), expected, statistic, math.exp(log_p), log_p / math.log(10))


def log_survival(statistic: float, freedom: int) -> float:
    """Return the logarithm of the chi-squared distribution's upper tail, finite for any finite statistic.

    If the tail is too small for a double, the continued fraction of the incomplete gamma function is used (Abramowitz
    and Stegun 6.5.31).
    """
    a, z = freedom / 2, statistic / 2
    if z < _FAR + freedom:
        return math.log(chdtrc(freedom, statistic))
    fraction = 0.0
    for k in range(_TERMS, 0, -1):
        fraction = k * (k - a) / (z + 2 * k + 1 - a - fraction)
    return a * math.log(z) - z - math.lgamma(a) - math.log(z + 1 - a - fraction)
