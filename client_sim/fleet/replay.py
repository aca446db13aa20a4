"""Replay of recorded pings: a load test of a deployment, for any model and any type of ping.

A recording is Parquet, as written by ingest, or NDJSON, as accepted by the batch endpoint. It is read one row group or
line at a time and may be larger than memory. A replay trains no model: the recorded updates belong to the weights of
their time.
"""

from __future__ import annotations

import asyncio
import hashlib
import math
import os
import threading
from collections import Counter
from collections.abc import AsyncGenerator, Callable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import aclosing
from dataclasses import dataclass, field
from functools import partial
from itertools import chain
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Any, TypeVar
from uuid import UUID

import msgspec
from msgspec import Struct

from fedping.client_sim.client import Backoff, OutgoingPing
from fedping.client_sim.fleet.exchange import Connection, Outbox
from fedping.client_sim.fleet.pings import as_json_arrays, as_json_objects
from fedping.client_sim.fleet.summary import PingSummary, count_reason, ping_summary
from fedping.client_sim.transport import Fetched, Outcome, Transport, Unavailable
from fedping.protocol.errors import FedpingError, InvalidSettings
from fedping.protocol.landed_file import UnreadableFile, first_line, open_landed
from fedping.protocol.landing import NO_LINE, OUTCOMES, open_landing
from fedping.protocol.location import Bucket, Place, base_name, key_in
from fedping.protocol.outcomes import linked_id
from fedping.protocol.ping import OUTCOME, DocumentType
from fedping.protocol.study import PublicStudy

if TYPE_CHECKING:
    import pyarrow as pa


_T = TypeVar("_T")

BYTES_AT_A_TIME = 4 * 2**20
"""Approximate bytes of a Parquet file that are processed at a time; Arrow may hold a whole row group."""

ROWS_AT_A_TIME = 1024

TEXT_AT_A_TIME = 2**18
"""Bytes of NDJSON that are read at a time."""

LONGEST_LINE = 64 * 2**20
"""Maximum bytes of an NDJSON line: more than the largest ping has."""

WAITING = 4
"""Number of pings in memory per concurrent request, including pings that wait for a retry."""

REFRESH_S = 10.0
"""Seconds between two fetches of the current version."""

BURST_S = 0.1
"""Maximum burst after a pause, in seconds of the rate."""

LOOK_S = 0.5
"""Seconds between two checks for the end while a ping waits for its time."""

PARTING_S = 1.0
"""Maximum wait for a running read at the end, in seconds. A read rarely takes longer, unless a bucket hangs."""

_COMPRESSED = {
    b"\x1f\x8b": "gzip",
    b"\x28\xb5\x2f\xfd": "zstd",
    **{bytes([kind]) + b"\x2a\x4d\x18": "zstd" for kind in range(0x50, 0x60)},
}
"""First bytes of compressed files; zstd files may begin with a skippable frame, as `pzstd` writes them."""

_PARQUET = b"PAR1"


@dataclass(frozen=True, kw_only=True)
class ReplaySettings:
    """Settings of a replay.

    Attributes:
        rate: maximum pings a second; None for as fast as the server accepts them.
        at_once: maximum number of concurrent requests.
        run: number that new document ids derive from, with the recorded ids; repeating a run makes duplicates.
        same_ids: whether the recorded document ids are kept instead.
        to_current_version: whether pings name the current version in place of the recorded one.
        seed: seed of the jitter of retries.
        backoff: when to post again, and when to give up.

    Raises:
        InvalidSettings: a number outside its range.
    """

    rate: float | None = None
    at_once: int = 64
    run: int = 0
    same_ids: bool = False
    to_current_version: bool = False
    seed: int = 0
    backoff: Backoff = field(default_factory=Backoff)

    def __post_init__(self) -> None:
        if self.rate is not None and not 0 < self.rate < math.inf:
            raise InvalidSettings(f"a rate of {self.rate:g} pings a second is invalid. Give a number above 0")


class ReplaySummary(Struct, frozen=True, kw_only=True):
    """Result of one replay of a recording.

    Attributes:
        iteration: number of earlier replays.
        run: number that its new document ids derive from; the same command with ``--run`` and this number posts the
            same documents.
        seconds: wall time.
        pings: outcomes of posted pings.
        skipped_by_reason: pings that were not posted.
        latency_ms: latency of answered requests: median, 99th percentile and maximum.
    """

    iteration: int
    run: int
    seconds: float
    pings: PingSummary
    skipped_by_reason: dict[str, int]
    latency_ms: dict[str, float]


@dataclass(frozen=True)
class Recorded:
    """A recorded ping; ``payload`` has the JSON of each of its fields.

    ``column`` is the column of a later outcome; empty for a ping of the study's own type.
    """

    document_id: UUID
    client_id: str
    arm: str
    payload: dict[str, Any]
    column: str = ""


class Recording:
    """The recorded pings of a file, or of the files of a folder.

    Args:
        path: a Parquet or NDJSON file, a folder of them, or a landing folder, which may be in a bucket.
        study: study that pings are posted to; also the recorded study of a landing folder, unless ``of`` names one.
        of: name of the recorded study in a landing folder.

    Attributes:
        files: files in the order in which they landed.
        skipped: number of skipped pings by reason, counted while they are read.

    Raises:
        FedpingError: there is no recording at the path.
    """

    def __init__(self, path: Place, study: PublicStudy, of: str | None = None) -> None:
        try:
            self.files = _files(path, of or study.name)
        except OSError as error:
            raise FedpingError(f"cannot read the recording {path} ({error}); give another --replay") from error
        self._path = path
        self.skipped: Counter[str] = Counter()
        self._study = study
        self._document, self._later = study.document, study.later_outcomes
        lengths = {line.name: line.spec.m for line in study.lines}
        self._length = {arm.name: lengths.get(arm.line or "", 0) for arm in study.arms}

    def _type_of(self, file: Place, names: Sequence[str]) -> DocumentType:
        """Return the type of the pings in a file: later outcomes have an age but no update."""
        is_later = self._later is not None and "age" in names and "update" not in names
        return self._later if is_later and self._later is not None else self._document

    def pings(self) -> Iterator[Recorded]:
        """Yield the pings of :meth:`batches`, one by one."""
        return chain.from_iterable(self.batches())

    def batches(self) -> Iterator[list[Recorded]]:
        """Yield the pings, a few at a time; an empty batch where a part of the recording has nothing to post.

        Empty batches return control to the caller regularly, even if the reader skips much.

        Raises:
            FedpingError: a file is damaged, or holds no pings of the study's type.
        """
        for file in self.files:
            try:
                if isinstance(file, Path) and (head := _head(file)) != _PARQUET:
                    yield from self._lines(file, head)
                else:
                    yield from self._parquet(file)
            except OSError as error:
                raise FedpingError(f"cannot read the recording {file} ({error}); give another --replay") from error

    def _parquet(self, file: Place) -> Iterator[list[Recorded]]:
        import pyarrow as pa

        landed = open_landed(file)
        try:
            schema = landed.footer.schema.to_arrow_schema()
        except pa.ArrowException as error:
            raise UnreadableFile(file, f"is not a whole Parquet file ({first_line(error)})") from error
        document = self._type_of(file, schema.names)
        columns = self._columns(file, schema, document)
        size = sum(landed.footer.row_group(i).total_byte_size for i in range(landed.footer.num_row_groups))
        rows = max(1, min(ROWS_AT_A_TIME, BYTES_AT_A_TIME * landed.footer.num_rows // max(1, size)))
        for group in range(landed.footer.num_row_groups):  # a single read would keep all groups of a file in memory
            for batch in landed.batches(columns, [group], rows, buffer_size=2**20):
                try:
                    pings = list(self._outcomes(batch) if document.is_outcome else self._rows(batch))
                except (pa.ArrowException, ValueError, IndexError) as error:  # an invalid text
                    raise UnreadableFile(file, f"is damaged ({first_line(error)})") from error
                yield pings

    def _columns(self, file: Place, schema: pa.Schema, document: DocumentType) -> list[str]:
        """Return the columns to read: each exists once, with values of the type of landed pings.

        Optional fields of a ping may be missing from an older file.
        """
        from fedping.protocol.arrow import UPDATE, UPDATE_ENCODING, landed_schema

        columns: list[str] = []
        for each in landed_schema(document):
            if each.name == "received_at":
                continue
            types = [field.type for field in schema if field.name == each.name]
            if len(types) == 1 and _kind(types[0]) in (_kind(each.type), *(["null"] if each.nullable else [])):
                columns.append(each.name)
                continue
            if not types and each.nullable and each.name not in (UPDATE, UPDATE_ENCODING):
                continue
            has = f"has no column '{each.name}'"
            if types:
                has = f"has a column '{each.name}' of type {str(types[0])[:60]}, not of {_kind(each.type)}"
            if len(types) > 1:
                has = f"has {len(types)} columns '{each.name}'"
            raise FedpingError(
                f"{file} {has}, so it holds no {document.name} pings, which study '{self._study.name}' takes; "
                "give a recording of such a study"
            )
        return columns

    def _rows(self, batch: pa.RecordBatch) -> Iterator[Recorded]:
        table = batch.select([name for name in batch.schema.names if name not in ("update_encoding", "update")])
        updates = self._updates(batch)
        fields = msgspec.structs.fields(self._document.payload)
        may_be_absent = [each.name for each in fields if not each.required and each.name in table.schema.names]
        for row, update in zip(table.to_pylist(), updates, strict=True):
            for name in may_be_absent:
                if row[name] is None:
                    del row[name]
            ids = [row.pop(name) for name in ("document_id", "client_id")]
            arm = row["study_variation"]
            if any(each is None or len(each) != 16 for each in ids):
                self._skip("the id of its document or of its client is not 16 bytes")
            elif arm is None:
                self._skip("it names no arm")
            elif arm not in self._length:
                self._skip_arm(arm)
            elif update is None:
                self._skip(f"its update is none of the weights of arm '{arm}'")
            else:
                document, client = (UUID(bytes=each) for each in ids)
                yield Recorded(document, str(client), arm, row | {"update": update})

    def _outcomes(self, batch: pa.RecordBatch) -> Iterator[Recorded]:
        assert self._later is not None
        declared = {outcome.name for outcome in self._later.outcomes}
        for row in batch.to_pylist():
            ids = [row.pop(name) for name in ("document_id", "client_id")]
            payload = {name: value for name, value in row.items() if value is not None}
            arm, columns = row["study_variation"], declared & payload.keys()
            if any(each is None or len(each) != 16 for each in ids):
                self._skip("the id of its document or of its client is not 16 bytes")
            elif arm not in self._length:
                self._skip_arm(str(arm))
            elif len(columns) != 1:
                self._skip("it has no outcome that the study declares")
            else:
                if "choice" in payload:
                    payload["choice"] = str(UUID(bytes=payload["choice"]))
                document, client = (UUID(bytes=each) for each in ids)
                yield Recorded(document, str(client), arm, payload, columns.pop())

    def _updates(self, batch: pa.RecordBatch) -> list[msgspec.Raw | None]:
        """Return the JSON of every update: "null" without an update, None if it doesn't fit the arm's model.

        Payloads of other encodings than the dense one are unchanged: the server checks them.
        """
        import numpy as np
        import pyarrow as pa
        import pyarrow.compute as pc

        from fedping.protocol.encodings.dense import dense_updates
        from fedping.protocol.update import DENSE, Payloads

        texts_by_row: list[msgspec.Raw | None] = [None] * batch.num_rows
        payloads, arms = batch.column("update").cast(pa.binary()), batch.column("study_variation").cast(pa.string())
        for place in np.flatnonzero(pc.is_null(payloads).to_numpy(zero_copy_only=False)).tolist():
            texts_by_row[place] = msgspec.Raw(b"null")
        tags = batch.column("update_encoding").cast(pa.string())
        for m in {self._length.get(arm, 0) for arm in pc.unique(arms).to_pylist()} - {0}:
            names = pa.array([arm for arm, length in self._length.items() if length == m], pa.string())
            of_model = pc.is_in(arms, value_set=names)
            for tag in pc.unique(tags).drop_null().to_pylist():
                mine = pc.and_(pc.fill_null(pc.equal(tags, tag), False), of_model)
                places = np.flatnonzero(mine.to_numpy(zero_copy_only=False))
                if not len(places):
                    continue
                column = payloads.take(pa.array(places))
                if tag == DENSE:
                    numbers, whole = dense_updates(column, m)
                    places, texts = places[whole], as_json_arrays(numbers[whole])
                else:
                    texts = as_json_objects(Payloads(tag, column))
                for place, text in zip(places.tolist(), texts, strict=True):
                    texts_by_row[place] = msgspec.Raw(text)
        return texts_by_row

    def _lines(self, file: Path, head: bytes) -> Iterator[list[Recorded]]:
        import pyarrow as pa

        way = file.name if file == self._path else key_in(self._path, file)
        compression = next((name for sign, name in _COMPRESSED.items() if head.startswith(sign)), None)
        with pa.input_stream(str(file), compression=compression) as stream:
            number = 0
            for lines in _split(stream, file):
                numbered = enumerate(lines, number + 1)
                yield [ping for at, line in numbered if line.strip() for ping in self._line(line, f"{way} {at}")]
                number += len(lines)

    def _line(self, line: bytes, where: str) -> Iterator[Recorded]:
        """Yield the ping of a line, if it can be posted; a missing document id follows from its position."""
        try:
            ping = msgspec.json.decode(line, type=_Line)
            arm = msgspec.json.decode(ping.payload.get("study_variation", msgspec.Raw(b"null")), type=str)
        except (msgspec.MsgspecError, UnicodeError, RecursionError):
            self._skip("it is not a ping: give a line as the batch endpoint takes it")
            return
        column = ""
        if ping.type == OUTCOME.name and self._later is not None:
            column = next((each.name for each in self._later.outcomes if each.name in ping.payload), "")
        if ping.type != self._document.name and not column:
            self._skip(f"it is of type {ping.type[:40]!r}, and the study takes {self._document.name}")
        elif arm not in self._length:
            self._skip_arm(arm)
        else:
            document = ping.document_id or _id_from(os.fsencode(where))
            yield Recorded(document, ping.client_id, arm, dict(ping.payload), column)

    def _skip_arm(self, arm: str) -> None:
        self._skip(f"its arm {arm[:40]!r} is none of study '{self._study.name}'")

    def _skip(self, reason: str) -> None:
        count_reason(self.skipped, reason)


class _Line(Struct, rename="camel"):
    """The needed fields of a line of NDJSON."""

    client_id: str
    type: str
    payload: dict[str, msgspec.Raw]
    document_id: UUID | None = None


class Replay:
    """Posts a recording, once for each call of :meth:`run`.

    Args:
        transport: the connection to the server; the caller closes it.
        study: study that pings are posted to, as the server sent it.
        recording: the recording.
        settings: settings of the replay.

    Raises:
        InvalidSettings: the study has a two-server line, and the settings change recorded pings.
    """

    def __init__(
        self, transport: Transport, study: PublicStudy, recording: Recording, settings: ReplaySettings
    ) -> None:
        shared = [line.name for line in study.lines if line.privacy is not None and line.privacy.shared is not None]
        if shared and (settings.to_current_version or not settings.same_ids):
            raise InvalidSettings(
                f"shares of line '{shared[0]}' of study '{study.name}' count only with the document and the version "
                "that they were recorded with. Use --same-ids, without --to-current-version"
            )
        self._study, self._recording, self._settings = study, recording, settings
        self._line = {arm.name: arm.line for arm in study.arms}
        self._timed = _Timed(transport)
        self._versions = _Versions(transport, study)
        self._random = Random(settings.seed)
        self._outbox = self._new_outbox()
        self._times = 0

    @property
    def outbox(self) -> Outbox:
        """The outbox of the present replay."""
        return self._outbox

    async def run(self, goes_on: Callable[[], bool] = lambda: True) -> ReplaySummary:
        """Post the recording once, and return the result; it ends early when ``goes_on`` returns false.

        If reading fails, running requests are completed first.

        Raises:
            FedpingError: a file is damaged, or the current version is needed and the server doesn't send it.
        """
        loop = asyncio.get_running_loop()
        began, iteration = loop.time(), self._times
        self._times += 1
        self._outbox, self._timed.latencies = self._new_outbox(), Counter()
        self._recording.skipped.clear()
        failed: FedpingError | None = None
        async with asyncio.TaskGroup() as group:
            try:
                await self._post(iteration, goes_on, group)
            except FedpingError as error:  # raised inside the group, it would become part of an ExceptionGroup
                failed = error
        if failed is not None:
            raise failed
        return self._summary(iteration, loop.time() - began)

    async def _post(self, iteration: int, goes_on: Callable[[], bool], group: asyncio.TaskGroup) -> None:
        """Post each ping of the recording in a task of ``group``, until the last one or an early end."""
        places = asyncio.Semaphore(self._settings.at_once)
        room = asyncio.Semaphore(WAITING * self._settings.at_once)
        pace, now = _Pace(self._settings.rate), asyncio.get_running_loop().time
        async with aclosing(_read(self._recording.batches())) as batches:
            async for batch in batches:
                if not goes_on():
                    return
                for ping in batch:
                    outgoing = await self._outgoing(ping, iteration)
                    due = pace.due(now())
                    while goes_on() and (wait := due - now()) > 0:
                        await asyncio.sleep(min(wait, LOOK_S))
                    if not goes_on():
                        return
                    await room.acquire()
                    await places.acquire()
                    task = group.create_task(self._outbox.post_or_drop(outgoing, places))
                    task.add_done_callback(partial(_leave, room))

    def _new_outbox(self) -> Outbox:
        connection = Connection(
            transport=self._timed, study=self._study.name, random=self._random, at_once=self._settings.at_once
        )
        return Outbox(connection, self._settings.backoff)

    async def _outgoing(self, ping: Recorded, iteration: int) -> OutgoingPing:
        settings, line, payload = self._settings, self._line[ping.arm], ping.payload
        if settings.to_current_version and line is not None:
            payload["model_version"] = await self._versions.current(line)
        document = ping.document_id
        if not settings.same_ids:
            document = self._new_id(document, iteration)
            if "choice" in payload and ping.column:  # a linked outcome's own document follows from its choice
                choice = self._new_id(UUID(_text(payload["choice"])), iteration)
                payload, document = payload | {"choice": str(choice)}, linked_id(choice, ping.column)
        body = {"clientId": ping.client_id, "type": OUTCOME.name if ping.column else self._study.pings}
        return OutgoingPing(document, msgspec.json.encode(body | {"payload": payload}), later=bool(ping.column))

    def _new_id(self, recorded: UUID, iteration: int) -> UUID:
        return _id_from(f"{self._settings.run} {iteration} ".encode() + recorded.bytes)

    def _summary(self, iteration: int, seconds: float) -> ReplaySummary:
        counts = self._outbox.counts
        return ReplaySummary(
            iteration=iteration,
            run=self._settings.run,
            seconds=seconds,
            pings=ping_summary(counts, type(counts)(), 0, self._outbox.undelivered),
            skipped_by_reason=dict(self._recording.skipped.most_common()),
            latency_ms=self._timed.milliseconds(),
        )


class _Pace:
    """The times at which pings are due at a maximum rate.

    After a pause without reads or accepted pings, a burst of at most :data:`BURST_S` catches up.
    """

    def __init__(self, rate: float | None) -> None:
        self._between = 1 / rate if rate else 0.0
        self._due: float | None = None

    def due(self, now: float) -> float:
        """Return the time of the next ping; the first is due now."""
        due = now if self._due is None else max(self._due, now - BURST_S)
        self._due = due + self._between
        return due


async def _read(batches: Iterator[list[Recorded]]) -> AsyncGenerator[list[Recorded], None]:
    """Yield batches that are read in threads, so that requests and Ctrl-C are handled in the meantime."""
    while (batch := await _in_thread(lambda: next(batches, None))) is not None:
        yield batch


async def _in_thread(work: Callable[[], _T]) -> _T:
    """Return the result of ``work`` in a thread. Unlike a pool's thread, it doesn't delay the end of the program."""
    result: Future[_T] = Future()
    result.set_running_or_notify_cancel()

    def run() -> None:
        try:
            result.set_result(work())
        except BaseException as error:
            result.set_exception(error)

    threading.Thread(target=run, name="recording", daemon=True).start()
    answer = asyncio.wrap_future(result)
    try:
        return await asyncio.shield(answer)
    except asyncio.CancelledError:
        await asyncio.wait([answer], timeout=PARTING_S)  # a process may crash if it ends while Arrow is working
        answer.cancel()
        raise


class _Versions:
    """The current version of each line, refreshed every :data:`REFRESH_S` seconds."""

    def __init__(self, transport: Transport, study: PublicStudy) -> None:
        self._transport, self._study = transport, study.name
        self._known: dict[str, tuple[int, str | None, float]] = {}

    async def current(self, line: str) -> int:
        now = asyncio.get_running_loop().time()
        version, etag, fetched_at = self._known.get(line, (-1, None, -math.inf))
        if now - fetched_at < REFRESH_S:
            return version
        answer = await self._transport.fetch_model(self._study, line, None, etag)
        if isinstance(answer, Fetched):
            version, etag = answer.document.iteration, answer.etag
        elif isinstance(answer, Unavailable) and line not in self._known:
            raise FedpingError(
                f"the server does not give the current version of line '{line}' ({answer.reason}); start it, or "
                "remove --to-current-version"
            )
        self._known[line] = version, etag, now
        return version


class _Timed:
    """A transport that records the latencies of pings, to 5 %, in constant memory."""

    def __init__(self, transport: Transport) -> None:
        self._transport = transport
        self.latencies: Counter[int] = Counter()
        self.fetch_study, self.fetch_model, self.close = transport.fetch_study, transport.fetch_model, transport.close
        self.fetch_staged = transport.fetch_staged

    async def submit(self, study: str, document_id: UUID, body: bytes, *, later: bool = False) -> Outcome:
        """See :meth:`fedping.client_sim.transport.Transport.submit`."""
        clock = asyncio.get_running_loop().time
        began = clock()
        outcome = await self._transport.submit(study, document_id, body, **({"later": True} if later else {}))
        self.latencies[round(math.log(max(clock() - began, 1e-6), 1.05))] += 1
        return outcome

    def milliseconds(self) -> dict[str, float]:
        total, count, latencies = self.latencies.total(), 0, {}
        quantiles = [("half", 0.5), ("99_of_100", 0.99), ("longest", 1.0)]
        for step, number in sorted(self.latencies.items()):
            count += number
            while quantiles and count >= quantiles[0][1] * total:
                latencies[quantiles.pop(0)[0]] = float(f"{1000 * 1.05**step:.3g}")
        return latencies


def _leave(room: asyncio.Semaphore, _: asyncio.Task[None]) -> None:
    room.release()


_KINDS = (".parquet", ".ndjson", ".jsonl", ".ndjson.gz", ".ndjson.zst")


def _head(file: Path) -> bytes:
    with open(file, "rb") as opened:
        return opened.read(4)


def _split(stream: pa.NativeFile, file: Path) -> Iterator[list[bytes]]:
    """Yield the lines of a text, in parts; raise :class:`FedpingError` for a line longer than any ping."""
    number, begun = 1, [b""]
    while part := stream.read(TEXT_AT_A_TIME):
        first, *others = part.split(b"\n")
        begun.append(first)
        if sum(map(len, begun)) > LONGEST_LINE:
            raise FedpingError(f"line {number} of {file} has over {LONGEST_LINE:,} bytes, too many for a ping")
        lines = []
        if others:
            lines, begun = [b"".join(begun), *others[:-1]], others[-1:]
        yield lines
        number += len(lines)
    yield [b"".join(begun)]


def _kind(values: pa.DataType) -> str:
    """Return the kind of a column's values, ignoring width and storage, since rewritten files change these."""
    import pyarrow as pa

    types = pa.types
    if types.is_dictionary(values):
        return _kind(values.value_type)
    if types.is_list(values) or types.is_large_list(values):
        return f"lists of {_kind(values.value_type)}"
    if types.is_binary(values) or types.is_large_binary(values) or types.is_fixed_size_binary(values):
        return "bytes"
    if types.is_string(values) or types.is_large_string(values):
        return "text"
    if types.is_integer(values):
        return "integers"
    return "numbers" if types.is_float32(values) or types.is_float64(values) else str(values)


def _files(path: Place, study: str) -> Sequence[Place]:
    """Return a recording's files; for a landing folder, in the order in which they landed."""
    if isinstance(path, Path) and path.is_file():
        return [path]
    if isinstance(path, Path) and not path.is_dir():
        raise FedpingError(f"no recording exists at {path}. Give a Parquet or NDJSON file, or a landing folder")
    studies = open_landing(path).studies()
    files: Sequence[Place]
    if studies or isinstance(path, Bucket):
        files = _landed(path, studies, study)
    else:
        files = [
            file
            for file in path.rglob("*")
            if file.name.endswith(_KINDS)
            and not any(part.startswith((".", "_")) for part in file.relative_to(path).parts)
            and file.is_file()
        ]
        if not files:
            kinds = ", ".join(_KINDS)
            raise FedpingError(f"{path} holds no recording: no file ends with {kinds}; give another --replay")
    return sorted(files, key=lambda file: (OUTCOMES in str(file).split("/"), base_name(file), str(file)))


def _landed(landing: Place, studies: Sequence[str], study: str) -> list[Place]:
    if study not in studies:
        others = f", only of {', '.join(studies)}; name one of them with --from-study" if studies else ""
        raise FedpingError(f"the landing folder {landing} has no pings of study '{study}'{others or _ANOTHER}")
    lines = [None if line == NO_LINE else line for line in open_landing(landing).lines(study)]
    landed = [
        file
        for line in lines
        for files in open_landing(landing).files_by_iteration(study, line).values()
        for file in files
    ]
    landed += open_landing(landing).outcome_files(study)
    if not landed:
        raise FedpingError(f"the landing folder {landing} has no landed files of study '{study}'{_ANOTHER}")
    return landed


_ANOTHER = "; give another --replay"


def _text(sent: object) -> str:
    """Return a string unchanged, or any other value as JSON."""
    return msgspec.json.decode(sent, type=str) if isinstance(sent, msgspec.Raw) else str(sent)


def _id_from(text: bytes) -> UUID:
    """Return a version 4 UUID that follows from some bytes."""
    return UUID(bytes=hashlib.blake2b(text, digest_size=16).digest(), version=4)
