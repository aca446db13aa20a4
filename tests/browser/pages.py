"""A web server for a page in a real browser: it serves `browser/`, receives the page's reports, and relays to ingest.

The relay is a separate origin, like a remote ingest, and records the headers that identify the browser.
"""

import contextlib
import json
import queue
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import partial
from http.server import BaseHTTPRequestHandler, SimpleHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from tests.browser.tools import BROWSER

DOCS = BROWSER.parent / "docs"
LONGEST_WAIT = 120
_HOP = {"connection", "host", "content-length", "accept-encoding", "transfer-encoding", "server", "date"}


class _Quiet:
    def log_message(self, format: str, *args: Any) -> None:
        """Log nothing."""


class _Page(_Quiet, SimpleHTTPRequestHandler):
    told: "queue.Queue[dict[str, Any]]"
    more: dict[str, str]

    def translate_path(self, path: str) -> str:
        """Map `/conformance/` to the folder in the documentation."""
        return str(DOCS / path[1:]) if path.startswith("/conformance/") else super().translate_path(path)

    def do_GET(self) -> None:
        if self.path not in self.more:
            return super().do_GET()
        self.send_response(200)
        kind = "javascript" if self.path.endswith(".js") else "html"
        self.send_header("Content-Type", f"text/{kind}; charset=utf-8")
        self.end_headers()
        self.wfile.write(self.more[self.path].encode())
        return None

    def do_POST(self) -> None:
        self.told.put(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
        self.send_response(204)
        self.end_headers()


@dataclass(frozen=True)
class Passed:
    """One request through the relay: its headers, ingest's status, and the posted body."""

    method: str
    path: str
    headers: dict[str, str]
    status: int
    body: bytes = b""


class _Relay(_Quiet, BaseHTTPRequestHandler):
    to: str
    passed: list[Passed]
    instead: dict[str, bytes]

    def _relay(self) -> None:
        length = int(self.headers.get("Content-Length") or 0)
        body = self.rfile.read(length) if self.command in ("POST", "PUT") else None
        replaced = self.command == "GET" and self.path in self.instead
        dropped = _HOP | {"if-none-match", "etag"} if replaced else _HOP  # the tag is for ingest's document
        headers = {name: value for name, value in self.headers.items() if name.lower() not in dropped}
        request = urllib.request.Request(self.to + self.path, data=body, headers=headers, method=self.command)
        try:
            with urllib.request.urlopen(request, timeout=240) as answer:
                status, named, data = answer.status, answer.headers, answer.read()
        except urllib.error.HTTPError as error:
            status, named, data = error.code, error.headers, error.read()
        seen = {name.lower(): value for name, value in self.headers.items()}
        self.passed.append(Passed(self.command, self.path, seen, status, body or b""))
        if replaced:
            data = self.instead[self.path]
        self.send_response(status)
        for name, value in named.items():
            if name.lower() not in dropped:
                self.send_header(name, value)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def do_GET(self) -> None:
        self._relay()

    def do_POST(self) -> None:
        self._relay()

    def do_OPTIONS(self) -> None:
        self._relay()


@dataclass
class Web:
    """The servers of one test.

    ``more`` has pages to serve besides those of `browser/`, and ``instead`` answers that the relay gives in place of
    ingest's; both by path.
    """

    address: str
    relay: str
    told: "queue.Queue[dict[str, Any]]"
    passed: list[Passed] = field(default_factory=list)
    more: dict[str, str] = field(default_factory=dict)
    instead: dict[str, bytes] = field(default_factory=dict)

    def hears(self, step: str) -> Any:
        """Wait for the page's report of a step, and return it."""
        said = self.told.get(timeout=LONGEST_WAIT)
        assert said["step"] == step, said
        assert "error" not in said, said["error"]
        return said["value"]

    def posts(self) -> list[Passed]:
        """Return the relayed submissions."""
        return [each for each in self.passed if each.method == "POST"]


@contextlib.contextmanager
def serving(ingest: str = "") -> Iterator[Web]:
    """Serve the page and relay to ingest, on free ports."""
    told: queue.Queue[dict[str, Any]] = queue.Queue()
    passed: list[Passed] = []
    more: dict[str, str] = {}
    instead: dict[str, bytes] = {}
    handler = type("Page", (_Page,), {"told": told, "more": more})
    page = ThreadingHTTPServer(("127.0.0.1", 0), partial(handler, directory=str(BROWSER)))
    relay = ThreadingHTTPServer(
        ("127.0.0.1", 0), type("Relay", (_Relay,), {"to": ingest, "passed": passed, "instead": instead})
    )
    for server in (page, relay):
        server.daemon_threads = True
        threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
    try:
        addresses = [f"http://127.0.0.1:{server.server_address[1]}" for server in (page, relay)]
        yield Web(addresses[0], addresses[1], told, passed, more, instead)
    finally:
        for server in (page, relay):
            server.shutdown()
            server.server_close()
