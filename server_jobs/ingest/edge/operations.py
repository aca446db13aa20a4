"""What the operator asks: how much has been taken and landed, metrics, and to land everything now."""

from __future__ import annotations

import msgspec
from flask import Blueprint, Response, request

from server_jobs.ingest.admission.rejection import Rejection
from server_jobs.ingest.counters import totals
from server_jobs.ingest.edge.metrics import exposition
from server_jobs.ingest.edge.services import Services
from server_jobs.ingest.journal.backlog import backlog, request_flush, wait_until_landed
from server_jobs.ingest.journal.balance import missing, settled

FLUSH_SECONDS = 30.0
LONGEST_FLUSH_SECONDS = 600.0
_LOOPBACK = ("127.", "::1", "::ffff:127.")
_FORWARDED = ("Forwarded", "X-Forwarded-For", "X-Real-Ip", "Via")


def blueprint(services: Services) -> Blueprint:
    """Return the views."""
    views = Blueprint("operations", __name__)

    @views.get("/metrics")
    def metrics() -> Response:
        settings = services.settings
        text, content_type = exposition(totals(settings.counters), backlog(settings.journal), missing(settings))
        return Response(text, content_type=content_type)

    @views.get("/__status__")
    def status() -> Response:
        return _json(status_of(services))

    @views.post("/__flush__")
    def flush() -> Response:
        """Land everything that was accepted before this request; answer when it is in Parquet (504: not in time).

        What was removed from the journal before it had landed never is: then the answer is 504 as well.
        """
        _refuse_strangers()
        settings = services.settings
        accepted = totals(settings.counters)["accepted"]
        services.journals.roll()
        request_flush(settings.flush_request)
        landed = wait_until_landed(settings.journal, _seconds(), lambda: settled(totals(settings.counters)) >= accepted)
        return _json(status_of(services) | {"flushed": landed}, 200 if landed else 504)

    return views


def status_of(services: Services) -> dict[str, object]:
    """Return what was taken and landed since ingest started, and what the journal holds at this moment."""
    sums = totals(services.settings.counters)
    waiting = backlog(services.settings.journal)
    rejected = {name.partition(".")[2]: n for name, n in sums.items() if name.startswith("rejected.") and n}
    return {
        "accepted": sums["accepted"],
        "landed": sums["landed"],
        "duplicates": sums["duplicates"],
        "quarantined": sums["quarantined"],
        "missing": missing(services.settings),
        "pending": waiting.pings,
        "pending_segments": waiting.segments,
        "rejected": rejected,
    }


def _refuse_strangers() -> None:
    """Let only programs on this machine through, and nobody by way of a proxy on it."""
    near = (request.remote_addr or "").startswith(_LOOPBACK)
    if not near or any(name in request.headers for name in _FORWARDED):
        raise Rejection("not_loopback", "only a program on the same machine may ask for this; run it there")


def _seconds() -> float:
    asked = request.args.get("timeout", type=float, default=FLUSH_SECONDS)
    return min(max(asked, 0.0), LONGEST_FLUSH_SECONDS) if asked == asked else FLUSH_SECONDS


def _json(value: object, status: int = 200) -> Response:
    return Response(msgspec.json.encode(value), status, content_type="application/json")
