"""The submit path: from a request to a durable ping, in small steps, each with its reason to refuse.

check the request -> know the study -> read and unpack the body -> decode -> admit -> journal -> 200
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

from fedping.protocol.documents import DocumentType
from fedping.protocol.log import tell_defect
from fedping.protocol.ping import Ping
from fedping.server_jobs.ingest.admission.body import Unpack, announced, check_size, length_within, unpacked
from fedping.server_jobs.ingest.admission.catalogue import TELEMETRY, telemetry_of
from fedping.server_jobs.ingest.admission.rejection import Rejection
from fedping.server_jobs.ingest.admission.rules import StudyRules
from fedping.server_jobs.ingest.counters import LINES_A_FLUSH
from fedping.server_jobs.ingest.edge.answers import ACCEPTED_ONE, PREFLIGHT, Answer, batch_answer, refusal
from fedping.server_jobs.ingest.edge.services import Services
from fedping.server_jobs.ingest.journal.frames import JournalRecord, encode_records, journal_record
from fedping.server_jobs.ingest.journal.journal import NotStored
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
"""What stands behind the path of every ping of telemetry: the version of its envelope."""

_UUID = re.compile(r"[0-9a-fA-F]{8}-(?:[0-9a-fA-F]{4}-){3}[0-9a-fA-F]{12}")
SENTENCES = 100
"""How many refused lines of a batch are told in sentences; of the others the answer gives the reason's name."""

MOST_REFUSED = 1000
"""After so many refused lines a batch is read no further: each takes a hundred times what it took to send it."""


@dataclass(frozen=True, slots=True)
class Receive:
    """Have the ``length`` bytes of the body received, and sent back.

    ``grown`` is told how many bytes more are about to be held, and may refuse. What is not to be kept is b"".
    """

    length: int
    grown: Callable[[int], None] | None = None
    keep: bool = True


@dataclass(frozen=True, slots=True)
class Store:
    """Have the JSON lines of ``rows`` pings written to the journal of their type; go on when they are on disk."""

    document: DocumentType
    lines: bytes
    rows: int


@dataclass(frozen=True, slots=True)
class Aside:
    """Have this done where it may take its time and wait, and what it returns sent back."""

    work: Callable[[], object]
    is_batch: bool = False


Step: TypeAlias = Receive | Store | Aside
Steps: TypeAlias = Generator[Step, Any, Answer]


async def run_steps(steps: Steps, done: Callable[[Step], Awaitable[Any]]) -> Answer:
    """Go the steps of a request to its answer; ``done`` does what each stops for, waiting as its server waits."""
    try:
        step = next(steps)
        while True:
            try:
                result = await done(step)
            except Exception as error:  # the steps tell which is whose
                step = steps.throw(error)
            else:
                step = steps.send(result)
    except StopIteration as end:
        answer: Answer = end.value
        return answer


class Submit:
    """Answers everything below ``/submit/``, whoever does the waiting: see :meth:`steps`."""

    def __init__(self, services: Services) -> None:
        self._services = services
        self._limits = services.settings.limits
        self._ping_limit, self._batch_limit = self._limits.ping, self._limits.batch

    def steps(self, environ: Environ) -> Steps:
        """Return the way to the answer to one request, which stops wherever there is something to be waited for.

        What it stops with says for what; send the result, or throw what went wrong. Nothing that a client sends raises.
        """
        received = False
        try:
            check_request(environ, self._limits)
            if environ["REQUEST_METHOD"] not in ("POST", "PUT"):
                return _other_method(environ["REQUEST_METHOD"])
            prefixes = self._services.prefixes
            if prefixes is not None:
                prefixes.take(environ)
            asked = parse_request(environ["PATH_INFO"], environ.get("QUERY_STRING", ""))
            if not self._services.catalogue.knows(asked.study):
                yield Aside(partial(self._services.catalogue.look_for, asked.study))
            request = self._request(asked, None if prefixes is None else partial(prefixes.take_more, environ))
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
        except Exception:  # a defect of ours: say so, keep serving, and do not log what was sent
            print_defect()
            refused = internal_error()
        if not received and (length := length_within(environ, self._batch_limit.sent)):
            # So that the connection can be used again: a proxy that is still sending would take a close for a failure
            # of ours, and have its client come again for ever.
            yield Receive(length, keep=False)
        return self._refuse(environ, refused)

    def _request(self, asked: Asked, take_more: Callable[[int], None] | None) -> _Request:
        rules = self._services.catalogue.taking(asked.study)
        rules.check_kind(asked.document, asked.version)
        if asked.document_id is None:
            return _Request(rules, None, self._batch_limit, take_more=take_more)
        return _Request(rules, document_id_in(asked.document_id), self._ping_limit, asked.in_telemetry)

    def _holding(self, length: int, held: contextlib.ExitStack) -> Callable[[int], None] | None:
        """Return what a body of this length asks for room as it comes; a small one does not ask."""
        return held.enter_context(self._services.memory.receiving.lease(0)).grow if length > SMALL else None

    def _answer(self, request: _Request, unpack: Unpack | None, body: bytes) -> Answer | Rejection:
        """Return the answer to a batch, or to a ping that is large or packed. Waits for room, and for the disk."""
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
            raise Rejection("too_many_lines", f"a batch of this study may have {most} lines; send it in parts")
        if request.take_more is not None:
            request.take_more(lines + (not body.endswith(b"\n")))
        refused, accepted = Refused(), 0
        rejected: Mapping[str, int] = {}
        try:
            for rows in self._store_batch(rules, body, parts, refused):
                accepted += rows
            rejected = refused.counts
        finally:  # what is on disk counts, also if the rest could not be stored; the client sends the batch again
            self._services.count_batch(rules.study.name, accepted, rejected)
        self._services.counters.add("batches", 1)
        for rejection in refused.kept:
            self._services.rejections.add(rules.study.name, rejection)
        self._services.rejections.leave_out(len(refused.told) - len(refused.kept))
        return batch_answer(accepted, refused.told)

    def _store_batch(self, rules: StudyRules, body: bytes, parts: list[BatchSlice], refused: Refused) -> Iterator[int]:
        """Decode and write a batch in parts; yield how many pings each has, when they are on disk."""
        rows = size = 0
        gathered: list[bytes] = []
        for encoded, count in encoded_batch(rules, body, parts, _now_ms(), refused, self._ping_limit):
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
        path = environ.get("PATH_INFO", PREFIX)
        try:
            study = parse_request(path, TELEMETRY_QUERY).study
        except Rejection:
            study = path[len(PREFIX) :].partition("/")[0]
        self._services.refuse(study, rejection)
        return refusal(rejection)


class Asked(NamedTuple):
    """What a path names: a study as the catalogue has it, a type of document and its version, and a document.

    ``version`` is None where a path has none; ``document_id`` is None for a batch.
    """

    study: str
    document: str
    version: str | None
    document_id: str | None

    @property
    def in_telemetry(self) -> bool:
        """Whether it is a path of telemetry, whose pings have an envelope of their own."""
        return self.version is None


def parse_request(path: str, query: str) -> Asked:
    """Return what a path below ``/submit/`` asks for; raises :class:`Rejection` if it has another form."""
    parts = path.split("/")
    if len(parts) == 6:
        return Asked(parts[2], parts[3], parts[4], parts[5])
    if len(parts) == 5:
        return Asked(parts[2], parts[3], parts[4], None)
    if len(parts) == 9 and parts[2] == TELEMETRY:
        if query != TELEMETRY_QUERY:
            raise Rejection("unknown_version", f"telemetry has version 4 only; send ?{TELEMETRY_QUERY}")
        return Asked(telemetry_of(parts[4]), parts[4], None, parts[3])
    raise Rejection(
        "path",
        "the path is not /submit/<study>/<type>/<version>[/<document id>], nor /submit/telemetry/<document id>/<type>/"
        "<application>/<its version>/<channel>/<build id>; correct it",
    )


@dataclass(frozen=True, slots=True)
class _Request:
    """What a path asks for: to take one document, or a batch of them if it names none.

    ``take_more`` is told how many lines a batch has, where networks may send only so many, and may refuse.
    """

    rules: StudyRules
    document_id: UUID | None
    limit: BodyLimit
    in_telemetry: bool = False
    take_more: Callable[[int], None] | None = None

    def ping(self, body: bytes) -> Ping:
        """Return the one document in a body; raises :class:`Rejection` if it is none."""
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
        """The limit of a packed body, which is that of its study's pings if it is one."""
        if self.document_id is None:
            return self.limit
        return replace(self.limit, unpacked=min(self.limit.unpacked, max(PING_UNPACKED, self.rules.bounds.size)))

    def cost(self, limits: Limits, length: int) -> int:
        """Return the most bytes that are held beside a body of this length."""
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
"""The headers that ingest reads, as HTTP and as WSGI name them. Products and proxies may add others, of any length."""

_SLASHES = re.compile("//+")


def single_slashes(path: str) -> str:
    """Return a path with one slash wherever it has several: a base address that ends in one is a common mistake."""
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
    """Return the document id of a path; raises :class:`Rejection` if it is not a UUID."""
    if not _UUID.fullmatch(text):
        raise Rejection("document_id", "the document id in the path is not a UUID; send one, and the same on a retry")
    return msgspec.convert(text, UUID)


def record_of(rules: StudyRules, document_id: UUID, ping: Ping, now_ms: int) -> JournalRecord:
    """Return a ping as the journal keeps it; raises :class:`Rejection` if its arm may not send it."""
    rule = rules.admit(ping, now_ms)
    return journal_record(document_id, ping.client_id, rule.kept(ping.payload), now_ms, rule.study, rule.line)


def _record_at_once(request: _Request, document_id: UUID, body: bytes) -> JournalRecord | None:
    """Return a ping as the journal keeps it, or None if the store has to be asked whether it may be sent."""
    ping = request.ping(body)
    if not request.rules.is_settled(ping.payload):
        return None
    return record_of(request.rules, document_id, ping, _now_ms())


def _encoded_ping(request: _Request, document_id: UUID, body: bytes) -> bytes:
    """Return a ping as the journal keeps it. Its numbers are gone before it is waited for the disk."""
    return encode_records([record_of(request.rules, document_id, request.ping(body), _now_ms())])


class Refused:
    """The refused lines of a batch: what is told of each, in bounded space however many there are.

    Attributes:
        told: the number of each line, from 1, and a sentence for the first of them, the reason's name for the others.
        kept: the first rejections, for the operator's log.
        counts: how many lines by reason.
    """

    def __init__(self) -> None:
        self.told: list[tuple[int, str]] = []
        self.kept: list[Rejection] = []
        self.counts: Counter[str] = Counter()

    def add(self, number: int, rejection: Rejection) -> None:
        """Remember why a line was refused."""
        self.counts[rejection.reason] += 1
        self.told.append((number, rejection.sentence if len(self.told) < SENTENCES else rejection.reason))
        if len(self.kept) < LINES_A_FLUSH:
            self.kept.append(rejection.stripped())
        if len(self.told) == MOST_REFUSED:
            self.counts["not_read"] += 1
            self.told.append((number + 1, f"not read, and nothing after it: {MOST_REFUSED} lines were refused before"))

    @property
    def are_enough(self) -> bool:
        """Whether the rest of the batch is not to be read."""
        return len(self.told) > MOST_REFUSED


class BatchSlice(NamedTuple):
    """Where some lines of a batch begin and end, and how many newlines there are in them."""

    start: int
    end: int
    newlines: int


def encoded_batch(
    rules: StudyRules, body: bytes, parts: list[BatchSlice], now_ms: int, refused: Refused, limit: BodyLimit
) -> Iterator[tuple[bytes, int]]:
    """Yield the pings of a batch as the journal keeps them, a slice at a time, and how many they are.

    ``limit`` is that of each ping.
    """
    before = 0
    for start, end, newlines in parts:
        if end - start > SLICE:  # one long line, which is not even copied unless it can be a ping
            try:
                _check_line(rules, limit, body, start, end)
            except Rejection as rejection:
                refused.add(before + 1, rejection)
                before += 1
                if refused.are_enough:
                    return
                continue
        lines = body[start:end]
        records = _records_of_lines(rules, lines, newlines, now_ms, before, refused, limit)
        before += newlines
        if records:
            yield encode_records(records), len(records)
        if refused.are_enough:
            return


def slices(body: bytes) -> list[BatchSlice]:
    """Return the slices of a batch: whole lines, about :data:`SLICE` bytes of them or one line."""
    found: list[BatchSlice] = []
    start = 0
    while start < len(body) - SLICE:
        newline = body.rfind(b"\n", start, start + SLICE)
        if newline < 0:
            newline = body.find(b"\n", start + SLICE)
        end = newline + 1 if newline >= 0 else len(body)
        found.append(BatchSlice(start, end, body.count(b"\n", start, end)))
        start = end
    if start < len(body):
        found.append(BatchSlice(start, len(body), body.count(b"\n", start)))
    return found


def _records_of_lines(
    rules: StudyRules, lines: bytes, newlines: int, now_ms: int, before: int, refused: Refused, limit: BodyLimit
) -> list[JournalRecord]:
    if len(lines) <= min(SLICE, limit.unpacked) and len(lines) <= rules.bounds.size * (newlines + 1):
        pings = rules.decoding.lines(lines)
        if pings is not None:
            with contextlib.suppress(Rejection):
                return [record_of(rules, ping.document_id, ping, now_ms) for ping in pings]
    records: list[JournalRecord] = []
    for number, line in enumerate(lines.split(b"\n"), before + 1):
        if line.strip():
            try:
                _check_line(rules, limit, line, 0, len(line))
                ping = rules.decoding.batched(line)
                records.append(record_of(rules, ping.document_id, ping, now_ms))
            except Rejection as rejection:
                if rejection.status == 503:
                    raise  # the whole batch is to be sent again, for what is no fault of the line's
                refused.add(number, rejection)
                if refused.are_enough:
                    break
    return records


def _check_line(rules: StudyRules, limit: BodyLimit, body: bytes, start: int, end: int) -> None:
    """Raise :class:`Rejection` if a line of a batch is longer than a ping may be."""
    check_size(end - start - body.endswith(b"\n", start, end), limit.unpacked, limit.option, "ping")
    rules.bounds.check(body, start, end)


def _cost_of_ping(rules: StudyRules, length: int) -> int:
    """Return the most bytes that are held, beside its body, by a ping of this length."""
    return min(length * OBJECT_COST // 2, rules.bounds.cost) + rules.bounds.look


def _cost_of_batch(rules: StudyRules, limits: Limits, length: int) -> int:
    """Return the most bytes that are held, beside its body, by a batch of this length."""
    decoded = min(length * OBJECT_COST // 2, max(SLICE_COST, rules.bounds.cost))
    return decoded + rules.bounds.look + min(3 * length, 3 * PART) + min(length, limits.batch_lines) * LINE_COST


def not_stored(error: NotStored) -> Rejection:
    """Return what a sender is told whose pings could not be written."""
    if error.full:
        return Rejection("disk_full", "the disk of the server is full and the ping was not stored; send it again later")
    return Rejection("not_stored", "the server could not write the ping to disk; send it again later")


def internal_error() -> Rejection:
    """Return what a sender is told of a defect of ours."""
    return Rejection("internal", "the server failed on this request, which is a defect; send it again later")


def print_defect() -> None:
    """Print where a defect is, without values."""
    tell_defect(LOGGED)


def _other_method(method: str) -> Answer:
    if method == "OPTIONS":
        return PREFLIGHT
    raise Rejection("method", "the path takes POST and PUT; correct the method")


def _now_ms() -> int:
    return int(time.time() * 1000)
