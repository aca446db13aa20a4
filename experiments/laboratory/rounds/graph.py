"""Graphs of nodes that average among each other, their mixing weights, and how fast these mix.

The weights are those of Metropolis and Hastings (Boyd, Diaconis and Xiao 2004), where each node counts itself among
its neighbours (Xiao, Boyd and Lall 2005): node i takes of its neighbour j

    W_ij = 1 / (1 + max(d_i, d_j)),   and of itself   W_ii = 1 - Σ_j W_ij,

where d are the nodes' numbers of neighbours. Two neighbours agree on a weight by telling each other these numbers, and
W is symmetric and doubly stochastic: an exchange keeps the mean of all models. What is left of the distance from
it is at most |λ₂|, the second largest absolute eigenvalue of W, and 1 - |λ₂| is the spectral gap (Boyd et al. 2006).
"""

from __future__ import annotations

import csv
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from fedping.client_sim.data.seeds import generator
from fedping.client_sim.learning.batch import FloatArray
from fedping.client_sim.learning.blas import one_thread
from fedping.experiments.laboratory.settings.setup import Gossip
from fedping.protocol.errors import InvalidSettings

if TYPE_CHECKING:
    from networkx import Graph

MOST_NODES = 1_000
"""Nodes of a graph at most: each has a model, which is measured, and the gap takes all eigenvalues."""

DRAWS = 100
"""Random graphs that are drawn at most until one is connected: with a degree of 3 or more, the first mostly is."""

COLUMNS = ["node", "neighbour"]
"""The first line of a file of edges."""


def adjacency(settings: Gossip, names: Sequence[str], seed: int) -> NDArray[np.bool_]:
    """Return which nodes are neighbours, symmetric, shape (n, n); nobody is its own.

    Args:
        settings: say which graph.
        names: of the nodes, as a file has them, n of them.
        seed: a random graph follows from it.

    Raises:
        InvalidSettings: there is no such graph of so many nodes, it is not connected, or the file cannot be read.
    """
    import networkx as nx

    n = len(names)
    if n < 2:
        raise InvalidSettings(
            "[gossip] has a single node, which has nobody to average with; divide the data among more 'clients' in "
            "[partition]"
        )
    if n > MOST_NODES:
        raise InvalidSettings(
            f"[gossip] has {n:,} nodes, each with a model of its own to keep and to measure, and at most "
            f"{MOST_NODES:,} are simulated; set fewer 'clients' in [partition]"
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
    found: NDArray[np.bool_] = nx.to_numpy_array(graph, range(n), dtype=np.bool_)
    return found


def _random_regular(degree: int, n: int, seed: int) -> Graph:
    """Return a connected random graph of n nodes with so many neighbours each (Steger and Wormald 1999)."""
    import networkx as nx

    if degree >= n:
        raise InvalidSettings(
            f"[gossip] has degree = {degree:,}, and each of {n:,} nodes has at most {n - 1:,} neighbours; lower it"
        )
    if degree * n % 2:
        raise InvalidSettings(
            f"[gossip] has degree = {degree:,} for {n:,} nodes, and no graph has an odd number of both; raise or lower "
            "'degree' by one"
        )
    random = generator(seed, "graph")
    others = n - 1 - degree
    for _ in range(DRAWS):
        drawn = int(random.integers(2**31))
        # The complement of a regular graph is regular, and drawing a dense one takes long.
        found = (
            nx.random_regular_graph(degree, n, drawn)
            if degree <= others
            else nx.complement(nx.random_regular_graph(others, n, drawn))
        )
        if nx.is_connected(found):
            return found
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
        why = getattr(error, "strerror", None) or "it is no CSV file in UTF-8"
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
                f"line {line} of {path} makes node {pair[0]} its own neighbour, and a node keeps a share of its own "
                "model anyway; remove the line"
            )
        yield number[pair[0]], number[pair[1]]


def mixing_votes(adjacent: NDArray[np.bool_]) -> FloatArray:
    """Return the Metropolis-Hastings weights W times 1 + the largest number of neighbours, shape (n, n).

    So they are 1 on every edge of a regular graph, without rounding, and a row is a weighted mean by votes. A node
    without neighbours keeps its own model.
    """
    degrees = adjacent.sum(axis=1)
    most = 1.0 + degrees.max(initial=0)
    votes: FloatArray = np.where(adjacent, most / (1.0 + np.maximum.outer(degrees, degrees)), 0.0)
    np.fill_diagonal(votes, most - votes.sum(axis=1))
    return votes


def spectral_gap(votes: FloatArray) -> float:
    """Return 1 - |λ₂| of the weights that :func:`mixing_votes` returns: 1 for a complete graph, 0 for one in parts."""
    with one_thread():
        values = np.linalg.eigvalsh(votes / votes.sum(axis=1, keepdims=True))
    return float(min(1.0, max(0.0, 1.0 - max(-values[0], values[-2]))))
