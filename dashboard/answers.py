"""JSON and file responses, and errors that have an HTTP status and a message of their own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec
from flask import Request, Response

from fedping.protocol.errors import FedpingError, did_you_mean

FRESH = {"Cache-Control": "no-store"}


def as_json(value: object, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    """Return a JSON response with any value that msgspec can encode."""
    body = msgspec.json.encode(value)
    return Response(body, status, headers={**FRESH, **(headers or {})}, content_type="application/json")


def as_file(data: str | bytes, kind: str, name: str, *, kept: bool = True) -> Response:
    """Return a file as a response.

    Browsers save the file if ``kept``, else they display it. ``kind`` is its content type, and ``name`` must be ASCII
    without quotes.
    """
    disposition = f'{"attachment" if kept else "inline"}; filename="{name}"'
    return Response(data, headers={**FRESH, "Content-Disposition": disposition}, content_type=f"{kind}; charset=utf-8")


def bearer_token(request: Request) -> str | None:
    """Return the token of an ``Authorization: Bearer`` header; None without one. Case is ignored (RFC 7235)."""
    scheme, _, token = request.headers.get("Authorization", "").partition(" ")
    return token.strip() if scheme.lower() == "bearer" else None


def wants_page(request: Request) -> bool:
    """Return whether the client accepts an HTML page; programs with a Bearer token never get one."""
    if bearer_token(request) is not None:
        return False
    return request.accept_mimetypes.best_match(["application/json", "text/html"], "application/json") == "text/html"


MOST = 200
"""Maximum characters of a path or an address in a message."""


class NotThere(FedpingError):
    """The address names something that does not exist (404)."""


def unknown_study(name: str, studies: Sequence[str]) -> NotThere:
    """Return the error for an address with the name of an unknown study."""
    there = f"it has {', '.join(studies)}" if studies else "it has none; make one with 'fedping study create'"
    return NotThere(f"the dashboard's store has no study '{name[:80]}'; {there}{did_you_mean(name, studies)}")


class WrongState(FedpingError):
    """The request is not possible in the present state (409)."""


def sentence_of(error: FedpingError | OSError) -> str:
    """Return an error's message without a full stop; for an ``OSError``, the file's path and the reason."""
    if isinstance(error, FedpingError):
        return str(error)
    where = str(error.filename or "a file")[:MOST]
    return f"{where} cannot be used ({(error.strerror or str(error)).lower()}); fix that and try again"
