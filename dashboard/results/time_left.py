"""How small an effect a count can show, and the time left to the planned end at the pace of the last day."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any, TypeAlias

from scipy.special import ndtri

from fedping.analysis.statistics.looks import boundary
from fedping.analysis.study.tally import HOUR_MS

Document: TypeAlias = Mapping[str, Any]

POWER = 0.8
PACE_HOURS = 24
"""Hours at the end of the pings that determine the pace."""


def outlook(document: Document) -> list[str]:
    """Return what a count can show, one sentence per comparison; if interim, then the time to the planned end."""
    return [*_shows(document), *_time_left(document)]


def _shows(document: Document) -> Iterator[str]:
    for one in document["comparisons"]:
        found = _least(one, document)
        if found is None:
            continue
        metric, pair = document["metrics"][one["metric"]]["title"].capitalize(), " against ".join(one["pair"])
        said = f"{metric}, {pair}: differences from about {_told(found[0], one)}"
        if document["interim"] and sum(one["per_client"]["n"]) < document["planned_clients"]:
            said += f" now, and from about {_told(found[1], one)} at {document['planned_clients']:,} clients"
        yield f"{said} are shown with a power of {100 * POWER:g} %."


def _least(one: Document, document: Document) -> tuple[float, float] | None:
    """Return the smallest difference of means that shows now, and at the planned end; None if the spread is unknown.

    It is computed for means, and so is close to what the rank test shows unless there are outliers.
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
    if one.get("anytime_bounds"):  # its reach is nearly the same number of standard errors at every look
        plain = one["per_client"]["difference"]
        if plain["low"] is None or plain["high"] is None:
            return None
        now = half + more * (plain["high"] - plain["low"]) / 2 / -float(ndtri(level / 2))
        return now, now * math.sqrt(n / planned)
    error = half / boundary(n, level, planned)
    at_end = error * math.sqrt(n / planned)
    return half + more * error, at_end * (boundary(planned, level, planned) + more)


def _told(difference: float, one: Document) -> str:
    base = one["per_client"]["means"][1]
    return f"{difference:.3g}" + (f" ({_short(100 * difference / abs(base))} %)" if base else "")


def _short(value: float) -> str:
    """Return a number in two digits, or as an integer: 0.012, 3.5, 1,200."""
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
            yield f"{names}: {left:,} clients to the planned end; none was new in the last {PACE_HOURS} hours."


def _an_hour(arms: list[Document]) -> float:
    """Return the number of new clients per hour at the end of the pings."""
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
