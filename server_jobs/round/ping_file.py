"""Reads landed Parquet files: footers, the columns that decide whether a ping counts, and batches of updates."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from numpy.typing import NDArray

from fedping.protocol.arrow import UPDATE, UPDATE_ENCODING, counted
from fedping.protocol.landed_file import BATCH_ROWS, LandedFile, UnreadableFile, first_line, open_pings, schema_of
from fedping.protocol.landing import id_bytes, shards_in
from fedping.protocol.location import Place
from fedping.protocol.outcomes import NumericOutcome, outcome_range
from fedping.protocol.ping import DocumentType
from fedping.protocol.update import longest_payload
from fedping.server_jobs.round.plan import Rules

MOST_PAYLOADS = 2**26
"""Maximum bytes of payloads that are decoded at a time, unless the number of weights makes a batch larger."""

UNKNOWN = -1
MISSING = -2


class Rows(NamedTuple):
    """The columns of pings without their updates, each an array of length k.

    Ids are two words each, shape (k, 2). ``counted`` is the column with the number of examples
    (`fedping.protocol.ping`), 1 without such a column. ``loss`` is 0 if pings have no loss. ``arm`` is an index into
    the rules' arms, or UNKNOWN. ``codec`` is 0 for an update in the line's encoding, UNKNOWN for another encoding, or
    MISSING. ``age`` is the number of versions by which the row's folder is older than the round's. ``done`` says
    whether an earlier round counted the row. ``outcome`` is the guarded outcome, shape (k, 1), or (k, 0) without such
    an outcome.
    """

    document: NDArray[np.uint64]
    client: NDArray[np.uint64]
    version: NDArray[np.int32]
    counted: NDArray[np.int32]
    loss: NDArray[np.float64]
    arm: NDArray[np.int16]
    codec: NDArray[np.int16]
    age: NDArray[np.int16]
    done: NDArray[np.bool_]
    outcome: NDArray[np.float64]

    def at(self, where: NDArray[np.intp]) -> Rows:
        """Return the rows at some positions."""
        return Rows._make([column[where] for column in self])

    def copied(self, some: slice) -> Rows:
        """Return a copy of a slice of rows, which doesn't keep the other rows in memory."""
        return Rows._make([column[some].copy() for column in self])


def joined(parts: Sequence[Rows]) -> Rows:
    """Return the concatenated rows."""
    return Rows._make(map(np.concatenate, zip(*parts or [_no_rows()], strict=True)))


def _no_rows() -> Rows:
    ids, number, small = np.zeros((0, 2), np.uint64), np.zeros(0, np.int32), np.zeros(0, np.int16)
    return Rows(ids, ids, number, number, np.zeros(0), small, small, small, np.zeros(0, np.bool_), np.zeros((0, 0)))


def _screened(document: DocumentType) -> list[str]:
    """Return the columns that decide whether a ping counts."""
    loss = ["loss"] if document.tells_loss else []
    ids = ["document_id", "client_id"]
    return [*ids, "model_version", "study_variation", UPDATE_ENCODING, *loss, *document.counted_by[:1]]


@dataclass(frozen=True, slots=True, eq=False)
class PingFile:
    """A landed file of pings.

    Attributes:
        landed: the file with its footer.
        rows: the number of pings.
        groups: the number of row groups.
        shards: the number of shards by which row groups are laid out (`fedping.protocol.landing`); 1 if any group may
            contain any client.
        age, done: as in :class:`fedping.server_jobs.round.plan.LateFile`.
        instead: the columns used instead of the first of ``counted_by`` where it is null, if it may be null.
    """

    landed: LandedFile
    rows: int
    groups: int
    shards: int
    age: int = 0
    done: bool = False
    instead: tuple[str, ...] = ()

    @property
    def path(self) -> str:
        """The file's address."""
        return self.landed.path

    def groups_with(self, shards: Sequence[int], of: int) -> Sequence[int]:
        """Return the row groups, ascending, that may contain clients of ``shards``, given ``of`` shards in total."""
        own = self.shards
        if own == 1:
            return range(self.groups)
        if own <= of:
            return sorted({shard * own // of for shard in shards})
        each = own // of
        return [group for shard in sorted(shards) for group in range(shard * each, (shard + 1) * each)]

    @contextmanager
    def opened(self) -> Iterator[PingReader]:
        """Open the file for reading. Damage raises :class:`UnreadableFile`."""
        options = {"read_dictionary": [UPDATE]} if self._update_dictionary() else {}
        with self.landed.opened(**options) as file:
            yield PingReader(file, self)

    def _update_dictionary(self) -> bool:
        """Return whether updates have a dictionary, which fedping never writes: few bytes are then many updates."""
        if self.landed.entries is not None:
            return False
        return any(self.update_chunk(group).has_dictionary_page for group in range(self.groups))

    def update_chunk(self, group: int) -> pq.ColumnChunkMetaData:
        """Return the footer's metadata of the updates of a row group."""
        columns = self.landed.footer.row_group(group)
        return next(c for c in map(columns.column, range(columns.num_columns)) if c.path_in_schema == UPDATE)


class PingReader:
    """An open landed file."""

    def __init__(self, file: pq.ParquetFile, of: PingFile) -> None:
        self._file, self._of = file, of

    def rows(self, group: int, rules: Rules) -> Iterator[Rows]:
        """Yield the rows of a row group without their updates, in bounded batches."""
        read, stated = 0, self._of.landed.footer.row_group(group).num_rows
        if not stated:
            return
        columns = [*_screened(rules.document), *self._of.instead]
        if rules.guarded is not None and rules.guarded.name in self._file.schema_arrow.names:
            columns.append(rules.guarded.name)
        at_once = max(1, min(BATCH_ROWS, stated))  # their memory is allocated before any is read
        for batch in self._file.iter_batches(at_once, row_groups=[group], columns=columns, use_threads=False):
            read += len(batch)
            try:
                decoded = _rows(batch, rules, self._of)
            except (ValueError, IndexError) as error:  # invalid UTF-8, or an index outside the dictionary
                raise UnreadableFile(self._of.path, f"is damaged ({first_line(error)})") from error
            yield decoded
        if read != stated:
            raise UnreadableFile(self._of.path, f"is damaged (row group {group} has {read:,} rows, not {stated:,})")

    def updates(self, group: int, batch_rows: int, m: int) -> Iterator[pa.BinaryArray]:
        """Yield a row group's update payloads, ``batch_rows`` at a time, which bounds the memory.

        Payloads that are too long for any encoding of ``m`` weights are replaced by empty payloads, which are invalid
        too.
        """
        rows = self._of.landed.footer.row_group(group).num_rows
        chunk = self._of.update_chunk(group)
        most = max(MOST_PAYLOADS, batch_rows * longest_payload(m))
        at_once = min(batch_rows, max(1, most * rows // max(1, chunk.total_uncompressed_size)))
        batches = self._file.iter_batches(at_once, row_groups=[group], columns=[UPDATE], use_threads=False)
        columns = (batch.column(0) for batch in batches)
        if at_once == batch_rows and not chunk.has_dictionary_page:
            return columns
        return _regrouped((_without_longer(column, longest_payload(m)) for column in columns), batch_rows)


def _without_longer(payloads: pa.Array, most: int) -> pa.BinaryArray:
    """Return payloads, also from a dictionary, with those of more than ``most`` bytes replaced by empty bytes."""
    if pa.types.is_dictionary(payloads.type):
        values = _without_longer(payloads.dictionary, most)
        return pa.DictionaryArray.from_arrays(payloads.indices, values).dictionary_decode()
    if len(payloads) == 0 or (pc.max(pc.binary_length(payloads)).as_py() or 0) <= most:
        return payloads
    return pc.if_else(pc.greater(pc.binary_length(payloads), most), pa.scalar(b"", payloads.type), payloads)


def _regrouped(parts: Iterable[pa.BinaryArray], rows: int) -> Iterator[pa.BinaryArray]:
    """Yield the same values in batches of ``rows`` rows, because the bits of a mean depend on its batches."""
    pending: list[pa.BinaryArray] = []
    size = 0
    for part in parts:
        while len(part):
            pending.append(part[: rows - size])
            size += len(pending[-1])
            part = part[len(pending[-1]) :]
            if size == rows:
                yield pa.concat_arrays(pending)
                pending, size = [], 0
    if pending:
        yield pa.concat_arrays(pending)


def open_ping_file(path: str | Place, document: DocumentType, age: int = 0, done: bool = False) -> PingFile:
    """Read the footer of a file of pings of one type.

    Raises:
        UnreadableFile: the file isn't regular, is truncated, damaged or not Parquet, or its columns don't match the
            type of pings.
        FedpingError: the file doesn't exist any more.
    """
    first, others = document.counted_by[:1], document.counted_by[1:]
    landed = open_pings(path, document, [*_screened(document), UPDATE, *others])
    schema = schema_of(landed)
    instead = tuple(name for name in others if name in schema.names) if _can_be_null(schema, *first) else ()
    groups = int(landed.footer.num_row_groups)
    return PingFile(
        landed,
        rows=int(landed.footer.num_rows),
        groups=groups,
        shards=shards_in(landed.footer.metadata, groups),
        age=age,
        done=done,
        instead=instead,
    )


def _can_be_null(schema: pa.Schema, *names: str) -> bool:
    return any(name in schema.names and schema.field(name).nullable for name in names)


def _rows(batch: pa.RecordBatch, rules: Rules, file: PingFile) -> Rows:
    return Rows(
        document=id_bytes(batch.column("document_id")).view("<u8"),
        client=id_bytes(batch.column("client_id")).view("<u8"),
        version=batch.column("model_version").to_numpy(),
        counted=counted(batch, rules.document).to_numpy(),
        loss=batch.column("loss").to_numpy() if rules.document.tells_loss else np.zeros(len(batch)),
        arm=_indices(batch.column("study_variation"), {name: i for i, name in enumerate(rules.arms)}),
        codec=_indices(batch.column(UPDATE_ENCODING), {rules.links.encoding: 0}),
        age=np.full(len(batch), file.age, np.int16),
        done=np.full(len(batch), file.done),
        outcome=_outcome(batch, rules.guarded, file),
    )


def _outcome(batch: pa.RecordBatch, outcome: NumericOutcome | None, file: PingFile) -> NDArray[np.float64]:
    """Return an outcome clipped to its bounds. A missing value becomes the allowed value nearest to 0."""
    if outcome is None:
        return np.zeros((len(batch), 0))
    low, high = outcome_range(outcome)
    if outcome.name not in batch.schema.names:
        return np.full((len(batch), 1), min(max(0.0, low), high))
    column = batch.column(outcome.name)
    if not (pa.types.is_boolean(column.type) or pa.types.is_integer(column.type) or pa.types.is_floating(column.type)):
        raise UnreadableFile(file.path, f"is not a file of this study: its column '{outcome.name}' is {column.type}")
    values = pc.fill_null(column.cast(pa.float64()), min(max(0.0, low), high)).to_numpy()
    within: NDArray[np.float64] = np.clip(np.nan_to_num(values, nan=min(max(0.0, low), high)), low, high)
    return within[:, None]


def _indices(column: pa.DictionaryArray, known: Mapping[str, int]) -> NDArray[np.int16]:
    """Return each text's number in ``known``; UNKNOWN if the text isn't in ``known``, MISSING if it is null."""
    texts = column.dictionary.to_pylist()
    numbers = np.array([*(known.get(text, UNKNOWN) for text in texts), MISSING], dtype=np.int16)
    indices = column.indices.fill_null(len(texts)) if column.null_count else column.indices
    mapped: NDArray[np.int16] = numbers[indices.to_numpy()]
    return mapped
