"""A web of any number of hosts, all on this machine: browsers resolve every name to it."""

import contextlib
import html
import threading
from collections.abc import Iterator, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import urlsplit


class _AnyHost(BaseHTTPRequestHandler):
    titles: Mapping[str, str]

    def do_GET(self) -> None:
        # A request to a proxy has the whole address; a request to a host has its name.
        url = self.path if "://" in self.path else f"http://{self.headers['Host']}{self.path}"
        if url.endswith("/generate_204"):  # Chromium's check for a network with a login page
            self.send_response(204)
            self.end_headers()
            return
        title = self.titles.get(url, urlsplit(url).netloc)
        body = f'<!doctype html><title>{html.escape(title)}</title><link rel="icon" href="data:,"><h1>{title}</h1>'
        self.send_response(200)
        self.send_header("Content-Type", "text/html; charset=utf-8")
        self.send_header("Content-Length", str(len(body.encode())))
        self.end_headers()
        with contextlib.suppress(ConnectionError):
            self.wfile.write(body.encode())

    def log_message(self, format: str, *args: object) -> None:
        """Log nothing."""


@contextlib.contextmanager
def running_web(titles: Mapping[str, str]) -> Iterator[int]:
    """Serve every address of every host, with these titles by address; yield the port."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), type("Handler", (_AnyHost,), {"titles": titles}))
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
    try:
        yield server.server_address[1]
    finally:
        server.shutdown()
        server.server_close()
