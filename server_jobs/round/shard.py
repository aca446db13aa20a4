"""From landed files to shard partials: the work of one task, pure but for reading, and the same in every engine.

Two passes. The first reads all but the updates and decides which pings count and how much, shard by shard. The second
streams the updates in bounded batches into the recurrence. However many rows a file has, and however few bytes these
take there, a bounded number of them is kept. Rows are taken in the order of (file, row) and in batches
whose size depends on the number of weights alone, so a shard comes to the same bits whoever computes it, beside
whichever other shards.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from fedping.protocol.encodings.payloads import payload_lengths
from fedping.protocol.errors import FedpingError
from fedping.protocol.landed_file import UnreadableFile
from fedping.protocol.landing import SHARDS, shard_of
from fedping.protocol.link_ends import Decoded, Sparse
from fedping.protocol.study import Line
from fedping.protocol.upload import Receiving
from fedping.server_jobs.optimize.transformation import broken_if_failed
from fedping.server_jobs.round.accumulator import Updates, partial_size
from fedping.server_jobs.round.aggregate import ShardPartial, aged, arm_partials, counted, partial_bytes
from fedping.server_jobs.round.aggregations import accumulator_for
from fedping.server_jobs.round.clipping import limit, measuring, norms_of, units_of
from fedping.server_jobs.round.influence import (
    InfluenceSums,
    UpdateFigures,
    influence_sums,
    signs_of,
    signs_of_few,
    units,
)
from fedping.server_jobs.round.new_clients import registers_of
from fedping.server_jobs.round.ping_file import PingFile, Rows, joined, open_ping_file
from fedping.server_jobs.round.ping_filter import (
    BAD_UPDATE,
    ONE,
    OVER_CAPACITY,
    USED,
    capped_clients,
    clients_of,
    reasons,
    step_weights,
    thinned,
    vote_weights,
)
from fedping.server_jobs.round.plan import ROWS_PER_TASK, LateFile, Rules

BATCH_BYTES = 2**20
"""Doubles decoded at a time: what the second-level cache of a small processor holds."""

LEAST_BATCH = 64
"""Updates decoded at a time at least, since a merge costs the same for one as for many; within the next bound."""

MOST_BYTES = 2**26
"""Doubles decoded at a time at most, unless a single update has more."""

MOST_HELD_BYTES = 2**26
"""Of small files in a bucket, which came with their footers, a task holds so much at most, and reads the rest again."""

FEW = 8
"""Of updates that have one weight of so many, or fewer, zeros are not written out; of more it would be no quicker.

Versions are recomputed with it, so it may not change.
"""

MOST_ROWS = ROWS_PER_TASK
"""Rows of a shard that are kept at most; of more, some clients' are left out (`fedping.server_jobs.round.ping_filter`).

Versions that left pings out are recomputed with it, so it may not change, nor may `accumulator.MOST_KEPT_BYTES`.
"""

TOTALS_BYTES = 2**28
"""What the shards that a task works on at a time come to at most, unless :data:`SHARDS` of them are more."""

MOST_ROWS_A_TASK = 2 * ROWS_PER_TASK
"""Rows of several shards that a task keeps at most; of more, it reads one half of its shards after the other."""


@dataclass(frozen=True, slots=True)
class Piece:
    """The rows of one shard in one row group.

    ``order`` is the number of the file, and of the row group there. ``positions`` is where they are in this, ascending;
    None if they are all of it. ``start`` is where they begin among the shard's rows, ``count`` how many they are.
    """

    shard: int
    file: PingFile
    order: tuple[int, int]
    positions: NDArray[np.intp] | None
    start: int
    count: int

    @property
    def group(self) -> int:
        """The number of the row group."""
        return self.order[1]

    def between(self, low: int, high: int) -> tuple[int, int]:
        """Return which of the piece's rows lie at [low, high) of the row group: first and one past the last."""
        if self.positions is None:
            return low, high
        first, last = np.searchsorted(self.positions, (low, high))
        return int(first), int(last)


def batch_rows(m: int) -> int:
    """Return how many updates of length m are decoded at a time."""
    return max(BATCH_BYTES // (8 * m), min(LEAST_BATCH, MOST_BYTES // (8 * m)), 1)


def shard_partials(
    paths: Sequence[str],
    shards: Iterable[int],
    rules: Rules,
    late: Sequence[LateFile] = (),
    digests: Mapping[str, str] | None = None,
) -> Iterator[ShardPartial]:
    """Yield the partials of some shards of a version's pings.

    Args:
        paths: the landed files in the order of their names.
        shards: which shards, numbers below that of the rules.
        rules: how to judge the pings.
        late: files of older versions that count too, those first that are done.
        digests: those of the files that were listed, by path.

    Raises:
        UnreadableFile: a file is damaged, not of landed pings, or no longer the one that was listed.
    """
    older = [open_ping_file(file.path, rules.document, file.age, file.done) for file in late]
    files = _held([*older, *(open_ping_file(path, rules.document) for path in paths)])
    for file in files:
        _refuse_replaced(file, (digests or {}).get(file.path))
    for some in merge_partials(sorted(shards), rules.m):
        yield from _partials(files, some, rules)


def _held(files: list[PingFile]) -> list[PingFile]:
    """Return the files without the bytes of small ones that came with their footers, beyond so many in all."""
    sizes = np.cumsum([len(file.landed.whole or b"") for file in files])
    return [
        file if size <= MOST_HELD_BYTES else replace(file, landed=replace(file.landed, whole=None))
        for file, size in zip(files, sizes, strict=True)
    ]


def merge_partials(shards: Sequence[int], m: int) -> Iterator[Sequence[int]]:
    """Yield the shards of a task, so many at a time as there is memory for where there are m weights."""
    size = max(SHARDS, TOTALS_BYTES // partial_bytes(m))
    for low in range(0, len(shards), size):
        yield shards[low : low + size]


def too_many_private(shards: int) -> str:
    """Return why a round of a private line leaves off where others leave out clients by lot."""
    return (
        f"there are pings of more than {shards * MOST_ROWS:,} clients, which is more than a round has room for, and of "
        "a private line no client is left out for how many others there are; somebody floods the study: move their "
        "pings away, or let fewer clients take part; nothing was published"
    )


def _refuse_replaced(file: PingFile, listed: str | None) -> None:
    if listed and file.landed.digest != listed:
        raise UnreadableFile(
            file.path, f"has been replaced since it was listed (its digest is {file.landed.digest}, not {listed})"
        )


def _partials(files: list[PingFile], shards: Sequence[int], rules: Rules) -> Iterator[ShardPartial]:
    read = _screened(files, shards, rules)
    if read is None:  # client ids can be chosen, so that shards are not even: these one after the other
        half = len(shards) // 2
        yield from _partials(files, shards[:half], rules)
        yield from _partials(files, shards[half:], rules)
        return
    pieces = [piece for shard in shards for piece in read[shard].pieces(shard)]
    pieces.sort(key=lambda piece: (piece.order, piece.shard))
    work = {shard: _Shard(shard, read.pop(shard), rules) for shard in shards}
    _stream(pieces, work, rules)
    spoilt = {shard: one for shard, one in work.items() if one.unreadable}
    for one in spoilt.values():
        one.decide()  # the other pings of those clients weigh more now: once again, without the rejected
    _stream([piece for piece in pieces if piece.shard in spoilt], spoilt, rules)
    for shard in shards:  # which then is whoever's it was given to, and not held here too
        yield work.pop(shard).partial()


class _Shard:
    """One shard at work: what was decided about its rows, and what their updates came to so far."""

    def __init__(self, shard: int, read: _Read, rules: Rules) -> None:
        self._shard, self._rules, self._left_out = shard, rules, read.left_out
        self._accumulator = measuring() if rules.measures else accumulator_for(rules.line, rules.bound)
        self._room = partial_size(self._accumulator, rules.line, rules.shards)
        self._parts = read.taken()  # one after the other they are wanted for a moment only, shard after shard
        self._over: NDArray[np.intp] | None = None
        self.unreadable: list[NDArray[np.intp]] = []
        self.decide()

    def decide(self) -> None:
        """Decide which rows count and how much, given the payloads that turned out to be unreadable; begin again."""
        rows = joined(self._parts)
        clients = clients_of(rows.client)
        found = reasons(rows, clients, self._rules)
        if self.unreadable:
            found[np.concatenate(self.unreadable)] = BAD_UPDATE
        if self._over is None:  # once: what comes in for the unreadable would have to be read, and could be so too
            self._over = _over_capacity(rows, found, self._room, self._rules.key)
        found[self._over] = OVER_CAPACITY
        self.weights, pings, counts = vote_weights(rows, clients, found, self._rules)
        there = np.flatnonzero(counts)
        self._clients, self._capped = len(there), capped_clients(rows, clients, found, self._rules)
        asks = self._accumulator.asks
        self._asked: dict[str, NDArray[Any]] = {"clients": rows.client} if "clients" in asks else {}
        if "arms" in asks:
            self._asked["arms"] = rows.arm
        if "documents" in asks:
            self._asked["documents"] = np.ascontiguousarray(rows.document).view(np.uint8)
        if "shares" in asks:
            self._asked["shares"] = 1.0 / np.maximum(pings, 1)
        if self._rules.sees:
            self._of = clients.of[found == USED]
            self._counts_as, self._norms = units(pings), np.zeros(len(found))
            self._signs = (np.zeros(self._rules.m), 0.0)
        salt = self._rules.salt
        self._registers = registers_of(rows.client[clients.row[there]], salt) if salt else None
        used = np.where(found == USED, rows.age, 0)
        self._steps = step_weights(self._rules.line.pipeline, used)
        reached = list(counted(found))
        reached[OVER_CAPACITY] += self._left_out
        self._counts, self._ages = tuple(reached), aged(rows, found, self._rules)
        private = self._rules.line.privacy is not None
        self._arms = () if private else arm_partials(rows, clients, found, self._rules)
        self._total = self._accumulator.init(self._rules.line)
        self.update_bytes = 0

    @property
    def takes_few(self) -> bool:
        """Whether :meth:`add_few` may be called."""
        return self._accumulator.add_few is not None

    def add_few(self, at: NDArray[np.intp], updates: Sparse) -> None:
        """Take in the used rows ``at``, shape (k,), with their updates, most of whose weights are zero."""
        assert self._accumulator.add_few is not None
        if not updates.ok.all():
            self.unreadable.append(at[~updates.ok])
            return
        weighted = updates
        if self._steps is not None:
            weighted = replace(updates, values=updates.values * self._steps[at][:, None])
        if self._rules.sees:
            self._norms[at] = norms_of(weighted.values)
            signs, signed = signs_of_few(weighted, self._counts_as[at], self._rules.m)
            self._signs = (self._signs[0] + signs, self._signs[1] + signed)
        self._total = self._accumulator.add_few(self._total, weighted, self.weights[at])

    def add(self, at: NDArray[np.intp], updates: NDArray[np.float32], readable: NDArray[np.bool_]) -> None:
        """Take in the used rows ``at``, shape (k,), with their updates, shape (k, m), and which could be decoded."""
        if readable.all():
            weighted: Updates = updates if self._steps is None else updates * self._steps[at][:, None]
            asked = {name: column[at] for name, column in self._asked.items()}
            if self._rules.sees or "norms" in self._accumulator.asks:
                norms = norms_of(weighted, units_of(self._rules.line))
            if self._rules.sees:
                self._norms[at] = norms
                signs, signed = signs_of(weighted, self._counts_as[at])
                self._signs = (self._signs[0] + signs, self._signs[1] + signed)
            if "norms" in self._accumulator.asks:
                asked["norms"] = norms
            self._total = self._accumulator.add(self._total, weighted, self.weights[at], **asked)
        else:
            self.unreadable.append(at[~readable])

    def partial(self) -> ShardPartial:
        """Return what the shard came to."""
        return ShardPartial(
            shard=self._shard,
            counts=self._counts,
            ages=self._ages,
            clients=self._clients,
            arms=self._arms,
            total=self._total,
            pulls=self._pulls() if self._rules.sees else None,
            registers=self._registers,
            update_bytes=self.update_bytes,
            capped=self._capped,
        )

    def _pulls(self) -> InfluenceSums:
        used = np.flatnonzero(self.weights)
        return influence_sums(
            self._rules.line.pipeline,
            limit(self._rules.line.pipeline.clip, self._rules.bound),
            UpdateFigures(self._norms[used], self._counts_as[used], self.weights[used], self._of, self._signs),
        )


def _over_capacity(rows: Rows, found: NDArray[np.int8], room: int | None, key: bytes) -> NDArray[np.intp]:
    """Return which used rows there is no room for, where updates are kept."""
    used = np.flatnonzero(found == USED)
    if room is None or len(used) <= room:
        return used[:0]
    _, kept = thinned(rows.client[used], room, key)
    return used[~kept]


@dataclass(frozen=True, slots=True)
class _Part:
    """Rows of one shard in one row group: all of this if ``positions`` is None, else those."""

    file: PingFile
    order: tuple[int, int]
    positions: NDArray[np.intp] | None
    rows: Rows

    def at(self, kept: NDArray[np.bool_]) -> _Part:
        """Return the part with some of its rows only."""
        where = np.flatnonzero(kept)
        positions = where if self.positions is None else self.positions[where]
        return _Part(self.file, self.order, positions, self.rows.at(where))


class _Read:
    """The rows of one shard that have been read, thinned where they are too many; ``left_out`` counts the others."""

    def __init__(self, rules: Rules) -> None:
        self._most = MOST_ROWS if rules.bounded else None
        self._key, self._level, self._shards = rules.key, 0, rules.shards
        self._least = ONE if rules.line.privacy is not None else 0
        self._parts: list[_Part] = []
        self.left_out = self.size = 0

    def add(self, part: _Part) -> None:
        """Take in what comes next."""
        self._parts.append(part)
        self.size += len(part.rows.counted)
        if self._most is not None and self.size > self._most:
            self._thin(self._most)

    def end(self) -> None:
        """Everything has been read: the level that was reached holds for all of it."""
        if self._most is not None and self._level:
            self._thin(self._most)

    def _thin(self, most: int) -> None:
        if not self._parts:  # what there was has been left out
            return
        clients = np.concatenate([part.rows.client for part in self._parts])
        self._level, kept = thinned(clients, most, self._key, max(self._level, self._least))
        if self._least and self._level > self._least:
            raise FedpingError(too_many_private(self._shards))
        edges = np.cumsum([len(part.rows.counted) for part in self._parts])[:-1]
        masks = np.split(kept, edges)
        self.left_out += sum(int((~mask & ~part.rows.done).sum()) for part, mask in self._with(masks))
        self._parts = [part if mask.all() else part.at(mask) for part, mask in self._with(masks) if mask.any()]
        self.size = int(kept.sum())

    def _with(self, masks: list[NDArray[np.bool_]]) -> Iterator[tuple[_Part, NDArray[np.bool_]]]:
        return zip(self._parts, masks, strict=True)

    def taken(self) -> list[Rows]:
        """Return the rows, which are here no longer."""
        parts, self._parts = self._parts, []
        return [part.rows for part in parts]

    def pieces(self, shard: int) -> Iterator[Piece]:
        """Yield where the rows lie, one piece a row group."""
        start = 0
        for order, of_group in groupby(self._parts, key=lambda part: part.order):
            parts = list(of_group)
            count = sum(len(part.rows.counted) for part in parts)
            every = [part.positions for part in parts if part.positions is not None]
            positions = np.concatenate(every) if every else None
            yield Piece(shard, parts[0].file, order, positions, start, count)
            start += count


def _screened(files: list[PingFile], shards: Sequence[int], rules: Rules) -> dict[int, _Read] | None:
    """Read all but the updates of some shards; None if they have more rows than a task may keep."""
    found = {shard: _Read(rules) for shard in shards}
    for number, file in enumerate(files):
        with file.opened() as reader:
            for group in file.groups_with(shards, rules.shards):
                low = 0
                for rows in reader.rows(group, rules):
                    for shard, part in _by_shard(file, (number, group), low, rows, shards, rules.shards):
                        found[shard].add(part)
                    low += len(rows.counted)
                    if len(shards) > 1 and sum(read.size for read in found.values()) > MOST_ROWS_A_TASK:
                        return None
    for read in found.values():
        read.end()
    return found


def _by_shard(
    file: PingFile, order: tuple[int, int], low: int, rows: Rows, shards: Sequence[int], of_all: int
) -> Iterator[tuple[int, _Part]]:
    """Yield the wanted ones, of ``of_all`` shards, of a batch of rows that begins at row ``low`` of a row group."""
    group, own = order[1], file.shards
    ids = rows.client.view(np.uint8)
    if own > 1 and (shard_of(ids, own) != group).any():
        raise UnreadableFile(file.path, f"has clients of other shards in row group {group}")
    if own >= of_all > 1:
        whole = low == 0 and len(ids) == file.landed.footer.row_group(group).num_rows
        yield group * of_all // own, _Part(file, order, None if whole else low + np.arange(len(ids)), rows)
        return
    of = shard_of(ids, of_all)
    positions = np.argsort(of, kind="stable")
    wanted = np.array(shards)
    firsts, lasts = (np.searchsorted(of[positions], wanted, side) for side in ("left", "right"))
    ordered = rows.at(positions)
    for shard, first, last in zip(shards, firsts.tolist(), lasts.tolist(), strict=True):
        mine = slice(first, last)
        if mine.start < mine.stop:  # copied, for what one shard leaves out would otherwise be held by the others
            yield shard, _Part(file, order, positions[mine] + low, ordered.copied(mine))


def _stream(pieces: list[Piece], work: dict[int, _Shard], rules: Rules) -> None:
    """Read the updates of the pieces' used rows, a bounded batch at a time, and add them to their shards."""
    links = rules.links
    needed = [piece for piece in pieces if work[piece.shard].weights[piece.start : piece.start + piece.count].any()]
    for file, of_file in groupby(needed, key=lambda piece: piece.file):
        with file.opened() as reader:
            for group, of_group in groupby(of_file, key=lambda piece: piece.group):
                together, low = list(of_group), 0
                for payloads in reader.updates(group, batch_rows(rules.m), rules.m):
                    _add_used(work, together, low, payloads, links, rules.line)
                    low += len(payloads)


def _add_used(
    work: dict[int, _Shard], pieces: list[Piece], low: int, payloads: pa.BinaryArray, links: Receiving, line: Line
) -> None:
    """Add the used rows among the payloads, which begin at row ``low`` of the row group, to their shards.

    They are decoded for all shards at once: of a file that is not laid out in shards, each has few of them.
    """
    m = line.spec.m
    used = [(work[piece.shard], *_used(work[piece.shard], piece, low, low + len(payloads))) for piece in pieces]
    mine = np.zeros(len(payloads), np.bool_)
    for _, _, where in used:
        mine[where] = True
    count = np.count_nonzero(mine)
    if count == 0:
        return
    payloads = payloads if count == len(payloads) else payloads.filter(pa.array(mine))
    numbers, sizes = np.cumsum(mine) - 1, payload_lengths(payloads)
    for shard, _, where in used:
        shard.update_bytes += int(sizes[numbers[where]].sum())
    with broken_if_failed():
        found = read_updates(links, payloads, m, few=used[0][0].takes_few)
    if isinstance(found, Sparse):
        if line.limits is not None:
            found = replace(found, ok=found.ok & line.limits.within(found.values))
        for shard, at, where in used:
            if len(at):
                shard.add_few(at, found if len(at) == count else found.rows(numbers[where]))
        return
    updates, readable = found
    if line.limits is not None:
        readable = readable & line.limits.within(updates)
    for shard, at, where in used:
        if len(at) == count:
            shard.add(at, updates, readable)
        elif len(at):
            among = numbers[where]
            shard.add(at, updates[among], readable[among])


def read_updates(links: Receiving, payloads: pa.BinaryArray, m: int, *, few: bool) -> Sparse | Decoded:
    """Return updates of m weights: with ``few`` without their zeros, where they come so and :data:`FEW` says so."""
    found = links.few(payloads, m) if few else None
    if found is None:
        return links.decode(payloads, m)
    return found if found.at.shape[1] * FEW <= m else (found.dense(m), found.ok)


def _used(shard: _Shard, piece: Piece, low: int, high: int) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
    """Return which of the shard's used rows lie at [low, high) of the row group, and where among these, both (k,)."""
    first, last = piece.between(low, high)
    used = np.flatnonzero(shard.weights[piece.start + first : piece.start + last])
    where = used if piece.positions is None else piece.positions[first:last][used] - low
    return piece.start + first + used, where
