"""The three addresses by which an operator's tools ask whether a service lives, and what it is (Dockerflow)."""

from __future__ import annotations

import os

import msgspec
from flask import Blueprint, Response

from protocol import __version__
from protocol.errors import FedpingError
from server_jobs.ingest.edge.models import store_notes, store_trouble
from server_jobs.ingest.edge.services import Services
from server_jobs.ingest.journal.balance import balance_trouble
from server_jobs.ingest.processes.bonds import is_held

COMPACTOR_LOCK = ".compactor.lock"


def blueprint(services: Services) -> Blueprint:
    """Return the views."""
    views = Blueprint("dockerflow", __name__)
    commit = os.environ.get("FEDPING_COMMIT", "")

    @views.get("/__lbheartbeat__")
    def shallow() -> Response:
        return _json({"status": "ok"})

    @views.get("/__heartbeat__")
    def deep() -> Response:
        checks = health(services)
        failed = {name: trouble for name, trouble in checks.items() if trouble}
        told = {name: trouble or "ok" for name, trouble in checks.items()}
        answer = {"status": "error" if failed else "ok", "checks": told, "notes": store_notes(services)}
        return _json(answer, 503 if failed else 200)

    @views.get("/__version__")
    def version() -> Response:
        return _json({"source": "fedping", "version": __version__, "commit": commit})

    return views


def health(services: Services) -> dict[str, str | None]:
    """Return what is wrong with each of the parts that ingest cannot do without; None where nothing is."""
    compactor = is_held(services.settings.journal / COMPACTOR_LOCK)
    return {
        "journal": _journal_trouble(services),
        "balance": balance_trouble(services.settings),
        "store": _store_trouble(services),
        "compactor": None if compactor else "the compactor is not running; pings are kept in the journal meanwhile",
    }


def _journal_trouble(services: Services) -> str | None:
    probe = services.settings.journal / f".probe-{os.getpid()}"
    try:
        probe.write_bytes(b"x")
        probe.unlink()
    except OSError as error:
        return f"the journal folder cannot be written: {error.strerror}"
    return None


def _store_trouble(services: Services) -> str | None:
    try:
        services.store.studies()
        return services.catalogue.trouble or store_trouble(services)
    except (FedpingError, OSError) as error:
        return str(error)


def _json(value: object, status: int = 200) -> Response:
    return Response(msgspec.json.encode(value), status, content_type="application/json")
