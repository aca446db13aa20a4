"""A real HTTP server that serves a study and models like ingest, and fails as a test plans."""

import contextlib
import hashlib
import json
import socket
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Literal
from uuid import UUID

import msgspec

from fedping.protocol.study import Study, public_study
from tests.support.fleets import document


@dataclass(frozen=True)
class Answer:
    """A planned answer. ``lands`` is whether the ping counts as accepted, ``drop`` where the connection breaks."""

    status: int = 200
    body: bytes = b'{"status":"ok"}'
    headers: dict[str, str] = field(default_factory=dict)
    lands: bool = True
    drop: Literal["nowhere", "before", "within"] = "nowhere"


LANDED = Answer()
DROPPED = Answer(lands=False, drop="before")
ANSWER_LOST = Answer(lands=True, drop="before")
CUT_SHORT = Answer(lands=True, drop="within")

Plan = Callable[[UUID, int], Answer]
"""Function that returns the answer to a document's attempt, numbered from 0."""


def refusal(status: int, reason: str | None = None, **headers: str) -> Answer:
    """Return a rejecting answer, with a reason in ingest's form and headers (``Retry_After="1"``)."""
    body = b"" if reason is None else json.dumps({"error": reason}).encode()
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return Answer(status, body, named, lands=False)


@dataclass(frozen=True)
class Attempt:
    """One POST that arrived completely; ``port`` is the client's end of the connection."""

    path: str
    document_id: UUID
    body: bytes
    headers: dict[str, str]
    port: int = 0


class FaultyServer:
    """The server's plan and received requests. Once, ``meet`` requests wait for each other before any is answered."""

    def __init__(self, study: Study) -> None:
        self.study = study
        self.plan: Plan = lambda document_id, attempt: LANDED
        self.model: Answer | None = None
        self.attempts: list[Attempt] = []
        self.landings: Counter[UUID] = Counter()
        self.fetches: list[tuple[str, str | None]] = []
        self.fetching_ports: list[int] = []
        self.most_at_once = 0
        self.meet = 1
        self.met = threading.Event()
        self.blocked = threading.Event()
        self.go_on = threading.Event()
        self.go_on.set()
        self.url = ""
        self.files: dict[str, bytes] = {
            f"/models/{study.name}/study.json": msgspec.json.encode(public_study(study)),
        }
        self._lock = threading.Lock()
        self._under_way = 0
        self._numbers: Counter[UUID] = Counter()
        self.publish(0)

    def publish(self, iteration: int) -> None:
        """Make this the newest version of every line."""
        for line in self.study.lines:
            name = f"/models/{self.study.name}/{line.name}/latest.json"
            self.files[name] = msgspec.json.encode(document(self.study, line.name, iteration))

    def bodies(self) -> dict[UUID, bytes]:
        """Return the posted bodies by document; check that all bodies of a document are equal."""
        found: dict[UUID, bytes] = {}
        for attempt in self.attempts:
            assert found.setdefault(attempt.document_id, attempt.body) == attempt.body
        return found

    def answer(self, attempt: Attempt) -> Answer:
        with self._lock:
            self.attempts.append(attempt)
            number = self._numbers[attempt.document_id]
            self._numbers[attempt.document_id] += 1
        answer = self.plan(attempt.document_id, number)
        if answer.lands:
            with self._lock:
                self.landings[attempt.document_id] += 1
        return answer

    @contextlib.contextmanager
    def under_way(self) -> Iterator[None]:
        with self._lock:
            self._under_way += 1
            self.most_at_once = max(self.most_at_once, self._under_way)
            if self._under_way >= self.meet:
                self.met.set()
        self.met.wait(10)
        if not self.go_on.is_set():
            self.blocked.set()
            self.go_on.wait(60)
        try:
            yield
        finally:
            with self._lock:
                self._under_way -= 1


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    wbufsize = -1  # one packet an answer: two would wait for each other
    faulty: FaultyServer

    def do_GET(self) -> None:
        asked = self.headers.get("If-None-Match")
        self.faulty.fetches.append((self.path, asked))
        self.faulty.fetching_ports.append(self.client_address[1])
        body = self.faulty.files.get(self.path)
        if body is None:
            return self._send(refusal(404, f"nothing is at {self.path}"))
        if self.faulty.model is not None and not self.path.endswith("study.json"):
            return self._send(self.faulty.model)
        etag = f'"{hashlib.sha256(body).hexdigest()}"'
        return self._send(Answer(304, b"") if asked == etag else Answer(200, body, {"ETag": etag}))

    def do_POST(self) -> None:
        with self.faulty.under_way():
            body = self.rfile.read(int(self.headers["Content-Length"]))
            name = UUID(self.path.rpartition("/")[2])
            answer = self.faulty.answer(Attempt(self.path, name, body, dict(self.headers), self.client_address[1]))
        self._send(answer)

    def _send(self, answer: Answer) -> None:
        if answer.drop != "before":
            self.send_response(answer.status)
            for name, value in answer.headers.items():
                self.send_header(name, value)
            self.send_header("Content-Length", str(len(answer.body)))
            self.end_headers()
            self.wfile.write(answer.body[: 3 if answer.drop == "within" else None])
        if answer.drop != "nowhere":
            self.wfile.flush()
            self.close_connection = True
            self.connection.shutdown(socket.SHUT_RDWR)

    def log_message(self, format: str, *args: Any) -> None:
        pass


class _Server(ThreadingHTTPServer):
    request_queue_size = 256
    daemon_threads = True

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Ignore disconnected clients: some tests interrupt them."""


@contextlib.contextmanager
def faulty_server(study: Study) -> Iterator[FaultyServer]:
    """Serve a study on a free port until the end."""
    faulty = FaultyServer(study)
    server = _Server(("127.0.0.1", 0), type("Handler", (_Handler,), {"faulty": faulty}))
    faulty.url = f"http://127.0.0.1:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    try:
        yield faulty
    finally:
        faulty.go_on.set()
        faulty.met.set()
        server.shutdown()
        server.server_close()
        thread.join()
