"""Settings that may change while a study runs, because no version and no participating client depends on them.

A version is recomputed with the settings of its time, so settings for when rounds run and which pings they accept may
change. The client's computation may not change: pings of one version would belong to two models. Clients may not be
reassigned to other arms either: a client stays in its arm, or leaves the study (:func:`reassign_clients`).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, TypeAlias

import msgspec
from msgspec.structs import replace

from fedping.protocol.enrolment import arm_intervals
from fedping.protocol.errors import InvalidSettings
from fedping.protocol.outcomes import Outcome
from fedping.protocol.study import SHARES_SLACK, Piece, Study

OF_STUDY = ("limits", "unwanted_updates", "metrics", "segments", "tickets", "pieces", "shards")
"""A study's own settings that may change; outcomes may also be added."""

OF_LINE = (
    "guard",
    "length",
    "early_stopping",
    "limits",
    "participation",
    "pipeline.min_clients",
    "pipeline.most_votes",
)
"""Settings of each line that may change."""

_NOBODY = 2.0**-48
"""Share of client ids below the resolution of enrolment, which counts as 0."""

_MOST_WORDS = 60


@dataclass(frozen=True, slots=True)
class Change:
    """A changed setting: its place, and its values before and after as JSON; None for no value."""

    place: str
    before: str | None
    after: str | None

    @property
    def in_words(self) -> str:
        """The change as a phrase."""
        return f"{self.place}: {_short(self.before)} -> {_short(self.after)}"


def changes(before: Study, after: Study) -> tuple[Change, ...]:
    """Return the differences between two studies of the same name, in the order of the settings."""
    return tuple(differences(before, after))


def differences(before: msgspec.Struct | None, after: msgspec.Struct | None) -> Iterator[Change]:
    """Yield the differences between two documents of the same kind, in the order of the fields."""
    return _apart("", msgspec.to_builtins(before), msgspec.to_builtins(after))


def check_change(before: Study, after: Study) -> tuple[Change, ...]:
    """Return the changes after checking that all of them are allowed.

    Raises:
        InvalidSettings: some changes aren't allowed; the sentence names each such setting with both values.
    """
    found = changes(before, after)
    _check_outcomes(before, after)
    wrong = [change for change in found if before.is_private or not _may(change)]
    if wrong:
        told = "; ".join(change.in_words for change in wrong)
        why = (
            "its guarantee was worked out for its settings"
            if before.is_private
            else "its versions, or what its clients compute, depend on this"
        )
        raise InvalidSettings(
            f"study '{before.name}' cannot change this while it runs, because {why} ({told}). Undo the change, or "
            "create the changed study under a new name"
        )
    return found


def _check_outcomes(before: Study, after: Study) -> None:
    """Raise :class:`InvalidSettings` if a declared outcome changes or disappears.

    Clients keep a study's declarations for a while, and ingest would reject values that follow old declarations.
    """
    declared = {outcome.name: outcome for outcome in after.outcomes}
    for outcome in before.outcomes:
        if (now := declared.get(outcome.name)) is None:
            raise InvalidSettings(
                f"study '{before.name}' can't drop the outcome '{outcome.name}' while it runs: clients still send it, "
                "and their pings would be refused. Leave it declared, and ignore its column"
            )
        if now != replace(outcome, better=now.better):  # which way is better changes no value
            told = "; ".join(
                change.in_words for change in _apart(f"outcomes.{outcome.name}", _named(outcome), _named(now))
            )
            raise InvalidSettings(
                f"study '{before.name}' can't change the outcome '{outcome.name}' while it runs ({told}): its old and "
                "new values would not be comparable. Undo the change, and declare another outcome, such as "
                f"'{outcome.name[:38]}_2'"
            )


def _named(outcome: Outcome) -> dict[str, Any]:
    """Return all settings of an outcome, including defaults, so that each can be compared."""
    kind = msgspec.to_builtins(outcome)
    return {"within": None, "linked": False, "better": None, **kind}


def _may(change: Change) -> bool:
    first, _, rest = change.place.partition(".")
    if first == "lines":
        _, _, setting = rest.partition(".")
        return any(setting == one or setting.startswith(f"{one}.") for one in OF_LINE)
    if first == "arms":
        _, _, setting = rest.partition(".")
        return setting == "share" or (not setting and change.before is None)
    if first == "outcomes":  # see _check_outcomes
        return True
    return first in OF_STUDY


def reassign_clients(before: Study, after: Study) -> Study:
    """Return a changed study with ``pieces`` that keep clients in their arms, as far as the new shares allow.

    An arm that shrinks gives up the ends of its intervals, which then belong to no arm. An arm that grows, or a new
    arm, gets free intervals: first those after all arms, then those between arms.

    Raises:
        InvalidSettings: the free intervals do not suffice for the new shares.
    """
    same = [(arm.name, arm.share) for arm in before.arms] == [(arm.name, arm.share) for arm in after.arms]
    if before.enrolment == "elsewhere" or same:
        return replace(after, pieces=before.pieces)
    wanted = {arm.name: arm.share for arm in after.arms}
    old = [(None if place < 0 else before.arms[place].name, end) for place, end in arm_intervals(before)]
    if not old or old[-1][1] < 1:
        old.append((None, 1.0))
    kept, free = _kept(old, wanted)
    for low, high in sorted(free, reverse=True):  # beyond all arms first
        kept += _filled(low, high, wanted)
    short = {name: share for name, share in wanted.items() if share > SHARES_SLACK}
    if short:
        name, share = next(iter(short.items()))
        raise InvalidSettings(
            f"arm '{name}' of study '{before.name}' cannot grow that much: {100 * share:.4g} % of all clients would "
            "have to come from other arms, and their earlier pings would count for the wrong one. Set a smaller "
            "share; only clients without an arm can join one, and clients that leave an arm now can join one at a "
            "later change"
        )
    pieces = _merged(sorted(kept))
    sides = tuple(Piece(arm=arm.name, end=end) for arm, (_, end) in zip(after.arms, _side_by_side(after), strict=True))
    return replace(after, pieces=() if _alike(pieces, sides) else pieces)


_Spans: TypeAlias = list[tuple[float, float, str]]


def _kept(old: list[tuple[str | None, float]], wanted: dict[str, float]) -> tuple[_Spans, list[tuple[float, float]]]:
    """Return the intervals that stay with their arms, and the free intervals; subtract the former from ``wanted``."""
    kept, free, low = _Spans(), list[tuple[float, float]](), 0.0
    for name, high in old:
        if name is None:
            free.append((low, high))
        elif (take := min(high - low, wanted.get(name, 0.0))) > _NOBODY:
            # an end is never recomputed, or clients at the edge would move
            whole = high - low - take <= SHARES_SLACK
            kept.append((low, high if whole else low + take, name))
            wanted[name] = 0.0 if abs(wanted[name] - take) <= SHARES_SLACK else wanted[name] - take
        low = high
    return kept, free


def _filled(low: float, high: float, wanted: dict[str, float]) -> _Spans:
    """Return a free interval divided among the arms that want more, in their order; subtract it from ``wanted``."""
    found = _Spans()
    for name, share in wanted.items():
        take = min(high - low, share)
        if take > SHARES_SLACK:
            end = min(low + take, high)
            found.append((low, end, name))
            wanted[name], low = share - take, end
    return found


def _merged(spans: _Spans) -> tuple[Piece, ...]:
    """Return the pieces for sorted intervals of arms; intervals between these become pieces without an arm."""
    found: list[Piece] = []
    low = 0.0
    for start, end, name in spans:
        if start - low > _NOBODY:
            found.append(Piece(end=start))
        if found and found[-1].arm == name:
            found.pop()
        found.append(Piece(arm=name, end=end))
        low = end
    return tuple(found)


def _side_by_side(study: Study) -> tuple[tuple[int, float], ...]:
    return arm_intervals(replace(study, pieces=()))


def _alike(one: tuple[Piece, ...], other: tuple[Piece, ...]) -> bool:
    """Return whether two lists of pieces assign all client ids to the same arms."""
    return len(one) == len(other) and all(
        a.arm == b.arm and abs(a.end - b.end) < _NOBODY for a, b in zip(one, other, strict=True)
    )


def _apart(place: str, before: Any, after: Any) -> Iterator[Change]:
    if before == after and type(before) is type(after):
        return
    named = [_by_name(side) for side in (before, after)]
    if named[0] is not None and named[1] is not None:
        before, after = named
    elif not (isinstance(before, dict) and isinstance(after, dict) and before.keys() == after.keys()):
        if before != after:
            yield Change(place, _written(before), _written(after))
        return
    for key in (*before, *(key for key in after if key not in before)):
        inside = f"{place}.{key}" if place else str(key)
        if key not in before or key not in after:
            yield Change(inside, _written(before.get(key)), _written(after.get(key)))
        else:
            yield from _apart(inside, before[key], after[key])


def _by_name(value: Any) -> dict[str, Any] | None:
    """Return a list of named items as a table by name; None for other lists."""
    if not isinstance(value, list | tuple) or not value or not all(isinstance(v, dict) and "name" in v for v in value):
        return None
    return {item["name"]: item for item in value}


def _written(value: Any) -> str | None:
    return None if value is None else msgspec.json.encode(value).decode()


def _short(text: str | None) -> str:
    if text is None:
        return "nothing"
    return text if len(text) <= _MOST_WORDS else f"{text[:_MOST_WORDS]}…"
