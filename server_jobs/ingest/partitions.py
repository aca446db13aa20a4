"""Conversion of segments to partitions of the landing folder.

Records are processed as whole columns, never ping by ping.
"""

from __future__ import annotations

import binascii
import functools
import os
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.json
from numpy.typing import NDArray

from fedping.model_store.store import open_store
from fedping.protocol.arrow import UPDATE, UPDATE_ENCODING, landed_schema
from fedping.protocol.encodings.dense import dense_payloads
from fedping.protocol.errors import FedpingError
from fedping.protocol.landed_file import UnreadableFile, open_landed
from fedping.protocol.landing import APART, OLDER, SHARDS, landed_at, landed_files, outcome_folder, partition
from fedping.protocol.location import Place, base_name
from fedping.protocol.ping import DOCUMENT_TYPES, LIST_UPDATE, NO_VERSION, OUTCOME, DocumentType
from fedping.protocol.study import Study
from fedping.protocol.update import DENSE, EncodedUpdate
from fedping.server_jobs.ingest.quarantine import Piece, pieces_of
from fedping.server_jobs.ingest.segments import (
    CLOSED,
    OPEN,
    Damage,
    Frame,
    document_in,
    is_abandoned,
    payloads,
    scan,
    segments,
)

STUDY, LINE, SEGMENT = "study", "line", "segment"
ENCODED = "encoded"
"""The field of a record for an encoded update: its tag, and its payload, in base64 until it is read."""

CHOICE = "choice"
"""The field of a later outcome's record with the document of its choice."""

BY_STUDY_TYPES = (LIST_UPDATE.name, OUTCOME.name)
"""Ping types whose columns differ by study."""

ENVELOPE = ("document_id", "client_id", "received_at")
_BLOCK = 256 * 1024
_DAY_MS = 86_400_000


@functools.lru_cache(maxsize=64)
def record_schema(document: DocumentType) -> pa.Schema:
    """Return the schema of a journal line as JSON: :class:`fedping.server_jobs.ingest.segments.JournalRecord`."""
    payload = [_as_json(f) for f in landed_schema(document) if f.name not in (*ENVELOPE, UPDATE_ENCODING)]
    return pa.schema(
        [
            pa.field("document_id", pa.string()),
            pa.field("client_id", pa.string()),
            pa.field("received_at", pa.int64()),
            pa.field("payload", pa.struct(payload)),
            pa.field(STUDY, pa.string()),
            pa.field(LINE, pa.string()),
            pa.field(ENCODED, pa.struct([pa.field(name, pa.string()) for name in EncodedUpdate.__struct_fields__])),
        ]
    )


def _as_json(field: pa.Field) -> pa.Field:
    if field.name == UPDATE:
        return pa.field(UPDATE, pa.list_(pa.float32()))
    if pa.types.is_dictionary(field.type):
        return pa.field(field.name, pa.string())
    return pa.field(field.name, pa.string() if field.name == CHOICE else field.type)


def read_records(lines: bytes, document: DocumentType) -> pa.Table:
    """Return JSON lines of one type as a table with the envelope, the payload's fields, study and line.

    If a type's columns differ by study, all lines must belong to one study. The columns are inferred from the lines,
    because their declarations are in the store, and pings land even while the store is unreachable.

    Raises:
        pa.ArrowInvalid: a line isn't JSON or has other fields.
        ValueError: a field is missing, an id isn't written as a UUID, or a payload isn't base64.
    """
    table = _table_of(lines, record_schema(document), "infer" if document.name in BY_STUDY_TYPES else "error")
    if document.name in BY_STUDY_TYPES:
        table = _with_texts(table, lines, record_schema(document))
    columns = {name: table.column(name) for name in (*ENVELOPE, STUDY, LINE, ENCODED)}
    payload = table.column("payload").combine_chunks()
    fields = dict(zip((f.name for f in payload.type), payload.flatten(), strict=True))
    records = pa.table({**columns, **fields}).combine_chunks()
    _check_complete(records, document)
    at = records.schema.get_field_index(ENCODED)
    return records.set_column(at, ENCODED, _with_bytes(_one(records.column(ENCODED))))


def _table_of(lines: bytes, schema: pa.Schema, unexpected: str) -> pa.Table:
    return pyarrow.json.read_json(
        pa.BufferReader(lines),
        read_options=pyarrow.json.ReadOptions(use_threads=False, block_size=_block_bytes(lines)),
        parse_options=pyarrow.json.ParseOptions(explicit_schema=schema, unexpected_field_behavior=unexpected),
    )


_COLUMN_TYPES = {pa.bool_(): pa.bool_(), pa.int64(): pa.int32(), pa.float64(): pa.float64(), pa.string(): pa.string()}
"""Landed types of outcomes' columns, by the types inferred from JSON. The encoder writes flags, counts, numbers and
categories differently."""


def _with_texts(table: pa.Table, lines: bytes, schema: pa.Schema) -> pa.Table:
    """Return records with only outcomes as inferred columns. Texts that were inferred as times are read again as texts.

    Raises:
        ValueError: the lines have a field with a type that outcomes can't have.
    """
    payload = schema.field("payload").type
    known = {field.name for field in payload}
    found = [field for field in table.schema.field("payload").type if field.name not in known]
    if times := [pa.field(field.name, pa.string()) for field in found if pa.types.is_timestamp(field.type)]:
        at = schema.get_field_index("payload")
        table = _table_of(lines, schema.set(at, pa.field("payload", pa.struct([*payload, *times]))), "infer")
        found = [field for field in table.schema.field("payload").type if field.name not in known]
    odd = [field.name for field in found if field.type not in _COLUMN_TYPES]
    odd += [name for name in table.schema.names if name not in schema.names]
    if odd:
        raise ValueError(f"a record has a field {odd[0]}, which is no outcome")
    return table


def _check_complete(records: pa.Table, document: DocumentType) -> None:
    required = [f.name for f in landed_schema(document) if not f.nullable]
    missing = [name for name in [*required, STUDY] if records.column(name).null_count]
    if missing:
        raise ValueError(f"a record has no {missing[0]}")
    for name in ("document_id", "client_id", *([CHOICE] if CHOICE in records.schema.names else [])):
        if pc.all(pc.equal(pc.binary_length(records.column(name)), 36)).as_py() is False:
            raise ValueError(f"a {name} is not a UUID")


def _with_bytes(encoded: pa.StructArray) -> pa.StructArray:
    """Return encoded updates with their payloads decoded to bytes."""
    payloads = from_base64(encoded.field("payload"))
    return pa.StructArray.from_arrays(
        [encoded.field("encoding"), payloads], names=["encoding", "payload"], mask=encoded.is_null()
    )


def _block_bytes(lines: bytes) -> int:
    """Return a block size that fits the longest line; small blocks keep the parser in the processor's cache."""
    longest = 0
    if len(lines) > _BLOCK:
        ends = np.flatnonzero(np.frombuffer(lines, dtype=np.uint8) == ord("\n"))
        longest = int(np.diff(ends, prepend=-1).max(initial=0))
    return max(_BLOCK, 2 * longest)


def landed_columns(records: pa.Table, document: DocumentType) -> pa.Table:
    """Return one partition's records in the schema :func:`fedping.protocol.arrow.landed_schema`.

    Declared columns that are missing in all records are null. Undeclared columns, which ingest accepted by a newer
    declaration, follow in the order of their names.
    """
    columns = {
        "document_id": uuid_column(records.column("document_id")),
        "client_id": uuid_column(records.column("client_id")),
    }
    names = records.schema.names
    if UPDATE in names:
        columns[UPDATE], columns[UPDATE_ENCODING] = _updates(
            _one(records.column(UPDATE)), _one(records.column(ENCODED))
        )
    if CHOICE in names:
        columns[CHOICE] = _uuids_or_null(records.column(CHOICE))
    schema = landed_schema(document)
    for name in sorted(set(names) - set(schema.names) - {*ENVELOPE, STUDY, LINE, ENCODED, SEGMENT}):
        schema = schema.append(pa.field(name, _landed_type(records.schema.field(name).type)))
    arrays = []
    for at, field in enumerate(schema):
        if field.name in columns:
            arrays.append(columns[field.name])
            continue
        if field.name not in names:
            arrays.append(pa.nulls(len(records), field.type))
            continue
        column = records.column(field.name)
        if column.type in _COLUMN_TYPES and field.nullable and field.name not in _base_names(document):
            field = pa.field(field.name, _landed_type(column.type))
            schema = schema.set(at, field)
        arrays.append(_cast(column, field))
    return pa.table(arrays, schema=schema)


def _base_names(document: DocumentType) -> frozenset[str]:
    return frozenset(landed_schema(DOCUMENT_TYPES[document.name]).names)


def _landed_type(read: pa.DataType) -> pa.DataType:
    """Return the landed type of an outcome's column, from its type in records."""
    kind = _COLUMN_TYPES[read]
    return pa.dictionary(pa.int32(), kind) if pa.types.is_string(kind) else kind


def _uuids_or_null(column: pa.ChunkedArray) -> pa.Array:
    """Return UUIDs as a column of 16-byte values, null for null."""
    texts = _one(column)
    if texts.null_count == len(texts):
        return pa.nulls(len(texts), pa.binary(16))
    there = pa.array(np.cumsum(np.asarray(texts.is_valid())) - 1, mask=np.asarray(texts.is_null()))
    return uuid_column(pa.chunked_array([texts.drop_null()])).take(there)


def _cast(column: pa.ChunkedArray, field: pa.Field) -> pa.ChunkedArray:
    return pc.dictionary_encode(column) if pa.types.is_dictionary(field.type) else column.cast(field.type)


def _updates(dense: pa.ListArray, encoded: pa.StructArray) -> tuple[pa.Array, pa.Array]:
    """Return the payloads of updates and their tags; both are null for pings without an update."""
    payloads, tags = _dense_updates(dense)
    if encoded.null_count == len(encoded):
        return payloads, tags
    others = pc.dictionary_encode(encoded.field("encoding"))  # a null struct's fields are null, too
    every = pa.array([DENSE, *others.dictionary.to_pylist()], pa.string())
    numbers = pc.if_else(encoded.is_valid(), pc.add(others.indices, 1), tags.indices)
    merged = pc.coalesce(encoded.field("payload"), payloads)
    return merged, pa.DictionaryArray.from_arrays(numbers.cast(pa.int32()), every)


def _dense_updates(updates: pa.ListArray) -> tuple[pa.Array, pa.DictionaryArray]:
    lengths = np.asarray(pc.fill_null(pc.list_value_length(updates), -1).to_numpy(zero_copy_only=False))
    tags = pa.DictionaryArray.from_arrays(
        pa.array(np.zeros(len(lengths), np.int32), mask=lengths < 0), pa.array([DENSE])
    )
    parts: list[pa.Array] = []
    where = np.zeros(len(lengths), dtype=np.int64)
    before = 0
    for m in np.unique(lengths[lengths >= 0]):
        rows = np.flatnonzero(lengths == m)
        values = updates.take(pa.array(rows)).flatten().to_numpy(zero_copy_only=False).reshape(len(rows), m)
        parts.append(dense_payloads(values))
        where[rows] = before + np.arange(len(rows))
        before += len(rows)
    if not parts:
        return pa.nulls(len(lengths), pa.binary()), tags
    return pa.concat_arrays(parts).take(pa.array(where, mask=lengths < 0)), tags


def _one(column: pa.ChunkedArray) -> pa.Array:
    combined = column.combine_chunks()
    return combined.chunk(0) if isinstance(combined, pa.ChunkedArray) else combined


def from_base64(texts: pa.StringArray) -> pa.BinaryArray:
    """Return the bytes of padded base64 texts, null for null.

    Texts are decoded one by one, with one pass of the standard library over each. NumPy would need several passes
    over all texts.

    Raises:
        binascii.Error: a text isn't base64; the error is a ValueError.
    """
    k = len(texts)
    _, offsets, data = texts.buffers()
    letters, starts = memoryview(data or b""), np.frombuffer(offsets, np.int32, count=k + 1, offset=4 * texts.offset)
    if (np.diff(starts) % 4).any():  # the library accepts too much padding
        raise binascii.Error("a payload has a wrong length for base64")
    parts = [binascii.a2b_base64(letters[low:high], strict_mode=True) for low, high in pairwise(starts.tolist())]
    ends = np.zeros(k + 1, np.int32)
    np.cumsum([len(part) for part in parts], out=ends[1:])
    valid = texts.is_valid().buffers()[1] if texts.null_count else None
    return pa.BinaryArray.from_buffers(pa.binary(), k, [valid, pa.py_buffer(ends), pa.py_buffer(b"".join(parts))])


_HEX = np.zeros(256, dtype=np.uint8)
_HEX[np.frombuffer(b"0123456789abcdef", dtype=np.uint8)] = np.arange(16)
_DIGITS = np.delete(np.arange(36), [8, 13, 18, 23])


def uuid_bytes(column: pa.ChunkedArray) -> NDArray[np.uint8]:
    """Return UUIDs, written in lower case with hyphens, as an array of shape (k, 16)."""
    texts = _one(column)
    _, offsets, data = texts.buffers()
    first = int(np.frombuffer(offsets, dtype=np.int32)[texts.offset]) if len(texts) else 0
    letters = np.frombuffer(data or b"", dtype=np.uint8, count=36 * len(texts), offset=first).reshape(-1, 36)
    nibbles = _HEX[letters[:, _DIGITS]]
    packed: NDArray[np.uint8] = np.bitwise_or(nibbles[:, 0::2] * np.uint8(16), nibbles[:, 1::2], dtype=np.uint8)
    return packed


def uuid_column(column: pa.ChunkedArray) -> pa.Array:
    """Return UUIDs, written in lower case with hyphens, as a column of 16-byte values."""
    data = np.ascontiguousarray(uuid_bytes(column))
    return pa.FixedSizeBinaryArray.from_buffers(pa.binary(16), len(data), [None, pa.py_buffer(data)])


SEGMENTS_KEY = b"fedping.segments"
"""Footer key of a landed file for the names of its pings' journal segments."""


@dataclass(frozen=True)
class Part:
    """The records of one partition, as row numbers of their table."""

    folder: Place
    rows: NDArray[np.int64]

    @property
    def is_shared(self) -> bool:
        """Whether the partition holds pings of several versions."""
        return base_name(self.folder) == f"iteration={OLDER}"


class Newest:
    """The newest version of each line among the pings so far.

    It is read from admitted pings, so that pings land while the store can't be read. The landing folder isn't used,
    because it may have foreign files. The newest version here is at most the published version, so every version that
    a round may still need has a separate folder.
    """

    def __init__(self) -> None:
        self._versions: dict[tuple[str, str | None], int] = {}

    def seen(self, study: str, line: str | None, version: int) -> int:
        """Record a version; return the newest version so far."""
        newest = self._versions[study, line] = max(version, self._versions.get((study, line), NO_VERSION))
        return newest


def outcome_parts(records: pa.Table, landing: Place) -> Iterator[Part]:
    """Yield the partitions of later outcomes, by study and day of receipt. Each row is in exactly one partition."""
    studies = records.column(STUDY).combine_chunks().dictionary_encode()
    days = records.column("received_at").to_numpy() // _DAY_MS
    for (study, day), rows in _groups(np.stack([_codes(studies), days], axis=1)):
        name, date = studies.dictionary[int(study)].as_py(), np.datetime64(int(day), "D")
        yield Part(outcome_folder(landing, name, str(date)), rows)


def parts_of(records: pa.Table, landing: Place, newest: Newest) -> Iterator[Part]:
    """Yield the partitions of records. Each row is in exactly one partition.

    A line has at most :data:`fedping.protocol.landing.APART` + 3 partitions, even if its pings claim arbitrary
    versions.
    """
    studies, lines = (records.column(name).combine_chunks().dictionary_encode() for name in (STUDY, LINE))
    versions = records.column("model_version").to_numpy().astype(np.int64)
    of_line = np.stack([_codes(studies), _codes(lines)], axis=1)
    for (study, line), where in _groups(of_line):
        names = studies.dictionary[int(study)].as_py(), None if line < 0 else lines.dictionary[int(line)].as_py()
        mine = versions[where]
        oldest = newest.seen(*names, int(mine.max())) - APART
        folders = np.where((mine >= oldest) | (mine == NO_VERSION), mine, OLDER)
        for (folder,), rows in _groups(folders[:, None]):
            yield Part(partition(landing, *names, int(folder)), where[rows])


def _groups(keys: NDArray[np.int64]) -> Iterator[tuple[NDArray[np.int64], NDArray[np.int64]]]:
    """Yield each distinct row of ``keys``, shape (k, n), with its positions, in order."""
    if not len(keys):
        return
    distinct, inverse = np.unique(keys, axis=0, return_inverse=True)
    order = np.argsort(inverse.ravel(), kind="stable")
    bounds = np.searchsorted(inverse.ravel()[order], np.arange(len(distinct) + 1))
    for key, low, high in zip(distinct, bounds[:-1], bounds[1:], strict=True):
        yield key, order[low:high]


def _codes(column: pa.DictionaryArray) -> NDArray[np.int64]:
    codes: NDArray[np.int64] = column.indices.fill_null(-1).to_numpy(zero_copy_only=False).astype(np.int64)
    return codes


def segment_note(names: Iterable[str]) -> dict[bytes, bytes]:
    """Return the footer entry that names source segments."""
    return {SEGMENTS_KEY: msgspec.json.encode(sorted(names))}


def landed_segments(folder: Place, since_ms: int) -> dict[str, set[Place]]:
    """Return the segments named in the footers of a partition's files that landed at or after ``since_ms``.

    Each segment is returned with the files that name it.
    """
    names: dict[str, set[Place]] = {}
    for file in landed_files(folder):
        stamp = landed_at(file)
        if stamp is not None and stamp >= since_ms:
            for name in _segments_named(file):
                names.setdefault(name, set()).add(file)
    return names


def _segments_named(file: Place) -> list[str]:
    try:
        metadata = open_landed(file).footer.metadata or {}
        return msgspec.json.decode(metadata.get(SEGMENTS_KEY, b"[]"), type=list[str])
    except (UnreadableFile, msgspec.MsgspecError, UnicodeDecodeError, OSError):
        return []  # A foreign or damaged file: not one of ours, and the round will report it.


@dataclass(frozen=True)
class Source:
    """The contents of one segment: its records, and its unreadable pieces."""

    segment: Path
    records: pa.Table | None
    pieces: tuple[Piece, ...]

    @property
    def rows(self) -> int:
        """The number of the segment's pings, including unreadable pings."""
        return (0 if self.records is None else self.records.num_rows) + sum(piece.damage.rows for piece in self.pieces)


def close_abandoned(journal: Path, set_aside: Callable[[Iterable[Piece]], None]) -> int:
    """Close the segments whose writers died; return their number.

    An unfinished write, whose pings were never accepted, is passed to ``set_aside`` and cut off. Other damage is left
    to the reader of the closed segment.
    """
    abandoned = [path for path in segments(journal, OPEN) if is_abandoned(path)]
    for path in abandoned:
        _cut_torn_tail(path, set_aside)
        os.rename(path, path.with_suffix(CLOSED))
    return len(abandoned)


def _cut_torn_tail(path: Path, set_aside: Callable[[Iterable[Piece]], None]) -> None:
    data = path.read_bytes()
    torn = [piece for piece in scan(data, unfinished=True).damaged if piece.cause == "torn"]
    if torn:
        set_aside(pieces_of(path, data, torn))
        with open(path, "r+b") as file:
            file.truncate(torn[0].start)
            os.fsync(file.fileno())


def read_source(segment: Path, index: int) -> Source:
    """Return the records of a closed segment, each marked with ``index``."""
    data = segment.read_bytes()
    contents = scan(data)
    tables, unreadable = _tables(data, contents.frames, DOCUMENT_TYPES[document_in(segment)])
    records = pa.concat_tables(tables) if tables else None
    if records is not None:
        records = records.append_column(SEGMENT, pa.array(np.full(records.num_rows, index, np.int32)))
    return Source(segment, records, pieces_of(segment, data, (*contents.damaged, *unreadable)))


def _tables(data: bytes, frames: tuple[Frame, ...], document: DocumentType) -> tuple[list[pa.Table], list[Damage]]:
    """Parse all frames at once. If that fails, parse them one by one, so that only bad frames are lost."""
    if not frames:
        return [], []
    try:
        return [_checked(b"".join(payloads(data, frames)), sum(frame.rows for frame in frames), document)], []
    except (pa.ArrowException, ValueError):
        return _frame_by_frame(data, frames, document)


def _frame_by_frame(
    data: bytes, frames: tuple[Frame, ...], document: DocumentType
) -> tuple[list[pa.Table], list[Damage]]:
    tables, unreadable = [], []
    for frame in frames:
        try:
            tables.append(_checked(data[frame.start : frame.end], frame.rows, document))
        except (pa.ArrowException, ValueError):
            unreadable.append(Damage(frame.start, frame.end, frame.rows, "records"))
    return tables, unreadable


def _checked(lines: bytes, rows: int, document: DocumentType) -> pa.Table:
    """Return the records in ``lines``; raise ValueError unless there are exactly ``rows``."""
    records = read_records(lines, document)
    if records.num_rows != rows:
        raise ValueError(f"there are {records.num_rows} records, and {rows} were written")
    return records


LOOK_EVERY = 30.0
"""Seconds between two reads of the store."""


class Layouts:
    """The layout of each study's files: the number of shards, and the declared columns of its outcomes.

    Files are correct with any number of shards; only the speed of rounds depends on it. Unknown columns are inferred
    from the pings. So pings land even while the store can't be read, and a store in a bucket can be read in a thread.
    """

    def __init__(self, store: Place) -> None:
        self._store = store
        self._known: dict[str, tuple[int, Study]] = {}  # by name: history entry's number, study
        self._looked = -LOOK_EVERY
        self._looking = threading.Lock()

    def shards(self, study: str) -> int:
        """Return the number of shards of a study; :data:`SHARDS` if the study is unknown."""
        found = self._study(study)
        return SHARDS if found is None else found.shards

    def document(self, study: str, document: DocumentType) -> DocumentType:
        """Return a ping type with the columns that a study declares, if they are known."""
        found = self._study(study)
        declared = () if found is None else (found.document, found.later_outcomes)
        return next((each for each in declared if each is not None and each.name == document.name), document)

    def _study(self, study: str) -> Study | None:
        if time.monotonic() - self._looked >= LOOK_EVERY and self._looking.acquire(blocking=False):
            self._looked = time.monotonic()
            if isinstance(self._store, Path):
                self._look()
            else:
                threading.Thread(target=self._look, name="layouts", daemon=True).start()
        return self._known.get(study, (0, None))[1]

    def _look(self) -> None:
        """Read changed settings. Unreadable studies keep their known layout."""
        try:
            store = open_store(self._store)
            for name in store.studies.names():
                try:
                    if self._known.get(name, (-1, None))[0] != store.studies.settings_entry(name):
                        self._known[name] = store.studies.settings(name)
                except (FedpingError, OSError):
                    continue
        except (FedpingError, OSError):
            return
        finally:
            self._looking.release()
