"""A fast load generator for ingest: pings over raw HTTP/1.1 on persistent connections, with uvloop."""

from __future__ import annotations

import asyncio
import gzip
import json
import time
import uuid
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import Any, cast

import numpy as np


@dataclass
class Outcome:
    """The result of a load: answers by status, lost connections, and seconds from each request to its answer."""

    seconds: float = 0.0
    lost: int = 0
    statuses: dict[int, int] = field(default_factory=dict)
    latencies: list[float] = field(default_factory=list)

    @property
    def accepted(self) -> int:
        """The number of requests answered with 200."""
        return self.statuses.get(200, 0)

    @property
    def rate(self) -> float:
        """Rate of requests answered with 200, per second."""
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
    """Send requests over several connections, one at a time on each, for ``seconds`` or until they run out."""
    import uvloop

    return uvloop.run(_run(host, port, connections, requests, seconds))


def http_post(path: str, body: bytes, encoding: str = "") -> bytes:
    """Return the bytes of a POST request with a JSON body."""
    lines = [f"POST {path} HTTP/1.1", "Host: x", "Content-Type: application/json", f"Content-Length: {len(body)}"]
    if encoding:
        lines.append(f"Content-Encoding: {encoding}")
    return "\r\n".join([*lines, "", ""]).encode() + body


M = 22
CLIENTS = 2000
PATH = "/submit/bench/frecency-update/1"


def _ping(rng: np.random.Generator) -> dict[str, Any]:
    selected = int(rng.integers(0, 4))
    return {
        "clientId": _id(rng),
        "type": "frecency-update",
        "payload": {
            "model_version": 0,
            "study_variation": "treatment",
            "update": [round(float(x), 3) for x in rng.normal(0, 20, M)],
            "loss": round(float(rng.exponential(20)), 4),
            "frecency_scores": [float(x) for x in np.sort(rng.integers(10, 9000, 6))[::-1]],
            "num_suggestions_displayed": 6,
            "rank_selected": selected,
            "bookmark_and_history_num_suggestions_displayed": 5,
            "bookmark_and_history_rank_selected": selected,
            "num_chars_typed": 4,
            "num_key_down_events": 5,
            "num_key_down_events_at_selecteds_first_entry": 2,
            "time_start_interaction": 0,
            "time_end_interaction": 2345,
            "time_at_selecteds_first_entry": 812,
            "selected_style": "autofill heuristic",
            "selected_url_was_same_as_search_string": 0,
            "enter_was_pressed": 1,
            "study_addon_version": "2.0.0",
        },
    }


def _id(rng: np.random.Generator) -> str:
    return str(uuid.UUID(bytes=rng.bytes(16)))


def single_requests(seed: int) -> Iterator[bytes]:
    """Yield requests of one ping each, without end."""
    rng = np.random.default_rng(seed)
    bodies = [json.dumps(_ping(rng)).encode() for _ in range(CLIENTS)]
    placeholder = "d" * 36
    templates = [http_post(f"{PATH}/{placeholder}", body).split(placeholder.encode(), 1) for body in bodies]
    number = 0
    while True:
        for before, after in templates:
            number += 1
            yield before + b"%08x-0000-4000-8000-%012x" % (seed, number) + after


def distinct_requests(number: int, seed: int = 1) -> Iterator[bytes]:
    """Yield requests of one ping each, all of different clients and with different contents."""
    rng = np.random.default_rng(seed)
    for _ in range(number):
        yield http_post(f"{PATH}/{_id(rng)}", json.dumps(_ping(rng)).encode())


def batch_requests(seed: int, size: int, batches: int) -> list[bytes]:
    """Return requests of ``size`` pings each, gzipped."""
    rng = np.random.default_rng(seed)
    pings = [_ping(rng) for _ in range(CLIENTS)]
    made = []
    for batch in range(batches):
        lines = [
            json.dumps({"documentId": _id(rng)} | pings[(batch * size + i) % CLIENTS]).encode() for i in range(size)
        ]
        made.append(http_post(PATH, gzip.compress(b"\n".join(lines), 6), "gzip"))
    return made
