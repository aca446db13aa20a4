"""Processing of submitted pings, from the request to the journal, in steps that can reject them.

check the request -> find the study -> read and decompress the body -> decode -> admit -> journal -> 200
"""

from __future__ import annotations

import contextlib
import re
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Generator, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, NamedTuple, TypeAlias
from uuid import UUID

import msgspec

from fedping.protocol.log import tell_defect
from fedping.protocol.ping import DocumentType, Ping
from fedping.server_jobs.ingest.admission import TELEMETRY, StudyRules, telemetry_of
from fedping.server_jobs.ingest.answers import ACCEPTED_ONE, PREFLIGHT, Answer, Rejection, batch_answer, refusal
from fedping.server_jobs.ingest.body import Unpack, announced, check_size, length_within, unpacked
from fedping.server_jobs.ingest.counters import LINES_A_FLUSH
from fedping.server_jobs.ingest.journal import NotStored
from fedping.server_jobs.ingest.segments import JournalRecord, encode_records, journal_record
from fedping.server_jobs.ingest.services import Services
from fedping.server_jobs.ingest.settings import (
    LINE_COST,
    LITTLE,
    LOGGED,
    OBJECT_COST,
    PART,
    PING_UNPACKED,
    SLICE,
    SLICE_COST,
    SMALL,
    BodyLimit,
    Limits,
)

Environ = dict[str, Any]
PREFIX = "/submit/"
TELEMETRY_QUERY = "v=4"
"""Query of all telemetry paths: the version of Firefox' envelope."""

_UUID = re.compile(r"[0-9a-fA-F]{8}-(?:[0-9a-fA-F]{4}-){3}[0-9a-fA-F]{12}")
SENTENCES = 100
"""Maximum number of rejected lines of a batch that get a sentence in the response. The others get the reason's name."""

MOST_REFUSED = 1000
"""Number of rejected lines after which the rest of a batch is ignored. To reject a line costs a hundred times as much
as to send it."""


@dataclass(frozen=True, slots=True)
class Receive:
    """A step that receives the ``length`` bytes of the body.

    ``grown`` is called with the number of bytes about to be stored, and may reject them. Without ``keep``,
    the result is b"".
    """

    length: int
    grown: Callable[[int], None] | None = None
    keep: bool = True


@dataclass(frozen=True, slots=True)
class Store:
    """A step that writes the JSON lines of ``rows`` pings to their type's journal and waits until they are on disk."""

    document: DocumentType
    lines: bytes
    rows: int


@dataclass(frozen=True, slots=True)
class Aside:
    """A step that runs slow or blocking ``work`` outside the event loop; its result is the result of ``work``."""

    work: Callable[[], object]
    is_batch: bool = False


Step: TypeAlias = Receive | Store | Aside
Steps: TypeAlias = Generator[Step, Any, Answer]


async def run_steps(steps: Steps, done: Callable[[Step], Awaitable[Any]]) -> Answer:
    """Run a request's steps and return the response; ``done`` executes each step as its server requires."""
    try:
        step = next(steps)
        while True:
            try:
                result = await done(step)
            except Exception as error:  # the steps distinguish rejections from defects
                step = steps.throw(error)
            else:
                step = steps.send(result)
    except StopIteration as end:
        answer: Answer = end.value
        return answer


class Submit:
    """Handles all requests below ``/submit/``, for any kind of server (:meth:`steps`)."""

    def __init__(self, services: Services) -> None:
        self._services = services
        self._limits = services.settings.limits
        self._ping_limit, self._batch_limit = self._limits.ping, self._limits.batch

    def steps(self, environ: Environ) -> Steps:
        """Return a generator of one request's steps. It yields where it has to wait, and returns the response.

        Send each step's result to the generator, or throw its error. Requests of clients never raise exceptions.
        """
        received = False
        try:
            check_request(environ, self._limits)
            if environ["REQUEST_METHOD"] not in ("POST", "PUT"):
                return _other_method(environ["REQUEST_METHOD"])
            prefixes = self._services.prefixes
            if prefixes is not None:
                prefixes.take(environ)
            path = parse_request(environ["PATH_INFO"], environ.get("QUERY_STRING", ""))
            if not self._services.catalogue.knows(path.study):
                yield Aside(partial(self._services.catalogue.look_for, path.study))
            request = self._request(path, None if prefixes is None else partial(prefixes.take_more, environ))
            with contextlib.ExitStack() as held:
                length, unpack = announced(environ, request.limit)
                received = True
                body = yield Receive(length, self._holding(length, held))
                self._services.counters.add("posted_bytes", length)
                record = None
                little = length <= SMALL and request.rules.bounds.look <= LITTLE
                if request.document_id is not None and little and unpack is None:
                    record = _record_at_once(request, request.document_id, body)
                if record is None:
                    is_batch = request.document_id is None
                    answer = yield Aside(partial(self._answer, request, unpack, body), is_batch)
                    return self._refuse(environ, answer) if isinstance(answer, Rejection) else answer
            yield Store(request.rules.document, encode_records([record]), 1)
            self._services.of_studies.accept(request.rules.study.name, 1)
            return ACCEPTED_ONE
        except Rejection as rejection:
            refused = rejection.stripped()
        except NotStored as error:
            refused = not_stored(error)
        except Exception:  # a defect of ours: report it without what was sent, and keep serving
            print_defect()
            refused = internal_error()
        if not received and (length := length_within(environ, self._batch_limit.sent)):
            # Keeps the connection usable: a proxy that is still sending would take a close for a failure of ours, and
            # make its client retry forever.
            yield Receive(length, keep=False)
        return self._refuse(environ, refused)

    def _request(self, path: SubmitPath, take_more: Callable[[int], None] | None) -> _Request:
        rules = self._services.catalogue.taking(path.study).of_kind(path.document, path.version)
        if path.document_id is None:
            return _Request(rules, None, self._batch_limit, take_more=take_more)
        return _Request(rules, document_id_in(path.document_id), self._ping_limit, path.in_telemetry)

    def _holding(self, length: int, held: contextlib.ExitStack) -> Callable[[int], None] | None:
        """Return a function that reserves memory while a body of this length arrives; None for a small body."""
        return held.enter_context(self._services.memory.receiving.lease(0)).grow if length > SMALL else None

    def _answer(self, request: _Request, unpack: Unpack | None, body: bytes) -> Answer | Rejection:
        """Return the response to a batch, or to a large or compressed ping. Waits for memory and for the disk."""
        try:
            return self._take(request, unpack, body)
        except Rejection as rejection:
            return rejection.stripped()
        except NotStored as error:
            return not_stored(error)
        except Exception:
            print_defect()
            return internal_error()

    def _take(self, request: _Request, unpack: Unpack | None, body: bytes) -> Answer:
        with contextlib.ExitStack() as held:
            cost = partial(request.cost, self._limits)
            body = unpacked(unpack, body, request.unpacking, self._services.memory, cost, held)
            if request.document_id is None:
                return self._take_batch(request, body)
            rules = request.rules
            self._services.journals.of(rules.document).append(_encoded_ping(request, request.document_id, body), 1)
            self._services.of_studies.accept(rules.study.name, 1)
            return ACCEPTED_ONE

    def _take_batch(self, request: _Request, body: bytes) -> Answer:
        rules, parts = request.rules, slices(body)
        lines = sum(part.newlines for part in parts)
        if lines > (most := rules.most_lines(self._limits.batch_lines)):
            raise Rejection(
                "too_many_lines", (f"a batch of this study can have at most {most} lines; send it in parts")
            )
        if request.take_more is not None:
            request.take_more(lines + (not body.endswith(b"\n")))
        refused, accepted = Refused(), 0
        rejected: Mapping[str, int] = {}
        try:
            for rows in self._store_batch(rules, body, parts, refused):
                accepted += rows
            rejected = refused.counts
        finally:  # stored pings count, also if the rest could not be stored; the client retries the batch
            self._services.count_batch(rules.study.name, accepted, rejected)
        self._services.counters.add("batches", 1)
        for rejection in refused.kept:
            self._services.rejections.add(rules.study.name, rejection)
        self._services.rejections.leave_out(len(refused.answers) - len(refused.kept))
        return batch_answer(accepted, refused.answers)

    def _store_batch(self, rules: StudyRules, body: bytes, parts: list[BatchSlice], refused: Refused) -> Iterator[int]:
        """Decode and write a batch in parts; yield the number of pings in each part once it is on disk."""
        rows = size = 0
        gathered: list[bytes] = []
        for encoded, count in Batch(rules, self._ping_limit, refused, _now_ms()).encoded(body, parts):
            gathered.append(encoded)
            rows, size = rows + count, size + len(encoded)
            if size >= PART:
                self._services.journals.of(rules.document).append(b"".join(gathered), rows)
                yield rows
                gathered, rows, size = [], 0, 0
        if rows:
            self._services.journals.of(rules.document).append(b"".join(gathered), rows)
            yield rows

    def _refuse(self, environ: Environ, rejection: Rejection) -> Answer:
        address = environ.get("PATH_INFO", PREFIX)
        try:
            study = parse_request(address, TELEMETRY_QUERY).study
        except Rejection:
            study = address[len(PREFIX) :].partition("/")[0]
        self._services.refuse(study, rejection)
        return refusal(rejection)


class SubmitPath(NamedTuple):
    """The parts of a path: study (its name in the catalogue), document type, version and document id.

    ``version`` is None in telemetry paths; ``document_id`` is None for a batch.
    """

    study: str
    document: str
    version: str | None
    document_id: str | None

    @property
    def in_telemetry(self) -> bool:
        """Whether this is a telemetry path, whose pings have Firefox' envelope."""
        return self.version is None


def parse_request(path: str, query: str) -> SubmitPath:
    """Return the parts of a path below ``/submit/``; raise :class:`Rejection` if it is malformed."""
    parts = path.split("/")
    if len(parts) == 6:
        return SubmitPath(parts[2], parts[3], parts[4], parts[5])
    if len(parts) == 5:
        return SubmitPath(parts[2], parts[3], parts[4], None)
    if len(parts) == 9 and parts[2] == TELEMETRY:
        if query != TELEMETRY_QUERY:
            raise Rejection("unknown_version", f"telemetry has only version 4; send ?{TELEMETRY_QUERY}")
        return SubmitPath(telemetry_of(parts[4]), parts[4], None, parts[3])
    raise Rejection(
        "path",
        "the path is not /submit/<study>/<type>/<version>[/<document id>], nor /submit/telemetry/<document id>/<type>/"
        "<application>/<its version>/<channel>/<build id>; correct it",
    )


@dataclass(frozen=True, slots=True)
class _Request:
    """A request with one document, or with a batch if its path contains no document id.

    If networks are rate-limited, ``take_more`` is called with a batch's number of lines, and may reject them.
    """

    rules: StudyRules
    document_id: UUID | None
    limit: BodyLimit
    in_telemetry: bool = False
    take_more: Callable[[int], None] | None = None

    def ping(self, body: bytes) -> Ping:
        """Return the single document in a body; raise :class:`Rejection` if it is invalid."""
        self.rules.bounds.check(body)
        if not self.in_telemetry:
            return self.rules.decoding.ping(body)
        ping = self.rules.decoding.telemetry(body)
        if ping.id != self.document_id:
            raise Rejection(
                "document_id", "the path names another document than the ping's 'id'; send the same in both"
            )
        return ping

    @property
    def unpacking(self) -> BodyLimit:
        """The limit for a compressed body; for a single ping, the limit of its study."""
        if self.document_id is None:
            return self.limit
        return replace(self.limit, unpacked=min(self.limit.unpacked, max(PING_UNPACKED, self.rules.bounds.size)))

    def cost(self, limits: Limits, length: int) -> int:
        """Return the maximum bytes of memory in addition to a body of this length."""
        if self.document_id is None:
            return _cost_of_batch(self.rules, limits, length)
        return _cost_of_ping(self.rules, length)


READ = {
    "content-type": "CONTENT_TYPE",
    "content-length": "CONTENT_LENGTH",
    "content-encoding": "HTTP_CONTENT_ENCODING",
    "accept-encoding": "HTTP_ACCEPT_ENCODING",
    "if-none-match": "HTTP_IF_NONE_MATCH",
    "if-modified-since": "HTTP_IF_MODIFIED_SINCE",
}
"""The headers that ingest reads: their names in HTTP, and in WSGI. Other headers may have any length."""

_SLASHES = re.compile("//+")


def single_slashes(path: str) -> str:
    """Return a path without repeated slashes, which result from a base address with a final slash."""
    return _SLASHES.sub("/", path) if "//" in path else path


def check_request(environ: Environ, limits: Limits) -> None:
    """Raise :class:`Rejection` if the path, or a header that is read, is too long."""
    if len(environ["PATH_INFO"]) + len(environ.get("QUERY_STRING", "")) > limits.path_bytes:
        raise Rejection("path_too_long", f"the path has more than {limits.path_bytes} characters; shorten it")
    for header, name in READ.items():
        if len(environ.get(name, "")) > limits.header_bytes:
            raise Rejection(
                "header_too_large", f"the header {header} has more than {limits.header_bytes} bytes; shorten it"
            )


def document_id_in(text: str) -> UUID:
    """Return the document id of a path; raise :class:`Rejection` if it isn't a UUID."""
    if not _UUID.fullmatch(text):
        raise Rejection("document_id", "the document id in the path is not a UUID; send one, and the same on a retry")
    return msgspec.convert(text, UUID)


def record_of(rules: StudyRules, document_id: UUID, ping: Ping, now_ms: int) -> JournalRecord:
    """Return a ping as a journal record; raise :class:`Rejection` if its arm may not send it."""
    rule = rules.admit(ping, now_ms)
    rule.check_id(document_id, ping.payload)
    return journal_record(document_id, ping.client_id, rule.kept(ping.payload), now_ms, rule.study, rule.line)


def _record_at_once(request: _Request, document_id: UUID, body: bytes) -> JournalRecord | None:
    """Return a ping as a journal record; None if admission requires a read of the store."""
    ping = request.ping(body)
    if not request.rules.is_settled(ping.payload):
        return None
    return record_of(request.rules, document_id, ping, _now_ms())


def _encoded_ping(request: _Request, document_id: UUID, body: bytes) -> bytes:
    """Return a ping as a journal line. Its decoded numbers are freed before the request waits for the disk."""
    return encode_records([record_of(request.rules, document_id, request.ping(body), _now_ms())])


class Refused:
    """The rejected lines of a batch, in bounded space.

    Attributes:
        answers: each line's number, from 1, with a sentence for the first lines, and the reason's name for the others.
        kept: the first rejections, for the operator's log.
        counts: number of lines by reason.
    """

    def __init__(self) -> None:
        self.answers: list[tuple[int, str]] = []
        self.kept: list[Rejection] = []
        self.counts: Counter[str] = Counter()

    def add(self, number: int, rejection: Rejection) -> None:
        """Record the rejection of a line."""
        self.counts[rejection.reason] += 1
        self.answers.append((number, rejection.sentence if len(self.answers) < SENTENCES else rejection.reason))
        if len(self.kept) < LINES_A_FLUSH:
            self.kept.append(rejection.stripped())
        if len(self.answers) == MOST_REFUSED:
            self.counts["not_read"] += 1
            self.answers.append(
                (
                    number + 1,
                    (f"this line and all later ones were not read, because {MOST_REFUSED} lines were already rejected"),
                )
            )

    @property
    def are_enough(self) -> bool:
        """Whether there are so many rejected lines that the rest of the batch is ignored."""
        return len(self.answers) > MOST_REFUSED


class BatchSlice(NamedTuple):
    """Consecutive lines of a batch: their start and end in the body, and the number of newlines."""

    start: int
    end: int
    newlines: int


@dataclass(frozen=True, slots=True)
class Batch:
    """A batch, whose body is decoded and admitted slice by slice.

    Attributes:
        rules: rules of the batch's study.
        limit: the limit for each ping.
        refused: collects the rejected lines.
        now_ms: time of receipt, in milliseconds since 1970.
    """

    rules: StudyRules
    limit: BodyLimit
    refused: Refused
    now_ms: int

    def encoded(self, body: bytes, parts: list[BatchSlice]) -> Iterator[tuple[bytes, int]]:
        """Yield each slice's pings as journal lines, with their number."""
        before = 0
        for start, end, newlines in parts:
            if end - start > SLICE:  # one long line, which is only copied if it can be a ping
                try:
                    self._check_line(body, start, end)
                except Rejection as rejection:
                    self.refused.add(before + 1, rejection)
                    before += 1
                    if self.refused.are_enough:
                        return
                    continue
            records = self._records(body[start:end], newlines, before)
            before += newlines
            if records:
                yield encode_records(records), len(records)
            if self.refused.are_enough:
                return

    def _records(self, lines: bytes, newlines: int, before: int) -> list[JournalRecord]:
        """Return the records of a slice after ``before`` lines. It is decoded at once; if that fails, line by line."""
        rules = self.rules
        if len(lines) <= min(SLICE, self.limit.unpacked) and len(lines) <= rules.bounds.size * (newlines + 1):
            pings = rules.decoding.lines(lines)
            if pings is not None:
                with contextlib.suppress(Rejection):
                    return [record_of(rules, ping.document_id, ping, self.now_ms) for ping in pings]
        records: list[JournalRecord] = []
        for number, line in enumerate(lines.split(b"\n"), before + 1):
            if line.strip():
                try:
                    self._check_line(line, 0, len(line))
                    ping = rules.decoding.batched(line)
                    records.append(record_of(rules, ping.document_id, ping, self.now_ms))
                except Rejection as rejection:
                    if rejection.status == 503:
                        raise  # the cause isn't the line: the client retries the whole batch
                    self.refused.add(number, rejection)
                    if self.refused.are_enough:
                        break
        return records

    def _check_line(self, body: bytes, start: int, end: int) -> None:
        """Raise :class:`Rejection` if a line exceeds the limit for a ping."""
        check_size(end - start - body.endswith(b"\n", start, end), self.limit.unpacked, self.limit.option, "ping")
        self.rules.bounds.check(body, start, end)


def slices(body: bytes) -> list[BatchSlice]:
    """Return the slices of a batch: whole lines of about :data:`SLICE` bytes, or one longer line."""
    parts: list[BatchSlice] = []
    start = 0
    while start < len(body) - SLICE:
        newline = body.rfind(b"\n", start, start + SLICE)
        if newline < 0:
            newline = body.find(b"\n", start + SLICE)
        end = newline + 1 if newline >= 0 else len(body)
        parts.append(BatchSlice(start, end, body.count(b"\n", start, end)))
        start = end
    if start < len(body):
        parts.append(BatchSlice(start, len(body), body.count(b"\n", start)))
    return parts


def _cost_of_ping(rules: StudyRules, length: int) -> int:
    """Return the maximum bytes of memory that a ping of this length needs in addition to its body."""
    return min(length * OBJECT_COST // 2, rules.bounds.cost) + rules.bounds.look


def _cost_of_batch(rules: StudyRules, limits: Limits, length: int) -> int:
    """Return the maximum bytes of memory that a batch of this length needs in addition to its body."""
    decoded = min(length * OBJECT_COST // 2, max(SLICE_COST, rules.bounds.cost))
    return decoded + rules.bounds.look + min(3 * length, 3 * PART) + min(length, limits.batch_lines) * LINE_COST


def not_stored(error: NotStored) -> Rejection:
    """Return the rejection of pings that couldn't be written."""
    if error.full:
        return Rejection("disk_full", "the disk of the server is full and the ping was not stored; send it again later")
    return Rejection("not_stored", "the server could not write the ping to disk; send it again later")


def internal_error() -> Rejection:
    """Return the rejection for an internal error of the server."""
    return Rejection("internal", "a defect of the server; send it again later")


def print_defect() -> None:
    """Log the traceback of an internal error, without values."""
    tell_defect(LOGGED)


def _other_method(method: str) -> Answer:
    if method == "OPTIONS":
        return PREFLIGHT
    raise Rejection("method", "the path accepts POST and PUT; correct the method")


def _now_ms() -> int:
    return int(time.time() * 1000)
