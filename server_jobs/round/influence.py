"""Influence of clients on the model: norms of updates, agreement of signs, and clients behind half of the pull.

A shard has a sketch of fixed size: sums of signs, and counts by bin. The bins are those of clipped norms
(`fedping.server_jobs.round.clipping`), 16 for each power of two. All entries are whole numbers, so sketches merge to
the same bits in any order. Data about single clients isn't kept.

The largest norm, the clipped share and the agreement are exact, except that shares are rounded to a millionth if a
client has several pings. A quantile of norms is at most a sixteenth above the norm that it estimates. The number of
clients behind half of the pull is accurate to a sixteenth of the pull.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedping.model_store.version import Influence
from fedping.protocol.link_ends import Sparse
from fedping.protocol.pipeline import MeanOfSigns, Pipeline
from fedping.protocol.study import Line
from fedping.protocol.upload import receiving
from fedping.server_jobs.optimize.transformation import Vector
from fedping.server_jobs.round.accumulator import Updates
from fedping.server_jobs.round.clipping import BINS, counted, edge

UNIT = 2.0**20
"""Weight of a client. It is a whole number, so that sums in doubles are exact for up to 2^33 clients."""

AT_ONCE = 2**15
"""Number of values that are processed at a time."""


@dataclass(frozen=True, slots=True)
class InfluenceSums:
    """Sums over updates. A client counts as :data:`UNIT`, divided among its pings.

    Attributes:
        norms: counts of clients by norm, without norms of zero, shape (BINS,).
        clients: count of all clients.
        longest: the largest norm.
        clipped: count of clients with updates above the bound.
        pulls: number of clients by pull, without pulls of zero, shape (BINS,).
        signs: count of clients that push a weight up minus count of clients that push it down, shape (m,).
        signed: count of clients that push a weight, summed over the weights.
    """

    norms: Vector
    clients: float
    longest: float
    clipped: float
    pulls: Vector
    signs: Vector
    signed: float


def needs_influence(line: Line) -> bool:
    """Return whether a line's rounds compute the influence of clients.

    They don't for private lines, or if an upload link can only be reversed on the sum of updates.
    """
    return line.privacy is None and not receiving(line).undone_once


def units(pings: NDArray[np.int64]) -> Vector:
    """Return each ping's weight, a whole number, shape (k,), given its client's number of used pings."""
    return np.rint(UNIT / np.maximum(pings, 1))


def signs_of(updates: Updates, counts: Vector) -> tuple[Vector, float]:
    """Return ``signs`` and ``signed`` of :class:`InfluenceSums` for updates, shape (k, m), and counts, shape (k,).

    The matrix product is exact in any order of summation, because all numbers are whole.
    """
    up, down = counts @ (updates > 0), counts @ (updates < 0)
    return up - down, float(up.sum() + down.sum())


def signs_of_few(updates: Sparse, counts: Vector, m: int) -> tuple[Vector, float]:
    """Return the exact result of :func:`signs_of` for sparse updates of m weights."""
    pushes = np.sign(updates.values) * counts[:, None]
    signs = np.bincount(updates.at.ravel(), pushes.ravel(), m).astype(np.float64, copy=False)
    return signs, float(np.abs(pushes).sum())


class UpdateFigures(NamedTuple):
    """The figures of a shard's k used updates.

    Attributes:
        norms: norms of the updates, shape (k,).
        counts: weights of the updates in counts of clients (:func:`units`), shape (k,).
        votes: votes of the updates, shape (k,).
        of: numbers of the updates' clients, from 0, shape (k,).
        signs: sums of the updates' signs (:func:`signs_of`).
    """

    norms: Vector
    counts: Vector
    votes: Vector
    of: NDArray[np.int64]
    signs: tuple[Vector, float]


def influence_sums(pipeline: Pipeline, bound: float | None, figures: UpdateFigures) -> InfluenceSums:
    """Return the influence of a shard's updates; ``bound`` is the norm at which they are clipped, or None."""
    norms, counts, votes, of, signs = figures
    if isinstance(pipeline.aggregate, MeanOfSigns):
        lengths = np.sign(norms)
    else:
        lengths = norms if bound is None else np.minimum(norms, bound)
    summed = np.bincount(of, votes * lengths)  # in the order of the pings, for the same bits everywhere
    pulls = np.asarray(summed, np.float64)
    return InfluenceSums(
        norms=_binned(norms, counts),
        clients=float(counts.sum()),
        longest=float(norms.max(initial=0.0)),
        clipped=0.0 if bound is None else float(counts[norms > bound].sum()),
        pulls=_binned(pulls, np.ones(len(pulls))),
        signs=signs[0],
        signed=signs[1],
    )


def _binned(values: Vector, counts: Vector) -> Vector:
    """Return the counts of values by bin, computed in parts that fit into the cache."""
    bins = np.zeros(BINS)
    for low in range(0, len(values), AT_ONCE):
        bins += counted(values[low : low + AT_ONCE], counts[low : low + AT_ONCE])
    return bins


def merged_pulls(a: InfluenceSums, b: InfluenceSums) -> InfluenceSums:
    """Return the sums over the updates of two partials, which are exact in any order."""
    return InfluenceSums(
        norms=a.norms + b.norms,
        clients=a.clients + b.clients,
        longest=max(a.longest, b.longest),
        clipped=a.clipped + b.clipped,
        pulls=a.pulls + b.pulls,
        signs=a.signs + b.signs,
        signed=a.signed + b.signed,
    )


def influence_of(seen: InfluenceSums, bound: float | None) -> Influence | None:
    """Return the influence of a round's clients; None without clients.

    Args:
        seen: the sums over all updates.
        bound: the norm at which updates were clipped; None without clipping.
    """
    if not seen.clients:
        return None
    low, middle, high = (_norm(seen, share) for share in (0.05, 0.5, 0.95))
    return Influence(
        norm_low=low,
        norm_median=middle,
        norm_high=high,
        norm_most=seen.longest,
        bound=bound,
        clipped=seen.clipped / seen.clients,
        agreement=float(np.abs(seen.signs).sum()) / seen.signed if seen.signed else None,
        half=_half(seen.pulls),
    )


def _norm(seen: InfluenceSums, share: float) -> float:
    """Return a norm that ``share`` of the clients don't exceed, at most a sixteenth above the smallest such norm."""
    cumulative = np.cumsum(seen.norms)
    rank = share * seen.clients - (seen.clients - cumulative[-1])  # clients without a bin sent zeros
    if rank <= 0:
        return 0.0
    return min(edge(int(np.searchsorted(cumulative, rank))), seen.longest)


def _half(pulls: Vector) -> int:
    """Return the smallest number of clients that together have half of the pull."""
    filled = np.flatnonzero(pulls)[::-1]
    if not len(filled):
        return 0
    middles = [(edge(int(number) - 1) + edge(int(number))) / 2 for number in filled]
    bins = list(zip(middles, pulls[filled].tolist(), strict=True))
    left = math.fsum(pull * count for pull, count in bins) / 2
    clients = 0
    for pull, count in bins:
        if left <= pull * count:
            return clients + math.ceil(left / pull)
        clients, left = clients + round(count), left - pull * count
    return clients


def in_words(seen: Influence, clients: int) -> str:
    """Return the influence of a round's clients as one line of text."""
    clipped = "" if seen.bound is None else f"{100 * seen.clipped:.1f} % clipped at {seen.bound:.3g}; "
    agreement = "" if seen.agreement is None else f"signs agree by {100 * seen.agreement:.0f} %; "
    new = "" if seen.new_clients is None else f"; about {seen.new_clients:,} clients are new"
    return (
        f"updates have norm {seen.norm_median:.3g} (median; 95 % up to {seen.norm_high:.3g}, maximum "
        f"{seen.norm_most:.3g}); {clipped}{agreement}half of the step comes from {seen.half:,} of {clients:,} "
        f"clients{new}"
    )
