"""What of a study may change while it runs: what no version and no client that takes part depends on.

A version is computed again with the settings that held when it was made, so that what says when a round is made, and
what it believes, may change. What clients compute may not: pings of one version would be of two models. Nor may the
arms be dealt anew: a client that is in one stays in it, or leaves the study.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

import msgspec

from fedping.protocol.errors import InvalidSettings
from fedping.protocol.study import Arm, Study

OF_STUDY = ("limits", "unwanted_updates", "metrics", "segments", "tickets")
"""Settings of a study that may change."""

OF_LINE = ("guard", "length", "early_stopping", "limits", "pipeline.min_clients")
"""Settings of each line that may change."""

_NOBODY = 2.0**-48
"""A share of the ids that is less than what enrolment can tell apart."""

_MOST_WORDS = 60


@dataclass(frozen=True, slots=True)
class Change:
    """One setting that differs: its place, and its value before and after, as JSON; None where there is none."""

    place: str
    before: str | None
    after: str | None

    @property
    def in_words(self) -> str:
        """The change as a phrase."""
        return f"{self.place}: {_short(self.before)} -> {_short(self.after)}"


def changes(before: Study, after: Study) -> tuple[Change, ...]:
    """Return what a study says otherwise than another one of the same name, in the order of the settings."""
    return tuple(_apart("", msgspec.to_builtins(before), msgspec.to_builtins(after)))


def check_change(before: Study, after: Study) -> tuple[Change, ...]:
    """Return what changes, having looked that it may.

    Raises:
        InvalidSettings: something may not; the sentence names each such setting, with both of its values.
    """
    found = changes(before, after)
    wrong = [change for change in found if before.is_private or not _may(change)]
    if wrong:
        told = "; ".join(change.in_words for change in wrong)
        why = (
            "its guarantee was worked out for its settings"
            if before.is_private
            else "its versions, or what its clients compute, depend on this"
        )
        raise InvalidSettings(
            f"study '{before.name}' cannot change so while it runs, for {why} ({told}); leave it as it was, or give "
            "the changed study a new name and create it"
        )
    _check_arms(before, after)
    return found


def _may(change: Change) -> bool:
    first, _, rest = change.place.partition(".")
    if first == "lines":
        _, _, setting = rest.partition(".")
        return any(setting == one or setting.startswith(f"{one}.") for one in OF_LINE)
    if first == "arms":
        _, _, setting = rest.partition(".")
        return setting == "share" or (not setting and change.before is None)
    return first in OF_STUDY


def _check_arms(before: Study, after: Study) -> None:
    """Raise :class:`InvalidSettings` if clients of an arm would get into another one."""
    if before.enrolment == "elsewhere":
        return  # somebody else deals them
    for (left, joined), share in _moved(before.arms, after.arms).items():
        if share > _NOBODY:
            raise InvalidSettings(
                f"with these shares {100 * share:.4g} % of all clients would go from arm '{left}' to arm '{joined}' of "
                f"study '{before.name}', and their pings of before would count for the wrong arm; arms lie side by "
                "side in the order of the file, so let only the last one grow or shrink, add new ones after it, and "
                "leave the shares before it as they are"
            )


def _moved(before: tuple[Arm, ...], after: tuple[Arm, ...]) -> dict[tuple[str, str], float]:
    """Return which share of the ids goes from each arm to each other one."""
    ends = sorted({0.0, *_ends(before).values(), *_ends(after).values()})
    found: dict[tuple[str, str], float] = {}
    for low, high in zip(ends, ends[1:], strict=False):
        was, becomes = (_at(arms, (low + high) / 2) for arms in (before, after))
        if was is not None and becomes is not None and was != becomes:
            found[was, becomes] = found.get((was, becomes), 0.0) + high - low
    return found


def _ends(arms: tuple[Arm, ...]) -> Mapping[str, float]:
    return dict(zip((arm.name for arm in arms), accumulate(arm.share for arm in arms), strict=True))


def _at(arms: tuple[Arm, ...], where: float) -> str | None:
    return next((name for name, end in _ends(arms).items() if where < end), None)


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
    """Return a list of things that have names as a table of them; None if it is no such list."""
    if not isinstance(value, list | tuple) or not value or not all(isinstance(v, dict) and "name" in v for v in value):
        return None
    return {item["name"]: item for item in value}


def _written(value: Any) -> str | None:
    return None if value is None else msgspec.json.encode(value).decode()


def _short(text: str | None) -> str:
    if text is None:
        return "nothing"
    return text if len(text) <= _MOST_WORDS else f"{text[:_MOST_WORDS]}…"
