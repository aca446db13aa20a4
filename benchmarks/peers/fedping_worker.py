"""The work with fedping: rounds of a laboratory experiment in memory, as in `fedping simulate`."""

from __future__ import annotations

import math
import sys
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2]))

import msgspec
import numpy as np

from benchmarks.federated import CompiledTimed, TimedRounds
from benchmarks.peers import work
from fedping.client_sim.data import example_data
from fedping.client_sim.data.table import Target
from fedping.client_sim.learning import ClientData, model_spec
from fedping.client_sim.learning.choices import ChoiceData
from fedping.experiments.laboratory.settings import Setup
from fedping.protocol.privacy import METRICS, Central, ClippedFlat, Privacy
from fedping.protocol.spec import ModelSpec

# --- what a user writes
EXPERIMENT = """
rounds = {rounds}
[model]
name = "{model}"
[data]
file = "clients.parquet"
target = "y"
client = "client"
[partition]
partition = "key"
[training]
algorithm = "local"
steps = {steps}
rate = 0.1
[server]
weighting = "examples"
min_clients = 1
optimizer = {{ optimizer = "gradient_descent", rate = 1.0 }}
"""
# --- to here

DELTA = 1e-5
AT_ONCE = 20

MODELS = {"ranking": "svm-ranking", "logistic": "logistic-regression", "network": "network"}


def main(task: work.Task) -> None:
    """Run the rounds and report."""
    clock = work.clock_of(task)
    name = MODELS[task.model]
    setup = msgspec.convert(tomllib.loads(EXPERIMENT.format(rounds=task.rounds, model=name, steps=task.steps)), Setup)
    settings: dict[str, bool | int | float | str] = {
        "features": work.FEATURES[task.model],
        "precision": "float32",
    }
    if task.model == "network":
        settings |= {"classes": work.CLASSES, "hidden": work.HIDDEN}
    start = np.concatenate([w.ravel() for w in work.start_weights(task.model)])
    spec = model_spec(name, settings, start=start, margin=work.MARGIN)
    server = msgspec.structs.replace(setup.pipeline, weighting="client") if task.clip else setup.pipeline
    if task.way == "compiled":
        compiled(task, clock, spec, setup.training, server)
        return
    timed = TimedRounds(spec, clients_data(task), setup.training, server, _privacy(task), task.seed)
    seconds = [timed.seconds(clock) for _ in range(task.rounds)]
    work.keep_weights(task, [timed.rounds.weights])
    digest, norm = work.digest_of_weights([timed.rounds.weights])
    work.report(work.Measured(seconds[1:], 0.0, digest, norm))


def compiled(task: work.Task, clock: Callable[[], float], spec: ModelSpec, training: Any, server: Any) -> None:
    """Run the rounds with engine = "jax", 20 between two evaluations, and report."""
    timed = CompiledTimed(spec, clients_data(task), training, server, AT_ONCE)
    seconds = [timed.seconds(clock) for _ in range(-(-task.rounds // AT_ONCE) + 1)]
    digest, norm = work.digest_of_weights([timed.rounds.weights])
    work.report(work.Measured(seconds[1:], 0.0, digest, norm))


def _privacy(task: work.Task) -> Privacy | None:
    """Return the settings of private training; the ε that follows from them is not used here.

    The noise multiplier refers to the whole vector, whose bound is larger than the weights' bound because of the
    metrics.
    """
    if not task.clip:
        return None
    longer = math.sqrt(1 + len(METRICS) / 16)
    central = Central(
        epsilon=100.0,
        delta=DELTA,
        rounds=task.rounds,
        population=task.clients,
        noise_multiplier=task.noise_multiplier / longer,
        dead_zone=0.0,
    )
    return Privacy(contribution=ClippedFlat(norm=task.clip), central=central)


def clients_data(task: work.Task) -> ClientData:
    """Return the task's data in the laboratory's form."""
    x, y = (np.array(values) for values in work.load_data(task.data))
    sizes = np.full(task.clients, y.shape[1])
    if task.model == "ranking":
        return ChoiceData(x.reshape(-1, *x.shape[2:]), y.ravel(), sizes)
    classes = tuple(str(c) for c in range(work.CLASSES if task.model == "network" else 2))
    return example_data(x.reshape(-1, x.shape[2]), y.ravel(), sizes, target=Target("y", classes))


if __name__ == "__main__":
    main(work.task_from_arguments())
