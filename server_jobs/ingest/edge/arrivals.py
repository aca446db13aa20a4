"""The bodies that a worker waits for: how long each may take, and how many may be slow at a time.

They are received as they come, without a thread, so that a slow one costs a little memory and no more. One that is
overdue is cut off.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import TYPE_CHECKING, cast

from granian.rsgi import ProtocolClosed

from server_jobs.ingest.admission.rejection import Rejection
from server_jobs.ingest.settings import SMALL

if TYPE_CHECKING:
    from granian.rsgi import HTTPProtocol

GRACE = 0.25
"""Seconds that a body may take even where more are slow than may be."""


@dataclass(slots=True, eq=False)
class Arrival:
    """A body on its way: who receives it, since when, and by when it has to be there (seconds of the loop's clock)."""

    reading: asyncio.Task[bytes]
    began: float
    due: float


class Arrivals:
    """The bodies of one worker.

    Args:
        most: how many may be slow at a time; beyond, the slowest is cut off.
        seconds: how long a body may take, and
        rate: the bytes for which it is given a second more once they have come.
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
        if length <= SMALL and keep:
            return await self._within_its_time(_whole(protocol, length), None)
        progress = _Progress()
        return await self._within_its_time(_piecewise(protocol, length, grown, keep, progress), progress)

    async def _within_its_time(self, read: Coroutine[None, None, bytes], progress: _Progress | None) -> bytes:
        loop = asyncio.get_running_loop()
        # A task, because that is what can be cancelled: what the server runs requests as cannot.
        arrival = Arrival(loop.create_task(read), now := loop.time(), now + self._seconds)
        self._waiting.add(arrival)
        if len(self._waiting) > self._most and not self._is_cutting:
            self._is_cutting = True
            loop.call_later(GRACE, self._cut_the_slowest, loop)
        timer = loop.call_at(arrival.due, self._look, arrival, progress)
        try:
            return await arrival.reading
        except asyncio.CancelledError:
            raise too_slow() from None
        except ProtocolClosed:
            raise Rejection("body_incomplete", "the connection ended before the body; send it again") from None
        finally:
            timer.cancel()
            self._waiting.discard(arrival)

    def _look(self, arrival: Arrival, progress: _Progress | None) -> None:
        """Cut a body off, unless what has come of it has bought it more time."""
        loop = arrival.reading.get_loop()
        arrival.due = arrival.began + self._seconds + (progress.bytes / self._rate if progress else 0.0)
        if arrival.due <= loop.time():
            arrival.reading.cancel()
        elif arrival in self._waiting:
            loop.call_at(arrival.due, self._look, arrival, progress)

    def _cut_the_slowest(self, loop: asyncio.AbstractEventLoop) -> None:
        self._is_cutting = False
        slow = [arrival for arrival in self._waiting if loop.time() - arrival.began >= GRACE]
        slow.sort(key=lambda arrival: arrival.due)
        for arrival in slow[: max(0, len(slow) - self._most)]:
            arrival.reading.cancel()


@dataclass(slots=True)
class _Progress:
    """How much of a body has come."""

    bytes: int = 0


async def _whole(protocol: HTTPProtocol, length: int) -> bytes:
    """Return a small body at once."""
    body = await protocol() if length else b""
    if len(body) != length:
        raise incomplete(len(body), length)
    return body


async def _piecewise(
    protocol: HTTPProtocol, length: int, grown: Callable[[int], None] | None, keep: bool, progress: _Progress
) -> bytes:
    body = bytearray()
    async for piece in protocol:
        if grown is not None:
            grown(len(piece))
        if keep:
            body += piece
        progress.bytes += len(piece)
    if progress.bytes != length:
        raise incomplete(progress.bytes, length)
    return cast(bytes, body)  # a copy would hold as much again, and nothing asks for more than bytes can


def incomplete(got: int, length: int) -> Rejection:
    """Return what a sender is told whose body ended too early."""
    return Rejection("body_incomplete", f"the body ended after {got} of {length} bytes; send it again")


def too_slow() -> Rejection:
    """Return what a sender is told whose body was cut off."""
    return Rejection("body_timeout", "the body came too slowly; send it again over a better connection")
