"""Sample-ratio check: whether the arms have the sizes that enrolment should have given them.

If they have not, something removed or moved clients of one arm more than of another (a crash, a filter, lost pings),
and then no comparison of the arms can be trusted.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from scipy.stats import chi2

ALARM = 0.001
"""Below this p-value the sizes are called wrong. It is small because the check is made at every look at every study."""

_FAR = 300.0
"""Half the statistic from which on the continued fraction is used; there it converges at once."""

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
        """Whether the sizes are too far from the expected ones to be chance."""
        return self.log10_p < math.log10(ALARM)


def sample_ratio(clients: Mapping[str, int], shares: Mapping[str, float]) -> SampleRatio:
    """Compare the clients of each arm with the arms' shares, taken relative to each other.

    Args:
        clients: how many clients each arm has.
        shares: the share of every one of these arms; they need not sum to 1.

    Raises:
        ValueError: there is no client at all.
    """
    n = sum(clients.values())
    if n == 0:
        raise ValueError("there are no clients whose ratio could be checked")
    whole = math.fsum(shares[arm] for arm in clients)
    expected = {arm: n * shares[arm] / whole for arm in clients}
    statistic = math.fsum((clients[arm] - expected[arm]) ** 2 / expected[arm] for arm in clients)
    if len(clients) < 2:
        return SampleRatio(dict(clients), expected, 0.0, 1.0, 0.0)
    log_p = log_survival(statistic, len(clients) - 1)
    return SampleRatio(dict(clients), expected, statistic, math.exp(log_p), log_p / math.log(10))


def log_survival(statistic: float, freedom: int) -> float:
    """Return the logarithm of the chi-squared distribution's upper tail, finite for any finite statistic.

    Far out, where the tail itself is below what a double holds, by the continued fraction of the incomplete gamma
    function (Abramowitz and Stegun 6.5.31).
    """
    a, z = freedom / 2, statistic / 2
    if z < _FAR + freedom:
        return float(chi2.logsf(statistic, freedom))
    fraction = 0.0
    for k in range(_TERMS, 0, -1):
        fraction = k * (k - a) / (z + 2 * k + 1 - a - fraction)
    return a * math.log(z) - z - math.lgamma(a) - math.log(z + 1 - a - fraction)
