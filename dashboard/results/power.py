"""Power and time left: the smallest effect that a count can show, and the clients needed for an effect of interest.

Both follow from the count's intervals: their width shrinks with the root of the number of clients, and at an interim
look also with the boundary of the sequence.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

from scipy.special import ndtri

from fedping.analysis.statistics.looks import boundary
from fedping.analysis.study.tally import HOUR_MS

Document: TypeAlias = Mapping[str, Any]

POWER = 0.8
PACE_HOURS = 24
"""Length in hours of the period, up to the newest ping, from which the pace is computed."""


def outlook(document: Document) -> list[str]:
    """Return a count's power, in a sentence per comparison; for interim looks also the time to the planned end."""
    return [*_shows(document), *_time_left(document)]


def _shows(document: Document) -> Iterator[str]:
    for one in document["comparisons"]:
        limits = _least(one, document)
        if limits is None:
            continue
        metric, pair = document["metrics"][one["metric"]]["title"].capitalize(), " against ".join(one["pair"])
        text = f"{metric}, {pair}: differences from about {_difference_text(limits[0], one)}"
        if document["interim"] and sum(one["per_client"]["n"]) < document["planned_clients"]:
            text += (
                f" now, and from about {_difference_text(limits[1], one)} at {document['planned_clients']:,} clients"
            )
        yield f"{text} are shown with a power of {100 * POWER:g} %."


def _least(one: Document, document: Document) -> tuple[float, float] | None:
    """Return the smallest differences of means that can be shown now and at the planned end; None without a spread.

    The power is computed for means, and is close to the rank test's unless there are outliers.
    """
    level, n = 1 - document["confidence"], sum(one["per_client"]["n"])
    estimate = one["anytime_valid"] or one["per_client"]["difference"]
    if estimate["low"] is None or estimate["high"] is None:
        return None
    half, more = (estimate["high"] - estimate["low"]) / 2, float(ndtri(POWER))
    if not document["interim"]:
        now = half * (1 + more / -float(ndtri(level / 2)))
        return now, now
    planned = document["planned_clients"]
    if one.get("anytime_bounds"):  # its half-width is nearly the same number of standard errors at every look
        plain = one["per_client"]["difference"]
        if plain["low"] is None or plain["high"] is None:
            return None
        now = half + more * (plain["high"] - plain["low"]) / 2 / -float(ndtri(level / 2))
        return now, now * math.sqrt(n / planned)
    error = half / boundary(n, level, planned)
    at_end = error * math.sqrt(n / planned)
    return half + more * error, at_end * (boundary(planned, level, planned) + more)


EFFECT = 5.0
"""Default of the smallest effect of interest, in percent."""

MOST_CLIENTS = 1e12
"""Largest number of clients that is displayed."""


@dataclass(frozen=True)
class Needed:
    """The clients and time that a comparison needs to show the smallest effect of interest.

    Attributes:
        metric: the metric's title.
        pair: the arms.
        clients: the number of compared clients in both arms so far.
        least: the smallest lift that can be shown now, in percent, as text.
        needed: the number of clients in both arms at which the effect is shown, as text.
        time: the time until this number is reached at the present pace, as text.
    """

    metric: str
    pair: tuple[str, str]
    clients: int
    least: str
    needed: str
    time: str


def needs(document: Document, effect: float) -> list[Needed]:
    """Return the clients and time that each comparison needs to show an effect, in percent of the second arm's mean."""
    return [_needs(one, document, effect) for one in document["comparisons"]]


def _needs(one: Document, document: Document, effect: float) -> Needed:
    title, pair = document["metrics"][one["metric"]]["title"], (one["pair"][0], one["pair"][1])
    n, base = sum(one["per_client"]["n"]), one["per_client"]["means"][1]
    limits = _least(one, document)
    if limits is None or not base:
        return Needed(title, pair, n, "-", "-", "the spread is still unknown" if limits is None else "-")
    least = 100 * limits[0] / abs(base)
    if least <= effect:
        return Needed(title, pair, n, f"{_short(least)} %", "reached", "-")
    needed = clients_for(one, document, effect / 100 * abs(base))
    if needed is None:
        return Needed(title, pair, n, f"{_short(least)} %", "-", "-")
    pace = _an_hour([document["arms"][arm]["by_hour"] for arm in pair])
    left = _duration((needed - n) / pace) if pace > 0 else f"no new clients in the last {PACE_HOURS} hours"
    if one["finding"] != "inconclusive":
        left = "none needed: a difference is shown"
    return Needed(title, pair, n, f"{_short(least)} %", f"{_rounded(needed):,}", left)


def clients_for(one: Document, document: Document, difference: float) -> int | None:
    """Return the number of clients, in both arms, at which a difference of means is shown with a power of 80 %.

    None if the number is unknown or larger than :data:`MOST_CLIENTS`. Both arms are assumed to grow in proportion, with
    an unchanged spread.
    """
    n, limits = sum(one["per_client"]["n"]), _least(one, document)
    if limits is None:
        return None
    if not document["interim"] or one.get("anytime_bounds"):
        needed = n * (limits[0] / difference) ** 2
    else:
        estimate, level, planned = one["anytime_valid"], 1 - document["confidence"], document["planned_clients"]
        error = (estimate["high"] - estimate["low"]) / 2 / boundary(n, level, planned)

        def shown(clients: float) -> bool:
            reach = boundary(clients, level, planned) + float(ndtri(POWER))
            return bool(error * math.sqrt(n / clients) * reach <= difference)

        low, high = float(n), float(n)
        while not shown(high):
            low, high = high, 2 * high
            if high > MOST_CLIENTS:
                return None
        while high - low > 1:
            middle = (low + high) / 2
            low, high = (low, middle) if shown(middle) else (middle, high)
        needed = high
    return math.ceil(needed) if needed <= MOST_CLIENTS else None


def _rounded(number: int) -> int:
    """Return a number rounded to three significant digits, because it is an estimate."""
    return int(float(f"{number:.3g}"))


def _difference_text(difference: float, one: Document) -> str:
    base = one["per_client"]["means"][1]
    return f"{difference:.3g}" + (f" ({_short(100 * difference / abs(base))} %)" if base else "")


def _short(value: float) -> str:
    """Return a number with two significant digits, or as an integer: 0.012, 3.5, 1,200."""
    return f"{value:.2g}" if value < 99.5 else f"{value:,.0f}"


def _time_left(document: Document) -> Iterator[str]:
    if not document["interim"]:
        return
    planned = document["planned_clients"]
    for pair in dict.fromkeys(tuple(one["pair"]) for one in document["comparisons"]):
        left = planned - sum(document["arms"][arm]["exposed"] for arm in pair)
        names = " and ".join(pair)
        pace = _an_hour([document["arms"][arm]["by_hour"] for arm in pair])
        if left <= 0:
            yield f"{names}: the planned {planned:,} clients are reached."
        elif pace > 0:
            yield (
                f"{names}: {left:,} clients to the planned end, about {_duration(left / pace)} at the pace of the last "
                f"{PACE_HOURS} hours ({_short(pace)} new clients an hour)."
            )
        else:
            yield f"{names}: {left:,} clients to the planned end; no new clients in the last {PACE_HOURS} hours."


def _an_hour(arms: list[Document]) -> float:
    """Return the number of new clients per hour in the last :data:`PACE_HOURS` hours with pings."""
    hours = [at for arm in arms for at in arm["from_ms"]]
    if not hours:
        return 0.0
    end = max(hours) + HOUR_MS
    first = max(min(hours), end - PACE_HOURS * HOUR_MS)
    new = sum(
        count for arm in arms for at, count in zip(arm["from_ms"], arm["newly_exposed"], strict=True) if at >= first
    )
    return float(new / ((end - first) / HOUR_MS))


def _duration(hours: float) -> str:
    if hours < 1:
        return "less than an hour"
    return f"{hours:.0f} hours" if hours < 48 else f"{hours / 24:,.0f} days"
