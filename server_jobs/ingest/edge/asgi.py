"""The asynchronous face of a worker: it waits for bodies and for the disk without a thread, and has pages made in one.

The server speaks RSGI, its own protocol, in which a body can be awaited and given up. A ping is then received, decoded
and committed on one loop; what may take its time (a batch, a page) is done by one of a number of threads.
"""

from __future__ import annotations

import asyncio
import contextlib
import io
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from time import perf_counter_ns
from typing import TYPE_CHECKING, Any, TypeVar

from granian.rsgi import ProtocolClosed
from werkzeug.test import run_wsgi_app

from fedping.protocol.documents import DOCUMENT_TYPES
from fedping.server_jobs.ingest.admission.body import length_within
from fedping.server_jobs.ingest.admission.budget import busy
from fedping.server_jobs.ingest.admission.rejection import Rejection
from fedping.server_jobs.ingest.edge.answers import Response, refusal
from fedping.server_jobs.ingest.edge.application import Edge
from fedping.server_jobs.ingest.edge.dockerflow import SHALLOW
from fedping.server_jobs.ingest.edge.services import Services
from fedping.server_jobs.ingest.edge.slow_clients import Arrivals
from fedping.server_jobs.ingest.edge.submit import (
    PREFIX,
    READ,
    Aside,
    Environ,
    Receive,
    Step,
    Store,
    internal_error,
    print_defect,
    run_steps,
    single_slashes,
)
from fedping.server_jobs.ingest.journal.commits import Commits
from fedping.server_jobs.ingest.latencies import ELSEWHERE, SUBMITTED, WATCH, Stopwatch
from fedping.server_jobs.ingest.settings import SMALL

if TYPE_CHECKING:
    from granian.rsgi import HTTPProtocol, Scope

_T = TypeVar("_T")

MODELS = "/models/"
FAILED = (500, 507)
"""Statuses of answers that failed by a fault of ours; 503 asks a client to come again."""

QUEUED_A_THREAD = 16
"""How many requests may wait for each thread; whoever comes beyond is told to come back."""


class Front:
    """An RSGI application: it does the waiting of `Submit.steps`, and leaves all else to the Flask application."""

    def __init__(self, application: Edge) -> None:
        services: Services = application.services
        settings = services.settings
        self.application = application
        self._latencies = services.latencies
        self._arrivals = Arrivals(settings.slow_bodies, settings.limits.body_seconds, settings.limits.body_rate)
        self._commits = {name: Commits(services.journals.of(document)) for name, document in DOCUMENT_TYPES.items()}
        # Apart from each other, so that no batch keeps a page, a heartbeat or a packed ping waiting.
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
                if environ["REQUEST_METHOD"] != "OPTIONS":  # which browsers ask before, and which takes no time
                    watch.page = SUBMITTED.get(environ["PATH_INFO"].count("/"), ELSEWHERE)
                steps = self.application.submit.steps(environ)
                answer = (await run_steps(steps, partial(self._done, protocol, watch))).response()
            else:
                environ[WATCH] = watch
                answer = await self._page(environ, protocol, watch)
        except Rejection as rejection:  # of a page: the steps of what is submitted answer for themselves
            self.application.services.refuse_page(rejection)
            answer = refusal(rejection).response()
        except Exception:  # a defect of ours; a request that is not answered would be logged with what was sent
            print_defect()
            answer = refusal(internal_error()).response()
        self._latencies.answered(watch, answer.status)
        self._count(scope.path, answer.status)
        # A client that is gone by now has its ping on disk all the same, and sends it again.
        with contextlib.suppress(ProtocolClosed):
            protocol.response_bytes(
                answer.status, [(name.lower(), value) for name, value in answer.headers], answer.body
            )

    def _count(self, path: str, status: int) -> None:
        """Count an answer that clients wait for, and whether it failed by a fault of ours."""
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
                return await self._commits[document.name].append(lines, rows)
            case Receive(length, grown, keep):
                return await self._received(protocol, watch, length, grown, keep)
            case Aside(work, is_batch):
                return await (self._batches if is_batch else self._pings).run(work)

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

    async def _page(self, environ: Environ, protocol: HTTPProtocol, watch: Stopwatch) -> Response:
        """Have Flask answer, which is given a body only if it is small: no page takes another."""
        if length := length_within(environ, SMALL):
            environ["wsgi.input"] = io.BytesIO(await self._received(protocol, watch, length))
        else:
            environ["CONTENT_LENGTH"] = "0"
        threads = self._beats if environ["PATH_INFO"] == SHALLOW else self._pages  # a store may keep those waiting
        return await threads.run(lambda: page(self.application, environ))


class Threads:
    """A number of threads, and a bound on how many requests wait for them."""

    def __init__(self, number: int, name: str) -> None:
        self._threads = ThreadPoolExecutor(number, name)
        self._most = number * (1 + QUEUED_A_THREAD)
        self._now = 0

    async def run(self, work: Callable[[], _T]) -> _T:
        """Return what ``work`` returns; raises :class:`Rejection` if too many wait already."""
        if self._now >= self._most:
            raise busy()
        self._now += 1
        try:
            return await asyncio.get_running_loop().run_in_executor(self._threads, work)
        finally:
            self._now -= 1


def environ_of(scope: Scope) -> Environ:
    """Return a request's head in the words of WSGI, which are those of Flask too; there is no body in it.

    Of its headers it has those that are read: nothing here depends on the host that a request names.
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


def page(application: Edge, environ: Environ) -> Response:
    """Return what the Flask application answers."""
    body, status, headers = run_wsgi_app(application.wsgi_app, environ, buffered=True)
    return Response(int(status[:3]), list(headers), b"".join(body))
