"""The document of an analysis in the layout of the page: goals apart from guardrails, one block per metric."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

from fedping.analysis.statistics import Estimate
from fedping.analysis.verdict.words import interval_text, p_text, percent_text, share_text

Document: TypeAlias = Mapping[str, Any]


@dataclass(frozen=True)
class Row:
    """A comparison: the finding in words, and its numbers as text.

    ``tag`` is the finding in a word or two, ``tone`` its colour: better, worse, or none.
    """

    first: str
    second: str
    sentence: str
    tag: str
    tone: str
    decides: str
    difference: str
    untrimmed: str
    fragility: str
    p: str
    p_bonferroni: str
    p_holm: str
    superiority: str
    shift: str
    pings: str


@dataclass(frozen=True)
class Block:
    """A metric with all its comparisons."""

    name: str
    title: str
    rows: tuple[Row, ...]


def blocks_of(document: Document, role: str) -> list[Block]:
    """Return the blocks of the metrics that are a ``goal``, or a ``guardrail``."""
    found: dict[str, list[Row]] = {}
    for one, sentence in zip(document["comparisons"], document["sentences"], strict=True):
        if one["role"] == role:
            found.setdefault(one["metric"], []).append(
                _row(one, sentence, document["metrics"][one["metric"]]["better"])
            )
    return [Block(name, document["metrics"][name]["title"], tuple(rows)) for name, rows in found.items()]


def _row(one: Document, sentence: str, better: str | None) -> Row:
    clients, tag = one["per_client"], _tag(one, better)
    superiority = _estimate(clients["superiority"])
    return Row(
        first=one["pair"][0],
        second=one["pair"][1],
        sentence=sentence,
        tag=tag[0],
        tone=tag[1],
        decides=_decides(one),
        difference=_with_percent(clients),
        untrimmed=interval_text(_estimate(raw)) if (raw := clients.get("untrimmed_difference")) else "-",
        fragility=f"{few:,} of {sum(clients['n']):,}" if (few := one.get("fragility")) is not None else "-",
        p=p_text(clients["log10_p"]),
        p_bonferroni=p_text(clients["log10_p_bonferroni"]),
        p_holm=p_text(clients["log10_p_holm"]),
        superiority=f"{superiority.value:.4f} [{superiority.low:.4f}, {superiority.high:.4f}]",
        shift=interval_text(_estimate(clients["hodges_lehmann"])),
        pings=_with_percent(one["per_ping"]),
    )


def _with_percent(level: Document) -> str:
    """Return the difference of means by client or by ping, with its interval and in percent."""
    difference = _estimate(level["difference"])
    return interval_text(difference) + percent_text(difference.value, level["means"][1] or 0.0)


def _decides(one: Document) -> str:
    """Return the deciding effect with its interval; older documents do not have that of the rank test."""
    if one["anytime_valid"]:
        value = one["anytime_valid"]["value"]
        percent = one.get("percent")
        base = 100 * value / percent if percent else 0.0
        return interval_text(_estimate(one["anytime_valid"])) + percent_text(value, base)
    return share_text(_estimate(one.get("decides") or one["per_client"]["superiority"]))


def _tag(one: Document, better: str | None) -> tuple[str, str]:
    """Return a finding as a sign and a word or two, and its tone; ``better`` is None if neither direction is better."""
    sure, worse = one["finding"] != "inconclusive", one["worse"]
    if one["role"] == "guardrail":
        if worse:
            return "▼ broken", "worse"
        return ("▲ held, better", "better") if sure else ("○ no harm shown", "")
    if not sure:
        return "○ inconclusive", ""
    if better is None:
        return "● differs", ""
    return ("▼ worse", "worse") if worse else ("▲ better", "better")


def _estimate(given: Document) -> Estimate:
    low, high = given["low"], given["high"]
    return Estimate(
        given["value"],
        float("-inf") if low is None else low,
        float("inf") if high is None else high,
        given["confidence"],
    )
