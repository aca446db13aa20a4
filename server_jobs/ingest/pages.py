"""The pages that clients fetch: studies and models as static documents, and the optional demo page.

The number of the newest version is looked up for each request, so no worker responds with a superseded version. A
version's bytes are cached by number, because they never change.

The demo page is served with `fedping ingest --demo-page`. Its files are read once, when a worker starts. They are
looked up by their whole path, so requests can't reach other files. Below ``/demo/`` they have the layout of
``browser/``, so that the page's modules find the client's module as in a checkout.
"""

from __future__ import annotations

import gzip
import hashlib
import threading
import time
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeAlias

import msgspec
from flask import Blueprint, Response, request

from fedping.model_store import ModelStore
from fedping.model_store.store import MissingVersion
from fedping.model_store.versions import number_in
from fedping.protocol.errors import FedpingError
from fedping.protocol.landed_file import open_pings
from fedping.protocol.landing import landed_files, partition
from fedping.protocol.location import Place
from fedping.protocol.model import Staged
from fedping.protocol.ping import DocumentType
from fedping.protocol.study import public_json, public_study
from fedping.server_jobs.ingest.admission import LineHead, StudyRules, is_published
from fedping.server_jobs.ingest.answers import EXPOSED, Rejection, printable
from fedping.server_jobs.ingest.services import Services
from fedping.server_jobs.ingest.settings import MIB

KEPT_BYTES = 64 * MIB
"""Maximum bytes of cached documents per worker. A model with a million weights has 20 MB, plus 10 MB compressed; the
model of the study of 2018 has less than 1 kB."""

WORTH_PACKING = 1024
"""Minimum bytes of a document to compress. For smaller documents, the savings are small compared with the headers."""

_LEVEL = 1
"""Compression level of gzip. A million weights have 9.9 MB; level 6 results in 9.2 MB, but takes five times as long."""


@dataclass(frozen=True)
class Document:
    """A document's bytes and entity tag. ``packed`` is the gzip-compressed form of a long document."""

    data: bytes
    etag: str
    packed: bytes | None = None


def tagged(data: bytes) -> Document:
    """Return a document with its entity tag, which depends only on the bytes."""
    return Document(data, hashlib.sha256(data).hexdigest()[:32])


def _packed(document: Document) -> Document:
    """Return a document with its compressed form, if it is long enough."""
    if len(document.data) <= WORTH_PACKING:
        return document
    return replace(document, packed=gzip.compress(document.data, _LEVEL, mtime=0))


class Documents:
    """Cache of model documents by study, line, number and staged version. Documents never change."""

    def __init__(self, store: ModelStore, most_bytes: int = KEPT_BYTES) -> None:
        self._store = store
        self._most_bytes = most_bytes
        self._kept: OrderedDict[tuple[str, str, int, Staged | None], Document] = OrderedDict()
        self._lock = threading.Lock()

    def document(self, study: str, line: str, number: int, staged: Staged | None = None) -> Document:
        """Return a version's document with its ``staged`` successor; raise StoreError if it doesn't exist."""
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


def model_pages(services: Services) -> Blueprint:
    """Return the views of studies and models."""
    views = Blueprint("models", __name__)
    documents = Documents(services.store)

    @views.get("/models/<study>/study.json")
    def study_json(study: str) -> Response:
        catalogue = services.catalogue
        settings = catalogue.found(study).study
        document = public_study(settings, catalogue.declared(study), catalogue.offers(study))
        return _static(tagged(public_json(document)), REVALIDATE)

    @views.get("/models/<study>/<line>/latest.json")
    def latest_json(study: str, line: str) -> Response:
        head = _head(services.catalogue.found(study), line)
        newest = head.latest()
        if newest < 0:
            raise _no_version(line, "any")
        return _static(documents.document(study, line, newest, head.staged()), REVALIDATE)

    @views.get("/models/<study>/<line>/staged-<name>.json")
    def staged_json(study: str, line: str, name: str) -> Response:
        head = _head(services.catalogue.found(study), line)
        head.latest()
        staged = head.staged()
        if staged is None or number_in(f"{name}.json") != staged.iteration:
            raise _no_version(line, f"{name} that is staged")
        return _static(tagged(services.store.public.staged_document(study, line, staged)), REVALIDATE)

    @views.get("/models/<study>/<line>/<name>.json")
    def numbered_json(study: str, line: str, name: str) -> Response:
        head = _head(services.catalogue.found(study), line)
        number = number_in(f"{name}.json")  # one address per version: not 07.json, nor other digits
        if number is None:
            raise _no_version(line, "with this number")
        if not is_published(head, number, int(time.time() * 1000)):
            raise _no_version(line, str(number))
        try:
            document = documents.document(study, line, number)
        except MissingVersion as error:
            raise _no_version(line, str(number)) from error
        return _static(document, FOREVER)

    @views.errorhandler(FedpingError)
    def unreadable(_: FedpingError) -> Response:
        return _unreadable((request.view_args or {}).get("line"))

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
        raise Rejection(
            "path",
            f"study '{rules.study.name}' has no line '{printable(line)}'; it has {there}: put the line's name into the "
            "path",
        )
    return head


def _no_version(line: str, number: str) -> Rejection:
    return Rejection("path", f"line '{line}' has no version {number} yet; fetch latest.json")


def _unreadable(line: str | None) -> Response:
    """Return the response for an unreadable version. The heartbeat shows the cause to the operator."""
    what = "study" if line is None else f"version of line '{line}'"
    sentence = f"the store's {what} cannot be read now; retry later"
    headers = {"Retry-After": str(RETRY_SECONDS), "Cache-Control": "no-store"}
    return Response(msgspec.json.encode({"error": sentence}), 503, headers, content_type="application/json")


def _static(document: Document, caching: str) -> Response:
    data, etag = document.data, document.etag
    if packed := document.packed if request.accept_encodings["gzip"] else None:
        data, etag = packed, f"{etag}-gzip"  # other bytes have another tag
    response = Response(data, content_type="application/json")
    if packed:
        response.content_encoding = "gzip"
    if document.packed:
        response.vary.add("Accept-Encoding")
    response.set_etag(etag)
    response.headers["Cache-Control"] = caching
    response.make_conditional(request)
    return response


BROWSER = Path(__file__).parents[2] / "browser"
PAGE = "demo/index.html"
PARTS = ("demo", "delivery", "disclosure", "features", "models", "predicting", "product", "study")
"""Folders of the page and of the client's module. Of the files directly in ``browser/``, only modules are served."""

TYPES = {
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".css": "text/css; charset=utf-8",
}

HEADERS = {
    # The page loads everything from this server. Trusted types: no text of a ping or a study can become markup or code.
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self' data:; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'; "
        "require-trusted-types-for 'script'; trusted-types 'none'"
    ),
    "Cross-Origin-Opener-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "Cache-Control": "no-cache",
}


def demo_pages(services: Services) -> Blueprint:
    """Return the views of the demo page."""
    views = Blueprint("demo_page", __name__, url_prefix="/demo")
    files, counts = page_files(), LandedCounts(services.settings.landing)

    @views.get("/", defaults={"path": PAGE})
    @views.get("/<path:path>")
    def file(path: str) -> Response:
        document = files.get(path)
        if document is None:
            raise Rejection("path", "the demo page does not have this file; open /demo/")
        response = Response(document.data, content_type=TYPES[Path(path).suffix])
        response.set_etag(document.etag)
        response.make_conditional(request)
        return response

    @views.get("/state.json")
    def state() -> Response:
        current = state_of(services, counts, request.args.get("study"))
        return Response(msgspec.json.encode(current), content_type="application/json")

    @views.after_request
    def strict(response: Response) -> Response:
        response.headers.update(HEADERS)
        return response

    return views


def page_files(folder: Path = BROWSER) -> Mapping[str, Document]:
    """Return the files of the demo page, by path.

    Raises:
        FedpingError: the files aren't installed.
    """
    if not (folder / PAGE).is_file():
        raise FedpingError(f"the demo page is missing ({folder / PAGE}); reinstall fedping, or remove --demo-page")
    found = [*folder.glob("*.js"), *(path for part in PARTS for path in (folder / part).rglob("*"))]
    return {path.relative_to(folder).as_posix(): tagged(path.read_bytes()) for path in found if path.suffix in TYPES}


def state_of(services: Services, counts: LandedCounts, study: str | None) -> dict[str, object]:
    """Return all studies, the chosen study (None: the first), and the landed pings of each of its lines.

    Raises:
        Rejection: the study is unknown, or the store is empty.
    """
    studies = services.catalogue.names()
    if study is None and not studies:
        raise Rejection("unknown_study", "the store has no study yet; create one with 'fedping study create FILE'")
    rules = services.catalogue.found(studies[0] if study is None else study)
    return {
        "studies": studies,
        "study": rules.study.name,
        "lines": [
            {
                "name": line.name,
                "iteration": rules.heads[line.name].latest(),
                "min_clients": line.pipeline.min_clients,
                **(
                    {"pings": None, "clients": None}  # public: every ping of a client would show
                    if rules.study.is_private
                    else counts.of(rules.document, rules.study.name, line.name, rules.heads[line.name].known)
                ),
            }
            for line in rules.study.lines
        ],
    }


MOST_ROWS = 20_000
"""Maximum number of rows for which clients are counted. Beyond that, only the round reports clients."""

Key: TypeAlias = tuple[str, str, int]


@dataclass(frozen=True)
class _Counted:
    rows: int
    clients: frozenset[bytes]


class LandedCounts:
    """Counts of pings and clients of each line's current version. Landed files never change, so each is read once."""

    def __init__(self, landing: Place) -> None:
        self._landing = landing
        self._known: dict[tuple[str, str], tuple[int, dict[Place, _Counted]]] = {}
        self._lock = threading.Lock()

    def of(self, document: DocumentType, study: str, line: str, iteration: int) -> dict[str, int | None]:
        """Return the numbers of landed ``pings`` and of ``clients`` of a version; None for too many clients.

        The numbers are estimates for display: they include duplicates and damaged updates.
        """
        files = landed_files(partition(self._landing, study, line, iteration))
        with self._lock:
            last, before = self._known.get((study, line), (iteration, {}))
            known = before if last == iteration else {}
            counted = {file: known.get(file) or _counted(document, file) for file in files}
            self._known[study, line] = (iteration, counted)
        rows = sum(each.rows for each in counted.values())
        clients: frozenset[bytes] = frozenset().union(*(each.clients for each in counted.values()))
        return {"pings": rows, "clients": len(clients) if rows <= MOST_ROWS else None}


def _counted(document: DocumentType, file: Place) -> _Counted:
    """Return the counts of one file; zeros if it is unreadable, which the round reports."""
    import pyarrow as pa

    from fedping.protocol.arrow import UPDATE_ENCODING, counted

    columns = ["client_id", UPDATE_ENCODING, *document.counted_by]
    try:
        landed = open_pings(file, document, columns)
        rows = landed.footer.num_rows
        if rows > MOST_ROWS:
            return _Counted(rows, frozenset())
        with landed.opened() as opened:
            table = opened.read(columns=columns)
    except (OSError, FedpingError):
        return _Counted(0, frozenset())
    examples = document.examples(counted(table, document).to_numpy())
    useful = (examples > 0) & table[UPDATE_ENCODING].is_valid().to_numpy()
    return _Counted(rows, frozenset(table["client_id"].filter(pa.array(useful)).to_pylist()))
