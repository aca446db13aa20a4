"""How long a run still takes, by how long its rounds have taken so far."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple


class Pace(NamedTuple):
    """One run of a variant or a baseline: rounds done, of how many (None of a baseline), in how many seconds."""

    name: str
    rounds: int
    most: int | None
    seconds: float
    finished: bool
    begun: bool


def seconds_left(units: Sequence[Pace]) -> float | None:
    """Return how long is left, about: each run at the pace of its variant, or of all, as many at a time as now.

    One that may stop early is taken to go on to its last round. None before any round is over.
    """
    paces = _paces(units)
    if not paces:
        return None
    usual = sum(paces.values()) / len(paces)
    left = [_left(unit, paces.get(unit.name, usual)) for unit in units if not unit.finished]
    at_a_time = max(1, sum(unit.begun and not unit.finished for unit in units))
    return max(sum(left) / at_a_time, max(left, default=0.0))


def _left(unit: Pace, pace: float) -> float:
    return 0.0 if unit.most is None else max(0, unit.most - unit.rounds) * pace


def _paces(units: Sequence[Pace]) -> Mapping[str, float]:
    """Return the seconds of a round of each variant that has done some."""
    rounds: dict[str, int] = {}
    seconds: dict[str, float] = {}
    for unit in units:
        if unit.most is not None and unit.rounds:
            rounds[unit.name] = rounds.get(unit.name, 0) + unit.rounds
            seconds[unit.name] = seconds.get(unit.name, 0.0) + unit.seconds
    return {name: seconds[name] / rounds[name] for name in rounds}
