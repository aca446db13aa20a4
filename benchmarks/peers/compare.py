"""Client updates per second in fedping, Flower, JAX and pfl-research: `python -m benchmarks.peers.compare`.

    python -m benchmarks.peers.compare [--json] [--models ranking logistic network] [--clients 100 1000 10000]
                                       [--peers Flower JAX pfl-research] [--seconds 600]
    python -m benchmarks.peers.compare --one-core [--turns 5] [--steps 1] ...

Every framework is installed in its own environment below ``build/peers``, at its first run. All do the same work
(`benchmarks.peers.work`) on the same data, verified by the digest of the final weights. A round's time is the median of
all rounds but the first, without the start of the program. Memory is the total of a framework's processes, data
included. Lines are the lines that a user has to write.

``--one-core`` compares fedping, with NumPy and with ``engine = "jax"``, with JAX in three ways: one round per call, 20
rounds per call, and chunks of 10 clients. All run on one core, and a round's CPU time counts, which other load disturbs
less. They run in turns; ratios and speeds are medians over the turns. ``--steps`` is a client's number of steps in a
round. ``--here`` runs JAX with this interpreter, where it must be installed, instead of installing it.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import subprocess
import sys
import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from benchmarks.peers.environments import PEERS, python_of
from benchmarks.peers.session import PeakMemory, kill
from benchmarks.peers.work import Measured, Task, make_data

HERE = Path(__file__).parent
OURS, COMPILED, JAX, SCAN, CHUNK = "fedping", "fedping, jax", "JAX", "JAX, scan", "JAX, chunks"
WAYS = {COMPILED: "compiled", SCAN: "scan", CHUNK: "chunk"}
BEGIN, END = "# --- what a user writes", "# --- to here"
ROUNDS = {100: 6, 1_000: 4, 10_000: 2}
ROUNDS_OF_A_TURN = {100: 60, 1_000: 20, 10_000: 5}


@dataclass(frozen=True)
class Row:
    """A framework's result for a task; ``measured`` is None if it didn't finish in time, and ``why`` is the reason."""

    framework: str
    model: str
    clients: int
    measured: Measured | None
    why: str = ""

    @property
    def updates_per_second(self) -> float | None:
        """The number of client updates per second in a round."""
        return self.clients / statistics.median(self.measured.seconds) if self.measured else None


def main() -> int:
    """Measure, print, and return 1 if the frameworks' weights differ."""
    options = _options()
    workers = {OURS: (Path(sys.executable), "fedping_worker.py")}
    if options.one_core:
        workers[COMPILED] = workers[OURS]
    for peer in PEERS:
        if peer.name in options.peers:
            workers[peer.name] = (Path(sys.executable) if options.here else python_of(peer), peer.worker)
    if options.one_core and options.steps == 1:
        workers |= {SCAN: workers[JAX], CHUNK: workers[JAX]}
    rows: list[Row] = []
    for model in options.models:
        for clients in options.clients:
            with tempfile.TemporaryDirectory() as folder:
                make_data(Path(folder), model, clients)
                rounds = (ROUNDS_OF_A_TURN if options.one_core else ROUNDS).get(clients, 4)
                for _ in range(options.turns):
                    for name, (python, worker) in workers.items():
                        print(f"{model}, {clients:,} clients: {name}", file=sys.stderr, flush=True)
                        way = WAYS.get(name, "round")
                        task = Task(model, clients, rounds, folder, options.steps, way, options.one_core)
                        rows.append(measure(name, python, HERE / worker, task, options.seconds))
    if options.json:
        print(json.dumps([asdict(row) | {"updates_per_second": row.updates_per_second} for row in rows]))
    elif options.one_core:
        _print_turns(rows)
    else:
        _print(rows, {name: lines_to_write(HERE / worker) for name, (_, worker) in workers.items()})
    return 0 if _agree(rows) else 1


def measure(name: str, python: Path, worker: Path, task: Task, seconds: float) -> Row:
    """Run a worker in a session of its own and return its measurements."""
    command = [str(python), str(worker), json.dumps(asdict(task))]
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True
    )
    with PeakMemory(process.pid) as memory:
        try:
            output, _ = process.communicate(timeout=seconds)
        except subprocess.TimeoutExpired:
            kill(process.pid)
            process.communicate()
            return Row(name, task.model, task.clients, None, f"over {seconds:g} s")
    lines = [line for line in output.splitlines() if line.startswith("MEASURED ")]
    if not lines:
        return Row(name, task.model, task.clients, None, output.strip()[-300:])
    told = json.loads(lines[-1].removeprefix("MEASURED ")) | {"peak_mib": memory.peak}
    return Row(name, task.model, task.clients, Measured(**told))


def lines_to_write(worker: Path) -> int:
    """Return the number of a worker's lines that a user must write, without blank lines and comments."""
    text = worker.read_text(encoding="utf-8")
    count, inside = 0, False
    for line in text.splitlines():
        if line.startswith((BEGIN, END)):
            inside = line.startswith(BEGIN)
        elif inside and line.strip() and not line.strip().startswith("#"):
            count += 1
    return count


def _agree(rows: list[Row]) -> bool:
    digests: dict[tuple[str, int, bool], set[float]] = {}
    for row in rows:
        if row.measured:
            many_a_call = row.framework in (COMPILED, SCAN)  # which do more rounds in all
            digests.setdefault((row.model, row.clients, many_a_call), set()).add(round(row.measured.norm, 4))
    different = [task for task, norms in digests.items() if max(norms) - min(norms) > 2e-4]
    for model, clients, _ in different:
        print(f"the frameworks' weights differ: {model}, {clients:,} clients", file=sys.stderr)
    return not different


def _print(rows: list[Row], lines: dict[str, int]) -> None:
    table = Table(box=SIMPLE_HEAD)
    for heading in ("model", "clients a round", "framework", "updates/s", "fedping is", "MiB", "lines"):
        table.add_column(heading, justify="left" if heading in ("model", "framework") else "right")
    for row in rows:
        own = next(r for r in rows if (r.framework, r.model, r.clients) == (OURS, row.model, row.clients))
        ours, theirs = own.updates_per_second, row.updates_per_second
        ratio = f"{ours / theirs:.3g} times as fast" if ours and theirs and row is not own else ""
        speed = f"{theirs:,.0f}" if theirs else row.why
        memory = f"{row.measured.peak_mib:,.0f}" if row.measured else ""
        table.add_row(row.model, f"{row.clients:,}", row.framework, speed, ratio, memory, str(lines[row.framework]))
    Console(width=120).print(table)


def _print_turns(rows: list[Row]) -> None:
    table = Table(box=SIMPLE_HEAD)
    for heading in (
        "model",
        "clients a round",
        "framework",
        "updates/s",
        "beside JAX",
        "of the fastest JAX",
    ):
        table.add_column(heading, justify="left" if heading in ("model", "framework") else "right")
    for model, clients in dict.fromkeys((row.model, row.clients) for row in rows):
        at = [row for row in rows if (row.model, row.clients) == (model, clients)]
        speeds = {
            name: [row.updates_per_second or math.nan for row in at if row.framework == name]
            for name in dict.fromkeys(row.framework for row in at)
        }
        best = [
            max(turn) for turn in zip(*(speeds[name] for name in (JAX, SCAN, CHUNK) if name in speeds), strict=True)
        ]
        for name, found in speeds.items():
            ratios = (statistics.median(a / b for a, b in zip(found, of, strict=True)) for of in (speeds[JAX], best))
            why = next((row.why for row in at if row.framework == name and row.why), "")
            told = [why[-60:]] if why else [f"{statistics.median(found):,.0f}", *(f"{ratio:.2f}" for ratio in ratios)]
            table.add_row(model, f"{clients:,}", name, *told)
    Console(width=120).print(table)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--models", nargs="+", default=["ranking", "logistic", "network"])
    parser.add_argument("--peers", nargs="*", default=[peer.name for peer in PEERS], help="what to compare with")
    parser.add_argument("--clients", nargs="+", type=int, default=[100, 1_000, 10_000])
    parser.add_argument("--seconds", type=float, default=600.0, help="time limit of a framework's run")
    parser.add_argument("--one-core", action="store_true", help="fedping and JAX alone, in turns, on one core")
    parser.add_argument("--turns", type=int, default=1)
    parser.add_argument("--here", action="store_true", help="run JAX with this interpreter")
    parser.add_argument(
        "--steps", type=int, default=1, help="that a client takes in a round; more than 1 with JAX alone"
    )
    options = parser.parse_args()
    if options.one_core or options.steps > 1:
        options.peers = [JAX]
    return options


if __name__ == "__main__":
    sys.exit(main())
