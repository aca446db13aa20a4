"""A worker's applications: RSGI for submitted pings, and Flask for all other pages.

RSGI is the protocol of the HTTP server (granian); a body can be awaited and cancelled. One event loop receives,
decodes and commits small pings. Threads handle slow requests: batches, compressed pings and pages.
"""

from __future__ import annotations

import asyncio
import contextlib
import io
import sys
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from time import perf_counter_ns
from typing import TYPE_CHECKING, Any, TypeVar

from flask import Flask, Response, request
from granian.rsgi import ProtocolClosed
from werkzeug.exceptions import HTTPException
from werkzeug.test import run_wsgi_app

from fedping.protocol.ping import DocumentType
from fedping.server_jobs.ingest.answers import Answer, HttpResponse, Rejection, refusal
from fedping.server_jobs.ingest.body import busy, length_within
from fedping.server_jobs.ingest.heartbeat import SHALLOW, Pulse, heartbeat_pages
from fedping.server_jobs.ingest.journal import Commits
from fedping.server_jobs.ingest.latencies import ELSEWHERE, SUBMITTED, WATCH, Stopwatch
from fedping.server_jobs.ingest.pages import demo_pages, model_pages
from fedping.server_jobs.ingest.services import Services
from fedping.server_jobs.ingest.settings import SMALL
from fedping.server_jobs.ingest.slow_clients import Arrivals, incomplete
from fedping.server_jobs.ingest.submit import (
    PREFIX,
    READ,
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
from fedping.server_jobs.listener import stay_here

if TYPE_CHECKING:
    from _typeshed.wsgi import StartResponse
    from granian.rsgi import HTTPProtocol, Scope


REST = 9.0
"""Multiple of a heartbeat's duration for which its result is reused, so that heartbeats take at most a tenth of the
time."""


class Edge(Flask):
    """A Flask application that answers ``/submit/`` itself and leaves everything else to ordinary views.

    The operator's pages are on another port (:mod:`fedping.server_jobs.ingest.operations`). Here, every client could
    request them, and behind a proxy no address or header distinguishes the operator from clients.

    Flask's dispatch costs thirty times as much as a ping, so pings bypass it. In a worker, :class:`Front` handles
    requests first, and waits without threads. In this WSGI application, the calling thread waits.
    """

    def __init__(self, services: Services) -> None:
        super().__init__("fedping.ingest", static_folder=None)
        self.services = services
        self.submit = Submit(services)
        self.register_blueprint(heartbeat_pages(Pulse(services, REST)))
        self.register_blueprint(model_pages(services))
        if services.settings.demo_page:
            self.register_blueprint(demo_pages(services))
        self.before_request(self._check)
        stay_here(self)
        tell_errors(self)
        self.register_error_handler(Rejection, self._counted)

    def wsgi_app(self, environ: dict[str, Any], start_response: StartResponse) -> Iterable[bytes]:
        """Answer one request in the calling thread."""
        environ["PATH_INFO"] = single_slashes(environ["PATH_INFO"])
        if environ["PATH_INFO"].startswith(PREFIX):
            return self._submitted(environ).send(start_response)
        return super().wsgi_app(environ, start_response)

    def _submitted(self, environ: Environ) -> Answer:
        try:
            # It ends at the first send, because none of its steps is left pending.
            run_steps(self.submit.steps(environ), partial(self._done, environ)).send(None)
        except StopIteration as end:
            answer: Answer = end.value
            return answer
        raise AssertionError("a step of the request is still pending")

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
    """Make an application respond to every error with one sentence in JSON."""
    app.register_error_handler(Rejection, _refused)
    app.register_error_handler(HTTPException, _http_error)
    app.register_error_handler(Exception, _defect)


def _received(environ: Environ, length: int, grown: Callable[[int], None] | None, keep: bool) -> bytes:
    """Return the body, or b"" if it may be discarded."""
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


_T = TypeVar("_T")

MODELS = "/models/"
FAILED = (500, 507)
"""HTTP statuses of server errors. 503 isn't included, because it asks a client to retry."""

QUEUED_A_THREAD = 16
"""Maximum number of waiting requests per thread; further requests are rejected as ``busy``."""


class Front:
    """RSGI application that runs the steps of `Submit`, and passes other requests to the Flask application."""

    def __init__(self, application: Edge) -> None:
        services: Services = application.services
        settings = services.settings
        self.application = application
        self._latencies = services.latencies
        self._arrivals = Arrivals(settings.slow_bodies, settings.limits.body_seconds, settings.limits.body_rate)
        self._commits: dict[str, Commits] = {}
        # Separate threads, so that batches delay no page, heartbeat or packed ping.
        self._batches = Threads(max(1, settings.threads // 8), "batch")
        self._pings = Threads(max(1, settings.threads // 8), "ping")
        self._pages = Threads(max(1, settings.threads // 4), "page")
        self._beats = Threads(1, "beat")

    async def __call__(self, scope: Scope, protocol: HTTPProtocol) -> None:
        """Answer one request."""
        if scope.proto != "http":
            return
        watch = Stopwatch()
        watch.began = perf_counter_ns()
        try:
            environ = environ_of(scope)
            if self._is_submitted(environ):
                if environ["REQUEST_METHOD"] != "OPTIONS":  # a preflight of browsers, which takes no time
                    watch.page = SUBMITTED.get(environ["PATH_INFO"].count("/"), ELSEWHERE)
                steps = self.application.submit.steps(environ)
                answer = (await run_steps(steps, partial(self._done, protocol, watch))).response()
            else:
                environ[WATCH] = watch
                answer = await self._page(environ, protocol, watch)
        except Rejection as rejection:  # of a page: the steps of a ping return their own answer
            self.application.services.refuse_page(rejection)
            answer = refusal(rejection).response()
        except Exception:  # a defect of ours; granian would log an unanswered request with its content
            print_defect()
            answer = refusal(internal_error()).response()
        self._latencies.answered(watch, answer.status)
        self._count(scope.path, answer.status)
        # The ping of a client that has disconnected is on disk; the client retries and it becomes a duplicate.
        with contextlib.suppress(ProtocolClosed):
            protocol.response_bytes(
                answer.status, [(name.lower(), value) for name, value in answer.headers], answer.body
            )

    def _count(self, path: str, status: int) -> None:
        """Count a response to a client, and server errors among these responses."""
        if path.startswith((PREFIX, MODELS)):
            self.application.services.counters.add("answered", 1)
            if status in FAILED:
                self.application.services.counters.add("failed", 1)

    def _is_submitted(self, environ: Environ) -> bool:
        path: str = environ["PATH_INFO"]
        return path.startswith(PREFIX)

    async def _done(self, protocol: HTTPProtocol, watch: Stopwatch, step: Step) -> Any:
        match step:
            case Store(document, lines, rows):
                return await self._commits_of(document).append(lines, rows)
            case Receive(length, grown, keep):
                return await self._received(protocol, watch, length, grown, keep)
            case Aside(work, is_batch):
                return await (self._batches if is_batch else self._pings).run(work)

    def _commits_of(self, document: DocumentType) -> Commits:
        if (found := self._commits.get(document.journal)) is None:
            found = self._commits[document.journal] = Commits(self.application.services.journals.of(document))
        return found

    async def _received(
        self,
        protocol: HTTPProtocol,
        watch: Stopwatch,
        length: int,
        grown: Callable[[int], None] | None = None,
        keep: bool = True,
    ) -> bytes:
        try:
            body = await self._arrivals.receive(protocol, length, grown, keep)
        except Rejection:
            watch.began = perf_counter_ns()
            if keep:
                raise
            return b""
        watch.began = perf_counter_ns()
        return body

    async def _page(self, environ: Environ, protocol: HTTPProtocol, watch: Stopwatch) -> HttpResponse:
        """Return Flask's response. Only small bodies are passed on, because no page reads a larger one."""
        if length := length_within(environ, SMALL):
            environ["wsgi.input"] = io.BytesIO(await self._received(protocol, watch, length))
        else:
            environ["CONTENT_LENGTH"] = "0"
        threads = self._beats if environ["PATH_INFO"] == SHALLOW else self._pages  # the store may delay the others
        return await threads.run(lambda: page(self.application, environ))


class Threads:
    """A thread pool with a maximum number of waiting requests."""

    def __init__(self, number: int, name: str) -> None:
        self._threads = ThreadPoolExecutor(number, name)
        self._most = number * (1 + QUEUED_A_THREAD)
        self._now = 0

    async def run(self, work: Callable[[], _T]) -> _T:
        """Return the result of ``work``; raise :class:`Rejection` if too many requests are waiting."""
        if self._now >= self._most:
            raise busy()
        self._now += 1
        try:
            return await asyncio.get_running_loop().run_in_executor(self._threads, work)
        finally:
            self._now -= 1


def environ_of(scope: Scope) -> Environ:
    """Return a request's head as a WSGI environment, without its body.

    It contains only the headers that are used. The host named in a request is ignored.
    """
    host, _, port = scope.server.rpartition(":")
    environ: Environ = {
        "REQUEST_METHOD": scope.method,
        "SCRIPT_NAME": "",
        "PATH_INFO": single_slashes(scope.path.encode().decode("latin-1")),
        "QUERY_STRING": scope.query_string,
        "SERVER_NAME": host,
        "SERVER_PORT": port,
        "SERVER_PROTOCOL": f"HTTP/{scope.http_version}",
        "REMOTE_ADDR": scope.client.rpartition(":")[0],
        "wsgi.version": (1, 0),
        "wsgi.url_scheme": scope.scheme,
        "wsgi.input": io.BytesIO(),
        "wsgi.errors": sys.stderr,
        "wsgi.multithread": True,
        "wsgi.multiprocess": True,
        "wsgi.run_once": False,
    }
    for name, value in scope.headers.items():
        if (key := _KEYS.get(name)) is not None:
            environ[key] = f"{environ[key]},{value}" if key in environ else value
    return environ


_KEYS = {**READ, "x-forwarded-for": "HTTP_X_FORWARDED_FOR"}


def page(application: Edge, environ: Environ) -> HttpResponse:
    """Return the Flask application's response."""
    body, status, headers = run_wsgi_app(application.wsgi_app, environ, buffered=True)
    return HttpResponse(int(status[:3]), list(headers), b"".join(body))
