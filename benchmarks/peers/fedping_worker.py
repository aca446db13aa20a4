"""The work here: the rounds of a laboratory experiment in memory, as `fedping simulate` runs them."""

from __future__ import annotations

import sys
import time
import tomllib
from itertools import pairwise
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))

import msgspec
import numpy as np

from benchmarks.peers import work
from client_sim.data import example_data
from client_sim.data.table import Target
from client_sim.learning import ClientData, learner_for, model_spec
from client_sim.learning.choices import ChoiceData
from experiments.laboratory.cohort import Cohorts
from experiments.laboratory.evaluation import Regression
from experiments.laboratory.problem import Problem
from experiments.laboratory.rounds.memory import MemoryRounds
from experiments.laboratory.rounds.study import study_of
from experiments.laboratory.settings import Setup

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
epochs = 1
rate = 0.1
[server]
weighting = "examples"
min_clients = 1
optimizer = {{ optimizer = "gradient_descent", rate = 1.0 }}
"""
# --- to here

MODELS = {"ranking": "svm-ranking", "logistic": "logistic-regression", "network": "network"}


def main(task: work.Task) -> None:
    """Run the rounds and report."""
    name = MODELS[task.model]
    setup = msgspec.convert(tomllib.loads(EXPERIMENT.format(rounds=task.rounds, model=name)), Setup)
    settings: dict[str, bool | int | float | str] = {"features": work.FEATURES[task.model]}
    if task.model == "network":
        settings |= {"classes": work.CLASSES, "hidden": work.HIDDEN, "precision": "float32"}
    start = np.concatenate([w.ravel() for w in work.start_weights(task.model)])
    spec = model_spec(name, settings, start=start, margin=work.MARGIN)
    data = _data(task)
    problem = Problem(spec, learner_for(spec), data, data, data, Regression(), seed=1)
    rounds = MemoryRounds(study_of(spec, setup.training, setup.server).lines[0], problem.ids)
    cohorts = Cohorts(setup, problem)
    ends = [time.perf_counter()]
    for number in range(task.rounds):
        rounds.run(cohorts.sent(number, rounds.weights))
        ends.append(time.perf_counter())
    digest, norm = work.digest_of_weights([rounds.weights])
    work.report(work.Measured([b - a for a, b in pairwise(ends)][1:], 0.0, digest, norm))


def _data(task: work.Task) -> ClientData:
    x, y = (np.array(values) for values in work.load_data(task.data))
    sizes = np.full(task.clients, y.shape[1])
    if task.model == "ranking":
        return ChoiceData(x.reshape(-1, *x.shape[2:]), y.ravel(), sizes)
    classes = tuple(str(c) for c in range(work.CLASSES if task.model == "network" else 2))
    return example_data(x.reshape(-1, x.shape[2]), y.ravel(), sizes, target=Target("y", classes))


if __name__ == "__main__":
    main(work.task_from_arguments())
