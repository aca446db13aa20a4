"""A file that says which studies have rounds, and when: TOML, a table `[[study]]` for each."""

from __future__ import annotations

import re
from pathlib import Path

import msgspec
from msgspec import Struct

from fedping.protocol.errors import InvalidSettings
from fedping.server_jobs.schedule import (
    DAY,
    limit_for,
    parse_every,
    parse_offset,
    parse_time_limit,
    slot_after,
    time_of_day_after,
)

MOST_BYTES = 1_000_000


class Planned(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """When a study has rounds.

    Attributes:
        name: the study's.
        lines: of these; of all if there are none.
        every, offset: at multiples of an interval since midnight UTC, as for `fedping schedule`.
        at: instead of these, times of day, UTC, such as ``02:30``.
        time_limit: the longest time for the rounds of all lines together; empty is the default.
        privacy_key: the file of the privacy key; empty is that of the command.
        helpers: where the helpers of lines with a second server are.
    """

    name: str
    lines: tuple[str, ...] = ()
    every: str = "30m"
    offset: str = "0"
    at: tuple[str, ...] = ()
    time_limit: str = ""
    privacy_key: str = ""
    helpers: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        self.limit  # noqa: B018 - what cannot be meant is refused when the file is read
        self.next_after(0.0)

    @property
    def limit(self) -> int | None:
        """The time limit in seconds; None for none."""
        return parse_time_limit(self.time_limit) if self.time_limit else limit_for(self._interval)

    @property
    def _interval(self) -> int:
        if not self.at:
            return parse_every(self.every)
        times = sorted({time_of_day(each) for each in self.at})
        return min(b - a for a, b in zip(times, [*times[1:], times[0] + DAY], strict=True))

    def next_after(self, now: float) -> float:
        """Return the first time after a moment; both in seconds since 1970."""
        if self.at:
            return time_of_day_after(now, [time_of_day(each) for each in self.at])
        every = parse_every(self.every)
        return slot_after(now, every, parse_offset(self.offset, every))


class Plan(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The studies of a file."""

    study: tuple[Planned, ...] = ()


def time_of_day(text: str) -> int:
    """Return a time such as ``02:30`` in seconds since midnight.

    Raises:
        InvalidSettings: it is not of that form.
    """
    found = re.fullmatch(r"([01][0-9]|2[0-3]):([0-5][0-9])", text)
    if not found:
        raise InvalidSettings(f"'{text}' is no time of day; give hours and minutes, UTC, such as 02:30")
    return 3600 * int(found[1]) + 60 * int(found[2])


def read_plan(path: Path) -> tuple[Planned, ...]:
    """Return the studies of a file.

    Raises:
        InvalidSettings: it cannot be read, has no study or one twice, or says something that cannot be meant.
    """
    try:
        with open(path, "rb") as file:
            data = file.read(MOST_BYTES)
        studies = msgspec.toml.decode(data, type=Plan).study
    except OSError as error:
        raise InvalidSettings(f"cannot read the plan {path}: {error.strerror}; correct the path") from error
    except (msgspec.MsgspecError, UnicodeDecodeError, InvalidSettings) as error:
        raise InvalidSettings(f"the plan {path}: {error}") from error
    names = [one.name for one in studies]
    if not names:
        raise InvalidSettings(f"the plan {path} has no study; give each a table [[study]] with its name")
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise InvalidSettings(f"the plan {path} has study '{twice[0]}' twice; give it one table")
    return studies
