"""Accumulators, the incremental state of aggregation rules: the means, and parts for other rules.

An accumulator adds updates batch by batch, merges the partials of shards in their order, and finishes with one
direction for the optimizer. Rounds over files, on any engine, and rounds in memory use the same accumulators.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any, Generic, Literal, NamedTuple, Protocol, TypeAlias, TypeVar

import numpy as np
from numpy.typing import NDArray

from fedping.protocol.errors import InvalidSettings
from fedping.protocol.extensions import asks_for
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
"""Updates of shape (k, m). Don't change them in place, and keep only copies."""

MOST_KEPT_BYTES = 2**27
"""Maximum bytes of updates that a round keeps in all shards together, if its aggregation keeps updates.

This value must never change, because versions that left out pings are recomputed with it.
"""

A = TypeVar("A")

Asked: TypeAlias = Literal["clients", "shares", "norms", "arms", "documents", "senders"]


@dataclass(frozen=True, slots=True)
class Senders:
    """The senders of k updates, which are known only in the laboratory; pings don't contain these facts.

    Attributes:
        clients: indices of the clients among all clients of a run, shape (k,); never their ids.
        groups: numbers of the clients' natural keys in ascending order of the keys, from 0, shape (k,); -1 without a
            key.
        ages: ages, in versions, of the weights from which the clients learned, shape (k,).
        examples: the clients' numbers of examples, shape (k,).
        steps: numbers of local steps, shape (k,); NaN if the training doesn't report them.
        seconds: simulated seconds until the clients' answers, shape (k,); NaN, as for None, without a clock.
    """

    clients: NDArray[np.int64]
    groups: NDArray[np.int64]
    ages: NDArray[np.int64]
    examples: NDArray[np.int64]
    steps: NDArray[np.float64]
    seconds: NDArray[np.float64] | None = None

    def __post_init__(self) -> None:
        if self.seconds is None:
            object.__setattr__(self, "seconds", np.full(len(self.clients), np.nan))

    def __len__(self) -> int:
        return len(self.clients)

    def __getitem__(self, at: Any) -> Senders:
        return Senders(*(getattr(self, each.name)[at] for each in fields(Senders)))


def all_senders(parts: Sequence[Senders]) -> Senders:
    """Return the senders of several batches as one, in the order of the batches."""
    whole = np.zeros(0, np.int64)
    none = Senders(whole, whole, whole, whole, np.zeros(0))
    names = [each.name for each in fields(Senders)]
    return Senders(*(np.concatenate([getattr(part, name) for part in (none, *parts)]) for name in names))


@dataclass(frozen=True, slots=True)
class Finished:
    """The aggregated update: a direction of descent, shape (m,), and the accumulator's state for the next round."""

    direction: Vector
    state: Arrays = field(default_factory=dict)


class Accumulator(NamedTuple, Generic[A]):
    """The pure functions of an aggregation rule, and its limits.

    Attributes:
        init: returns the partial of a line without updates.
        add: adds a batch to a partial: updates of shape (k, m), k > 0, and their positive votes, shape (k,).
        merge: merges two partials. It is called in the order of the shards, so it needn't be commutative, and may be
            associative up to rounding only.
        finish: function from (merged partial, line, weights, state, key) to :class:`Finished`. ``weights`` are the
            weights on which the updates are based, shape (m,). ``state`` is the state from the previous round, empty in
            the first. ``key`` has 32 bytes that differ in every round and are the same when a version is recomputed;
            all randomness must be derived from them.
        moments: returns the moments for the lineage and the pages.
        room: returns the number of updates of length m that fit into one of :data:`SHARDS` shards, for a rule that
            keeps all updates; None for other rules. If there are more, the round leaves out some clients
            (`fedping.server_jobs.round.ping_filter`). With more shards, each has less room (:func:`partial_size`).
        asks: further arguments of ``add``, by keyword: ``clients``, the ids of the updates' clients, shape (k, 2);
            ``shares``, 1 / n for each update, shape (k,), where n is the number of its client's used pings in the
            round; ``norms``, the Euclidean norms of the updates in the units of the line's clip, shape (k,); ``arms``,
            the number of each update's arm among the arms that follow the line, shape (k,); ``documents``, the document
            ids of their pings as bytes, shape (k, 16); ``senders``, :class:`Senders`, which only rounds in memory have.
        add_few: adds sparse updates; None if the rule has no such function. A mean has the same bits with either
            function.
        of_all: the function of all updates that was passed to :func:`of_all`; None for other accumulators.
    """

    init: Callable[[Line], A]
    add: Callable[..., A]
    merge: Callable[[A, A], A]
    finish: Callable[[A, Line, Vector, Arrays, bytes], Finished]
    moments: Callable[[A], Moments]
    room: Callable[[int], int | None] = lambda _: None
    asks: tuple[Asked, ...] = ()
    add_few: Callable[[A, Sparse, Vector], A] | None = None
    of_all: OfAll | None = None


ACCUMULATORS: Makers[Callable[[Any], Accumulator[Any]]] = Makers()
"""Functions that create accumulators, by the type of their settings (`fedping.protocol.pipeline.Combination`)."""


@dataclass(frozen=True, slots=True)
class Moments:
    """Sum of the weights, weighted mean, shape (m,), and weighted sum of squared deviations from it, shape (m,).

    If only the mean is needed, ``m2`` has shape (0,).

    Moments are merged by the stable recurrence of thesis 7.2, which adds one update at a time:
    H' = H + (h - H) / (i + 1). Here, a weighted batch is added at a time; for batches of one update of weight 1, the
    formula is the same. No sum of updates extends over more than one bounded batch, so numbers don't grow with the
    pings.

    Source: thesis 7.2; Chan, Golub and LeVeque 1983 for the second moment.
    """

    weight: float
    mean: Vector
    m2: Vector


def no_moments(m: int) -> Moments:
    """Return the moments of no updates, the neutral element of :func:`merged`."""
    return Moments(0.0, np.zeros(m), np.zeros(m))


def without_variance(total: Any) -> Any:
    """Return an initial partial without squared deviations. All other results have the same bits.

    It is used for rounds in memory, which have no lineage.
    """
    if isinstance(total, WithMoments):
        return WithMoments(without_variance(total.moments), total.own)
    if isinstance(total, Clipped):
        return replace(total, own=without_variance(total.own))
    return Moments(total.weight, total.mean, np.zeros(0)) if isinstance(total, Moments) else total


def moments_of(values: NDArray[np.floating], weights: Vector, spread: bool = True) -> Moments:
    """Return the moments of one batch: ``values`` of shape (k, m), positive ``weights`` of shape (k,).

    ``spread`` says whether to compute the squared deviations.

    It uses element-wise products and sums over rows instead of a matrix product, whose order of summation, and thus
    last bits, depend on the processor and its threads.
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
    """Return the moments of a batch of sparse updates of m >= 2 weights; the mean has the bits of :func:`moments_of`.

    Nonzero values are summed in their order by ``bincount``. A zero's deviation is the mean itself.
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
    np.maximum(m2, 0.0, out=m2)  # without zeros, the votes' sum may exceed the total by a last bit
    m2 *= mean
    m2 *= mean
    m2 += _summed(at, apart, m)
    return Moments(total, mean, m2)


def _summed(at: NDArray[np.intp], values: NDArray[np.floating[Any]], m: int) -> Vector:
    """Return the sums of the values at each of m positions, shape (m,), added in the order of the values."""
    return np.bincount(at, values.ravel(), m).astype(np.float64, copy=False)


def merged(a: Moments, b: Moments) -> Moments:
    """Return the merged moments. Their last bits depend on the order of the arguments."""
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
    """Return the accumulator of the weighted mean of a function of updates that preserves their shape (k, m).

    ``of_zero`` is the function's value at zero.
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
    """Return the accumulator of the weighted mean of the updates' signs, whose sign is that of the majority."""
    if settings.zero == "up":
        return mean_of(lambda updates: np.where(updates < 0, np.float32(-1), np.float32(1)), of_zero=1)
    return mean_of(np.sign)


@dataclass(frozen=True, slots=True)
class Clipped(Generic[A]):
    """A partial of clipped updates (`fedping.server_jobs.round.clipping`).

    Attributes:
        bound: the norm at which updates are clipped; infinite for no clipping.
        norms: counts of clients by the bin of their norm, shape (bins,); shape (0,) if the clip is fixed.
        own: the partial of the inner accumulator.
    """

    bound: float
    norms: Vector
    own: A


@dataclass(frozen=True, slots=True)
class WithMoments(Generic[A]):
    """A partial sum together with the moments of its updates."""

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
    """Return an accumulator with these functions that also keeps the moments of the updates for the lineage."""
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


_Batch: TypeAlias = tuple[Kept, Senders | None]


class OfAll(Protocol):
    """A rule that needs all updates at once. Its arguments are those of an accumulator's ``finish``."""

    def __call__(self, kept: Kept, line: Line, weights: Vector, state: Arrays, key: bytes) -> Finished:
        """Return the direction and the next state. An extension may return only the direction."""
        ...


def of_all(finish: OfAll) -> Accumulator[WithMoments[Any]]:
    """Return an accumulator that keeps the updates in their order, up to :data:`MOST_KEPT_BYTES`.

    Args:
        finish: a function of (kept, line, weights, state, key). ``kept`` has all updates of the round, shape (k, m),
            and their votes, shape (k,); the other arguments are those of an accumulator's ``finish``. A function with
            an additional parameter ``senders`` gets the updates' :class:`Senders`, in the laboratory only.
    """
    none = Kept(np.zeros((0, 0), np.float32), np.zeros(0))

    def add(
        kept: tuple[_Batch, ...], updates: Updates, votes: Vector, senders: Senders | None = None
    ) -> tuple[_Batch, ...]:
        return (*kept, (Kept(np.array(updates, dtype=np.float32), votes), senders))

    def finished(batches: tuple[_Batch, ...], line: Line, weights: Vector, state: Arrays, key: bytes) -> Finished:
        empty = none._replace(updates=np.zeros((0, line.spec.m), np.float32))
        kept = Kept(*map(np.concatenate, zip(*([batch for batch, _ in batches] or [empty]), strict=True)))
        if not asks:
            return finish(kept, line, weights, state, key)
        senders = all_senders([each for _, each in batches if each is not None])
        return finish(kept, line, weights, state, key, senders=senders)  # type: ignore[call-arg]

    asks: tuple[Asked, ...] = ("senders",) if asks_for(finish, "senders") else ()
    made = with_moments(lambda _: (), add, lambda a, b: a + b, finished, room_for_all, asks)
    return made._replace(of_all=finish)


def room_for_all(m: int) -> int:
    """Return the number of updates of length m that fit into one of :data:`SHARDS` shards if all updates are kept."""
    return max(1, MOST_KEPT_BYTES // SHARDS // (4 * m))


def partial_size(accumulator: Accumulator[Any], line: Line, shards: int) -> int | None:
    """Return the number of updates that fit into one of ``shards`` shards; None if updates aren't kept.

    With more shards, each has less room, because the limit applies to the whole round.

    Raises:
        InvalidSettings: not a single update fits.
    """
    most = accumulator.room(line.spec.m)
    if most is None or shards == SHARDS:
        return most
    if most * SHARDS < shards:
        raise InvalidSettings(
            f"the aggregation '{link_name(line.pipeline.aggregate)}' of line '{line.name}' keeps all updates of a "
            f"round, and has room for {most * SHARDS:,} of {line.spec.m:,} weights: less than one for each of "
            f"{shards:,} shards. Set 'shards' to {max(SHARDS, 1 << ((most * SHARDS).bit_length() - 1))}, or remove it."
        )
    return most * SHARDS // shards


class Sent(NamedTuple):
    """Updates of shape (k, m), their votes, shape (k,), and the ids of their clients, shape (k, 2)."""

    updates: NDArray[np.float32]
    votes: Vector
    clients: NDArray[np.uint64]


def per_client(finish: OfAll, room: Callable[[int], int] = room_for_all) -> Accumulator[WithMoments[tuple[Sent, ...]]]:
    """Return an accumulator that keeps the updates, and finishes with one point for each client.

    Args:
        finish: as for :func:`of_all`, but ``kept.updates`` has one point per client, in the order of the ids: the
            weighted mean of the client's updates. ``kept.votes`` has the sums of their votes.
        room: the maximum number of updates of length m in a shard, if it is less than memory allows.
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
    """Return one point per client, in the order of the ids, with its votes. A client's only update is its point."""
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
    """Return a round's 32-byte key for one purpose. Keys for different purposes are independent."""
    return hashlib.blake2b(what.encode(), key=round_key[:64], digest_size=32).digest()
