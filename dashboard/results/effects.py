"""The effects in a count, for a page: for each metric the most important pairs of arms, on one scale at a time.

A scale is one statistic with its interval. A row's sign, its words and whether its dot is filled follow from the
statistic of the scale:

- **lift**: the relative difference of the means, with Fieller's interval. The default.
- **difference**: the difference of the same means; at an interim look the one with the interval that holds at any look.
- **ranks**: the probability that the first arm has the larger value, with the interval of the rank test, which decides.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal, TypeAlias, get_args

from fedping.analysis.statistics import Estimate
from fedping.analysis.verdict import effect_of
from fedping.analysis.verdict.words import NO_INTERVAL, interval_text, lift_sentence, lift_text, mean_text, percent_text
from fedping.protocol.notation import with_minus

Scale: TypeAlias = Literal["lift", "difference", "ranks"]
Document: TypeAlias = Mapping[str, Any]

SCALES: tuple[Scale, ...] = get_args(Scale)
NAMES: Mapping[Scale, str] = {"lift": "Lift", "difference": "Difference", "ranks": "Test of ranks"}

FEW = 12
"""Number of a metric's rows that are shown at first."""

AT_ONCE = 50
"""Maximum number of a metric's rows in one answer."""


@dataclass(frozen=True)
class Shown:
    """One statistic of a comparison, in the units of its scale: percent, except for differences.

    Attributes:
        value: the estimate; None if there is none.
        low: the interval's lower bound; None without a bound.
        high: the upper bound.
        sure: whether the interval excludes "no effect"; None without an interval.
        text: the estimate with its interval.
        tag: the result as a sign and a word or two.
        tone: the tag's colour: better, worse, or none.
        sentence: the result in words.
    """

    value: float | None
    low: float | None
    high: float | None
    sure: bool | None
    text: str
    tag: str
    tone: str
    sentence: str


@dataclass(frozen=True)
class EffectRow:
    """A pair of arms with its values on each scale."""

    pair: tuple[str, str]
    scales: Mapping[Scale, Shown]


@dataclass(frozen=True)
class Effects:
    """A metric, or a ratio of totals, with some of its rows.

    Attributes:
        key: the name of the metric or ratio.
        title: the title of the metric or ratio.
        role: goal or guardrail.
        better: the better direction; None if neither is better.
        scales: the available scales; the first is the default.
        rows: the rows shown: all of them, or those that matter most.
        found: the number of rows that match the search.
        total: the number of all rows.
        conditions: explanations of the numbers, by scale.
    """

    key: str
    title: str
    role: str
    better: str | None
    scales: tuple[Scale, ...]
    rows: tuple[EffectRow, ...]
    found: int
    total: int
    conditions: Mapping[Scale, str]


@dataclass(frozen=True)
class Selection:
    """Selection of a metric's rows.

    Attributes:
        find: only pairs with this text in an arm's name.
        first: the position of the first row.
        most: the number of rows.
    """

    find: str = ""
    first: int = 0
    most: int = FEW

    def of(self, comparisons: Sequence[Document]) -> tuple[list[Document], int]:
        """Return the selected comparisons, and the number of comparisons that match the search."""
        wanted = self.find.casefold().strip()
        found = [one for one in comparisons if any(wanted in arm.casefold() for arm in one["pair"])]
        if len(comparisons) > FEW:
            found.sort(key=_weight)
        return found[self.first : self.first + self.most], len(found)


def _weight(one: Document) -> tuple[bool, float]:
    """Return a sort key for comparisons: shown effects first, then the largest lifts."""
    means = one.get("means") or {}
    shown = one.get("finding", "inconclusive") != "inconclusive" or means.get("shown", "inconclusive") != "inconclusive"
    size = (means.get("lift") or {}).get("value")
    if size is None:
        size = one["per_client"]["superiority"]["value"] - 0.5 if "per_client" in one else 0.0
    return not shown, -abs(size)


def effects_of(document: Document, selection: Selection | None = None, key: str | None = None) -> list[Effects]:
    """Return the effects of a document by metric, then those of its ratios.

    Args:
        document: the count.
        selection: the rows of each metric or ratio; the most important ones if None.
        key: only this metric or ratio; all if None.
    """
    selection = selection or Selection()
    by_metric: dict[str, list[Document]] = {}
    said = dict(zip(map(id, document["comparisons"]), document["sentences"], strict=True))
    for one in document["comparisons"]:
        if key in (None, one["metric"]):
            by_metric.setdefault(one["metric"], []).append(one)
    found = [_of_metric(document, said, name, ones, selection) for name, ones in by_metric.items()]
    by_ratio: dict[str, list[Document]] = {}
    for one in document.get("ratios", ()):
        if key in (None, one["ratio"]):
            by_ratio.setdefault(one["ratio"], []).append(one)
    return [*found, *(_of_ratio(document, name, ones, selection) for name, ones in by_ratio.items())]


def _of_metric(
    document: Document, said: Mapping[int, str], name: str, ones: list[Document], selection: Selection
) -> Effects:
    metric, role = document["metrics"][name], ones[0]["role"]
    chosen, number = selection.of(ones)
    make: dict[Scale, Callable[[Document], Shown]] = {}
    if document["interim"]:
        make["difference"] = lambda one: _at_any_look(one, metric["better"], said[id(one)])
    else:
        if all(one.get("means") for one in ones):  # documents of older versions have none
            make["lift"] = partial(_lift, metric)
            make["difference"] = partial(_difference, metric)
        make["ranks"] = lambda one: _ranks(one, metric["better"], said[id(one)])
    rows = tuple(EffectRow(tuple(one["pair"]), {scale: of(one) for scale, of in make.items()}) for one in chosen)
    conditions = {scale: _condition(scale, document, ones) for scale in make}
    return Effects(name, metric["title"], role, metric["better"], tuple(make), rows, number, len(ones), conditions)


def _of_ratio(document: Document, name: str, ones: list[Document], selection: Selection) -> Effects:
    metric = {"title": ones[0]["title"], "better": None}
    chosen, number = selection.of(ones)
    rows = tuple(
        EffectRow(tuple(one["pair"]), {"lift": _lift(metric, one), "difference": _difference(metric, one)})
        for one in chosen
    )
    scales: tuple[Scale, ...] = ("lift", "difference")
    conditions = {scale: _condition(scale, document, ones) for scale in scales}
    return Effects(name, metric["title"] or name, "goal", None, scales, rows, number, len(ones), conditions)


def _lift(metric: Document, one: Document) -> Shown:
    effect = effect_of(one["means"])
    relative, reason = effect.lift.relative, effect.lift.reason
    text = lift_sentence(metric["title"], tuple(one["pair"]), effect)
    if reason is not None:
        value = None if math.isnan(relative.value) else 100 * relative.value
        plain = lift_text(effect).partition("(")[0].strip()
        return Shown(value, None, None, None, f"{plain} no interval".strip(), "○ no interval", "", text)
    bounds = 100 * relative.low, 100 * relative.high
    text += _worst(one, metric["better"], bounds, lambda worst: with_minus(f"{worst:.3g} %"))
    tag, tone = tag_of(effect.lift.shown, metric["better"], one.get("role"))
    sure = effect.lift.shown != "inconclusive"
    return Shown(100 * relative.value, *bounds, sure, lift_text(effect), tag, tone, text)


def _difference(metric: Document, one: Document) -> Shown:
    effect = effect_of(one["means"])
    difference = effect.lift.difference
    title, (first, second) = metric["title"].capitalize(), one["pair"]
    per = "" if " per " in title else " per client"
    means = " against ".join(map(mean_text, effect.means))
    if not math.isfinite(difference.high - difference.low):
        value = None if math.isnan(difference.value) else difference.value
        why = NO_INTERVAL[effect.lift.reason] if effect.lift.reason else "no interval"
        text = "" if value is None else with_minus(f"{value:+.3f} ")
        told = f"{title}, {first} against {second}: {text}({why}), {means}{per}."
        return Shown(value, None, None, None, f"{text}no interval", "○ no interval", "", told)
    text = interval_text(difference)
    told = f"{title}, {first} against {second}: {text}, {means}{per}."
    told += _worst(one, metric["better"], (difference.low, difference.high), lambda worst: f"{worst:.3f}")
    tag, tone = tag_of(effect.lift.shown, metric["better"], one.get("role"))
    sure = effect.lift.shown != "inconclusive"
    return Shown(difference.value, difference.low, difference.high, sure, text, tag, tone, told)


def _worst(one: Document, better: str | None, bounds: tuple[float, float], write: Callable[[float], str]) -> str:
    """Return the largest loss that a guardrail's interval still allows if it includes "no effect"; otherwise empty."""
    low, high = bounds
    if one.get("role") != "guardrail" or not low <= 0 <= high:
        return ""
    return f" It may be up to {write(high if better == 'less' else -low)} worse."


def _at_any_look(one: Document, better: str | None, sentence: str) -> Shown:
    estimate, percent = _estimate(one["anytime_valid"]), one.get("percent")
    base = 100 * estimate.value / percent if percent else 0.0
    tag, tone = tag_of(one["finding"], better, one["role"])
    low, high = (bound if math.isfinite(bound) else None for bound in (estimate.low, estimate.high))
    sure = one["finding"] != "inconclusive"
    text = interval_text(estimate) + percent_text(estimate.value, base)
    return Shown(estimate.value, low, high, sure, text, tag, tone, sentence)


def _ranks(one: Document, better: str | None, sentence: str) -> Shown:
    """Return the statistic of the rank test, which decides; older documents lack its interval."""
    estimate = _estimate(one.get("decides") or one["per_client"]["superiority"])
    value, low, high = (100 * each for each in (estimate.value, estimate.low, estimate.high))
    tag, tone = tag_of(one["finding"], better, one["role"])
    text = f"{value:.2f} % [{low:.2f}, {high:.2f}]"
    return Shown(value, low, high, one["finding"] != "inconclusive", text, tag, tone, sentence)


def tag_of(shown: str, better: str | None, role: str | None) -> tuple[str, str]:
    """Return a statistic's result as a sign with a word or two, and the tone of this tag.

    Args:
        shown: "less", "more" or "inconclusive".
        better: which of the first two is better; None if neither is.
        role: "guardrail" for metrics that must not get worse.
    """
    if shown == "inconclusive":
        return ("○ no harm shown" if role == "guardrail" else "○ inconclusive"), ""
    if better is None:
        return f"● {shown}", ""
    if shown != better:
        return ("▼ broken" if role == "guardrail" else "▼ worse"), "worse"
    return ("▲ held, better" if role == "guardrail" else "▲ better"), "better"


def _condition(scale: Scale, document: Document, ones: Sequence[Document]) -> str:
    """Return an explanation of the numbers on a scale."""
    confidence = f"{100 * document['confidence']:.4g} %"
    tails = ones[0].get("per_client", {}).get("tails")
    if document["interim"]:
        return (
            f"{confidence} interval of the difference that holds at any look, first minus second; in brackets the "
            "difference in percent of the second arm's mean so far. The lift has no interval before the end."
        )
    if scale == "ranks":
        share = _estimate(ones[0].get("decides") or ones[0]["per_client"]["superiority"]).confidence
        trimmed = f" Values are winsorised at {100 * tails:.3g} % of the clients at either end." if tails else ""
        return (
            f"{100 * share:.4g} % interval of the rank test, which decides the verdict: the probability that a "
            f"client of the first arm has a larger value than one of the second.{trimmed}"
        )
    what = "relative difference" if scale == "lift" else "difference"
    text = f"{confidence} interval of the {what} of means, one value per client"
    capped = next((one["means"]["cap"] for one in ones if one["means"]["cap"]), None)
    if capped:
        text += f", capped at {capped['value']:,.6g} in all arms"
    elif tails:
        text += "; no value is trimmed, so one client with a very large value can change it"
    if any(one["means"]["adjustment"] for one in ones):
        text += ", adjusted by the time before version 1"
    return f"{text}."


def _estimate(given: Document) -> Estimate:
    low, high = given["low"], given["high"]
    return Estimate(
        math.nan if given["value"] is None else given["value"],
        -math.inf if low is None else low,
        math.inf if high is None else high,
        given["confidence"],
    )


MOST_SENTENCES = 3


@dataclass(frozen=True)
class Lift:
    """One of the most important lifts.

    Attributes:
        text: the lift with its interval.
        of: the metric and the arms.
        sure: whether the interval excludes "no effect".
    """

    text: str
    of: str
    sure: bool


def lifts_that_matter(effects: Sequence[Effects]) -> tuple[list[Lift], int]:
    """Return at most three lifts with an interval, shown effects first, and the number of further lifts."""
    lifts = [(one.title, row.pair, row.scales["lift"]) for one in effects for row in one.rows if "lift" in one.scales]
    lifts = sorted((each for each in lifts if each[2].sure is not None), key=lambda each: not each[2].sure)
    named = [
        Lift(shown.text.replace(" %", "\u00a0%"), f"{title}, {' against '.join(pair)}", bool(shown.sure))
        for title, pair, shown in lifts[:MOST_SENTENCES]
    ]
    return named, len(lifts) - len(named)


def headline(document: Document) -> str:
    """Return the verdict with at most three findings."""
    begin, colon, found = str(document["verdict"]).partition(" a difference: ")
    parts = found.split("; ")
    if len(parts) <= MOST_SENTENCES:
        return str(document["verdict"])
    return f"{begin}{colon}{'; '.join(parts[:MOST_SENTENCES])}; and {len(parts) - MOST_SENTENCES:,} more."


def disagreements(document: Document) -> Iterator[str]:
    """Yield a sentence for each kind of comparison where the lift and the rank test disagree."""
    if document["interim"]:
        return
    kinds: dict[str, list[str]] = {}
    for one in document["comparisons"]:
        means = one.get("means")
        if not means or means["shown"] == one["finding"]:
            continue
        if means["no_interval"] and means["no_interval"] not in ("control_near_0", "negative_control"):
            continue
        where = f"{document['metrics'][one['metric']]['title']}, {' against '.join(one['pair'])}"
        kinds.setdefault(_kind(one["finding"], means["shown"]), []).append(where)
    for kind, places in kinds.items():
        more = f"; and {len(places) - MOST_SENTENCES:,} more" if len(places) > MOST_SENTENCES else ""
        yield f"{kind} ({'; '.join(places[:MOST_SENTENCES])}{more})."


def _kind(ranks: str, means: str) -> str:
    if means == "inconclusive":
        return (
            "The rank test, which decides, shows a difference, but the lift does not: most clients differ, but the "
            "means may not"
        )
    if ranks == "inconclusive":
        return (
            "The lift excludes 0, but the rank test, which decides, shows no difference: a few clients with large "
            "values may cause it"
        )
    return "The rank test, which decides, and the lift have opposite directions: most users do not follow the mean"
