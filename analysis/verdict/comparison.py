"""The comparisons of an analysis: every metric and pair of arms tested, by client and by ping, and in parts.

Effects in parts of the time and in groups of declared segments don't decide the verdict. With enough parts, an effect
shows in some part of every study. So each segment has a test of whether its groups' effects differ at all (Cochran's
Q), corrected for the number of such tests.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Literal, TypeAlias

from fedping.analysis.statistics import (
    CORRECTIONS,
    FEWEST_OTHERS,
    Adjustment,
    Estimate,
    Lift,
    MannWhitney,
    ValueCounts,
    adjusted,
    bonferroni,
    bounded_sequence,
    capped,
    clustered_difference,
    confidence_sequence,
    decides,
    deciding_level,
    fewest_clients,
    fewest_others,
    hodges_lehmann,
    holm,
    level_of_mean,
    level_of_ratio,
    lift,
    mann_whitney,
    mean_difference,
    mean_fragility,
    rank_fragility,
    rank_interval,
    superiority,
    welch_difference,
)
from fedping.analysis.statistics.means import log_survival
from fedping.analysis.study.metrics import Metric, Ratio
from fedping.analysis.study.tally import IN_STUDY, MetricTally, Part, StudyTally
from fedping.analysis.verdict.plan import Pair, Plan

Finding: TypeAlias = Literal["less", "more", "inconclusive"]

NO_CAPS: Mapping[str, float] = MappingProxyType({})


@dataclass(frozen=True)
class ClientLevel:
    """A comparison with one value per client, the mean over its interactions; the verdict is reached at this level.

    A client's pings are not independent: they share a person, a history and a habit. A test that counts each ping
    treats one person's forty searches as forty people's, and finds differences that don't exist.

    Attributes:
        means: the means of both arms; winsorised if the study has ``tails``.
        test: the rank test of the clients' values.
        superiority: the probability of superiority.
        shift: the median difference.
        difference: the difference of ``means``.
        untrimmed: the difference of the means before winsorising; None if nothing is winsorised.
        untrimmed_means: the means before winsorising; None if nothing is winsorised.
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
    """A comparison with one value per ping, as in 2018 (thesis 7.5): for the record, not for the verdict.

    The p-value is valid only if pings are independent, which they are not. The interval of the difference is valid,
    because it is computed from the clients' sums.
    """

    means: tuple[float, float]
    test: MannWhitney
    difference: Estimate


@dataclass(frozen=True)
class Cap:
    """A cap on the values of both arms.

    Attributes:
        share: share of clients, over all arms, whose values are not changed.
        value: the value that replaces larger ones.
        moved: number of clients in each arm with larger values.
    """

    share: float
    value: float
    moved: tuple[int, int]


@dataclass(frozen=True)
class Effect:
    """The effect on the means, or ratios of totals, of two arms: their difference, and the first arm's lift.

    Unlike the means of :class:`ClientLevel`, these means are not winsorised by arm.

    Attributes:
        means: the means of both arms, capped and adjusted if requested.
        n: the numbers of clients.
        lift: the difference and the lift.
        cap: the cap; None without one.
        adjustment: the effect of the adjustment by the time before; None without one.
        fragility: upper bound on the number of clients whose removal would make the difference unproven, found by
            removing the largest first; None if no difference is shown, or if clients aren't known individually.
    """

    means: tuple[float, float]
    n: tuple[int, int]
    lift: Lift
    cap: Cap | None = None
    adjustment: Adjustment | None = None
    fragility: int | None = None


@dataclass(frozen=True)
class RatioComparison:
    """The comparison of a ratio of totals between two arms."""

    ratio: Ratio
    pair: Pair
    effect: Effect


@dataclass(frozen=True)
class Shortage:
    """The lack of clients for an interim look at a metric without known bounds.

    Attributes:
        clients: number of clients in the smaller arm.
        needed: number of clients that each arm needs.
        others: the number of clients whose value isn't the most common one, in the arm with fewer of them.
        others_needed: the number of such clients that each arm needs.
    """

    clients: int
    needed: int
    others: int
    others_needed: int


@dataclass(frozen=True)
class Comparison:
    """The comparison of a metric between two arms.

    Attributes:
        metric: the metric compared.
        pair: the arms; "less" means that the first one's values are smaller.
        clients: the comparison by client, which decides.
        pings: the comparison by ping, for the record; None for a later outcome, which has no pings of choices.
        log10_bonferroni: log10 of the client-level p-value, corrected for all tests of the plan.
        log10_holm: this p-value with Holm's correction.
        sequence: the interval that is valid at all looks; None unless this is an interim look.
        deciding: the deciding estimate: at an interim look ``sequence``, else the probability of superiority with the
            interval of the rank test at the level that the correction allows.
        base: the second arm's mean of the deciding values, the base of differences in percent.
        finding: whether the first arm's values are smaller (``less``), larger (``more``), or neither with certainty.
        fragility: the smallest number of clients that would overturn the finding: by other values if the rank test
            decides, by their absence at an interim look; None without a finding.
        shortage: the clients that an interim look lacks to decide anything; else None.
        effect: the difference of means and the lift; None if not requested.
    """

    metric: Metric
    pair: Pair
    clients: ClientLevel
    pings: PingLevel | None
    log10_bonferroni: float
    log10_holm: float
    sequence: Estimate | None
    deciding: Estimate
    base: float
    finding: Finding
    fragility: int | None = None
    shortage: Shortage | None = None
    effect: Effect | None = None

    @property
    def null(self) -> float:
        """The value of ``deciding`` for equal arms; an interval that excludes this value shows a difference."""
        return 0.5 if self.sequence is None else 0.0

    @property
    def ranks_against_means(self) -> bool:
        """Whether the rank test contradicts the means."""
        difference = self.clients.difference.value
        return self.sequence is None and difference * {"less": -1, "more": 1, "inconclusive": 0}[self.finding] < 0


def compare(
    plan: Plan, tallies: Sequence[tuple[Metric, Pair, MetricTally, MetricTally]], caps: Mapping[str, float] = NO_CAPS
) -> list[Comparison]:
    """Make all comparisons of a plan; every arm needs at least one selection.

    Args:
        plan: the plan, with its level and correction.
        tallies: for every test, the metric, the arms, and the counts of both.
        caps: the cap on values in lifts, by metric.
    """
    clients = [_clients(a, b, plan.confidence) for _, _, a, b in tallies]
    # ratios, and metrics that can't be compared yet, count as tests too, but have no rank test
    p = [level.test.log10_p for level in clients] + [0.0] * (plan.tests - len(clients))
    corrected = CORRECTIONS[plan.correction](p)
    level = deciding_level(p, plan.alpha, plan.correction)
    comparisons = []
    for i, (metric, pair, a, b) in enumerate(tallies):
        sequence = sequence_of(metric, *_firsts(a, b), plan) if plan.interim else None
        finding = _finding(clients[i], corrected[i], sequence, plan.alpha)
        comparisons.append(
            Comparison(
                metric=metric,
                pair=pair,
                clients=clients[i],
                pings=_pings(a, b, plan.confidence) if metric.later is None else None,
                log10_bonferroni=bonferroni(p)[i],
                log10_holm=holm(p)[i],
                sequence=sequence,
                deciding=sequence or rank_interval(clients[i].test, 1 - level),
                base=b.clients.mean if sequence is None else _firsts(a, b)[1].mean,
                finding=finding,
                fragility=_fragility(metric, a, b, plan, finding, level),
                shortage=_shortage(metric, a, b) if plan.interim else None,
                effect=_interim_effect(a, b, sequence) if sequence else _effect(plan, a, b, caps.get(metric.name)),
            )
        )
    return comparisons


def compare_ratios(plan: Plan, tally: StudyTally) -> list[RatioComparison]:
    """Make all comparisons of a plan's ratios of totals."""
    found = []
    for ratio in plan.means.ratios:
        for pair in plan.pairs:
            a, b = (tally.arms[arm].ratios[ratio.name] for arm in pair)
            told = adjusted(a, b) if plan.means.adjust else None
            ours, theirs, covariance, adjustment = told or (level_of_ratio(a), level_of_ratio(b), 0.0, None)
            result = lift(ours, theirs, plan.confidence, covariance)
            effect = Effect((ours.value, theirs.value), (a.clients, b.clients), result, adjustment=adjustment)
            found.append(RatioComparison(ratio, pair, effect))
    return found


def _effect(plan: Plan, a: MetricTally, b: MetricTally, limit: float | None) -> Effect:
    ours, theirs = (a.untrimmed or a).clients, (b.untrimmed or b).clients
    n, cap = (ours.n, theirs.n), None
    if limit is not None:
        (ours, above), (theirs, others_above) = capped(ours, limit), capped(theirs, limit)
        cap = Cap(plan.means.cap or 1.0, limit, (above, others_above))
    if plan.means.adjust and a.totals is not None and b.totals is not None:
        sums = [
            totals.with_others(counts.n - int(counts.counts.max()))
            for totals, counts in ((a.totals, ours), (b.totals, theirs))
        ]
        if (told := adjusted(*sums)) is not None:
            first, second, covariance, adjustment = told
            result = lift(first, second, plan.confidence, covariance)
            return Effect((first.value, second.value), n, result, cap, adjustment)
    result = lift(level_of_mean(ours), level_of_mean(theirs), plan.confidence)

    def shown(left: ValueCounts, other: ValueCounts) -> bool:
        return lift(level_of_mean(left), level_of_mean(other), plan.confidence).shown == result.shown

    fragility = None if result.shown == "inconclusive" else mean_fragility(ours, theirs, shown)
    return Effect((ours.mean, theirs.mean), n, result, cap, fragility=fragility)


def _interim_effect(a: MetricTally, b: MetricTally, sequence: Estimate) -> Effect:
    """Return the effect at an interim look, at which only the difference has an interval."""
    first, second = _firsts(a, b)
    base = second.mean
    relative = first.mean / base - 1 if base > 0 else math.nan
    unknown = Estimate(relative, -math.inf, math.inf, sequence.confidence)
    return Effect((first.mean, base), (first.n, second.n), Lift(sequence, unknown, "interim"))


def _pings(a: MetricTally, b: MetricTally, confidence: float) -> PingLevel:
    return PingLevel(
        (a.pings.mean, b.pings.mean),
        mann_whitney(a.pings, b.pings),
        clustered_difference(a.sums, b.sums, confidence),
    )


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
    """Return the clients' first values, by which an interim look decides.

    They are not winsorised, because values that move with the quantiles of later clients would break the guarantee.
    """
    a, b = a.untrimmed or a, b.untrimmed or b
    if a.first is None or b.first is None:
        raise ValueError("an interim look needs each client's first value; count the study with first_values=True")
    return a.first, b.first


def sequence_of(metric: Metric, a: ValueCounts, b: ValueCounts, plan: Plan) -> Estimate:
    """Return the difference of clients' first values with the interval that decides at an interim look."""
    if metric.bounds is not None:
        return bounded_sequence(a, b, metric.bounds, plan.confidence)
    if metric.wide is None:
        return confidence_sequence(a, b, plan.confidence, plan.planned)
    # each has half the level, so both hold together at every look, and a look may use either
    half = (1 + plan.confidence) / 2
    few = not decides(a, b) and _has_few_values(a, b)
    sequence = bounded_sequence(a, b, metric.wide, half) if few else confidence_sequence(a, b, half, plan.planned)
    return replace(sequence, confidence=plan.confidence)


MOST_VALUES = 1000
"""Maximum number of distinct values for which an interim look uses wide bounds: the cost grows with this number."""


def _has_few_values(*arms: ValueCounts) -> bool:
    return max(len(arm.values) for arm in arms) <= MOST_VALUES


def _shortage(metric: Metric, a: MetricTally, b: MetricTally) -> Shortage | None:
    firsts = _firsts(a, b)
    if metric.bounds is not None or decides(*firsts) or (metric.wide is not None and _has_few_values(*firsts)):
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
        sequence = sequence_of(metric, ours, theirs, plan)
        return sequence.excludes(0) and _direction(sequence.value) == finding

    return mean_fragility(*_firsts(a, b), shown)


def _finding(clients: ClientLevel, log10_p: float, sequence: Estimate | None, alpha: float) -> Finding:
    """Return the finding, by the sequence if there is one: the rank test may decide only once, at the planned end."""
    if sequence is not None:
        return _direction(sequence.value) if sequence.excludes(0) else "inconclusive"
    return _direction(clients.superiority.value - 0.5) if log10_p <= math.log10(alpha) else "inconclusive"


def _direction(difference: float) -> Finding:
    return "less" if difference < 0 else "more"


CONFIDENCE = 0.95
"""Confidence of each part's interval, uncorrected."""


@dataclass(frozen=True)
class PartEffect:
    """A comparison in one part of the pings.

    Attributes:
        number: the number of the part (see `fedping.analysis.study.tally.Part`).
        n: number of clients in both arms.
        difference: difference of the means over clients, with a 95 % interval.
        percent: this difference in percent of the second arm's mean; None if that mean is 0.
    """

    number: int
    n: tuple[int, int]
    difference: Estimate
    percent: float | None


@dataclass(frozen=True)
class PartEffects:
    """A comparison in all parts of the time, or in all groups of a segment.

    Attributes:
        segment: the segment's name; None for time, `IN_STUDY` for the clients' own time in the study.
        metric: the metric compared.
        pair: the arms.
        effects: the parts in which both arms have clients.
        log10_p: for a segment, log10 of the p-value for equal effects in all groups, corrected for the number of such
            tests; None for both kinds of time (their parts share clients), and if fewer than two groups have an
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
    """Return the comparisons by the clients' time in the study; empty while it has only one part."""
    in_study = tuple(one for one in effects if one.segment == IN_STUDY)
    return in_study if any(len(one.effects) > 1 for one in in_study) else ()


def _of_segment(plan: Plan, name: str | None, parts: Sequence[Part]) -> Iterator[PartEffects]:
    own = [part for part in parts if part.segment == name]
    for metric in plan.metrics:
        if metric.later is not None:
            continue
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
