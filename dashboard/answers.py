"""Answers that are not pages: JSON, and files to keep. None is remembered by a browser, for each is of its moment."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec
from flask import Request, Response

FRESH = {"Cache-Control": "no-store"}


def as_json(value: object, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    """Return anything that msgspec encodes."""
    body = msgspec.json.encode(value)
    return Response(body, status, headers={**FRESH, **(headers or {})}, content_type="application/json")


def as_file(data: str | bytes, kind: str, name: str, *, kept: bool = True) -> Response:
    """Return a file of a content type, to be ``kept`` or else shown; its name has ASCII letters and no quote."""
    disposition = f'{"attachment" if kept else "inline"}; filename="{name}"'
    return Response(data, headers={**FRESH, "Content-Disposition": disposition}, content_type=f"{kind}; charset=utf-8")


def wants_page(request: Request) -> bool:
    """Return whether an answer is for a person, who reads a page; a program with a Bearer token never is one."""
    if request.headers.get("Authorization", "").startswith("Bearer "):
        return False
    return request.accept_mimetypes.best_match(["application/json", "text/html"], "application/json") == "text/html"
