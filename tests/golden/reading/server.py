"""A server for clients: it serves the published documents of a store, and records posted pings."""

import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from fedping.model_store import open_store
from fedping.protocol.study import public_json, public_study


@dataclass
class Server:
    """The server's answers, and the pings that it received.

    Attributes:
        store: the folder of the store.
        newest: the version of every line that clients get.
        status: the answer to pings.
        bodies: the posted pings by document id, in order.
    """

    store: Path
    newest: int
    status: int = 200
    bodies: dict[str, bytes] = field(default_factory=dict)
    url: str = ""

    def got(self, path: str) -> bytes | None:
        """Return the document that clients fetch under a path."""
        if found := re.fullmatch(r"/models/([^/]+)/study\.json", path):
            return public_json(public_study(open_store(self.store).study(found[1])))
        if found := re.fullmatch(r"/models/([^/]+)/([^/]+)/(latest|\d+)\.json", path):
            number = self.newest if found[3] == "latest" else int(found[3])
            file = self.store / found[1] / found[2] / "public" / f"{number}.json"
            return file.read_bytes() if file.exists() else None
        return None


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server_of: Server

    def do_GET(self) -> None:
        body = self.server_of.got(self.path)
        self._answer(404 if body is None else 200, body or b"")

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self.server_of.bodies[self.path.rpartition("/")[2]] = body
        self._answer(self.server_of.status, b"")

    def _answer(self, status: int, body: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        pass


@contextmanager
def serving(store: Path, newest: int, status: int = 200) -> Iterator[Server]:
    """Serve the documents of a store, up to a version."""
    of = Server(store, newest, status)
    server = ThreadingHTTPServer(("127.0.0.1", 0), type("Handler", (_Handler,), {"server_of": of}))
    server.daemon_threads = True
    of.url = f"http://127.0.0.1:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    try:
        yield of
    finally:
        server.shutdown()
        server.server_close()
