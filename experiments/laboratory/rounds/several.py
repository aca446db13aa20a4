"""Rounds of several models: edge servers below a cloud (Liu et al. 2020), and clusters of clients.

Each model has its own server, in memory, with the optimizer and the aggregation of the run, and each client trains one
of the models in a round. They differ in the model that a client trains, and in the steps between two rounds:

- in a hierarchy, the edges' models are averaged after a fixed number of rounds;
- in IFCA (Ghosh et al. 2020), a client trains the model with the least loss on its own training examples;
- in bipartition (Sattler, Müller and Samek 2019), a model is divided in two if its clients' updates disagree.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedping.client_sim.data.seeds import generator
from fedping.client_sim.learning import ClientData, Model
from fedping.client_sim.learning.batch import Clients, FloatArray
from fedping.client_sim.learning.blas import one_thread
from fedping.experiments.laboratory.preparing import Problem
from fedping.experiments.laboratory.resuming import Arrays, Part
from fedping.experiments.laboratory.rounds.memory import MemoryChannel
from fedping.experiments.laboratory.rounds.server import RoundReport, RoundTally
from fedping.experiments.laboratory.rounds.updates import Updates
from fedping.experiments.laboratory.settings import Setup
from fedping.experiments.laboratory.settings.several import Bipartition, Hierarchy, Ifca
from fedping.protocol.errors import InvalidSettings

MOST_NUMBERS = 2**27
"""Maximum count of numbers in all models of a run together, and in the updates that are compared: 1 GB."""

_AT_ONCE = 64
"""Clients whose losses are computed at a time."""

Chosen = Callable[[Clients], NDArray[np.intp]]
"""Maps k clients to the number of the model that each trains, shape (k,)."""


class Models(Sequence[FloatArray]):
    """Several models of the same age that clients train, and the model that each client trains.

    Args:
        weights: each model's weights, shape (m,).
        chosen: maps clients to the models that they train.
    """

    def __init__(self, weights: Sequence[FloatArray], chosen: Chosen) -> None:
        self._weights, self.chosen = tuple(weights), chosen

    def __getitem__(self, number: Any) -> Any:
        return self._weights[number]

    def __len__(self) -> int:
        return len(self._weights)


def in_blocks(figure: Callable[[Any], FloatArray], train: ClientData[Any], clients: Clients) -> FloatArray:
    """Return a figure of each client over all its examples, such as its loss, shape (k,)."""
    figures = np.zeros(len(clients))
    order = np.argsort(train.sizes[clients], kind="stable")
    with one_thread():
        for low in range(0, len(order), _AT_ONCE):
            at = order[low : low + _AT_ONCE]
            figures[at] = figure(train.batch(clients[at]))
    return figures


def losses_of(model: Model[Any], weights: FloatArray, train: ClientData[Any], clients: Clients) -> FloatArray:
    """Return the losses of clients on all their examples, shape (k,)."""
    return in_blocks(partial(model.losses, weights), train, clients)


def several_rounds(setup: Setup, problem: Problem) -> SeveralRounds:
    """Return the rounds of a run with several models."""
    if setup.hierarchy:
        return EdgeRounds(setup, problem, setup.hierarchy)
    if isinstance(setup.clusters, Ifca):
        return IfcaRounds(setup, problem, setup.clusters)
    assert setup.clusters is not None
    return BipartitionRounds(setup, problem, setup.clusters)


class SeveralRounds:
    """The rounds of several models, each with its own server; see :class:`Rounds`.

    The model measured as the run's is the mean of the models, weighted by each model's clients, or by their examples if
    these are the votes.
    """

    def __init__(self, setup: Setup, problem: Problem, count: int) -> None:
        if count * problem.spec.m > MOST_NUMBERS:
            raise InvalidSettings(
                f"{count:,} models of {problem.spec.m:,} weights are {8 * count * problem.spec.m / 1e9:.1f} GB, and a "
                f"run may have {8 * MOST_NUMBERS / 1e9:.1f} GB. Set fewer, or choose a smaller model"
            )
        self._setup, self._problem = setup, problem
        self._channels = [self._new() for _ in range(count)]
        self._number = 0
        self._of: NDArray[np.intp] = np.zeros(len(problem.train), np.intp)
        """The number of the model that each client last trained."""

    def _new(self, like: MemoryChannel | None = None) -> MemoryChannel:
        """Return a server for one more model, as a copy of the server ``like`` if given."""
        most = self._setup.limits.examples if self._setup.limits else None
        channel = MemoryChannel(self._problem.line, self._problem.ids, self._problem.seed, most_examples=most)
        if like is not None:
            channel.restore(dict(like.snapshot()))
        return channel

    @property
    def models(self) -> FloatArray:
        """The weights of all models, shape (models, m)."""
        return np.array([channel.weights for channel in self._channels])

    @property
    def weights(self) -> FloatArray:
        """The mean of the models; see :attr:`Rounds.weights`."""
        return _mean(self.models, self._votes())

    @property
    def checkpoint(self) -> Part | None:
        """The rounds themselves, which checkpoints save."""
        return self

    def chosen(self, clients: Clients) -> NDArray[np.intp]:
        """Return the number of the model that each of these clients trains and predicts with, shape (k,)."""
        return self._of[clients]

    def own_weights(self, clients: Clients) -> FloatArray:
        """Return the weights that these clients predict with, shape (k, m)."""
        own: FloatArray = self.models[self.chosen(clients)]
        return own

    def start_weights(self, versions: Sequence[FloatArray]) -> Sequence[FloatArray]:
        """Return the models that clients train from."""
        return Models([channel.weights for channel in self._channels], self.chosen)

    def measured(self) -> Mapping[str, Mapping[str, float]]:
        """Return the number of models, and the root of their mean squared distance from their mean."""
        models, votes = self.models, self._votes()
        apart = ((models - _mean(models, votes)) ** 2).sum(axis=1)
        distance = float(np.sqrt((apart * votes).sum() / votes.sum()))
        return {"models": {"count": float(len(models)), "distance": distance} | self._more()}

    def run(self, sent: Iterable[Updates]) -> RoundReport:
        """See :meth:`Rounds.run`; a model with fewer than ``min_clients`` clients stays unchanged."""
        count = len(self._channels)
        tally, clients = RoundTally(self._setup.pipeline), np.zeros(count, np.int64)
        bytes_each = max(channel.begin() for channel in self._channels)
        for block in sent:
            tally.add(*self._channels[block.model].send(block))
            clients[block.model] += int(((block.examples > 0) & (block.repeats == 0)).sum())
            self._of[block.clients] = block.model
            self._see(block)
        stepped = [channel.step(int(number)) for channel, number in zip(self._channels, clients, strict=True)]
        self._number += 1
        self._after()
        return tally.report(any(stepped), bytes_each * self._fetched)

    def snapshot(self) -> Arrays:
        """Return the state to resume from: each server's state, and the model of each client."""
        state = {"number": np.array(self._number), "models": np.array(len(self._channels)), "of": self._of}
        for number, channel in enumerate(self._channels):
            state |= {f"{number}/{name}": value for name, value in channel.snapshot().items()}
        return state

    def restore(self, saved: Arrays) -> None:
        """Resume from a snapshot."""
        self._number, self._of = int(saved["number"]), saved["of"].copy()
        self._channels = [self._new() for _ in range(int(saved["models"]))]
        for number, channel in enumerate(self._channels):
            begin = f"{number}/"
            channel.restore({key.removeprefix(begin): each for key, each in saved.items() if key.startswith(begin)})

    @property
    def _fetched(self) -> int:
        """Return the number of models that a client fetches for a training."""
        return 1

    def _votes(self) -> FloatArray:
        """Return each model's weight in their mean, shape (models,)."""
        learners = self._problem.learners
        by_examples = self._setup.pipeline.weighting == "examples"
        each = self._problem.train.sizes[learners] if by_examples else np.ones(len(learners))
        votes: FloatArray = np.bincount(self._of[learners], each, len(self._channels)).astype(np.float64)
        return votes

    def _see(self, block: Updates) -> None:
        """Store the part of a block that a later decision needs."""

    def _after(self) -> None:
        """Act on the models after a round, such as averaging or dividing them."""

    def _more(self) -> dict[str, float]:
        return {}


def _mean(models: FloatArray, votes: FloatArray) -> FloatArray:
    """Return the mean of models by votes, shape (m,), with the models' bits if all are equal."""
    first: FloatArray = models[0]
    moved: FloatArray = votes @ (models - first) / votes.sum()
    return first + moved


class EdgeRounds(SeveralRounds):
    """The rounds of edge servers, whose models a cloud averages from time to time."""

    def __init__(self, setup: Setup, problem: Problem, settings: Hierarchy) -> None:
        of = edges_of(settings, problem)
        super().__init__(setup, problem, int(of.max()) + 1)
        self._settings, self._of = settings, of

    def _after(self) -> None:
        if self._number % self._settings.edge_rounds:
            return
        mean = _mean(np.array([channel.exact for channel in self._channels]), self._votes())
        for channel in self._channels:
            channel.continue_from(mean)

    def _more(self) -> dict[str, float]:
        return {"averages": float(self._number // self._settings.edge_rounds)}


def edges_of(settings: Hierarchy, problem: Problem) -> NDArray[np.intp]:
    """Return the edge of each client, shape (clients,).

    Raises:
        InvalidSettings: the clients have no natural keys or labels, or there are fewer of them than edges.
    """
    clients = len(problem.train)
    if settings.by == "key":
        keys = getattr(problem.train, "natural_keys", None)
        if keys is None:
            raise InvalidSettings(
                "[hierarchy] has by = \"key\", and the data have no natural keys. Set 'key' in [data] and partition = "
                '"key", or give \'edges\' and by = "random"'
            )
        return np.unique(keys, return_inverse=True)[1].astype(np.intp)
    assert settings.edges is not None
    if settings.edges > clients:
        raise InvalidSettings(
            f"[hierarchy] has {settings.edges:,} edges for {clients:,} clients. Set 'edges' to {clients:,} at most"
        )
    if settings.by == "random":
        order = generator(problem.seed, "edges").permutation(clients)
    else:
        order = np.argsort(_labels(problem), kind="stable")
    of = np.empty(clients, np.intp)
    of[order] = np.arange(clients) * settings.edges // clients
    return of


def _labels(problem: Problem) -> NDArray[np.int64]:
    """Return the most frequent label of each client's examples, the smallest if tied; -1 without examples."""
    found = np.full(len(problem.train), -1)
    for client in np.flatnonzero(problem.train.sizes):
        batch = problem.train.batch(np.array([client]))
        y = batch.y[batch.weight > 0]
        if y.dtype.kind not in "iu" and not (y == np.round(y)).all():
            raise InvalidSettings(
                '[hierarchy] has by = "label", and the target is a number. Set by = "random" or "key"'
            )
        found[client] = np.bincount(y.astype(np.int64)).argmax()
    return found


class IfcaRounds(SeveralRounds):
    """The rounds of IFCA: each client trains the model with the least loss on its training examples."""

    def __init__(self, setup: Setup, problem: Problem, settings: Ifca) -> None:
        super().__init__(setup, problem, settings.clusters)
        for number, channel in enumerate(self._channels):
            noise = generator(problem.seed, "clusters", number).standard_normal(problem.spec.m)
            channel.continue_from(channel.exact + settings.spread * noise)
        self._of = np.arange(len(problem.train)) % settings.clusters  # until they choose, all models count alike

    def chosen(self, clients: Clients) -> NDArray[np.intp]:
        """See :meth:`SeveralRounds.chosen`."""
        model, train = self._problem.model, self._problem.train_in(self._number, self._channels[0].weights)
        losses = [losses_of(model, channel.weights, train, clients) for channel in self._channels]
        return np.asarray(np.argmin(losses, axis=0))

    @property
    def _fetched(self) -> int:
        return len(self._channels)


class _Seen(NamedTuple):
    """The updates of a model in a round: clients, shape (k,), updates, shape (k, m), and votes, shape (k,)."""

    clients: Clients
    updates: FloatArray
    votes: FloatArray


class BipartitionRounds(SeveralRounds):
    """The rounds of clustered federated learning by bipartition."""

    def __init__(self, setup: Setup, problem: Problem, settings: Bipartition) -> None:
        super().__init__(setup, problem, 1)
        if (numbers := len(problem.learners) * problem.spec.m) > MOST_NUMBERS:
            raise InvalidSettings(
                f'[clusters] by = "bipartition" compares all updates of a round, {8 * numbers / 1e9:.1f} GB, and there '
                f"is room for {8 * MOST_NUMBERS / 1e9:.1f} GB. Set fewer 'clients' in [partition], or choose a smaller "
                "model"
            )
        self._settings = settings
        self._seen: dict[int, list[_Seen]] = {}

    def _see(self, block: Updates) -> None:
        there = block.examples > 0
        updates = self._channels[block.model].received(block)[there].astype(np.float64)
        by_examples = self._setup.pipeline.weighting == "examples"
        votes = block.examples[there].astype(np.float64) if by_examples else np.ones(len(updates))
        self._seen.setdefault(block.model, []).append(_Seen(block.clients[there], updates, votes))

    def _after(self) -> None:
        seen, self._seen = self._seen, {}
        if self._number < self._settings.after:
            return
        for number in sorted(seen):
            part = divided(_Seen(*map(np.concatenate, zip(*seen[number], strict=True))), self._settings)
            if part is None or len(self._channels) >= self._settings.most:
                continue
            self._of[part] = len(self._channels)
            self._channels.append(self._new(self._channels[number]))


def divided(seen: _Seen, settings: Bipartition) -> Clients | None:
    """Return the clients of the part that gets a separate model, ascending; None if the cluster stays whole."""
    lengths = np.linalg.norm(seen.updates, axis=1)
    mean = np.linalg.norm(seen.votes @ seen.updates / seen.votes.sum())
    moved = np.flatnonzero(lengths)
    if len(moved) < 2 or mean >= settings.mean_below or lengths.max() <= settings.norm_above:
        return None
    order = moved[np.argsort(seen.clients[moved])]
    directions = seen.updates[order] / lengths[order, None]
    with one_thread():
        cosines = np.clip(directions @ directions.T, -1.0, 1.0)
    second, greatest = bipartition(cosines)
    if np.sqrt((1 - greatest) / 2) < settings.gamma:
        return None
    return np.sort(seen.clients[order[second]])


def bipartition(cosines: FloatArray) -> tuple[NDArray[np.bool_], float]:
    """Return whether each of n ≥ 2 is in the second of two parts, shape (n,), and the parts' greatest cosine.

    The greatest cosine between the parts is the least of any division. The parts are those of the maximum spanning tree
    without its weakest edge; Sattler et al. find them by joining the most similar first. The first of the n is in the
    first part.
    """
    edges = sorted(_spanning(cosines), key=lambda edge: -edge[0])
    parts = np.arange(len(cosines))
    for _, one, other in edges[:-1]:
        parts[parts == parts[other]] = parts[one]
    return parts != parts[0], float(edges[-1][0])


def _spanning(cosines: FloatArray) -> Iterator[tuple[float, int, int]]:
    """Yield the edges of the maximum spanning tree, as (cosine, one, other) (Prim 1957)."""
    best, beside = cosines[0].copy(), np.zeros(len(cosines), np.intp)
    best[0] = -np.inf
    outside = np.ones(len(cosines), np.bool_)
    outside[0] = False
    while outside.any():
        new = int(np.flatnonzero(outside)[best[outside].argmax()])
        yield float(best[new]), int(beside[new]), new
        outside[new] = False
        closer = outside & (cosines[new] > best)
        best[closer], beside[closer] = cosines[new][closer], new
