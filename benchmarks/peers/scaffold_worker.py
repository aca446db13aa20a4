"""SCAFFOLD with fedping: rounds of a laboratory experiment in memory, as in `fedping simulate`."""

from __future__ import annotations

import sys
import tomllib
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))

import numpy as np

from benchmarks.federated import TimedRounds
from benchmarks.peers import work
from benchmarks.peers.fedping_worker import MODELS, clients_data
from fedping.client_sim.learning import model_spec
from fedping.experiments.laboratory.settings import experiment_of

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
algorithm = "scaffold"
steps = {steps}
rate = 0.1
[server]
weighting = "client"
"""
# --- to here


def main(task: work.Task) -> None:
    """Run the rounds and report."""
    clock = work.clock_of(task)
    tables = tomllib.loads(EXPERIMENT.format(rounds=task.rounds, model=MODELS[task.model], steps=task.steps))
    [setup] = experiment_of(tables, name="scaffold", folder=Path()).variants.values()
    settings: dict[str, bool | int | float | str] = {"features": work.FEATURES[task.model], "precision": "float32"}
    if task.model == "network":
        settings |= {"classes": work.CLASSES, "hidden": work.HIDDEN}
    start = np.concatenate([w.ravel() for w in work.start_weights(task.model)])
    spec = model_spec(MODELS[task.model], settings, start=start, training=setup.training)
    timed = TimedRounds(spec, clients_data(task), setup.training, setup.pipeline)
    seconds, m = [], len(start)
    for number in range(task.rounds):
        seconds.append(timed.seconds(clock))
        work.keep_weights_of_round(task, number + 1, [timed.rounds.weights[:m]])
    digest, norm = work.digest_of_weights([timed.rounds.weights[:m]])
    work.report(work.Measured(seconds[1:], 0.0, digest, norm))


if __name__ == "__main__":
    main(work.task_from_arguments())
