"""Who moves the model: how long updates are, how far clients agree, and how few of them make up half of the step.

A shard comes to a sketch of fixed size, whatever has come: sums of signs, and counts by bin, which are those of the
norms that are clipped (`fedping.server_jobs.round.clipping`), each a sixteenth of a power of two wide. All of it is
whole numbers, so that sketches merge to the same bits in any order. Nothing of a single client is kept.

What is exact, and what is not: the largest norm, the share that is clipped and the agreement are exact, but that the
shares of a client's several pings are rounded to a millionth. A quantile of norms is at most a sixteenth above the norm
that it stands for. The clients that make up half of the pull do so give or take a sixteenth of it.
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
"""What a client counts: sums of whole numbers are exact in doubles, for up to 2^33 clients."""

AT_ONCE = 2**15
"""Numbers that are worked on at a time."""


@dataclass(frozen=True, slots=True)
class InfluenceSums:
    """What is seen of some updates; their clients count :data:`UNIT` each, shared out among their pings.

    Attributes:
        norms: of clients by norm, those of zero left out, shape (BINS,).
        clients: of all of them.
        longest: the largest norm.
        clipped: of those whose updates were longer than the bound.
        pulls: how many clients pull how much, those that do not left out, shape (BINS,).
        signs: of clients that push a weight up, less those that push it down, shape (m,).
        signed: of clients that push at all, summed over the weights.
    """

    norms: Vector
    clients: float
    longest: float
    clipped: float
    pulls: Vector
    signs: Vector
    signed: float


def needs_influence(line: Line) -> bool:
    """Return whether versions of a line tell who moved the model: not where single updates say nothing of themselves.

    That is so where an upload link is undone of their sum alone. Of a private line nobody looks.
    """
    return line.privacy is None and not receiving(line).undone_once


def units(pings: NDArray[np.int64]) -> Vector:
    """Return what each ping counts, whole numbers of shape (k,), where its client has so many in use."""
    return np.rint(UNIT / np.maximum(pings, 1))


def signs_of(updates: Updates, counts: Vector) -> tuple[Vector, float]:
    """Return :attr:`Pulls.signs` and :attr:`Pulls.signed` of updates of shape (k, m) that count so much, shape (k,).

    By a matrix product, which is exact here in whatever order it sums, since all of it is whole numbers.
    """
    up, down = counts @ (updates > 0), counts @ (updates < 0)
    return up - down, float(up.sum() + down.sum())


def signs_of_few(updates: Sparse, counts: Vector, m: int) -> tuple[Vector, float]:
    """Return :func:`signs_of` of updates most of whose m weights are zero; as exact."""
    pushes = np.sign(updates.values) * counts[:, None]
    signs = np.bincount(updates.at.ravel(), pushes.ravel(), m).astype(np.float64, copy=False)
    return signs, float(np.abs(pushes).sum())


class UpdateFigures(NamedTuple):
    """The figures of a shard's k used updates.

    Attributes:
        norms: their norms, shape (k,).
        counts: the weight of each in counts of clients (:func:`units`), shape (k,).
        votes: the vote of each, shape (k,).
        of: the client of each, whole numbers from 0, shape (k,).
        signs: the sums of their signs (:func:`signs_of`).
    """

    norms: Vector
    counts: Vector
    votes: Vector
    of: NDArray[np.int64]
    signs: tuple[Vector, float]


def influence_sums(pipeline: Pipeline, bound: float | None, figures: UpdateFigures) -> InfluenceSums:
    """Return the influence of a shard's updates; ``bound`` is the norm at which they are clipped, None if not."""
    norms, counts, votes, of, signs = figures
    if isinstance(pipeline.aggregate, MeanOfSigns):
        lengths = np.sign(norms)
    else:
        lengths = norms if bound is None else np.minimum(norms, bound)
    summed = np.bincount(of, votes * lengths)  # in the order of the pings, and so the same bits everywhere
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
    """Return how many there are by bin; some at a time, which the cache holds."""
    found = np.zeros(BINS)
    for low in range(0, len(values), AT_ONCE):
        found += counted(values[low : low + AT_ONCE], counts[low : low + AT_ONCE])
    return found


def merged_pulls(a: InfluenceSums, b: InfluenceSums) -> InfluenceSums:
    """Return what is seen of the updates of both; exact, in any order."""
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
    """Return what a round tells of who moved the model; None without any client.

    Args:
        seen: what is seen of all updates.
        bound: the norm at which the updates were clipped; None if they were not.
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
    """Return a norm that ``share`` of the clients do not exceed, at most a sixteenth above the least such."""
    reached = np.cumsum(seen.norms)
    wanted = share * seen.clients - (seen.clients - reached[-1])  # the others have updates of zero
    if wanted <= 0:
        return 0.0
    return min(edge(int(np.searchsorted(reached, wanted))), seen.longest)


def _half(pulls: Vector) -> int:
    """Return how many of those that pull most make up half of the pull."""
    there = np.flatnonzero(pulls)[::-1]
    if not len(there):
        return 0
    middles = [(edge(int(number) - 1) + edge(int(number))) / 2 for number in there]
    bins = list(zip(middles, pulls[there].tolist(), strict=True))
    left = math.fsum(pull * count for pull, count in bins) / 2
    clients = 0
    for pull, count in bins:
        if left <= pull * count:
            return clients + math.ceil(left / pull)
        clients, left = clients + round(count), left - pull * count
    return clients


def in_words(seen: Influence, clients: int) -> str:
    """Return in one line who moved the model in a round of so many clients."""
    clipped = "" if seen.bound is None else f"{100 * seen.clipped:.1f} % clipped at {seen.bound:.3g}; "
    agreement = "" if seen.agreement is None else f"signs agree by {100 * seen.agreement:.0f} %; "
    new = "" if seen.new_clients is None else f"; about {seen.new_clients:,} clients are new"
    return (
        f"updates are {seen.norm_median:.3g} long (median; 95 % up to {seen.norm_high:.3g}, longest "
        f"{seen.norm_most:.3g}); {clipped}{agreement}half of the step comes from {seen.half:,} of {clients:,} clients"
        f"{new}"
    )
