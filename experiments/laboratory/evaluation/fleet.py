"""Evaluation of a whole fleet, block by block: counts are summed, and each client's metrics and scores kept."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from fedping.client_sim.learning import ClientData, Model
from fedping.client_sim.learning.batch import Clients, FloatArray, naming
from fedping.client_sim.learning.model import predictions_and_scores
from fedping.experiments.laboratory.evaluation.tallies import (
    Metrics,
    Tally,
    areas_under_curve,
    higher_is_better,
    scores_in,
)

EXAMPLES_AT_A_TIME = 2**15
"""Examples in a block of clients, including padding, which bounds the memory of an evaluation."""

WEIGHTS_AT_A_TIME = 2**22
"""Weights in a block of clients that have their own."""

WeightsOf: TypeAlias = Callable[[Clients], FloatArray]
"""From k clients to the weights that are each one's own, shape (k, m)."""


@dataclass(frozen=True)
class Evaluated:
    """How good a model is.

    Attributes:
        total: the metrics of all clients' counts together, and the mean ``loss`` by examples.
        clients: the same for each client that has examples, shape (clients,), by name; empty unless requested.
        whose: these clients, shape (clients,).
    """

    total: dict[str, float]
    clients: Metrics
    whose: Clients

    def mean(self, clients: Clients | None = None) -> dict[str, float]:
        """Return the mean over the clients, or over some of them, for which a metric is defined."""
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
    """Return how good weights are, on the examples of all clients.

    Args:
        model: makes the predictions.
        tally: counts them.
        weights: shape (m,), or a function that gives clients their own.
        data: the clients' examples; each counts once. A client without examples does not count.
        each: whether to compute each client's metrics too, which takes longer.
        without: a client whose examples are left out.
    """
    sizes = data.sizes
    if without is not None:
        sizes = np.where(np.arange(len(sizes)) == without, 0, sizes)
    most = max(1, WEIGHTS_AT_A_TIME // len(model.weight_names)) if callable(weights) else len(sizes)
    whose = list(blocks(sizes, most_clients=most))
    found = [_block(model, tally, weights, data, block, each) for block in whose]
    if not found:
        return Evaluated({}, {}, np.empty(0, np.intp))
    counts = np.sum([block.counts for block in found], axis=0)
    losses, sizes = (np.concatenate(column) for column in zip(*((b.losses, b.sizes) for b in found), strict=True))
    areas = None
    if tally.by_rank:
        scores, positive = (np.concatenate(column) for column in zip(*(b.ranked for b in found), strict=True))
        areas = areas_under_curve(scores, positive)[0]
    total = {name: float(value) for name, value in tally.metrics(counts, areas).items()}
    total["loss"] = float((losses * sizes).sum() / sizes.sum())
    if not each:
        return Evaluated(total, {}, np.empty(0, np.intp))
    clients = {name: np.concatenate([block.metrics[name] for block in found]) for name in found[0].metrics}
    return Evaluated(total, clients | {"loss": losses}, np.concatenate(whose))


class _Block(NamedTuple):
    """A block's total counts, and for each of its clients the loss, the number of examples, and any metrics.

    ``ranked`` are, where they matter, the scores of all examples and which are of class 1, both of shape (n,).
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
    client, shown, positive = np.nonzero(there)[0], np.empty(0), np.empty(0, np.bool_)
    if tally.by_rank:
        shown, positive = (scores_in(predictions) if scores is None else scores)[there], y[there] == 1
    if not each:  # all clients' examples as those of one
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
        areas = areas_under_curve(shown, positive, client, len(there)) if tally.by_rank else None
        metrics = tally.metrics(counts, areas)
    sizes = data.sizes[clients].astype(np.float64)
    return _Block(counts.sum(axis=0), losses, sizes, metrics, (shown, positive))


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
