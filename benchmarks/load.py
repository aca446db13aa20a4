"""A load generator that costs little beside the server it loads: raw HTTP/1.1 on kept connections, under uvloop."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import cast

import numpy as np


@dataclass
class Outcome:
    """What a load came to: answers by status, connections lost, and seconds from each request to its answer."""

    seconds: float = 0.0
    lost: int = 0
    statuses: dict[int, int] = field(default_factory=dict)
    latencies: list[float] = field(default_factory=list)

    @property
    def accepted(self) -> int:
        """The requests answered 200."""
        return self.statuses.get(200, 0)

    @property
    def rate(self) -> float:
        """Requests answered 200 per second."""
        return self.accepted / self.seconds

    def percentile(self, q: float) -> float:
        """Return the q-th percentile of the latencies, in milliseconds."""
        return float(np.percentile(self.latencies, q)) * 1000 if self.latencies else float("nan")


class _Connection(asyncio.Protocol):
    def __init__(self, requests: Iterator[bytes], outcome: Outcome, until: float, done: asyncio.Future[None]) -> None:
        self._requests = requests
        self._outcome = outcome
        self._until = until
        self._done = done
        self._received = b""
        self._sent = 0.0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's does not inherit from it
        self._send()

    def data_received(self, data: bytes) -> None:
        self._received += data
        head, blank, body = self._received.partition(b"\r\n\r\n")
        if blank and len(body) >= _content_length(head):
            self._received = b""
            self._answered(int(head[9:12]))

    def connection_lost(self, exc: Exception | None) -> None:
        if not self._done.done():
            self._outcome.lost += 1
            self._done.set_result(None)

    def _send(self) -> None:
        request = next(self._requests, None)
        now = time.perf_counter()
        if request is None or now >= self._until:
            self._done.set_result(None)
            self._transport.close()
        else:
            self._sent = now
            self._transport.write(request)

    def _answered(self, status: int) -> None:
        outcome = self._outcome
        outcome.latencies.append(time.perf_counter() - self._sent)
        outcome.statuses[status] = outcome.statuses.get(status, 0) + 1
        self._send()


def _content_length(head: bytes) -> int:
    found = head.lower().find(b"content-length:")
    return int(head[found + 15 :].split(b"\r", 1)[0]) if found >= 0 else 0


async def _run(host: str, port: int, connections: int, requests: Iterator[bytes], seconds: float) -> Outcome:
    loop = asyncio.get_running_loop()
    outcome = Outcome()
    began = time.perf_counter()
    ends = [loop.create_future() for _ in range(connections)]
    for end in ends:
        connection = partial(_Connection, requests, outcome, began + seconds, end)
        await loop.create_connection(connection, host, port)
    await asyncio.gather(*ends)
    outcome.seconds = time.perf_counter() - began
    return outcome


def run_load(host: str, port: int, connections: int, requests: Iterator[bytes], seconds: float) -> Outcome:
    """Send requests over ``connections`` connections, one at a time on each, for ``seconds`` or until they run out."""
    import uvloop

    return uvloop.run(_run(host, port, connections, requests, seconds))


def http_post(path: str, body: bytes, encoding: str = "") -> bytes:
    """Return the bytes of a POST of a JSON body."""
    lines = [f"POST {path} HTTP/1.1", "Host: x", "Content-Type: application/json", f"Content-Length: {len(body)}"]
    if encoding:
        lines.append(f"Content-Encoding: {encoding}")
    return "\r\n".join([*lines, "", ""]).encode() + body
