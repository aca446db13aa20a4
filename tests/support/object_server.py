"""A real object store in a separate process, which fails on request: S3, Google Cloud Storage or Azure.

    python -m tests.support.object_server s3|gs
    python -m tests.support.object_server az http://127.0.0.1:PORT      in front of an azurite that runs there

S3 is moto's server, Azure is Microsoft's azurite, and Google's is our own (``google_storage.py`` says why).
It prints its address. `POST /_faults` with `{"kind": KIND, "share": 0.2, "seed": 1, "method": "PUT", "most": 3}` makes
a share of the requests fail from then on, at most ``most`` of them:

    slow_down    503 before anything is done
    error        500 before anything is done
    throttled    429 before anything is done
    conflict     409 before anything is done, as S3 answers during another put
    reset        the connection is cut before anything is done
    hangs        nothing is done or answered until the faults end
    lost         done, and the connection cut before the answer
    cut          the answer ends in the middle
    denied       403
    expired      as for a token or a signature that is no longer valid
    skewed       403, as for a request whose time is minutes from the server's
    elsewhere    301, as for a bucket of another region
    deaf         not a fault of single requests: conditions of writes are ignored
    kept         nor this: existing objects can't be replaced, as under a retention policy

`GET /_seen?NAME` returns a bucket's number of requests by method, and of faults on request.
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
"""Prefix of all bucket names."""

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
"""Errors of each service: status, code, and for Azure the message next to the code."""

_CONDITIONS = ("HTTP_IF_NONE_MATCH", "HTTP_X_GOOG_IF_GENERATION_MATCH")

Start = Callable[..., Any]


@dataclass
class Bucket:
    """A bucket of the server: its address for fedping, and functions that make it fail."""

    url: str
    endpoint: str

    def faults(self, kind: str, share: float = 1.0, seed: int = 0, method: str = "", most: int = -1) -> None:
        """Make requests fail from now on."""
        said = {"kind": kind, "share": share, "seed": seed, "method": method, "most": most}
        requests.post(f"{self.endpoint}/_faults", json=said, timeout=60).raise_for_status()

    def well(self) -> None:
        """End all faults."""
        self.faults("", 0.0)

    def seen(self) -> Counter[str]:
        """Return this bucket's number of requests by method, and of faults on request."""
        return Counter(requests.get(f"{self.endpoint}/_seen?{self.name}", timeout=60).json())

    def get(self, key: str) -> requests.Response:
        """Fetch an object by HTTP, like a browser, but with credentials."""
        import obstore
        from obstore.store import from_url

        if self.scheme == "gs":
            address, headers = f"{self.endpoint}/{self.name}/{key}", {"Authorization": f"Bearer {TOKEN}"}
        else:
            bucket = from_url(self.url, client_options={"allow_http": True})
            address, headers = obstore.sign(bucket, "GET", key, timedelta(minutes=5)), {}
        return requests.get(address, headers=headers, timeout=60)

    def put(self, key: str) -> None:
        """Write an empty object by HTTP, with a name that the library rejects."""
        _put(self.endpoint, self.scheme, f"{self.name}/{key}")

    @property
    def scheme(self) -> str:
        """The address scheme of the bucket's service."""
        return self.url.partition("://")[0]

    @property
    def name(self) -> str:
        """The bucket's name on the server."""
        return self.url.partition("://")[2]


@contextlib.contextmanager
def object_server(scheme: str = "s3") -> Iterator[str]:
    """Run the server of a service; yield its address. Skips the test if azurite is needed and missing."""
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
    """Give a function that returns the address of a service's server, which runs until the end of all tests."""
    with contextlib.ExitStack() as running:
        yield cache(lambda scheme: running.enter_context(object_server(scheme)))


def environment(endpoint: str, scheme: str) -> dict[str, str]:
    """Return the environment variables with this server's address and credentials."""
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
    """Make a new bucket, with its keys in the environment of this process and its children."""
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
    """Make a bucket or write an empty object with credentials; the library does neither."""
    address, headers = f"{endpoint}/{path}", {}
    if scheme == "gs":
        headers = {"Authorization": f"Bearer {TOKEN}"}
    elif scheme == "az":
        address = f"{endpoint}/{azurite.ACCOUNT}/{path}?{query}{azurite.ALWAYS}"
        headers = {"x-ms-blob-type": "BlockBlob"}
    requests.put(address, headers=headers, timeout=60).raise_for_status()


class _Faulty:
    """Wraps the server's application with faults.

    S3 executes a conditional put atomically. moto first checks and then writes, so puts are passed one at a time.
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
    """Return the bucket's name in a request's path, for any service."""
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
