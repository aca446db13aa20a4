"""Ends a job at any moment, by SIGINT or SIGTERM, or at its time limit.

Signals and time limits raise an exception in the main thread. The exception even interrupts a call that waits for
Spark's JVM, so that all resources are closed in order. If the main thread hangs in C code or in an unresponsive file
system, another thread ends the process by force.
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

STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM)
"""The signals that end a job; supervisors, containers and terminals send them."""

TIME_IS_UP = signal.SIGUSR1
"""Signal by which the watching thread interrupts the main thread. Only signals interrupt system calls."""

NUDGED_EVERY = 0.1
"""Seconds between interruptions of a main thread that hasn't noticed a signal, for example because it has just begun
to wait."""

FORCED_AFTER = 20
"""Maximum seconds of an orderly end before the process is ended by force. An orderly end usually takes a tenth of a
second."""

BY_FORCE: list[Callable[[], None]] = []
"""Functions that kill other processes, such as a JVM, when this process ends by force. They are called in another
thread."""


class TimedOut(TemporaryFailure):
    """A time limit was reached."""


class ApplicationGone(TemporaryFailure):
    """The JVM with which `spark-submit` started this process has ended, so the process is useless."""


class Interrupted(KeyboardInterrupt):
    """Raised anywhere in the main thread to end its work; ``except Exception`` doesn't catch it."""


class EndedBySignal(Interrupted):
    """SIGINT or SIGTERM arrived."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = number

    @property
    def exit_code(self) -> int:
        """The exit code of a process ended by a signal: 130 or 143."""
        return 128 + self.number

    @property
    def sentence(self) -> str:
        """A description for people."""
        return "interrupted" if self.number == signal.SIGINT else "terminated"


class DeadlineReached(Interrupted):
    """The time limit of :meth:`Ending.within` is reached. Code that knows the cause sets ``waited_for``."""

    waited_for = ""


@dataclass(frozen=True, eq=False)
class _Limit:
    """A time limit: the deadline by the monotonic clock, and the sentence of its error."""

    deadline: float
    sentence: str


class Ending:
    """Ends the work of the main thread once (:func:`ended_by_signals`)."""

    def __init__(self) -> None:
        self._signalled = self._over = False
        self._limit: _Limit | None = None
        self._thread = threading.Thread(target=self._watch, name="ending", daemon=True)

    @contextmanager
    def within(self, seconds: float | None, what: str) -> Iterator[None]:
        """Set a time limit for the context; None for no limit.

        Raises:
            TimedOut: the limit is reached. ``what`` is the subject of its sentence.
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
            raise TimedOut(f"{limit.sentence}{waited_for}; run the same command to continue") from error
        finally:
            self._limit = None

    def start(self) -> dict[int, Any]:
        """Install the handlers and return the earlier ones."""
        self._reader, self._writer = os.pipe()
        os.set_blocking(self._reader, False)
        os.set_blocking(self._writer, False)
        self._wakeup_before = signal.set_wakeup_fd(self._writer, warn_on_full_buffer=False)
        self._thread.start()
        before: dict[int, Any] = {TIME_IS_UP: signal.signal(TIME_IS_UP, self._on_time)}
        for number in STOP_SIGNALS:
            if signal.getsignal(number) != signal.SIG_IGN:  # set by `nohup`, and by `&` in a script
                before[number] = signal.signal(number, self._on_signal)
        return before

    def stop(self, before: dict[int, Any]) -> None:
        """Restore the state before :meth:`start`."""
        self._over = True
        self._wake()
        self._thread.join()  # that thread sends signals, so handlers must still exist
        for number, handler in before.items():
            signal.signal(number, handler)
        signal.set_wakeup_fd(self._wakeup_before)
        os.close(self._reader)
        os.close(self._writer)

    def _on_signal(self, number: int, _: FrameType | None) -> None:
        if self._signalled or self._over:
            return  # the end has begun and is bounded; another exception would interrupt it
        self._signalled = True
        raise EndedBySignal(number)

    def _on_time(self, _: int, __: FrameType | None) -> None:
        limit = self._limit
        if limit is not None and time.monotonic() >= limit.deadline and not self._signalled:
            raise DeadlineReached

    def _wake(self) -> None:
        with suppress(BlockingIOError):  # the pipe is full, so it wakes anyway
            os.write(self._writer, b"\0")

    def _watch(self) -> None:
        """Interrupt the main thread at its time limit, and end the process by force if it doesn't end."""
        received: tuple[float, EndedBySignal] | None = None
        interrupted: _Limit | None = None
        next_nudge = 0.0
        while not self._over:
            now, limit = time.monotonic(), self._limit
            if received and now >= received[0] + FORCED_AFTER:
                _force(received[1].exit_code, f"{received[1].sentence}, but it hung")
            if limit and now >= limit.deadline + FORCED_AFTER:
                _force(TimedOut.exit_code, f"{limit.sentence}, and hung")
            if limit and now >= limit.deadline and limit is not interrupted:
                interrupted = limit
                signal.pthread_kill(threading.main_thread().ident or 0, TIME_IS_UP)
            next_checks = [received[0] + FORCED_AFTER] if received else []
            if received and not self._signalled:
                if now >= next_nudge:
                    signal.pthread_kill(threading.main_thread().ident or 0, TIME_IS_UP)
                    next_nudge = now + NUDGED_EVERY
                next_checks.append(next_nudge)
            if limit:
                next_checks.append(limit.deadline + (FORCED_AFTER if limit is interrupted else 0))
            select.select([self._reader], [], [], max(0.0, min(next_checks) - now) if next_checks else None)
            for number in self._read():
                if number in STOP_SIGNALS and received is None:
                    received = time.monotonic(), EndedBySignal(number)

    def _read(self) -> bytes:
        try:
            return os.read(self._reader, 4096)
        except BlockingIOError:
            return b""


@contextmanager
def ended_by_signals() -> Iterator[Ending]:
    """Make the first SIGINT or SIGTERM raise :class:`EndedBySignal` in the main thread within this context.

    Outside the main thread, where Python receives no signals, this has no effect, and there are no time limits.
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
    """Delay signals that interrupt the main thread until the end of this context."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    held: list[int] = []
    before = {}
    for each in (*STOP_SIGNALS, TIME_IS_UP):
        handler = signal.getsignal(each)
        if callable(handler):  # ignored and default signals are left unchanged
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
    """Return a duration in the form used on command lines: ``90s``, ``27m``, ``6h``."""
    for unit, size in (("h", 3600), ("m", 60)):
        if seconds >= size and seconds % size == 0:
            return f"{seconds / size:.0f}{unit}"
    return f"{seconds:g}s"


def _force(code: int, sentence: str) -> None:
    for kill in BY_FORCE:
        with suppress(Exception):
            kill()
    # Not through the stream, because the hanging thread may hold its lock.
    tell_past_streams(f"{sentence}: ended by force; run the same command to continue")
    os._exit(code)


def describe_exit(code: int | None) -> str:
    """Describe the end of a process. A negative exit code is the signal that killed it."""
    if code is None or code >= 0:
        return f"exit code {code}" if code else "without a reason"
    try:
        return signal.Signals(-code).name
    except ValueError:
        return f"signal {-code}"
