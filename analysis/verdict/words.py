"""A verdict in sentences, and as plain data for machines (docs/analysts.md explains the keys)."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from fedping.analysis.statistics import Estimate, MannWhitney, SampleRatio
from fedping.analysis.study.metrics import Metric
from fedping.analysis.study.tally import HOUR_MS, WEEKS, ArmTally, StudyTally
from fedping.analysis.verdict.plan import Plan
from fedping.protocol.notation import with_minus

if TYPE_CHECKING:  # a circular import otherwise
    from fedping.analysis.verdict.parts import PartEffects
    from fedping.analysis.verdict.verdict import Comparison, Verdict

SURVIVORS = (
    "Time in the study is counted from each client's first ping, as it was received. The clients of later weeks are "
    "those who stayed, and an arm may change who stays; the verdict, over all clients, is what decides."
)
"""How to read effects by time in the study."""


def sentence(comparison: Comparison, plan: Plan, unit: str = "interaction") -> str:
    """Return the result of one comparison as a sentence with its numbers; ``unit`` is what one ping describes."""
    first, second = comparison.pair
    numbers = _numbers(comparison, plan, unit)
    if comparison.finding == "inconclusive":
        said = f"{comparison.metric.title.capitalize()}, {first} against {second}: inconclusive; {numbers}"
    else:
        did = comparison.metric.less if comparison.finding == "less" else comparison.metric.more
        said = f"Users of {first} {did} than users of {second}: {numbers}"
        if comparison.ranks_against_means:
            said += ". The means say the opposite; most users decide, not the largest values"
    if comparison.fragility is not None:
        said += f". {_fragile(comparison)}"
    elif comparison.too_few is not None:
        said += f". {comparison.too_few}"
    return f"{said}. {_guardrail(comparison)}".strip() if _is_guardrail(comparison, plan) else f"{said}."


def headline(comparisons: Sequence[Comparison], plan: Plan, ratio: SampleRatio) -> str:
    """Return the verdict in one sentence, the first one that people read."""
    found = [one for one in comparisons if one.finding != "inconclusive"]
    total = f"{len(comparisons)} comparison{'s' if len(comparisons) > 1 else ''}"
    if not found:
        none = "the comparison does not show" if len(comparisons) == 1 else f"none of the {total} shows"
        said = f"Inconclusive: {none} a difference at the {100 * plan.alpha:g} % level, corrected for all tests"
    else:
        shown = "; ".join(_summaries(found))
        said = f"{len(found)} of {total} {'show' if len(found) > 1 else 'shows'} a difference: {shown}"
    broken = sorted({one.metric.title for one in found if _is_guardrail(one, plan) and is_worse(one)})
    if broken:
        said = f"Guardrail broken ({', '.join(broken)}). {said}"
    if plan.interim:
        said = f"Interim look, not the final verdict. {said}"
    return f"Do not rely on this: the arms have the wrong sizes. {said}." if ratio.mismatch else f"{said}."


def ratio_warning(ratio: SampleRatio) -> str:
    """Return the result of the sample-ratio check."""
    sizes = ", ".join(
        f"{arm} {clients:,} (expected {ratio.expected[arm]:,.0f})" for arm, clients in ratio.observed.items()
    )
    if not ratio.mismatch:
        return f"The arms have the sizes that enrolment gives them (p = {p_text(ratio.log10_p)}): {sizes}."
    return (
        f"Sample-ratio mismatch (p = {p_text(ratio.log10_p)}): {sizes}. Something removes or moves clients of one arm "
        "more than of another; find it before comparing anything."
    )


LEFT_OUT = {
    "beyond_limits": "had a loss or a rank beyond the study's limits",
    "not_enrolled": "named an arm that their client's id does not belong to",
}
"""Why a ping counts nowhere, in words, by the name of the reason."""


def left_out_sentence(tally: StudyTally) -> str | None:
    """Return how many pings were left out and why; None if none was."""
    total = sum(tally.left_out.values())
    if not total:
        return None
    counted = total + sum(arm.pings for arm in tally.arms.values()) + tally.duplicates
    why = "; ".join(f"{n:,} {LEFT_OUT[reason]}" for reason, n in tally.left_out.items())
    return f"{total:,} of {counted:,} landed pings were left out: {why}."


TICKETS = (
    "A client that decides a finding may be invented: without tickets anyone can draw ids until one belongs to an arm. "
    "Before you believe a verdict that few clients would overturn, require tickets (docs/operators.md)."
)
"""What to do about a verdict that few clients make."""


def fragility_text(comparison: Comparison) -> str:
    """Return how few clients would overturn a finding, of all, as "37 of 6,000"; "-" without a finding."""
    if comparison.fragility is None:
        return "-"
    return f"{comparison.fragility:,} of {comparison.clients.test.n_a + comparison.clients.test.n_b:,}"


def fragility_sentence(comparisons: Sequence[Comparison]) -> str | None:
    """Return how few clients would overturn the most fragile finding, and the remedy; None without a finding."""
    found = [one for one in comparisons if one.fragility is not None]
    if not found:
        return None
    least = min(found, key=lambda one: one.fragility or 0)
    which = f" ({least.metric.title}, {least.pair[0]} against {least.pair[1]})" if len(found) > 1 else ""
    return f"{_fragile(least)}{which}. {TICKETS}"


def _fragile(comparison: Comparison) -> str:
    clients = "client" if comparison.fragility == 1 else "clients"
    how = "with other values would" if comparison.sequence is None else "less would"
    return f"{fragility_text(comparison)} {clients} {how} overturn this finding"


def means_words(tails: float) -> str:
    """Return what the means of clients' values are: "means", or with tails that they are winsorised."""
    return f"means winsorised at {100 * tails:.3g} % of the clients at either end" if tails else "means"


def finding_sign(comparison: Comparison) -> str:
    """Return a finding as a sign and a word, so that better and worse differ not only in colour."""
    if comparison.finding == "inconclusive":
        return "○ inconclusive"
    if comparison.metric.better is None:
        return f"● {comparison.finding}"
    return "▼ worse" if is_worse(comparison) else "▲ better"


def is_worse(comparison: Comparison) -> bool:
    """Whether the first arm is worse for users than the second."""
    better = comparison.metric.better
    return better is not None and comparison.finding not in ("inconclusive", better)


def p_text(log10_p: float) -> str:
    """Return a p-value from its logarithm: 0.0123, or 2.1e-105 for any small one."""
    if log10_p > -3:
        return with_minus(f"{10**log10_p:.3g}")
    exponent = math.floor(log10_p)
    mantissa = f"{10 ** (log10_p - exponent):.1f}"
    return with_minus(f"1.0e{exponent + 1}" if mantissa == "10.0" else f"{mantissa}e{exponent}")


def percent_text(value: float, base: float) -> str:
    """Return a difference in percent of its base mean, as " (−3.1 %)"; empty where the mean is 0 or unknown."""
    if not base or not math.isfinite(base):
        return ""
    percent = 100 * value / abs(base)
    return with_minus(f" ({percent:+,.0f} %)" if abs(percent) >= 100 else f" ({percent:+.3g} %)")


def share_text(estimate: Estimate) -> str:
    """Return a probability with its interval, in percent."""
    return f"{100 * estimate.value:.2f} % [{100 * estimate.low:.2f}, {100 * estimate.high:.2f}]"


def deciding_text(comparison: Comparison) -> str:
    """Return the deciding effect with its interval."""
    if comparison.sequence is None:
        return share_text(comparison.deciding)
    return interval_text(comparison.sequence) + percent_text(comparison.sequence.value, comparison.base)


def interval_text(estimate: Estimate, digits: int = 3) -> str:
    """Return an estimate with its interval, always with signs."""
    if math.isinf(estimate.low) and math.isinf(estimate.high):
        return with_minus(f"{estimate.value:+.{digits}f} [too few clients]")
    written = f"{estimate.value:+.{digits}f} [{estimate.low:+.{digits}f}, {estimate.high:+.{digits}f}]"
    return with_minus(written)


def _numbers(comparison: Comparison, plan: Plan, unit: str) -> str:
    level = comparison.clients
    average = "on average" if level.untrimmed is None else "on winsorised average"
    means = with_minus(f"{level.means[0]:.3f} against {level.means[1]:.3f} {average}")
    if comparison.too_few is not None:
        return f"{means} so far"
    if comparison.sequence is not None:
        return f"{means} so far, first {unit}s differ by {deciding_text(comparison)} at any look"
    log10_p = comparison.log10_holm if plan.correction == "holm" else comparison.log10_bonferroni
    value = level.difference.value
    difference = with_minus(f"{value:+.3f}") + percent_text(value, comparison.base)
    if level.untrimmed is not None:
        difference += f" (untrimmed {interval_text(level.untrimmed)})"
    return (
        f"{means}, {difference}; a user of {comparison.pair[0]} has "
        f"the larger value in {deciding_text(comparison)} of all pairs, p = {p_text(log10_p)} corrected"
    )


def _guardrail(comparison: Comparison) -> str:
    if is_worse(comparison):
        return "Guardrail broken."
    if comparison.finding != "inconclusive":
        return "Guardrail held: it became better."
    estimate = comparison.sequence or comparison.clients.difference
    worst = estimate.high if comparison.metric.better == "less" else -estimate.low
    if math.isinf(worst):
        return "Guardrail: no harm shown, and none ruled out: there are too few clients."
    worst = max(0.0, worst)
    share = percent_text(worst, comparison.base).replace("+", "")
    return f"Guardrail: no harm shown, though up to {worst:.3f}{share} worse cannot be ruled out."


def _is_guardrail(comparison: Comparison, plan: Plan) -> bool:
    return comparison.metric.name in plan.guardrails


def _summaries(found: Sequence[Comparison]) -> list[str]:
    """Join one arm's findings against several: "treatment typed fewer characters than control and control-no-decay"."""
    against: dict[tuple[str, str], list[str]] = {}
    for one in found:
        did = one.metric.less if one.finding == "less" else one.metric.more
        against.setdefault((one.pair[0], did), []).append(one.pair[1])
    return [f"users of {first} {did} than {' and '.join(others)}" for (first, did), others in against.items()]


def as_document(verdict: Verdict, caution: str | None = None, notes: Sequence[str] = ()) -> dict[str, Any]:
    """Return a verdict as data for JSON; an infinite bound is null, and U and p keep all their digits.

    Args:
        verdict: the verdict of an analysis.
        caution: what else to know before believing it, as a sentence.
        notes: what to know in order to read the numbers, as sentences (`fedping.analysis.report.table_notes`).
    """
    plan, ratio = verdict.plan, verdict.ratio
    groups = {segment.name: dict(enumerate(segment.groups)) for segment in verdict.study.segments}
    return {
        "format": 1,
        "study": verdict.study.name,
        "pings": verdict.study.pings,
        "verdict": verdict.headline,
        "caution": caution,
        "fragility": fragility_sentence(verdict.comparisons),
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
        "left_out": {"sentence": left_out_sentence(verdict.tally), "pings": dict(verdict.tally.left_out)},
        "clients_in_several_arms": verdict.tally.mixed,
        "comparisons": [_comparison(one, verdict) for one in verdict.comparisons],
        "over_time": {
            "hours": verdict.tally.hours,
            "effects": [_over_time(one) for one in verdict.parts if one.segment is None],
        },
        "segments": [
            {**_by_group(one, groups[str(one.segment)]), "sentence": one.sentence(plan), "log10_p": one.log10_p}
            for one in verdict.parts
            if one.declared
        ],
        "in_study": {
            "note": SURVIVORS,
            "effects": [_by_group(one, WEEKS) for one in verdict.in_study],
        },
    }


def _over_time(one: PartEffects) -> dict[str, Any]:
    effects = one.effects
    return {
        "metric": one.metric.name,
        "pair": list(one.pair),
        "from_ms": [effect.number * HOUR_MS for effect in effects],
        "n": [list(effect.n) for effect in effects],
        **{name: [_estimate(effect.difference)[name] for effect in effects] for name in ("value", "low", "high")},
        "percent": [effect.percent for effect in effects],
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
    """Return columns with a row per hour that has pings; clients exposed in an hour sent a ping in it."""
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
        "worse": is_worse(one),
        "fragility": one.fragility,
        "too_few": one.too_few,
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
        "per_ping": {
            **_test(pings.test),
            "means": list(pings.means),
            "difference": _estimate(pings.difference),
            "percent": _percent(pings.difference, pings.means[1]),
        },
        "anytime_valid": None if one.sequence is None else _estimate(one.sequence),
        "anytime_bounds": None if one.sequence is None or one.metric.bounds is None else list(one.metric.bounds),
    }


def _test(test: MannWhitney) -> dict[str, Any]:
    return {"n": [test.n_a, test.n_b], "u": test.u, "z": test.z, "p": test.p, "log10_p": test.log10_p}


def _estimate(estimate: Estimate) -> dict[str, float | None]:
    numbers = {"value": estimate.value, "low": estimate.low, "high": estimate.high, "confidence": estimate.confidence}
    return {name: _finite(number) for name, number in numbers.items()}


def _percent(difference: Estimate, base: float) -> float | None:
    return 100 * difference.value / abs(base) if base and math.isfinite(base) else None


def _finite(number: float) -> float | None:
    return number if math.isfinite(number) else None
