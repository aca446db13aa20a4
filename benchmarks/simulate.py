"""Cost of a simulated ping, from ten thousand clients to a million, and of the study of 2018 at its original size.

    python -m benchmarks.simulate [--json] [--clients 10000 100000 1000000] [--pings 2000000] [--runs 2] [--full]

Every size makes approximately the same number of pings (``--pings``), so that sizes differ only in the cost of clients
apart from their pings: enrolment, and checking in every tick whether a client searches. The model is full frecency,
with three iterations of one round each, and then one tick of evaluation; everything is written to Parquet and to a
store in a temporary folder. Each size runs in a separate process, ``--runs`` times, and the fastest run counts, since
other load can only slow a run down. CPU seconds are in a separate column; other programs disturb them less. Memory is
the process' peak.

``--full`` runs experiments/firefox_study.toml instead, once: 723,581 clients, 137 iterations and 480 ticks.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path

from msgspec.structs import replace
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from fedping.experiments.simulate import Experiment, Summary, experiment_from_toml, simulate
from fedping.experiments.simulate.settings import Evaluation, Optimization

STUDY = Path(__file__).parents[1] / "experiments" / "firefox_study.toml"
TICKS = 4
TICKS_A_DAY = 48
AT_NIGHT = 0.56
"""Users' activity in the first ticks, relative to their mean over a day."""


@dataclass(frozen=True)
class Cost:
    """Costs of one size: pings of a run, wall seconds and CPU seconds of the fastest run, and peak memory in GiB."""

    clients: int
    pings: int
    seconds: float
    cpu_seconds: float
    gib: float

    @property
    def microseconds(self) -> float:
        """Wall time per ping in microseconds."""
        return 1e6 * self.seconds / self.pings

    @property
    def cpu_microseconds(self) -> float:
        """CPU time per ping in microseconds."""
        return 1e6 * self.cpu_seconds / self.pings


def sized(clients: int, pings: int, seed: int) -> Experiment:
    experiment, _ = experiment_from_toml(STUDY)
    busy = {"searches_per_day": pings / clients / TICKS * TICKS_A_DAY / AT_NIGHT, "activity_shape": 0.2}
    return replace(
        experiment,
        seed=seed,
        clients=clients,
        optimization=Optimization(iterations=TICKS - 1, **busy),  # type: ignore[arg-type]
        evaluation=Evaluation(ticks=1, **busy),
    )


def timed(experiment: Experiment, threads: int) -> tuple[Summary, float, float]:
    _, study = experiment_from_toml(STUDY)
    with tempfile.TemporaryDirectory(prefix="fedping-simulate-") as folder:
        begin, cpu = time.perf_counter(), time.process_time()
        summary = simulate(experiment, study, Path(folder) / "out", threads)
        return summary, time.perf_counter() - begin, time.process_time() - cpu


def cost(arguments: argparse.Namespace) -> Cost:
    """Run one size in this process and return its costs; 0 clients stand for the unchanged study of 2018."""
    experiment = replace(experiment_from_toml(STUDY)[0], seed=arguments.seed)
    if arguments.only:
        experiment = sized(arguments.only, arguments.pings, arguments.seed)
    runs = [timed(experiment, arguments.threads) for _ in range(arguments.runs if arguments.only else 1)]
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    pings = runs[0][0].pings
    return Cost(experiment.clients, pings, min(run[1] for run in runs), min(run[2] for run in runs), peak)


def measured_apart(clients: int, arguments: argparse.Namespace) -> Cost:
    """Measure one size in a separate process, to keep its peak memory separate."""
    told = {**vars(arguments), "only": clients}
    options = [f"--{name}={told[name]}" for name in ("only", "pings", "runs", "seed", "threads")]
    command = [sys.executable, "-m", "benchmarks.simulate", *options]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
    return Cost(**json.loads(done.stdout))


def show(costs: list[Cost]) -> None:
    table = Table(box=SIMPLE_HEAD, title="what a simulated ping costs", title_justify="left")
    for heading in ("clients", "pings", "seconds", "µs a ping", "ratio", "CPU µs", "ratio", "GiB"):
        table.add_column(heading, justify="right", no_wrap=True)
    for one in costs:
        wall, cpu = one.microseconds, one.cpu_microseconds
        table.add_row(
            f"{one.clients:,}",
            f"{one.pings:,}",
            f"{one.seconds:.1f}",
            f"{wall:.1f}",
            f"{wall / costs[0].microseconds:.2f}",
            f"{cpu:.1f}",
            f"{cpu / costs[0].cpu_microseconds:.2f}",
            f"{one.gib:.2f}",
        )
    Console().print(table)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--clients", type=int, nargs="+", default=[10_000, 100_000, 1_000_000])
    parser.add_argument("--pings", type=int, default=2_000_000)
    parser.add_argument("--runs", type=int, default=2)
    parser.add_argument("--full", action="store_true", help="the study of 2018 at its original size instead")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--only", type=int, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.only is not None:
        print(json.dumps(asdict(cost(arguments))))
        return
    costs = [measured_apart(clients, arguments) for clients in ([0] if arguments.full else arguments.clients)]
    if arguments.json:
        print(json.dumps([asdict(one) for one in costs]))
        return
    show(costs)


if __name__ == "__main__":
    main()
