"""The results of comparisons in words: sentences, signs and numbers for pages and terminals."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence

from fedping.analysis.statistics import LEAST_CLIENTS, LEAST_OTHERS, Adjustment, Estimate, SampleRatio
from fedping.analysis.statistics.lift import Reason
from fedping.analysis.study.metrics import Metric, Ratio
from fedping.analysis.study.tally import StudyTally
from fedping.analysis.verdict.comparison import Comparison, Effect, PartEffects
from fedping.analysis.verdict.plan import Plan
from fedping.protocol.notation import format_count, with_minus

SURVIVORS = (
    "Time in the study is counted from each client's first ping, as it was received. Only clients who stayed have "
    "later weeks, and an arm may change who stays. The verdict, over all clients, decides."
)
"""Explanation of effects by time in the study."""


def sentence(comparison: Comparison, plan: Plan, unit: str = "interaction") -> str:
    """Return a comparison's result as a sentence with its numbers; ``unit`` is the thing that a ping describes."""
    first, second = comparison.pair
    numbers = _numbers(comparison, plan, unit)
    if comparison.finding == "inconclusive":
        text = f"{comparison.metric.title.capitalize()}, {first} against {second}: inconclusive; {numbers}"
    else:
        did = comparison.metric.less if comparison.finding == "less" else comparison.metric.more
        text = f"Users of {first} {did} than users of {second}: {numbers}"
        if comparison.ranks_against_means:
            text += ". The means say the opposite; most users decide, not the largest values"
    if comparison.fragility is not None:
        text += f". {_fragile(comparison)}"
    elif (shortage := shortage_sentence(comparison)) is not None:
        text += f". {shortage}"
    return f"{text}. {_guardrail(comparison)}".strip() if _is_guardrail(comparison, plan) else f"{text}."


def headline(comparisons: Sequence[Comparison], plan: Plan, ratio: SampleRatio) -> str:
    """Return the verdict in one sentence, the headline of a report."""
    findings = [one for one in comparisons if one.finding != "inconclusive"]
    total = f"{len(comparisons)} comparison{'s' if len(comparisons) > 1 else ''}"
    if not findings:
        none = "the comparison does not show" if len(comparisons) == 1 else f"none of the {total} shows"
        text = f"Inconclusive: {none} a difference at the {100 * plan.alpha:g} % level, corrected for all tests"
    else:
        shown = "; ".join(_summaries(findings))
        text = f"{len(findings)} of {total} {'show' if len(findings) > 1 else 'shows'} a difference: {shown}"
    broken = sorted({one.metric.title for one in findings if _is_guardrail(one, plan) and is_worse(one)})
    if broken:
        text = f"Guardrail broken ({', '.join(broken)}). {text}"
    if plan.interim:
        text = f"Interim look, not the final verdict. {text}"
    return f"Do not rely on this: the arms have the wrong sizes. {text}." if ratio.mismatch else f"{text}."


def shortage_sentence(comparison: Comparison) -> str | None:
    """Return the reason why a decision needs more data, without a full stop; None if no more data are needed."""
    short = comparison.shortage
    if short is None:
        return None
    return (
        f"No interim verdict on {comparison.metric.title} below {short.needed:,} clients in each arm (the smaller has "
        f"{short.clients:,}) with {short.others_needed} that differ from the most common value (one arm has "
        f"{short.others:,}): without known bounds of the values, the interval is valid for many clients only"
    )


NO_INTERVAL: Mapping[Reason, str] = {
    "few_clients": f"too few clients: an interval needs {LEAST_CLIENTS} in each arm",
    "few_others": f"too few clients with another value than most: an interval needs {LEAST_OTHERS} in each arm",
    "negative_control": "no lift, because the second arm's mean is below 0; read the difference",
    "control_near_0": "no interval, because the second arm's mean is too near 0; read the difference",
    "no_total": "no ratio, because an arm's total below the line is 0",
    "interim": "no interval at an interim look; the difference has one",
}
"""The reasons why a lift has no interval, in words."""


def lift_text(effect: Effect) -> str:
    """Return a lift with its interval in percent, or with the reason why it has no interval."""
    relative, reason = effect.lift.relative, effect.lift.reason
    value = "" if math.isnan(relative.value) else f"{_percent(relative.value)} %"
    if reason is None:
        return with_minus(f"{value} [{_percent(relative.low)}, {_percent(relative.high)}]")
    return with_minus(f"{value} ({NO_INTERVAL[reason]})".strip())


def _percent(share: float) -> str:
    percent = 100 * share
    return f"{percent:+,.0f}" if abs(percent) >= 100 else f"{percent:+.3g}"


def mean_text(mean: float) -> str:
    """Return a mean or ratio as text; "-" for NaN."""
    return "-" if math.isnan(mean) else with_minus(f"{mean:.4g}")


def lift_sentence(title: str, pair: tuple[str, str], effect: Effect) -> str:
    """Return the lift of a mean or ratio as a sentence, with its caps and adjustments."""
    means = " against ".join(map(mean_text, effect.means))
    text = f"{title.capitalize()}, {pair[0]} against {pair[1]}: {lift_text(effect)}, {means} per client"
    if " per " in title:
        text = text.removesuffix(" per client")
    if effect.cap is not None:
        text += f"; capped at {effect.cap.value:,.6g}, {_moved(effect.cap.moved)}"
    if effect.adjustment is not None:
        text += f"; adjusted by the time before, {_adjusted(effect.adjustment, ' per ' in title)}"
    if effect.fragility is not None:
        few = "client" if effect.fragility == 1 else f"{effect.fragility:,} clients"
        text += f"; without the {few} of the largest influence, of {sum(effect.n):,}, this interval would contain 0"
    return f"{text}."


def _adjusted(done: Adjustment, is_ratio: bool) -> str:
    """Return the number of clients with an earlier value, and the adjustment's effect on the variance."""
    ours, theirs = (f"{each:,.6g}" for each in done.before)
    known = f"in which the arms' totals below the line are {ours} and {theirs}" if is_ratio else ""
    known = known or f"which is known of {ours} and {theirs} clients"
    becomes = "smaller" if done.reduction >= 0 else "larger"
    return f"{known}: the variance becomes {abs(100 * done.reduction):.3g} % {becomes}"


def _moved(moved: tuple[int, int]) -> str:
    return f"which moves {moved[0]:,} and {moved[1]:,} clients"


def unripe_sentence(one: Metric | Ratio) -> str:
    """Return the reason why a later outcome can't be compared yet, without a full stop."""
    hours = one.later if isinstance(one, Metric) else one.top.later
    return f"an arm has no client whose first ping is {hours:,} hours ago, as '{one.name}' needs"


def means_notes(
    lifts: Sequence[tuple[str, tuple[str, str], Effect]],
    plan: Plan,
    tally: StudyTally,
    unripe: Sequence[Metric | Ratio],
) -> Iterator[str]:
    """Yield sentences on capped, adjusted, excluded and not yet comparable means and ratios."""
    for one in unripe:
        yield f"Not compared yet: {unripe_sentence(one)}."
    for name, counts in tally.later.items():
        ripe, clients = (sum(each[i] for each in counts.clients.values()) for i in (0, 1))
        parts = [
            f"{number:,} {what}"
            for number, what in (
                (counts.late, "came too late after their client's first ping"),
                (counts.before, "came before it or have versions outside the window"),
                (
                    counts.unlinked,
                    "belong to clients without landed pings in the window, or with pings of several arms",
                ),
                (counts.other_arm, "name another arm than their client's pings"),
                (counts.unripe, "are of clients that are not ripe yet"),
            )
            if number
        ]
        text = f"{name}: {ripe:,} of {clients:,} clients are ripe; {format_count(counts.counted, 'outcome')} counted"
        yield f"{text}; of those not counted, {', '.join(parts)}." if parts else f"{text}."
    if plan.means.cap is not None:
        moved = [effect.cap for _, _, effect in lifts if effect.cap is not None]
        yield (
            f"Means and lifts are capped, with one cap per metric for all arms, at the value of rank "
            f"{plan.means.cap:g} of the clients; shares and ratios are not."
            if moved
            else f"No compared metric is capped by --cap {plan.means.cap:g}: shares and ratios never are."
        )
    if plan.means.adjust:
        none = [title for title, _, effect in lifts if effect.adjustment is None]
        yield (
            "Lifts are adjusted by clients' values with versions before 1, when all arms ranked alike if version 0 "
            "is the product's own order. Clients without such values count as the mean of those with one."
        )
        for title, pair, effect in lifts:
            if effect.adjustment is not None:
                done = _adjusted(effect.adjustment, " per " in title)
                yield f"{title}, {pair[0]} - {pair[1]}: the time before, {done}."
        apart = [
            f"{title} ({' - '.join(pair)})"
            for title, pair, each in lifts
            if each.adjustment and not each.adjustment.is_honest
        ]
        if apart:
            yield (
                f"Do not rely on adjusted lifts: before version 1 the arms already differed in {', '.join(apart)} by "
                "more than chance explains in all but one of a thousand studies. Version 0 may not be the product's "
                "own order, or something else divides the arms."
            )
        if none:
            titles = ", ".join(dict.fromkeys(none))
            yield f"Not adjusted, as nothing is known of the time before, or nothing differs there: {titles}."


def parts_sentence(effects: PartEffects, plan: Plan) -> str:
    """Return a sentence on whether the effects of a segment's groups differ."""
    what = f"{effects.metric.title}, {effects.pair[0]} against {effects.pair[1]}, by {effects.segment}"
    if effects.log10_p is None:
        return f"{what}: too few clients to show whether the effect differs between groups."
    p = f"p = {p_text(effects.log10_p)} corrected"
    if effects.log10_p <= math.log10(plan.alpha):
        return f"{what}: the effect differs between groups ({p})."
    return f"{what}: not shown that the effect differs between groups ({p})."


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
"""Descriptions of the reasons for excluding a ping, by name."""


def left_out_sentence(tally: StudyTally) -> str | None:
    """Return the number of excluded pings and the reasons; None if none was excluded."""
    total = sum(tally.left_out.values())
    if not total:
        return None
    counted = total + sum(arm.pings for arm in tally.arms.values()) + tally.duplicates
    why = "; ".join(f"{n:,} {LEFT_OUT[reason]}" for reason, n in tally.left_out.items())
    return f"{total:,} of {counted:,} landed pings were left out: {why}."


TICKETS = (
    "The clients behind a finding may be invented: without tickets, an attacker can draw ids until one belongs to an "
    "arm. Before you believe a verdict that few clients would overturn, require tickets ('fedping docs "
    "operators#who-may-be-counted')."
)
"""Advice for a verdict that depends on few clients."""


def fragility_text(comparison: Comparison) -> str:
    """Return the share of clients that would overturn a finding, as "37 of 6,000"; "-" without a finding."""
    if comparison.fragility is None:
        return "-"
    return f"{comparison.fragility:,} of {comparison.clients.test.n_a + comparison.clients.test.n_b:,}"


def fragility_sentence(comparisons: Sequence[Comparison]) -> str | None:
    """Return the number of clients that would overturn the most fragile finding, and the remedy; None without one."""
    findings = [one for one in comparisons if one.fragility is not None]
    if not findings:
        return None
    least = min(findings, key=lambda one: one.fragility or 0)
    which = f" ({least.metric.title}, {least.pair[0]} against {least.pair[1]})" if len(findings) > 1 else ""
    return f"{_fragile(least)}{which}. {TICKETS}"


def _fragile(comparison: Comparison) -> str:
    how = "with other values would" if comparison.sequence is None else "less would"
    return f"{fragility_text(comparison)} clients {how} overturn this finding"


def means_words(tails: float) -> str:
    """Return the name of the means of clients' values: "means", or with tails "means winsorised ..."."""
    return f"means winsorised at {100 * tails:.3g} % of the clients at either end" if tails else "means"


def finding_sign(comparison: Comparison) -> str:
    """Return a finding as a sign and a word, so that better and worse don't differ only in colour."""
    if comparison.finding == "inconclusive":
        return "○ inconclusive"
    if comparison.metric.better is None:
        return f"● {comparison.finding}"
    return "▼ worse" if is_worse(comparison) else "▲ better"


def is_worse(comparison: Comparison) -> bool:
    """Return whether the first arm is worse for users than the second."""
    better = comparison.metric.better
    return better is not None and comparison.finding not in ("inconclusive", better)


def p_text(log10_p: float) -> str:
    """Return a p-value as text from its logarithm: 0.0123, or 2.1e-105 for a small one."""
    if log10_p > -3:
        return with_minus(f"{10**log10_p:.3g}")
    exponent = math.floor(log10_p)
    mantissa = f"{10 ** (log10_p - exponent):.1f}"
    return with_minus(f"1.0e{exponent + 1}" if mantissa == "10.0" else f"{mantissa}e{exponent}")


def percent_text(value: float, base: float) -> str:
    """Return a difference in percent of a base mean, as " (−3.1 %)"; empty if the mean is 0 or unknown."""
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
    """Return an estimate with its interval as text, always with signs."""
    if math.isinf(estimate.low) and math.isinf(estimate.high):
        return with_minus(f"{estimate.value:+.{digits}f} [too few clients]")
    written = f"{estimate.value:+.{digits}f} [{estimate.low:+.{digits}f}, {estimate.high:+.{digits}f}]"
    return with_minus(written)


def _numbers(comparison: Comparison, plan: Plan, unit: str) -> str:
    level = comparison.clients
    average = "on average" if level.untrimmed is None else "on winsorised average"
    means = with_minus(f"{level.means[0]:.3f} against {level.means[1]:.3f} {average}")
    if comparison.shortage is not None:
        return f"{means} so far"
    if comparison.sequence is not None:
        what = f"first {unit}s differ" if comparison.metric.later is None else "totals of ripe clients differ"
        return f"{means} so far, {what} by {deciding_text(comparison)} at any look"
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
    """Join an arm's findings against others: "treatment typed fewer characters than control and control-no-decay"."""
    against: dict[tuple[str, str], list[str]] = {}
    for one in found:
        did = one.metric.less if one.finding == "less" else one.metric.more
        against.setdefault((one.pair[0], did), []).append(one.pair[1])
    return [f"users of {first} {did} than {' and '.join(others)}" for (first, did), others in against.items()]
