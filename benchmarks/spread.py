"""Cost of a round of many simulated clients, in one process and distributed over Spark's executors.

    python -m benchmarks.spread [--json] [--clients 100000 1000000] [--executors 0 1 2] [--seed 1]

The study of 2018 has one iteration, in which each client searches about once, and one round; so there are about as many
pings as clients. Users have 8 pages, so that a ping costs less than in ``benchmarks.simulate`` and other costs have
more weight. Each row is a run of `fedping simulate` in a separate process, into a temporary folder: ``0`` executors are
one process with two threads, ``n`` are a ``local-cluster`` of n executors of one core each. The time includes that they
start, receive our code and end. Equal weights verify that the results are the same.

Memory is sampled twice a second: the peak proportional set sizes of the command's process, of an executor's Python, and
of all Java processes. CPU seconds are the total of all processes.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from fedping.model_store.store import open_store

STUDY = Path(__file__).parents[1] / "experiments" / "firefox_2018.toml"

EXPERIMENT = """
study = "{study}"
seed = {seed}
clients = {clients}
[optimization]
iterations = 1
searches_per_day = 48
activity_shape = 100
[activity]
swing = 1
[users]
pages = 8
hosts = 4
considered = 4
"""

EVERY = 0.5
TICKS_A_SECOND = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True)
class Row:
    """Costs of a run; memory, in GiB, is of the command's process, an executor's Python, and all Java processes."""

    clients: int
    executors: int
    pings: int
    seconds: float
    cpu_seconds: float
    driver: float
    worker: float
    java: float
    weights: tuple[float, ...]


@dataclass
class Seen:
    """Measurements of a tree of processes so far."""

    cpu: dict[int, float] = field(default_factory=dict)
    driver: float = 0.0
    worker: float = 0.0
    java: float = 0.0

    def look(self, root: int) -> None:
        """Sample a process and all its descendants."""
        java = 0.0
        for pid in _tree(root):
            with suppress(OSError, ValueError, StopIteration):
                stat = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
                self.cpu[pid] = (int(stat[11]) + int(stat[12])) / TICKS_A_SECOND
                lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
                gib = next(int(line.split()[1]) for line in lines if line.startswith("Pss:")) / 2**20
                if Path(f"/proc/{pid}/comm").read_text().strip() == "java":
                    java += gib
                elif pid == root:
                    self.driver = max(self.driver, gib)
                else:
                    self.worker = max(self.worker, gib)
        self.java = max(self.java, java)


def _tree(root: int) -> Iterator[int]:
    """Yield the ids of a process and all its descendants."""
    yield root
    for task in Path(f"/proc/{root}/task").glob("*"):
        with suppress(OSError):
            for child in (task / "children").read_text().split():
                yield from _tree(int(child))


def measured(clients: int, executors: int, seed: int) -> Row:
    with tempfile.TemporaryDirectory(prefix="fedping-spread-") as folder:
        file, out = Path(folder, "many.toml"), Path(folder, "out")
        file.write_text(EXPERIMENT.format(study=STUDY, clients=clients, seed=seed))
        options = ["--threads", "2"]
        if executors:
            options = ["--engine", "spark", "--master", f"local-cluster[{executors},1,1024]"]
        command = [sys.executable, "-m", "fedping", "simulate", str(file), "--out", str(out), "--json", *options]
        began, seen = time.perf_counter(), Seen()
        with open(Path(folder, "said"), "w+") as said:
            running = subprocess.Popen(command, stdout=said, cwd=folder)
            while running.poll() is None:
                seen.look(running.pid)
                time.sleep(EVERY)
            seconds = time.perf_counter() - began
            if running.returncode:
                raise SystemExit(running.returncode)
            said.seek(0)
            summary = json.load(said)
        study = summary["study"]
        store = open_store(out / "store")
        weights = tuple(weight for line in store.study(study).lines for weight in store.head(study, line.name).model)
    cpu = sum(seen.cpu.values())
    return Row(clients, executors, summary["pings"], seconds, cpu, seen.driver, seen.worker, seen.java, weights)


def show(rows: list[Row]) -> None:
    table = Table(box=SIMPLE_HEAD, title="a round of simulated clients", title_justify="left")
    headings = (
        "clients",
        "by",
        "pings",
        "seconds",
        "ratio",
        "CPU s",
        "ratio",
        "driver GiB",
        "worker GiB",
        "Java GiB",
    )
    for heading in headings:
        table.add_column(heading, justify="right", no_wrap=True)
    for row in rows:
        [base] = [each for each in rows if each.clients == row.clients and each.executors == rows[0].executors]
        table.add_row(
            f"{row.clients:,}",
            f"Spark, {row.executors}" if row.executors else "one process",
            f"{row.pings:,}",
            f"{row.seconds:.1f}",
            f"{row.seconds / base.seconds:.2f}",
            f"{row.cpu_seconds:.1f}",
            f"{row.cpu_seconds / base.cpu_seconds:.2f}",
            f"{row.driver:.2f}",
            *((f"{row.worker:.2f}", f"{row.java:.2f}") if row.executors else ("", "")),
        )
    Console(width=120).print(table)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--clients", type=int, nargs="+", default=[100_000, 1_000_000])
    parser.add_argument("--executors", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    rows: list[Row] = []
    for clients in arguments.clients:
        for executors in arguments.executors:
            rows.append(measured(clients, executors, arguments.seed))
            if rows[-1].weights != next(row for row in rows if row.clients == clients).weights:
                raise SystemExit(f"{executors} executors have different weights for {clients:,} clients")
            print(rows[-1], file=sys.stderr)
    if arguments.json:
        print(json.dumps([asdict(row) for row in rows]))
        return
    show(rows)


if __name__ == "__main__":
    main()
