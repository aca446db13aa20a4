"""Handling of slow connections: bodies that arrive slowly, and responses that clients don't read.

Bodies are received without a thread, so that a slow body needs only a little memory. Overdue connections are closed.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import os
import socket
import sys
import termios
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, cast

from granian.rsgi import ProtocolClosed

from fedping.server_jobs.ingest.answers import Rejection
from fedping.server_jobs.ingest.settings import SMALL

if TYPE_CHECKING:
    from granian.rsgi import HTTPProtocol


GRACE = 0.25
"""Minimum seconds for a body to arrive, even if more slow bodies than allowed are arriving."""


@dataclass(slots=True, eq=False)
class Arrival:
    """A body that is being received.

    Attributes:
        began: start in seconds, by the event loop's clock.
        got: bytes received so far.
        seen: bytes at the last check.
        reading: the task that receives the body.
        timer: the next check.
    """

    began: float
    got: int = 0
    seen: int = 0
    reading: asyncio.Task[bytes] | None = None
    timer: asyncio.TimerHandle | None = None

    def cut(self) -> None:
        """Stop receiving the body."""
        if self.reading is not None:
            self.reading.cancel()


class Arrivals:
    """The bodies that one worker is receiving.

    Args:
        most: maximum number of slow bodies; beyond it, the slowest are cut off.
        seconds: time for a body; it may take longer if it keeps the rate.
        rate: minimum bytes per second, in every period of ``seconds``.
    """

    def __init__(self, most: int, seconds: float, rate: int) -> None:
        self._most = most
        self._seconds = seconds
        self._rate = rate
        self._waiting: set[Arrival] = set()
        self._is_cutting = False

    async def receive(
        self, protocol: HTTPProtocol, length: int, grown: Callable[[int], None] | None = None, keep: bool = True
    ) -> bytes:
        """Return a body of ``length`` bytes. ``grown`` is called with the number of bytes about to be stored.

        Without ``keep``, the body is read but b"" is returned.

        Raises:
            Rejection: the body ended too early or took too long, or ``grown`` rejected it.
        """
        loop = asyncio.get_running_loop()
        arrival = Arrival(loop.time())
        is_small = length <= SMALL and keep
        read = _whole(protocol, length) if is_small else _piecewise(protocol, length, grown, keep, arrival)
        # A task can be cancelled; the server's own coroutine cannot.
        arrival.reading = loop.create_task(read)
        arrival.timer = loop.call_later(self._seconds, self._look, loop, arrival)
        self._waiting.add(arrival)
        self._cut_soon_if_too_many(len(self._waiting), loop)
        try:
            return await arrival.reading
        except asyncio.CancelledError:
            raise too_slow() from None
        except ProtocolClosed:
            raise Rejection(
                "body_incomplete", "the connection ended before the end of the body; send it again"
            ) from None
        finally:
            arrival.timer.cancel()
            arrival.reading = None  # otherwise a reference to the arrival would keep the body in memory
            self._waiting.discard(arrival)

    def _look(self, loop: asyncio.AbstractEventLoop, arrival: Arrival) -> None:
        """Cut off a body that has been too slow since the last check."""
        if arrival.got - arrival.seen < self._rate * self._seconds:
            arrival.cut()
        else:
            arrival.seen = arrival.got
            arrival.timer = loop.call_later(self._seconds, self._look, loop, arrival)

    def _cut_soon_if_too_many(self, waiting: int, loop: asyncio.AbstractEventLoop) -> None:
        if waiting > self._most and not self._is_cutting:
            self._is_cutting = True
            loop.call_later(GRACE, self._cut_the_slowest, loop)

    def _cut_the_slowest(self, loop: asyncio.AbstractEventLoop) -> None:
        self._is_cutting = False
        now = loop.time()
        slow = [arrival for arrival in self._waiting if now - arrival.began >= GRACE]
        slow.sort(key=lambda arrival: (arrival.got / (now - arrival.began), arrival.began))
        overdue = slow[: max(0, len(slow) - self._most)]
        for arrival in overdue:
            arrival.cut()
        # The others may be slow too, and possibly no further body arrives to start a check.
        self._cut_soon_if_too_many(len(self._waiting) - len(overdue), loop)


async def _whole(protocol: HTTPProtocol, length: int) -> bytes:
    """Return a small body in one read."""
    body = await protocol() if length else b""
    if len(body) != length:
        raise incomplete(len(body), length)
    return body


async def _piecewise(
    protocol: HTTPProtocol, length: int, grown: Callable[[int], None] | None, keep: bool, arrival: Arrival
) -> bytes:
    body = bytearray()
    async for piece in protocol:
        if grown is not None:
            grown(len(piece))
        if keep:
            body += piece
        arrival.got += len(piece)
    if arrival.got != length:
        raise incomplete(arrival.got, length)
    return cast(bytes, body)  # not copied, which would double the memory; callers use only what bytes support


def incomplete(got: int, length: int) -> Rejection:
    """Return the rejection of a body that ended too early."""
    return Rejection("body_incomplete", f"the body ended after {got} of {length} bytes; send it again")


def too_slow() -> Rejection:
    """Return the rejection of a body that was cut off."""
    return Rejection("body_timeout", "the body arrived too slowly; send it again over a faster connection")


_ACKED_AT = 120
"""Offset of `tcpi_bytes_acked` in Linux's `struct tcp_info`."""


class Unread:
    """Closes connections whose clients don't read responses.

    A connection is closed if bytes are waiting to be sent, and the client confirmed less than ``rate`` bytes per
    second in the last ``seconds``.
    """

    def __init__(self, seconds: float, rate: int) -> None:
        self._seconds = seconds
        self._rate = rate
        self._since: dict[int, tuple[float, int]] = {}
        self._looked = 0.0

    def look(self, now: float) -> None:
        """Close overdue connections if a check is due, four times in ``seconds`` of the monotonic clock."""
        if now - self._looked < self._seconds / 4 or sys.platform != "linux":
            return
        self._looked = now
        since: dict[int, tuple[float, int]] = {}
        for descriptor, (confirmed, waits) in _sent().items():
            if waits:
                began, at_first = self._since.get(descriptor, (now, confirmed))
                enough = not 0 <= confirmed - at_first < self._rate * (now - began)
                since[descriptor] = (now, confirmed) if enough else (began, at_first)
                if now - since[descriptor][0] >= self._seconds:
                    _close(descriptor)
        self._since = since


def _sent() -> dict[int, tuple[int, int]]:
    """Return the confirmed and the unsent bytes of this process's TCP connections, by descriptor."""
    found = {}
    for name in os.listdir("/dev/fd"):
        with contextlib.suppress(OSError), _duplicate(int(name)) as connection:
            found[int(name)] = _sent_by(connection)
    return found


def _duplicate(descriptor: int) -> socket.socket:
    copy = os.dup(descriptor)
    try:
        return socket.socket(fileno=copy)
    except OSError:
        os.close(copy)
        raise


def _close(descriptor: int) -> None:
    with contextlib.suppress(OSError), _duplicate(descriptor) as connection:
        connection.shutdown(socket.SHUT_RDWR)


def _sent_by(connection: socket.socket) -> tuple[int, int]:
    """Return the number of bytes that the client has confirmed, and of those waiting to be sent."""
    info = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _ACKED_AT + 8)
    waits = fcntl.ioctl(connection.fileno(), termios.TIOCOUTQ, bytes(4))
    return int.from_bytes(info[_ACKED_AT:], sys.byteorder), int.from_bytes(waits, sys.byteorder)
