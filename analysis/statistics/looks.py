"""Many tests and many looks: corrections, and an interval that stays valid over any number of looks.

They work on decimal logarithms, because the p-values of large studies are too small for a double.

Whoever tests repeatedly as the data come in, and stops at the first p below 5 %, is fooled far more often than in 5 %
of studies: with 100 looks, in two of five studies without any difference. A confidence sequence covers the truth at all
looks at once. Source: Waudby-Smith, Arbour, Sinha, Kennedy and Ramdas, "Time-uniform central limit theory and
asymptotic confidence sequences" (2024), theorem 2.2 and appendix on the choice of ρ.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Literal, TypeAlias

from fedping.analysis.statistics.ranks import Estimate, ValueCounts, refuse_empty, refuse_level

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
    """Return the level at which the tests of a plan, each made alone, reject as they do after correction.

    For Bonferroni it is alpha over the number of tests. For Holm it grows with every rejection, and the last level
    counts.
    """
    rejected = 0
    if correction == "holm":
        rejected = sum(one <= math.log10(alpha) for one in holm(log10_p))
    return alpha / max(1, len(log10_p) - rejected)


FEWEST_CLIENTS = 200
"""Clients in each arm below which :func:`confidence_sequence` decides nothing; see :func:`fewest_clients`.

It is valid in the limit of many clients. With fewer, the measured variance is too often too small by chance: looks from
two clients an arm on were wrong in up to 17 % of simulated studies without an effect instead of 5 %.
"""

FEWEST_OTHERS = 50
"""Clients in each arm that differ from its most common value, below which the sequence decides nothing either.

With fewer the variance hangs on a handful of clients: of arms 49 to 1, looks at a share of 1 in 1,000 were wrong in
75 % of simulated studies.
"""


def fewest_clients(a: ValueCounts, b: ValueCounts) -> int:
    """Return the clients in each arm below which :func:`confidence_sequence` decides nothing.

    A small arm beside a large one needs more of them, as its variance alone counts: of arms 9 to 1, looks from 200
    clients on were wrong in up to 10 % of simulated studies of lognormal values (σ = 1.5), and from 1,800 on in 4 %.
    """
    return math.ceil(FEWEST_CLIENTS * max(a.n, b.n) / min(a.n, b.n))


def decides(a: ValueCounts, b: ValueCounts) -> bool:
    """Return whether there are enough clients for :func:`confidence_sequence` to decide anything."""
    return min(a.n, b.n) >= fewest_clients(a, b) and fewest_others(a, b) >= FEWEST_OTHERS


def fewest_others(a: ValueCounts, b: ValueCounts) -> int:
    """Return the clients that differ from the most common value, in the arm that has fewer of them."""
    return min(arm.n - int(arm.counts.max()) for arm in (a, b))


LEAST_LEVEL = 1e-12
"""The smallest level of a single test. Confidences are 1 minus a level; a double keeps four digits of this one."""

PLANNED_CLIENTS = 100_000
"""The default number of clients in both arms at which the sequence is narrowest."""


def confidence_sequence(
    a: ValueCounts, b: ValueCounts, confidence: float = 0.95, planned: int = PLANNED_CLIENTS
) -> Estimate:
    """Estimate mean(a) - mean(b), with an interval that holds at every look at once.

    It is valid if an observation, once counted, never changes and the next one is a new client: one value per client,
    fixed at its first interaction. The cost is width: about half as wide again as an interval for a single look. Where
    :func:`decides` is false it is infinite; `fedping.analysis.statistics.bounded` has one that is exact from the
    first client on, for values with known bounds.

    Args:
        a: the values of the first arm so far.
        b: those of the second.
        confidence: the probability of covering the true difference at all looks.
        planned: the number of clients in both arms at which the interval is narrowest. To be chosen beforehand.

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
    """Return by how many standard errors the interval extends on each side after n observations."""
    fixed = -2 * math.log(alpha)
    rho2 = (fixed + math.log(fixed + 1)) / planned
    return math.sqrt(2 * (n * rho2 + 1) / (n * rho2) * math.log(math.sqrt(n * rho2 + 1) / alpha))
