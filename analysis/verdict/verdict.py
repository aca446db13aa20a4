"""The verdict of a study: its comparisons, in words and as data for JSON."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from fedping.analysis.statistics import Adjustment, Estimate, Lift, MannWhitney, SampleRatio, sample_ratio
from fedping.analysis.study.metrics import Measured, Metric, Ratio, measured_by
from fedping.analysis.study.tally import HOUR_MS, WEEKS, ArmTally, StudyTally
from fedping.analysis.verdict import words
from fedping.analysis.verdict.comparison import (
    Cap,
    Comparison,
    Effect,
    PartEffects,
    RatioComparison,
    compare,
    compare_ratios,
    effects_in_parts,
    effects_in_study,
)
from fedping.analysis.verdict.plan import Plan
from fedping.analysis.verdict.so_far import SoFar, effects_so_far
from fedping.protocol.errors import FedpingError
from fedping.protocol.study import Study


@dataclass(frozen=True)
class Verdict:
    """The complete result of an analysis.

    Attributes:
        study: the study.
        plan: the comparisons with level and correction.
        tally: the counts.
        enrolled: expected number of clients in each arm; None if not given.
        ratio: the check of the arms' sizes.
        comparisons: one for each metric and pair of arms.
        ratios: one for each ratio of totals and pair of arms.
        unripe: later outcomes that cannot be compared yet, because an arm has no client that is ripe for them.
    """

    study: Study
    plan: Plan
    tally: StudyTally
    enrolled: Mapping[str, float] | None
    ratio: SampleRatio
    comparisons: tuple[Comparison, ...]
    ratios: tuple[RatioComparison, ...] = ()
    unripe: tuple[Metric | Ratio, ...] = ()

    @property
    def headline(self) -> str:
        """The verdict in one sentence."""
        return words.headline(self.comparisons, self.plan, self.ratio)

    @property
    def lifts(self) -> tuple[tuple[str, tuple[str, str], Effect], ...]:
        """Every effect on means and ratios: title, arms, effect."""
        of_metrics = ((one.metric.title, one.pair, one.effect) for one in self.comparisons)
        of_ratios = ((one.ratio.title, one.pair, one.effect) for one in self.ratios)
        return tuple((title, pair, effect) for title, pair, effect in (*of_metrics, *of_ratios) if effect is not None)

    @property
    def lift_sentences(self) -> tuple[str, ...]:
        """The lifts in words, in the order of :attr:`lifts`."""
        return tuple(words.lift_sentence(*one) for one in self.lifts)

    @property
    def means_notes(self) -> tuple[str, ...]:
        """Caps, adjustments and exclusions of the comparison of means, as sentences."""
        return tuple(words.means_notes(self.lifts, self.plan, self.tally, self.unripe))

    @property
    def ratio_sentence(self) -> str:
        """The result of the check of the arms' sizes in words; a warning if the sizes are wrong."""
        return words.ratio_warning(self.ratio)

    @property
    def sentences(self) -> tuple[str, ...]:
        """The result of each comparison in words, in the same order."""
        return tuple(words.sentence(one, self.plan, self.measured.one) for one in self.comparisons)

    @cached_property
    def parts(self) -> tuple[PartEffects, ...]:
        """The comparisons over time, by segment, and by the clients' time in the study."""
        return effects_in_parts(self.plan, self.tally.parts)

    @cached_property
    def so_far(self) -> tuple[SoFar, ...]:
        """An interim look's comparisons at the end of each part of the time."""
        return effects_so_far(self.plan, self.comparisons, self.tally.arrivals, self.tally.hours)

    @property
    def in_study(self) -> tuple[PartEffects, ...]:
        """The comparisons by the clients' time in the study; empty while it has only one part."""
        return effects_in_study(self.parts)

    @property
    def measured(self) -> Measured:
        """The measures of the study's pings, and the words about the pings."""
        return measured_by(self.study.document)


def reach_verdict(study: Study, plan: Plan, tally: StudyTally, enrolled: int | None = None) -> Verdict:
    """Return the verdict: every comparison of the plan, and the check of the arms' sizes.

    Args:
        study: the study.
        plan: the plan of the comparisons.
        tally: the counts of the plan's metrics in its window.
        enrolled: number of enrolled clients in all arms together, if known. Landed pings do not show it: enrolment is
            decided on the client, and a client that never searches sends nothing.

    Raises:
        InvalidSettings: the plan names an arm that the study does not have.
        FedpingError: an arm of a pair has no ping with an example, or every metric needs more time.
    """
    _refuse_silent_arms(study, plan, tally)
    plan, unripe = _ripe(study, plan, tally)
    tests = [
        (metric, pair, tally.arms[pair[0]].metrics[metric.name], tally.arms[pair[1]].metrics[metric.name])
        for metric in plan.metrics
        for pair in plan.pairs
    ]
    shares = {arm.name: arm.share for arm in study.arms}
    ratio = sample_ratio({name: arm.clients for name, arm in tally.arms.items()}, shares)
    by_arm = {name: enrolled * share / sum(shares.values()) for name, share in shares.items()} if enrolled else None
    return Verdict(
        study=study,
        plan=plan,
        tally=tally,
        enrolled=by_arm,
        ratio=ratio,
        comparisons=tuple(compare(plan, tests, tally.caps)),
        ratios=tuple(compare_ratios(plan, tally)),
        unripe=unripe,
    )


def _ripe(study: Study, plan: Plan, tally: StudyTally) -> tuple[Plan, tuple[Metric | Ratio, ...]]:
    """Return the plan without the metrics and ratios for which an arm has no ripe client, and the removed ones."""
    arms = [tally.arms[name] for name in dict.fromkeys(name for pair in plan.pairs for name in pair)]
    metrics = [one for one in plan.metrics if one.later and not all(arm.metrics[one.name].clients.n for arm in arms)]
    ratios = [one for one in plan.means.ratios if not all(arm.ratios[one.name].clients for arm in arms)]
    if not metrics and not ratios:
        return plan, ()
    kept = tuple(one for one in plan.metrics if one not in metrics)
    if not kept:
        raise FedpingError(
            f"no later outcome of study '{study.name}' can be compared yet: {words.unripe_sentence(metrics[0])}; ask "
            "again later, or name other metrics with --metrics"
        )
    means = replace(plan.means, ratios=tuple(one for one in plan.means.ratios if one not in ratios))
    waiting = len(metrics) + len(ratios)
    return replace(plan, metrics=kept, means=means, waiting=waiting), (*metrics, *ratios)


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


def as_document(verdict: Verdict, caution: str | None = None, notes: Sequence[str] = ()) -> dict[str, Any]:
    """Return a verdict as data for JSON; an infinite bound is null, and U and p keep all their digits.

    Args:
        verdict: the verdict of an analysis.
        caution: a further reservation about the verdict, as a sentence.
        notes: sentences that explain the numbers (`fedping.analysis.report.table_notes`).
    """
    plan, ratio = verdict.plan, verdict.ratio
    groups = {segment.name: dict(enumerate(segment.groups)) for segment in verdict.study.segments}
    return {
        "format": 1,
        "study": verdict.study.name,
        "pings": verdict.study.pings,
        "verdict": verdict.headline,
        "caution": caution,
        "fragility": words.fragility_sentence(verdict.comparisons),
        "sentences": list(verdict.sentences),
        "notes": list(notes),
        "window": plan.window.words,
        "alpha": plan.alpha,
        "correction": plan.correction,
        "tests": plan.tests,
        "confidence": plan.confidence,
        "interim": plan.interim,
        "planned_clients": plan.planned if plan.interim else None,
        "metrics": {metric.name: _metric(metric) for metric in plan.metrics},
        "sample_ratio": {
            "mismatch": ratio.mismatch,
            "sentence": verdict.ratio_sentence,
            "chi_squared": ratio.chi_squared,
            "p": ratio.p,
            "log10_p": ratio.log10_p,
            "expected": dict(ratio.expected),
        },
        "arms": {name: _arm(verdict, name) for name in verdict.tally.arms},
        "duplicates": verdict.tally.duplicates,
        "left_out": {"sentence": words.left_out_sentence(verdict.tally), "pings": dict(verdict.tally.left_out)},
        "clients_in_several_arms": verdict.tally.mixed,
        "comparisons": [_comparison(one, verdict) for one in verdict.comparisons],
        "ratios": [
            {"ratio": one.ratio.name, "title": one.ratio.title, "pair": list(one.pair), "means": _effect(one.effect)}
            for one in verdict.ratios
        ],
        "lifts": list(verdict.lift_sentences),
        "means": {
            "notes": list(verdict.means_notes),
            "adjusted": plan.means.adjust,
            "cap": plan.means.cap,
            "unripe": [one.name for one in verdict.unripe],
            "later": {
                name: {
                    "counted": one.counted,
                    "late": one.late,
                    "before": one.before,
                    "unlinked": one.unlinked,
                    "other_arm": one.other_arm,
                    "unripe": one.unripe,
                    "ripe_clients": {arm: ripe for arm, (ripe, _) in one.clients.items()},
                    "clients": {arm: total for arm, (_, total) in one.clients.items()},
                }
                for name, one in verdict.tally.later.items()
            },
        },
        "over_time": {
            "hours": verdict.tally.hours,
            "effects": [_over_time(one) for one in verdict.parts if one.segment is None],
            "so_far": [_so_far(one) for one in verdict.so_far],
        },
        "segments": [
            {
                **_by_group(one, groups[str(one.segment)]),
                "sentence": words.parts_sentence(one, plan),
                "log10_p": one.log10_p,
            }
            for one in verdict.parts
            if one.declared
        ],
        "in_study": {
            "note": words.SURVIVORS,
            "effects": [_by_group(one, WEEKS) for one in verdict.in_study],
        },
    }


def _over_time(one: PartEffects) -> dict[str, Any]:
    effects = one.effects
    hours = {"from_ms": [effect.number * HOUR_MS for effect in effects]}
    return _series(one, hours, effects, [effect.difference for effect in effects])


def _so_far(one: SoFar) -> dict[str, Any]:
    steps = one.steps
    return _series(one, {"until_ms": [step.hour * HOUR_MS for step in steps]}, steps, [s.estimate for s in steps])


def _series(
    one: PartEffects | SoFar, hours: dict[str, Any], steps: Sequence[Any], estimates: Sequence[Any]
) -> dict[str, Any]:
    """Return the estimates of steps over time, each with its numbers of clients."""
    return {
        "metric": one.metric.name,
        "pair": list(one.pair),
        **hours,
        "n": [list(step.n) for step in steps],
        **{name: [_estimate(estimate)[name] for estimate in estimates] for name in ("value", "low", "high")},
        "percent": [step.percent for step in steps],
    }


def _by_group(one: PartEffects, groups: Mapping[int, str]) -> dict[str, Any]:
    return {
        "segment": one.segment,
        "metric": one.metric.name,
        "pair": list(one.pair),
        "groups": [
            {
                "group": groups[effect.number],
                "n": list(effect.n),
                "difference": _estimate(effect.difference),
                "percent": effect.percent,
            }
            for effect in one.effects
        ],
    }


def _metric(metric: Metric) -> dict[str, str | None]:
    return {"title": metric.title, "better": metric.better}


def _arm(verdict: Verdict, name: str) -> dict[str, Any]:
    arm = verdict.tally.arms[name]
    means = {
        metric: {
            "per_ping": _finite(tally.pings.mean),
            "per_client": _finite(tally.clients.mean),
            "per_client_untrimmed": _finite((tally.untrimmed or tally).clients.mean),
        }
        for metric, tally in arm.metrics.items()
    }
    return {
        "enrolled": None if verdict.enrolled is None else verdict.enrolled[name],
        "clients": arm.clients,
        "exposed": arm.exposed,
        "pings": arm.pings,
        verdict.measured.key: arm.selections,
        "means": means,
        "by_hour": _by_hour(arm),
    }


def _by_hour(arm: ArmTally) -> dict[str, list[int]]:
    """Return columns with a row per hour that has pings; every hour with newly exposed clients has pings."""
    hours = sorted(arm.by_hour)
    return {
        "from_ms": [hour * HOUR_MS for hour in hours],
        "pings": [arm.by_hour[hour] for hour in hours],
        "newly_exposed": [arm.exposed_by_hour.get(hour, 0) for hour in hours],
    }


def _comparison(one: Comparison, verdict: Verdict) -> dict[str, Any]:
    clients, pings = one.clients, one.pings
    return {
        "metric": one.metric.name,
        "role": "guardrail" if one.metric.name in verdict.plan.guardrails else "goal",
        "pair": list(one.pair),
        "finding": one.finding,
        "worse": words.is_worse(one),
        "fragility": one.fragility,
        "too_few": words.shortage_sentence(one),
        "decides": {"scale": "superiority" if one.sequence is None else "difference", **_estimate(one.deciding)},
        "percent": _percent(one.sequence or clients.difference, one.base),
        "per_client": {
            **_test(clients.test),
            "p_bonferroni": 10**one.log10_bonferroni,
            "log10_p_bonferroni": one.log10_bonferroni,
            "p_holm": 10**one.log10_holm,
            "log10_p_holm": one.log10_holm,
            "means": list(clients.means),
            "superiority": _estimate(clients.superiority),
            "hodges_lehmann": _estimate(clients.shift),
            "difference": _estimate(clients.difference),
            "tails": verdict.tally.tails,
            "untrimmed_means": None if clients.untrimmed_means is None else list(clients.untrimmed_means),
            "untrimmed_difference": None if clients.untrimmed is None else _estimate(clients.untrimmed),
        },
        "per_ping": None
        if pings is None
        else {
            **_test(pings.test),
            "means": list(pings.means),
            "difference": _estimate(pings.difference),
            "percent": _percent(pings.difference, pings.means[1]),
        },
        "means": None if one.effect is None else _effect(one.effect),
        "anytime_valid": None if one.sequence is None else _estimate(one.sequence),
        "anytime_bounds": None if one.sequence is None or one.metric.bounds is None else list(one.metric.bounds),
    }


def _effect(effect: Effect) -> dict[str, Any]:
    lift, cap, adjustment = effect.lift, effect.cap, effect.adjustment
    return {
        "n": list(effect.n),
        "means": [_finite(mean) for mean in effect.means],
        "difference": _estimate(lift.difference),
        "lift": _estimate(lift.relative),
        "shown": lift.shown,
        "no_interval": lift.reason,
        "fragility_by_the_largest": effect.fragility,
        "cap": None if cap is None else {"share": cap.share, "value": cap.value, "moved": list(cap.moved)},
        "adjustment": None
        if adjustment is None
        else {
            "slope": adjustment.slope,
            "reduction": adjustment.reduction,
            "clients_before": [_finite(each) for each in adjustment.before],
            "standard_errors_apart_before": adjustment.apart,
        },
    }


def effect_of(document: Mapping[str, Any]) -> Effect:
    """Return the effect in a document made by :func:`as_document`."""
    cap, adjustment = document["cap"], document["adjustment"]
    first, second = document["means"]
    done = None
    if adjustment is not None:
        ours, theirs = map(_number, adjustment["clients_before"])
        done = Adjustment(
            adjustment["slope"], adjustment["reduction"], (ours, theirs), adjustment["standard_errors_apart_before"]
        )
    return Effect(
        means=(_number(first), _number(second)),
        n=(document["n"][0], document["n"][1]),
        lift=Lift(_unwritten(document["difference"]), _unwritten(document["lift"]), document["no_interval"]),
        cap=None if cap is None else Cap(cap["share"], cap["value"], (cap["moved"][0], cap["moved"][1])),
        adjustment=done,
        fragility=document["fragility_by_the_largest"],
    )


def _unwritten(given: Mapping[str, Any]) -> Estimate:
    low, high = (-math.inf if given["low"] is None else given["low"]), given["high"]
    return Estimate(_number(given["value"]), low, math.inf if high is None else high, given["confidence"])


def _number(given: float | None) -> float:
    return math.nan if given is None else given


def _test(test: MannWhitney) -> dict[str, Any]:
    return {"n": [test.n_a, test.n_b], "u": test.u, "z": test.z, "p": test.p, "log10_p": test.log10_p}


def _estimate(estimate: Estimate) -> dict[str, float | None]:
    numbers = {"value": estimate.value, "low": estimate.low, "high": estimate.high, "confidence": estimate.confidence}
    return {name: _finite(number) for name, number in numbers.items()}


def _percent(difference: Estimate, base: float) -> float | None:
    return 100 * difference.value / abs(base) if base and math.isfinite(base) else None


def _finite(number: float) -> float | None:
    return number if math.isfinite(number) else None
