"""A real object store in a process of its own, which misbehaves as it is told to: S3, Google Cloud Storage or Azure.

    python -m tests.support.object_server s3|gs
    python -m tests.support.object_server az http://127.0.0.1:PORT      before an azurite that runs there

S3 is moto's server, Azure is Microsoft's azurite, and Google's is our own (``google_storage.py``, which says why).
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
    expired      as for a token or a signature that is no longer valid
    skewed       403, as for a request whose time is minutes from the server's
    elsewhere    301, as for a bucket of another region
    deaf         no fault of one request: conditional writes are not obeyed
    kept         nor this: what is there may not be replaced, as by a policy of retention

`GET /_seen?NAME` tells how many requests of each method there were of a bucket, and how many failed by order.
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
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from datetime import timedelta
from functools import cache
from typing import Any

import pytest
import requests

from tests.browser.harness.available import AZURITE, needed
from tests.support import azurite
from tests.support.google_storage import TOKEN, GoogleStorage

KEYS = {"AWS_ACCESS_KEY_ID": "test", "AWS_SECRET_ACCESS_KEY": "test", "AWS_REGION": "us-east-1"}

SCHEMES = ("s3", "gs", "az")

_PREFIX = "test-"
"""Begins the name of every bucket."""

_SLOW = ("503 Slow Down", "SlowDown", "")
_ERROR = ("500 Internal Server Error", "InternalError", "")
_THROTTLED = ("429 Too Many Requests", "TooManyRequests", "")
_ERRORS = {
    "s3": {
        "slow_down": _SLOW,
        "error": _ERROR,
        "throttled": _THROTTLED,
        "denied": ("403 Forbidden", "AccessDenied", ""),
        "conflict": ("409 Conflict", "ConditionalRequestConflict", ""),
        "expired": ("400 Bad Request", "ExpiredToken", ""),
        "skewed": ("403 Forbidden", "RequestTimeTooSkewed", ""),
        "elsewhere": ("301 Moved Permanently", "PermanentRedirect", ""),
    },
    "gs": {
        "slow_down": ("503 Service Unavailable", "ServiceUnavailable", ""),
        "error": _ERROR,
        "throttled": ("429 Too Many Requests", "SlowDown", ""),
        "denied": ("403 Forbidden", "AccessDenied", ""),
        "expired": ("401 Unauthorized", "AuthenticationRequired", ""),
        "kept": ("403 Forbidden", "RetentionPolicyNotMet", ""),
    },
    "az": {
        "slow_down": ("503 Service Unavailable", "ServerBusy", ""),
        "error": _ERROR,
        "throttled": _THROTTLED,
        "denied": ("403 Forbidden", "AuthorizationPermissionMismatch", ""),
        "kept": ("409 Conflict", "BlobImmutableDueToPolicy", ""),
        "expired": ("403 Forbidden", "AuthenticationFailed", "Signature not valid in the specified time frame"),
        "skewed": ("403 Forbidden", "AuthenticationFailed", "Request date header too old: 'Mon, 23 Nov 2026 06:00:00'"),
    },
}
"""Of each service: the status, the code, and what Azure says beside the code."""

_CONDITIONS = ("HTTP_IF_NONE_MATCH", "HTTP_X_GOOG_IF_GENERATION_MATCH")

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

    def seen(self) -> Counter[str]:
        """Return how many requests there were of this bucket, by method, and how many failed by order."""
        return Counter(requests.get(f"{self.endpoint}/_seen?{self.name}", timeout=60).json())

    def get(self, key: str) -> requests.Response:
        """Fetch an object by HTTP, as a browser does from a bucket, but as somebody who may."""
        import obstore
        from obstore.store import from_url

        if self.scheme == "gs":
            address, headers = f"{self.endpoint}/{self.name}/{key}", {"Authorization": f"Bearer {TOKEN}"}
        else:
            bucket = from_url(self.url, client_options={"allow_http": True})
            address, headers = obstore.sign(bucket, "GET", key, timedelta(minutes=5)), {}
        return requests.get(address, headers=headers, timeout=60)

    def put(self, key: str) -> None:
        """Write an empty object by HTTP, of a name that the library would not take."""
        _put(self.endpoint, self.scheme, f"{self.name}/{key}")

    @property
    def scheme(self) -> str:
        """Of which service it is."""
        return self.url.partition("://")[0]

    @property
    def name(self) -> str:
        """What the server calls it."""
        return self.url.partition("://")[2]


@contextlib.contextmanager
def object_server(scheme: str = "s3") -> Iterator[str]:
    """Run the server of a service; yield its address. Skips the test where azurite would be needed and is not here."""
    with contextlib.ExitStack() as before:
        upstream = []
        if scheme == "az":
            upstream = [before.enter_context(azurite.azurite(needed("node"), needed(AZURITE)))]
        command = [sys.executable, "-m", "tests.support.object_server", scheme, *upstream]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        try:
            assert process.stdout is not None
            yield process.stdout.readline().strip()
        finally:
            process.kill()
            process.wait()
            process.stdout.close()


@pytest.fixture(scope="session")
def object_servers() -> Iterator[Callable[[str], str]]:
    """Give what returns the address of a service's server, which runs until the end of all tests."""
    with contextlib.ExitStack() as running:
        yield cache(lambda scheme: running.enter_context(object_server(scheme)))


def environment(endpoint: str, scheme: str) -> dict[str, str]:
    """Return the variables by which this server is found and asked."""
    if scheme == "gs":
        return {"GOOGLE_BASE_URL": endpoint, "GOOGLE_BEARER_TOKEN": TOKEN}
    if scheme == "az":
        return {
            "AZURE_STORAGE_ENDPOINT": f"{endpoint}/{azurite.ACCOUNT}",
            "AZURE_STORAGE_ACCOUNT_NAME": azurite.ACCOUNT,
            "AZURE_STORAGE_ACCOUNT_KEY": azurite.KEY,
        }
    return {**KEYS, "AWS_ENDPOINT_URL": endpoint}


@contextlib.contextmanager
def bucket_of(endpoint: str, scheme: str = "s3") -> Iterator[Bucket]:
    """Make a new bucket, which this process and those that it starts have the keys of."""
    name = f"{_PREFIX}{uuid.uuid4().hex[:12]}"
    with pytest.MonkeyPatch.context() as patch:
        for variable, value in environment(endpoint, scheme).items():
            patch.setenv(variable, value)
        _put(endpoint, scheme, name, "restype=container&" if scheme == "az" else "")
        made = Bucket(f"{scheme}://{name}", endpoint)
        made.well()
        yield made
        made.well()


def _put(endpoint: str, scheme: str, path: str, query: str = "") -> None:
    """Make a bucket or write an empty object, as somebody who may; the library does neither."""
    address, headers = f"{endpoint}/{path}", {}
    if scheme == "gs":
        headers = {"Authorization": f"Bearer {TOKEN}"}
    elif scheme == "az":
        address = f"{endpoint}/{azurite.ACCOUNT}/{path}?{query}{azurite.ALWAYS}"
        headers = {"x-ms-blob-type": "BlockBlob"}
    requests.put(address, headers=headers, timeout=60).raise_for_status()


class _Faulty:
    """Wraps the server's application in faults.

    S3 carries out a conditional put in one step; moto looks first, and then writes, so that it gets one put at a time.
    """

    def __init__(self, application: Callable[..., Iterable[bytes]], scheme: str) -> None:
        self._application = application
        self._errors = _ERRORS[scheme]
        self._one_put: Any = threading.Lock() if scheme == "s3" else contextlib.nullcontext()
        self._said: dict[str, Any] = {"kind": ""}
        self._draws = random.Random(0)
        self._lock = threading.Lock()
        self._seen: defaultdict[str, Counter[str]] = defaultdict(Counter)  # by the bucket's name

    def __call__(self, environ: dict[str, Any], start: Start) -> Iterable[bytes]:
        if environ["PATH_INFO"] == "/_faults":
            self._said = json.loads(environ["wsgi.input"].read(int(environ["CONTENT_LENGTH"])))
            self._draws = random.Random(self._said["seed"])
            start("204 No Content", [])
            return []
        if environ["PATH_INFO"] == "/_seen":
            start("200 OK", [("Content-Type", "application/json")])
            return [json.dumps(self._seen[environ["QUERY_STRING"]]).encode()]
        method, seen = environ["REQUEST_METHOD"], self._seen[_bucket_in(environ["PATH_INFO"])]
        with self._lock:
            seen[method] += 1
        while (kind := self._fault(method, seen)) == "hangs":
            time.sleep(0.05)
        if kind == "kept" and any(name in environ for name in _CONDITIONS):
            kind = ""
        if kind in self._errors:
            environ["wsgi.input"].read(int(environ.get("CONTENT_LENGTH") or 0))
            status, code, detail = self._errors[kind]
            start(status, [("Content-Type", "application/xml")])
            more = f"<AuthenticationErrorDetail>{detail}</AuthenticationErrorDetail>" if detail else ""
            said = f'<?xml version="1.0"?><Error><Code>{code}</Code><Message>by order</Message>{more}</Error>'
            return [said.encode()]
        if kind == "reset":
            environ["werkzeug.socket"].shutdown(socket.SHUT_RDWR)
            start("200 OK", [])
            return []
        if kind == "deaf":
            for name in _CONDITIONS:
                environ.pop(name, None)
        answer = self._answer(environ, start, cut=kind == "cut")
        if kind == "lost":
            environ["werkzeug.socket"].shutdown(socket.SHUT_RDWR)
        return answer

    def _fault(self, method: str, seen: Counter[str]) -> str:
        with self._lock:
            said = self._said
            if not said["kind"] or said["method"] not in ("", method) or said["most"] == 0:
                return ""
            if self._draws.random() >= said["share"]:
                return ""
            said["most"] -= 1
            seen["failed"] += 1
            return str(said["kind"])

    def _answer(self, environ: dict[str, Any], start: Start, *, cut: bool) -> Iterable[bytes]:
        if environ["REQUEST_METHOD"] != "PUT":
            parts = list(self._application(environ, start))
            return [b"".join(parts)[:-1]] if cut and len(b"".join(parts)) > 1 else parts
        with self._one_put:
            return list(self._application(environ, start))


def _bucket_in(path: str) -> str:
    """Return the name of the bucket that a request is about, wherever the service has it in the path."""
    return next((part for part in path.split("/") if part.startswith(_PREFIX)), "")


def _serve(application: Callable[..., Iterable[bytes]], scheme: str) -> None:
    from werkzeug.serving import WSGIRequestHandler, make_server

    class Quiet(WSGIRequestHandler):
        protocol_version = "HTTP/1.1"

        def log(self, *_: Any) -> None:
            pass

    faulty = _Faulty(application, scheme)
    server = make_server("127.0.0.1", 0, faulty, threaded=True, request_handler=Quiet)
    print(f"http://127.0.0.1:{server.port}", flush=True)
    server.serve_forever()


def _s3() -> Callable[..., Iterable[bytes]]:
    from moto.server import DomainDispatcherApplication, create_backend_app

    os.environ.update(KEYS)
    application: Callable[..., Iterable[bytes]] = DomainDispatcherApplication(create_backend_app)
    return application


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["s3"]:
            _serve(_s3(), "s3")
        case ["gs"]:
            _serve(GoogleStorage(), "gs")
        case ["az", upstream]:
            _serve(azurite.Forwarding(upstream), "az")
        case _:
            sys.exit(__doc__)
