"""Cost of open pages of the dashboard: ingest's throughput with them and without.

    python -m benchmarks.viewers [--viewers 20] [--seconds 6] [--pairs 5]

An ingest runs with its dashboard, on the same cores as the load. Each pair measures both cases in turn, in alternating
order, so that a busy minute affects both; the ratios of the pairs are reported. A viewer reads the stream of the Live
page like a browser, but draws nothing, since drawing happens on another machine.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.client import HTTPConnection
from pathlib import Path
from statistics import median

from benchmarks.ingest import CONNECTIONS, free_port, make_store
from benchmarks.load import run_load, single_requests

FEED = "/live/bench/main/changes"


@dataclass
class Viewer:
    """A viewer, whose page is kept up to date until it is closed."""

    port: int
    events: int = 0
    read: int = 0
    _closing: threading.Event = field(default_factory=threading.Event)

    def __post_init__(self) -> None:
        self._connection = HTTPConnection("127.0.0.1", self.port, timeout=30)
        self._connection.request("GET", FEED, headers={"Accept": "text/event-stream"})
        self._socket = self._connection.sock
        self._answer = self._connection.getresponse()
        if self._answer.status != 200:
            raise RuntimeError(f"the dashboard answered {self._answer.status}: {self._answer.read().decode()}")
        self._thread = threading.Thread(target=self._follow, daemon=True)
        self._thread.start()

    def _follow(self) -> None:
        with contextlib.suppress(OSError, ValueError, AttributeError):
            while not self._closing.is_set() and (line := self._answer.readline()):
                self.read += len(line)
                self.events += line.startswith(b"data:")

    def close(self) -> None:
        """Close the connection, as a closed page does."""
        self._closing.set()
        self._socket.shutdown(socket.SHUT_RDWR)  # closing it would wait for the read in progress
        self._thread.join()
        self._connection.close()


@contextlib.contextmanager
def watched_ingest(folder: Path, viewers: int) -> Iterator[tuple[int, int]]:
    """Run ``fedping ingest --dashboard`` over a new store; yield both ports."""
    make_store(folder / "store")
    port, dashboard = free_port(), free_port()
    places = [f"--{name}={folder / name}" for name in ("store", "landing", "runs")]
    command = [sys.executable, "-m", "fedping", "ingest", *places, "--port", str(port), "--compact-every", "2"]
    command += ["--operations-port", "0"]
    with open(os.devnull, "wb") as nothing:
        server = subprocess.Popen(
            [*command, "--dashboard", str(dashboard), "--viewers", str(3 * viewers)], stdout=nothing
        )
    try:
        for each, path in ((port, "/__heartbeat__"), (dashboard, "/static/icon.svg")):
            _wait_for(f"http://127.0.0.1:{each}{path}")
        yield port, dashboard
    finally:
        server.send_signal(signal.SIGTERM)
        server.wait()


def _wait_for(url: str) -> None:
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline:
        with contextlib.suppress(OSError):
            urllib.request.urlopen(url, timeout=5).close()
            return
        time.sleep(0.05)
    raise RuntimeError(f"nothing answers at {url}")


def measured(port: int, dashboard: int, viewers: int, seconds: float, seed: int) -> tuple[float, list[Viewer]]:
    """Return the durable pings per second while a number of pages are open, and the viewers."""
    pages = [Viewer(dashboard) for _ in range(viewers)]
    outcome = run_load("127.0.0.1", port, CONNECTIONS, single_requests(seed), seconds)
    for page in pages:
        page.close()
    return outcome.rate, pages


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--viewers", type=int, default=20)
    parser.add_argument("--seconds", type=float, default=6.0)
    parser.add_argument("--pairs", type=int, default=5)
    options = parser.parse_args()
    ratios, rates, events = [], [], []
    with (
        tempfile.TemporaryDirectory(dir=os.environ.get("BENCH_DIR")) as name,
        watched_ingest(Path(name), options.viewers) as (port, dashboard),
    ):
        run_load("127.0.0.1", port, CONNECTIONS, itertools.islice(single_requests(1), 3000), 60)
        for pair in range(options.pairs):
            order = (0, options.viewers) if pair % 2 == 0 else (options.viewers, 0)
            found = {}
            for turn, viewers in enumerate(order):
                found[viewers], pages = measured(port, dashboard, viewers, options.seconds, 2 + 2 * pair + turn)
                events += [page.events / options.seconds for page in pages]
            ratios.append(found[options.viewers] / found[0])
            rates.append((found[0], found[options.viewers]))
    print(f"{'pair':>4} {'none':>9} {f'{options.viewers} open':>9} {'ratio':>6}")
    for pair, ((alone, watched), ratio) in enumerate(zip(rates, ratios, strict=True), 1):
        print(f"{pair:>4} {alone:>9,.0f} {watched:>9,.0f} {ratio:>6.3f}")
    print(f"median ratio {median(ratios):.3f}; a page got {median(events):.1f} changes a second")


if __name__ == "__main__":
    main()
