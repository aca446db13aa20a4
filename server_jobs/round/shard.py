"""Computes shard partials from landed files: the work of a task, which is the same in every engine.

There are two passes. The first reads all columns but the updates, and decides for each shard which pings count, and
with what weight. The second streams the updates in bounded batches into the accumulators. The number of rows in
memory is bounded for any number and size of a file's rows. Rows are processed in the order of (file, row), in batches
whose size depends only on the number of weights. So a shard's partial has the same bits in every engine, independent
of the other shards.
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
"""Bytes of doubles decoded at a time: the size of a small processor's second-level cache."""

LEAST_BATCH = 64
"""Minimum number of updates decoded at a time, up to :data:`MOST_BYTES`, because each batch costs a merge."""

MOST_BYTES = 2**26
"""Maximum bytes of doubles decoded at a time, unless a single update has more."""

MOST_HELD_BYTES = 2**26
"""Maximum bytes of small files in a bucket that a task keeps after reading their footers. It reads other files
again."""

FEW = 8
"""Minimum number of weights per nonzero weight for which updates stay sparse. Denser updates wouldn't be faster.

This value must never change, because versions are recomputed with it.
"""

MOST_ROWS = ROWS_PER_TASK
"""Maximum rows of a shard in memory; beyond, some clients are left out (`fedping.server_jobs.round.ping_filter`).

This value and `accumulator.MOST_KEPT_BYTES` must never change, because versions that left out pings are recomputed
with them.
"""

TOTALS_BYTES = 2**28
"""Maximum bytes of the shards that a task processes at a time, unless :data:`SHARDS` shards are larger."""

MOST_ROWS_A_TASK = 2 * ROWS_PER_TASK
"""Maximum rows of several shards in memory; beyond, a task reads its shards in two halves, one after the other."""


@dataclass(frozen=True, slots=True)
class Piece:
    """The rows of one shard in one row group.

    ``order`` has the numbers of the file and of the row group in it. ``positions`` are the rows' positions in the
    group, ascending; None for all rows. ``start`` is the first row's position among the shard's rows, ``count`` the
    number of rows.
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
        """Return the start and end of the piece's rows at positions [low, high) of the row group."""
        if self.positions is None:
            return low, high
        first, last = np.searchsorted(self.positions, (low, high))
        return int(first), int(last)


def batch_rows(m: int) -> int:
    """Return the number of updates of length m that are decoded at a time."""
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
        shards: the shards' numbers, below the number of shards in the rules.
        rules: the rules for the pings.
        late: files of older versions that also count, used files first.
        digests: the digests of the listed files, by path.

    Raises:
        UnreadableFile: a file is damaged, doesn't contain landed pings, or was replaced after it was listed.
    """
    older = [open_ping_file(file.path, rules.document, file.age, file.done) for file in late]
    files = _held([*older, *(open_ping_file(path, rules.document) for path in paths)])
    for file in files:
        _refuse_replaced(file, (digests or {}).get(file.path))
    for some in shard_groups(sorted(shards), rules.m):
        yield from _partials(files, some, rules)


def _held(files: list[PingFile]) -> list[PingFile]:
    """Return the files. Small files keep the bytes that were read with their footers, up to the maximum."""
    sizes = np.cumsum([len(file.landed.whole or b"") for file in files])
    return [
        file if size <= MOST_HELD_BYTES else replace(file, landed=replace(file.landed, whole=None))
        for file, size in zip(files, sizes, strict=True)
    ]


def shard_groups(shards: Sequence[int], m: int) -> Iterator[Sequence[int]]:
    """Yield the shards of a task in groups that fit into memory, for m weights."""
    size = max(SHARDS, TOTALS_BYTES // partial_bytes(m))
    for low in range(0, len(shards), size):
        yield shards[low : low + size]


def too_many_private(shards: int) -> str:
    """Return the reason why a private round with too many clients stops. Other rounds leave out clients by lot."""
    return (
        f"more than {shards * MOST_ROWS:,} clients have sent pings, which is the maximum of a round, and private lines "
        "leave no client out because of the others. Remove the pings of senders that flood the study, or let fewer "
        "clients take part. Nothing was published."
    )


def _refuse_replaced(file: PingFile, listed: str | None) -> None:
    if listed and file.landed.digest != listed:
        raise UnreadableFile(
            file.path, f"has been replaced since it was listed (its digest is {file.landed.digest}, not {listed})"
        )


def _partials(files: list[PingFile], shards: Sequence[int], rules: Rules) -> Iterator[ShardPartial]:
    read = _screened(files, shards, rules)
    if read is None:  # clients can choose ids that make shards uneven; then the halves are read one after the other
        half = len(shards) // 2
        yield from _partials(files, shards[:half], rules)
        yield from _partials(files, shards[half:], rules)
        return
    pieces = [piece for shard in shards for piece in read[shard].pieces(shard)]
    pieces.sort(key=lambda piece: (piece.order, piece.shard))
    work = {shard: _Shard(shard, read.pop(shard), rules) for shard in shards}
    _stream(pieces, work, rules)
    damaged = {shard: one for shard, one in work.items() if one.unreadable}
    for one in damaged.values():
        one.decide()  # again without the rejected pings, whose clients' other pings now weigh more
    _stream([piece for piece in pieces if piece.shard in damaged], damaged, rules)
    for shard in shards:  # popped, so that only the caller holds the partial
        yield work.pop(shard).partial()


class _Shard:
    """A shard in progress: the decisions about its rows, and the partial of the updates so far."""

    def __init__(self, shard: int, read: _Read, rules: Rules) -> None:
        self._shard, self._rules, self._left_out = shard, rules, read.left_out
        self._accumulator = measuring() if rules.measures else accumulator_for(rules.line, rules.bound)
        self._room = partial_size(self._accumulator, rules.line, rules.shards)
        self._parts = read.taken()  # in parts, because the joined rows are needed only briefly
        self._over: NDArray[np.intp] | None = None
        self.unreadable: list[NDArray[np.intp]] = []
        self.decide()

    def decide(self) -> None:
        """Decide which rows count, and with what weight, except those found to be unreadable; reset the partial."""
        rows = joined(self._parts)
        clients = clients_of(rows.client)
        outcomes = reasons(rows, clients, self._rules)
        if self.unreadable:
            outcomes[np.concatenate(self.unreadable)] = BAD_UPDATE
        if self._over is None:  # only once, because replacements of unreadable payloads could be unreadable too
            self._over = _over_capacity(rows, outcomes, self._room, self._rules.key)
        outcomes[self._over] = OVER_CAPACITY
        self.weights, pings, counts = vote_weights(rows, clients, outcomes, self._rules)
        used_clients = np.flatnonzero(counts)
        self._clients, self._capped = len(used_clients), capped_clients(rows, clients, outcomes, self._rules)
        asks = self._accumulator.asks
        self._asked: dict[str, NDArray[Any]] = {"clients": rows.client} if "clients" in asks else {}
        if "arms" in asks:
            self._asked["arms"] = rows.arm
        if "documents" in asks:
            self._asked["documents"] = np.ascontiguousarray(rows.document).view(np.uint8)
        if "shares" in asks:
            self._asked["shares"] = 1.0 / np.maximum(pings, 1)
        if self._rules.sees:
            self._of = clients.of[outcomes == USED]
            self._counts_as, self._norms = units(pings), np.zeros(len(outcomes))
            self._signs = (np.zeros(self._rules.m), 0.0)
        salt = self._rules.salt
        self._registers = registers_of(rows.client[clients.row[used_clients]], salt) if salt else None
        used = np.where(outcomes == USED, rows.age, 0)
        self._steps = step_weights(self._rules.line.pipeline, used)
        totals = list(counted(outcomes))
        totals[OVER_CAPACITY] += self._left_out
        self._counts, self._ages = tuple(totals), aged(rows, outcomes, self._rules)
        private = self._rules.line.privacy is not None
        self._arms = () if private else arm_partials(rows, clients, outcomes, self._rules)
        self._total = self._accumulator.init(self._rules.line)
        self.update_bytes = 0

    @property
    def takes_few(self) -> bool:
        """Whether :meth:`add_few` may be called."""
        return self._accumulator.add_few is not None

    def add_few(self, at: NDArray[np.intp], updates: Sparse) -> None:
        """Add the used rows ``at``, shape (k,), with their sparse updates."""
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
        """Add the used rows ``at``, shape (k,), with their updates, shape (k, m), and whether each could be decoded."""
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
        """Return the shard's partial."""
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


def _over_capacity(rows: Rows, outcomes: NDArray[np.int8], room: int | None, key: bytes) -> NDArray[np.intp]:
    """Return the used rows for which an accumulator that keeps updates has no room."""
    used = np.flatnonzero(outcomes == USED)
    if room is None or len(used) <= room:
        return used[:0]
    _, kept = thinned(rows.client[used], room, key)
    return used[~kept]


@dataclass(frozen=True, slots=True)
class _Part:
    """Rows of one shard in one row group, at ``positions``, or all rows of the group if None."""

    file: PingFile
    order: tuple[int, int]
    positions: NDArray[np.intp] | None
    rows: Rows

    def at(self, kept: NDArray[np.bool_]) -> _Part:
        """Return the part with only the rows in a mask."""
        where = np.flatnonzero(kept)
        positions = where if self.positions is None else self.positions[where]
        return _Part(self.file, self.order, positions, self.rows.at(where))


class _Read:
    """The rows read from one shard, thinned if there are too many. ``left_out`` counts the rows left out."""

    def __init__(self, rules: Rules) -> None:
        self._most = MOST_ROWS if rules.bounded else None
        self._key, self._level, self._shards = rules.key, 0, rules.shards
        self._least = ONE if rules.line.privacy is not None else 0
        self._parts: list[_Part] = []
        self.left_out = self.size = 0

    def add(self, part: _Part) -> None:
        """Add the next rows."""
        self._parts.append(part)
        self.size += len(part.rows.counted)
        if self._most is not None and self.size > self._most:
            self._thin(self._most)

    def end(self) -> None:
        """Apply the level of thinning to all rows after the last row was read."""
        if self._most is not None and self._level:
            self._thin(self._most)

    def _thin(self, most: int) -> None:
        if not self._parts:  # all rows have been left out
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
        """Return the rows, and drop the references to them."""
        parts, self._parts = self._parts, []
        return [part.rows for part in parts]

    def pieces(self, shard: int) -> Iterator[Piece]:
        """Yield the pieces of the rows, one for each row group."""
        start = 0
        for order, of_group in groupby(self._parts, key=lambda part: part.order):
            parts = list(of_group)
            count = sum(len(part.rows.counted) for part in parts)
            every = [part.positions for part in parts if part.positions is not None]
            positions = np.concatenate(every) if every else None
            yield Piece(shard, parts[0].file, order, positions, start, count)
            start += count


def _screened(files: list[PingFile], shards: Sequence[int], rules: Rules) -> dict[int, _Read] | None:
    """Read shards without their updates; return None if they have more rows than a task may keep."""
    read = {shard: _Read(rules) for shard in shards}
    for number, file in enumerate(files):
        with file.opened() as reader:
            for group in file.groups_with(shards, rules.shards):
                low = 0
                for rows in reader.rows(group, rules):
                    for shard, part in _by_shard(file, (number, group), low, rows, shards, rules.shards):
                        read[shard].add(part)
                    low += len(rows.counted)
                    if len(shards) > 1 and sum(each.size for each in read.values()) > MOST_ROWS_A_TASK:
                        return None
    for each in read.values():
        each.end()
    return read


def _by_shard(
    file: PingFile, order: tuple[int, int], low: int, rows: Rows, shards: Sequence[int], of_all: int
) -> Iterator[tuple[int, _Part]]:
    """Yield the rows of ``shards``, out of ``of_all`` shards, in a batch that begins at row ``low`` of a row group."""
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
    numbers = np.array(shards)
    firsts, lasts = (np.searchsorted(of[positions], numbers, side) for side in ("left", "right"))
    ordered = rows.at(positions)
    for shard, first, last in zip(shards, firsts.tolist(), lasts.tolist(), strict=True):
        mine = slice(first, last)
        if mine.start < mine.stop:  # copied, so that a slice doesn't keep the whole batch alive
            yield shard, _Part(file, order, positions[mine] + low, ordered.copied(mine))


def _stream(pieces: list[Piece], work: dict[int, _Shard], rules: Rules) -> None:
    """Read the updates of the pieces' used rows in bounded batches, and add them to their shards."""
    links = rules.links
    needed = [piece for piece in pieces if work[piece.shard].weights[piece.start : piece.start + piece.count].any()]
    for file, of_file in groupby(needed, key=lambda piece: piece.file):
        with file.opened() as reader:
            for group, of_group in groupby(of_file, key=lambda piece: piece.group):
                group_pieces, low = list(of_group), 0
                for payloads in reader.updates(group, batch_rows(rules.m), rules.m):
                    _add_used(work, group_pieces, low, payloads, links, rules.line)
                    low += len(payloads)


def _add_used(
    work: dict[int, _Shard], pieces: list[Piece], low: int, payloads: pa.BinaryArray, links: Receiving, line: Line
) -> None:
    """Add the used rows among the payloads, which begin at row ``low`` of the row group, to their shards.

    Payloads are decoded for all shards at once, because each shard has few of them in a file without shards.
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
        decoded = read_updates(links, payloads, m, few=used[0][0].takes_few)
    if isinstance(decoded, Sparse):
        if line.limits is not None:
            decoded = replace(decoded, ok=decoded.ok & line.limits.within(decoded.values))
        for shard, at, where in used:
            if len(at):
                shard.add_few(at, decoded if len(at) == count else decoded.rows(numbers[where]))
        return
    updates, readable = decoded
    if line.limits is not None:
        readable = readable & line.limits.within(updates)
    for shard, at, where in used:
        if len(at) == count:
            shard.add(at, updates, readable)
        elif len(at):
            among = numbers[where]
            shard.add(at, updates[among], readable[among])


def read_updates(links: Receiving, payloads: pa.BinaryArray, m: int, *, few: bool) -> Sparse | Decoded:
    """Return updates of m weights, sparse if ``few`` is set, the encoding is sparse, and :data:`FEW` allows it."""
    sparse = links.few(payloads, m) if few else None
    if sparse is None:
        return links.decode(payloads, m)
    return sparse if sparse.at.shape[1] * FEW <= m else (sparse.dense(m), sparse.ok)


def _used(shard: _Shard, piece: Piece, low: int, high: int) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
    """Return the shard's used rows at [low, high) of the row group, and their offsets from ``low``, both (k,)."""
    first, last = piece.between(low, high)
    used = np.flatnonzero(shard.weights[piece.start + first : piece.start + last])
    where = used if piece.positions is None else piece.positions[first:last][used] - low
    return piece.start + first + used, where
