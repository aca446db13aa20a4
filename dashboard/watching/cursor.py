"""How much of an experiment a page has, as a short text that goes with every change, and comes back after a break.

    running/f12,1a3_5_5_1764062400.5,b,w40

This is the state, then the runs in order: 12 finished; one with the known numbers of bytes of its file, points and
rounds, and when it was begun; one that has reported nothing yet; and 40 that wait.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import groupby
from typing import Literal, NamedTuple, TypeAlias

from fedping.dashboard.watching.curves import Reached

Known: TypeAlias = Literal["f", "b", "w"] | Reached
"""Finished; begun; waiting; or how much of a running one is known."""

_MOST = 100_000


class Position(NamedTuple):
    """The state of the whole, as a word, and what is known of each run."""

    state: str
    runs: tuple[Known, ...]


def written(position: Position) -> str:
    """Return a position as a text."""
    parts: list[str] = []
    for known, same in groupby(position.runs):
        count = len(list(same))
        if isinstance(known, Reached):
            text = f"{known.offset:x}_{known.points:x}_{known.rounds:x}_{known.begun!r}"
            parts.extend([text] * count)
        else:
            parts.append(known if count == 1 else f"{known}{count}")
    return f"{position.state}/{','.join(parts)}"


def read(text: str | None) -> Position | None:
    """Return the position in a text; None if there is none."""
    if text is None or (found := re.fullmatch(r"([a-z0-9:-]*)/([0-9a-z_.,]*)", text)) is None:
        return None
    state, rest = found.groups()
    try:
        runs = [known for part in rest.split(",") if part for known in _read_part(part)]
    except ValueError:
        return None
    return Position(state, tuple(runs)) if len(runs) <= _MOST else None


def _read_part(part: str) -> Sequence[Known]:
    if "_" in part:
        offset, points, rounds, begun = part.split("_")
        return [Reached(int(offset, 16), int(points, 16), int(rounds, 16), float(begun))]
    count = int(part[1:] or "1")
    if not 0 < count <= _MOST:
        raise ValueError(part)
    for kind in ("f", "b", "w"):
        if part[0] == kind:
            return [kind] * count
    raise ValueError(part)
