"""Cost per ping of the measurement of ingest's response times.

    python -m benchmarks.request_times [--json] [--turns 1000]

A worker's application accepts pings in this process, without HTTP and 128 at a time, with and without the clock, in
turns that alternate every few milliseconds; medians of the CPU time of all threads are compared. With HTTP a ping costs
more, so the clock's share of the cost is smaller than this ratio.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any
from unittest import mock

from granian.rsgi import ProtocolClosed

from benchmarks.ingest import CONNECTIONS, make_store
from benchmarks.load import single_requests
from fedping.server_jobs.ingest import application as edge
from fedping.server_jobs.ingest.application import Edge, Front, environ_of
from fedping.server_jobs.ingest.latencies import Stopwatch
from fedping.server_jobs.ingest.services import Services
from fedping.server_jobs.ingest.settings import IngestSettings
from fedping.server_jobs.ingest.submit import run_steps
from fedping.server_jobs.ingest.worker import calm_collector, services_for

if TYPE_CHECKING:
    from granian.rsgi import HTTPProtocol, Scope

_NONE = Stopwatch()


@dataclass(frozen=True)
class Row:
    """CPU microseconds per ping with and without the clock, medians over the turns, and their ratio."""

    with_clock: float
    without: float
    ratio: float


class Untimed(Front):
    """A worker's application without the clock, for pings only."""

    async def __call__(self, scope: Scope, protocol: HTTPProtocol) -> None:
        """Answer one ping."""
        environ = environ_of(scope)
        assert self._is_submitted(environ)
        steps = self.application.submit.steps(environ)
        answer = (await run_steps(steps, partial(self._done, protocol, _NONE))).response()
        with contextlib.suppress(ProtocolClosed):
            protocol.response_bytes(
                answer.status, [(name.lower(), value) for name, value in answer.headers], answer.body
            )


class Client:
    """A client's request body, and the status of the answer."""

    def __init__(self, body: bytes) -> None:
        self._body = body
        self.status = 0

    async def __call__(self) -> bytes:
        """Return the body."""
        return self._body

    def response_bytes(self, status: int, _headers: object, _body: bytes) -> None:
        """Record the status of the answer."""
        self.status = status


def requests(number: int, seed: int) -> list[tuple[Any, bytes]]:
    """Return the heads and bodies of a number of pings."""
    made = []
    for _, whole in zip(range(number), single_requests(seed), strict=False):
        head, _, body = whole.partition(b"\r\n\r\n")
        first, *lines = head.decode().split("\r\n")
        method, path, _ = first.split(" ")
        headers = {name.lower(): value for name, _, value in (line.partition(": ") for line in lines)}
        scope = SimpleNamespace(
            proto="http", method=method, path=path, query_string="", http_version="1.1", headers=headers,
            server="127.0.0.1:8080", client="127.0.0.1:50000", scheme="http",
        )  # fmt: skip
        made.append((scope, body))
    return made


async def _microseconds(front: Front, some: Sequence[tuple[Any, bytes]]) -> float:
    """Return the CPU microseconds per ping, with several pings at a time."""
    clients = [(scope, Client(body)) for scope, body in some]
    began = time.process_time()
    await asyncio.gather(*(front(scope, client) for scope, client in clients))  # type: ignore[arg-type]
    took = time.process_time() - began
    assert {client.status for _, client in clients} == {200}
    return 1e6 * took / len(some)


async def _turns(services: Services, turns: int) -> list[tuple[float, float]]:
    """Return a ping's cost with and without the clock, turn by turn; the order alternates."""
    timed, untimed = Front(Edge(services)), Untimed(Edge(services))
    some = requests(CONNECTIONS, 1)
    found = []
    for turn in range(turns):
        first = await _microseconds(timed, some) if turn % 2 else 0.0
        with mock.patch.object(edge, "perf_counter_ns", _no_clock):
            without = await _microseconds(untimed, some)
        found.append((first or await _microseconds(timed, some), without))
    return found


def measure(turns: int) -> Row:
    """Measure in turns; the first tenth warms up."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        make_store(folder / "store")
        settings = IngestSettings(store=folder / "store", landing=folder / "landing", journal=folder / "journal")
        services = services_for(settings, "bench")
        calm_collector()
        rows = asyncio.run(_turns(services, turns))[turns // 10 :]
    with_clock, without = (statistics.median(row[way] for row in rows) for way in (0, 1))
    return Row(with_clock, without, with_clock / without)


def _no_clock() -> int:
    return 0


def main() -> int:
    """Measure, and print a table or JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--turns", type=int, default=1000)
    options = parser.parse_args()
    row = measure(options.turns)
    if options.json:
        print(json.dumps(asdict(row)))
    else:
        print(f"{row.with_clock:.1f} µs of processor a ping with the clock, {row.without:.1f} without: {row.ratio:.3f}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
