"""Growth of a simulated round's time and memory with clients and with weights: `python -m benchmarks.growth`.

    python -m benchmarks.growth [--json] [--figure FILE] [--rounds 3]

Clients: 100 to 100,000 in every round, each with one gradient of a logistic regression of 30 features on its 50 rows.
Weights: 1,000 to 1,000,000 of a network with one hidden layer (784 features, 10 classes, single precision), 100 clients
a round with 10 rows each and one gradient. The server uses RProp, updates are float32, and nothing is evaluated. Each
size runs in a separate process; time is the median of the rounds after the first, and memory the process' peak, with
the size of the data in another column.
"""

from __future__ import annotations

import argparse
import json
import resource
import statistics
import subprocess
import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from benchmarks.federated import TimedRounds
from fedping.client_sim.data import example_data
from fedping.client_sim.data.table import Target
from fedping.client_sim.learning import model_spec
from fedping.protocol.pipeline import Pipeline, RProp
from fedping.protocol.training import OneGradient

if TYPE_CHECKING:
    from matplotlib.figure import Figure

CLIENTS = (100, 1_000, 10_000, 100_000)
WEIGHTS = (1_000, 10_000, 100_000, 1_000_000)
CLIENTS_OF_NETWORKS, FEATURES, CLASSES = 100, 784, 10


@dataclass(frozen=True)
class Grown:
    """Results for one size: clients, weights, seconds per round, peak memory and the data's part of it in MiB."""

    clients: int
    weights: int
    seconds: float
    peak_mib: float
    data_mib: float


def logistic(clients: int) -> TimedRounds:
    return _timed(clients, rows=50, features=30, classes=2, name="logistic-regression", more={})


def network(weights: int) -> TimedRounds:
    hidden = max(1, round((weights - CLASSES) / (FEATURES + 1 + CLASSES)))
    more: dict[str, int | str] = {"hidden": hidden, "precision": "float32"}
    return _timed(CLIENTS_OF_NETWORKS, rows=10, features=FEATURES, classes=CLASSES, name="network", more=more)


def _timed(clients: int, rows: int, features: int, classes: int, name: str, more: dict[str, int | str]) -> TimedRounds:
    rng = np.random.default_rng(1)
    x = rng.standard_normal((clients * rows, features))
    y = rng.integers(classes, size=clients * rows)
    data = example_data(x, y, np.full(clients, rows), target=Target("y", tuple(map(str, range(classes)))))
    spec = model_spec(name, {"features": features, "classes": classes, **more})
    server = Pipeline(weighting="examples", min_clients=1, optimizer=RProp())
    return TimedRounds(spec, data, OneGradient(), server)


def grown(kind: str, size: int, rounds: int) -> Grown:
    """Measure one size in this process."""
    timed = logistic(size) if kind == "clients" else network(size)
    seconds = [timed.seconds() for _ in range(rounds + 1)][1:]
    clients, rows, features = (size, 50, 30) if kind == "clients" else (CLIENTS_OF_NETWORKS, 10, FEATURES)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    data = clients * rows * (features + 2) * 8 / 2**20
    return Grown(clients, len(timed.rounds.weights), statistics.median(seconds), peak, data)


def measured_apart(kind: str, size: int, rounds: int) -> Grown:
    """Measure one size in a separate process, to keep its peak memory separate."""
    command = [sys.executable, "-m", "benchmarks.growth", "--only", kind, str(size), "--rounds", str(rounds)]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
    return Grown(**json.loads(done.stdout))


def show(title: str, rows: list[Grown]) -> None:
    table = Table(box=SIMPLE_HEAD, title=title, title_justify="left")
    for heading in (
        "clients a round",
        "weights",
        "s a round",
        "client updates/s",
        "weights/s",
        "peak MiB",
        "of it data",
    ):
        table.add_column(heading, justify="right", no_wrap=True)
    for row in rows:
        updates = row.clients / row.seconds
        table.add_row(
            f"{row.clients:,}",
            f"{row.weights:,}",
            f"{row.seconds:.4g}",
            f"{updates:,.0f}",
            f"{updates * row.weights:.3g}",
            f"{row.peak_mib:,.0f}",
            f"{row.data_mib:,.0f}",
        )
    Console(width=120).print(table)


def draw(by_clients: list[Grown], by_weights: list[Grown]) -> Figure:
    """Return the figure: seconds per round and memory against the number of clients, and against the weights."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 3.6), layout="constrained")
    left, right = figure.subplots(1, 2, sharey=True)
    panels = (
        (left, [row.clients for row in by_clients], by_clients, "clients a round (31 weights)"),
        (right, [row.weights for row in by_weights], by_weights, f"weights ({CLIENTS_OF_NETWORKS} clients a round)"),
    )
    for axes, sizes, rows, label in panels:
        axes.plot(sizes, [row.seconds for row in rows], "o-", color="#0072B2", label="seconds a round")
        axes.plot(sizes, [row.peak_mib / 1024 for row in rows], "s--", color="#D55E00", label="peak memory, GiB")
        axes.set(xscale="log", yscale="log", xlabel=label)
        axes.grid(alpha=0.25)
        axes.spines[["top", "right"]].set_visible(False)
    left.legend(frameon=False)
    return figure


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--figure", type=Path, help="write the picture to this file, .svg or .png")
    parser.add_argument("--only", nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.only:
        print(json.dumps(asdict(grown(options.only[0], int(options.only[1]), options.rounds))))
        return
    by_clients = [measured_apart("clients", size, options.rounds) for size in CLIENTS]
    by_weights = [measured_apart("weights", size, options.rounds) for size in WEIGHTS]
    if options.figure:
        draw(by_clients, by_weights).savefig(options.figure, metadata={"Date": None})
    if options.json:
        print(json.dumps({"clients": [asdict(row) for row in by_clients], "weights": [asdict(r) for r in by_weights]}))
        return
    show("as the clients grow: logistic regression, 50 rows a client", by_clients)
    show("as the model grows: a network, 10 rows a client", by_weights)


if __name__ == "__main__":
    main()
