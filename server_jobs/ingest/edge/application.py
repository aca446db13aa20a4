"""The Flask application of a worker."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from typing import TYPE_CHECKING, Any

from flask import Flask, Response, request
from werkzeug.exceptions import HTTPException

from fedping.server_jobs.ingest.admission.rejection import Rejection
from fedping.server_jobs.ingest.edge import demo_page, dockerflow, models
from fedping.server_jobs.ingest.edge.answers import Answer, refusal
from fedping.server_jobs.ingest.edge.health import Pulse
from fedping.server_jobs.ingest.edge.services import Services
from fedping.server_jobs.ingest.edge.slow_clients import incomplete
from fedping.server_jobs.ingest.edge.submit import (
    PREFIX,
    Aside,
    Environ,
    Receive,
    Step,
    Store,
    Submit,
    check_request,
    internal_error,
    print_defect,
    run_steps,
    single_slashes,
)
from fedping.server_jobs.ingest.latencies import WATCH, Stopwatch
from fedping.server_jobs.ingest.settings import SMALL
from fedping.server_jobs.listener import stay_here

if TYPE_CHECKING:
    from _typeshed.wsgi import StartResponse


REST = 9.0
"""A heartbeat that was worked out is told again for so many times as long as that took: a tenth of the time at most."""


class Edge(Flask):
    """A Flask application that answers ``/submit/`` itself and leaves everything else to ordinary views.

    What is the operator's is not here (:mod:`fedping.server_jobs.ingest.edge.operations`): whoever can send a ping
    could ask for it, and no address or header that arrives by way of a proxy tells a stranger from the operator.

    Flask's dispatch costs thirty times what a ping costs; pings are the one path where that counts. A worker has
    :class:`fedping.server_jobs.ingest.edge.asgi.Front` before it, which waits without a thread; here, as in any WSGI
    application, whoever asks waits.
    """

    def __init__(self, services: Services) -> None:
        super().__init__("fedping.ingest", static_folder=None)
        self.services = services
        self.submit = Submit(services)
        self.register_blueprint(dockerflow.blueprint(Pulse(services, REST)))
        self.register_blueprint(models.blueprint(services))
        if services.settings.demo_page:
            self.register_blueprint(demo_page.blueprint(services))
        self.before_request(self._check)
        stay_here(self)
        tell_errors(self)
        self.register_error_handler(Rejection, self._counted)

    def wsgi_app(self, environ: dict[str, Any], start_response: StartResponse) -> Iterable[bytes]:
        """Answer one request, waiting for whatever has to be waited for."""
        environ["PATH_INFO"] = single_slashes(environ["PATH_INFO"])
        if environ["PATH_INFO"].startswith(PREFIX):
            return self._submitted(environ).send(start_response)
        return super().wsgi_app(environ, start_response)

    def _submitted(self, environ: Environ) -> Answer:
        try:
            # One step takes it to its end, for nothing in it is left waiting.
            run_steps(self.submit.steps(environ), partial(self._done, environ)).send(None)
        except StopIteration as end:
            answer: Answer = end.value
            return answer
        raise AssertionError("a request was left waiting, where whoever asks waits")

    async def _done(self, environ: Environ, step: Step) -> Any:
        match step:
            case Store(document, lines, rows):
                return self.services.journals.of(document).append(lines, rows)
            case Aside(work, _):
                return work()
            case Receive(length, grown, keep):
                return _received(environ, length, grown, keep)

    def _counted(self, rejection: Rejection) -> Response:
        self.services.refuse_page(rejection)
        return _refused(rejection)

    def _check(self) -> None:
        watch: Stopwatch | None = request.environ.get(WATCH)
        if watch is not None and request.url_rule is not None:
            watch.asks_for(request.url_rule.rule)
        check_request(request.environ, self.services.settings.limits)


def tell_errors(app: Flask) -> None:
    """Have an application answer every error with one sentence in JSON."""
    app.register_error_handler(Rejection, _refused)
    app.register_error_handler(HTTPException, _http_error)
    app.register_error_handler(Exception, _defect)


def _received(environ: Environ, length: int, grown: Callable[[int], None] | None, keep: bool) -> bytes:
    """Return a body, or b"" if it is not to be kept."""
    if not keep:
        while length > 0 and environ["wsgi.input"].read(min(length, SMALL)):
            length -= SMALL
        return b""
    if grown is not None:
        grown(length)
    body: bytes = environ["wsgi.input"].read(length) if length else b""
    if len(body) != length:
        raise incomplete(len(body), length)
    return body


def _refused(rejection: Rejection) -> Response:
    answer = refusal(rejection)
    return Response(answer.body, answer.status, content_type="application/json")


def _http_error(error: HTTPException) -> Response:
    import msgspec

    response = error.get_response()
    sentence = f"{error.name.lower()}: this address has no such page or method; correct the path or the method"
    return Response(
        msgspec.json.encode({"error": sentence}),
        response.status_code,
        headers={k: v for k, v in response.headers.items() if k == "Allow"},
        content_type="application/json",
    )


def _defect(_: Exception) -> Response:
    print_defect()
    return _refused(internal_error())
