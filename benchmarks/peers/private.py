"""Private training with fedping and pfl-research, on the same work: `python -m benchmarks.peers.private`.

    python -m benchmarks.peers.private [--models logistic network] [--clients 100] [--rounds 20] [--clip 0.05]
                                       [--noise-multiplier 10] [--turns 6] [--python BINARY] [--json]

All clients take one step in every round (`benchmarks.peers.work`), whose norm is clipped to ``--clip``. Their sum gets
Gaussian noise of ``--noise-multiplier`` times the clip bound, and is divided by the number of clients. Each framework
trains with and without privacy, in turns; the noise differs between turns, the data don't. pfl-research is installed in
its own environment (`benchmarks.peers.environments`), or run with the interpreter ``--python``.

Prints accuracy and loss on examples of clients that don't train, with the 95 % t interval over the turns, the
difference between ours and theirs, and a round's CPU seconds on one core, the median of all turns. The exit code is 1
if the results without privacy differ, and 2 if pfl-research cannot be installed or fails.

The noise on a weight is the same in both. Our noise is discrete Gaussian, as in published rounds, but drawn from a
seed; theirs is continuous. Our noise also covers the loss, the top choice and the number of clients, which pfl-research
doesn't release: for the same ε, our noise on a weight would be √(1 + 3/16) times as large.
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

import numpy as np
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from benchmarks.peers.compare import HERE, OURS, measure
from benchmarks.peers.environments import PEERS, python_of
from benchmarks.peers.work import CLASSES, HIDDEN, FloatArray, ModelName, Task, make_data
from fedping.experiments.laboratory.summary import Band, band
from fedping.server_jobs.privacy.gaussian import epsilon_of

(PFL,) = (peer for peer in PEERS if peer.name == "pfl-research")
HELD_OUT = 100
"""Number of clients that don't train; their examples measure the result."""

DELTA = 1e-5


@dataclass(frozen=True)
class Row:
    """A framework's results with or without privacy, one value per turn.

    Attributes:
        framework, private: the framework's name, and whether clip and noise are used.
        accuracy, loss: results on the held-out examples; the loss is the cross-entropy in nats.
        seconds: CPU seconds of the rounds.
    """

    framework: str
    private: bool
    accuracy: list[float]
    loss: list[float]
    seconds: list[float]


def held_out(model: ModelName, weights: FloatArray, x: FloatArray, y: FloatArray) -> tuple[float, float]:
    """Return accuracy and mean cross-entropy of ``weights`` (m,) for examples x (n, d) of the classes y (n,)."""
    d = x.shape[1]
    if model == "logistic":
        scores = np.zeros((len(x), 2))
        scores[:, 1] = x @ weights[:d] + weights[d]
    else:
        w1, b1, w2, b2 = np.split(weights, np.cumsum([d * HIDDEN, HIDDEN, HIDDEN * CLASSES]))
        hidden = np.maximum(x @ w1.reshape(d, HIDDEN) + b1, 0)
        scores = hidden @ w2.reshape(HIDDEN, CLASSES) + b2
    most = scores.max(axis=1, keepdims=True)
    logs = scores - most - np.log(np.exp(scores - most).sum(axis=1, keepdims=True))
    right = logs.argmax(axis=1) == y
    return float(right.mean()), float(-logs[np.arange(len(y)), y.astype(int)].mean())


def compared(model: ModelName, options: argparse.Namespace, python: Path) -> list[Row]:
    """Run all turns of a model, and return a row for each framework with and without privacy.

    Raises:
        RuntimeError: a worker fails.
    """
    workers = {OURS: (Path(sys.executable), "fedping_worker.py"), PFL.name: (python, PFL.worker)}
    rows = [Row(name, private, [], [], []) for private in (True, False) for name in workers]
    with tempfile.TemporaryDirectory() as folder:
        x, y = _split(Path(folder), model, options.clients)
        for turn in range(1, options.turns + 1):
            for row in rows:
                clip, noise = (options.clip, options.noise_multiplier) if row.private else (0.0, 0.0)
                task = Task(model, options.clients, options.rounds, folder, 1, True, clip, noise, turn)
                print(f"{model}, turn {turn}: {row.framework}", file=sys.stderr, flush=True)
                interpreter, worker = workers[row.framework]
                found = measure(row.framework, interpreter, HERE / worker, task, options.seconds)
                if found.measured is None:
                    raise RuntimeError(f"{row.framework} didn't finish: {found.why}")
                accuracy, loss = held_out(model, np.load(task.kept), x, y)
                row.accuracy.append(accuracy)
                row.loss.append(loss)
                row.seconds.extend(found.measured.seconds)
    return rows


def _split(folder: Path, model: ModelName, clients: int) -> tuple[FloatArray, FloatArray]:
    """Write the training clients' data into a folder; return the other clients' x, shape (n, d), and y, shape (n,)."""
    make_data(folder, model, clients + HELD_OUT)
    x, y = (np.load(folder / f"{name}.npy") for name in "xy")
    np.save(folder / "x.npy", x[:clients])
    np.save(folder / "y.npy", y[:clients])
    return x[clients:].reshape(-1, x.shape[2]), y[clients:].ravel()


def apart(ours: Row, theirs: Row) -> tuple[Band, Band]:
    """Return the differences of accuracy and loss between two rows, ours minus theirs, turn by turn."""

    def of(mine: list[float], others: list[float]) -> Band:
        return band([a - b for a, b in zip(mine, others, strict=True)])

    return of(ours.accuracy, theirs.accuracy), of(ours.loss, theirs.loss)


def main() -> int:
    options = _options()
    try:
        python = _with_pfl(options.python) if options.python else python_of(PFL)
        found = {model: compared(model, options, python) for model in options.models}
    except RuntimeError as error:
        print(f"{error}; private training cannot be compared", file=sys.stderr)
        return 2
    differences = {model: apart(rows[0], rows[1]) for model, rows in found.items()}
    if options.json:
        print(json.dumps({model: [asdict(row) for row in rows] for model, rows in found.items()}))
    else:
        _print(options, found, differences)
    return int(not all(_same(rows[2], rows[3]) for rows in found.values()))


def _same(ours: Row, theirs: Row) -> bool:
    """Return whether two rows without noise agree, up to the precision of float32."""
    return math.isclose(ours.loss[0], theirs.loss[0], rel_tol=1e-4)


def _with_pfl(python: Path) -> Path:
    try:
        found = subprocess.run([python, "-c", "import pfl, torch"], capture_output=True).returncode == 0
    except OSError:
        found = False
    if not found:
        raise RuntimeError(
            f"{python} has no pfl-research: install {' and '.join(PFL.packages)} there, or leave --python out"
        )
    return python


def _print(
    options: argparse.Namespace, found: dict[ModelName, list[Row]], differences: dict[ModelName, tuple[Band, Band]]
) -> None:
    epsilon = epsilon_of(math.sqrt(options.rounds) / options.noise_multiplier, DELTA)
    print(f"{options.clients} clients in each of {options.rounds} rounds; epsilon = {epsilon:.3g} (delta = {DELTA:g})")
    table = Table("model", "framework", "", "accuracy", "loss", "seconds a round", box=SIMPLE_HEAD)
    for model, rows in found.items():
        for row in rows:
            private = "private" if row.private else "not private"
            cells = (_told(band(row.accuracy)), _told(band(row.loss)), f"{statistics.median(row.seconds):.4f}")
            table.add_row(model, row.framework, private, *cells)
        accuracy, loss = differences[model]
        table.add_row(model, "difference", "private", _told(accuracy), _told(loss), "")
    Console(width=120).print(table)


def _told(of: Band) -> str:
    return f"{of.mean:.4f}" + ("" if of.half is None else f" ± {of.half:.4f}")


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", nargs="+", choices=["logistic", "network"], default=["logistic", "network"])
    parser.add_argument("--clients", type=int, default=100)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--clip", type=float, default=0.05, help="the longest movement of a client in a round")
    parser.add_argument("--noise-multiplier", type=float, default=10.0)
    parser.add_argument("--turns", type=int, default=6)
    parser.add_argument("--seconds", type=float, default=600.0, help="time limit of a run")
    parser.add_argument("--python", type=Path, help="an interpreter that has pfl-research")
    parser.add_argument("--json", action="store_true")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
