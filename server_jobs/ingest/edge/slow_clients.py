"""Connections that take their time: bodies that arrive slowly, and answers that are not read.

They are received as they come, without a thread, so that a slow one costs a little memory and no more. One that is
overdue is cut off.
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

from fedping.server_jobs.ingest.admission.rejection import Rejection
from fedping.server_jobs.ingest.settings import SMALL

if TYPE_CHECKING:
    from granian.rsgi import HTTPProtocol


GRACE = 0.25
"""Seconds that a body may take even where more are slow than may be."""


@dataclass(slots=True, eq=False)
class Arrival:
    """A body on its way.

    ``began`` is in seconds of the loop's clock, ``got`` how much has come by now, ``seen`` how much at the last look.
    """

    began: float
    got: int = 0
    seen: int = 0
    reading: asyncio.Task[bytes] | None = None
    timer: asyncio.TimerHandle | None = None

    def cut(self) -> None:
        """Give the body up."""
        if self.reading is not None:
            self.reading.cancel()


class Arrivals:
    """The bodies of one worker.

    Args:
        most: how many may be slow at a time; beyond, the slowest are cut off.
        seconds: how long a body may take. One that takes longer has to bring
        rate: bytes a second in every such span, or is cut off.
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
        """Return a body of ``length`` bytes; ``grown`` is told how many more are about to be held.

        A body that is not to be kept is read and returned as b"".

        Raises:
            Rejection: it ended too early, took too long, or ``grown`` refused more of it.
        """
        loop = asyncio.get_running_loop()
        arrival = Arrival(loop.time())
        is_small = length <= SMALL and keep
        read = _whole(protocol, length) if is_small else _piecewise(protocol, length, grown, keep, arrival)
        # A task, because that is what can be cancelled: what the server runs requests as cannot.
        arrival.reading = loop.create_task(read)
        arrival.timer = loop.call_later(self._seconds, self._look, loop, arrival)
        self._waiting.add(arrival)
        self._cut_soon_if_too_many(len(self._waiting), loop)
        try:
            return await arrival.reading
        except asyncio.CancelledError:
            raise too_slow() from None
        except ProtocolClosed:
            raise Rejection("body_incomplete", "the connection ended before the body; send it again") from None
        finally:
            arrival.timer.cancel()
            arrival.reading = None  # it holds the body, and whatever holds the arrival would hold that
            self._waiting.discard(arrival)

    def _look(self, loop: asyncio.AbstractEventLoop, arrival: Arrival) -> None:
        """Cut a body off, unless enough of it has come since the last look."""
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
        # Those that still have time now may be slow as well, and perhaps no other body comes that would have us look.
        self._cut_soon_if_too_many(len(self._waiting) - len(overdue), loop)


async def _whole(protocol: HTTPProtocol, length: int) -> bytes:
    """Return a small body at once."""
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
    return cast(bytes, body)  # a copy would hold as much again, and nothing asks for more than bytes can


def incomplete(got: int, length: int) -> Rejection:
    """Return what a sender is told whose body ended too early."""
    return Rejection("body_incomplete", f"the body ended after {got} of {length} bytes; send it again")


def too_slow() -> Rejection:
    """Return what a sender is told whose body was cut off."""
    return Rejection("body_timeout", "the body came too slowly; send it again over a better connection")


_ACKED_AT = 120
"""Where `tcpi_bytes_acked` stands in Linux's `struct tcp_info`."""


class Unread:
    """Closes connections whose answers are not read.

    A connection is closed on which something waits to be sent and, in ``seconds``, less than ``rate`` bytes a second
    were confirmed.
    """

    def __init__(self, seconds: float, rate: int) -> None:
        self._seconds = seconds
        self._rate = rate
        self._since: dict[int, tuple[float, int]] = {}
        self._looked = 0.0

    def look(self, now: float) -> None:
        """Close what is overdue at a time of the monotonic clock. It is looked at a few times in ``seconds`` only."""
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
    """Return for each TCP connection of this process, by descriptor, the bytes confirmed and the bytes that wait."""
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
    """Return the bytes that the other side has confirmed, and those that wait for it."""
    info = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _ACKED_AT + 8)
    waits = fcntl.ioctl(connection.fileno(), termios.TIOCOUTQ, bytes(4))
    return int.from_bytes(info[_ACKED_AT:], sys.byteorder), int.from_bytes(waits, sys.byteorder)
