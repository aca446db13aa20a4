"""The three baselines, on the same examples and from the same start weights as the federated run.

**centralised**: one learner has all training examples except newcomers', and minimises their loss by L-BFGS, or by the
model's own steps, such as Lloyd's of k-means. If the result depends on the start, the learner tries several: k-means
starts ten times by k-means++, and the lowest training loss wins. **local**: each client does the same with only its own
examples; every example is then predicted by its client's model. Newcomers learn too, so they have no separate metrics.
**start**: the untrained model.

With early stopping they keep the version with the lowest validation loss, separately for each client; without it they
keep the last version, with or without validation examples.

L-BFGS (Nocedal 1980) minimises the losses of many clients at once, each with its own weights, with a backtracking line
search by Armijo's rule; a pair of differences without positive curvature is left out of the history. Every client has
its own history, step and end. One NumPy call works on all clients, or on the unfinished ones once they are the
minority.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from fedping.client_sim.learning import ClientData, Model
from fedping.client_sim.learning.batch import Clients, FloatArray, Floats, naming
from fedping.client_sim.learning.model import KnowsStarts, MovesItself, losses_and_gradients
from fedping.experiments.laboratory.evaluation import blocks, evaluate, measure, per_client_weights, record
from fedping.experiments.laboratory.preparing import Problem
from fedping.experiments.laboratory.results import MetricLog
from fedping.experiments.laboratory.settings import Setup
from fedping.experiments.laboratory.settings.setup import BaselineName
from fedping.experiments.laboratory.training import Trained, Watchman

STARTS = 10
"""Number of starts that are tried for a model with its own start rule; scikit-learn's long-time default for k-means."""

BYTES_AT_A_TIME = 2**28
"""Maximum bytes for the weights of a block of clients and their history in L-BFGS."""


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
        measured.pop("newcomers", None)  # newcomers have learned, too
    record(log, iterations, measured)
    if "test" in measured:  # next to variants whose clients have their own models
        evaluated = evaluate(problem.model, problem.tally, per_client_weights(weights), problem.test)
        measured["personal" if name == "local" else "central"] = evaluated.mean(problem.learners)
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
        minimum = minimise(_losses_of(model, train, clients, pooled), start, most=most, on_iteration=judge)
        last, iterations = minimum.weights, minimum.iterations
    return np.where(judge.judged[:, None], judge.best, last), iterations


def _naming(clients: Clients, pooled: bool) -> AbstractContextManager[None]:
    return naming(None if pooled else clients)


def _losses_of(model: Model[Any], train: ClientData[Any], clients: Clients, pooled: bool) -> LossesOf:
    """Return the function of some clients' losses and gradients, in double precision for any model."""

    def of(rows: Rows) -> LossAndGradient:
        some = clients[rows]
        batch = train.batch(some)

        def at(weights: FloatArray) -> tuple[FloatArray, FloatArray]:
            with _naming(some, pooled):
                return _in_double(losses_and_gradients(model, weights, batch))

        return at

    return of


class _Judge:
    """Keeps each client's best weights by its loss on validation examples; inactive without early stopping.

    Clients without validation examples are not ``judged``.
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
        # Only the first synthetic users have validation examples.
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
    """Return the end point of the model's own steps, such as Lloyd's for k-means."""
    weights, rows = start, np.arange(len(start))
    for iteration in range(most):
        movement = model.movements(weights, batch)
        if not movement.any():
            return weights, iteration
        weights = weights + movement
        on_iteration(weights, rows)
    return weights, most


def _in_double(result: tuple[FloatArray, Floats]) -> tuple[FloatArray, FloatArray]:
    losses, gradients = result
    return losses.astype(np.float64, copy=False), gradients.astype(np.float64, copy=False)


HISTORY = 10
_SLOPE = 1e-4
_HALVINGS = 40

Rows: TypeAlias = NDArray[np.intp]
"""Positions of clients among all k, ascending."""
LossAndGradient: TypeAlias = Callable[[FloatArray], tuple[FloatArray, FloatArray]]
"""Maps weights of shape (j, m) to losses (j,) and gradients (j, m)."""
LossesOf: TypeAlias = Callable[[Rows], LossAndGradient]
"""Maps j clients to the function of their losses; called for fewer and fewer as clients finish."""
Pair: TypeAlias = tuple[FloatArray, FloatArray, FloatArray]


@dataclass(frozen=True)
class Minimum:
    """The result of :func:`minimise`: weights (k, m), losses (k,), and whether each gradient has become small (k,)."""

    weights: FloatArray
    losses: FloatArray
    converged: NDArray[np.bool_]
    iterations: int


def minimise(
    of: LossesOf,
    start: FloatArray,
    *,
    most: int = 500,
    tolerance: float = 1e-7,
    on_iteration: Callable[[FloatArray, Rows], NDArray[np.bool_] | None] = lambda weights, rows: None,
) -> Minimum:
    """Return the minimum of each client's loss, descending from ``start``, shape (k, m).

    A client is finished when the largest component of its gradient is at most ``tolerance``, when no step decreases its
    loss, or when ``on_iteration`` says so by a mask of shape (j,): after each iteration it is given the weights of the
    active clients, shape (j, m), and their positions.
    """
    function = _Function(of, np.arange(len(start)))
    now = end = _Point(start.copy(), *function.of_all(start))
    history: list[Pair] = []
    going = now.steepest > tolerance
    iterations = 0
    while going.any() and iterations < most:
        if 2 * np.count_nonzero(going) <= len(going):
            end = end.with_rows(function.rows, now)
            active = np.flatnonzero(going)
            history = [(s[active], y[active], rho[active]) for s, y, rho in history]
            function, now, going = _Function(of, function.rows[active]), now.rows(active), going[active]
        direction = _direction(now.gradients, history)
        there = _search(function, now, direction, going, not history)
        moved = (there.weights != now.weights).any(axis=1)
        history = [*history, _pair(there.weights - now.weights, there.gradients - now.gradients)][-HISTORY:]
        now = there
        iterations += 1
        going &= moved & (now.steepest > tolerance)
        enough = on_iteration(now.weights, function.rows)
        if enough is not None:
            going &= ~enough
    end = end.with_rows(function.rows, now)
    return Minimum(end.weights, end.losses, end.steepest <= tolerance, iterations)


@dataclass(frozen=True)
class _Point:
    """The current points of some clients: weights (j, m), losses (j,), gradients (j, m)."""

    weights: FloatArray
    losses: FloatArray
    gradients: FloatArray

    @property
    def steepest(self) -> FloatArray:
        """The largest component of each gradient, shape (j,)."""
        steepest: FloatArray = np.abs(self.gradients).max(axis=1)
        return steepest

    def rows(self, which: Rows) -> _Point:
        """Return the points of some of the clients."""
        return _Point(self.weights[which], self.losses[which], self.gradients[which])

    def with_rows(self, which: Rows, others: _Point) -> _Point:
        """Return the points with those of some clients replaced."""
        copied = _Point(self.weights.copy(), self.losses.copy(), self.gradients.copy())
        copied.weights[which], copied.losses[which] = others.weights, others.losses
        copied.gradients[which] = others.gradients
        return copied


class _Function:
    """The losses of some clients, computed only for the few that are requested."""

    def __init__(self, of: LossesOf, rows: Rows) -> None:
        self.rows, self._of, self.of_all = rows, of, of(rows)
        self._few: tuple[Rows, LossAndGradient] | None = None

    def __call__(self, weights: FloatArray, rows: Rows) -> tuple[FloatArray, FloatArray]:
        """Return losses and gradients of the clients at these positions in ``rows``; weights are for all rows."""
        if 2 * len(rows) > len(self.rows):
            losses, gradients = self.of_all(weights)
            return losses[rows], gradients[rows]
        if self._few is None or not np.array_equal(self._few[0], rows):
            self._few = rows, self._of(self.rows[rows])
        return self._few[1](weights[rows])


def _direction(gradients: FloatArray, history: list[Pair]) -> FloatArray:
    """Return minus the approximate inverse Hessians times the gradients: the two loops of L-BFGS, shape (k, m)."""
    q = gradients.copy()
    alphas = []
    for s, y, rho in reversed(history):
        alpha = rho * _dot(s, q)
        q -= alpha[:, None] * y
        alphas.append(alpha)
    scale = np.ones(len(q))
    for s, y, rho in history:  # scaled by the newest valid pair of each client
        scale = np.where(rho > 0, _dot(s, y) / np.maximum(_dot(y, y), 1e-300), scale)
    q *= scale[:, None]
    for (s, y, rho), alpha in zip(history, reversed(alphas), strict=True):
        q += (alpha - rho * _dot(y, q))[:, None] * s
    return np.where((_dot(q, gradients) > 0)[:, None], -q, -gradients)


def _search(function: _Function, now: _Point, direction: FloatArray, going: NDArray[np.bool_], first: bool) -> _Point:
    """Halve each client's step until it decreases the loss enough; a client for which no step does keeps its point."""
    length = np.sqrt(_dot(direction, direction))
    step = np.where(going, 1 / np.maximum(1.0, length) if first else 1.0, 0.0)
    slope = _dot(direction, now.gradients)
    rounding = 4 * np.finfo(np.float64).eps * np.abs(now.losses)  # near the end steps hardly decrease a loss
    points, searching = now, np.flatnonzero(going)
    for _ in range(_HALVINGS):
        weights = now.weights + step[:, None] * direction
        losses, gradients = function(weights, searching)
        pays = losses <= (now.losses + _SLOPE * step * slope + rounding)[searching]  # False for NaN
        points = points.with_rows(searching[pays], _Point(weights[searching[pays]], losses[pays], gradients[pays]))
        searching = searching[~pays]
        if not len(searching):
            break
        step[searching] /= 2
    return points


def _pair(s: FloatArray, y: FloatArray) -> Pair:
    """Return differences of weights and gradients, and 1 / (s·y), or 0 without positive curvature."""
    curvature = _dot(s, y)
    valid = curvature > 1e-12 * np.sqrt(_dot(s, s) * _dot(y, y))
    return s, y, np.where(valid, 1.0 / np.where(valid, curvature, 1.0), 0.0)


def _dot(a: FloatArray, b: FloatArray) -> FloatArray:
    products: FloatArray = np.einsum("km,km->k", a, b)
    return products
