"""The submit path: from a request to a durable ping, in small steps, each with its reason to refuse.

check the request -> know the study -> read and unpack the body -> decode -> admit -> journal -> 200
"""

from __future__ import annotations

import contextlib
import re
import sys
import time
import traceback
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any
from uuid import UUID

import msgspec

from protocol.ping import BatchedPing, Ping
from server_jobs.ingest.admission.body import read_body
from server_jobs.ingest.admission.rejection import Rejection
from server_jobs.ingest.admission.rules import StudyRules
from server_jobs.ingest.edge.answers import ACCEPTED_ONE, PREFLIGHT, Answer, batch_answer, refusal
from server_jobs.ingest.edge.services import Services
from server_jobs.ingest.journal.journal import NotStored
from server_jobs.ingest.journal.record import JournalRecord, encode_records
from server_jobs.ingest.settings import MIB, Limits

if TYPE_CHECKING:
    from _typeshed.wsgi import StartResponse

Environ = dict[str, Any]
PREFIX = "/submit/"
_UUID = re.compile(r"[0-9a-fA-F]{8}-(?:[0-9a-fA-F]{4}-){3}[0-9a-fA-F]{12}")
_DRAINED = MIB


class Submit:
    """Answers everything below ``/submit/``, as a WSGI application of its own."""

    def __init__(self, services: Services) -> None:
        self._services = services
        self._limits = services.settings.limits
        self._ping_limit, self._batch_limit = self._limits.ping, self._limits.batch

    def __call__(self, environ: Environ, start_response: StartResponse) -> Iterable[bytes]:
        """Answer one request. Nothing that a client sends raises."""
        try:
            answer = self._answer(environ)
        except Rejection as rejection:
            answer = self._refuse(environ, rejection)
        except Exception:  # a defect of ours: say so, keep serving, and do not log what was sent
            print_defect()
            answer = self._refuse(environ, internal_error())
        return answer.send(start_response)

    def _answer(self, environ: Environ) -> Answer:
        check_request(environ, self._limits)
        if environ["REQUEST_METHOD"] not in ("POST", "PUT"):
            return _other_method(environ["REQUEST_METHOD"])
        parts = environ["PATH_INFO"].split("/")
        if not 5 <= len(parts) <= 6:
            raise Rejection("path", "the path is not /submit/<study>/<type>/<version>[/<document id>]; correct it")
        rules = self._services.catalogue.rules(parts[2])
        rules.check_kind(parts[3], parts[4])
        return self._take_one(rules, parts[5], environ) if len(parts) == 6 else self._take_batch(rules, environ)

    def _take_one(self, rules: StudyRules, document: str, environ: Environ) -> Answer:
        document_id = document_id_in(document)
        body = read_body(environ, self._ping_limit)
        ping = rules.decoding.ping(body)
        self._store(rules, [record_of(rules, document_id, ping, _now_ms())])
        return ACCEPTED_ONE

    def _take_batch(self, rules: StudyRules, environ: Environ) -> Answer:
        body = read_body(environ, self._batch_limit)
        if body.count(b"\n") > self._limits.batch_lines:
            raise Rejection("too_many_lines", f"a batch may have {self._limits.batch_lines} lines; send it in parts")
        records, rejected = records_of_batch(rules, body, _now_ms())
        if records:
            self._store(rules, records)
        self._services.counters.add("batches", 1)
        for _, rejection in rejected:
            self._services.refuse(rules.study.name, rejection)
        return batch_answer(len(records), rejected)

    def _store(self, rules: StudyRules, records: list[JournalRecord]) -> None:
        """Return when records are on disk; raises :class:`Rejection` if they are not."""
        try:
            self._services.journals.of(rules.document).append(encode_records(records), len(records))
        except NotStored as error:
            raise not_stored(error) from error

    def _refuse(self, environ: Environ, rejection: Rejection) -> Answer:
        drain(environ)
        study = environ.get("PATH_INFO", "")[len(PREFIX) :].partition("/")[0]
        self._services.refuse(study, rejection)
        return refusal(rejection)


def check_request(environ: Environ, limits: Limits) -> None:
    """Raise :class:`Rejection` if the path or a header is too long."""
    if len(environ["PATH_INFO"]) + len(environ.get("QUERY_STRING", "")) > limits.path_bytes:
        raise Rejection("path_too_long", f"the path has more than {limits.path_bytes} characters; shorten it")
    for name, value in environ.items():
        if name.startswith("HTTP_") and len(value) > limits.header_bytes:
            raise Rejection("header_too_large", f"a header has more than {limits.header_bytes} bytes; shorten it")


def document_id_in(text: str) -> UUID:
    """Return the document id of a path; raises :class:`Rejection` if it is not a UUID."""
    if not _UUID.fullmatch(text):
        raise Rejection("document_id", "the document id in the path is not a UUID; send one, and the same on a retry")
    return msgspec.convert(text, UUID)


def record_of(rules: StudyRules, document_id: UUID, ping: Ping, now_ms: int) -> JournalRecord:
    """Return a ping as the journal keeps it; raises :class:`Rejection` if its arm may not send it."""
    rule = rules.admit(ping.payload, now_ms)
    return JournalRecord(
        document_id=document_id,
        client_id=ping.client_id,
        received_at=now_ms,
        payload=ping.payload,
        study=rule.study,
        line=rule.line,
    )


def records_of_batch(
    rules: StudyRules, body: bytes, now_ms: int
) -> tuple[list[JournalRecord], list[tuple[int, Rejection]]]:
    """Return the records of a batch, and its refused lines with their numbers from 1."""
    pings = rules.decoding.batch(body)
    if pings is not None:
        with contextlib.suppress(Rejection):
            return [_record_of_line(rules, ping, now_ms) for ping in pings], []
    return _line_by_line(rules, body, now_ms)


def _line_by_line(
    rules: StudyRules, body: bytes, now_ms: int
) -> tuple[list[JournalRecord], list[tuple[int, Rejection]]]:
    records: list[JournalRecord] = []
    rejected: list[tuple[int, Rejection]] = []
    for number, line in enumerate(body.split(b"\n"), 1):
        if line.strip():
            try:
                records.append(_record_of_line(rules, rules.decoding.batched(line), now_ms))
            except Rejection as rejection:
                if rejection.status == 503:
                    raise  # the whole batch is to be sent again, for what is no fault of the line's
                rejected.append((number, rejection))
    return records, rejected


def _record_of_line(rules: StudyRules, ping: BatchedPing, now_ms: int) -> JournalRecord:
    return record_of(rules, ping.document_id, ping, now_ms)


def not_stored(error: NotStored) -> Rejection:
    """Return what a sender is told whose pings could not be written."""
    if error.full:
        return Rejection("disk_full", "the disk of the server is full and the ping was not stored; send it again later")
    return Rejection("not_stored", "the server could not write the ping to disk; send it again later")


def internal_error() -> Rejection:
    """Return what a sender is told of a defect of ours."""
    return Rejection("internal", "the server failed on this request, which is a defect; send it again later")


def print_defect() -> None:
    """Print where a defect is, without values: the message of an exception may quote what was sent."""
    kind, _, where = sys.exc_info()
    frames = "".join(traceback.format_tb(where))
    print(f"fedping ingest: {kind.__name__ if kind else 'error'}\n{frames}", file=sys.stderr, flush=True)


def drain(environ: Environ) -> None:
    """Read a small body that was refused unread, so that the connection can be used again."""
    length = environ.get("CONTENT_LENGTH") or ""
    if length.isascii() and length.isdigit() and len(length) < 9 and int(length) <= _DRAINED:
        environ["wsgi.input"].read()


def _other_method(method: str) -> Answer:
    if method == "OPTIONS":
        return PREFLIGHT
    raise Rejection("method", "the path takes POST and PUT; correct the method")


def _now_ms() -> int:
    return int(time.time() * 1000)
