"""The demo page: a page to type into, the client's module that it runs, and what waits for the next round.

Only with `fedping ingest --demo-page`. The files are read once, when a worker starts, and looked up by their whole
path, so that no path leads out of them. Below ``/demo/`` they lie as below ``browser/``, so that the page's modules
find the client's module where they find it in the checkout. An installation has the folder beside the packages.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import msgspec
from flask import Blueprint, Response, request

from fedping.protocol.errors import FedpingError
from fedping.server_jobs.ingest.admission.rejection import Rejection
from fedping.server_jobs.ingest.edge.landed_counts import LandedCounts
from fedping.server_jobs.ingest.edge.models import Document, tagged
from fedping.server_jobs.ingest.edge.services import Services

BROWSER = Path(__file__).parents[3] / "browser"
PAGE = "demo/index.html"
PARTS = ("demo", "delivery", "models", "study")
"""The folders of the page and of the client's module; of ``browser/`` itself the modules alone are served."""

TYPES = {
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".css": "text/css; charset=utf-8",
}

HEADERS = {
    # All that the page needs comes from here. Trusted types: no text of a ping or a study can become markup or code.
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


def blueprint(services: Services) -> Blueprint:
    """Return the views."""
    views = Blueprint("demo_page", __name__, url_prefix="/demo")
    files, counts = page_files(), LandedCounts(services.settings.landing)

    @views.get("/", defaults={"path": PAGE})
    @views.get("/<path:path>")
    def file(path: str) -> Response:
        document = files.get(path)
        if document is None:
            raise Rejection("path", "the demo page has no such file; open /demo/")
        response = Response(document.data, content_type=TYPES[Path(path).suffix])
        response.set_etag(document.etag)
        response.make_conditional(request)
        return response

    @views.get("/state.json")
    def state() -> Response:
        told = state_of(services, counts, request.args.get("study"))
        return Response(msgspec.json.encode(told), content_type="application/json")

    @views.after_request
    def strict(response: Response) -> Response:
        response.headers.update(HEADERS)
        return response

    return views


def page_files(folder: Path = BROWSER) -> Mapping[str, Document]:
    """Return what is served, by path.

    Raises:
        FedpingError: the files are not there.
    """
    if not (folder / PAGE).is_file():
        raise FedpingError(
            f"the demo page is not there ({folder / PAGE}); install fedping anew, or leave out --demo-page"
        )
    found = [*folder.glob("*.js"), *(path for part in PARTS for path in (folder / part).rglob("*"))]
    return {path.relative_to(folder).as_posix(): tagged(path.read_bytes()) for path in found if path.suffix in TYPES}


def state_of(services: Services, counts: LandedCounts, study: str | None) -> dict[str, object]:
    """Return the studies, the one that was asked for (the first, if none was), and what waits at each of its lines.

    Raises:
        Rejection: there is no such study, or none at all.
    """
    studies = services.catalogue.names()
    if study is None and not studies:
        raise Rejection("unknown_study", "the store has no study yet; make one with 'fedping study create'")
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
                    {"pings": None, "clients": None}  # anybody may ask, and each client that sends would show
                    if rules.study.is_private
                    else counts.of(rules.document, rules.study.name, line.name, rules.heads[line.name].known)
                ),
            }
            for line in rules.study.lines
        ],
    }
