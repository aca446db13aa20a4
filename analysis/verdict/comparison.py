"""The comparisons of an analysis: every metric and pair of arms tested, by client and by ping, and in parts.

Effects in parts of the time and in groups of declared segments decide nothing. With enough parts, every study has one
that shows an effect. So each segment is tested for whether its groups' effects differ at all (Cochran's Q), corrected
for the number of such tests.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Literal, TypeAlias

from fedping.analysis.statistics import (
    CORRECTIONS,
    FEWEST_OTHERS,
    Estimate,
    MannWhitney,
    ValueCounts,
    bonferroni,
    bounded_sequence,
    clustered_difference,
    confidence_sequence,
    decides,
    deciding_level,
    fewest_clients,
    fewest_others,
    hodges_lehmann,
    holm,
    mann_whitney,
    mean_difference,
    mean_fragility,
    rank_fragility,
    rank_interval,
    superiority,
    welch_difference,
)
from fedping.analysis.statistics.means import log_survival
from fedping.analysis.study.metrics import Metric
from fedping.analysis.study.tally import IN_STUDY, MetricTally, Part
from fedping.analysis.verdict.plan import Pair, Plan

Finding: TypeAlias = Literal["less", "more", "inconclusive"]


@dataclass(frozen=True)
class ClientLevel:
    """One value per client: its mean over its interactions. The verdict is reached at this level.

    Pings of one client are not independent: they share a person, a history and a habit. A test that counts each of them
    takes forty searches of one person for those of forty people, and finds differences that do not exist.

    Attributes:
        means: the means of both arms; winsorised where the study has ``tails``.
        test: the rank test, of these values.
        superiority: the probability of superiority.
        shift: the median difference.
        difference: the difference of ``means``.
        untrimmed: the difference of the means before winsorising; None if nothing is winsorised.
        untrimmed_means: these means; None likewise.
    """

    means: tuple[float, float]
    test: MannWhitney
    superiority: Estimate
    shift: Estimate
    difference: Estimate
    untrimmed: Estimate | None = None
    untrimmed_means: tuple[float, float] | None = None


@dataclass(frozen=True)
class PingLevel:
    """Every ping counts once, as in the tables of 2018 (thesis 7.5): for comparison, never for the verdict.

    The p-value is right only if pings are independent, which they are not. The interval of the difference is right all
    the same, because it is computed from the clients' sums.
    """

    means: tuple[float, float]
    test: MannWhitney
    difference: Estimate


@dataclass(frozen=True)
class Shortage:
    """Too few clients for an interim look at a metric without known bounds.

    Attributes:
        clients: number of clients in the smaller arm.
        needed: number of clients that each arm needs.
        others: in one arm, the number of clients that differ from the most common value.
        others_needed: the number of such clients that each arm needs.
    """

    clients: int
    needed: int
    others: int
    others_needed: int


@dataclass(frozen=True)
class Comparison:
    """The result of a metric for a pair of arms.

    Attributes:
        metric: the metric compared.
        pair: the arms; "less" means that the first one's values are smaller.
        clients: the comparison that counts.
        pings: the comparison for the record.
        log10_bonferroni: log10 of the client-level p-value, corrected for all tests of the plan.
        log10_holm: the same by Holm.
        sequence: the interval that holds at every look; None unless this is an interim look.
        deciding: the deciding estimate: at an interim look ``sequence``, else the probability of superiority with the
            interval of the rank test at the level that the correction allows.
        base: the second arm's mean of the deciding values, the base of differences in percent.
        finding: the arm whose values are smaller, or that neither is certain.
        fragility: how few clients would overturn the finding: with other values, where the rank test decides; by being
            absent, at an interim look. None if there is none to overturn.
        shortage: at an interim look, the clients that are missing before anything can be decided; else None.
    """

    metric: Metric
    pair: Pair
    clients: ClientLevel
    pings: PingLevel
    log10_bonferroni: float
    log10_holm: float
    sequence: Estimate | None
    deciding: Estimate
    base: float
    finding: Finding
    fragility: int | None = None
    shortage: Shortage | None = None

    @property
    def null(self) -> float:
        """The value of ``deciding`` without any difference; if its interval excludes this, there is a difference."""
        return 0.5 if self.sequence is None else 0.0

    @property
    def ranks_against_means(self) -> bool:
        """Whether the rank test contradicts the means."""
        difference = self.clients.difference.value
        return self.sequence is None and difference * {"less": -1, "more": 1, "inconclusive": 0}[self.finding] < 0


def compare(plan: Plan, tallies: Sequence[tuple[Metric, Pair, MetricTally, MetricTally]]) -> list[Comparison]:
    """Make all comparisons of a plan; every arm needs at least one selection.

    Args:
        plan: how strict to be.
        tallies: for every test, the metric, the arms, and the counts of both.
    """
    clients = [_clients(a, b, plan.confidence) for _, _, a, b in tallies]
    p = [level.test.log10_p for level in clients]
    corrected = CORRECTIONS[plan.correction](p)
    level = deciding_level(p, plan.alpha, plan.correction)
    comparisons = []
    for i, (metric, pair, a, b) in enumerate(tallies):
        sequence = _sequence(metric, *_firsts(a, b), plan) if plan.interim else None
        finding = _finding(clients[i], corrected[i], sequence, plan.alpha)
        pings = PingLevel(
            (a.pings.mean, b.pings.mean),
            mann_whitney(a.pings, b.pings),
            clustered_difference(a.sums, b.sums, plan.confidence),
        )
        comparisons.append(
            Comparison(
                metric=metric,
                pair=pair,
                clients=clients[i],
                pings=pings,
                log10_bonferroni=bonferroni(p)[i],
                log10_holm=holm(p)[i],
                sequence=sequence,
                deciding=sequence or rank_interval(clients[i].test, 1 - level),
                base=b.clients.mean if sequence is None else _firsts(a, b)[1].mean,
                finding=finding,
                fragility=_fragility(metric, a, b, plan, finding, level),
                shortage=_shortage(metric, a, b) if plan.interim else None,
            )
        )
    return comparisons


def _clients(a: MetricTally, b: MetricTally, confidence: float) -> ClientLevel:
    raw = (a.untrimmed or a).clients, (b.untrimmed or b).clients
    trimmed = a.untrimmed is not None or b.untrimmed is not None
    return ClientLevel(
        untrimmed=mean_difference(*raw, confidence) if trimmed else None,
        untrimmed_means=(raw[0].mean, raw[1].mean) if trimmed else None,
        means=(a.clients.mean, b.clients.mean),
        test=mann_whitney(a.clients, b.clients),
        superiority=superiority(a.clients, b.clients, confidence),
        shift=hodges_lehmann(a.clients, b.clients, confidence),
        difference=mean_difference(a.clients, b.clients, confidence),
    )


def _firsts(a: MetricTally, b: MetricTally) -> tuple[ValueCounts, ValueCounts]:
    """Return the clients' first values that an interim look decides by.

    None is winsorised: a value that moves with the quantiles of later clients breaks the guarantee.
    """
    a, b = a.untrimmed or a, b.untrimmed or b
    if a.first is None or b.first is None:
        raise ValueError("an interim look needs each client's first value; count the study with first_values=True")
    return a.first, b.first


def _sequence(metric: Metric, a: ValueCounts, b: ValueCounts, plan: Plan) -> Estimate:
    if metric.bounds is not None:
        return bounded_sequence(a, b, metric.bounds, plan.confidence)
    return confidence_sequence(a, b, plan.confidence, plan.planned)


def _shortage(metric: Metric, a: MetricTally, b: MetricTally) -> Shortage | None:
    firsts = _firsts(a, b)
    if metric.bounds is not None or decides(*firsts):
        return None
    return Shortage(min(arm.n for arm in firsts), fewest_clients(*firsts), fewest_others(*firsts), FEWEST_OTHERS)


def _fragility(
    metric: Metric, a: MetricTally, b: MetricTally, plan: Plan, finding: Finding, level: float
) -> int | None:
    if finding == "inconclusive":
        return None
    if not plan.interim:
        return rank_fragility(a.clients, b.clients, math.log10(level))

    def shown(ours: ValueCounts, theirs: ValueCounts) -> bool:
        sequence = _sequence(metric, ours, theirs, plan)
        return sequence.excludes(0) and _direction(sequence.value) == finding

    return mean_fragility(*_firsts(a, b), shown)


def _finding(clients: ClientLevel, log10_p: float, sequence: Estimate | None, alpha: float) -> Finding:
    """Decide by the sequence if there is one: a test for a single look may decide only once, at the planned end."""
    if sequence is not None:
        return _direction(sequence.value) if sequence.excludes(0) else "inconclusive"
    return _direction(clients.superiority.value - 0.5) if log10_p <= math.log10(alpha) else "inconclusive"


def _direction(difference: float) -> Finding:
    return "less" if difference < 0 else "more"


CONFIDENCE = 0.95
"""Confidence of each part's interval, uncorrected."""


@dataclass(frozen=True)
class PartEffect:
    """One comparison in one part.

    Attributes:
        number: the part: see `fedping.analysis.study.tally.Part`.
        n: number of clients in both arms.
        difference: difference of the means over clients, with a 95 % interval.
        percent: the same in percent of the second arm's mean; None where that mean is 0.
    """

    number: int
    n: tuple[int, int]
    difference: Estimate
    percent: float | None


@dataclass(frozen=True)
class PartEffects:
    """One comparison in all parts of the time, or in all groups of a segment.

    Attributes:
        segment: the segment's name; None for time, `IN_STUDY` for the clients' own time in the study.
        metric: the metric compared.
        pair: the arms.
        effects: the parts in which both arms have clients.
        log10_p: for a segment, log10 of the p-value for equal effects in all groups, corrected for the number of such
            tests; None for both kinds of time, whose parts share clients, and where fewer than two groups have an
            interval.
    """

    segment: str | None
    metric: Metric
    pair: Pair
    effects: tuple[PartEffect, ...]
    log10_p: float | None = None

    @property
    def declared(self) -> bool:
        """Whether the parts are the groups of a segment that the study declares."""
        return self.segment not in (None, IN_STUDY)


def effects_in_parts(plan: Plan, parts: Sequence[Part]) -> tuple[PartEffects, ...]:
    """Return a plan's comparisons over time, by segment and by time in the study; empty if parts were not counted."""
    names = dict.fromkeys(part.segment for part in parts)
    effects = [one for name in names for one in _of_segment(plan, name, parts)]
    tests = sum(each.log10_p is not None for each in effects)
    return tuple(_corrected(each, tests) for each in effects)


def effects_in_study(effects: Sequence[PartEffects]) -> tuple[PartEffects, ...]:
    """Return the comparisons by the clients' time in the study; empty while all of it is in one part."""
    in_study = tuple(one for one in effects if one.segment == IN_STUDY)
    return in_study if any(len(one.effects) > 1 for one in in_study) else ()


def _of_segment(plan: Plan, name: str | None, parts: Sequence[Part]) -> Iterator[PartEffects]:
    own = [part for part in parts if part.segment == name]
    for metric in plan.metrics:
        for pair in plan.pairs:
            comparison = PartEffects(name, metric, pair, tuple(_effects(own, metric, pair)))
            yield replace(comparison, log10_p=_heterogeneity(comparison.effects)) if comparison.declared else comparison


def _effects(parts: Sequence[Part], metric: Metric, pair: Pair) -> Iterator[PartEffect]:
    for part in parts:
        arms = [part.arms.get(arm, {}).get(metric.name) for arm in pair]
        a, b = arms
        if a is not None and b is not None:
            difference = welch_difference(a, b, CONFIDENCE)
            percent = 100 * difference.value / abs(b.mean) if b.mean else None
            yield PartEffect(part.number, (a.n, b.n), difference, percent)


def _heterogeneity(effects: Sequence[PartEffect]) -> float | None:
    """Return log10 p of Cochran's Q; None if fewer than two effects have an interval of nonzero width."""
    estimates = [one.difference for one in effects]
    estimates = [one for one in estimates if math.isfinite(one.high) and one.high > one.low]
    if len(estimates) < 2:
        return None
    weights = [(one.high - one.low) ** -2 for one in estimates]
    mean = math.fsum(w * one.value for w, one in zip(weights, estimates, strict=True)) / math.fsum(weights)
    half = 2 * 1.959963984540054  # the width in standard errors, except for very few clients
    q = math.fsum(w * half**2 * (one.value - mean) ** 2 for w, one in zip(weights, estimates, strict=True))
    return min(0.0, log_survival(q, len(estimates) - 1) / math.log(10))


def _corrected(effects: PartEffects, tests: int) -> PartEffects:
    if effects.log10_p is None:
        return effects
    return replace(effects, log10_p=min(0.0, effects.log10_p + math.log10(tests)))
