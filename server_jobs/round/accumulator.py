"""What all the updates of a round come to: accumulators, and the plain ones; others are made of what is here.

An accumulator takes in updates batch by batch, merges what the shards came to, in their order, and finishes with one
direction for the optimizer. Rounds over files, on any engine, and rounds in memory drive the same one; nothing else
adds up updates.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, Generic, Literal, NamedTuple, Protocol, TypeAlias, TypeVar

import numpy as np
from numpy.typing import NDArray

from fedping.protocol.errors import InvalidSettings
from fedping.protocol.landing import SHARDS
from fedping.protocol.link_ends import Sparse
from fedping.protocol.makers import Makers
from fedping.protocol.pipeline import (
    Mean,
    MeanOfSigns,
)
from fedping.protocol.study import Line
from fedping.server_jobs.optimize.transformation import (
    Arrays,
    Vector,
    link_name,
)

Updates: TypeAlias = NDArray[np.floating[Any]]
"""Updates of shape (k, m); not to be changed, and to be copied by whoever keeps them."""

MOST_KEPT_BYTES = 2**27
"""Updates that a round keeps at most, all shards together, where it has to keep them.

Versions that left pings out are recomputed with it, so it may not change.
"""

A = TypeVar("A")

Asked: TypeAlias = Literal["clients", "shares", "norms", "arms", "documents"]


@dataclass(frozen=True, slots=True)
class Finished:
    """What a round ends with: a direction of descent, shape (m,), and what the accumulator remembers for the next."""

    direction: Vector
    state: Arrays = field(default_factory=dict)


class Accumulator(NamedTuple, Generic[A]):
    """Four pure functions, and two that say something of them.

    Attributes:
        init: returns what no updates of a line come to.
        add: takes in a batch: updates of shape (k, m), k > 0, and their votes, positive, of shape (k,).
        merge: returns what both came to. Called in the order of the shards, so it need not be commutative; associative
            only up to rounding.
        finish: from (what all came to, line, weights, state, key) to :class:`Finished`. ``weights`` are those of the
            version that the updates were made from, shape (m,); ``state`` is what it returned in the round before,
            empty in the first; ``key`` are 32 bytes that are others in every round, and the same when a version is
            computed again: whatever is random has to follow from them.
        moments: returns what the lineage and the pages tell of the updates.
        room: how many updates of length m a shard may have, for one that keeps them all; None if it does not. Of more,
            a round leaves some clients' out (`fedping.server_jobs.round.ping_filter`). That is one of :data:`SHARDS`
            shards; more have less room each (:func:`room_in`).
        asks: what ``add`` is given besides, by keyword: ``clients``, the ids of who has sent each update, shape (k, 2);
            ``shares``, 1 / n of each, shape (k,), where n counts its client's used pings in the round; ``norms``, the
            Euclidean norms of the updates in the units of the line's clip, shape (k,); ``arms``, the number of each
            one's arm among those that follow the line, shape (k,); ``documents``, the document ids of their pings as
            bytes, shape (k, 16).
        add_few: takes in updates of which few weights are not zero, in the place of ``add``; None if it cannot. The
            mean comes to the same bits either way.
    """

    init: Callable[[Line], A]
    add: Callable[..., A]
    merge: Callable[[A, A], A]
    finish: Callable[[A, Line, Vector, Arrays, bytes], Finished]
    moments: Callable[[A], Moments]
    room: Callable[[int], int | None] = lambda _: None
    asks: tuple[Asked, ...] = ()
    add_few: Callable[[A, Sparse, Vector], A] | None = None


ACCUMULATORS: Makers[Callable[[Any], Accumulator[Any]]] = Makers()
"""The function that makes an accumulator, by the type of its settings (`fedping.protocol.pipeline.Combination`)."""


@dataclass(frozen=True, slots=True)
class Moments:
    """The sum of the weights; the weighted mean, shape (m,); the weighted sum of squared deviations from it, (m,).

    For whoever asks for the mean alone, the last has shape (0,) and stays so.

    Partials that merge, by the stable recurrence of thesis 7.2: the thesis adds one update at a time,
    H' = H + (h - H) / (i + 1). Here a batch is added at a time, and every update has a weight; with batches of one
    update of weight 1 it is the same formula. The second moment follows along (Chan, Golub and LeVeque 1983). Nothing
    is ever summed over more than one bounded batch, so no number grows with the pings.
    """

    weight: float
    mean: Vector
    m2: Vector


def no_moments(m: int) -> Moments:
    """Return the moments of nothing, which leave what they are merged with as it is."""
    return Moments(0.0, np.zeros(m), np.zeros(m))


def without_variance(total: Any) -> Any:
    """Return what an accumulator begins with, so that no squared deviations are worked out where nobody looks at them.

    Everything else keeps its bits. For rounds in memory, which leave no lineage.
    """
    if isinstance(total, WithMoments):
        return WithMoments(without_variance(total.moments), total.own)
    if isinstance(total, Clipped):
        return replace(total, own=without_variance(total.own))
    return Moments(total.weight, total.mean, np.zeros(0)) if isinstance(total, Moments) else total


def moments_of(values: NDArray[np.floating], weights: Vector, spread: bool = True) -> Moments:
    """Return the moments of one batch: ``values`` of shape (k, m), positive ``weights`` of shape (k,).

    ``spread`` tells whether the squared deviations are wanted.

    Only element-wise products and sums down the rows: no matrix product, whose order of summation, and so the last bit
    of the result, would depend on the processor and on its threads.
    """
    if len(values) == 0:
        return no_moments(values.shape[1])
    column = weights[:, None]
    work = values * column  # float64, since the weights are
    total = float(weights.sum())
    mean = np.add.reduce(work, axis=0)
    mean /= total
    if not spread:
        return Moments(total, mean, np.zeros(0))
    np.subtract(values, mean, out=work)
    np.multiply(work, work, out=work)
    np.multiply(work, column, out=work)
    return Moments(total, mean, work.sum(axis=0))


def moments_of_few(updates: Sparse, m: int, weights: Vector, spread: bool = True) -> Moments:
    """Return the moments of one batch of updates most of whose m weights, two at least, are zero.

    The mean has the bits that :func:`moments_of` comes to.

    Those that have a weight are summed up in their order, by ``bincount``; the others deviate by the mean itself.
    """
    at, votes = updates.at.ravel(), weights[:, None]
    total = float(weights.sum())
    mean = _summed(at, updates.values * votes, m)
    mean /= total
    if not spread:
        return Moments(total, mean, np.zeros(0))
    apart = updates.values - mean[updates.at]
    np.multiply(apart, apart, out=apart)
    np.multiply(apart, votes, out=apart)
    m2 = _summed(at, np.broadcast_to(votes, updates.at.shape), m)
    np.subtract(total, m2, out=m2)
    np.maximum(m2, 0.0, out=m2)  # where all have a weight, their votes may sum up to a last bit more
    m2 *= mean
    m2 *= mean
    m2 += _summed(at, apart, m)
    return Moments(total, mean, m2)


def _summed(at: NDArray[np.intp], values: NDArray[np.floating[Any]], m: int) -> Vector:
    """Return the sums of the values at each of m places, shape (m,), each in the order of the values."""
    return np.bincount(at, values.ravel(), m).astype(np.float64, copy=False)


def merged(a: Moments, b: Moments) -> Moments:
    """Return the moments of both; exact in the counts, and in the order of the arguments in the last bit."""
    if a.weight == 0:
        return b
    if b.weight == 0:
        return a
    weight = a.weight + b.weight
    apart = b.mean - a.mean
    share = b.weight / weight
    m2 = a.m2 + b.m2 + apart * apart * (a.weight * share) if a.m2.size else a.m2
    apart *= share
    apart += a.mean
    return Moments(weight, apart, m2)


def mean_of(contribution: Callable[[Updates], Updates], *, of_zero: int = 0) -> Accumulator[Moments]:
    """Return the accumulator of the weighted mean of what updates contribute, each of shape (k, m) like them.

    ``of_zero`` is what a zero contributes.
    """

    def add(total: Moments, updates: Updates, votes: Vector) -> Moments:
        return merged(total, moments_of(contribution(updates), votes, total.m2.size > 0))

    def add_few(total: Moments, updates: Sparse, votes: Vector) -> Moments:
        few = replace(updates, values=contribution(updates.values))
        return merged(total, moments_of_few(few, len(total.mean), votes, total.m2.size > 0))

    return Accumulator(
        init=lambda line: no_moments(line.spec.m),
        add=add,
        merge=merged,
        finish=lambda total, *_: Finished(total.mean),
        moments=lambda total: total,
        add_few=None if of_zero else add_few,
    )


@ACCUMULATORS.of(Mean)
def mean(_: Mean) -> Accumulator[Moments]:
    """Return the accumulator of the weighted mean of the updates (thesis 7.2)."""
    return mean_of(lambda updates: updates)


@ACCUMULATORS.of(MeanOfSigns)
def mean_of_signs(settings: MeanOfSigns) -> Accumulator[Moments]:
    """Return the accumulator of the weighted mean of their signs, whose own sign is what most votes say."""
    if settings.zero == "up":
        return mean_of(lambda updates: np.where(updates < 0, np.float32(-1), np.float32(1)), of_zero=1)
    return mean_of(np.sign)


@dataclass(frozen=True, slots=True)
class Clipped(Generic[A]):
    """What an accumulator came to of updates that were clipped (`fedping.server_jobs.round.clipping`).

    Attributes:
        bound: the largest norm that was let through; infinite for all.
        norms: how many clients had an update of which norm, by bin, shape (bins,); shape (0,) where nobody asks.
        own: what the accumulator came to.
    """

    bound: float
    norms: Vector
    own: A


@dataclass(frozen=True, slots=True)
class WithMoments(Generic[A]):
    """What an accumulator came to, and the moments of the updates beside it."""

    moments: Moments
    own: A


def with_moments(
    init: Callable[[Line], A],
    add: Callable[..., A],
    merge: Callable[[A, A], A],
    finish: Callable[[A, Line, Vector, Arrays, bytes], Finished],
    room: Callable[[int], int | None] = lambda _: None,
    asks: tuple[Asked, ...] = (),
) -> Accumulator[WithMoments[A]]:
    """Return the accumulator of these functions, beside which the moments of the updates are kept for the lineage."""
    return Accumulator(
        init=lambda line: WithMoments(no_moments(line.spec.m), init(line)),
        add=lambda total, updates, votes, **asked: WithMoments(
            merged(total.moments, moments_of(updates, votes, total.moments.m2.size > 0)),
            add(total.own, updates, votes, **asked),
        ),
        merge=lambda a, b: WithMoments(merged(a.moments, b.moments), merge(a.own, b.own)),
        finish=lambda total, line, weights, state, key: finish(total.own, line, weights, state, key),
        moments=lambda total: total.moments,
        room=room,
        asks=asks,
    )


class Kept(NamedTuple):
    """Updates of shape (k, m), and their votes, shape (k,)."""

    updates: NDArray[np.float32]
    votes: Vector


class OfAll(Protocol):
    """What makes a direction of all the updates at once; the arguments are those of :class:`Accumulator`'s finish."""

    def __call__(self, kept: Kept, line: Line, weights: Vector, state: Arrays, key: bytes) -> Finished:
        """Return the direction and the next state; of an extension, the direction alone will do."""
        ...


def of_all(finish: OfAll) -> Accumulator[WithMoments[tuple[Kept, ...]]]:
    """Return an accumulator that keeps the updates, in the order in which they came, within :data:`MOST_KEPT_BYTES`.

    Args:
        finish: a function of (kept, line, weights, state, key): ``kept.updates``, shape (k, m), and ``kept.votes``,
            shape (k,), are all of the round; the others are those of an accumulator's ``finish``.
    """

    def add(kept: tuple[Kept, ...], updates: Updates, votes: Vector) -> tuple[Kept, ...]:
        return (*kept, Kept(np.array(updates, dtype=np.float32), votes))

    def finished(kept: tuple[Kept, ...], line: Line, weights: Vector, state: Arrays, key: bytes) -> Finished:
        none = Kept(np.zeros((0, line.spec.m), np.float32), np.zeros(0))
        return finish(Kept(*map(np.concatenate, zip(*(kept or [none]), strict=True))), line, weights, state, key)

    return with_moments(lambda _: (), add, lambda a, b: a + b, finished, room_for_all)


def room_for_all(m: int) -> int:
    """Return how many updates of length m one of :data:`SHARDS` shards has room for where all are kept."""
    return max(1, MOST_KEPT_BYTES // SHARDS // (4 * m))


def partial_size(accumulator: Accumulator[Any], line: Line, shards: int) -> int | None:
    """Return how many updates one of so many shards has room for; None if the accumulator keeps none.

    More shards have less room each: what a round keeps in all stays the same.

    Raises:
        InvalidSettings: there is not room for one.
    """
    most = accumulator.room(line.spec.m)
    if most is None or shards == SHARDS:
        return most
    if most * SHARDS < shards:
        raise InvalidSettings(
            f"the aggregation '{link_name(line.pipeline.aggregate)}' of line '{line.name}' keeps all the updates of a "
            f"round, and has room for {most * SHARDS:,} of {line.spec.m:,} weights, which is not one in each of "
            f"{shards:,} shards; set 'shards' to {max(SHARDS, 1 << ((most * SHARDS).bit_length() - 1))}, or leave it "
            "out"
        )
    return most * SHARDS // shards


class Sent(NamedTuple):
    """Updates of shape (k, m), their votes, shape (k,), and the ids of their clients, shape (k, 2)."""

    updates: NDArray[np.float32]
    votes: Vector
    clients: NDArray[np.uint64]


def per_client(finish: OfAll, room: Callable[[int], int] = room_for_all) -> Accumulator[WithMoments[tuple[Sent, ...]]]:
    """Return an accumulator that keeps the updates, and ends with one point a client.

    Args:
        finish: as for :func:`of_all`, but that ``kept.updates`` are points, one a client in the order of the ids: the
            mean of its updates by their votes. ``kept.votes`` are the sums of these.
        room: how many updates of length m a shard may have, if that is less than there is memory for.
    """

    def add(sent: tuple[Sent, ...], updates: Updates, votes: Vector, clients: NDArray[np.uint64]) -> tuple[Sent, ...]:
        return (*sent, Sent(np.array(updates, dtype=np.float32), votes, clients))

    def finished(sent: tuple[Sent, ...], line: Line, weights: Vector, state: Arrays, key: bytes) -> Finished:
        if not sent:
            return Finished(np.zeros(line.spec.m), state)
        return finish(points_of(*map(np.concatenate, zip(*sent, strict=True))), line, weights, state, key)

    return with_moments(
        lambda _: (), add, lambda a, b: a + b, finished, lambda m: min(room(m), room_for_all(m)), ("clients",)
    )


def points_of(updates: NDArray[np.float32], votes: Vector, clients: NDArray[np.uint64]) -> Kept:
    """Return one point a client in the order of the ids, and its votes; who has sent one update has it for a point."""
    order = np.lexsort((clients[:, 1], clients[:, 0]))
    updates, votes, clients = updates[order], votes[order], clients[order]
    first = np.concatenate([[True], (clients[1:] != clients[:-1]).any(axis=1)])
    if first.all():
        return Kept(updates, votes)
    starts = np.flatnonzero(first)
    sums = np.add.reduceat(votes, starts)
    shares = votes / np.repeat(sums, np.diff(starts, append=len(votes)))
    means = np.add.reduceat(updates * shares[:, None], starts, axis=0)
    return Kept(means.astype(np.float32), sums)


def subkey(round_key: bytes, what: str) -> bytes:
    """Return a round's key for one use, 32 bytes; nobody can tell it from one for another use."""
    return hashlib.blake2b(what.encode(), key=round_key[:64], digest_size=32).digest()
