"""One optimizer step: aggregated update in, new weights and state out.

Rounds over files use the aggregate of an engine. :class:`ArrayRound` aggregates arrays of updates.
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
from fedping.server_jobs.round.accumulator import Accumulator, Senders, Updates, partial_size, subkey, without_variance
from fedping.server_jobs.round.aggregations import accumulator_for
from fedping.server_jobs.round.clipping import bound_of, first_bound, has_to_measure, measuring, norms_of, units_of
from fedping.server_jobs.round.ping_filter import step_weights, votes_of
from fedping.server_jobs.round.shard import batch_rows


def apply_step(line: Line, weights: Vector, state: States, total: Any, key: bytes) -> tuple[Vector, States]:
    """Return the weights and the state after a round.

    This is the core of a round, without input and output.

    Args:
        line: the line.
        weights: the optimizer's doubles, shape (m,).
        state: the state from :func:`fedping.server_jobs.optimize.first_state`, :func:`state_of` or an earlier step.
        total: the total of the line's accumulator.
        key: the round's key, at least one byte; all randomness is derived from it.

    Raises:
        BrokenLink: a link raised an error, or returned an unusable result.
    """
    own = _name_of_state(line)
    finished = accumulator_for(line).finish(total, line, weights, state.get(own, {}), subkey(key, "accumulator"))
    with broken_if_failed():
        links = receiving(line)
        direction = links.undo_sum(line.spec, finished.direction)
    stepped, after = step_arrays(line, weights, state, direction)
    return stepped, {**after, own: finished.state}


def state_of(line: Line, version: Version) -> States:
    """Return a version's state for :func:`apply_step`: the chain's state and the accumulator's state.

    Raises:
        FedpingError: the state belongs to other links.
    """
    first, own = first_state(line), _name_of_state(line)
    kept = version.state.get(own, {}) if isinstance(version.state, dict) else {}
    return state_from_document(version.state, {**first, own: {name: np.array(v) for name, v in kept.items()}})


def next_clip_bound(line: Line, state: States) -> float | None:
    """Return the norm at which a round clips, given the state before it; None if the state has no bound."""
    return bound_of(state.get(_name_of_state(line), {}))


def _name_of_state(line: Line) -> str:
    """Return the name of the accumulator's state, unique among links."""
    return f"aggregation {link_name(line.pipeline.aggregate)}"


MOST_HELD_BYTES = 2**30
"""Maximum bytes of updates that a round in memory keeps if it has to read them twice."""


class _Batch(NamedTuple):
    """Updates of one shard, their votes, and further columns that the accumulator needs."""

    shard: int
    updates: Updates
    votes: Vector
    besides: dict[str, NDArray[Any] | Senders]


class ArrayRound:
    """A round in memory that merges updates like a round over files.

    It merges updates by client shard in bounded batches, and then the shards in order. The bits are the same as in a
    round over files if each block has the updates of one landed file, and blocks are added in the order of the files.

    Args:
        line: the line.
        state: the state after the previous round (:meth:`stepped`).
        shards: the number of shards of the clients (`fedping.protocol.landing`).
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
        self._shards: list[Any] = [None] * self._count  # None: nothing has arrived
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
        senders: Senders | None = None,
    ) -> None:
        """Add a block of updates.

        Args:
            shards: the shard of each update's client, shape (k,).
            updates: shape (k, m).
            examples: the number of examples of each update, shape (k,); updates without examples don't count.
            pings: the number of pings with examples that each update's client has in this round, shape (k,).
            clients: the client id of each update, shape (k, 16); needed by aggregations with one point per client.
            age: the age, in versions, of the weights behind all these updates; updates that are too old don't count.
            senders: the senders of the updates, of length k; needed by aggregations that ask for them.

        Raises:
            FedpingError: the line needs all updates at once, and there are too many.
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
        besides: dict[str, NDArray[Any] | Senders] = {}
        if "clients" in self._asks:
            assert clients is not None, "this aggregation needs the clients of the updates"
            besides["clients"] = np.ascontiguousarray(clients[order]).view("<u8")
        if "shares" in self._asks:
            besides["shares"] = 1.0 / np.maximum(pings, 1)
        if "senders" in self._asks:
            assert senders is not None, "this aggregation needs the senders of the updates"
            besides["senders"] = senders[order]
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
        """Return the weights and the state after a step with all added updates (:func:`apply_step`)."""
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
        partial = self._shards[batch.shard]
        before = without_variance(self._accumulator.init(self._line)) if partial is None else partial
        columns = {name: batch.besides[name] for name in self._accumulator.asks}
        self._shards[batch.shard] = self._accumulator.add(before, batch.updates, batch.votes, **columns)

    def _came(self) -> list[Any]:
        return [total for total in self._shards if total is not None]

    def _refuse_too_many(self, shard: int, more: int) -> None:
        self._sizes[shard] += more
        m = self._line.spec.m
        if self._measures and 4 * m * int(self._sizes.sum()) > MOST_HELD_BYTES:
            raise FedpingError(
                f'clip = {{ by = "quantile" }} keeps all updates of the first round in memory to measure them, at '
                f"most about {MOST_HELD_BYTES // (4 * m):,} of {m:,} weights. This round has more. Let fewer "
                'clients take part in a round, or set clip = { by = "norm", norm = ... }'
            )
        if self._room is not None and self._sizes[shard] > self._room:
            name = link_name(self._line.pipeline.aggregate)
            raise FedpingError(
                f"the aggregation '{name}' keeps all updates of a round in memory, at most about "
                f"{self._count * self._room:,} of {m:,} weights, and this round has more; let fewer clients take "
                'part in a round, or set aggregate = { by = "mean" }'
            )


def pieces_of(
    shards: NDArray[np.uint16], used: NDArray[np.bool_], size: int, count: int = SHARDS
) -> tuple[NDArray[np.intp], list[tuple[int, int, int]]]:
    """Return the used rows of a block by shard, and their batches: shard, start and end.

    Batches are those of a landed file with the block's rows and ``count`` shards. A small file is one row group,
    whose batches have all shards. In a larger file, each shard is a row group, or several shards share a row group.
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
