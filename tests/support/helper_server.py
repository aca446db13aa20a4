"""A helper over HTTP in this process, with its real answers or responses set by a test."""

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import msgspec

from fedping.helper.folder import HelperFolder
from fedping.helper.requests import reply
from fedping.protocol.sharing.exchange import Refused, digest_of_signed


@dataclass(frozen=True)
class Said:
    """A response; ``drip`` sends it byte by byte, with this many seconds between bytes."""

    status: int
    body: bytes = b""
    headers: tuple[tuple[str, str], ...] = ()
    drip: float = 0.0


@dataclass
class HelperServer:
    """The requests received, and the next responses: first ``script``, then the helper folder's real answers."""

    folder: HelperFolder | None = None
    script: list[Said] = field(default_factory=list)
    asked: list[tuple[str, str, bytes]] = field(default_factory=list)
    url: str = ""

    def says(self, method: str, path: str, body: bytes) -> Said:
        self.asked.append((method, path, body))
        if self.script:
            return self.script.pop(0)
        assert self.folder is not None
        try:
            return Said(200, reply(self.folder, body, datetime.now(UTC)).data)
        except Refused as error:
            return Said(409, msgspec.json.encode(error.refusal(digest_of_signed(body))))


@contextmanager
def helper_server(folder: HelperFolder | None = None, *script: Said) -> Iterator[HelperServer]:
    """Yield a server on a free port; stop it at the end of the block."""
    made = HelperServer(folder, list(script))

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            self._send(made.says("GET", self.path, b""))

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            self._send(made.says("POST", self.path, body))

        def _send(self, said: Said) -> None:
            self.send_response(said.status)
            for name, value in (*said.headers, ("Content-Length", str(len(said.body)))):
                self.send_header(name, value)
            self.end_headers()
            try:
                for at in range(len(said.body) if said.drip else 0):
                    self.wfile.write(said.body[at : at + 1])
                    self.wfile.flush()
                    time.sleep(said.drip)
                if not said.drip:
                    self.wfile.write(said.body)
            except OSError:  # the caller has closed the connection
                self.close_connection = True

        def log_message(self, format: str, *args: object) -> None:
            """Log nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    made.url = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield made
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
