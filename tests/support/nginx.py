"""A real nginx with the file `docs/deploy/nginx.conf`, in front of one ingest or several."""

import contextlib
import http.client
import os
import signal
import socket
import ssl
import subprocess
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from fedping.server_jobs.processes import exit_with_parent
from tests.browser.harness.available import needed
from tests.support.ingest_server import free_port

CONFIGURATION = Path(__file__).parents[2] / "docs" / "deploy" / "nginx.conf"

# The configuration around the file as in Debian's /etc/nginx/nginx.conf, with all written files below one folder.
AROUND = """
daemon off; pid {folder}/nginx.pid; worker_processes 1; error_log {folder}/error.log; {user}
events {{ worker_connections 512; }}
http {{
    client_body_temp_path {folder}/body; proxy_temp_path {folder}/proxy; fastcgi_temp_path {folder}/fastcgi;
    uwsgi_temp_path {folder}/uwsgi; scgi_temp_path {folder}/scgi;
    access_log {folder}/access.log;
    include {folder}/fedping.conf;
}}
"""


@dataclass(frozen=True)
class Nginx:
    """A running nginx; requests choose their source address."""

    folder: Path
    port: int
    plain_port: int

    def connect(self, source: str = "127.0.0.1") -> http.client.HTTPSConnection:
        context = ssl.create_default_context(cafile=str(self.folder / "fullchain.pem"))
        return http.client.HTTPSConnection(
            "localhost", self.port, timeout=120, context=context, source_address=(source, 0)
        )

    def ask(
        self, method: str, path: str, body: bytes | None = None, source: str = "127.0.0.1", **headers: str
    ) -> tuple[http.client.HTTPResponse, bytes]:
        """Send a request over TLS and check the certificate; headers' names have _ for -."""
        with contextlib.closing(self.connect(source)) as connection:
            connection.request(method, path, body, {name.replace("_", "-"): text for name, text in headers.items()})
            answer = connection.getresponse()
            return answer, answer.read()


UPSTREAM = "server 127.0.0.1:8080;"
"""The line of the file with ingest's address."""


def nginx_before(upstreams: Sequence[int], folder: Path) -> contextlib.AbstractContextManager[Nginx]:
    """Run nginx in front of ingests at some ports, with the documented file's addresses and paths replaced."""
    text = CONFIGURATION.read_text()
    assert UPSTREAM in text
    return nginx_by(text.replace(UPSTREAM, "\n".join(f"server 127.0.0.1:{port};" for port in upstreams)), folder)


@contextlib.contextmanager
def nginx_by(text: str, folder: Path) -> Iterator[Nginx]:
    """Run nginx with a changed version of the documented file, with addresses and paths of this machine."""
    needed("nginx")
    openssl = needed("openssl")
    folder.mkdir()
    make = [openssl, "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=localhost"]
    make += ["-addext", "subjectAltName=DNS:localhost", "-keyout", "privkey.pem", "-out", "fullchain.pem"]
    subprocess.run(make, cwd=folder, check=True, capture_output=True)
    port, plain_port = free_port(), free_port()
    for old, new in {
        "listen 443 ssl;": f"listen 127.0.0.1:{port} ssl;",
        "listen 80;": f"listen 127.0.0.1:{plain_port};",
        "telemetry.example.org": "localhost",
        "/etc/ssl/fedping/": f"{folder}/",
        "/var/cache/nginx/fedping": f"{folder}/cache",
        "/var/log/nginx/": f"{folder}/",
    }.items():
        assert old in text, old
        text = text.replace(old, new)
    (folder / "fedping.conf").write_text(text)
    with running_nginx(AROUND, folder, port):
        yield Nginx(folder, port, plain_port)


@contextlib.contextmanager
def running_nginx(around: str, folder: Path, port: int) -> Iterator[None]:
    """Run nginx with the files of a folder inside a surrounding configuration; yield when it listens on a port."""
    user = "user root;" if os.geteuid() == 0 else ""
    (folder / "nginx.conf").write_text(around.format(folder=folder, user=user))
    command = [needed("nginx"), "-p", str(folder), "-e", str(folder / "error.log"), "-c", str(folder / "nginx.conf")]
    checked = subprocess.run([*command, "-t"], capture_output=True, text=True)
    assert checked.returncode == 0, checked.stderr
    assert "warn" not in checked.stderr
    parent = os.getpid()
    process = subprocess.Popen(command, preexec_fn=lambda: exit_with_parent(parent))
    try:
        deadline = time.monotonic() + 240
        while not _listens(port):
            assert process.poll() is None, (folder / "error.log").read_text()
            assert time.monotonic() < deadline
            time.sleep(0.02)
        yield
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(60)


def _listens(port: int) -> bool:
    with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=10):
        return True
    return False
