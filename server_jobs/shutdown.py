"""Ending a job at any moment: told to by SIGINT or SIGTERM, or out of time.

Both end the job by an exception in the main thread, which interrupts even a call that waits for Spark's JVM, so that
everything that is open is closed in order on the way out. What does not end by that, because the main thread hangs in C
code or in an operation of a file system that has gone away, is ended by force from a thread that waits for nothing.
"""

from __future__ import annotations

import os
import select
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from types import FrameType
from typing import Any

from fedping.protocol.errors import TemporaryFailure as TemporaryFailure
from fedping.protocol.log import tell_past_streams

TOLD_BY = (signal.SIGINT, signal.SIGTERM)
"""The signals that tell a job to end; what supervisors, containers and terminals send."""

TIME_IS_UP = signal.SIGUSR1
"""What the watching thread interrupts the main thread by: only a signal gets it out of a system call."""

FORCED_AFTER = 20
"""Seconds that a job may take to end in order before it is ended by force; it takes a tenth of one."""

BY_FORCE: list[Callable[[], None]] = []
"""What else to kill when this process is ended by force, such as a JVM. Called by another thread than the main one."""


class TimedOut(TemporaryFailure):
    """A time limit was reached."""


class ApplicationGone(TemporaryFailure):
    """The JVM by which `spark-submit` has started this process has ended, and with it all that this process is for."""


class Interrupted(KeyboardInterrupt):
    """Raised in the main thread, wherever it is, to end what it does; no ``except Exception`` stops it."""


class EndedBySignal(Interrupted):
    """SIGINT or SIGTERM came."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = number

    @property
    def exit_code(self) -> int:
        """What a shell reports of a process that a signal has ended: 130 or 143."""
        return 128 + self.number

    @property
    def sentence(self) -> str:
        """What to tell a person."""
        return "interrupted" if self.number == signal.SIGINT else "terminated"


class DeadlineReached(Interrupted):
    """The time of :meth:`Ending.within` is over; ``waited_for`` says for what, where somebody on the way out knows."""

    waited_for = ""


@dataclass(frozen=True, eq=False)
class _Limit:
    """One time limit: until when, by the monotonic clock, and the sentence of who has reached it."""

    deadline: float
    sentence: str


class Ending:
    """Ends what the main thread does, once; see :func:`ended_by_signals`."""

    def __init__(self) -> None:
        self._told = self._over = False
        self._limit: _Limit | None = None
        self._thread = threading.Thread(target=self._watch, name="ending", daemon=True)

    @contextmanager
    def within(self, seconds: float | None, what: str) -> Iterator[None]:
        """Give what is done inside a time limit; None for none.

        Raises:
            OutOfTime: the time is over; ``what`` is the subject of its sentence.
        """
        if seconds is None or not self._thread.is_alive():
            yield
            return
        limit = _Limit(time.monotonic() + seconds, f"{what} has reached its time limit of {readable(seconds)}")
        self._limit = limit
        self._wake()
        try:
            yield
        except DeadlineReached as error:
            waited_for = f": {error.waited_for}" if error.waited_for else ""
            raise TimedOut(f"{limit.sentence}{waited_for}; run the same command to continue from there") from error
        finally:
            self._limit = None

    def start(self) -> dict[int, Any]:
        """Install the handlers and return those that were there."""
        self._reader, self._writer = os.pipe()
        os.set_blocking(self._reader, False)
        os.set_blocking(self._writer, False)
        self._wakeup_before = signal.set_wakeup_fd(self._writer, warn_on_full_buffer=False)
        self._thread.start()
        before: dict[int, Any] = {TIME_IS_UP: signal.signal(TIME_IS_UP, self._on_time)}
        for number in TOLD_BY:
            if signal.getsignal(number) != signal.SIG_IGN:  # `nohup`, and `&` in a script, mean it
                before[number] = signal.signal(number, self._on_signal)
        return before

    def stop(self, before: dict[int, Any]) -> None:
        """Leave everything as it was before :meth:`start`."""
        self._over = True
        for number, handler in before.items():
            signal.signal(number, handler)
        signal.set_wakeup_fd(self._wakeup_before)
        self._wake()
        self._thread.join()
        os.close(self._reader)
        os.close(self._writer)

    def _on_signal(self, number: int, _: FrameType | None) -> None:
        if self._told or self._over:
            return  # it is on its way out, which is bounded: another exception would only leave something half closed
        self._told = True
        raise EndedBySignal(number)

    def _on_time(self, _: int, __: FrameType | None) -> None:
        limit = self._limit
        if limit is not None and time.monotonic() >= limit.deadline and not self._told:
            raise DeadlineReached

    def _wake(self) -> None:
        with suppress(BlockingIOError):  # the pipe is full, so it wakes anyway
            os.write(self._writer, b"\0")

    def _watch(self) -> None:
        """Interrupt the main thread when its time is up, and end the process if it does not end when it should."""
        told: tuple[float, EndedBySignal] | None = None
        interrupted: _Limit | None = None
        while not self._over:
            now, limit = time.monotonic(), self._limit
            if told and now >= told[0] + FORCED_AFTER:
                _force(told[1].exit_code, f"{told[1].sentence}, but it hung")
            if limit and now >= limit.deadline + FORCED_AFTER:
                _force(TimedOut.exit_code, f"{limit.sentence}, and hung")
            if limit and now >= limit.deadline and limit is not interrupted:
                interrupted = limit
                signal.pthread_kill(threading.main_thread().ident or 0, TIME_IS_UP)
            next_looks = [told[0] + FORCED_AFTER] if told else []
            if limit:
                next_looks.append(limit.deadline + (FORCED_AFTER if limit is interrupted else 0))
            select.select([self._reader], [], [], max(0.0, min(next_looks) - now) if next_looks else None)
            for number in self._read():
                if number in TOLD_BY and told is None:
                    told = time.monotonic(), EndedBySignal(number)

    def _read(self) -> bytes:
        try:
            return os.read(self._reader, 4096)
        except BlockingIOError:
            return b""


@contextmanager
def ended_by_signals() -> Iterator[Ending]:
    """Have SIGINT and SIGTERM raise :class:`EndedBySignal` in the main thread, once, while this lasts.

    Outside the main thread, where Python takes no signals, nothing is changed, and there are no time limits.
    """
    ending = Ending()
    if threading.current_thread() is not threading.main_thread():
        yield ending
        return
    before = ending.start()
    try:
        yield ending
    finally:
        ending.stop(before)


@contextmanager
def signals_held() -> Iterator[None]:
    """Hold back what would interrupt the main thread, for as long as something must be whole; deliver it afterwards."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    held: list[int] = []
    before = {}
    for each in (*TOLD_BY, TIME_IS_UP):
        handler = signal.getsignal(each)
        if callable(handler):  # what is ignored, or ends this process at once, stays so
            before[each] = handler
            signal.signal(each, lambda number, _: held.append(number))
    try:
        yield
    finally:
        for each, handler in before.items():
            signal.signal(each, handler)
        for number in dict.fromkeys(held):
            signal.raise_signal(number)


def readable(seconds: float) -> str:
    """Return a time as it is given on a command line: ``90s``, ``27m``, ``6h``."""
    for unit, size in (("h", 3600), ("m", 60)):
        if seconds >= size and seconds % size == 0:
            return f"{seconds / size:.0f}{unit}"
    return f"{seconds:g}s"


def _force(code: int, sentence: str) -> None:
    for kill in BY_FORCE:
        with suppress(Exception):
            kill()
    # Written past the stream: its lock may be held by the thread that hangs.
    tell_past_streams(f"{sentence}: ended by force; run the same command to continue from there")
    os._exit(code)


def describe_exit(code: int | None) -> str:
    """Return in words how a process ended, by its exit code, which is minus the signal that killed it."""
    if code is None or code >= 0:
        return f"exit code {code}" if code else "without a reason"
    try:
        return signal.Signals(-code).name
    except ValueError:
        return f"signal {-code}"
