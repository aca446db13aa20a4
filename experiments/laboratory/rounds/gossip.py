"""Gossip averaging: rounds without a server, where nodes average their models with their neighbours' models.

Each node i has its own model x_i. In a round it trains, x_i ← x_i + u_i, and then takes the mean of its neighbours'
models and its own by the weights of the graph,

    x_i ← Σ_j W_ij x_j,

once or several times (Boyd et al. 2006; D-PSGD, Lian et al. 2017, with any local training instead of one gradient). An
absent node does neither in a round, and the others mix by the weights of the graph among themselves.

The weights are Metropolis and Hastings's (Boyd, Diaconis and Xiao 2004), where each node counts itself among its
neighbours (Xiao, Boyd and Lall 2005): node i weights its neighbour j by

    W_ij = 1 / (1 + max(d_i, d_j)),   and itself by W_ii = 1 - Σ_j W_ij,

where d are the nodes' numbers of neighbours. Two neighbours agree on a weight by exchanging these numbers, and W is
symmetric and doubly stochastic: an exchange keeps the mean of all models. After it, the distance from the mean is at
most |λ₂| of the distance before, where |λ₂| is the second largest absolute eigenvalue of W, and 1 - |λ₂| is the
spectral gap (Boyd et al. 2006).
"""

from __future__ import annotations

import csv
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from functools import reduce
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedping.client_sim.data.seeds import generator
from fedping.client_sim.learning.batch import Clients, FloatArray, Floats
from fedping.client_sim.learning.blas import one_thread
from fedping.experiments.laboratory.evaluation import Evaluated, Measured, evaluate
from fedping.experiments.laboratory.preparing import Problem
from fedping.experiments.laboratory.resuming import Arrays, Part
from fedping.experiments.laboratory.rounds.server import RoundReport, RoundTally, diverged
from fedping.experiments.laboratory.rounds.updates import Updates
from fedping.experiments.laboratory.settings import Setup
from fedping.experiments.laboratory.settings.setup import Gossip
from fedping.protocol.errors import InvalidSettings
from fedping.protocol.landing import shard_of
from fedping.protocol.model import out_of_range
from fedping.server_jobs.round import Moments, batch_rows, merged, moments_of, pieces_of

if TYPE_CHECKING:
    from networkx import Graph


MOST_BYTES = 2**30
"""Maximum bytes of all nodes' models together; a round needs a few times as many."""

_NOTHING = Moments(0.0, np.zeros(0), np.zeros(0))


class Order(NamedTuple):
    """The order in which a server would add up the nodes' updates: shard by shard, in bounded batches.

    Attributes:
        nodes: the participating nodes, in the order of the batches, shape (k,).
        batch: the number of each node's batch, ascending, shape (k,).
        shard: each node's shard, shape (k,).
    """

    nodes: Clients
    batch: NDArray[np.intp]
    shard: NDArray[np.intp]


def averaged(models: FloatArray, moves: Floats, votes: FloatArray, order: Order) -> FloatArray:
    """Return each node's model after an exchange, shape (n, m); absent nodes keep their models.

    The terms of a row are movements from the model of the row's first node. They are added up by the same functions and
    in the same order as a server's sum over a round's updates. So a row of equal weights over nodes that started from
    the same model has the same bits as the server's mean, and nodes with the same row have the same bits.

    Args:
        models: the models before training, shape (n, m).
        moves: the nodes' movements since, shape (n, m).
        votes: the weights of the nodes that take part, up to a factor, shape (n, n).
        order: the order of the nodes that take part.
    """
    mixed = models.copy()
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
        mixed[node] = same
    return mixed


class GossipRounds:
    """The rounds of gossip averaging; the nodes of the graph are the clients.

    The mean of the nodes' models is measured as the run's model; the nodes don't have it, unless all models are equal.
    """

    def __init__(self, setup: Setup, problem: Problem) -> None:
        assert setup.gossip is not None
        nodes, spec = len(problem.train), problem.spec
        if spec.constraints or spec.integer.any():
            raise InvalidSettings(
                "[gossip] averages weights without a server's treatment of whole numbers and constraints, which this "
                "model has. Remove 'integer' and 'constraints' from [model]"
            )
        if 8 * nodes * spec.m > MOST_BYTES:
            raise InvalidSettings(
                f"[gossip] has {nodes:,} nodes with {spec.m:,} weights each, which are {8 * nodes * spec.m / 1e9:.1f} "
                f"GB, and there is room for {MOST_BYTES / 1e9:.1f} GB; set fewer 'clients' in [partition], or take a "
                "smaller model"
            )
        self._settings, self._pipeline, self._problem = setup.gossip, setup.pipeline, problem
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
        """The nodes' models before a round: shape (m,) if all are equal, else each node's own, shape (n, m)."""
        return self._models[0] if (self._models == self._models[0]).all() else self._models

    @property
    def checkpoint(self) -> Part | None:
        """The rounds themselves, which checkpoints save."""
        return self

    def start_weights(self, versions: Sequence[FloatArray]) -> Sequence[FloatArray]:
        """Return the models that the nodes train from; there are no older ones."""
        return [self.models]

    def snapshot(self) -> Arrays:
        """Return the state to resume from: the nodes' models."""
        return {"models": self._models}

    def restore(self, saved: Arrays) -> None:
        """Resume from a snapshot."""
        self._models = saved["models"]

    def run(self, sent: Iterable[Updates]) -> RoundReport:
        """See :meth:`Rounds.run`; each sender takes part, and a node without examples sends its unchanged model.

        The report's loss is the nodes' loss, each at its own model, and its bytes count all models that were sent, to
        each neighbour that takes part, in float64.
        """
        n, m = self._models.shape
        tally, moves = RoundTally(self._pipeline), np.zeros((n, m), np.float32)
        parts: list[Order] = []
        batches = 0
        for block in sent:
            tally.add(block, 0)
            assert isinstance(block.updates, np.ndarray)
            moves[block.clients] = block.updates
            order, pieces = pieces_of(self._shards[block.clients], np.ones(len(block.clients), np.bool_), batch_rows(m))
            sizes = [high - low for _, low, high in pieces]
            batch = np.repeat(np.arange(batches, batches + len(pieces)), sizes)
            parts.append(Order(block.clients[order], batch, np.repeat([shard for shard, _, _ in pieces], sizes)))
            batches += len(pieces)
        if not parts:
            return tally.report(False, 0)
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
        return replace(tally.report(True, 0), update_bytes=int(adjacent.sum()) * self._message)

    def measured(self) -> Measured:
        """Return metrics in addition to the mean model's: of the nodes' own models, and of the graph.

        ``nodes`` are the metrics of the nodes' own models on all test examples, the mean over the nodes, and
        ``nodes_worst`` the mean over the worst tenth of them. ``graph`` has the spectral gap of an exchange; the
        consensus distance, the root of the mean squared distance of a node's model from the mean model (Kong et al.
        2021); and the kilobytes that a node sends in a round with all nodes.
        """
        problem, models = self._problem, np.atleast_2d(self.models)
        apart = self._models - self.weights
        metrics_of_rounds: Measured = {
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
            metrics_of_rounds |= {"nodes": nodes.mean(), "nodes_worst": nodes.worst()}
        return metrics_of_rounds


def _names(problem: Problem) -> list[str]:
    """Return the nodes' names, as a file of edges has them: their natural keys, or else their numbers."""
    keys, numbers = (getattr(problem.train, name, None) for name in ("natural_keys", "ids"))
    if keys is not None and len({*map(str, keys.tolist())}) == len(keys):
        return [str(key) for key in keys.tolist()]
    return [str(number) for number in (range(len(problem.train)) if numbers is None else numbers.tolist())]


MOST_NODES = 1_000
"""Maximum nodes of a graph: each node's model is measured, and the spectral gap needs all eigenvalues."""

DRAWS = 100
"""Maximum draws of a random graph until it is connected; with a degree of 3 or more, the first usually is."""

COLUMNS = ["node", "neighbour"]
"""The first line of a file of edges."""


def adjacency(settings: Gossip, names: Sequence[str], seed: int) -> NDArray[np.bool_]:
    """Return whether each pair of nodes are neighbours, symmetric, shape (n, n); a node isn't its own neighbour.

    Args:
        settings: the settings of the graph.
        names: the n nodes' names, as in a file of edges.
        seed: seed of a random graph.

    Raises:
        InvalidSettings: no such graph has this number of nodes, the graph is not connected, or the file cannot be read.
    """
    import networkx as nx

    n = len(names)
    if n < 2:
        raise InvalidSettings(
            "[gossip] has a single node and so no neighbours to average with. Divide the data among more 'clients' in "
            "[partition]"
        )
    if n > MOST_NODES:
        raise InvalidSettings(
            f"[gossip] has {n:,} nodes, each with its own model to keep and to measure, and at most {MOST_NODES:,} "
            "are simulated; set fewer 'clients' in [partition]"
        )
    if settings.file is not None:
        graph = nx.Graph()
        graph.add_nodes_from(range(n))
        graph.add_edges_from(_edges_of(Path(settings.file), names))
    elif settings.graph == "random_regular":
        graph = _random_regular(settings.degree or 0, n, seed)
    else:
        graph = nx.complete_graph(n) if settings.graph == "complete" else nx.cycle_graph(n)
    if not nx.is_connected(graph):
        parts = sorted(nx.connected_components(graph), key=min)
        raise InvalidSettings(
            f"the graph of [gossip] in {settings.file} is not connected: it is in {len(parts):,} parts, and no edges "
            f"lead from node {names[min(parts[1])]} to node {names[min(parts[0])]}; add edges between the parts"
        )
    adjacent: NDArray[np.bool_] = nx.to_numpy_array(graph, range(n), dtype=np.bool_)
    return adjacent


def _random_regular(degree: int, n: int, seed: int) -> Graph:
    """Return a connected random graph of n nodes with an equal number of neighbours (Steger and Wormald 1999)."""
    import networkx as nx

    if degree >= n:
        raise InvalidSettings(
            f"[gossip] has degree = {degree:,}, and each of {n:,} nodes has at most {n - 1:,} neighbours; lower it"
        )
    if degree * n % 2:
        raise InvalidSettings(
            f"[gossip] has degree = {degree:,} for {n:,} nodes, and a graph can't have an odd number of both. Raise "
            "or lower 'degree' by one"
        )
    random = generator(seed, "graph")
    others = n - 1 - degree
    for _ in range(DRAWS):
        seed_of_graph = int(random.integers(2**31))
        # The complement of a regular graph is regular, and drawing a dense one takes long.
        graph = (
            nx.random_regular_graph(degree, n, seed_of_graph)
            if degree <= others
            else nx.complement(nx.random_regular_graph(others, n, seed_of_graph))
        )
        if nx.is_connected(graph):
            return graph
    raise InvalidSettings(
        f"[gossip]: none of {DRAWS} random graphs of {n:,} nodes with degree = {degree} was connected; raise 'degree' "
        'to 3 or more, or set graph = "ring"'
    )


def _edges_of(path: Path, names: Sequence[str]) -> Iterator[tuple[int, int]]:
    """Yield the edges of a CSV file, which begins with a line of :data:`COLUMNS`, as numbers of nodes."""
    number = {name: at for at, name in enumerate(names)}
    try:
        rows = list(csv.reader(path.read_text(encoding="utf-8-sig").splitlines()))
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        why = getattr(error, "strerror", None) or "it is not a CSV file in UTF-8"
        raise InvalidSettings(
            f"the file {path} of [gossip] cannot be read: {why}; give a CSV file with a first line "
            f"of {','.join(COLUMNS)}"
        ) from error
    if not rows or [each.strip() for each in rows[0]] != COLUMNS:
        raise InvalidSettings(
            f"the file {path} of [gossip] does not begin with the line {','.join(COLUMNS)}; put it above the edges"
        )
    for line, row in enumerate(rows[1:], 2):
        if not row:
            continue
        pair = [each.strip() for each in row]
        if len(pair) != 2:
            raise InvalidSettings(f"line {line} of {path} has {len(pair)} columns; give two nodes in each line")
        for name in pair:
            if name not in number:
                raise InvalidSettings(
                    f"line {line} of {path} names the node '{name}', and there is none; the {len(names):,} nodes are "
                    f"{names[0]}, {names[1]}{', ...' if len(names) > 2 else ''}"
                )
        if pair[0] == pair[1]:
            raise InvalidSettings(
                f"line {line} of {path} makes node {pair[0]} its own neighbour. Every node keeps a share of its own "
                "model, so remove the line"
            )
        yield number[pair[0]], number[pair[1]]


def mixing_votes(adjacent: NDArray[np.bool_]) -> FloatArray:
    """Return the Metropolis-Hastings weights W, multiplied by 1 + the largest number of neighbours, shape (n, n).

    This makes the weights exactly 1 on every edge of a regular graph, and a row is a mean weighted by votes. A node
    without neighbours keeps its own model.
    """
    degrees = adjacent.sum(axis=1)
    most = 1.0 + degrees.max(initial=0)
    votes: FloatArray = np.where(adjacent, most / (1.0 + np.maximum.outer(degrees, degrees)), 0.0)
    np.fill_diagonal(votes, most - votes.sum(axis=1))
    return votes


def spectral_gap(votes: FloatArray) -> float:
    """Return 1 - |λ₂| of the weights of :func:`mixing_votes`: 1 for a complete graph, 0 for an unconnected one."""
    with one_thread():
        values = np.linalg.eigvalsh(votes / votes.sum(axis=1, keepdims=True))
    return float(min(1.0, max(0.0, 1.0 - max(-values[0], values[-2]))))
