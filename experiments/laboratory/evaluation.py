"""Evaluation of models on clients' examples, block by block over the fleet, and of a run's versions on all splits.

Counts are summed over the fleet, and each client's metrics and scores kept. Three kinds of models are evaluated: a
version of the shared model, on validation and test examples; the clients' own models, on the same examples of the same
clients; and the models that clients trained before the server merges them, on all test examples and on other clients'
test examples, which shows the gain from merging and the clients whose models are far from the others (Rodríguez-Barroso
et al. 2020, 5.4.5).

Where users search again in every round, their own models are evaluated on the searches of the next round, which they
haven't learned from yet; otherwise on the clients' test examples.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol, TypeAlias

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from fedping.client_sim.learning import ClientData, ClientStates, Model, algorithm_for, bare
from fedping.client_sim.learning.algorithm import Personalizes
from fedping.client_sim.learning.batch import Clients, FloatArray, Floats, TroubleOfNamed, naming
from fedping.client_sim.learning.model import predictions_and_scores
from fedping.experiments.laboratory.preparing import Problem, in_precision
from fedping.experiments.laboratory.results import SPLITS, MetricLog
from fedping.experiments.laboratory.settings import Setup
from fedping.experiments.laboratory.tallies import (
    Metrics,
    Tally,
    areas_under_curve,
    higher_is_better,
    scores_in,
)
from fedping.experiments.laboratory.users import NewEachRound
from fedping.protocol.errors import sentences_with

EXAMPLES_AT_A_TIME = 2**15
"""Maximum examples in a block of clients, including padding. It bounds the memory of an evaluation."""

WEIGHTS_AT_A_TIME = 2**22
"""Maximum weights in a block of clients with their own models."""

WeightsOf: TypeAlias = Callable[[Clients], FloatArray]
"""Maps k clients to each one's own weights, shape (k, m)."""


@dataclass(frozen=True)
class Evaluated:
    """The metrics of a model, in total and by client.

    Attributes:
        total: the metrics of all clients' counts together, and the mean ``loss`` by examples.
        clients: the metrics of each client that has examples, shape (clients,), by name; empty unless requested.
        whose: the positions of these clients, shape (clients,).
    """

    total: dict[str, float]
    clients: Metrics
    whose: Clients

    def mean(self, clients: Clients | None = None) -> dict[str, float]:
        """Return each metric's mean over all clients for which it is defined, or over some of them."""
        of = self._places(clients)
        return {name: _mean(values[of]) for name, values in self.clients.items()}

    def worst(self, share: float = 0.1, clients: Clients | None = None) -> dict[str, float]:
        """Return the mean over the worst ``share`` of these clients, at least one, separately for each metric."""
        of = self._places(clients)
        return {name: _mean(_worst(name, values[of], share)) for name, values in self.clients.items()}

    def _places(self, clients: Clients | None) -> slice | NDArray[np.bool_]:
        return slice(None) if clients is None else np.isin(self.whose, clients)


def evaluate(
    model: Model[Any],
    tally: Tally,
    weights: FloatArray | WeightsOf,
    data: ClientData[Any],
    each: bool = True,
    without: int | None = None,
) -> Evaluated:
    """Return the metrics of weights on the examples of all clients.

    Args:
        model: makes the predictions.
        tally: counts the predictions.
        weights: shape (m,), or a function that gives clients their own.
        data: the clients' examples; each counts once. A client without examples does not count.
        each: whether to compute each client's metrics, too; this takes longer.
        without: a client whose examples are left out.
    """
    sizes = data.sizes
    if without is not None:
        sizes = np.where(np.arange(len(sizes)) == without, 0, sizes)
    most = max(1, WEIGHTS_AT_A_TIME // len(model.weight_names)) if callable(weights) else len(sizes)
    whose = list(blocks(sizes, most_clients=most))
    results = [_block(model, tally, weights, data, block, each) for block in whose]
    if not results:
        return Evaluated({}, {}, np.empty(0, np.intp))
    counts = np.sum([block.counts for block in results], axis=0)
    losses, sizes = (np.concatenate(column) for column in zip(*((b.losses, b.sizes) for b in results), strict=True))
    areas = None
    if tally.by_rank:
        scores, positive = (np.concatenate(column) for column in zip(*(b.ranked for b in results), strict=True))
        areas = areas_under_curve(scores, positive)[0]
    total = {name: float(value) for name, value in tally.metrics(counts, areas).items()}
    total["loss"] = float((losses * sizes).sum() / sizes.sum())
    if not each:
        return Evaluated(total, {}, np.empty(0, np.intp))
    clients = {name: np.concatenate([block.metrics[name] for block in results]) for name in results[0].metrics}
    return Evaluated(total, clients | {"loss": losses}, np.concatenate(whose))


class _Block(NamedTuple):
    """A block's total counts, and for each of its clients the loss, the number of examples, and any metrics.

    ``ranked`` has, if a metric needs them, the scores of all examples and whether each is of class 1, both of shape
    (n,).
    """

    counts: FloatArray
    losses: FloatArray
    sizes: FloatArray
    metrics: Metrics
    ranked: tuple[FloatArray, NDArray[np.bool_]]


def _block(
    model: Model[Any],
    tally: Tally,
    weights: FloatArray | WeightsOf,
    data: ClientData[Any],
    clients: Clients,
    each: bool,
) -> _Block:
    batch = data.batch(clients)
    own = weights(clients) if callable(weights) else weights
    (predictions, scores), y, there = predictions_and_scores(model, own, batch), batch.y, batch.weight > 0
    client, ranked, positive = np.nonzero(there)[0], np.empty(0), np.empty(0, np.bool_)
    if tally.by_rank:
        ranked, positive = (scores_in(predictions) if scores is None else scores)[there], y[there] == 1
    if not each:  # all clients' examples as a single client's
        predictions, y, there = (
            predictions.reshape(1, -1, *predictions.shape[2:]),
            y.reshape(1, -1),
            there.reshape(1, -1),
        )
    counts = tally.counts(predictions, y, there)
    with naming(clients):
        losses = model.losses(own, batch)
    metrics: Metrics = {}
    if each:
        areas = areas_under_curve(ranked, positive, client, len(there)) if tally.by_rank else None
        metrics = tally.metrics(counts, areas)
    sizes = data.sizes[clients].astype(np.float64)
    return _Block(counts.sum(axis=0), losses, sizes, metrics, (ranked, positive))


def blocks(
    sizes: NDArray[np.int64], most: int = EXAMPLES_AT_A_TIME, most_clients: int | None = None
) -> Iterator[Clients]:
    """Yield the clients that have examples in blocks of bounded size, clients of similar size together."""
    order = np.argsort(sizes, kind="stable")
    order = order[sizes[order] > 0]
    high = len(order)
    while high:
        count = max(1, min(high, most // int(sizes[order[high - 1]]), most_clients or high))
        yield order[high - count : high]
        high -= count


def _worst(name: str, values: FloatArray, share: float) -> FloatArray:
    known = np.sort(values[~np.isnan(values)])
    count = max(1, round(share * len(known)))
    return known[:count] if higher_is_better(name) else known[::-1][:count]


def _mean(values: FloatArray) -> float:
    known = values[~np.isnan(values)]
    return float(known.mean()) if len(known) else float("nan")


Measured = dict[str, dict[str, float]]
"""Values by split, then by metric."""


def evaluated_after(setup: Setup, rounds: int) -> bool:
    """Return whether there is an evaluation after this many rounds."""
    return rounds % setup.evaluation.every == 0 or rounds == setup.most_rounds


def test_metric(setup: Setup) -> str:
    """Return the name of the split on which variants are compared."""
    return "personal" if setup.evaluation.decided_by == "personal" else "test"


def selection_metric(setup: Setup) -> str:
    """Return the name of the split by which versions and variants are chosen, if there are validation examples."""
    return "personal_validation" if setup.evaluation.decided_by == "personal" else "validation"


def measure(problem: Problem, weights: FloatArray | WeightsOf, local: bool) -> Measured:
    """Return the metrics of a version by split.

    Args:
        problem: the problem with the examples.
        weights: shape (m,), or a function that gives clients their own.
        local: whether to include the means over the clients.
    """
    measured: Measured = {}
    wishes = problem.wishes
    recovered: Measured = {}
    if wishes is not None and not callable(weights):
        recovered = {split: wishes.measured(split, weights) for split in wishes.judges}
        weights = wishes.ranking(weights)
    with sentences_with("evaluated on validation examples: ", kind=TroubleOfNamed):
        validation = evaluate(problem.model, problem.tally, weights, problem.validation, each=False)
    if validation.total:
        measured["validation"] = validation.total
    newcomers = problem.newcomers
    with sentences_with("evaluated on test examples: ", kind=TroubleOfNamed):
        test = evaluate(problem.model, problem.tally, weights, problem.test, each=local or len(newcomers) > 0)
    if test.total:
        measured["test"] = test.total
        if local:
            measured |= {"local": test.mean(), "local_worst": test.worst()}
        if len(newcomers):
            measured["newcomers"] = test.mean(newcomers)
    for split in recovered.keys() & measured.keys():
        measured[split] |= recovered[split]
    return measured


def by_client(problem: Problem, weights: FloatArray, own: OwnModels | None = None, rounds: int = 0) -> pa.Table:
    """Return a version's results by client, one row per client with test examples, in their order.

    Columns: ``client``, its number; ``key``, its natural key or its group of users, if known; ``newcomer``, whether it
    never trains, if there are newcomers; ``examples``, its number of test examples; and one column per metric, null
    where it is undefined. With ``own``, a column ``personal_<metric>`` has the metrics of the clients' own models after
    this number of ``rounds``, and in a run with several models, ``model`` is the number of the client's model.
    """
    test = problem.test
    evaluated = evaluate(problem.model, problem.tally, per_client_weights(weights), test)
    order = np.argsort(evaluated.whose)
    whose = evaluated.whose[order]
    numbers, keys = getattr(test, "ids", None), getattr(problem.train, "natural_keys", None)
    columns: dict[str, pa.Array] = {"client": pa.array(whose if numbers is None else numbers[whose], pa.int64())}
    if keys is not None:
        columns["key"] = pa.array([str(key) for key in keys[whose].tolist()])
    if len(problem.newcomers):
        columns["newcomer"] = pa.array(np.isin(whose, problem.newcomers))
    if own is not None and own.several is not None:
        columns["model"] = pa.array(own.several.chosen(whose), pa.int64())
    columns["examples"] = pa.array(test.sizes[whose], pa.int64())
    metrics = {
        name: pa.array(values[order], pa.float64(), from_pandas=True) for name, values in evaluated.clients.items()
    }
    if own is not None:
        personal = own.evaluated(weights, rounds, test)
        order = np.argsort(personal.whose)
        for name, values in personal.clients.items():
            metrics[f"personal_{name}"] = pa.array(values[order], pa.float64(), from_pandas=True)
    return pa.table(columns | metrics)


def per_client_weights(weights: FloatArray) -> FloatArray | WeightsOf:
    """Return shared weights, shape (m,), unchanged; for shape (clients, m), a function that selects clients' rows."""
    return weights if weights.ndim == 1 else weights.__getitem__


def record(log: MetricLog, round_: int, measured: Measured) -> None:
    """Write measurements into the log."""
    for split in SPLITS:
        if split in measured:
            log.add(round_, split, measured[split])


FEWEST = 20
"""Minimum number of clients for a mean over the worst tenth; with fewer, it would reveal single clients' values."""


class OwnWeights(Protocol):
    """Several models; each client has one of them."""

    def chosen(self, clients: Clients) -> NDArray[np.intp]:
        """Return the number of each client's model, shape (k,)."""
        ...

    def own_weights(self, clients: Clients) -> FloatArray:
        """Return the weights of each client's model, shape (k, m)."""
        ...


class OwnModels:
    """The models that the clients of a run predict with.

    Args:
        setup: the settings; if their training gives clients nothing personal, all predict with the shared model.
        problem: the problem.
        states: the clients' states.
        several: which of several models each client predicts with; None if there is only one.
    """

    def __init__(self, setup: Setup, problem: Problem, states: ClientStates, several: OwnWeights | None = None) -> None:
        self._setup, self._problem, self._states = setup, problem, states
        self.several = several
        first, model = algorithm_for(setup.training), bare(problem.model)
        self._model: Model[Any] = first.personal_model(model) if isinstance(first, Personalizes) else problem.model

    def measure(self, weights: FloatArray, rounds: int) -> dict[str, dict[str, float]]:
        """Return a version's metrics and its clients' own models' metrics by split, given the number of rounds so far.

        These are means over the clients that may train. ``gain`` is the metric of the clients' own models minus that of
        the shared model. ``newcomers`` never train; if a method refits a part of the model every time, their parts are
        fitted on their training examples.
        """
        problem, data = self._problem.after(rounds), self._data(rounds)
        central = evaluate(problem.model, problem.tally, lambda clients: np.tile(weights, (len(clients), 1)), data)
        learners = problem.learners
        measured: dict[str, dict[str, float]] = {}
        if central.total:
            personal = self.evaluated(weights, rounds, data)
            measured |= {"central": central.mean(learners), "personal": personal.mean(learners)}
            if np.isin(personal.whose, learners).sum() >= FEWEST:
                measured["personal_worst"] = personal.worst(clients=learners)
            measured["gain"] = {
                name: measured["personal"][name] - measured["central"][name] for name in measured["central"]
            }
            if len(problem.newcomers):
                tested = personal if data is problem.test else self.evaluated(weights, rounds, problem.test)
                measured["newcomers"] = tested.mean(problem.newcomers)
        if self._setup.evaluation.decided_by == "personal":
            validation = self.evaluated(weights, rounds, problem.validation)
            if validation.total:
                measured["personal_validation"] = validation.mean(learners)
        return measured

    def evaluated(self, weights: FloatArray, rounds: int, data: ClientData[Any]) -> Evaluated:
        """Return the metrics of clients' models after a number of rounds, each on the client's own examples."""
        return evaluate(self._model, self._problem.tally, self._weights(weights, rounds), data)

    def _data(self, rounds: int) -> ClientData[Any]:
        train, test = self._problem.train, self._problem.test
        return train.to_judge(len(test), rounds, rounds) if isinstance(train, NewEachRound) else test

    def _weights(self, weights: FloatArray, rounds: int) -> WeightsOf:
        """Return a function that maps clients to their own weights after a version."""
        algorithm, model = algorithm_for(self._setup.training, rounds), bare(self._problem.model)

        def everybodys(clients: Clients) -> FloatArray:
            return np.tile(weights, (len(clients), 1))

        if self.several is not None:
            return self.several.own_weights
        if not isinstance(algorithm, Personalizes):
            return everybodys
        learned = self._learned(weights, rounds)

        def own(clients: Clients) -> FloatArray:
            own_weights = np.empty((len(clients), len(self._model.weight_names)))
            for at in blocks(np.maximum(learned.sizes[clients], 1)):
                some = clients[at]
                own_weights[at] = algorithm.personal_weights(
                    model, weights, learned.batch(some), self._states.load(some)
                )
            return own_weights

        return own

    def _learned(self, weights: FloatArray, rounds: int) -> ClientData[Any]:
        """Return the examples that clients last learned from."""
        train = self._problem.train
        if not isinstance(train, NewEachRound):
            return in_precision(train, self._problem.model)
        return train.learned(len(self._problem.test), rounds, weights)


class BeforeMerging:
    """Measures clients' own models before they are merged, round after round, block by block."""

    def __init__(self, problem: Problem) -> None:
        self._problem = problem
        self._everybody: dict[str, list[float]] = defaultdict(list)
        self._others: dict[str, list[float]] = defaultdict(list)

    def see(self, clients: Clients, models: Floats) -> None:
        """Measure the models of some clients, shape (k, m), except clients without training examples."""
        problem = self._problem
        for client, model in zip(clients.tolist(), models.astype(np.float64), strict=True):
            if not problem.train.sizes[client]:
                continue
            for into, without in ((self._everybody, None), (self._others, client)):
                evaluated = evaluate(problem.model, problem.tally, model, problem.test, each=False, without=without)
                for name, value in evaluated.total.items():
                    into[name].append(value)

    def taken(self) -> Measured:
        """Return and reset the round's result: the mean over the clients, and over the worst tenth of them."""
        everybody, others = (
            Evaluated({}, _arrays(each), np.empty(0, np.intp)) for each in (self._everybody, self._others)
        )
        self._everybody.clear()
        self._others.clear()
        measured = {"trained": everybody.mean(), "trained_worst": everybody.worst(), "others": others.mean()}
        return {split: metrics for split, metrics in measured.items() if metrics}


def _arrays(values_by_name: dict[str, list[float]]) -> dict[str, FloatArray]:
    return {name: np.array(values) for name, values in values_by_name.items()}
