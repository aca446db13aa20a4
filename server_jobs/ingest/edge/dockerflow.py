"""The three addresses by which an operator's tools ask whether a service lives, and what it is (Dockerflow).

They are public, as load balancers need them. In public the deep heartbeat tells which check fails and no more; why it
does, which names folders and quotes errors, is for the operator's listener.
"""

from __future__ import annotations

import os
from collections.abc import Callable

import msgspec
from flask import Blueprint, Response

from fedping.protocol import __version__
from fedping.server_jobs.ingest.edge.health import Pulse

SHALLOW = "/__lbheartbeat__"


def blueprint(pulse: Pulse, notes: Callable[[], list[str]] | None = None) -> Blueprint:
    """Return the views: with reasons, and ``notes`` of what does no harm, or with the names of the checks alone."""
    views = Blueprint("dockerflow", __name__)
    commit = os.environ.get("FEDPING_COMMIT", "")

    @views.get(SHALLOW)
    def shallow() -> Response:
        return _json({"status": "ok"})

    @views.get("/__heartbeat__")
    def deep() -> Response:
        checks = pulse()
        told = {name: (trouble if notes else "error") if trouble else "ok" for name, trouble in checks.items()}
        failed = any(checks.values())
        answer: dict[str, object] = {"status": "error" if failed else "ok", "version": __version__, "checks": told}
        if notes:  # which would have to wait as well for a store that does not answer
            answer["notes"] = [] if checks.get("store") or "answers" in checks else notes()
        return _json(answer, 503 if failed else 200)

    @views.get("/__version__")
    def version() -> Response:
        return _json({"source": "fedping", "version": __version__, "commit": commit})

    return views


def _json(value: object, status: int = 200) -> Response:
    return Response(msgspec.json.encode(value), status, content_type="application/json")
