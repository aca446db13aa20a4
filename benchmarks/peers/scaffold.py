"""SCAFFOLD with fedping, with pfl-research, and in a plain loop: `python -m benchmarks.peers.scaffold`.

    python -m benchmarks.peers.scaffold [--models logistic network] [--clients 100 1000] [--steps 5] [--seconds 600]

All do the same work (`benchmarks.peers.work`) on the same data: every client takes a number of steps on all its
examples in every round, by option II. Each runs on one core, and a round's time is its CPU time, the median of all
rounds but the first. Memory is the total of all processes, data included. The weights of every round are compared with
those of the plain loop, which is the paper's algorithm as written: a column has the first round in which they differ by
more than 1e-3 of their norm.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

import numpy as np
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from benchmarks.peers.compare import HERE, OURS, lines_to_write, measure
from benchmarks.peers.environments import PEERS, python_of
from benchmarks.peers.work import Task, make_data

PFL = "pfl-research"
LOOP = "NumPy, a loop"
ROUNDS = 6


def main() -> int:
    """Measure and print; return 1 if our weights differ from the plain loop's."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", nargs="+", default=["logistic", "network"])
    parser.add_argument("--clients", nargs="+", type=int, default=[100, 1_000])
    parser.add_argument("--steps", type=int, default=5, help="that a client takes in a round")
    parser.add_argument("--seconds", type=float, default=600.0, help="time limit of a framework's run")
    options = parser.parse_args()
    python = Path(sys.executable)
    [pfl] = [python_of(peer) for peer in PEERS if peer.name == PFL]
    workers = {
        LOOP: (python, HERE / "scaffold_numpy_worker.py"),
        OURS: (python, HERE / "scaffold_worker.py"),
        PFL: (pfl, HERE / "scaffold_pfl_worker.py"),
    }
    columns = ("model", "clients", "framework", "updates/s", "peak MiB", "lines", "differs in round")
    table = Table(*columns, title="SCAFFOLD: client updates a second", box=SIMPLE_HEAD)
    agree = True
    for model in options.models:
        for clients in options.clients:
            with tempfile.TemporaryDirectory() as folder:
                make_data(Path(folder), model, clients)
                task = Task(model, clients, ROUNDS, folder, options.steps, one_core=True)
                wanted: list[np.ndarray] = []
                for name, (interpreter, worker) in workers.items():
                    row = measure(name, interpreter, worker, task, options.seconds)
                    if row.measured is None:
                        print(f"{model}, {clients:,} clients, {name}: {row.why}", file=sys.stderr)
                        agree = False
                        continue
                    found = [np.load(task.kept_of_round(number)) for number in range(1, ROUNDS + 1)]
                    wanted = wanted or found
                    others = [at for at, pair in enumerate(zip(found, wanted, strict=True), 1) if far(*pair)]
                    agree &= name != OURS or not others
                    speed, memory = f"{row.updates_per_second:,.0f}", f"{row.measured.peak_mib:,.0f}"
                    lines = str(lines_to_write(worker))
                    table.add_row(model, f"{clients:,}", name, speed, memory, lines, str(min(others, default="none")))
    Console(width=120).print(table)
    return 0 if agree else 1


def far(found: np.ndarray, wanted: np.ndarray) -> bool:
    """Return whether weights differ by more than rounding."""
    return bool(np.linalg.norm(found - wanted) > 1e-3 * np.linalg.norm(wanted))


if __name__ == "__main__":
    sys.exit(main())
