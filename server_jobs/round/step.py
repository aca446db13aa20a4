"""One step of a line on arrays: from what the updates of a round came to, to the next weights and state.

Rounds over files do it with what an engine has accumulated. :class:`ArrayRound` accumulates updates that are arrays.
"""

from __future__ import annotations

from functools import reduce
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedping.model_store.version import Version
from fedping.protocol.errors import FedpingError
from fedping.protocol.landing import SHARDS, groups_for
from fedping.protocol.study import Line
from fedping.protocol.upload import receiving
from fedping.server_jobs.optimize import first_state, state_from_document, step_arrays
from fedping.server_jobs.optimize.transformation import States, Vector, broken_if_failed, link_name
from fedping.server_jobs.round.accumulator import (
    Accumulator,
    Updates,
    accumulator_for,
    partial_size,
    subkey,
    without_variance,
)
from fedping.server_jobs.round.clipping import bound_of, first_bound, has_to_measure, measuring, norms_of, units_of
from fedping.server_jobs.round.ping_filter import step_weights, votes_of
from fedping.server_jobs.round.shard import batch_rows


def apply_step(line: Line, weights: Vector, state: States, total: Any, key: bytes) -> tuple[Vector, States]:
    """Return the weights and the state that follow from a round; pure, and the whole of it.

    Args:
        line: says how.
        weights: the optimizer's doubles, shape (m,).
        state: as :func:`fedping.server_jobs.optimize.first_state`, :func:`state_of` or an earlier step returned it.
        total: what the line's accumulator came to.
        key: the round's own, at least one byte; whatever is random follows from it.

    Raises:
        BrokenLink: a link raised an error, or returned what cannot be used.
    """
    own = _name_of_state(line)
    found = accumulator_for(line).finish(total, line, weights, state.get(own, {}), subkey(key, "accumulator"))
    with broken_if_failed():
        links = receiving(line)
        direction = links.undo_sum(line.spec, found.direction)
    there, after = step_arrays(line, weights, state, direction)
    return there, {**after, own: found.state}


def state_of(line: Line, version: Version) -> States:
    """Return the state that a version keeps, for :func:`stepped`: that of the chain and that of the accumulator.

    Raises:
        FedpingError: it is that of other links.
    """
    first, own = first_state(line), _name_of_state(line)
    kept = version.state.get(own, {}) if isinstance(version.state, dict) else {}
    return state_from_document(version.state, {**first, own: {name: np.array(v) for name, v in kept.items()}})


def next_clip_bound(line: Line, state: States) -> float | None:
    """Return the norm that a line's state has for this round to clip at; None if there is none, or no need for one."""
    return bound_of(state.get(_name_of_state(line), {}))


def _name_of_state(line: Line) -> str:
    """Return under which name the accumulator's state is kept, which no other link can have."""
    return f"aggregation {link_name(line.pipeline.aggregate)}"


MOST_HELD_BYTES = 2**30
"""Updates that a round in memory holds at most where it has to look at them twice."""


class _Batch(NamedTuple):
    """Some updates of one shard, their votes, and what an accumulator may ask for besides."""

    shard: int
    updates: Updates
    votes: Vector
    besides: dict[str, NDArray[Any]]


class ArrayRound:
    """A round in memory: it merges updates as a round over files does, without a file.

    That is by client shard, in bounded batches, the shards in order. If every block of updates is what a landed file
    would hold, and the blocks come in the order of the files, the bits are the same.

    Args:
        line: says how.
        state: what the rounds before have left, as :func:`stepped` returned it.
        shards: into how many the clients are divided (`fedping.protocol.landing`).
    """

    def __init__(self, line: Line, state: States | None = None, shards: int = SHARDS) -> None:
        self._line, self._count = line, shards
        self._held: list[_Batch] = []
        bound = next_clip_bound(line, state or {})
        self._measures = has_to_measure(line, bound)
        accumulator = accumulator_for(line, bound)
        self._begin(measuring() if self._measures else accumulator)
        self._room, self._asks = partial_size(accumulator, line, shards), accumulator.asks

    def _begin(self, accumulator: Accumulator[Any]) -> None:
        self._accumulator = accumulator
        self._shards: list[Any] = [None] * self._count  # of which nothing has come
        self._sizes = np.zeros(self._count, np.int64)

    def add(
        self,
        shards: NDArray[np.uint16],
        updates: NDArray[np.float32],
        *,
        examples: NDArray[np.int64],
        pings: NDArray[np.int64],
        clients: NDArray[np.uint8] | None = None,
        age: int = 0,
    ) -> None:
        """Take in a block of updates.

        Args:
            shards: of the client of each, shape (k,).
            updates: shape (k, m).
            examples: from how many each was computed, shape (k,); one of none does not count.
            pings: how many with examples its client sends in this round, shape (k,).
            clients: the id of the client of each, shape (k, 16); needed where a client is one point.
            age: how many versions old the weights were that they were computed at; too old ones do not count.

        Raises:
            FedpingError: the line needs all updates at once, and these are too many.
        """
        staleness = self._line.pipeline.staleness
        if age > (staleness.most if staleness else 0):
            return
        order, pieces = pieces_of(shards, examples > 0, batch_rows(self._line.spec.m), self._count)
        updates, examples, pings = updates[order], examples[order], pings[order]
        ages = np.full(len(order), age)
        votes = votes_of(self._line.pipeline, pings=pings, examples=examples, ages=ages)
        steps = step_weights(self._line.pipeline, ages)
        weighted = updates if steps is None else updates * steps[:, None]
        besides: dict[str, NDArray[Any]] = {}
        if "clients" in self._asks:
            assert clients is not None, "this aggregation has to know whose the updates are"
            besides["clients"] = np.ascontiguousarray(clients[order]).view("<u8")
        if "shares" in self._asks:
            besides["shares"] = 1.0 / np.maximum(pings, 1)
        if "norms" in self._asks:
            besides["norms"] = norms_of(weighted, units_of(self._line))
        for shard, low, high in pieces:
            some = {name: column[low:high] for name, column in besides.items()}
            self._refuse_too_many(shard, high - low)
            batch = _Batch(shard, weighted[low:high], votes[low:high], some)
            if self._measures:
                self._held.append(batch)
            self._take(batch)

    def stepped(self, weights: Vector, state: States, key: bytes) -> tuple[Vector, States]:
        """Return what follows from all that was added; see :func:`stepped`."""
        if self._measures:
            bound = first_bound(self._line, self._came())
            self._begin(accumulator_for(self._line, bound))
            self._measures = False
            for batch in self._held:
                self._sizes[batch.shard] += len(batch.votes)
                self._take(batch)
            self._held = []
        total = reduce(self._accumulator.merge, self._came(), without_variance(self._accumulator.init(self._line)))
        return apply_step(self._line, weights, state, total, key)

    def _take(self, batch: _Batch) -> None:
        there = self._shards[batch.shard]
        before = without_variance(self._accumulator.init(self._line)) if there is None else there
        given = {name: batch.besides[name] for name in self._accumulator.asks}
        self._shards[batch.shard] = self._accumulator.add(before, batch.updates, batch.votes, **given)

    def _came(self) -> list[Any]:
        return [total for total in self._shards if total is not None]

    def _refuse_too_many(self, shard: int, more: int) -> None:
        self._sizes[shard] += more
        m = self._line.spec.m
        if self._measures and 4 * m * int(self._sizes.sum()) > MOST_HELD_BYTES:
            raise FedpingError(
                f'clip = {{ by = "quantile" }} measures the updates of the first round before it takes them, which has '
                f"room in memory for about {MOST_HELD_BYTES // (4 * m):,} of {m:,} weights, and there are more; let "
                'fewer clients take part in a round, or set clip = { by = "norm", norm = ... }'
            )
        if self._room is not None and self._sizes[shard] > self._room:
            name = link_name(self._line.pipeline.aggregate)
            raise FedpingError(
                f"the aggregation '{name}' keeps all the updates of a round in memory, which has room for about "
                f"{self._count * self._room:,} of {m:,} weights, and there are more; let fewer clients take part in a "
                'round, or set aggregate = { by = "mean" }'
            )


def pieces_of(
    shards: NDArray[np.uint16], used: NDArray[np.bool_], size: int, count: int = SHARDS
) -> tuple[NDArray[np.intp], list[tuple[int, int, int]]]:
    """Return the used rows of a block by shard, and their batches: the shard, the first and one past the last of them.

    They are as in a landed file of the block, of ``count`` shards. A small file is one row group, in whose batches all
    shards are; of a larger one each shard is a row group, or some of them are one.
    """
    order = np.argsort(shards, kind="stable")
    of = shards[order]
    if (groups := groups_for(len(shards), count)) > 1:
        group = shards // (count // groups)
        laid = order if groups == count else np.argsort(group, kind="stable")
        at = np.empty(len(shards), np.intp)
        at[laid] = np.arange(len(shards)) - np.searchsorted(group[laid], np.arange(groups))[group[laid]]
        batch = at[order] // size
    elif len(shards) > size:
        batch = order // size
    else:
        batch = np.zeros(len(of), np.intp)
    if not used.all():
        kept = used[order]
        order, of, batch = order[kept], of[kept], batch[kept]
    bounds = np.flatnonzero((of[1:] != of[:-1]) | (batch[1:] != batch[:-1])) + 1
    firsts = [0, *bounds.tolist(), len(order)] if len(order) else []
    return order, [(int(of[low]), low, high) for low, high in pairwise(firsts)]
