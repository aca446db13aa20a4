"""Import of pings from a product's own files, with the same checks as ingest over HTTP.

Each row becomes a line of a batch. It is decoded and admitted by ingest's rules for the study, and lands through a
journal, like any ping. Unsuitable rows are counted by reason, like rejections.

An import may be repeated at any time, because rows that have landed before are skipped. Rows are recognised by their
document id. If rows have none, it is computed from the study and the columns that identify a row; never from the
row's position, which differs between two exports.
"""

from __future__ import annotations

import base64
import json
import math
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import cached_property, partial
from pathlib import Path
from typing import Any
from uuid import NAMESPACE_OID, UUID, uuid5

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from msgspec.structs import replace
from numpy.typing import NDArray

from fedping.model_store.store import ModelStore
from fedping.protocol.arrow import UPDATE, UPDATE_ENCODING, landed_schema
from fedping.protocol.errors import FedpingError, InvalidSettings, TemporaryFailure
from fedping.protocol.landed_file import first_line, open_landed
from fedping.protocol.landing import id_bytes, open_landing, study_of
from fedping.protocol.location import Place, place_of
from fedping.protocol.outcomes import linked_id
from fedping.protocol.ping import DocumentType
from fedping.protocol.study import Study
from fedping.protocol.update import DENSE
from fedping.server_jobs.ingest.admission import LineHead, StudyRules, study_rules
from fedping.server_jobs.ingest.answers import Rejection
from fedping.server_jobs.ingest.backlog import request_flush, wait_until_landed
from fedping.server_jobs.ingest.compactor import Compactor
from fedping.server_jobs.ingest.counters import Counters
from fedping.server_jobs.ingest.journal import Journal
from fedping.server_jobs.ingest.segments import JournalRecord, encode_records
from fedping.server_jobs.ingest.settings import COMPACTOR_LOCK, IngestSettings
from fedping.server_jobs.ingest.submit import record_of
from fedping.server_jobs.processes import Lock

ROWS = 8192
"""Maximum number of rows converted at a time."""

MOST_BYTES = 64 * 2**20
"""Approximate bytes of rows converted at a time, and maximum bytes of a line of JSON."""

IMPORT_LOCK = ".import.lock"
"""Lock file in the journal's folder. One import at a time holds it."""

PATIENCE_S = 600.0
"""Seconds that an import waits for a running ingest to land the journal."""

_ENVELOPE = ("document_id", "client_id", "received_at")


@dataclass(kw_only=True)
class Imported:
    """Outcome of the rows of an import.

    Attributes:
        rows: rows that were read.
        pings: pings written to the journal; of a dry run, pings that would be written.
        known: pings that had landed before, and repeated pings in the files.
        left_out: numbers of rows or values that were left out, by reason.
        examples: the first sentence for each reason, with file and row.
        ignored: columns of the files that aren't fields of these pings.
    """

    rows: int = 0
    pings: int = 0
    known: int = 0
    left_out: Counter[str] = field(default_factory=Counter)
    examples: dict[str, str] = field(default_factory=dict)
    ignored: list[str] = field(default_factory=list)

    def refuse(self, reason: str, sentence: str, where: str) -> None:
        """Count a row that is left out."""
        self.left_out[reason] += 1
        self.examples.setdefault(reason, f"{where}: {sentence}")


@dataclass(frozen=True, kw_only=True)
class Import:
    """The input of an import: the files, and the names of their columns.

    Attributes:
        study: the study.
        store: the store with the study's versions.
        files: Parquet files, or files of JSON lines (``.ndjson``, ``.jsonl``) with one object per row.
        names: column names by ping field, for columns not named like their field.
        key: columns that identify a row, for rows without a document id.
    """

    study: Study
    store: ModelStore
    files: Sequence[Path]
    names: Mapping[str, str] = field(default_factory=dict)
    key: Sequence[str] = ()

    @cached_property
    def kinds(self) -> Mapping[Path, Mapping[str, str]]:
        """The columns of each file, with the kinds of their values. Files of JSON lines are read completely."""
        return {path: _kinds(path) for path in self.files}

    def check(self) -> DocumentType:
        """Return the type of the pings in the files, by their columns.

        Raises:
            InvalidSettings: files have different ping types or different kinds of a column, or no column identifies
                their rows.
        """
        later = self.study.later_outcomes
        first = next(iter(self.kinds.values()))
        has = set(self._ours(first))
        columns = () if later is None else tuple(outcome.name for outcome in later.outcomes)
        is_later = later is not None and has.intersection(columns) and UPDATE not in has
        document = later if later is not None and is_later else self.study.document
        fields = landed_schema(document).names
        for path, kinds in self.kinds.items():
            for name in self.key:
                if name not in kinds:
                    raise InvalidSettings(f"--key names '{name}', which {path} doesn't have; it has {', '.join(kinds)}")
            for name, kind in kinds.items():
                if name in first and "nothing" not in (kind, first[name]) and kind != first[name]:
                    raise InvalidSettings(
                        f"the column '{name}' is {kind} in {path}, and {first[name]} in {self.files[0]}. Import "
                        "files with the same column types, or remove the column from one"
                    )
            ours = self._ours(kinds)
            if unknown := [name for name in self.names if self.names[name] not in kinds]:
                raise InvalidSettings(
                    f"--map {unknown[0]}={self.names[unknown[0]]}: {path} has no column '{self.names[unknown[0]]}'; it "
                    f"has {', '.join(kinds)}"
                )
            if unknown := [name for name in self.names if name not in fields]:
                raise InvalidSettings(
                    f"--map {unknown[0]}=…: {document.name} pings of study '{self.study.name}' have no field "
                    f"'{unknown[0]}'; they have {', '.join(fields)}"
                )
            if "document_id" not in ours and not self.key and not (document.is_outcome and "choice" in ours):
                raise InvalidSettings(
                    f"the rows of {path} have no 'document_id', so a repeated import could not recognise them. Give "
                    "--key with the columns that identify a row, such as --key order_id"
                )
        return document

    def _ours(self, kinds: Mapping[str, str]) -> dict[str, str]:
        """Return the column names by ping field."""
        renamed = set(self.names.values())
        return {**{name: name for name in kinds if name not in renamed}, **self.names}


def run_import(
    request: Import, landing: Place, journal: Path, *, dry_run: bool, tell: Callable[[str], None] = lambda said: None
) -> Imported:
    """Import files. All pings are in Parquet when this returns.

    Raises:
        InvalidSettings: the files don't fit the study.
        FedpingError: a file can't be read.
        TemporaryFailure: a running ingest doesn't land the journal in time, or another import is running. The same
            command can be repeated later.
    """
    document = request.check()
    settings = IngestSettings(store=place_of(request.store.where), landing=landing, journal=journal)
    if dry_run:
        return _imported(request, document, settings, None, tell)
    journal.mkdir(parents=True, exist_ok=True)
    lock = Lock(journal / IMPORT_LOCK)
    if not lock.take():
        raise TemporaryFailure(
            f"another import into the journal {journal} is running. Wait until it ends, then try again"
        )
    try:
        _land(settings)
        out = Journal(journal, settings.roll_bytes, Counters(settings.counters), document.journal)
        found = _imported(request, document, settings, out, tell)
        if found.pings:
            out.roll()
            _land(settings)
        return found
    finally:
        lock.release()


def _imported(
    request: Import,
    document: DocumentType,
    settings: IngestSettings,
    out: Journal | None,
    tell: Callable[[str], None],
) -> Imported:
    """Write pings that haven't landed yet to the journal, unless it is None, and return the rows' outcome."""
    landing, found = settings.landing, Imported()
    known, rules = _Known(_landed_ids(landing, request.study.name)), _rules(request)
    rules = rules.of_kind(document.name, document.version)
    for records in _records(request, document, rules, known, found):
        if out is not None:
            out.append(encode_records(records), len(records))
        found.pings += len(records)
        tell(f"{found.rows:,} rows read, {found.pings:,} pings accepted")
    return found


def _rules(request: Import) -> StudyRules:
    """Return the study's rules without tickets, which are only needed for untrusted clients."""
    study, lines = replace(request.study, tickets="none"), request.store.lines
    heads = {
        line.name: LineHead(lines.newest(study.name, line.name), partial(lines.newest_from, study.name, line.name))
        for line in study.lines
    }
    return study_rules(study, heads)


def _records(
    request: Import, document: DocumentType, rules: StudyRules, known: _Known, found: Imported
) -> Iterator[list[JournalRecord]]:
    now_ms = int(time.time() * 1000)
    convert = _Conversion(request, document, rules)
    for path in request.files:
        at = 0
        kinds = request.kinds[path]
        for rows in _rows_of(path, convert.wanted(kinds)):
            records: list[JournalRecord] = []
            for number, row in enumerate(rows, at + 1):
                found.rows += 1
                where = f"{path} row {number}"
                try:
                    for line, received_ms in convert.lines(row, now_ms):
                        ping = rules.decoding.batched(line)
                        records.append(record_of(rules, ping.document_id, ping, received_ms))
                except Rejection as rejection:
                    found.refuse(rejection.reason, rejection.sentence, where)
                except _Unfit as error:
                    found.refuse(error.reason, str(error), where)
            at += len(rows)
            fresh = known.add([record.document_id.bytes for record in records])
            found.known += len(records) - sum(fresh)
            if taken := [record for record, is_new in zip(records, fresh, strict=True) if is_new]:
                yield taken
        found.ignored = sorted({*found.ignored, *convert.ignored(kinds)})


class _Unfit(Exception):
    """A row can't be converted to a ping. It is counted by ``reason``."""

    def __init__(self, reason: str, sentence: str) -> None:
        super().__init__(sentence)
        self.reason = reason


class _Conversion:
    """Converts rows to lines of a batch."""

    def __init__(self, request: Import, document: DocumentType, rules: StudyRules) -> None:
        self._request, self._document = request, document
        self._types = {field.name: field.type for field in landed_schema(document)}
        self._m = {name: rule.m for name, rule in rules.arms.items() if hasattr(rule, "m")}
        self._namespace = uuid5(NAMESPACE_OID, f"fedping {request.study.name} {document.name}")
        self._linked = {outcome.name for outcome in document.outcomes if outcome.linked}
        self._columns = {outcome.name for outcome in document.outcomes} if document.is_outcome else set()

    def ignored(self, kinds: Mapping[str, str]) -> set[str]:
        ours = self._request._ours(kinds)
        return {column for name, column in ours.items() if name not in self._types and column not in self._request.key}

    def wanted(self, kinds: Mapping[str, str]) -> dict[str, str]:
        """Return the columns to read from a file, with their kinds."""
        fields = {column for name, column in self._request._ours(kinds).items() if name in self._types}
        return {column: kind for column, kind in kinds.items() if column in fields or column in self._request.key}

    def lines(self, row: Mapping[str, Any], now_ms: int) -> Iterator[tuple[bytes, int]]:
        """Yield a row's lines, each with its time of receipt. A row of later outcomes has a line for each value."""
        values: dict[str, Any] = {}
        for name, column in self._request._ours(dict.fromkeys(row, "")).items():
            if name in self._types and (value := row.get(column)) is not None and value == value:  # not NaN
                values[name] = self._value(name, value)
        received = values.pop("received_at", now_ms)
        if received > now_ms:
            raise _Unfit("received_in_future", "'received_at' is in the future; correct or remove it")
        if received < 0:  # a time beyond days and timestamps would keep its segment from landing
            raise _Unfit("received_before_1970", "'received_at' is before 1970; correct or remove it")
        own, client = values.pop("document_id", None), values.pop("client_id", None)
        if self._columns:
            shared = {name: value for name, value in values.items() if name not in self._columns}
            for name in sorted(values.keys() & self._columns):
                payload = {**shared, name: values[name]}
                if name not in self._linked:
                    payload.pop("choice", None)
                yield self._line(row, own, client, payload, name), received
            if not values.keys() & self._columns:
                raise _Unfit("no_outcome", f"it has none of {', '.join(sorted(self._columns))}")
            return
        encoding = values.pop(UPDATE_ENCODING, DENSE)
        values[UPDATE] = self._update(values.get(UPDATE), encoding, values.get("study_variation"))
        yield self._line(row, own, client, values, ""), received

    def _line(self, row: Mapping[str, Any], own: Any, client: Any, payload: Mapping[str, Any], column: str) -> bytes:
        if column in self._linked and "choice" in payload:
            own = str(linked_id(UUID(payload["choice"]), column))
        elif own is None:
            if missing := next((name for name in self._request.key if row.get(name) is None), None):
                raise _Unfit("no_key", f"its key column '{missing}' is empty, so the row can't be identified")
            own = str(uuid5(self._namespace, json.dumps([column, *(str(row[name]) for name in self._request.key)])))
        head = {"documentId": own, "clientId": client, "type": self._document.name}
        try:
            return msgspec.json.encode({**{name: value for name, value in head.items() if value}, "payload": payload})
        except (TypeError, ValueError, OverflowError) as error:
            raise _Unfit("not_a_ping", f"it has an invalid value ({error})") from None

    def _value(self, name: str, value: Any) -> Any:
        """Return a value as in JSON; raise :class:`_Unfit` if that would lose information."""
        kind = self._types[name]
        if pa.types.is_fixed_size_binary(kind):
            return self._id(name, value)
        if pa.types.is_timestamp(kind):
            return _milliseconds(name, value)
        if pa.types.is_integer(kind) and not isinstance(value, bool | int | str):
            whole = _number(name, value)
            if not whole.is_integer():
                raise _Unfit("not_whole", f"'{name}' is {value}, which is not a whole number")
            return int(whole)
        if pa.types.is_floating(kind) and not isinstance(value, bool | int | str):
            number = _number(name, value)
            return number if math.isfinite(number) else None
        return value

    def _id(self, name: str, value: Any) -> str:
        try:
            return str(UUID(bytes=value) if isinstance(value, bytes) else UUID(str(value)))
        except ValueError:
            raise _Unfit("no_uuid", f"'{name}' is not a UUID, neither as 16 bytes nor as text") from None

    def _update(self, value: Any, encoding: str, arm: Any) -> Any:
        if value is None:
            return None
        if encoding != DENSE:
            if not isinstance(value, bytes):
                raise _Unfit("update_bytes", f"'update' in the encoding {encoding} must be bytes in Parquet")
            return {"encoding": encoding, "payload": base64.b64encode(value).decode()}
        if isinstance(value, bytes):
            if len(value) % 4:
                raise _Unfit("update_length", f"'update' has {len(value)} bytes, which are not float32 numbers")
            return np.frombuffer(value, "<f4").astype(np.float64).tolist()
        return value


def _number(name: str, value: Any) -> float:
    try:
        return float(value)
    except (TypeError, ValueError, OverflowError):
        raise _Unfit("no_number", f"'{name}' is not a number") from None


def _milliseconds(name: str, value: Any) -> int:
    if isinstance(value, datetime):
        return int((value if value.tzinfo else value.replace(tzinfo=UTC)).timestamp() * 1000)
    if isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value):
        return int(value)
    try:
        read = datetime.fromisoformat(str(value))
    except ValueError:
        raise _Unfit("no_time", f"'{name}' is not a time: give a timestamp, or milliseconds since 1970") from None
    return _milliseconds(name, read)


def _is_lines(path: Path) -> bool:
    return path.suffix in (".ndjson", ".jsonl", ".json")


def _rows_of(path: Path, wanted: Mapping[str, str]) -> Iterator[list[dict[str, Any]]]:
    """Yield the rows of a file in lists of about :data:`MOST_BYTES`, or of a single larger row.

    Only the ``wanted`` columns of Parquet files are read. Repeated texts are kept once until they become rows.

    Raises:
        FedpingError: the file can't be read.
    """
    try:
        if _is_lines(path):
            yield from _json_rows(path)
            return
        texts = [column for column, kind in wanted.items() if kind == "a text"]
        with pq.ParquetFile(path, read_dictionary=texts) as file:
            for batch in file.iter_batches(_rows_at_once(file.metadata), columns=list(wanted)):
                plain = _plain(batch)
                step = max(1, MOST_BYTES // max(1, _widest_row(plain)))
                for first in range(0, len(plain), step):
                    yield plain.slice(first, step).to_pylist()
    except (OSError, pa.ArrowException, OverflowError, LookupError) as error:  # times beyond Python's, unknown zones
        raise _unreadable(path, error) from error


def _rows_at_once(metadata: pq.FileMetaData) -> int:
    """Return the number of rows to read at a time, from the uncompressed sizes of the row groups."""
    groups = [metadata.row_group(number) for number in range(metadata.num_row_groups)]
    largest = max((group.total_byte_size / max(1, group.num_rows) for group in groups), default=1.0)
    return max(1, min(ROWS, int(MOST_BYTES / max(1.0, largest))))


def _widest_row(batch: pa.RecordBatch) -> int:
    """Return approximately the sum of all columns' largest values, in bytes."""
    return sum(map(_widest, batch.columns))


def _widest(column: pa.Array) -> int:
    if isinstance(column, pa.DictionaryArray):
        return _widest(column.dictionary)
    kind = column.type
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        return 8 * int(pc.max(pc.list_value_length(column)).as_py() or 0)
    if any(is_kind(kind) for is_kind in (pa.types.is_binary, pa.types.is_string, pa.types.is_large_string)):
        return int(pc.max(pc.binary_length(column)).as_py() or 0)
    return 8 + int(column.nbytes) // max(1, len(column))


def _unreadable(path: Path, error: Exception) -> FedpingError:
    return FedpingError(f"{path} can't be read as Parquet ({first_line(error)}). Give another file")


def _plain(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Return a batch with plain types, and times in nanoseconds cast to microseconds, which Python can represent."""
    arrays = []
    for column in batch.columns:
        if isinstance(column, pa.ExtensionArray):
            column = column.storage
        arrays.append(column.cast(pa.timestamp("us", column.type.tz), safe=False) if _is_nano(column.type) else column)
    return pa.RecordBatch.from_arrays(arrays, names=batch.schema.names)


def _is_nano(kind: pa.DataType) -> bool:
    return bool(pa.types.is_timestamp(kind) and kind.unit == "ns")


def _json_rows(path: Path) -> Iterator[list[dict[str, Any]]]:
    rows: list[dict[str, Any]] = []
    size = 0
    with open(path, "rb") as file:
        for number, line in enumerate(iter(lambda: file.readline(MOST_BYTES + 1), b""), 1):
            if len(line) > MOST_BYTES:
                raise FedpingError(f"{path}:{number}: the line has more than {MOST_BYTES:,} bytes. Remove it")
            if not line.strip():
                continue
            try:
                rows.append(msgspec.json.decode(line, type=dict[str, Any]))
            except (msgspec.MsgspecError, RecursionError) as error:
                raise FedpingError(f"{path}:{number}: the line is not a JSON object ({error}). Correct it") from error
            size += len(line)
            if len(rows) == ROWS or size >= MOST_BYTES:
                yield rows
                rows, size = [], 0
    if rows:
        yield rows


def _kinds(path: Path) -> dict[str, str]:
    """Return the columns of a file, with the kinds of their values."""
    if _is_lines(path):
        found: dict[str, str] = {}
        for rows in _json_rows(path):
            for row in rows:
                for name, value in row.items():
                    if found.get(name, "nothing") == "nothing":
                        found[name] = _json_kind(value)
        return found
    try:
        schema = pq.read_schema(path)
    except (OSError, pa.ArrowException) as error:
        raise _unreadable(path, error) from error
    return {field.name: _kind(field.type) for field in schema}


def _json_kind(value: Any) -> str:
    if isinstance(value, bool):
        return "a flag"
    if isinstance(value, int | float):
        return "a number"
    return {str: "a text", list: "a list", type(None): "nothing"}.get(type(value), "an object")


def _kind(kind: pa.DataType) -> str:
    types = pa.types
    if isinstance(kind, pa.BaseExtensionType):
        kind = kind.storage_type
    if types.is_dictionary(kind):
        return _kind(kind.value_type)
    if types.is_null(kind):
        return "nothing"
    if types.is_boolean(kind):
        return "a flag"
    if types.is_integer(kind) or types.is_floating(kind) or types.is_decimal(kind):
        return "a number"
    if types.is_temporal(kind):
        return "a time"
    if any(is_kind(kind) for is_kind in (types.is_string, types.is_large_string, types.is_string_view)):
        return "a text"
    if types.is_fixed_size_binary(kind) or types.is_binary(kind) or types.is_large_binary(kind):
        return "bytes"
    return "a list" if types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind) else str(kind)


def _land(settings: IngestSettings) -> None:
    """Land all pings in the journal, with a running ingest's compactor or a temporary one.

    Raises:
        TemporaryFailure: a running ingest doesn't land the journal in time.
    """
    settings.journal.mkdir(parents=True, exist_ok=True)
    lock = Lock(settings.journal / COMPACTOR_LOCK)
    if lock.take():
        try:
            compactor = Compactor(settings, Counters(settings.counters))
            while compactor.run_once():
                pass
        finally:
            lock.release()
        return
    request_flush(settings.flush_request)
    if not wait_until_landed(settings.journal, PATIENCE_S):
        raise TemporaryFailure(
            f"ingest has not landed its journal {settings.journal} within {PATIENCE_S:g} s. See its log, then run the "
            "same command again"
        )


def _landed_ids(landing: Place, study: str) -> Iterator[NDArray[np.uint8]]:
    for file in open_landing(landing).all_files():
        if study_of(file) == study:
            for batch in open_landed(file).batches(["document_id"]):
                yield id_bytes(batch.column(0))


class _Known:
    """Document ids that have landed or occurred in this import: 16 bytes each, in a few sorted blocks."""

    def __init__(self, landed: Iterator[NDArray[np.uint8]]) -> None:
        self._blocks: list[NDArray[np.bytes_]] = []
        for ids in landed:
            self._keep(np.unique(_sortable(ids)))

    def add(self, ids: Sequence[bytes]) -> list[bool]:
        """Return whether each id is new, and remember it; a repeated id is new once."""
        if not ids:
            return []
        keys = _sortable(np.frombuffer(b"".join(ids), np.uint8).reshape(-1, 16))
        distinct, first = np.unique(keys, return_index=True)
        is_new = np.ones(len(distinct), np.bool_)
        for block in self._blocks:
            at = np.minimum(np.searchsorted(block, distinct), len(block) - 1)
            is_new &= block[at] != distinct
        self._keep(distinct[is_new])
        found = np.zeros(len(keys), np.bool_)
        found[first[is_new]] = True
        return found.tolist()

    def _keep(self, block: NDArray[np.bytes_]) -> None:
        """Add a sorted block, merged with smaller blocks so that the number of blocks stays small."""
        while len(self._blocks) and len(self._blocks[-1]) <= 2 * len(block):
            block = np.sort(np.concatenate([self._blocks.pop(), block]))
        if len(block):
            self._blocks.append(block)


def _sortable(ids: NDArray[np.uint8]) -> NDArray[np.bytes_]:
    """Return ids of shape (k, 16) as byte strings of length 16, which can be sorted and compared."""
    return np.ascontiguousarray(ids).view("S16").ravel()
