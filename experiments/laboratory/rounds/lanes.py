"""Plans of compiled rounds: for each lane, piece by piece, the examples to train on, as whole numbers.

Each lane trains one client after another. The longest clients come first, and a free lane takes the next client. So
clients of any size share one compilation, and few lanes wait. A step with many examples is cut into pieces, whose
gradients are added up. Clients and examples are drawn as by the NumPy engine.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedping.client_sim.learning.batch import NO_EXAMPLE, STEP_DRAWS, Examples, FloatArray
from fedping.client_sim.learning.mini_batches import divided, mini_batches, some
from fedping.client_sim.learning.networks.tree_model import words_of
from fedping.experiments.laboratory.rounds.compiling import NOBODY
from fedping.protocol.draws import Keys, child_keys
from fedping.protocol.training import LocalSteps, OneGradient

MOST_ROWS = 64
"""Maximum examples of a lane at a time; a larger step is several pieces."""

LEAST_ROWS = 8
"""Minimum examples of a lane at a time, unless a batch has fewer; a smaller piece costs as much as one of eight."""


@dataclass(frozen=True)
class Pieces:
    """The pieces of all steps of a round's clients, in the order of the steps, shape (p, ...) each.

    Attributes:
        client: the client's position in the round.
        rows: the examples' positions among all clients' examples, or NO_EXAMPLE; shape (p, B).
        share: 1 divided by the number of examples in the piece's step.
        apply: whether the piece is the last of its step.
        begins: whether the piece belongs to the client's first step.
        step: the number of the step, from 0.
        place: the position of the piece's first example in its step.
        phase: the phase of the training that the piece belongs to, from 0.
        key: the client's random key in this phase.
    """

    client: NDArray[np.intp]
    rows: NDArray[np.int32]
    share: FloatArray
    apply: NDArray[np.bool_]
    begins: NDArray[np.bool_]
    step: NDArray[np.int32]
    place: NDArray[np.int32]
    phase: NDArray[np.int32]
    key: Keys

    @classmethod
    def none(cls, width: int) -> Pieces:
        """Return an empty list of pieces of at most ``width`` examples."""
        none, no, nothing = np.zeros(0, np.int32), np.zeros(0, np.bool_), np.zeros(0)
        rows = np.zeros((0, width), np.int32)
        return cls(np.zeros(0, np.intp), rows, nothing, no, no, none, none, none, np.zeros(0, np.uint64))

    def only(self, those: NDArray[np.bool_]) -> Pieces:
        """Return the pieces selected by a mask of shape (p,)."""
        return Pieces(*(getattr(self, each.name)[those] for each in fields(self)))


@dataclass(frozen=True)
class Phase:
    """Steps of a training whose examples are drawn together.

    Attributes:
        training: the training that draws the examples; its rate is not used.
        child: index of the child of a client's key for the draws; None for the key itself.
        support: the share of the client's examples that is used; if negative, the other examples are used; None for
            all.
        division: index of the child of a client's key by which its examples are divided.
        is_fixed: whether all clients draw by the key 0 instead.
    """

    training: OneGradient | LocalSteps
    child: int | None = None
    support: float | None = None
    division: int = 0
    is_fixed: bool = False


@dataclass(frozen=True)
class Plan:
    """The work of the lanes in a round: T pieces one after another in each of L lanes, of at most B examples.

    Attributes:
        rows: the examples of a piece, shape (T, L, B), or NO_EXAMPLE.
        share: 1 divided by the number of examples in the piece's step, shape (T, L).
        begin: whether the piece is the first of its client, shape (T, L).
        apply: whether the piece is the last of its step, shape (T, L).
        client: the client's position in the round at its last piece, else :data:`NOBODY`; shape (T, L).
        votes: the client's votes at its last piece, else 0; shape (T, L).
        loss: the number of the client's examples in pieces of its first step, else 0; shape (T, L).
        words: the key of the piece's step, shape (T, L, 2); (T, L, 0) for a model without random draws in training.
        place: the position of the piece's first example in its step, shape (T, L).
        of: the client's row among the clients with a state, and the phase, shape (T, L, 2); (T, L, 0) for plain
            training.
        needed: the number of examples of all pieces.
    """

    rows: NDArray[np.int32]
    share: FloatArray
    begin: NDArray[np.bool_]
    apply: NDArray[np.bool_]
    client: NDArray[np.int32]
    votes: FloatArray
    loss: FloatArray
    words: NDArray[np.uint32]
    place: NDArray[np.int32]
    of: NDArray[np.int32]
    needed: int

    @property
    def columns(self) -> tuple[NDArray[Any], ...]:
        """The arrays with an entry for each piece."""
        column = (self.rows, self.share, self.begin, self.apply, self.client, self.votes, self.loss)
        return (*column, self.words, self.place, self.of)

    @property
    def computed(self) -> int:
        """The number of places for examples in all pieces, which are all computed."""
        return self.rows.size


def width_of(batch: int | None, sizes: NDArray[np.int64]) -> int:
    """Return the maximum number of examples of a piece, given the sizes of all clients.

    The last piece of a client wastes half a piece on average, so pieces are halved while that is more than a fifth of a
    client. Sizes that differ by the seed alone mostly lead to the same width.
    """
    longest, mean = int(sizes.max(initial=1)), float(sizes.mean()) if len(sizes) else 1.0
    width = max(1, min(batch or MOST_ROWS, rounded_up(longest), MOST_ROWS))
    while width >= 2 * LEAST_ROWS and longest > width and width / 2 > mean / 5:
        width = -(-width // 2)
    return width


def rounded_up(count: int) -> int:
    """Return ``count`` rounded up by at most a quarter, so that few different sizes occur."""
    count = max(count, 1)
    unit = max(1, (1 << (count - 1).bit_length()) // 8)
    return -(-count // unit) * unit


@dataclass(frozen=True)
class Members:
    """The k clients of a round and their examples among all clients' examples, which are stored client by client.

    Attributes:
        first: the row of each client's first example, shape (k,).
        sizes: each client's number of examples, shape (k,).
        keys: each client's key, shape (k,).
        votes: each client's votes, shape (k,).
        weight: the weights of all clients' examples.
    """

    first: NDArray[np.int64]
    sizes: NDArray[np.int64]
    keys: Keys
    votes: FloatArray
    weight: FloatArray

    def of_similar_size(self) -> Iterator[tuple[NDArray[np.intp], FloatArray]]:
        """Yield positions of clients whose sizes are at most a factor of two apart, and the weights of their examples.

        The weights are a rectangle, shape (clients, n), 0 for none.
        """
        order = np.argsort(self.sizes, kind="stable")
        order = order[self.sizes[order] > 0]
        while len(order):
            sizes = self.sizes[order]
            end = int(np.searchsorted(sizes, 2 * sizes[0], side="right"))
            at = order[:end]
            place = np.arange(int(sizes[end - 1]))
            there = place < sizes[:end, None]
            yield at, np.where(there, self.weight[np.where(there, self.first[at][:, None] + place, 0)], 0.0)
            order = order[end:]


def pieces_of(phases: Sequence[Phase], members: Members, width: int) -> Pieces:
    """Return the work of a round's clients, phase by phase, in pieces of at most ``width`` examples."""
    found = [
        (*part, np.full(len(part[0]), number, np.int32), keys[part[0]])
        for number, phase in enumerate(phases)
        for keys in [_keys_of(phase, members.keys)]
        for at, weight in members.of_similar_size()
        for part in _pieces(phase, keys[at], members.keys[at], weight, width, at, members.first[at], number == 0)
    ]
    if not found:
        return Pieces.none(width)
    return Pieces(*(np.concatenate(parts) for parts in zip(*found, strict=True)))


def _keys_of(phase: Phase, keys: Keys) -> Keys:
    """Return the clients' random keys in a phase."""
    if phase.is_fixed:
        return np.zeros_like(keys)
    return keys if phase.child is None else child_keys(keys, phase.child)


def _used(phase: Phase, keys: Keys, weight: FloatArray) -> NDArray[np.intp] | None:
    """Return the positions of the examples that a phase uses, shape (k, n), or NO_EXAMPLE; None for all."""
    if phase.support is None:
        return None
    positions = Examples(
        np.zeros((*weight.shape, 0)), np.broadcast_to(np.arange(weight.shape[1]), weight.shape), weight
    )
    parts = divided(positions, child_keys(keys, phase.division), abs(phase.support))
    part = parts[0 if phase.support > 0 else 1]
    return np.where(part.weight > 0, part.y, NO_EXAMPLE)


def _pieces(
    phase: Phase,
    keys: Keys,
    own: Keys,
    weight: FloatArray,
    width: int,
    at: NDArray[np.intp],
    first: NDArray[np.int64],
    is_first: bool,
) -> Iterator[tuple[NDArray[Any], ...]]:
    """Yield the columns of :class:`Pieces` for clients ``at`` of similar size, piece after piece.

    ``keys`` are the phase's, ``own`` the clients' own.
    """
    training, among = phase.training, _used(phase, own, weight)
    if among is not None:
        weight = (among != NO_EXAMPLE).astype(np.float64)
    everything = np.where(weight > 0, np.arange(weight.shape[1]), NO_EXAMPLE)
    taken: Iterable[NDArray[np.intp] | None]
    if isinstance(training, LocalSteps):
        taken = mini_batches(training, keys, weight)
    else:
        all_ = training.batch is None or training.batch >= weight.shape[1]
        taken = [None if all_ else some(keys, weight, training.batch or 0)]
    for number, each in enumerate(taken):
        step = everything if each is None else each
        if not step.shape[1]:
            continue
        there = step != NO_EXAMPLE
        if among is not None:
            step = np.where(there, np.take_along_axis(among, np.maximum(step, 0), axis=1), NO_EXAMPLE)
        share = 1.0 / np.maximum(there.sum(axis=1), 1)
        last = there.shape[1] - 1 - there[:, ::-1].argmax(axis=1)
        for low in range(0, step.shape[1], width):
            used = np.flatnonzero(there[:, low : low + width].any(axis=1))
            part = step[used, low : low + width]
            rows = np.full((len(used), width), NO_EXAMPLE, np.int32)
            rows[:, : part.shape[1]] = np.where(part == NO_EXAMPLE, NO_EXAMPLE, part + first[used, None])
            nth, place = (np.full(len(used), each, np.int32) for each in (number, low))
            yield at[used], rows, share[used], last[used] < low + width, (nth == 0) & is_first, nth, place


def planned(
    pieces: Pieces, members: Members, lanes: int, *, draws: bool = False, row: NDArray[np.intp] | None = None
) -> Plan:
    """Return the plan of a round.

    Args:
        pieces: the pieces of the clients' work.
        members: the clients.
        lanes: the number of lanes.
        draws: whether the model draws in training, by the keys of steps.
        row: each client's row among the clients with a state, shape (k,); None for plain training.
    """
    client = pieces.client
    lengths = np.bincount(client, minlength=len(members.sizes))
    lane_of, begins, trips = _laid(lengths, lanes)
    nth = _numbered(client)
    at = (begins[client] + nth, lane_of[client])
    ends = nth == lengths[client] - 1
    shape = (trips, lanes)
    made = Plan(
        np.full((*shape, pieces.rows.shape[1]), NO_EXAMPLE, np.int32),
        np.zeros(shape),
        np.zeros(shape, np.bool_),
        np.zeros(shape, np.bool_),
        np.full(shape, NOBODY),
        np.zeros(shape),
        np.zeros(shape),
        np.zeros((*shape, 2 * draws), np.uint32),
        np.zeros(shape, np.int32),
        np.zeros((*shape, 0 if row is None else 2), np.int32),
        int((pieces.rows != NO_EXAMPLE).sum()),
    )
    made.rows[at] = pieces.rows
    made.share[at] = pieces.share
    made.begin[at] = nth == 0
    made.apply[at] = pieces.apply
    made.client[at] = np.where(ends, client, NOBODY)
    made.votes[at] = np.where(ends, members.votes[client], 0.0)
    made.place[at] = pieces.place
    if draws:
        made.words[at] = words_of(child_keys(pieces.key, STEP_DRAWS + pieces.step.astype(np.int64)))
    if row is not None:
        made.of[at] = np.stack([row[client], pieces.phase], axis=1)
    made.loss[at] = np.where(pieces.begins, members.sizes[client], 0)
    return made


def joined(plans: Sequence[Plan]) -> Plan:
    """Return one plan of the same lanes that executes these plans one after another."""
    if len(plans) == 1:
        return plans[0]
    columns: list[Any] = [np.concatenate(parts) for parts in zip(*(plan.columns for plan in plans), strict=True)]
    columns.append(sum(plan.needed for plan in plans))
    return Plan(*columns)


def _numbered(client: NDArray[np.intp]) -> NDArray[np.intp]:
    """Return each number's count of earlier occurrences."""
    order = np.argsort(client, kind="stable")
    ordered = client[order]
    found = np.empty(len(client), np.intp)
    found[order] = np.arange(len(client)) - np.searchsorted(ordered, ordered, side="left")
    return found


def _laid(lengths: NDArray[np.intp], lanes: int) -> tuple[NDArray[np.intp], NDArray[np.intp], int]:
    """Return each client's lane and first place in it, given its number of pieces, and the longest lane's length."""
    longest_first = np.argsort(-lengths, kind="stable")
    lane_of, begins = np.zeros(len(lengths), np.intp), np.zeros(len(lengths), np.intp)
    if len(lengths) and lengths.min() == lengths.max():  # as below, without a heap
        nth = np.arange(len(lengths))
        lane_of[longest_first], begins[longest_first] = nth % lanes, nth // lanes * lengths[0]
        return lane_of, begins, int(-(-len(lengths) // lanes) * lengths[0])
    free = [(0, lane) for lane in range(lanes)]
    for client in longest_first[: np.count_nonzero(lengths)].tolist():
        begin, lane = heapq.heappop(free)
        lane_of[client], begins[client] = lane, begin
        heapq.heappush(free, (begin + int(lengths[client]), lane))
    return lane_of, begins, max(end for end, _ in free)
