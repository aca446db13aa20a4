"""A refused request: its status, its reason for the counters, and its sentence for the sender.

The sentence may name what was sent, for the sender alone. What the operator reads (`detail`) never quotes it: a ping's
content, ids and addresses stay out of every log.
"""

from __future__ import annotations

import re

import msgspec

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
"""Every reason for which a request or a line of a batch is refused, with its HTTP status.

:data:`PAGE` stands for whatever reason a page, a model or a heartbeat was refused for: no ping was, whoever asks.
"""

PAGE = "page"


class Rejection(Exception):
    """A request or a line that is not taken.

    Args:
        reason: a key of :data:`REASONS`.
        sentence: what, where, what to do; for the sender.
        detail: where in the ping, in words of the ping's definition only; for the operator.
        retry_after: after how many seconds to send it again, where it is not the usual time.
    """

    def __init__(self, reason: str, sentence: str, detail: str = "", retry_after: int | None = None) -> None:
        super().__init__(sentence)
        self.reason = reason
        self.status = REASONS[reason]
        self.sentence = sentence
        self.detail = detail
        self.retry_after = retry_after

    def stripped(self) -> Rejection:
        """Return this rejection without what it was raised from and through, so that it can be kept.

        A traceback holds the frames and these the body; a list of rejections in such a frame would keep itself alive.
        """
        self.__traceback__ = self.__cause__ = self.__context__ = None
        return self


_PLACE = re.compile(r"\$[A-Za-z0-9_.\[\]]*")
_QUOTES_THE_SENDER = ("unknown field", "Invalid enum value", "Invalid value")


def rejection_of(error: Exception) -> Rejection:
    """Return what a decoder's exception means to the sender of the document."""
    if isinstance(error, msgspec.ValidationError):
        return _not_a_ping(str(error))
    if isinstance(error, RecursionError):
        return Rejection("nesting", "the ping is nested too deeply to be read; send the declared fields only")
    if isinstance(error, UnicodeError):
        return Rejection("not_utf8", "the body is not valid UTF-8; encode the JSON as UTF-8")
    return Rejection("not_json", f"the body is not one JSON document: {_printable(str(error))}; send one JSON object")


def _not_a_ping(message: str) -> Rejection:
    place = _PLACE.search(message)
    where = place.group() if place else "$"
    quotes = any(words in message for words in _QUOTES_THE_SENDER)
    detail = f"at {where}" if quotes else message
    sentence = f"the document is not a ping: {_printable(message)}; correct that field as the ping's schema says"
    return Rejection("not_a_ping", sentence, detail)


def _printable(text: str, longest: int = 300) -> str:
    """Return text that is safe in any answer: invisible and lone-surrogate characters escaped, and not too long."""
    return text[:longest].encode("unicode_escape").decode("ascii")
