"""Answers that are not pages, such as JSON and files, and errors with their own status and sentence."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec
from flask import Request, Response

from fedping.protocol.errors import FedpingError, did_you_mean

FRESH = {"Cache-Control": "no-store"}


def as_json(value: object, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    """Return anything that msgspec can encode as JSON."""
    body = msgspec.json.encode(value)
    return Response(body, status, headers={**FRESH, **(headers or {})}, content_type="application/json")


def as_file(data: str | bytes, kind: str, name: str, *, kept: bool = True) -> Response:
    """Return a file of a content type, to be saved if ``kept`` or else shown; its name is ASCII without quotes."""
    disposition = f'{"attachment" if kept else "inline"}; filename="{name}"'
    return Response(data, headers={**FRESH, "Content-Disposition": disposition}, content_type=f"{kind}; charset=utf-8")


def bearer_token(request: Request) -> str | None:
    """Return the token in ``Authorization: Bearer``, whose first word is in any case (RFC 7235); None without one."""
    scheme, _, token = request.headers.get("Authorization", "").partition(" ")
    return token.strip() if scheme.lower() == "bearer" else None


def wants_page(request: Request) -> bool:
    """Return whether the answer is for a person, who reads a page; a program with a Bearer token never does."""
    if bearer_token(request) is not None:
        return False
    return request.accept_mimetypes.best_match(["application/json", "text/html"], "application/json") == "text/html"


MOST = 200
"""Characters of a path or an address that a message shows."""


class NotThere(FedpingError):
    """The thing that an address names does not exist (404)."""


def unknown_study(name: str, studies: Sequence[str]) -> NotThere:
    """Return the error about a name in an address that none of the store's studies has."""
    there = f"it has {', '.join(studies)}" if studies else "it has none; make one with 'fedping study create'"
    return NotThere(f"the dashboard's store has no study '{name[:80]}'; {there}{did_you_mean(name, studies)}")


class WrongState(FedpingError):
    """The request is not possible in the present state (409)."""


def sentence_of(error: FedpingError | OSError) -> str:
    """Return an error's sentence without a full stop; for an unusable file, its path and the reason."""
    if isinstance(error, FedpingError):
        return str(error)
    where = str(error.filename or "a file")[:MOST]
    return f"{where} cannot be used ({(error.strerror or str(error)).lower()}); fix that and try again"
