"""Answers as WSGI gives them: a status line, headers and bytes."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from http import HTTPStatus
from typing import TYPE_CHECKING

import msgspec

from server_jobs.ingest.admission.rejection import Rejection

if TYPE_CHECKING:
    from _typeshed.wsgi import StartResponse

ALLOW_SUBMIT = "POST, PUT, OPTIONS"
CORS = ("Access-Control-Allow-Origin", "*")
_JSON = ("Content-Type", "application/json")
_LINES = {status.value: f"{status.value} {status.phrase}" for status in HTTPStatus}


@dataclass(frozen=True, slots=True)
class Answer:
    """One response; its headers include CORS, since any page may submit and fetch models."""

    status: int
    body: bytes
    headers: tuple[tuple[str, str], ...] = ()

    def send(self, start_response: StartResponse) -> Iterable[bytes]:
        """Begin the response and return its body."""
        length = ("Content-Length", str(len(self.body)))
        start_response(_LINES[self.status], [_JSON, CORS, length, *self.headers])
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


def refusal(rejection: Rejection) -> Answer:
    """Return the answer to a refused request."""
    headers = (("Allow", ALLOW_SUBMIT),) if rejection.status == 405 else ()
    return Answer(rejection.status, msgspec.json.encode({"error": rejection.sentence}), headers)


def batch_answer(accepted: int, rejected: list[tuple[int, Rejection]]) -> Answer:
    """Return the answer to a batch: 200 if any ping was taken or there was none to take, else 400."""
    lines = [{"line": number, "reason": rejection.sentence} for number, rejection in rejected]
    status = 400 if rejected and not accepted else 200
    return Answer(status, msgspec.json.encode({"accepted": accepted, "rejected": lines}))
