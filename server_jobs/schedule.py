"""Rounds on the wall clock: at multiples of an interval since midnight UTC, plus an offset; one after the other.

The timing is pure; :class:`WallClock` is the only part that waits. A plan is a TOML file with a table ``[[study]]`` for
each study that has rounds.
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
        also: a further choice that the error names.

    Raises:
        InvalidSettings: it does not have that form, is zero, or is longer than a day.
    """
    seconds = _seconds(text)
    if seconds is None or not 0 < seconds <= DAY:
        raise InvalidSettings(
            f"'{text}' is not {what}; give whole seconds, minutes or hours up to a day, such as 45s, 30m or 6h{also}"
        )
    return seconds


def parse_offset(text: str, every: int) -> int:
    """Return an offset of rounds from the multiples of an interval, such as ``28m``, in seconds; ``0`` for none.

    Raises:
        InvalidSettings: it does not have that form, or is not shorter than the interval.
    """
    seconds = 0 if text.strip() == "0" else _seconds(text)
    if seconds is None or seconds >= every:
        raise InvalidSettings(
            f"'{text}' is not an offset for rounds every {every} seconds; give whole seconds, minutes or hours "
            "less than the interval, such as 45s or 28m"
        )
    return seconds


def _seconds(text: str) -> int | None:
    """Return a time such as ``30m`` in seconds; None if it does not have that form."""
    match = re.fullmatch(r"([0-9]{1,6})([smh])", text.strip())
    return int(match[1]) * _UNITS[match[2]] if match else None


def parse_time_limit(text: str) -> int | None:
    """Return a time limit such as ``27m`` in seconds; None for ``none``.

    Raises:
        InvalidSettings: it is neither.
    """
    if text.strip() == "none":
        return None
    return parse_every(text, "a time limit for a round", ", or none")


def parse_until(text: str, now: float) -> float:
    """Return a time such as ``2026-11-25T08:00+01:00``, in seconds since 1970.

    Without a zone this machine's clock counts. A time of day such as ``18:00`` is its next occurrence.

    Raises:
        InvalidSettings: it has none of these forms, or is not after ``now``.
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

    It is nine tenths of the interval, so that a hanging round doesn't take the next one's time, but at least as long as
    a cold Spark on a busy cluster may need.
    """
    return max(every * 9 // 10, LEAST_LIMIT)


def slot_after(now: float, every: int, offset: int = 0) -> float:
    """Return the first slot after ``now``: a multiple of ``every`` since midnight UTC, plus ``offset``; all in seconds.

    One slot is always at ``offset`` after midnight UTC, so the last step of a day is shorter if the interval doesn't
    divide the day.
    """
    first = (now - offset) // DAY * DAY + offset
    return min(first + ((now - first) // every + 1) * every, first + DAY)


def slots_between(after: float, until: float, every: int, offset: int = 0) -> int:
    """Return the number of slots in (after, until]."""
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
        """Wait until ``when`` and return True; return False at once if the schedule is stopped."""
        ...


@dataclass(frozen=True, slots=True)
class Job:
    """A task with its times.

    Attributes:
        run: handles its own failures; an exception ends the schedule.
        next_after: returns the task's first time after another, both in seconds since 1970.
        name: the name in messages; empty if it is the only task.
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
    """Call ``run_once`` at every slot until the clock is stopped; see :func:`run_jobs`."""
    run_jobs([Job(run_once, lambda now: slot_after(now, every, offset))], clock, tell, now_first=now_first)


def run_jobs(
    jobs: Sequence[Job],
    clock: Clock,
    tell: Callable[[str], None],
    *,
    now_first: bool = False,
    until: float = math.inf,
) -> None:
    """Run each job at its times until the clock is stopped, or ``until`` is reached; never two at once.

    The job that has waited longest is next, so a slow job delays another by at most one of its runs. Times that pass
    while a job runs or waits, or the machine sleeps, lead to one run, because two rounds in a row would find the same
    pings; ``tell`` gets the number of skipped times. A clock that is set back repeats no time. No run begins at
    ``until`` or later; a run in progress is finished.
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
    """Return the number of a job's times in (after, until]."""
    count = 0
    while (after := job.next_after(after)) <= until:
        count += 1
    return count


def time_of_day_after(now: float, at: Sequence[int]) -> float:
    """Return the first time after ``now`` at one of the times of day, which are in seconds since midnight UTC."""
    midnight = now // DAY * DAY
    return min(moment for day in (midnight, midnight + DAY) for each in at if (moment := day + each) > now)


def utc(when: float) -> str:
    """Return hours, minutes and seconds of a time, UTC, for messages."""
    return f"{datetime.fromtimestamp(when, UTC):%H:%M:%S} UTC"


def full_utc(when: float) -> str:
    """Return date and time, UTC, for messages."""
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
        """See :class:`Clock`; reads the time at least once a minute, because the machine may sleep or be set."""
        while not self.stopping and (left := when - self.now()) > 0:
            self._stop.wait(min(left, 60))
        return not self.stopping

    def stop(self) -> None:
        """End the current and every later wait at once."""
        self._stop.set()


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
        self.limit  # noqa: B018 - rejects invalid settings when the file is read
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
        InvalidSettings: it does not have that form.
    """
    match = re.fullmatch(r"([01][0-9]|2[0-3]):([0-5][0-9])", text)
    if not match:
        raise InvalidSettings(f"'{text}' is not a time of day. Use hours and minutes, UTC, such as 02:30.")
    return 3600 * int(match[1]) + 60 * int(match[2])


def read_plan(path: Path) -> tuple[Planned, ...]:
    """Return the studies of a file.

    Raises:
        InvalidSettings: it can't be read, has no study or one twice, or an invalid setting.
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
