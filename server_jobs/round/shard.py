"""From landed files to shard partials: the work of one task, pure but for reading, and the same in every engine.

Two passes. The first reads all but the updates and decides which pings count and how much, shard by shard. The second
streams the updates in bounded batches into the recurrence. Rows are taken in the order of (file, row) and in batches
whose size depends on the number of weights alone, so a shard comes to the same bits whoever computes it, beside
whichever other shards.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from protocol.landing import shard_of
from protocol.update import CODECS
from server_jobs.round.engine import LateFile
from server_jobs.round.gathered import gathered, nothing, refuse_too_many, together
from server_jobs.round.partial import ShardPartial, aged, arm_partials, counted
from server_jobs.round.ping_file import TAGS, PingFile, Rows, UnreadableFile, joined, open_ping_file
from server_jobs.round.rules import Rules
from server_jobs.round.screening import BAD_UPDATE, reasons, vote_weights

BATCH_BYTES = 2**20
"""Doubles decoded at a time: what the second-level cache of a small processor holds."""

LEAST_BATCH = 64
"""Updates decoded at a time at least, since a merge costs the same for one as for many; within the next bound."""

MOST_BYTES = 2**26
"""Doubles decoded at a time at most, unless a single update has more."""


@dataclass(frozen=True, slots=True)
class Piece:
    """The rows of one shard in one row group.

    ``positions`` is where they are there, ascending; None if they are all of the row group. ``start`` is where they
    begin among the shard's rows, ``count`` how many they are.
    """

    shard: int
    file: PingFile
    group: int
    positions: NDArray[np.intp] | None
    start: int
    count: int

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
    paths: Sequence[str], shards: Iterable[int], rules: Rules, late: Sequence[LateFile] = ()
) -> Iterator[ShardPartial]:
    """Yield the partials of some shards of a version's pings.

    Args:
        paths: the landed files in the order of their names.
        shards: which shards, numbers below :data:`protocol.landing.SHARDS`.
        rules: how to judge the pings.
        late: files of older versions that count too, those first that are done.

    Raises:
        UnreadableFile: a file is damaged or not of landed pings.
    """
    older = [open_ping_file(file.path, rules.document, file.age, file.done) for file in late]
    files = [*older, *(open_ping_file(path, rules.document) for path in paths)]
    pieces, rows = _screened(files, sorted(shards), rules)
    work = {shard: _Shard(shard, rows[shard], rules) for shard in rows}
    _stream(pieces, work, rules)
    spoilt = {shard: one for shard, one in work.items() if one.unreadable}
    for one in spoilt.values():
        one.decide()  # the other pings of those clients weigh more now: once again, without the rejected
    _stream([piece for piece in pieces if piece.shard in spoilt], spoilt, rules)
    for one in work.values():
        yield one.partial()


class _Shard:
    """One shard at work: what was decided about its rows, and its moments so far."""

    def __init__(self, shard: int, parts: list[Rows], rules: Rules) -> None:
        self._shard, self._parts, self._rules = shard, parts, rules
        self.unreadable: list[NDArray[np.intp]] = []
        self.decide()

    def decide(self) -> None:
        """Decide which rows count and how much, given the payloads that turned out to be unreadable; begin again."""
        rows = joined(self._parts)
        found = reasons(rows, self._rules)
        if self.unreadable:
            found[np.concatenate(self.unreadable)] = BAD_UPDATE
        self.weights, self._clients = vote_weights(rows, found, self._rules)
        self._codecs = rows.codec
        self._counts, self._ages = counted(found), aged(rows, found, self._rules)
        self._arms = arm_partials(rows, found, self._rules)
        self._gathered = nothing(self._rules.m)

    def add(self, at: NDArray[np.intp], payloads: pa.BinaryArray) -> None:
        """Take in the used rows ``at`` with their payloads, both of length k."""
        codecs = self._codecs[at]
        for codec in np.unique(codecs):
            mine = codecs == codec
            chosen = payloads if mine.all() else payloads.filter(pa.array(mine))
            values, readable = CODECS[TAGS[codec]].decode(chosen, self._rules.m)
            if readable.all():
                batch = gathered(values, self.weights[at[mine]], self._rules.aggregate)
                self._gathered = together(self._gathered, batch)
                refuse_too_many(self._gathered)
            else:
                self.unreadable.append(at[mine][~readable])

    def partial(self) -> ShardPartial:
        """Return what the shard came to."""
        return ShardPartial(
            shard=self._shard,
            counts=self._counts,
            ages=self._ages,
            clients=self._clients,
            arms=self._arms,
            updates=self._gathered,
        )


def _screened(files: list[PingFile], shards: list[int], rules: Rules) -> tuple[list[Piece], dict[int, list[Rows]]]:
    """Read all but the updates; return where each shard's rows lie, in order, and the rows of each shard."""
    pieces: list[Piece] = []
    found: dict[int, list[Rows]] = {shard: [] for shard in shards}
    sizes = dict.fromkeys(shards, 0)
    for file in files:
        with file.opened() as reader:
            for group in shards if file.in_shards else range(file.footer.num_row_groups):
                for shard, positions, rows in _by_shard(file, group, reader.rows(group, rules), shards):
                    count = len(rows.counted)
                    pieces.append(Piece(shard, file, group, positions, sizes[shard], count))
                    found[shard].append(rows)
                    sizes[shard] += count
    return pieces, found


def _by_shard(
    file: PingFile, group: int, rows: Rows, shards: list[int]
) -> Iterator[tuple[int, NDArray[np.intp] | None, Rows]]:
    """Yield the wanted shards of a row group: number, positions in the row group (None for all), rows."""
    of = shard_of(rows.client.view(np.uint8))
    if not file.in_shards:
        for shard in shards:
            positions = np.flatnonzero(of == shard)
            yield shard, positions, rows.at(positions)
        return
    if (of != group).any():
        raise UnreadableFile(file.path, f"has clients of other shards in row group {group}")
    yield group, None, rows


def _stream(pieces: list[Piece], work: dict[int, _Shard], rules: Rules) -> None:
    """Read the updates of the pieces' used rows, a bounded batch at a time, and add them to their shards."""
    needed = [piece for piece in pieces if work[piece.shard].weights[piece.start : piece.start + piece.count].any()]
    for file, of_file in groupby(needed, key=lambda piece: piece.file):
        with file.opened() as reader:
            for group, of_group in groupby(of_file, key=lambda piece: piece.group):
                together, low = list(of_group), 0
                for payloads in reader.updates(group, batch_rows(rules.m)):
                    for piece in together:
                        _add_used(work[piece.shard], piece, low, payloads)
                    low += len(payloads)


def _add_used(shard: _Shard, piece: Piece, low: int, payloads: pa.BinaryArray) -> None:
    """Add the piece's used rows among the payloads, which begin at row ``low`` of the row group."""
    first, last = piece.between(low, low + len(payloads))
    used = np.flatnonzero(shard.weights[piece.start + first : piece.start + last])
    if len(used) == 0:
        return
    if len(used) < len(payloads):
        mask = np.zeros(len(payloads), dtype=bool)
        mask[used if piece.positions is None else piece.positions[first:last][used] - low] = True
        payloads = payloads.filter(pa.array(mask))
    shard.add(piece.start + first + used, payloads)
