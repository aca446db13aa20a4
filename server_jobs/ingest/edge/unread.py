"""Answers that nobody reads: the server holds what of them it cannot send, for as long as the connection lasts."""

from __future__ import annotations

import contextlib
import fcntl
import os
import socket
import sys
import termios

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
