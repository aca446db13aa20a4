"""The tables of a report, the same on the terminal and on the page."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import chain
from typing import TypeAlias

from fedping.analysis.rounds import RoundTraffic
from fedping.analysis.statistics import FEWEST_CLIENTS
from fedping.analysis.statistics.lift import Reason
from fedping.analysis.study.metrics import NEAR, Means
from fedping.analysis.study.tally import WEEKS
from fedping.analysis.tables import Table, means_table, p_value_table
from fedping.analysis.verdict import Comparison, Plan, Verdict
from fedping.analysis.verdict.comparison import Effect, PartEffects
from fedping.analysis.verdict.words import (
    NO_INTERVAL,
    SURVIVORS,
    TICKETS,
    deciding_text,
    finding_sign,
    fragility_text,
    interval_text,
    lift_text,
    mean_text,
    means_words,
    p_text,
    parts_sentence,
    percent_text,
    share_text,
    shortage_sentence,
)
from fedping.protocol.notation import with_minus
from fedping.protocol.ping import FRECENCY_UPDATE


def report_tables(verdict: Verdict) -> list[Table]:
    """Return the tables that follow the verdict's table in a report, in order."""
    return [
        sizes_table(verdict),
        *([lift_table(verdict)] if about_outcomes(verdict) else []),
        means_table(verdict.tally, verdict.plan.metrics),
        findings_table(verdict),
        effects_table(verdict),
        p_value_table(verdict.comparisons),
        ping_effects_table(verdict),
        *segment_tables(verdict),
        *in_study_tables(verdict),
    ]


def sizes_table(verdict: Verdict) -> Table:
    """Return a table with a row per arm: its number of clients, and the numbers of their pings."""
    enrolled = ["enrolled"] if verdict.enrolled is not None else []
    rows = []
    for name, arm in verdict.tally.arms.items():
        known = [f"{verdict.enrolled[name]:,.0f}"] if verdict.enrolled is not None else []
        rows.append((name, *known, f"{arm.clients:,}", f"{arm.exposed:,}", f"{arm.pings:,}", f"{arm.selections:,}"))
    return Table("Arms", ("arm", *enrolled, "clients", "exposed", "pings", verdict.measured.used), tuple(rows))


def verdict_table(verdict: Verdict) -> Table:
    """Return a table with a row per comparison: the finding, its size, and the interval that decides."""
    interim, holm = verdict.plan.interim, verdict.plan.correction == "holm"
    rows = []
    for one in verdict.comparisons:
        difference, base = one.sequence or one.clients.difference, one.base
        p = [] if interim else [p_text(one.log10_holm if holm else one.log10_bonferroni)]
        rows.append(
            (
                *_which(one),
                finding_sign(one),
                *(f"{mean:.3f}" for mean in one.clients.means),
                with_minus(f"{difference.value:+.3f}"),
                percent_text(difference.value, base).strip(" ()") or "-",
                interval_text(one.sequence).partition(" ")[2] if one.sequence else share_text(one.deciding),
                *p,
                fragility_text(one),
            )
        )
    decides = ["interval at any look"] if interim else ["larger in", "p corrected"]
    heads = ("metric", "arms", "found", "first", "second", "difference", "percent", *decides, "overturned by")
    means = f"; {means_words(verdict.tally.tails)}" if verdict.tally.tails else ""
    return Table(f"The verdict: one client, one value{means}", heads, tuple(rows), words=3)


def about_outcomes(verdict: Verdict) -> bool:
    """Return whether the verdict shows lifts: the study declares outcomes, or means were requested."""
    return bool(verdict.study.outcomes) or verdict.plan.means != Means()


Titled: TypeAlias = tuple[str, tuple[str, str], Effect]
"""An effect on a mean or ratio with its title and arms."""

LIFT_HEADS = ("mean or ratio", "arms", "found", "lift", "first", "second", "difference", "clients", "done", "without")


def lift_table(verdict: Verdict) -> Table:
    """Return a table with a row per pair and mean or ratio of totals: the lift, the difference, and the adjustment."""
    rows = tuple(lift_cells(*one) for one in verdict.lifts)
    return Table("The lift: means over clients, and ratios", LIFT_HEADS, rows, words=3)


def lift_cells(title: str, pair: tuple[str, str], effect: Effect) -> tuple[str, ...]:
    """Return a row of the table of lifts."""
    lift, cap, adjustment = effect.lift, effect.cap, effect.adjustment
    done = [f"capped at {cap.value:,.6g} ({sum(cap.moved):,} moved)"] if cap is not None else []
    done += ["adjusted"] if adjustment is not None else []
    relative = lift_text(effect)
    return (
        title,
        " - ".join(pair),
        {"less": "▼ less", "more": "▲ more", "inconclusive": "○ not shown"}[lift.shown],
        relative if lift.reason is None else f"{relative.partition('(')[0]}*",
        *map(mean_text, effect.means),
        interval_text(lift.difference) if math.isfinite(lift.difference.high) else "-",
        ", ".join(f"{n:,}" for n in effect.n),
        ", ".join(done) or "-",
        "-" if effect.fragility is None else f"{effect.fragility:,} by the largest",
    )


def lift_notes(verdict: Verdict) -> list[str]:
    """Return the notes on lifts: missing intervals, caps, adjustments and exclusions."""
    return [*interval_notes(verdict.lifts), *verdict.means_notes]


def interval_notes(lifts: Sequence[Titled]) -> list[str]:
    """Return the reasons for missing intervals of lifts, one sentence each."""
    by_reason: dict[Reason, dict[str, None]] = {}
    for title, _, effect in lifts:
        if effect.lift.reason is not None:
            by_reason.setdefault(effect.lift.reason, {})[title] = None
    return [f"* {', '.join(titles)}: {NO_INTERVAL[reason]}." for reason, titles in by_reason.items()]


def findings_table(verdict: Verdict) -> Table:
    """Return a table with a row per comparison: the finding, and its p-values by client."""
    rows = [
        (
            *_which(one),
            finding_sign(one),
            *(p_text(p) for p in (one.clients.test.log10_p, one.log10_bonferroni, one.log10_holm)),
        )
        for one in verdict.comparisons
    ]
    heads = ("metric", "arms", "finding", "p", "Bonferroni", "Holm")
    return Table("One client, one value: p-values", heads, tuple(rows), words=3)


def effects_table(verdict: Verdict) -> Table:
    """Return a table with a row per comparison: effect sizes by client, and the interval of an interim look."""
    looks = ["at any look"] if verdict.plan.interim else []
    tails = ["untrimmed"] if verdict.tally.tails else []
    rows = []
    for one in verdict.comparisons:
        above, sequence = one.clients.superiority, [deciding_text(one)] if one.sequence else []
        rows.append(
            (
                *_which(one),
                interval_text(one.clients.difference)
                + percent_text(one.clients.difference.value, one.clients.means[1]),
                *([interval_text(one.clients.untrimmed)] if tails and one.clients.untrimmed else []),
                *sequence,
                f"{above.value:.4f} [{above.low:.4f}, {above.high:.4f}]",
                interval_text(one.clients.shift),
            )
        )
    difference = "difference, winsorised" if tails else "difference"
    heads = ("metric", "arms", difference, *tails, *looks, "superiority", "shift")
    return Table("How large, by client", heads, tuple(rows), words=2)


def ping_effects_table(verdict: Verdict) -> Table:
    """Return a table with a row per comparison: the difference of means by ping, with an interval by clients' sums."""
    rows = tuple((*_which(one), _by_ping(one)) for one in verdict.comparisons if one.pings is not None)
    return Table("How large, by ping: for comparison only", ("metric", "arms", "difference"), rows, words=2)


def segment_tables(verdict: Verdict) -> list[Table]:
    """Return a table for each declared segment, with a row per comparison and group."""
    tables = []
    for segment in verdict.study.segments:
        effects = [one for one in verdict.parts if one.segment == segment.name]
        if any(one.effects for one in effects):  # otherwise the segments were not counted
            groups = dict(enumerate(segment.groups))
            tables.append(_groups_table(f"By {segment.name}", "group", effects, groups))
    return tables


def in_study_tables(verdict: Verdict) -> list[Table]:
    """Return tables with a row per comparison and part of the clients' time in the study; none if there is one part."""
    effects = verdict.in_study
    return [_groups_table("By the clients' time in the study", "time", effects, WEEKS)] if effects else []


def _groups_table(title: str, head: str, effects: Sequence[PartEffects], groups: Mapping[int, str]) -> Table:
    rows = tuple(
        (
            one.metric.title,
            f"{one.pair[0]} - {one.pair[1]}",
            groups[effect.number],
            *(f"{n:,}" for n in effect.n),
            interval_text(effect.difference),
            "-" if effect.percent is None else with_minus(f"{effect.percent:+.3g} %"),
        )
        for one in effects
        for effect in one.effects
    )
    return Table(title, ("metric", "arms", head, "first", "second", "difference", "percent"), rows, words=3)


def segment_sentences(verdict: Verdict) -> list[str]:
    """Return sentences on whether a comparison's effects differ between the groups of each declared segment."""
    return [parts_sentence(one, verdict.plan) for one in verdict.parts if one.declared]


def _by_ping(one: Comparison) -> str:
    if one.pings is None:
        return "-"
    return interval_text(one.pings.difference) + percent_text(one.pings.difference.value, one.pings.means[1])


def table_notes(verdict: Verdict) -> list[str]:
    """Return the notes that explain how to read the tables."""
    plan, measured = verdict.plan, verdict.measured
    notes = [
        f"Pings: {plan.window.words}; only {measured.those} are compared. "
        f"{verdict.tally.duplicates:,} duplicate documents were dropped.",
        f"{_confidence(plan)} The verdict takes p corrected by {plan.correction.capitalize()}.",
        "The verdict counts each client once, because the pings of one client are not independent of each other. "
        f"Figures by ping are given {measured.record}; their p-values assume independent pings, and so are too small.",
        _decided(verdict),
        "Superiority is the probability that a random client of the first arm has the larger value (0.5: no "
        "tendency); shift is the median of all differences between a client of the first arm and one of the second "
        "(Hodges-Lehmann).",
    ]
    notes.extend(note for note in [personal_note(verdict)] if note)
    notes.extend(lift_notes(verdict) if about_outcomes(verdict) else ())
    if verdict.tally.tails:
        notes.append(
            f"Differences and means by client are {means_words(verdict.tally.tails)}, also over time and in groups. "
            "With heavy tails they don't estimate the mean. The untrimmed difference and its interval estimate the "
            "mean's; one client that claims much can set those."
        )
    if any(one.fragility is not None for one in verdict.comparisons):
        how = "absent, those with the largest influence first" if plan.interim else "with the values that harm it most"
        notes.append(f"'overturned by' is the number of clients who, {how}, would leave a finding unproven. {TICKETS}")
    notes.extend(f"{shortage_sentence(one)}." for one in verdict.comparisons if one.shortage is not None)
    if verdict.enrolled is None:
        notes.append("Pings don't show the number of enrolled clients; --enrolled adds it.")
    if verdict.tally.mixed:
        notes.append(
            f"{verdict.tally.mixed:,} clients named more than one arm; they are left out of the comparison by client."
        )
    if verdict.in_study:
        notes.append(SURVIVORS)
    if plan.interim:
        later, wide = (any(getattr(one, of) is not None for one in plan.metrics) for of in ("later", "wide"))
        notes.append(
            "This is an interim look: p-values hold for one look at the planned end and decide nothing here. The "
            "interval 'at any look' may be read as often as one likes; it is made from each client's first "
            f"{measured.one}{', and of a later outcome from the totals of ripe clients' * later}, which later pings do "
            f"not change. For shares, and for values whose bounds are at most {NEAR} apart, it is exact from the first "
            "client on; for other metrics it holds in the limit of many, "
            f"from {FEWEST_CLIENTS:,} clients in each arm on, or more where one arm is smaller"
            f"{'; before that, outcomes with wider bounds have an exact interval too' * wide}."
        )
    return notes


def training_note(plan: Plan, traffic: Mapping[str, RoundTraffic]) -> str | None:
    """Return a caution if the window has pings that were ranked while a line was still being trained; else None.

    Args:
        plan: the plan of the comparisons.
        traffic: the rounds of every line, by name.
    """
    for line, rounds in traffic.items():
        trained = rounds.iterations
        if trained and _overlaps(plan, trained[-1], rounds.ended_ms[-1]):
            return (
                f"These pings aren't from a frozen version alone: they include versions up to {trained[-1]}, whose "
                f"pings trained line '{line}'. For an evaluation phase alone, give its version (--from-iteration "
                f"{trained[-1] + 1}, if pings of it have landed) or its time (--since)."
            )
    return None


def personal_note(verdict: Verdict) -> str | None:
    """Return a caution if the loss of personal arms is compared in a study of interactions; else None."""
    personal = {arm.name for arm in verdict.study.arms if arm.personal}
    compared = [name for name in dict.fromkeys(chain(*verdict.plan.pairs)) if name in personal]
    asked = any(metric.of == "loss" for metric in verdict.plan.metrics)
    if not (compared and asked and verdict.study.document is FRECENCY_UPDATE):
        return None
    arms = f"Arm '{compared[0]}' is" if len(compared) == 1 else f"Arms {', '.join(map(repr, compared))} are"
    return (
        f"{arms} personal, but the loss in pings is the shared model's, for a list that the client's own model "
        "ordered. It says nothing about the client's own model. Compare num_chars_typed and rank_selected."
    )


def _decided(verdict: Verdict) -> str:
    plan, level = verdict.plan, 100 * verdict.comparisons[0].deciding.confidence
    if plan.interim:
        return (
            f"The {level:.4g} % interval 'at any look' of the difference decides: the effect is shown if it excludes 0."
        )
    return (
        f"The test of ranks decides. The {level:.4g} % interval next to a finding comes from the test's standard "
        "error, so it leaves out 50 % exactly if the test shows a difference. Intervals of means need not agree."
    )


def _confidence(plan: Plan) -> str:
    level = f"{100 * plan.confidence:.4g} %"
    if plan.tests == 1:
        return f"The intervals have a confidence of {level}."
    return f"Intervals are {level} each, so that all {plan.tests} hold together with {100 * (1 - plan.alpha):g} %."


def _overlaps(plan: Plan, last_trained: int, trained_until: int) -> bool:
    by_version = plan.window.first is None or plan.window.first <= last_trained
    by_time = plan.window.since is None or plan.window.since < trained_until
    return by_version and by_time


def _which(one: Comparison) -> tuple[str, str]:
    return one.metric.title, f"{one.pair[0]} - {one.pair[1]}"
