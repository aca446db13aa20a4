"""The three baselines, on the very examples and from the very start weights of the federated run.

**centralised**: one learner has all training examples but those of newcomers, and minimises their loss by L-BFGS, or by
the model's own steps, such as Lloyd's of k-means. If the result depends on the start, the learner tries several:
k-means starts ten times by k-means++, and the least training loss is taken.
**local**: each client does the same with only its own examples; every example is then predicted by its client's model.
Newcomers do so, too, so nothing is said of them.
**start**: nobody learns.

Like the federated run, they keep the version with the least validation loss if there is early stopping, separately for
each client; without it they keep the last, whether or not there are validation examples.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import numpy as np

from fedping.client_sim.learning import ClientData, Model
from fedping.client_sim.learning.batch import Clients, FloatArray, Floats, naming
from fedping.client_sim.learning.model import KnowsStarts, MovesItself, losses_and_gradients
from fedping.experiments.laboratory.baselines.minimise import LossAndGradient, LossesOf, Rows, minimise
from fedping.experiments.laboratory.evaluate import measure, per_client_weights, record
from fedping.experiments.laboratory.evaluation.fleet import blocks, evaluate
from fedping.experiments.laboratory.preparing import Problem
from fedping.experiments.laboratory.results import MetricLog
from fedping.experiments.laboratory.settings import Setup
from fedping.experiments.laboratory.settings.setup import BaselineName
from fedping.experiments.laboratory.stopping import Watchman
from fedping.experiments.laboratory.training import Trained

STARTS = 10
"""Number of starts of a model that knows good starts, scikit-learn's long-time default for k-means."""

BYTES_AT_A_TIME = 2**28
"""Memory for the weights of a block of clients with their whole history of descent."""


def run_baseline(name: BaselineName, setup: Setup, problem: Problem, log: MetricLog) -> Trained:
    """Return a baseline's result; its log has the start model as round 0 and the result as the last iteration."""
    start = problem.spec.start_array
    weights, iterations = start, 0
    if name == "centralised":
        clients = problem.learners if len(problem.newcomers) else None
        weights, iterations = _learned(
            setup, problem, problem.train.pooled(clients), problem.validation.pooled(), pooled=True
        )
        weights = weights[0]
    elif name == "local":
        weights, iterations = _learned(setup, problem, problem.train, problem.validation)
    measured = measure(problem, per_client_weights(weights), local=True)
    if name == "local":
        measured.pop("newcomers", None)  # they have learned, too
    record(log, iterations, measured)
    if "test" in measured:  # beside variants whose clients have models of their own
        found = evaluate(problem.model, problem.tally, per_client_weights(weights), problem.test)
        measured["personal" if name == "local" else "central"] = found.mean(problem.learners)
    done = Trained(log, weights, weights, Watchman(None), final=measured, rounds=iterations)
    done.watchman.see(iterations, {})
    return done


def _learned(
    setup: Setup, problem: Problem, train: ClientData[Any], validation: ClientData[Any], *, pooled: bool = False
) -> tuple[FloatArray, int]:
    """Return the weights that each client learns alone, shape (clients, m), and the largest number of iterations."""
    m = problem.spec.m
    weights = np.tile(problem.spec.start_array, (len(train), 1))
    most_clients = max(1, BYTES_AT_A_TIME // (8 * m * 30))
    iterations = 0
    for block in blocks(train.sizes):
        for low in range(0, len(block), most_clients):
            clients = block[low : low + most_clients]
            weights[clients], count = _learned_by(setup, problem, train, validation, clients, pooled)
            iterations = max(iterations, count)
    return weights, iterations


def _learned_by(
    setup: Setup,
    problem: Problem,
    train: ClientData[Any],
    validation: ClientData[Any],
    clients: Clients,
    pooled: bool,
) -> tuple[FloatArray, int]:
    model = problem.model
    start = np.tile(problem.spec.start_array, (len(clients), 1))
    judge = _Judge(model, validation, clients, pooled, start, stops_early=setup.early_stopping is not None)
    most = setup.evaluation.baseline_iterations
    if isinstance(model, MovesItself):
        batch = train.batch(clients)
        starts = start[None]
        if isinstance(model, KnowsStarts):
            starts = model.starts(batch, problem.start_keys(clients), STARTS)
        ends = [_moved(model, each, batch, most, judge) for each in starts]
        with _naming(clients, pooled):
            best = np.array([problem.model.losses(weights, batch) for weights, _ in ends]).argmin(axis=0)
        last = np.array([ends[place][0][row] for row, place in enumerate(best)])
        iterations = max(count for _, count in ends)
    else:
        found = minimise(_losses_of(model, train, clients, pooled), start, most=most, on_iteration=judge)
        last, iterations = found.weights, found.iterations
    return np.where(judge.judged[:, None], judge.best, last), iterations


def _naming(clients: Clients, pooled: bool) -> AbstractContextManager[None]:
    return naming(None if pooled else clients)


def _losses_of(model: Model[Any], train: ClientData[Any], clients: Clients, pooled: bool) -> LossesOf:
    """Return the losses and gradients of some clients, in double precision whatever the model's precision."""

    def of(rows: Rows) -> LossAndGradient:
        some = clients[rows]
        batch = train.batch(some)

        def at(weights: FloatArray) -> tuple[FloatArray, FloatArray]:
            with _naming(some, pooled):
                return _in_double(losses_and_gradients(model, weights, batch))

        return at

    return of


class _Judge:
    """Keeps each client's best weights on its validation examples; clients without any are not ``judged``.

    No client is if runs do not stop early.
    """

    def __init__(
        self,
        model: Model[Any],
        validation: ClientData[Any],
        clients: Clients,
        pooled: bool,
        start: FloatArray,
        *,
        stops_early: bool,
    ) -> None:
        # Of synthetic users only the first have validation examples at all.
        self.judged = np.isin(clients, np.flatnonzero(validation.sizes)) & stops_early
        self.best, self._lowest = start.copy(), np.full(len(clients), np.inf)
        self._model, self._validation, self._clients, self._pooled = model, validation, clients, pooled
        self._rows = np.arange(len(clients))
        self._batch = validation.batch(clients)
        self(start, self._rows)

    def __call__(self, weights: FloatArray, rows: Rows) -> None:
        """Evaluate the current weights, shape (j, m), of the clients at these positions."""
        if not self.judged.any():
            return
        if len(rows) < len(self._rows):
            self._rows, self._batch = rows, self._validation.batch(self._clients[rows])
        with _naming(self._clients[rows], self._pooled):
            losses = self._model.losses(weights, self._batch)
        lower = self.judged[rows] & (losses < self._lowest[rows])
        self.best[rows[lower]], self._lowest[rows[lower]] = weights[lower], losses[lower]


def _moved(
    model: MovesItself, start: FloatArray, batch: Any, most: int, on_iteration: Callable[[FloatArray, Rows], None]
) -> tuple[FloatArray, int]:
    """Return where the model's own steps end, such as Lloyd's of k-means."""
    weights, rows = start, np.arange(len(start))
    for iteration in range(most):
        movement = model.movements(weights, batch)
        if not movement.any():
            return weights, iteration
        weights = weights + movement
        on_iteration(weights, rows)
    return weights, most


def _in_double(found: tuple[FloatArray, Floats]) -> tuple[FloatArray, FloatArray]:
    losses, gradients = found
    return losses.astype(np.float64, copy=False), gradients.astype(np.float64, copy=False)
