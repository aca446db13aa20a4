"""Measuring a version on the validation and the test examples, into the log."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from fedping.client_sim.learning.batch import FloatArray
from fedping.experiments.laboratory.evaluation.fleet import WeightsOf, evaluate
from fedping.experiments.laboratory.own_models import OwnModels
from fedping.experiments.laboratory.preparing import Problem
from fedping.experiments.laboratory.results import MetricLog
from fedping.experiments.laboratory.results.progress import SPLITS
from fedping.experiments.laboratory.settings import Setup

Measured = dict[str, dict[str, float]]
"""By split, then by metric."""


def evaluated_after(setup: Setup, rounds: int) -> bool:
    """Return whether there is an evaluation after this many rounds."""
    return rounds % setup.evaluation.every == 0 or rounds == setup.most_rounds


def test_metric(setup: Setup) -> str:
    """Return the split by which variants are judged."""
    return "personal" if setup.evaluation.decided_by == "personal" else "test"


def selection_metric(setup: Setup) -> str:
    """Return the split by which versions and variants are chosen, if there are validation examples."""
    return "personal_validation" if setup.evaluation.decided_by == "personal" else "validation"


def measure(problem: Problem, weights: FloatArray | WeightsOf, local: bool) -> Measured:
    """Return the metrics of a version.

    Args:
        problem: the problem with the examples.
        weights: shape (m,), or a function that gives clients their own.
        local: whether to include the means over the clients.
    """
    found: Measured = {}
    validation = evaluate(problem.model, problem.tally, weights, problem.validation, each=False)
    if validation.total:
        found["validation"] = validation.total
    newcomers = problem.newcomers
    test = evaluate(problem.model, problem.tally, weights, problem.test, each=local or len(newcomers) > 0)
    if test.total:
        found["test"] = test.total
        if local:
            found |= {"local": test.mean(), "local_worst": test.worst()}
        if len(newcomers):
            found["newcomers"] = test.mean(newcomers)
    return found


def by_client(problem: Problem, weights: FloatArray, own: OwnModels | None = None, rounds: int = 0) -> pa.Table:
    """Return a version's results by client, one row per client with test examples, in their order.

    Columns: ``client``, its number; ``key``, its natural key or its group of users, if known; ``newcomer``, whether it
    never trains, if anybody does not; ``examples``, its number of test examples; and one column per metric, null where
    it is undefined. With ``own``, a column ``personal_<metric>`` is of the clients' own models after so many
    ``rounds``.
    """
    test = problem.test
    found = evaluate(problem.model, problem.tally, per_client_weights(weights), test)
    order = np.argsort(found.whose)
    whose = found.whose[order]
    numbers, keys = getattr(test, "ids", None), getattr(problem.train, "natural_keys", None)
    columns: dict[str, pa.Array] = {"client": pa.array(whose if numbers is None else numbers[whose], pa.int64())}
    if keys is not None:
        columns["key"] = pa.array([str(key) for key in keys[whose].tolist()])
    if len(problem.newcomers):
        columns["newcomer"] = pa.array(np.isin(whose, problem.newcomers))
    columns["examples"] = pa.array(test.sizes[whose], pa.int64())
    metrics = {name: pa.array(values[order], pa.float64(), from_pandas=True) for name, values in found.clients.items()}
    if own is not None:
        personal = own.evaluated(weights, rounds, test)
        order = np.argsort(personal.whose)
        for name, values in personal.clients.items():
            metrics[f"personal_{name}"] = pa.array(values[order], pa.float64(), from_pandas=True)
    return pa.table(columns | metrics)


def per_client_weights(weights: FloatArray) -> FloatArray | WeightsOf:
    """Return the weights of everybody, shape (m,), or a function to each client's of those of shape (clients, m)."""
    return weights if weights.ndim == 1 else weights.__getitem__


def record(log: MetricLog, round_: int, measured: Measured) -> None:
    """Write measurements into the log."""
    for split in SPLITS:
        if split in measured:
            log.add(round_, split, measured[split])
