"""What clients fetch: studies and models, as static documents with an entity tag.

The newest version's number is looked up at each request, so that no worker can answer with one that has been followed;
its bytes are kept by number, since a version never changes.
"""

from __future__ import annotations

import gzip
import hashlib
import threading
import time
from collections import OrderedDict
from dataclasses import dataclass, replace

import msgspec
from flask import Blueprint, Response, request

from fedping.model_store import ModelStore
from fedping.model_store.store import MissingVersion
from fedping.model_store.versions import number_in
from fedping.protocol.errors import FedpingError
from fedping.protocol.model import Staged
from fedping.protocol.study import public_json, public_study
from fedping.server_jobs.ingest.admission.rejection import Rejection
from fedping.server_jobs.ingest.admission.rules import LineHead, StudyRules, is_published
from fedping.server_jobs.ingest.edge.answers import EXPOSED
from fedping.server_jobs.ingest.edge.services import Services
from fedping.server_jobs.ingest.settings import MIB

KEPT_BYTES = 64 * MIB
"""How much is remembered, in each worker; a model of a million weights has 20 MB and, packed, 10 more, that of the
study of 2018 less than 1 kB."""

WORTH_PACKING = 1024
"""Bytes of a document. The head of an answer takes up what smaller ones would save."""

_LEVEL = 1
"""Of gzip: a million weights are 9.9 MB then, and 9.2 at level 6, which takes five times as long."""


@dataclass(frozen=True)
class Document:
    """A model document's bytes and entity tag; and, for a long one, what gzip makes of it."""

    data: bytes
    etag: str
    packed: bytes | None = None


def tagged(data: bytes) -> Document:
    """Return bytes with the entity tag that they have for good."""
    return Document(data, hashlib.sha256(data).hexdigest()[:32])


def _packed(document: Document) -> Document:
    """Return a document with its packed form, if it is long enough."""
    if len(document.data) <= WORTH_PACKING:
        return document
    return replace(document, packed=gzip.compress(document.data, _LEVEL, mtime=0))


class Documents:
    """Model documents by study, line, number and what is staged: these never change, so none is read twice."""

    def __init__(self, store: ModelStore, most_bytes: int = KEPT_BYTES) -> None:
        self._store = store
        self._most_bytes = most_bytes
        self._kept: OrderedDict[tuple[str, str, int, Staged | None], Document] = OrderedDict()
        self._lock = threading.Lock()

    def document(self, study: str, line: str, number: int, staged: Staged | None = None) -> Document:
        """Return a document; raises :class:`model_store.StoreError` if there is no such version.

        ``staged`` is what some clients are to take instead.
        """
        key = (study, line, number, staged)
        with self._lock:
            found = self._kept.get(key)
            if found is not None:
                self._kept.move_to_end(key)
                return found
        found = _packed(tagged(self._store.public.document(study, line, number, staged)))
        with self._lock:
            self._kept[key] = found
            while len(self._kept) > 1 and sum(map(_size, self._kept.values())) > self._most_bytes:
                self._kept.popitem(last=False)
        return found


def _size(document: Document) -> int:
    return len(document.data) + len(document.packed or b"")


REVALIDATE = "no-cache"
FOREVER = "public, max-age=31536000, immutable"
RETRY_SECONDS = 30


def blueprint(services: Services) -> Blueprint:
    """Return the views."""
    views = Blueprint("models", __name__)
    documents = Documents(services.store)

    @views.get("/models/<study>/study.json")
    def study_json(study: str) -> Response:
        found = services.catalogue.found(study).study
        told = public_study(found, services.catalogue.declared(study), services.catalogue.offers(study))
        return _static(tagged(public_json(told)), REVALIDATE)

    @views.get("/models/<study>/<line>/latest.json")
    def latest_json(study: str, line: str) -> Response:
        head = _head(services.catalogue.found(study), line)
        try:
            newest = head.latest()
            if newest < 0:
                raise _no_version(line, "any")
            return _static(documents.document(study, line, newest, head.staged()), REVALIDATE)
        except FedpingError:
            return _unreadable(line)

    @views.get("/models/<study>/<line>/staged-<name>.json")
    def staged_json(study: str, line: str, name: str) -> Response:
        head = _head(services.catalogue.found(study), line)
        try:
            head.latest()
            staged = head.staged()
            if staged is None or number_in(f"{name}.json") != staged.iteration:
                raise _no_version(line, f"{name} that is staged")
            return _static(tagged(services.store.public.staged_document(study, line, staged)), REVALIDATE)
        except FedpingError:
            return _unreadable(line)

    @views.get("/models/<study>/<line>/<name>.json")
    def numbered_json(study: str, line: str, name: str) -> Response:
        head = _head(services.catalogue.found(study), line)
        number = number_in(f"{name}.json")  # one address a version: not 07.json, nor other digits
        if number is None:
            raise _no_version(line, "of such a number")
        try:
            if not is_published(head, number, int(time.time() * 1000)):
                raise _no_version(line, str(number))
            return _static(documents.document(study, line, number), FOREVER)
        except MissingVersion as error:
            raise _no_version(line, str(number)) from error
        except FedpingError:
            return _unreadable(line)

    @views.after_request
    def count_bytes(response: Response) -> Response:
        size = response.calculate_content_length()
        if size and response.status_code == 200 and request.method != "HEAD":  # else there is no body
            services.counters.add("fetched_bytes", size)
        return response

    @views.after_request
    def any_origin(response: Response) -> Response:
        response.headers["Access-Control-Allow-Origin"] = "*"
        if "Retry-After" in response.headers:
            response.headers[EXPOSED[0]] = EXPOSED[1]
        return response

    return views


def _head(rules: StudyRules, line: str) -> LineHead:
    head = rules.heads.get(line)
    if head is None:
        there = ", ".join(rules.heads) or "none"
        raise Rejection("path", f"study '{rules.study.name}' has no such line; it has {there}: correct the path")
    return head


def _no_version(line: str, number: str) -> Rejection:
    return Rejection("path", f"line '{line}' has no version {number} yet; fetch latest.json")


def _unreadable(line: str) -> Response:
    """Answer that a version cannot be read at the moment; the heartbeat tells the operator why."""
    sentence = f"the store's version of line '{line}' cannot be read at the moment; ask again later"
    headers = {"Retry-After": str(RETRY_SECONDS), "Cache-Control": "no-store"}
    return Response(msgspec.json.encode({"error": sentence}), 503, headers, content_type="application/json")


def _static(document: Document, caching: str) -> Response:
    data, etag = document.data, document.etag
    if packed := document.packed if request.accept_encodings["gzip"] else None:
        data, etag = packed, f"{etag}-gzip"  # other bytes, so another tag
    response = Response(data, content_type="application/json")
    if packed:
        response.content_encoding = "gzip"
    if document.packed:
        response.vary.add("Accept-Encoding")
    response.set_etag(etag)
    response.headers["Cache-Control"] = caching
    response.make_conditional(request)
    return response
