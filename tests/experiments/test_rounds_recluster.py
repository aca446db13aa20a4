"""Federated k-means end to end: clients' models, reclustered in memory and through files; against scikit-learn."""

from collections.abc import Iterable
from pathlib import Path

import numpy as np
import pytest
from sklearn.cluster import KMeans as ScikitKMeans
from sklearn.datasets import make_blobs

from fedping.client_sim.learning import Examples, cohort_updates, learner_for, model_spec
from fedping.experiments.laboratory.rounds import Rounds, Updates
from fedping.experiments.laboratory.rounds.study import LINE, study_of
from fedping.experiments.laboratory.rounds.updates import repetitions
from fedping.experiments.simulate.people import uuid_bytes
from fedping.protocol.draws import child_keys, root_key
from fedping.protocol.pipeline import GradientDescent, Mean, Pipeline, Recluster
from fedping.protocol.study import Line, Study
from fedping.protocol.training import LocalSteps
from fedping.server_jobs.round.engine import engine_named
from tests.support.laboratory_rounds import file_rounds, memory_rounds

K, D, CLIENTS, EACH = 4, 2, 12, 30
X, BLOB = make_blobs(CLIENTS * EACH, centers=[[0, 0], [8, 0], [0, 8], [8, 8]], cluster_std=0.8, random_state=3)
BY_BLOB = np.argsort(BLOB, kind="stable")
"""Order of examples by blob: each client has examples of one or two blobs, so that data are strongly non-iid."""

EXAMPLES = Examples(X[BY_BLOB].reshape(CLIENTS, EACH, D), np.zeros((CLIENTS, EACH)), np.ones((CLIENTS, EACH)))
IDS = uuid_bytes(np.arange(CLIENTS, dtype=np.uint64))


def study(aggregate: Mean | Recluster, counts: bool = True) -> Study:
    start = np.append(X[:K].ravel(), np.zeros(K if counts else 0))
    spec = model_spec("k-means", {"features": D, "clusters": K, "counts": counts}, start=start)
    pipeline = Pipeline(optimizer=GradientDescent(), aggregate=aggregate, weighting="examples", min_clients=1)
    return study_of(Line(name=LINE, spec=spec, training=LocalSteps(rate=1.0, steps=5), pipeline=pipeline))


def cohort(made: Study, rounds: Rounds) -> Iterable[Updates]:
    line = made.lines[0]
    model, keys = learner_for(line.spec), child_keys(root_key(1), np.arange(CLIENTS))
    updates, losses, _ = cohort_updates(model, line.training, rounds.weights, EXAMPLES, keys)
    clients = np.arange(CLIENTS)
    repeats, pings = repetitions(clients)
    yield Updates(clients, repeats, pings, updates.astype(np.float32), losses, np.full(CLIENTS, EACH))


def play(made: Study, rounds: Rounds, count: int = 4) -> np.ndarray:
    for _ in range(count):
        rounds.run(cohort(made, rounds))
    return rounds.weights


def inertia(weights: np.ndarray) -> float:
    centroids = weights[: K * D].reshape(K, D)
    return float(((X[:, None] - centroids) ** 2).sum(axis=2).min(axis=1).sum())


@pytest.mark.parametrize("counts", [True, False])
def test_it_comes_within_a_hundredth_of_pooled_k_means_where_a_mean_does_not(counts: bool) -> None:
    pooled = ScikitKMeans(K, n_init=10, random_state=0).fit(X).inertia_
    found = {}
    for aggregate in (Recluster(), Mean()):
        made = study(aggregate, counts)
        found[type(aggregate)] = inertia(play(made, memory_rounds(made.lines[0], IDS)))
    assert found[Recluster] < 1.01 * pooled
    assert found[Mean] > 1.5 * pooled


def test_files_and_memory_recluster_to_the_same_bits(tmp_path: Path) -> None:
    made = study(Recluster())
    with engine_named("numpy") as engine:
        rounds = file_rounds(tmp_path, made, engine, IDS)
        through_files = play(made, rounds, 2)
    assert through_files.tobytes() == play(made, memory_rounds(made.lines[0], IDS), 2).tobytes()
