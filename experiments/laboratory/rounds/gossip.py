"""Gossip averaging: rounds without a server, in which nodes average their models with those of their neighbours.

Each node i has a model x_i of its own. In a round it trains, x_i ← x_i + u_i, and then takes the mean of its
neighbours' models and its own by the weights of :mod:`fedping.experiments.laboratory.rounds.graph`,

    x_i ← Σ_j W_ij x_j,

once or several times (Boyd et al. 2006; D-PSGD, Lian et al. 2017, with any local training in the place of one
gradient). A node that is away in a round does neither, and the others mix by the weights of the graph among themselves.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from functools import reduce
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedping.client_sim.learning.batch import Clients, FloatArray, Floats
from fedping.experiments.laboratory.evaluate import Measured
from fedping.experiments.laboratory.evaluation.fleet import Evaluated, evaluate
from fedping.experiments.laboratory.preparing import Problem
from fedping.experiments.laboratory.resuming import Arrays
from fedping.experiments.laboratory.rounds.graph import adjacency, mixing_votes, spectral_gap
from fedping.experiments.laboratory.rounds.updates import RoundReport, Seen, Updates, diverged
from fedping.experiments.laboratory.settings import Setup
from fedping.protocol.errors import InvalidSettings
from fedping.protocol.landing import shard_of
from fedping.protocol.model import out_of_range
from fedping.server_jobs.round import Moments, batch_rows, merged, moments_of, pieces_of

MOST_BYTES = 2**30
"""Bytes of all nodes' models together at most; a round holds a few times as many."""

_NOTHING = Moments(0.0, np.zeros(0), np.zeros(0))


class Order(NamedTuple):
    """In which order a server would add up what nodes send: shard by shard, in bounded batches.

    Attributes:
        nodes: those that take part, in the order of the batches, shape (k,).
        batch: the number of the batch of each, ascending, shape (k,).
        shard: the shard of each, shape (k,).
    """

    nodes: Clients
    batch: NDArray[np.intp]
    shard: NDArray[np.intp]


def averaged(models: FloatArray, moves: Floats, votes: FloatArray, order: Order) -> FloatArray:
    """Return each node's model after an exchange, shape (n, m); who does not take part keeps its own.

    A row of the weights is added up by the functions and in the order in which a server adds up a round's updates, as
    movements from the model of the first node of the row. So a row of equal weights over nodes that have begun at the
    same model comes to the bits of the server's mean, and nodes with the same row come to the same bits.

    Args:
        models: before training, shape (n, m).
        moves: by what nodes have moved since, shape (n, m).
        votes: the weights of those that take part, up to a factor, shape (n, n).
        order: of those that take part.
    """
    found = models.copy()
    known: dict[bytes, FloatArray] = {}
    for node in order.nodes.tolist():
        row = votes[node]
        if (same := known.get(row.tobytes())) is None:
            some = row[order.nodes] > 0
            among, batch, shard = order.nodes[some], order.batch[some], order.shard[some]
            reference = models[among.min()]
            shards: dict[int, Moments] = {}
            bounds = [0, *(np.flatnonzero(np.diff(batch)) + 1).tolist(), len(among)]
            for low, high in zip(bounds, bounds[1:], strict=False):
                part = among[low:high]
                moments = moments_of((models[part] - reference) + moves[part], row[part], spread=False)
                of = int(shard[low])
                shards[of] = merged(shards.get(of, _NOTHING), moments)
            total = reduce(merged, (shards[of] for of in sorted(shards)), _NOTHING)
            same = known[row.tobytes()] = reference + total.mean
        found[node] = same
    return found


class GossipRounds:
    """The rounds of a graph's nodes, which are the clients.

    The mean of the nodes' models is what is measured as the run's model; nobody has it, unless all models are equal.
    """

    def __init__(self, setup: Setup, problem: Problem) -> None:
        assert setup.gossip is not None
        nodes, spec = len(problem.train), problem.spec
        if spec.constraints or spec.integer.any():
            raise InvalidSettings(
                "[gossip] averages weights as they are, and this model's are whole numbers or have constraints, which "
                "a server sees to; leave out 'integer' and 'constraints' in [model]"
            )
        if 8 * nodes * spec.m > MOST_BYTES:
            raise InvalidSettings(
                f"[gossip] has {nodes:,} nodes with {spec.m:,} weights each, which are {8 * nodes * spec.m / 1e9:.1f} "
                f"GB, and there is room for {MOST_BYTES / 1e9:.1f} GB; set fewer 'clients' in [partition], or take a "
                "smaller model"
            )
        self._settings, self._pipeline, self._problem = setup.gossip, setup.server, problem
        self._adjacent = adjacency(setup.gossip, _names(problem), problem.seed)
        self._message = 8 * spec.m * setup.gossip.exchanges  # bytes to a neighbour in a round
        self._shards = shard_of(problem.ids)
        self._gap = spectral_gap(mixing_votes(self._adjacent))
        self._models: FloatArray = np.tile(spec.start_array, (nodes, 1))

    @property
    def weights(self) -> FloatArray:
        """The mean of the nodes' models, shape (m,); see :attr:`Rounds.weights`."""
        first: FloatArray = self._models[0]
        mean: FloatArray = (self._models - first).mean(axis=0)
        return first + mean

    @property
    def models(self) -> FloatArray:
        """What nodes begin a round with: shape (m,) if it is the same for all, else each node's own, shape (n, m)."""
        return self._models[0] if (self._models == self._models[0]).all() else self._models

    def snapshot(self) -> Arrays:
        """Return what future rounds depend on: the nodes' models."""
        return {"models": self._models}

    def restore(self, saved: Arrays) -> None:
        """Continue from what :meth:`snapshot` returned."""
        self._models = saved["models"]

    def run(self, sent: Iterable[Updates]) -> RoundReport:
        """See :meth:`Rounds.run`; who sends something takes part, and a node without examples does with what it has.

        The report's loss is that of the nodes, each at its own model, and its bytes are those of all models that were
        sent, to each neighbour that takes part, in float64.
        """
        n, m = self._models.shape
        seen, moves = Seen(self._pipeline), np.zeros((n, m), np.float32)
        parts: list[Order] = []
        batches = 0
        for block in sent:
            seen.see(block, 0)
            assert isinstance(block.updates, np.ndarray)
            moves[block.clients] = block.updates
            order, pieces = pieces_of(self._shards[block.clients], np.ones(len(block.clients), np.bool_), batch_rows(m))
            sizes = [high - low for _, low, high in pieces]
            batch = np.repeat(np.arange(batches, batches + len(pieces)), sizes)
            parts.append(Order(block.clients[order], batch, np.repeat([shard for shard, _, _ in pieces], sizes)))
            batches += len(pieces)
        if not parts:
            return seen.report(False, 0)
        everybody = Order(*map(np.concatenate, zip(*parts, strict=True)))
        there = np.zeros(n, np.bool_)
        there[everybody.nodes] = True
        adjacent = self._adjacent & there & there[:, None]
        votes = mixing_votes(adjacent)
        models = self._models
        for _ in range(self._settings.exchanges):
            models = averaged(models, moves, votes, everybody)
            moves = np.zeros_like(moves)
        for model in models:
            if beyond := out_of_range(model, self._problem.spec):
                raise diverged(beyond)
        self._models = models
        return replace(seen.report(True, 0), update_bytes=int(adjacent.sum()) * self._message)

    def measured(self) -> Measured:
        """Return what there is to know besides the mean model: the nodes' own models, and the graph.

        ``nodes`` are the metrics of the nodes' own models on everybody's test examples, the mean over the nodes, and
        ``nodes_worst`` that over the worst tenth. ``graph`` has the spectral gap of an exchange; the consensus
        distance, the root of the mean squared distance of a node's model from the mean model (Kong et al. 2021); and
        how many kilobytes a node sends in a round where nobody is away.
        """
        problem, models = self._problem, np.atleast_2d(self.models)
        apart = self._models - self.weights
        found: Measured = {
            "graph": {
                "spectral_gap": self._gap,
                "consensus_distance": float(np.sqrt((apart * apart).sum(axis=1).mean())),
                "kilobytes_a_node": float(self._adjacent.sum(axis=1).mean()) * self._message / 1e3,
            }
        }
        each = [evaluate(problem.model, problem.tally, model, problem.test, each=False).total for model in models]
        if each[0]:
            metrics = {name: np.array([total[name] for total in each]) for name in each[0]}
            nodes = Evaluated({}, metrics, np.arange(len(each)))
            found |= {"nodes": nodes.mean(), "nodes_worst": nodes.worst()}
        return found


def _names(problem: Problem) -> list[str]:
    """Return the nodes' names, as a file of edges has them: their natural keys, or else their numbers."""
    keys, numbers = (getattr(problem.train, name, None) for name in ("natural_keys", "ids"))
    if keys is not None and len({*map(str, keys.tolist())}) == len(keys):
        return [str(key) for key in keys.tolist()]
    return [str(number) for number in (range(len(problem.train)) if numbers is None else numbers.tolist())]
