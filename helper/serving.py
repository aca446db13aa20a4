"""The helper's service over HTTP.

    POST /answers                 a request -> the answer, or the reason for a refusal; 202 while it is processed
    GET  /answers/<digest>        the answer to the request with this digest
    GET  /offers/<study>/<line>   the newest offer
    GET  /metrics, /__heartbeat__, /__lbheartbeat__, /__version__

One request is processed at a time, and a few others may arrive meanwhile. Their number and the size of the largest
request limit the memory. Slow bodies are cut off. Nothing about clients is logged, neither documents nor addresses.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import sqlite3
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, TypeAlias, cast

import msgspec
from granian.rsgi import ProtocolClosed

from fedping.helper.enrol import current, keys_of
from fedping.helper.folder import HelperFolder, open_folder
from fedping.helper.requests import Reply, largest_request, reply
from fedping.protocol import __version__
from fedping.protocol.errors import FedpingError
from fedping.protocol.log import tell, tell_defect
from fedping.protocol.sharing.exchange import Reason, Refused, digest_of_signed
from fedping.protocol.sharing.keys import SIGNATURE_BYTES
from fedping.protocol.sharing.offer import terms_of

if TYPE_CHECKING:
    from granian.rsgi import HTTPProtocol, Scope
    from prometheus_client import CollectorRegistry

LOGGED = "fedping helper: "
"""Start of every line that is logged as text."""

MIB = 1024 * 1024

BODIES = 2
"""Maximum requests that may arrive at a time, in addition to the request in progress."""

SPAN, LEAST_RATE = 10.0, 64 * 1024
"""A span in seconds, and the minimum rate in bytes a second; slower bodies are cut off after a span."""

RETRY_AFTER = 5

LEAST_ROOM = 64 * MIB
"""Free bytes on the disk below which the heartbeat warns; an answer for a million clients takes about as many."""

CONNECTIONS = 64
CONNECTION_BYTES = 64 * 1024

KILL_AFTER = 5
"""Seconds for a stopping server to finish its work."""

STATUS: dict[Reason, int] = {
    "unreadable": 400,
    "forged": 403,
    "unknown": 404,
    "other_terms": 409,
    "answered": 409,
    "other_weights": 409,
    "too_many": 413,
    "too_few": 422,
    "too_old": 422,
    "from_the_future": 422,
    "repeated": 422,
    "storage": 507,
}


@dataclass(frozen=True)
class ServeSettings:
    """Settings of the helper's service.

    Attributes:
        folder: the helper's folder.
        host, port: address to listen on.
        threads: number of threads that open shares.
        most_bytes: maximum bytes of a request; if the largest request of all the helper's lines is shorter, its length
            is the maximum.
        patience: seconds that a leader waits for an answer before it is asked to retry; shorter than proxies' timeouts.
    """

    folder: Path
    host: str = "127.0.0.1"
    port: int = 8084
    threads: int = 1
    most_bytes: int = 128 * MIB
    patience: float = 20.0


class Response(NamedTuple):
    """A response: its status, body, the body's media type, and further headers."""

    status: int
    body: bytes
    kind: str = "application/json"
    headers: tuple[tuple[str, str], ...] = ()


Answering: TypeAlias = Callable[[bytes], Reply]


@dataclass
class Desk:
    """The only request in progress, and the last refusal.

    A refusal after minutes of work is not in the records. A leader that asks again gets this refusal without another
    computation.
    """

    answering: Answering
    digest: str = ""
    work: asyncio.Future[Reply] | None = None
    _threads: ThreadPoolExecutor = field(default_factory=lambda: ThreadPoolExecutor(1, "answer"))

    def begin(self, digest: str, data: bytes) -> asyncio.Future[Reply] | None:
        """Return the work on a request, starting it if necessary; None while another request is processed."""
        if self.work is not None and (digest == self.digest or not self.work.done()):
            return self.work if digest == self.digest else None
        self.digest = digest
        self.work = asyncio.get_running_loop().run_in_executor(self._threads, self.answering, data)
        self.work.add_done_callback(lambda work: work.exception())  # reported when the leader asks again
        return self.work

    def end(self, work: asyncio.Future[Reply]) -> None:
        """Forget finished work after its outcome has been sent."""
        if self.work is work:
            self.work = None

    @property
    def working(self) -> bool:
        """Whether a request is being processed."""
        return self.work is not None and not self.work.done()


class Service:
    """The helper's RSGI application."""

    def __init__(self, settings: ServeSettings) -> None:
        self.settings = settings
        self.folder = open_folder(settings.folder)
        self._held = (
            self.folder.records()
        )  # kept open, because closing the last connection flushes everything, at each request
        self.desk = Desk(self._answered)
        self.metrics = Metrics()
        self._arriving = 0
        self._pages = ThreadPoolExecutor(2, "page")

    async def __call__(self, scope: Scope, protocol: HTTPProtocol) -> None:
        """Answer one request."""
        if scope.proto != "http":
            return
        try:
            response = await self._response(scope, protocol)
        except (FedpingError, sqlite3.Error, OSError) as error:  # clients don't learn the reason
            tell(f"the folder is faulty: {error}", before=LOGGED)
            response = _error(503, "the helper's folder is faulty; its operator must look")
        except Exception:  # a defect; granian would log a request without an answer, with its contents
            tell_defect(LOGGED)
            response = _error(500, "the helper failed on this request, which is a defect; ask again later")
        headers = [("content-type", response.kind), ("content-length", str(len(response.body))), *response.headers]
        with contextlib.suppress(ProtocolClosed):
            protocol.response_bytes(response.status, headers, b"" if scope.method == "HEAD" else response.body)

    async def _response(self, scope: Scope, protocol: HTTPProtocol) -> Response:
        path = scope.path
        if path == "/answers":
            if scope.method != "POST":
                return _error(405, "/answers takes POST; correct the method", ("allow", "POST"))
            return await self._asked(scope, protocol)
        page = self._page_of(path)
        if page is None:
            return _error(404, "this address has no such page; correct the path")
        if scope.method not in ("GET", "HEAD"):
            return _error(405, "the page takes GET; correct the method", ("allow", "GET, HEAD"))
        return await asyncio.get_running_loop().run_in_executor(self._pages, page)

    # --- requests ---

    async def _asked(self, scope: Scope, protocol: HTTPProtocol) -> Response:
        length = scope.headers.get("content-length") or ""
        if not (length.isascii() and length.isdigit() and len(length) < 16):
            return _error(411, "the request has no valid Content-Length; send it")
        most = await asyncio.get_running_loop().run_in_executor(self._pages, self._most_bytes)
        if int(length) > most:
            why = f"the request has {int(length):,} bytes, but {most:,} are allowed; ask for fewer clients"
            return self._refusal(Refused("too_many", why))
        if self._arriving >= BODIES:
            return _busy("other requests are arriving; ask again")
        self._arriving += 1
        try:
            body = await _received(protocol, int(length))
        finally:
            self._arriving -= 1
        return body if isinstance(body, Response) else await self._worked_on(body)

    async def _worked_on(self, data: bytes) -> Response:
        if len(data) < SIGNATURE_BYTES:
            return self._refusal(Refused("unreadable", "the request is shorter than a signature"))
        digest = digest_of_signed(data)
        work = self.desk.begin(digest, data)
        if work is None:
            return _busy("another request is worked on; ask again")
        del data  # the work has it
        await asyncio.wait({work}, timeout=self.settings.patience)
        if not work.done():
            body = msgspec.json.encode({"working": self.desk.digest})
            return Response(202, body, headers=(("retry-after", str(RETRY_AFTER)),))
        self.desk.end(work)
        try:
            return Response(200, work.result().data, "application/octet-stream")
        except Refused as error:
            return self._refusal(error, digest)
        except FedpingError as error:  # of the folder, which the leader need not know
            tell(f"cannot answer: {error}", before=LOGGED)
            return self._refusal(Refused("storage", "the helper's folder is faulty; its operator must look"))

    def _answered(self, data: bytes) -> Reply:
        """Answer a request, and log the outcome; runs in a thread."""
        began = time.monotonic()
        try:
            answer = reply(self.folder, data, datetime.now(UTC), threads=self.settings.threads)
        except Refused as error:
            tell(f"refused ({error.reason}): {error}", "warning", before=LOGGED)
            raise
        took = time.monotonic() - began
        self.metrics.answered(answer, took)
        tell(
            f"answered {'again' if answer.again else 'first'}: version {answer.version} of line '{answer.line}' of "
            f"study '{answer.study}', {answer.clients:,} clients, {answer.refused:,} of them left out, {took:.1f} s",
            "info",
            before=LOGGED,
            study=answer.study,
            line=answer.line,
            version=answer.version,
        )
        return answer

    def _refusal(self, error: Refused, request: str | None = None) -> Response:
        self.metrics.refused(error.reason)
        return Response(STATUS[error.reason], msgspec.json.encode(error.refusal(request)))

    def _most_bytes(self) -> int:
        """Return the maximum size of a request in bytes, according to the helper's lines and the settings."""
        with self.folder.records() as records:
            newest = [current(records.offers(each.number)) for each in records.lines()]
        lengths = [largest_request(terms_of(offer, self.folder.identity)) for offer in newest]
        return min(self.settings.most_bytes, max(lengths, default=MIB))

    # --- pages ---

    def _page_of(self, path: str) -> Callable[[], Response] | None:
        match path.split("/"):
            case ["", "__lbheartbeat__"]:
                return lambda: _json({"status": "ok"})
            case ["", "__heartbeat__"]:
                return self._heartbeat
            case ["", "__version__"]:
                commit = os.environ.get("FEDPING_COMMIT", "")
                return lambda: _json({"source": "fedping", "version": __version__, "commit": commit})
            case ["", "metrics"]:
                return lambda: self.metrics.page(self.desk.working)
            case ["", "answers", digest]:
                return partial(self._kept_answer, digest)
            case ["", "offers", study, line]:
                return partial(self._offer, study, line)
        return None

    def _kept_answer(self, digest: str) -> Response:
        with self.folder.records() as records:
            answer = records.answer_to(digest)
        if answer is not None:
            return Response(200, answer, "application/octet-stream")
        if self.desk.working and self.desk.digest == digest:
            return Response(202, b'{"working":true}', headers=(("retry-after", str(RETRY_AFTER)),))
        return _error(404, "no request of this digest is answered; POST the request to /answers")

    def _offer(self, study: str, line: str) -> Response:
        with self.folder.records() as records:
            pinned = records.line(study, line)
            if pinned is None:
                return _error(404, "this helper has not joined this line; its operator must join it")
            return Response(200, msgspec.json.encode(current(records.offers(pinned.number))))

    def _heartbeat(self) -> Response:
        checks = {name: not trouble for name, trouble in troubles(self.folder).items()}
        words = {name: "ok" if well else "error" for name, well in checks.items()}
        well = all(checks.values())
        return _json({"status": "ok" if well else "error", "checks": words}, 200 if well else 503)


def troubles(folder: HelperFolder) -> dict[str, str]:
    """Return the results of checks of a helper's folder, by check: a problem, or "" if the check passed."""
    problems = {"records": "", "keys": "", "disk": ""}
    try:
        open_folder(folder.path)
        with folder.records() as records:
            offers = [records.offers(each.number) for each in records.lines()]
    except (FedpingError, sqlite3.Error, OSError) as error:
        return problems | {"records": str(error)}
    try:
        for each in offers:
            keys_of(folder, each)
    except (FedpingError, OSError) as error:
        problems["keys"] = str(error)
    try:
        free = shutil.disk_usage(folder.path).free
    except OSError as error:
        return problems | {"disk": str(error)}
    if free < LEAST_ROOM:
        problems["disk"] = f"{free // MIB:,} MiB are free in {folder.path}, less than an answer may take; make room"
    return problems


class Metrics:
    """The metrics of `/metrics`, which reveal nothing about clients, not even their number."""

    def __init__(self) -> None:
        from prometheus_client import CollectorRegistry, Counter, Gauge

        self._registry: CollectorRegistry = CollectorRegistry()
        named = partial(Counter, registry=self._registry)
        self._answers = named("fedping_helper_answers", "Requests answered, for the first time or again.", ["again"])
        self._refusals = named("fedping_helper_refused", "Requests refused, by reason.", ["reason"])
        self._seconds = named("fedping_helper_answer_seconds", "Time spent on requests that were answered.")
        self._working = Gauge("fedping_helper_working", "Whether a request is worked on.", registry=self._registry)
        for reason in STATUS:
            self._refusals.labels(reason)
        for again in ("yes", "no"):
            self._answers.labels(again)

    def answered(self, answer: Reply, seconds: float) -> None:
        """Count an answer."""
        self._answers.labels("yes" if answer.again else "no").inc()
        self._seconds.inc(seconds)

    def refused(self, reason: Reason) -> None:
        """Count a refusal."""
        self._refusals.labels(reason).inc()

    def page(self, working: bool) -> Response:
        """Return the metrics in Prometheus' format."""
        from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest

        self._working.set(working)
        return Response(200, generate_latest(self._registry), CONTENT_TYPE_LATEST)


async def _received(protocol: HTTPProtocol, length: int) -> bytes | Response:
    """Return a request's body, or an error response if the body ends too early or is too slow."""
    arrived, before, body = 0, 0, bytearray()

    async def read() -> None:
        nonlocal arrived
        async for piece in protocol:
            arrived += len(piece)
            if arrived <= length:
                body.extend(piece)

    # A task, because the server's own coroutine can't be cancelled.
    reading = asyncio.get_running_loop().create_task(read())
    while not reading.done():
        await asyncio.wait({reading}, timeout=SPAN)
        if not reading.done() and arrived - before < LEAST_RATE * SPAN:
            reading.cancel()
            with contextlib.suppress(asyncio.CancelledError, ProtocolClosed):
                await reading
            why = "the body arrived too slowly. Send it again over a better connection"
            return _error(408, why, ("connection", "close"))
        before = arrived
    if isinstance(reading.exception(), ProtocolClosed) or arrived != length:
        return _error(400, f"the body ended after {arrived:,} of {length:,} bytes; send it again")
    reading.result()
    return cast(bytes, body)  # not copied: it is used as bytes only, and may be large


def _json(value: object, status: int = 200) -> Response:
    return Response(status, msgspec.json.encode(value))


def _error(status: int, sentence: str, *headers: tuple[str, str]) -> Response:
    return Response(status, msgspec.json.encode({"error": sentence}), headers=headers)


def _busy(sentence: str) -> Response:
    return _error(503, sentence, ("retry-after", str(RETRY_AFTER)))


def serve(settings: ServeSettings, on_ready: Callable[[], None] = lambda: None) -> None:
    """Serve until SIGINT or SIGTERM, which discards unfinished work.

    Args:
        settings: the settings.
        on_ready: called after all checks, just before the server listens.

    Raises:
        FedpingError: the folder doesn't belong to a helper, or is faulty; or the address is in use.
    """
    from fedping.server_jobs.forking_server import ServerSettings, http_server
    from fedping.server_jobs.listener import check_port

    with open_folder(settings.folder).records():
        pass
    check_port(settings.host, settings.port)
    listener = ServerSettings(
        host=settings.host,
        port=settings.port,
        workers=1,
        connections=CONNECTIONS,
        connection_bytes=CONNECTION_BYTES,
        kill_after=KILL_AFTER,
    )
    server = http_server(
        "fedping.helper", listener, lambda how: tell(f"the worker died ({how}) and is started again", before=LOGGED)
    )
    on_ready()
    server.serve(target_loader=partial(_started, settings, os.getpid()), wrap_loader=False)


def _started(settings: ServeSettings, parent: int) -> Service:
    from fedping.server_jobs.processes import exit_with_parent

    exit_with_parent(parent)
    return Service(settings)
