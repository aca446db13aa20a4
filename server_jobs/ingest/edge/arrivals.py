"""The bodies that a worker waits for: how long each may take, how many may be slow at a time, and how one is cut off.

The server hands a body over as it comes, and whoever reads it holds a thread that nothing can wake but the client. So a
thread of its own looks after those that read: it answers 408 in the place of an overdue one and shuts its socket down,
which ends the read. The server does not tell which socket that is. It is the one through which the answer went, and
each answer of a round has a length of its own.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import socket
import sys
import termios
import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from types import FrameType
from typing import Any, cast

from server_jobs.ingest.admission.rejection import Rejection
from server_jobs.ingest.edge.answers import Answer, refusal
from server_jobs.ingest.settings import SMALL

LOOK_EVERY = 0.1
GRACE = 0.25
"""Seconds that a body may take even where more are slow than may be."""

AT_A_TIME = 64
_STEP = 128
_PIECE = SMALL
_ACKED_AT = 120
"""Where `tcpi_bytes_acked` stands in Linux's `struct tcp_info`."""


@dataclass(slots=True, eq=False)
class Arrival:
    """A body on its way: who reads it, since when, and how much of it has come."""

    environ: dict[str, Any]
    thread: int
    began: float
    got: int = 0
    is_cut: bool = False


class Arrivals:
    """The bodies of one worker.

    Args:
        most: how many may be slow at a time; beyond, the slowest are cut off.
        seconds: how long a body may take, and
        rate: the bytes for which it is given a second more once they have come.
    """

    def __init__(self, most: int, seconds: float, rate: int) -> None:
        self._most = most
        self.seconds = seconds
        self.rate = rate
        self._waiting: dict[int, Arrival] = {}

    def read(self, environ: dict[str, Any], length: int, grown: Callable[[int], None] | None = None) -> bytes:
        """Return a body of ``length`` bytes; ``grown`` is told how many more are about to be held.

        Raises:
            Rejection: it ended too early, took too long, or ``grown`` refused more of it.
        """
        arrival = Arrival(environ, threading.get_ident(), time.monotonic())
        self._waiting[id(arrival)] = arrival
        try:
            body = environ["wsgi.input"].read(length) if grown is None else self._pieces(arrival, length, grown)
        finally:
            del self._waiting[id(arrival)]
        if arrival.is_cut:
            raise too_slow()
        if len(body) != length:
            raise Rejection("body_incomplete", f"the body ended after {len(body)} of {length} bytes; send it again")
        return cast(bytes, body)  # a bytearray does as well, and is not copied

    def drop(self, environ: dict[str, Any], length: int) -> None:
        """Read a body and keep nothing of it."""
        arrival = Arrival(environ, threading.get_ident(), time.monotonic())
        self._waiting[id(arrival)] = arrival
        try:
            while arrival.got < length and (piece := environ["wsgi.input"].read(min(_PIECE, length - arrival.got))):
                arrival.got += len(piece)
        finally:
            del self._waiting[id(arrival)]

    def _pieces(self, arrival: Arrival, length: int, grown: Callable[[int], None]) -> bytearray:
        body = bytearray()
        while len(body) < length:
            want = min(_PIECE, length - len(body))
            grown(want)
            piece = arrival.environ["wsgi.input"].read(want)
            body += piece
            arrival.got = len(body)
            if len(piece) < want:
                break
        return body

    def overdue(self, now: float) -> list[Arrival]:
        """Return the bodies to be cut off at a time of the monotonic clock: the late ones, and the slowest of many."""
        waiting = [arrival for arrival in list(self._waiting.values()) if not arrival.is_cut]
        waiting.sort(key=self._until)
        late = [arrival for arrival in waiting if self._until(arrival) <= now]
        slow = [arrival for arrival in waiting[len(late) :] if now - arrival.began > GRACE]
        return late + slow[: max(0, len(slow) - self._most)]

    def _until(self, arrival: Arrival) -> float:
        return arrival.began + self.seconds + arrival.got / self.rate

    def is_reading(self, arrival: Arrival) -> bool:
        """Return whether a body is still waited for."""
        return id(arrival) in self._waiting


class Patience(threading.Thread):
    """Cuts off overdue bodies, as long as the process lives."""

    def __init__(self, arrivals: Arrivals) -> None:
        super().__init__(name="patience", daemon=True)
        self._arrivals = arrivals
        self._unread = Unread(arrivals.seconds, arrivals.rate)

    def run(self) -> None:
        """Look after the bodies until the process ends."""
        from server_jobs.ingest.edge.submit import print_defect

        while True:
            time.sleep(LOOK_EVERY)
            try:
                if overdue := self._arrivals.overdue(time.monotonic()):
                    self._cut(overdue[:AT_A_TIME])
                self._unread.look(time.monotonic())
            except Exception:  # whatever it is, the next look has to come
                print_defect()

    def _cut(self, overdue: list[Arrival]) -> None:
        """Answer each with 408, and close the sockets through which the answers went."""
        before = {descriptor: sum(sent) for descriptor, sent in _sent().items()}
        lengths = [self._answer(arrival, place) for place, arrival in enumerate(overdue, 1)]
        left = {length for length in lengths if length}
        until = time.monotonic() + 1.0
        while left and time.monotonic() < until:
            time.sleep(0.01)
            left -= set(_close_by_growth(before, left))
        for arrival in overdue:  # who could not be cut off is tried again
            arrival.is_cut = False if self._arrivals.is_reading(arrival) and left else arrival.is_cut

    def _answer(self, arrival: Arrival, place: int) -> int:
        """Answer in the place of the thread that reads; return the bytes that go through its socket (0: none)."""
        protocol = _protocol_of(arrival)
        if protocol is None:
            return 0
        answer = refusal(too_slow())
        arrival.is_cut = True
        padded = answer.body.ljust(_STEP * (place + 4))
        sent = Answer(answer.status, padded, answer.headers)
        lines: list[tuple[str, str]] = []
        sent.send(lambda _status, headers: lines.extend(headers))  # type: ignore[arg-type]
        protocol.response_bytes(sent.status, lines, padded)
        return _length_on_the_wire(lines) + len(padded)


class Unread:
    """Answers that nobody reads: the server holds what of them it cannot send, for as long as the connection lasts.

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
        if now - self._looked < self._seconds / 4:
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


def too_slow() -> Rejection:
    """Return what a sender is told whose body was cut off."""
    return Rejection("body_timeout", "the body came too slowly; send it again over a better connection")


def _protocol_of(arrival: Arrival) -> Any:
    """Return the server's end of an arrival's request, found in the frame that called the application."""
    frame: FrameType | None = sys._current_frames().get(arrival.thread)
    while frame is not None:
        found = frame.f_locals
        if found.get("environ") is arrival.environ and "proto" in found:
            return found["proto"]
        frame = frame.f_back
    return None


def _length_on_the_wire(headers: Iterable[tuple[str, str]]) -> int:
    status = len("HTTP/1.1 408 Request Timeout\r\n")
    ours = sum(len(name) + len(value) + 4 for name, value in headers)
    servers = len("server: granian\r\n") + len("date: Sun, 22 Nov 2026 05:13:33 GMT\r\n")
    return status + ours + servers + 2


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


def _close_by_growth(before: dict[int, int], lengths: set[int]) -> list[int]:
    """Shut down the connections that grew by one of these lengths, give or take half a step; return which."""
    closed = []
    for descriptor, written in before.items():
        with contextlib.suppress(OSError), _duplicate(descriptor) as connection:
            growth = sum(_sent_by(connection)) - written
            length = next((one for one in lengths if abs(one - growth) < _STEP // 2), None)
            if length is not None:
                connection.shutdown(socket.SHUT_RDWR)
                closed.append(length)
    return closed
