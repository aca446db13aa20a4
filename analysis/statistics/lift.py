"""The lift of an arm over another: the relative difference of two means or ratios, with an interval.

Everything is computed from sums over clients; each client counts once. A mean is the ratio Σy / Σd with d = 1 for every
client, so the same formulas serve for both:

- **Ratio** R = Σy / Σd. Its variance is the variance of the mean of u = (y - R d) / mean(d) over clients (delta method
  with clients as clusters; Deng, Knoblich and Lu 2018).
- **Lift** L = T / C - 1 by Fieller (1954): all L for which (T - (1 + L) C)² is at most q² times its own variance. The
  quantile q is that of the difference's interval, so the interval of L excludes 0 exactly if that of the difference
  does.
- **Adjustment** by clients' earlier values (CUPED; Deng, Xu, Kohavi and Walker 2013): w = x - R₀ e, where x and e are y
  and d of the time before and R₀ is Σx / Σe of both arms. The slope is one, within arms. A client without values of the
  time before has w = 0, the mean of w. Both arms' adjusted values share the slope and R₀, which makes them dependent:
  the interval has their covariance. The error of the estimated slope is of a lower order, and neglected.
- **Cap**: values above the value of rank ⌈share · N⌉ over the clients of all arms count as that value. All arms share
  one cap: separate caps would move one arm's mean more than another's.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Literal, TypeAlias

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import stdtrit

from fedping.analysis.statistics.ranks import Estimate, Floats, ValueCounts, refuse_empty, refuse_level

LEAST_CLIENTS = 30
"""Number of clients in each arm below which a lift has no interval."""

LEAST_OTHERS = 10
"""Number of clients in each arm whose value isn't the most common one, below which a lift has no interval."""

Reason: TypeAlias = Literal["few_clients", "few_others", "negative_control", "control_near_0", "no_total", "interim"]
"""The reason why a lift has no interval."""


@dataclass(frozen=True)
class Level:
    """The mean or ratio of an arm.

    Attributes:
        value: the estimate.
        variance: the estimate's variance.
        part: the arm's contribution to the variance of the arms' difference; differs from ``variance`` if the arms are
            dependent.
        clients: the number of clients.
        others: the number of clients whose value isn't the most common one; for a ratio, of clients whose y isn't 0.
    """

    value: float
    variance: float
    part: float
    clients: int
    others: int


def level_of_mean(counts: ValueCounts) -> Level:
    """Return the mean of one value per client."""
    refuse_empty(counts)
    variance = counts.variance / counts.n if counts.n > 1 else math.inf
    return Level(counts.mean, variance, variance, counts.n, counts.n - int(counts.counts.max()))


@dataclass(frozen=True, eq=False)
class ClientTotals:
    """Sums over an arm's clients: of numerator y and denominator d, and of both in the time before, x and e.

    Attributes:
        clients: number of clients.
        others: number of clients whose value isn't the most common one; for a ratio, of clients whose y isn't 0.
        sums: Σy, Σd, Σx, Σe, shape (4,).
        products: the sums of all products of two of the four, shape (4, 4).
        centre: value subtracted from y and x for each unit of d and e, against cancellation.
    """

    clients: int
    others: int
    sums: Floats
    products: Floats
    centre: float = 0.0

    @classmethod
    def of(cls, y: ArrayLike, d: ArrayLike = 1.0, x: ArrayLike = 0.0, e: ArrayLike = 0.0) -> ClientTotals:
        """Sum raw data with one value per client, shape (n,) each."""
        rows = np.stack(np.broadcast_arrays(*(np.asarray(each, np.float64) for each in (y, d, x, e))))
        return cls(rows.shape[1], int((rows[0] != 0).sum()), rows.sum(axis=1), rows @ rows.T)

    @property
    def has_before(self) -> float:
        """Σe: for a mean, the number of clients with a value of the time before."""
        return float(self.sums[3])

    def with_others(self, others: int) -> ClientTotals:
        """Return the same sums with another value of ``others``."""
        return replace(self, others=others)


def level_of_ratio(totals: ClientTotals) -> Level:
    """Return Σy / Σd; NaN if Σd is 0."""
    if not totals.sums[1] or not totals.clients:
        return Level(math.nan, math.inf, math.inf, totals.clients, totals.others)
    ratio, spread = _own(totals)
    variance = spread / totals.clients if totals.clients > 1 else math.inf
    return Level(totals.centre + ratio, variance, variance, totals.clients, totals.others)


def _own(totals: ClientTotals) -> tuple[float, float]:
    """Return a ratio minus its centre, and the variance of u over clients."""
    (y, d, *_), products, n = totals.sums, totals.products, totals.clients
    ratio = float(y / d)
    squared = products[0, 0] - 2 * ratio * products[0, 1] + ratio**2 * products[1, 1]
    return ratio, max(0.0, float(squared)) / max(n - 1, 1) * (n / float(d)) ** 2


@dataclass(frozen=True)
class Adjustment:
    """The effect of an adjustment.

    Attributes:
        slope: the common slope within arms.
        reduction: relative decrease of the difference's variance; can be slightly negative.
        before: both arms' numbers of clients (for a ratio, Σe) with values of the time before.
        apart: difference between the arms in the time before any treatment, in standard errors.
    """

    slope: float
    reduction: float
    before: tuple[float, float]
    apart: float = 0.0

    @property
    def is_honest(self) -> bool:
        """Whether the arms' difference in the time before may be due to chance (p of at least 0.001)."""
        return abs(self.apart) < DIFFERENT


DIFFERENT = 3.2905
"""Number of standard errors that chance exceeds once in a thousand times."""


def adjusted(a: ClientTotals, b: ClientTotals) -> tuple[Level, Level, float, Adjustment] | None:
    """Return both arms adjusted by the time before, the arms' covariance, and the effect of the adjustment.

    Returns:
        None if there are no values of the time before, or if they are the same for all clients.
    """
    whole = float(a.sums[3] + b.sums[3])
    plain = level_of_ratio(a), level_of_ratio(b)
    if not whole or min(a.sums[1], b.sums[1]) <= 0 or min(a.clients, b.clients) < 2:
        return None
    before = float(a.sums[2] + b.sums[2]) / whole
    spreads = [_spreads(each, before) for each in (a, b)]
    degrees = [each.clients - 1 for each in (a, b)]
    ww = sum(each.ww * k for each, k in zip(spreads, degrees, strict=True))
    if not ww > 0:
        return None
    slope = sum(each.uw * k for each, k in zip(spreads, degrees, strict=True)) / ww
    # W of an arm is own · Z of the arm - other · Z of the other arm, where Z has R₀ in place of its estimate
    own = [1 - float(each.sums[3]) / whole for each in (a, b)]
    other = [float(mine.sums[3]) / mine.clients * theirs.clients / whole for mine, theirs in ((a, b), (b, a))]
    levels = []
    for i, (totals, level) in enumerate(zip((a, b), plain, strict=True)):
        mine, theirs = spreads[i].over(totals.clients), spreads[1 - i].over((a, b)[1 - i].clients)
        variance = mine.less(slope * own[i]) + (slope * other[i]) ** 2 * theirs.ww
        part = mine.less(slope * (own[i] + other[1 - i]))
        levels.append(replace(level, value=level.value - slope * spreads[i].mean, variance=variance, part=part))
    covariance = 0.0
    for i, totals in enumerate((a, b)):
        mine = spreads[i].over(totals.clients)
        covariance += slope * other[1 - i] * (mine.uw - slope * own[i] * mine.ww)
    was, now = plain[0].part + plain[1].part, levels[0].part + levels[1].part
    errors = math.sqrt(sum(each.over(arm.clients).ww for each, arm in zip(spreads, (a, b), strict=True)))
    apart = (spreads[0].mean - spreads[1].mean) / errors
    told = Adjustment(slope, 1 - now / was if was else 0.0, (a.has_before, b.has_before), apart)
    return levels[0], levels[1], covariance, told


@dataclass(frozen=True)
class _Spreads:
    """Variances and covariance of u and w, over an arm's clients or of their means, and the mean of w."""

    uu: float
    uw: float
    ww: float
    mean: float

    def over(self, n: int) -> _Spreads:
        """Return the moments of means over n clients."""
        return _Spreads(self.uu / n, self.uw / n, self.ww / n, self.mean)

    def less(self, slope: float) -> float:
        """Return the variance of u - slope · w."""
        return max(0.0, self.uu - 2 * slope * self.uw + slope**2 * self.ww)


def _spreads(totals: ClientTotals, before: float) -> _Spreads:
    """Return the spreads of an arm; ``before`` is Σx / Σe of both arms."""
    n, p = totals.clients, totals.products
    ratio, uu = _own(totals)
    mean = float(totals.sums[2] - before * totals.sums[3]) / n
    squares = float(p[2, 2] - 2 * before * p[2, 3] + before**2 * p[3, 3])
    both = float(p[0, 2] - before * p[0, 3] - ratio * (p[1, 2] - before * p[1, 3])) * n / float(totals.sums[1])
    # the mean of u is 0, and so the sum of products needs no correction
    return _Spreads(uu, both / (n - 1), max(0.0, squares - n * mean**2) / (n - 1), mean)


@dataclass(frozen=True)
class Lift:
    """The difference of two arms, absolute and relative to the second.

    Attributes:
        difference: first minus second.
        relative: first / second - 1; NaN if the second is not above 0.
        reason: why ``relative`` has no interval; None if it has one. With too few clients, ``difference`` has none
            either.
    """

    difference: Estimate
    relative: Estimate
    reason: Reason | None = None

    @property
    def shown(self) -> Literal["less", "more", "inconclusive"]:
        """The sign of the difference if its interval excludes 0, else "inconclusive"."""
        if not self.difference.excludes(0):
            return "inconclusive"
        return "less" if self.difference.value < 0 else "more"


def lift(a: Level, b: Level, confidence: float = 0.95, covariance: float = 0.0) -> Lift:
    """Return the lift of the first arm over the second.

    The difference has Welch's degrees of freedom, and the relative difference the same quantile.

    Raises:
        ValueError: the confidence is out of range.
    """
    refuse_level(confidence)
    value = a.value - b.value
    relative = a.value / b.value - 1 if b.value > 0 else math.nan
    variance = a.part + b.part
    if (reason := _too_few(a, b)) is not None or not 0 < variance < math.inf:
        none: Reason = "no_total" if math.isnan(value) else reason or "few_others"
        return Lift(_unbounded(value, confidence), _unbounded(relative, confidence), none)
    freedom = variance**2 / sum(each.part**2 / (each.clients - 1) for each in (a, b))
    q = float(stdtrit(freedom, (1 + confidence) / 2))
    half = q * math.sqrt(variance)
    difference = Estimate(value, value - half, value + half, confidence)
    if b.value < 0:
        return Lift(difference, _unbounded(math.nan, confidence), "negative_control")
    ends = fieller((a.value, a.variance), (b.value, b.variance), covariance, q)
    if ends is None:
        return Lift(difference, _unbounded(relative, confidence), "control_near_0")
    return Lift(difference, Estimate(relative, ends[0] - 1, ends[1] - 1, confidence))


def _too_few(a: Level, b: Level) -> Reason | None:
    if min(a.clients, b.clients) < LEAST_CLIENTS:
        return "few_clients"
    return "few_others" if min(a.others, b.others) < LEAST_OTHERS else None


def _unbounded(value: float, confidence: float) -> Estimate:
    return Estimate(value, -math.inf, math.inf, confidence)


def fieller(a: tuple[float, float], b: tuple[float, float], covariance: float, q: float) -> tuple[float, float] | None:
    """Return the interval of a / b, each given as (value, variance); None if it is unbounded or b is not above 0."""
    (top, top_variance), (base, base_variance) = a, b
    squared = base**2 - q**2 * base_variance
    if base <= 0 or squared <= 0:
        return None
    middle = top * base - q**2 * covariance
    root = math.sqrt(max(0.0, middle**2 - squared * (top**2 - q**2 * top_variance)))
    return (middle - root) / squared, (middle + root) / squared


def cap_of(counts: ValueCounts, share: float) -> float:
    """Return the value of rank ⌈share · N⌉, the cap on all values.

    Raises:
        ValueError: there is no value.
    """
    refuse_empty(counts)
    rank = max(1, math.ceil(share * counts.n * (1 - 1e-12)))
    return float(counts.values[np.searchsorted(np.cumsum(counts.counts), rank)])


def capped(counts: ValueCounts, cap: float) -> tuple[ValueCounts, int]:
    """Return the counts with values above a cap replaced by the cap, and the number of replaced values."""
    moved = int(counts.counts[counts.values > cap].sum())
    return (ValueCounts.summed(np.minimum(counts.values, cap), counts.counts), moved) if moved else (counts, 0)
