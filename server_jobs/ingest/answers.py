"""Responses and rejections, with HTTP status, reason for the counters, and sentence for the sender.

The sentence may quote the request, because only its sender reads the sentence. The operator reads ``detail``, which
never quotes requests: a ping's content, ids and addresses stay out of all logs.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from http import HTTPStatus
from typing import TYPE_CHECKING, NamedTuple

import msgspec

if TYPE_CHECKING:
    from _typeshed.wsgi import StartResponse


REASONS = {
    "path": 404,
    "page": 404,
    "unknown_study": 404,
    "unknown_type": 404,
    "unknown_version": 404,
    "study_ended": 410,
    "document_id": 400,
    "too_many_lines": 413,
    "method": 405,
    "length_required": 411,
    "body_too_large": 413,
    "decompressed_too_large": 413,
    "path_too_long": 414,
    "content_type": 415,
    "content_encoding": 415,
    "header_too_large": 431,
    "body_incomplete": 400,
    "body_timeout": 408,
    "decompression": 400,
    "not_utf8": 400,
    "not_json": 400,
    "nesting": 400,
    "duplicate_key": 400,
    "not_a_ping": 400,
    "unknown_arm": 400,
    "not_enrolled": 400,
    "ticket_missing": 403,
    "ticket_forged": 403,
    "ticket_expired": 403,
    "beyond_limits": 400,
    "update_range": 400,
    "update_not_expected": 400,
    "update_missing": 400,
    "update_length": 400,
    "update_encoding": 400,
    "update_payload": 400,
    "beyond_study": 400,
    "update_not_zero": 400,
    "outcome_undeclared": 400,
    "outcome_bounds": 400,
    "outcome_late": 400,
    "outcome_choice": 400,
    "model_version": 400,
    "version_unseen": 503,
    "study_unreadable": 503,
    "no_ping_accepted": 400,
    "not_read": 400,
    "busy": 503,
    "too_many_pings": 429,
    "disk_full": 507,
    "not_stored": 500,
    "internal": 500,
}
"""All rejection reasons of requests and of lines in batches, with their HTTP status.

The reason :data:`PAGE` counts all rejected requests for pages, models and heartbeats, which aren't pings.
"""

PAGE = "page"


class Rejection(Exception):
    """A rejected request, or line of a batch.

    Args:
        reason: a key of :data:`REASONS`.
        sentence: the problem, its place and the remedy, for the sender.
        detail: the place in the ping, for the operator; contains only words from the ping's definition.
        retry_after: seconds until a retry; None for the usual time.
    """

    def __init__(self, reason: str, sentence: str, detail: str = "", retry_after: int | None = None) -> None:
        super().__init__(sentence)
        self.reason = reason
        self.status = REASONS[reason]
        self.sentence = sentence
        self.detail = detail
        self.retry_after = retry_after

    def stripped(self) -> Rejection:
        """Return this rejection without traceback and causes, so that storing it doesn't hold the body in memory.

        A traceback refers to frames, which refer to the body. A list of rejections in such a frame would be a
        reference cycle.
        """
        self.__traceback__ = self.__cause__ = self.__context__ = None
        return self


_PLACE = re.compile(r"\$[A-Za-z0-9_.\[\]]*")
_QUOTES_THE_SENDER = ("unknown field", "Invalid enum value", "Invalid value")


def rejection_of(error: Exception) -> Rejection:
    """Return the rejection for an exception of a decoder."""
    if isinstance(error, msgspec.ValidationError):
        return _not_a_ping(str(error))
    if isinstance(error, RecursionError):
        return Rejection("nesting", "the ping is nested too deeply; send only the declared fields")
    if isinstance(error, UnicodeError):
        return Rejection("not_utf8", "the body is not valid UTF-8; encode the JSON as UTF-8")
    return Rejection("not_json", f"the body is not one JSON document: {printable(str(error))}; send one JSON object")


def _not_a_ping(message: str) -> Rejection:
    place = _PLACE.search(message)
    where = place.group() if place else "$"
    quotes = any(words in message for words in _QUOTES_THE_SENDER)
    detail = f"at {where}" if quotes else message
    sentence = f"the document is not a ping: {printable(message)}; correct that field according to the ping's schema"
    return Rejection("not_a_ping", sentence, detail)


_UNKNOWN = re.compile(r"unknown field `([^`]{1,80})` - at `\$\.payload`")
_COLUMN = re.compile(r"(?:^|\$\.payload\.)`?([a-z][a-z0-9_]*)`")


def outcome_rejection(error: Exception, columns: frozenset[str]) -> Rejection | None:
    """Return the rejection for an error in a declared column; None for errors about other parts of a ping.

    Args:
        error: the exception of a decoder.
        columns: the names of the declared outcomes of the ping's type.
    """
    if not isinstance(error, msgspec.ValidationError):
        return None
    message = str(error)
    declared = ", ".join(sorted(columns)) or "none"
    if (unknown := _UNKNOWN.search(message)) is not None:
        return Rejection(
            "outcome_undeclared",
            f"the study declares no outcome '{printable(unknown[1])}' for pings of this type; it declares {declared}: "
            "remove the field, or fetch the study again",
            "an undeclared column",
        )
    column = _COLUMN.search(message)
    if column is None or column[1] not in columns:
        return None
    return Rejection(
        "outcome_bounds",
        f"the outcome '{column[1]}' does not match the study's declaration: {printable(message)}; clip it to its "
        "bounds and round it before sending",
        f"the outcome '{column[1]}'",
    )


def printable(text: str, longest: int = 300) -> str:
    """Return text for use in any response: shortened, with invisible and lone-surrogate characters escaped."""
    return text[:longest].encode("unicode_escape").decode("ascii")


ALLOW_SUBMIT = "POST, PUT, OPTIONS"
RETRY_AFTER = 5
"""Seconds after which a client should retry a request to a busy server."""

CORS = ("Access-Control-Allow-Origin", "*")
_JSON = ("Content-Type", "application/json")
_LINES = {status.value: f"{status.value} {status.phrase}" for status in HTTPStatus}


class HttpResponse(NamedTuple):
    """A response with all its headers."""

    status: int
    headers: list[tuple[str, str]]
    body: bytes


@dataclass(frozen=True, slots=True)
class Answer:
    """A response whose headers include CORS, because any web page may submit pings and fetch models."""

    status: int
    body: bytes
    headers: tuple[tuple[str, str], ...] = ()

    def response(self) -> HttpResponse:
        """Return the response with all its headers."""
        return HttpResponse(
            self.status, [_JSON, CORS, ("Content-Length", str(len(self.body))), *self.headers], self.body
        )

    def send(self, start_response: StartResponse) -> Iterable[bytes]:
        """Start the response as in WSGI, and return its body."""
        start_response(_LINES[self.status], self.response().headers)
        return [self.body]


ACCEPTED_ONE = Answer(200, b'{"accepted":1,"rejected":[]}')

PREFLIGHT = Answer(
    204,
    b"",
    (
        ("Allow", ALLOW_SUBMIT),
        ("Access-Control-Allow-Methods", ALLOW_SUBMIT),
        ("Access-Control-Allow-Headers", "Content-Type, Content-Encoding"),
        ("Access-Control-Max-Age", "86400"),
    ),
)


_HEADERS: dict[int, tuple[tuple[str, str], ...]] = {
    405: (("Allow", ALLOW_SUBMIT),),
    408: (("Connection", "close"),),
    503: (("Retry-After", str(RETRY_AFTER)),),
}
EXPOSED = ("Access-Control-Expose-Headers", "Retry-After")
"""Header that lets pages of other sites read ``Retry-After``; otherwise they would retry too early."""


def refusal(rejection: Rejection) -> Answer:
    """Return the response to a rejected request."""
    headers = _HEADERS.get(rejection.status, ())
    if rejection.retry_after is not None:
        headers = (("Retry-After", str(rejection.retry_after)),)
    if any(name == "Retry-After" for name, _ in headers):
        headers = (*headers, EXPOSED)
    return Answer(rejection.status, msgspec.json.encode({"error": rejection.sentence}), headers)


def batch_answer(accepted: int, rejected: list[tuple[int, str]]) -> Answer:
    """Return the response to a batch: 200 if a ping was accepted or the batch is empty, else 400.

    ``rejected`` has each rejected line's number, and its sentence or reason.
    """
    status = 400 if rejected and not accepted else 200
    lines = b",".join(b'{"line":%d,"reason":%b}' % (number, msgspec.json.encode(reason)) for number, reason in rejected)
    return Answer(status, b'{"accepted":%d,"rejected":[%b]}' % (accepted, lines))
