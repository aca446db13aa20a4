"""Scheduled rounds: one at a time, at multiples of an interval since midnight UTC plus an offset.

Times are computed by pure functions; only :class:`WallClock` waits. A plan is a TOML file with a table ``[[study]]``
for each study that has rounds.
"""

from __future__ import annotations

import math
import re
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from datetime import time as clock_time
from pathlib import Path
from typing import Protocol

from msgspec import Struct

from fedping.protocol.errors import InvalidSettings, sentences_with
from fedping.protocol.settings_file import converted, tables_in
from fedping.server_jobs.processes import StopEvent

DAY = 24 * 3600
LEAST_LIMIT = 10 * 60
_UNITS = {"s": 1, "m": 60, "h": 3600}
_MOMENT = r"[0-9]{4}-[0-9]{2}-[0-9]{2}[T ][0-9]{2}:[0-9]{2}(:[0-9]{2})?(Z|[+-][0-9]{2}:?[0-9]{2})?"


def parse_every(text: str, what: str = "an interval for rounds", also: str = "") -> int:
    """Return an interval such as ``30m``, ``45s`` or ``6h`` in seconds.

    Args:
        text: the interval.
        what: its name in the error.
        also: another allowed value, for the error.

    Raises:
        InvalidSettings: the interval is malformed, zero, or longer than a day.
    """
    seconds = _seconds(text)
    if seconds is None or not 0 < seconds <= DAY:
        raise InvalidSettings(
            f"'{text}' is not {what}; give whole seconds, minutes or hours up to a day, such as 45s, 30m or 6h{also}"
        )
    return seconds


def parse_offset(text: str, every: int) -> int:
    """Return an offset of rounds from the multiples of an interval, such as ``28m`` or ``0``, in seconds.

    Raises:
        InvalidSettings: the offset is malformed, or isn't shorter than the interval.
    """
    seconds = 0 if text.strip() == "0" else _seconds(text)
    if seconds is None or seconds >= every:
        raise InvalidSettings(
            f"'{text}' is not an offset for rounds every {every} seconds; give whole seconds, minutes or hours "
            "less than the interval, such as 45s or 28m"
        )
    return seconds


def _seconds(text: str) -> int | None:
    """Return a time such as ``30m`` in seconds; None if it is malformed."""
    match = re.fullmatch(r"([0-9]{1,6})([smh])", text.strip())
    return int(match[1]) * _UNITS[match[2]] if match else None


def parse_time_limit(text: str) -> int | None:
    """Return a time limit such as ``27m`` in seconds; None for ``none``.

    Raises:
        InvalidSettings: the text is neither a time limit nor ``none``.
    """
    if text.strip() == "none":
        return None
    return parse_every(text, "a time limit for a round", ", or none")


def parse_until(text: str, now: float) -> float:
    """Return a time such as ``2026-11-25T08:00+01:00``, in seconds since 1970.

    Without a time zone, the zone of this machine applies. A time of day such as ``18:00`` means its next occurrence.

    Raises:
        InvalidSettings: the time is malformed, or isn't after ``now``.
    """
    try:
        if re.fullmatch(r"[0-9]{2}:[0-9]{2}(:[0-9]{2})?", text):
            today = datetime.combine(datetime.fromtimestamp(now), clock_time.fromisoformat(text))
            until = today.timestamp()
            return until if until > now else (today + timedelta(days=1)).timestamp()
        if not re.fullmatch(_MOMENT, text):
            raise ValueError
        until = datetime.fromisoformat(text).timestamp()
    except (ValueError, OverflowError):
        raise InvalidSettings(
            f"--until {text} is not a time. Use a time of day such as 18:00, or a date and time such as "
            "2026-11-25T08:00 by this machine's clock, or 2026-11-25T08:00+01:00 with a zone."
        ) from None
    if until <= now:
        raise InvalidSettings(
            f"--until {text} is in the past: it was {full_utc(until)}, and now it is {full_utc(now)}. Use a later time."
        )
    return until


def limit_for(every: int) -> int:
    """Return the default time limit of rounds at an interval, both in seconds.

    It is nine tenths of the interval, so that a hanging round doesn't delay the next round, but at least the time
    that a cold Spark on a busy cluster may need.
    """
    return max(every * 9 // 10, LEAST_LIMIT)


def slot_after(now: float, every: int, offset: int = 0) -> float:
    """Return the first slot after ``now``: a multiple of ``every`` since midnight UTC plus ``offset``, in seconds.

    There is always a slot at ``offset`` after midnight UTC, so a day's last interval is shorter if ``every`` doesn't
    divide the day.
    """
    first = (now - offset) // DAY * DAY + offset
    return min(first + ((now - first) // every + 1) * every, first + DAY)


def slots_between(after: float, until: float, every: int, offset: int = 0) -> int:
    """Return the number of slots after ``after``, up to and including ``until``."""
    count = 0
    while (after := slot_after(after, every, offset)) <= until:
        count += 1
    return count


class Clock(Protocol):
    """The clock of a schedule."""

    def now(self) -> float:
        """Return the time in seconds since 1970."""
        ...

    def wait_until(self, when: float) -> bool:
        """Wait until ``when`` and return True, or return False as soon as the schedule is stopped."""
        ...


@dataclass(frozen=True, slots=True)
class Job:
    """A task with its times.

    Attributes:
        run: runs the task and handles its failures; an exception ends the schedule.
        next_after: returns the task's first time after a given time, both in seconds since 1970.
        name: the task's name in messages; empty if it is the only task.
    """

    run: Callable[[], None]
    next_after: Callable[[float], float]
    name: str = ""


def run_schedule(
    run_once: Callable[[], None],
    every: int,
    clock: Clock,
    tell: Callable[[str], None],
    *,
    offset: int = 0,
    now_first: bool = False,
) -> None:
    """Call ``run_once`` at every slot until the clock is stopped (:func:`run_jobs`)."""
    run_jobs([Job(run_once, lambda now: slot_after(now, every, offset))], clock, tell, now_first=now_first)


def run_jobs(
    jobs: Sequence[Job],
    clock: Clock,
    tell: Callable[[str], None],
    *,
    now_first: bool = False,
    until: float = math.inf,
) -> None:
    """Run jobs at their times, one at a time, until the clock is stopped or ``until`` is reached.

    The job that has waited longest is next, so a slow job delays others by at most one run. Several times that pass
    while a job runs or waits, or the machine sleeps, result in a single run, because two rounds in a row would find
    the same pings; ``tell`` gets the number of skipped times. Times aren't repeated if the clock is set back. No run
    starts at ``until`` or later; a run in progress is finished.
    """
    if now_first:
        for job in jobs:
            if clock.now() < until and clock.wait_until(clock.now()):
                job.run()
    slots = [job.next_after(clock.now()) for job in jobs]
    for job, slot in zip(jobs, slots, strict=True):
        tell(f"next round{_of(job)} at {utc(slot)}")
    while max(slot := min(slots), clock.now()) < until and clock.wait_until(slot):
        at = slots.index(slot)
        job = jobs[at]
        job.run()
        done = max(clock.now(), slot)
        following = job.next_after(done)
        if skipped := _times_between(job, slot, done):
            were = "was" if skipped == 1 else "were"
            tell(
                f"the round{_of(job)} of {utc(slot)} lasted until {utc(done)}, so {skipped} more {were} skipped; next "
                f"round{_of(job)} at {utc(following)}"
            )
        slots[at] = following
    if max(slot, clock.now()) >= until:
        tell(f"the schedule ended at {utc(until)}")


def _of(job: Job) -> str:
    return f" of {job.name}" if job.name else ""


def _times_between(job: Job, after: float, until: float) -> int:
    """Return a job's number of times after ``after``, up to and including ``until``."""
    count = 0
    while (after := job.next_after(after)) <= until:
        count += 1
    return count


def time_of_day_after(now: float, at: Sequence[int]) -> float:
    """Return the first time after ``now`` at one of the times of day in ``at``, in seconds since midnight UTC."""
    midnight = now // DAY * DAY
    return min(moment for day in (midnight, midnight + DAY) for each in at if (moment := day + each) > now)


def utc(when: float) -> str:
    """Return a time as hours, minutes and seconds in UTC, for messages."""
    return f"{datetime.fromtimestamp(when, UTC):%H:%M:%S} UTC"


def full_utc(when: float) -> str:
    """Return a time as date and time in UTC, for messages."""
    return f"{datetime.fromtimestamp(when, UTC):%Y-%m-%d %H:%M:%S} UTC"


class WallClock:
    """The real time; :meth:`stop` may be called by a signal handler."""

    def __init__(self) -> None:
        self._stop = StopEvent()

    @property
    def stopping(self) -> bool:
        """Whether :meth:`stop` was called."""
        return self._stop.is_set

    def now(self) -> float:
        """See :class:`Clock`."""
        return time.time()

    def wait_until(self, when: float) -> bool:
        """See :class:`Clock`. The time is read at least once a minute: the machine may sleep or its clock be set."""
        while not self.stopping and (left := when - self.now()) > 0:
            self._stop.wait(min(left, 60))
        return not self.stopping

    def stop(self) -> None:
        """End the current wait and all later waits at once."""
        self._stop.set()


MOST_BYTES = 1_000_000


class Planned(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The times of a study's rounds.

    Attributes:
        name: name of the study.
        lines: lines that have rounds; empty for all lines.
        every, offset: multiples of an interval since midnight UTC, as for `fedping schedule`.
        at: times of day, UTC, such as ``02:30``, instead of an interval.
        time_limit: maximum time for the rounds of all lines together; empty for the default.
        privacy_key: file of the privacy key; empty for the command's file.
        helpers: addresses of the helpers of two-server lines.
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
        self.limit  # noqa: B018 - rejects invalid settings when the file is read
        self.next_after(0.0)

    @property
    def limit(self) -> int | None:
        """The time limit in seconds; None without a limit."""
        return parse_time_limit(self.time_limit) if self.time_limit else limit_for(self._interval)

    @property
    def _interval(self) -> int:
        if not self.at:
            return parse_every(self.every)
        times = sorted({time_of_day(each) for each in self.at})
        return min(b - a for a, b in zip(times, [*times[1:], times[0] + DAY], strict=True))

    def next_after(self, now: float) -> float:
        """Return the study's first time after ``now``, both in seconds since 1970."""
        if self.at:
            return time_of_day_after(now, [time_of_day(each) for each in self.at])
        every = parse_every(self.every)
        return slot_after(now, every, parse_offset(self.offset, every))


class Plan(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The studies in a plan's file."""

    study: tuple[Planned, ...] = ()


def time_of_day(text: str) -> int:
    """Return a time such as ``02:30`` in seconds since midnight.

    Raises:
        InvalidSettings: the time is malformed.
    """
    match = re.fullmatch(r"([01][0-9]|2[0-3]):([0-5][0-9])", text)
    if not match:
        raise InvalidSettings(f"'{text}' is not a time of day. Use hours and minutes, UTC, such as 02:30.")
    return 3600 * int(match[1]) + 60 * int(match[2])


def read_plan(path: Path) -> tuple[Planned, ...]:
    """Return the studies in a plan's file.

    Raises:
        InvalidSettings: the file can't be read, has no study, a repeated study, or an invalid setting.
    """
    try:
        with open(path, "rb") as file:
            text = file.read(MOST_BYTES).decode()
    except OSError as error:
        raise InvalidSettings(f"can't read the plan {path} ({error.strerror}). Correct the path.") from error
    except UnicodeDecodeError as error:
        raise InvalidSettings(f"the plan {path} is not UTF-8 text. Save it as UTF-8.") from error
    tables = tables_in(text, f"the plan {path}")
    with sentences_with(before=f"the plan {path}: "):
        studies = converted(tables, Plan, "").study
    names = [one.name for one in studies]
    if not names:
        raise InvalidSettings(f"the plan {path} has no study. Add a table [[study]] with a name for each.")
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise InvalidSettings(f"the plan {path} has study '{twice[0]}' twice. Merge the two tables.")
    return studies
