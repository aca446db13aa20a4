"""A real S3 server in a process of its own (moto's), which misbehaves as it is told to.

    python -m tests.support.object_server

It prints its address. `POST /_faults` with `{"kind": KIND, "share": 0.2, "seed": 1, "method": "PUT", "most": 3}` makes
a share of the requests fail from then on, at most so many:

    slow_down    503 before anything is done
    error        500 before anything is done
    throttled    429 before anything is done
    conflict     409 before anything is done, as S3 answers while another put is under way
    reset        the connection is cut before anything is done
    hangs        nothing is done or answered before the server is well again
    lost         done, and the connection cut before the answer
    cut          the answer ends in the middle
    denied       403
    expired      400, as for a token that is no longer valid
    deaf         no fault of one request: conditional writes are not obeyed

`GET /_seen` tells how many requests of each method there were.
"""

import contextlib
import json
import os
import random
import socket
import subprocess
import sys
import threading
import time
import uuid
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import pytest
import requests

KEYS = {"AWS_ACCESS_KEY_ID": "test", "AWS_SECRET_ACCESS_KEY": "test", "AWS_REGION": "us-east-1"}

_ERRORS = {
    "slow_down": ("503 Slow Down", "SlowDown"),
    "error": ("500 Internal Server Error", "InternalError"),
    "throttled": ("429 Too Many Requests", "TooManyRequests"),
    "denied": ("403 Forbidden", "AccessDenied"),
    "conflict": ("409 Conflict", "ConditionalRequestConflict"),
    "expired": ("400 Bad Request", "ExpiredToken"),
}

Start = Callable[..., Any]


@dataclass
class Bucket:
    """A bucket of the server: its address for fedping, and how it is made to fail."""

    url: str
    endpoint: str

    def faults(self, kind: str, share: float = 1.0, seed: int = 0, method: str = "", most: int = -1) -> None:
        """Make requests fail from now on."""
        said = {"kind": kind, "share": share, "seed": seed, "method": method, "most": most}
        requests.post(f"{self.endpoint}/_faults", json=said, timeout=60).raise_for_status()

    def well(self) -> None:
        """Let no request fail any more."""
        self.faults("", 0.0)

    def seen(self) -> dict[str, int]:
        """Return how many requests there were, by method, and how many failed by order."""
        found: dict[str, int] = requests.get(f"{self.endpoint}/_seen", timeout=60).json()
        return found

    def get(self, key: str) -> requests.Response:
        """Fetch an object by HTTP, as a browser does from a bucket, but with a signed address."""
        import obstore
        from obstore.store import S3Store

        bucket = S3Store(self.url.removeprefix("s3://"), client_options={"allow_http": True})
        return requests.get(obstore.sign(bucket, "GET", key, timedelta(minutes=5)), timeout=60)


@contextlib.contextmanager
def object_server() -> Iterator[str]:
    """Run the server; yield its address."""
    process = subprocess.Popen([sys.executable, "-m", "tests.support.object_server"], stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        yield process.stdout.readline().strip()
    finally:
        process.kill()
        process.wait()
        process.stdout.close()


@contextlib.contextmanager
def bucket_of(endpoint: str) -> Iterator[Bucket]:
    """Make a new bucket, which this process and those that it starts have the keys of."""
    name = f"test-{uuid.uuid4().hex[:12]}"
    with pytest.MonkeyPatch.context() as patch:
        for variable, value in {**KEYS, "AWS_ENDPOINT_URL": endpoint}.items():
            patch.setenv(variable, value)
        requests.put(f"{endpoint}/{name}", timeout=60).raise_for_status()
        made = Bucket(f"s3://{name}", endpoint)
        made.well()
        yield made
        made.well()


class _Faulty:
    """Wraps the server's application in faults."""

    def __init__(self, application: Callable[..., Iterable[bytes]]) -> None:
        self._application = application
        self._said: dict[str, Any] = {"kind": ""}
        self._draws = random.Random(0)
        self._lock = threading.Lock()
        self._writing = threading.Lock()
        self._seen: Counter[str] = Counter()

    def __call__(self, environ: dict[str, Any], start: Start) -> Iterable[bytes]:
        if environ["PATH_INFO"] == "/_faults":
            self._said = json.loads(environ["wsgi.input"].read(int(environ["CONTENT_LENGTH"])))
            self._draws = random.Random(self._said["seed"])
            start("204 No Content", [])
            return []
        if environ["PATH_INFO"] == "/_seen":
            start("200 OK", [("Content-Type", "application/json")])
            return [json.dumps(self._seen).encode()]
        while (kind := self._fault(environ["REQUEST_METHOD"])) == "hangs":
            time.sleep(0.05)
        if kind in _ERRORS:
            environ["wsgi.input"].read(int(environ.get("CONTENT_LENGTH") or 0))
            status, code = _ERRORS[kind]
            start(status, [("Content-Type", "application/xml")])
            return [f'<?xml version="1.0"?><Error><Code>{code}</Code><Message>by order</Message></Error>'.encode()]
        if kind == "reset":
            environ["werkzeug.socket"].shutdown(socket.SHUT_RDWR)
            start("200 OK", [])
            return []
        if kind == "deaf":
            environ.pop("HTTP_IF_NONE_MATCH", None)
        answer = self._answer(environ, start, cut=kind == "cut")
        if kind == "lost":
            environ["werkzeug.socket"].shutdown(socket.SHUT_RDWR)
        return answer

    def _fault(self, method: str) -> str:
        with self._lock:
            self._seen[method] += 1
            said = self._said
            if not said["kind"] or said["method"] not in ("", method) or said["most"] == 0:
                return ""
            if self._draws.random() >= said["share"]:
                return ""
            said["most"] -= 1
            self._seen["failed"] += 1
            return str(said["kind"])

    def _answer(self, environ: dict[str, Any], start: Start, *, cut: bool) -> Iterable[bytes]:
        if environ["REQUEST_METHOD"] != "PUT":
            parts = list(self._application(environ, start))
            return [b"".join(parts)[:-1]] if cut and len(b"".join(parts)) > 1 else parts
        with self._writing:  # S3 carries out a conditional put in one step; moto looks first, and then writes
            return list(self._application(environ, start))


def _serve() -> None:
    from moto.server import DomainDispatcherApplication, create_backend_app
    from werkzeug.serving import WSGIRequestHandler, make_server

    class Quiet(WSGIRequestHandler):
        protocol_version = "HTTP/1.1"

        def log(self, *_: Any) -> None:
            pass

    application = _Faulty(DomainDispatcherApplication(create_backend_app))
    server = make_server("127.0.0.1", 0, application, threaded=True, request_handler=Quiet)
    print(f"http://127.0.0.1:{server.port}", flush=True)
    server.serve_forever()


if __name__ == "__main__":
    os.environ.update(KEYS)
    _serve()
