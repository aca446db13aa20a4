"""Rate at which ingest accepts and lands pings durably, with the load generated on the same machine.

    python -m benchmarks.ingest [--json] [--seconds 8] [--rounds 3]

A run measures single pings on the hot path, single pings through a plain Flask route with the same landing, and batches
of 500 during compaction. Every accepted ping must be in Parquet at the end.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from benchmarks.load import M, Outcome, batch_requests, run_load, single_requests
from fedping.experiments.server_process import free_ports

CONNECTIONS = 128
BATCH = 500
BATCH_CONNECTIONS = 8


@dataclass(frozen=True)
class Row:
    """A measurement."""

    case: str
    pings_per_second: float
    p50_ms: float
    p99_ms: float
    landed_per_second: float
    compaction_per_second: float
    landed: int
    lost: int


@contextlib.contextmanager
def ingest_running(folder: Path, kind: str, workers: int, threads: int) -> Iterator[tuple[int, int]]:
    """Run an ingest in ``folder``; yield its port and the operations port."""
    port, operations = free_port(), free_port()
    command = [sys.executable, "-m", "benchmarks.ingest", "--serve", kind, str(folder), str(port), str(workers)]
    server = subprocess.Popen([*command, str(threads), str(operations)])
    try:
        _wait_ready(port)
        _wait_ready(operations)
        yield port, operations
    finally:
        server.send_signal(signal.SIGTERM)
        server.wait()


def free_port() -> int:
    """Return a currently unused port."""
    return free_ports()[0]


def serve(kind: str, folder: Path, port: int, workers: int, threads: int, operations: int) -> int:
    """Run ingest over a store with one study; ``kind`` is 'hot' for the product, 'flask' for a plain Flask route."""
    from benchmarks.plain_flask import plain_front
    from fedping.server_jobs.ingest.operations import OperatorsListener
    from fedping.server_jobs.ingest.settings import IngestSettings
    from fedping.server_jobs.ingest.supervisor import OPERATIONS, prepare, supervise
    from fedping.server_jobs.ingest.worker import front

    make_store(folder / "store")
    settings = IngestSettings(
        store=folder / "store",
        landing=folder / "landing",
        journal=folder / "journal",
        port=port,
        workers=workers,
        threads=threads,
        compact_every=2.0,
        operations_port=operations,
    )
    prepare(settings)
    beside = {OPERATIONS: OperatorsListener(settings).serve}
    return supervise(settings, {"hot": front, "flask": plain_front}[kind], beside)


def make_store(folder: Path) -> None:
    """Make a store with one study at version 0."""
    from fedping.model_store import open_store
    from fedping.model_store.version import first_version
    from fedping.protocol.spec import ModelSpec, Step, Weight
    from fedping.protocol.study import Arm, Line, Study

    step = Step(start=1, min=0.1, max=3)
    spec = ModelSpec(name="bench", model="bench", weights=tuple(Weight(f"w{i}", 1.0, step) for i in range(M)))
    arm = Arm(name="treatment", share=1, line="main", applies=True, submits=True)
    study = Study(name="bench", arms=(arm,), lines=(Line(name="main", spec=spec),))
    version = first_version("bench", "main", spec, (), "2026-01-01T00:00:00+00:00", "bench", "")
    open_store(folder, create=True).create_study(study, (version,))


def _wait_ready(port: int) -> None:
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline:
        with contextlib.suppress(OSError):
            _ask(port, "/__heartbeat__")
            return
        time.sleep(0.05)
    raise RuntimeError("ingest did not start")


def _ask(port: int, path: str, method: str = "GET") -> Any:
    request = urllib.request.Request(f"http://127.0.0.1:{port}{path}", method=method)
    with urllib.request.urlopen(request, timeout=600) as answer:
        return answer.read()


def _metrics(port: int) -> dict[str, float]:
    lines = _ask(port, "/metrics").decode().splitlines()
    return {name: float(value) for name, value in (line.rsplit(" ", 1) for line in lines if not line.startswith("#"))}


def _row(case: str, operations: int, outcome: Outcome, pings_a_request: int, began: float) -> Row:
    _ask(operations, "/__flush__?timeout=600", "POST")
    landed_seconds = time.perf_counter() - began
    sums = _metrics(operations)
    landed = int(sums["fedping_ingest_pings_landed_total"])
    return Row(
        case,
        outcome.rate * pings_a_request,
        outcome.percentile(50),
        outcome.percentile(99),
        landed / landed_seconds,
        landed / sums["fedping_ingest_compaction_seconds_total"],
        landed,
        outcome.accepted * pings_a_request - landed,
    )


def measure_single(kind: str, case: str, seconds: float, workers: int, threads: int) -> Row:
    """Measure requests of one ping each."""
    with tempfile.TemporaryDirectory(dir=os.environ.get("BENCH_DIR")) as name:
        with ingest_running(Path(name), kind, workers, threads) as (port, operations):
            run_load("127.0.0.1", port, CONNECTIONS, itertools.islice(single_requests(1), 3000), 60)
            warm = int(_metrics(operations)["fedping_ingest_pings_accepted_total"])
            began = time.perf_counter()
            outcome = run_load("127.0.0.1", port, CONNECTIONS, single_requests(2), seconds)
            row = _row(case, operations, outcome, 1, began)
        return Row(**(asdict(row) | {"lost": row.lost + warm, "landed": row.landed - warm}))


def measure_batches(seconds: float, workers: int, threads: int) -> Row:
    """Measure gzipped batches, generated beforehand and sent until they or the time run out."""
    requests = batch_requests(3, BATCH, int(300 * seconds))
    with (
        tempfile.TemporaryDirectory(dir=os.environ.get("BENCH_DIR")) as name,
        ingest_running(Path(name), "hot", workers, threads) as (port, operations),
    ):
        began = time.perf_counter()
        outcome = run_load("127.0.0.1", port, BATCH_CONNECTIONS, iter(requests), seconds)
        return _row(f"batches of {BATCH}, gzip", operations, outcome, BATCH, began)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--seconds", type=float, default=8.0)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--threads", type=int, default=64)
    parser.add_argument("--serve", nargs=6, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.serve:
        kind, folder, port, workers, threads, operations = options.serve
        sys.exit(serve(kind, Path(folder), int(port), int(workers), int(threads), int(operations)))
    rows = measure(options.rounds, options.seconds, options.workers, options.threads)
    print(json.dumps([asdict(row) for row in rows], indent=1) if options.json else table(rows))


def measure(rounds: int, seconds: float, workers: int, threads: int) -> list[Row]:
    """Return each case's result with the median rate; the cases take turns, so that a busy minute affects all."""
    turns = [
        (
            measure_single("hot", "one ping a request, hot path", seconds, workers, threads),
            measure_single("flask", "one ping a request, Flask route", seconds, workers, threads),
            measure_batches(seconds, workers, threads),
        )
        for _ in range(rounds)
    ]
    return [sorted(case, key=lambda row: row.pings_per_second)[rounds // 2] for case in zip(*turns, strict=True)]


def table(rows: list[Row]) -> str:
    """Return the rows as a table in text."""
    head = (
        f"{'case':<32} {'accepted/s':>10} {'p50 ms':>7} {'p99 ms':>7} "
        f"{'landed/s':>9} {'compacted/s':>11} {'pings':>8} {'lost':>5}"
    )
    lines = [
        f"{r.case:<32} {r.pings_per_second:>10,.0f} {r.p50_ms:>7.1f} {r.p99_ms:>7.1f} {r.landed_per_second:>9,.0f} "
        f"{r.compaction_per_second:>11,.0f} {r.landed:>8,} {r.lost:>5}"
        for r in rows
    ]
    ratio = rows[0].pings_per_second / rows[1].pings_per_second
    return "\n".join([head, *lines, f"hot path / Flask route: {ratio:.2f}"])


if __name__ == "__main__":
    main()
