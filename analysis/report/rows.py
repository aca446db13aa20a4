"""The tables of a report as text, the same on the terminal and on the page."""

from __future__ import annotations

from typing import NamedTuple

from analysis.verdict import Comparison, Verdict
from analysis.verdict.words import interval_text, is_worse, p_text


class Rows(NamedTuple):
    """A table: its heads, its cells row by row, and how many of the first columns are words, not numbers."""

    heads: list[str]
    cells: list[list[str]]
    words: int


def arm_rows(verdict: Verdict) -> Rows:
    """Return an arm a row: its sizes, and the means of every metric over clients."""
    metrics = verdict.plan.metrics
    enrolled = ["enrolled"] if verdict.enrolled is not None else []
    heads = ["arm", *enrolled, "clients", "exposed", "pings", "selections", *(m.title for m in metrics)]
    cells = []
    for name, arm in verdict.tally.arms.items():
        known = [f"{verdict.enrolled[name]:,.0f}"] if verdict.enrolled is not None else []
        sizes = [f"{arm.clients:,}", f"{arm.exposed:,}", f"{arm.pings:,}", f"{arm.selections:,}"]
        cells.append([name, *known, *sizes, *(_mean(arm.metrics[m.name].clients.mean) for m in metrics)])
    return Rows(heads, cells, words=1)


def p_rows(verdict: Verdict) -> Rows:
    """Return a comparison a row: what was found, and its p-values by client."""
    heads = ["metric", "arms", "finding", "p", "Bonferroni", "Holm"]
    cells = [
        [
            *_which(one),
            finding_text(one),
            *(p_text(p) for p in (one.clients.test.log10_p, one.log10_bonferroni, one.log10_holm)),
        ]
        for one in verdict.comparisons
    ]
    return Rows(heads, cells, words=3)


def effect_rows(verdict: Verdict) -> Rows:
    """Return a comparison a row: its effect sizes by client, and the interval of an interim look."""
    looks = ["at any look"] if verdict.plan.interim else []
    heads = ["metric", "arms", "difference", *looks, "superiority", "shift"]
    cells = []
    for one in verdict.comparisons:
        above, sequence = one.clients.superiority, [interval_text(one.sequence)] if one.sequence else []
        cells.append(
            [
                *_which(one),
                interval_text(one.clients.difference),
                *sequence,
                f"{above.value:.4f} [{above.low:.4f}, {above.high:.4f}]",
                interval_text(one.clients.shift),
            ]
        )
    return Rows(heads, cells, words=2)


def ping_rows(verdict: Verdict) -> Rows:
    """Return a comparison a row, by ping."""
    heads = ["metric", "arms", "mean of the first", "of the second", "difference", "p if pings were independent"]
    cells = [
        [
            *_which(one),
            *(f"{mean:.4f}" for mean in one.pings.means),
            interval_text(one.pings.difference),
            p_text(one.pings.test.log10_p),
        ]
        for one in verdict.comparisons
    ]
    return Rows(heads, cells, words=2)


def _which(one: Comparison) -> list[str]:
    return [one.metric.title, f"{one.pair[0]} - {one.pair[1]}"]


def finding_text(one: Comparison) -> str:
    """Return a finding in a word or two: fewer or more, better or worse."""
    if one.finding == "inconclusive":
        return "inconclusive"
    return f"{one.finding}: {'worse' if is_worse(one) else 'better'}"


def table_notes(verdict: Verdict) -> list[str]:
    """Return what has to be known to read the tables."""
    plan = verdict.plan
    notes = [
        f"Pings: {plan.window.words}; only interactions that ended with a selection are compared. "
        f"{verdict.tally.duplicates:,} duplicate documents were dropped.",
        f"Intervals are {100 * plan.confidence:.4g} % each, so that all {plan.tests} hold together with "
        f"{100 * (1 - plan.alpha):g} %. The verdict takes p corrected by {plan.correction.capitalize()}.",
        "The verdict counts each client once, because the pings of one client are not independent of each other.",
        "Superiority is how often a random client of the first arm has the larger value (0.5: no tendency); shift is "
        "the median of all differences between a client of the first arm and one of the second (Hodges-Lehmann).",
    ]
    if verdict.tally.mixed:
        notes.append(
            f"{verdict.tally.mixed:,} clients named more than one arm; they are left out of the comparison by client."
        )
    if plan.interim:
        notes.append(
            "This is an interim look: p-values hold for one look at the planned end and decide nothing here. The "
            "interval 'at any look' may be read as often as one likes; it is made from each client's first "
            "interaction, which later pings do not change."
        )
    return notes


def _mean(value: float) -> str:
    return "-" if value != value else f"{value:.4f}"
