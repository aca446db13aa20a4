"""Feeds that keep open pages up to date, as events or by polling; each feed is read once for all its pages.

The events follow the standard (HTML, "Server-sent events"): the browser reconnects by itself, sends its position in
``Last-Event-ID``, and gets only the rest. A page whose stream is refused polls the same address.
"""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import msgspec
from flask import Response, g, request

from fedping.dashboard.answers import FRESH, as_json, sentence_of
from fedping.protocol.errors import FedpingError


@dataclass(frozen=True)
class Change:
    """A change of a feed, as sent to a page.

    Attributes:
        position: identifies the data that the page has after this change. It is derived from the files' contents, not
            from the server's memory, so that a page continues after a restart of the server.
        data: JSON data; a field states whether they are complete or an addition.
    """

    position: str
    data: Mapping[str, Any]


@runtime_checkable
class Feed(Hashable, Protocol):
    """A source of changes that pages follow. Equal feeds are read once for all their pages."""

    def since(self, position: str | None) -> Change | None:
        """Return the change since ``position``, or everything if it is None or unknown; None if nothing is new.

        Raises:
            FedpingError: the feed's subject cannot be read.
        """
        ...


KEPT = 256
"""The number of cached answers; each is useful for one tick."""


@dataclass
class _Answer:
    read: float
    change: Change | None


@dataclass
class SharedReading:
    """Cache of the feeds' changes by position, each kept for ``tick`` seconds.

    Pages that follow one feed are nearly always at the same position, so a hundred of them cost one reading. Feeds are
    read one at a time, so that the dashboard never uses more than one core.
    """

    tick: float
    clock: Callable[[], float] = time.monotonic
    _answers: OrderedDict[tuple[Feed, str | None], _Answer] = field(default_factory=OrderedDict)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def since(self, feed: Feed, position: str | None) -> Change | None:
        """Return the feed's answer, at most ``tick`` seconds old.

        Raises:
            FedpingError: the feed's subject cannot be read.
        """
        with self._lock:
            key = (feed, position)
            known = self._answers.get(key)
            if known is not None and self.clock() - known.read < self.tick:
                return known.change
            change = feed.since(position)
            self._answers[key] = _Answer(self.clock(), change)
            self._answers.move_to_end(key)
            while len(self._answers) > KEPT:
                self._answers.popitem(last=False)
            return change


TICK = 0.2
"""Seconds between two checks of the files: at most five updates a second."""

HEARTBEAT = 5.0
"""Seconds after which an idle stream sends a heartbeat; a page without heartbeats knows that the server hangs.

The server notices only on writing that a viewer has left, since WSGI doesn't report it earlier. So a viewer's place
becomes free at most this long afterwards. That is soon enough: a visitor who reloads a page forty times in three
seconds gets no stream for about three more seconds; the page then polls for a minute.
"""

RECONNECT_MS = 2000
AFTER_PROBLEM = 3.0


def _always() -> bool:
    return True


class Streams:
    """Event streams for at most ``viewers`` pages at a time."""

    def __init__(self, viewers: int, tick: float = TICK, sleep: Callable[[float], None] = time.sleep) -> None:
        self.viewers = viewers
        self._tick = tick
        self._sleep = sleep
        self._reading = SharedReading(tick)
        self._open = 0
        self._lock = threading.Lock()

    @property
    def open(self) -> int:
        """The number of streams that are open."""
        return self._open

    def answer(self, feed: Feed) -> Response:
        """Answer the current request from ``feed``: with a stream if the request accepts one, else with one change.

        Raises:
            FedpingError: the feed's subject cannot be read (on a stream, the page gets this as an event).
        """
        if "text/event-stream" in request.headers.get("Accept", ""):
            return self._stream(feed, request.headers.get("Last-Event-ID") or request.args.get("since"))
        return self._once(feed, request.args.get("since"))

    def _once(self, feed: Feed, position: str | None) -> Response:
        change = self._reading.since(feed, position)
        if change is None:
            return Response(status=204, headers=FRESH)
        return as_json({"position": change.position, "data": change.data})

    def _stream(self, feed: Feed, position: str | None) -> Response:
        if not self._enter():
            body = {"error": f"{self.viewers} pages are already open; this one polls instead"}
            return as_json(body, 503, {"Retry-After": "10"})
        response = Response(
            self._events(feed, position, g.get("still_admitted", _always)),
            content_type="text/event-stream",
            headers={**FRESH, "X-Accel-Buffering": "no"},
        )
        response.call_on_close(self._leave)
        return response

    def _enter(self) -> bool:
        with self._lock:
            if self._open >= self.viewers:
                return False
            self._open += 1
            return True

    def _leave(self) -> None:
        with self._lock:
            self._open -= 1

    def _events(self, feed: Feed, position: str | None, admitted: Callable[[], bool] = _always) -> Iterator[bytes]:
        """Yield events until the viewer leaves, or is no longer admitted."""
        yield b"retry: %d\n\n" % RECONNECT_MS
        silent = 0.0
        while admitted():
            try:
                change = self._reading.since(feed, position)
            except (FedpingError, OSError) as error:
                yield _event("problem", None, {"error": sentence_of(error)})
                self._sleep(AFTER_PROBLEM)
                continue
            if change is not None:
                position, silent = change.position, 0.0
                yield _event("change", change.position, change.data)
            elif silent >= HEARTBEAT:
                silent = 0.0
                yield b"event: beat\ndata: {}\n\n"
            self._sleep(self._tick)
            silent += self._tick


def _event(kind: str, position: str | None, data: object) -> bytes:
    """Return one event in wire format; JSON has no raw line break, so it fits on one data line."""
    identity = b"" if position is None else b"id: " + position.encode() + b"\n"
    return b"event: " + kind.encode() + b"\n" + identity + b"data: " + msgspec.json.encode(data) + b"\n\n"


def last_lines(file: Path, most: int) -> list[bytes]:
    """Return the lines in the last ``most`` bytes of a file, from the first whole line on; empty for a missing file.

    The last line is empty, or the beginning of a line that is still being written.
    """
    try:
        with open(file, "rb") as source:
            size = source.seek(0, 2)
            source.seek(max(0, size - most))
            lines = source.read().split(b"\n")
    except OSError:
        return []
    return lines if size <= most else lines[1:]
