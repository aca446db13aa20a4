"""The verdict of a study: every comparison tested, by client and by ping, and corrected."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Literal, TypeAlias

from fedping.analysis.statistics import (
    CORRECTIONS,
    FEWEST_OTHERS,
    Estimate,
    MannWhitney,
    SampleRatio,
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
    sample_ratio,
    superiority,
)
from fedping.analysis.study.metrics import Measured, Metric, measured_by
from fedping.analysis.study.tally import MetricTally, StudyTally
from fedping.analysis.verdict.parts import PartEffects, effects_in_parts, effects_in_study
from fedping.analysis.verdict.plan import Pair, Plan
from fedping.analysis.verdict.words import headline, ratio_warning, sentence
from fedping.protocol.errors import FedpingError
from fedping.protocol.study import Study

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
        too_few: at an interim look, why nothing is decided yet whatever the values are, as a sentence; else None.
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
    too_few: str | None = None

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
    made = []
    for i, (metric, pair, a, b) in enumerate(tallies):
        sequence = _sequence(metric, *_firsts(a, b), plan) if plan.interim else None
        finding = _finding(clients[i], corrected[i], sequence, plan.alpha)
        pings = PingLevel(
            (a.pings.mean, b.pings.mean),
            mann_whitney(a.pings, b.pings),
            clustered_difference(a.sums, b.sums, plan.confidence),
        )
        made.append(
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
                too_few=_too_few(metric, a, b) if plan.interim else None,
            )
        )
    return made


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


def _too_few(metric: Metric, a: MetricTally, b: MetricTally) -> str | None:
    firsts = _firsts(a, b)
    if metric.bounds is not None or decides(*firsts):
        return None
    fewest = min(arm.n for arm in firsts)
    return (
        f"No interim verdict on {metric.title} below {fewest_clients(*firsts):,} clients in each arm (the smaller has "
        f"{fewest:,}), {FEWEST_OTHERS} of which differ from the most common value "
        f"(in an arm, {fewest_others(*firsts):,} do): "
        "without known bounds of its values, the interval holds for many clients only"
    )


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


@dataclass(frozen=True)
class Verdict:
    """The complete result of an analysis.

    Attributes:
        study: the study.
        plan: what was compared, and how strictly.
        tally: the counts.
        enrolled: how many clients should be enrolled in each arm; None if not given.
        ratio: whether the arms have the right sizes.
        ratio_sentence: the same in words; a warning if they have not.
        headline: the verdict in one sentence.
        comparisons: one for each metric and pair of arms.
        sentences: the result of each comparison, in the same order.
    """

    study: Study
    plan: Plan
    tally: StudyTally
    enrolled: Mapping[str, float] | None
    ratio: SampleRatio
    ratio_sentence: str
    headline: str
    comparisons: tuple[Comparison, ...]
    sentences: tuple[str, ...]

    @cached_property
    def parts(self) -> tuple[PartEffects, ...]:
        """The comparisons over time, by segment, and by the clients' time in the study."""
        return effects_in_parts(self)

    @property
    def in_study(self) -> tuple[PartEffects, ...]:
        """The comparisons by the clients' time in the study; none while all of it is in one part."""
        return effects_in_study(self)

    @property
    def measured(self) -> Measured:
        """What the study's pings measure, and the words for it."""
        return measured_by(self.study.document)


def reach_verdict(study: Study, plan: Plan, tally: StudyTally, enrolled: int | None = None) -> Verdict:
    """Make every comparison of the plan, and describe the results.

    Args:
        study: the study.
        plan: what to compare.
        tally: the counts of the plan's metrics in its window.
        enrolled: how many clients were enrolled in all arms together, if known. Landed pings do not show it: enrolment
            is decided on the client, and a client that never searches is never heard of.

    Raises:
        InvalidSettings: the plan names an arm that the study does not have.
        FedpingError: an arm of a pair has no ping, or none with an example.
    """
    _refuse_silent_arms(study, plan, tally)
    tests = [
        (metric, pair, tally.arms[pair[0]].metrics[metric.name], tally.arms[pair[1]].metrics[metric.name])
        for metric in plan.metrics
        for pair in plan.pairs
    ]
    compared = compare(plan, tests)
    shares = {arm.name: arm.share for arm in study.arms}
    ratio = sample_ratio({name: arm.clients for name, arm in tally.arms.items()}, shares)
    by_arm = {name: enrolled * share / sum(shares.values()) for name, share in shares.items()} if enrolled else None
    return Verdict(
        study=study,
        plan=plan,
        tally=tally,
        enrolled=by_arm,
        ratio=ratio,
        ratio_sentence=ratio_warning(ratio),
        headline=headline(compared, plan, ratio),
        comparisons=tuple(compared),
        sentences=tuple(sentence(one, plan, measured_by(study.document).one) for one in compared),
    )


def _refuse_silent_arms(study: Study, plan: Plan, tally: StudyTally) -> None:
    for name in dict.fromkeys(name for pair in plan.pairs for name in pair):
        study.arm(name)
        arm, window = tally.arms[name], plan.window.words
        if arm.pings == 0:
            raise FedpingError(
                f"arm '{name}' of study '{study.name}' has no pings in the window ({window}), so it cannot be "
                "compared; widen the window, or leave the arm out with --pairs"
            )
        if arm.exposed == 0:
            raise FedpingError(
                f"none of the {arm.pings:,} pings of arm '{name}' in the window ({window}) "
                f"{measured_by(study.document).none}, so there is nothing to compare; widen the window, or leave the "
                "arm out with --pairs"
            )
