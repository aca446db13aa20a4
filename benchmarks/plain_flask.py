"""Ingest without its hot path: the same landing inside a plain Flask route."""

from __future__ import annotations

import time
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from flask import Flask, Response, request

from fedping.server_jobs.ingest.answers import ACCEPTED_ONE
from fedping.server_jobs.ingest.application import Edge, Front
from fedping.server_jobs.ingest.segments import encode_records
from fedping.server_jobs.ingest.services import Services
from fedping.server_jobs.ingest.submit import document_id_in, record_of

if TYPE_CHECKING:
    from _typeshed.wsgi import StartResponse


class PlainFlask(Edge):
    """Ingest with an ordinary view instead of the hot path: the same checks and journal, but Flask's dispatch."""

    def __init__(self, services: Services) -> None:
        super().__init__(services)

        @self.route("/submit/<study>/<doc_type>/<doc_version>/<document_id>", methods=["POST", "PUT"])
        def submit(study: str, doc_type: str, doc_version: str, document_id: str) -> Response:
            rules = services.catalogue.rules(study)
            rules.check_kind(doc_type, doc_version)
            document = document_id_in(document_id)
            body = request.get_data()
            rules.bounds.check(body)
            ping = rules.decoding.ping(body)
            record = record_of(rules, document, ping, int(time.time() * 1000))
            services.journals.of(rules.document).append(encode_records([record]), 1)
            return Response(ACCEPTED_ONE.body, content_type="application/json")

    def wsgi_app(self, environ: dict[str, Any], start_response: StartResponse) -> Iterable[bytes]:
        """Answer a request by Flask's own dispatch."""
        return Flask.wsgi_app(self, environ, start_response)


class PlainFront(Front):
    """A front that passes all requests, even pings, to the Flask application."""

    def _is_submitted(self, environ: dict[str, Any]) -> bool:
        return False


def plain_front(services: Services) -> Front:
    """Return a worker's application."""
    return PlainFront(PlainFlask(services))
