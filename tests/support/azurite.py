"""Azure Blob Storage on this machine: Microsoft's azurite from npm, run by Node.

    python -m tests.support.azurite     install it where tests look for it

`make test-browser` installs it as well. Without it, tests that need it are skipped.
"""

import base64
import contextlib
import hashlib
import hmac
import http.client
import os
import re
import shutil
import subprocess
import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

VERSION = "3.35.0"
"""The last version that Node 20 runs."""

ACCOUNT = "devstoreaccount1"
KEY = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="
"""The public key of azurite's test account, printed in Microsoft's documentation."""

_HOPS = frozenset({"connection", "keep-alive", "transfer-encoding", "content-length"})


def folder() -> Path:
    """Return the folder in which azurite is or will be installed."""
    cache = os.environ.get("FEDPING_TESTS_CACHE") or Path.home() / ".cache" / "fedping-tests"
    return Path(cache) / f"azurite-{VERSION}"


def program() -> Path | None:
    """Return azurite's program for blobs; None if it isn't installed."""
    found = folder() / "node_modules" / "azurite" / "dist" / "src" / "blob" / "main.js"
    return found if found.is_file() else None


def install(npm: str) -> None:
    """Install azurite by npm, without running packages' scripts; :func:`program` shows whether it worked."""
    print(f"Installing for the tests: azurite {VERSION}, some 190 MB.", flush=True)
    unfinished = folder().with_name(f"{folder().name}.{os.getpid()}")
    command = [npm, "install", "--ignore-scripts", "--no-audit", "--no-fund", "--no-update-notifier"]
    try:
        unfinished.mkdir(parents=True)
        ended = subprocess.run(
            [*command, "--prefix", str(unfinished), f"azurite@{VERSION}"], capture_output=True, text=True, timeout=600
        )
        if ended.returncode == 0 and program() is None:
            shutil.rmtree(folder(), ignore_errors=True)
            unfinished.rename(folder())
    except (OSError, subprocess.TimeoutExpired) as error:
        print(f"azurite could not be installed: {error}", file=sys.stderr)
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)


@contextlib.contextmanager
def azurite(node: str, blobs: str) -> Iterator[str]:
    """Run azurite with all data in memory; yield its address."""
    command = [node, blobs, "--inMemoryPersistence", "--blobPort", "0", "--disableTelemetry", "--silent"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    try:
        lines = (re.search(r"listens on (http://\S+)", line) for line in process.stdout)
        yield next(found[1] for found in lines if found)
    finally:
        process.kill()
        process.wait()
        process.stdout.close()


def account_sas(until: datetime, rights: str = "rwdlac") -> str:
    """Return a token for the account, as given to users without its key."""
    fields = {"sv": "2021-08-06", "ss": "b", "srt": "sco", "sp": rights, "se": until.strftime("%Y-%m-%dT%H:%M:%SZ")}
    signed = [ACCOUNT, rights, "b", "sco", "", fields["se"], "", "", fields["sv"], "", ""]
    signature = hmac.new(base64.b64decode(KEY), "\n".join(signed).encode(), hashlib.sha256).digest()
    return urlencode({**fields, "sig": base64.b64encode(signature).decode()})


ALWAYS = account_sas(datetime(2099, 1, 1, tzinfo=UTC))


class Forwarding:
    """A WSGI application that forwards each request to another server, byte for byte."""

    def __init__(self, upstream: str) -> None:
        self._host = upstream.removeprefix("http://")
        self._own = threading.local()

    def __call__(self, environ: dict[str, Any], start: Callable[..., Any]) -> Iterable[bytes]:
        body = environ["wsgi.input"].read(int(environ.get("CONTENT_LENGTH") or 0))
        connection = getattr(self._own, "connection", None) or http.client.HTTPConnection(self._host, timeout=60)
        self._own.connection = connection
        try:
            answer = self._asked(connection, environ, body)
        except (http.client.BadStatusLine, ConnectionError):  # the connection was idle for too long
            connection.close()
            answer = self._asked(connection, environ, body)
        data = answer.read()
        headers = [(name, value) for name, value in answer.getheaders() if name.lower() not in _HOPS]
        length = answer.getheader("Content-Length") if environ["REQUEST_METHOD"] == "HEAD" else str(len(data))
        start(f"{answer.status} {answer.reason}", [*headers, ("Content-Length", length or "0")])
        return [data] if data else []

    def _asked(
        self, connection: http.client.HTTPConnection, environ: dict[str, Any], body: bytes
    ) -> http.client.HTTPResponse:
        connection.putrequest(
            environ["REQUEST_METHOD"], environ["REQUEST_URI"], skip_host=True, skip_accept_encoding=True
        )
        for name, value in environ.items():
            if name.startswith("HTTP_") and name not in ("HTTP_CONNECTION", "HTTP_TRANSFER_ENCODING"):
                connection.putheader(name.removeprefix("HTTP_").lower().replace("_", "-"), value)
        for name in ("CONTENT_TYPE", "CONTENT_LENGTH"):
            if environ.get(name):
                connection.putheader(name.lower().replace("_", "-"), environ[name])
        connection.endheaders(body)
        return connection.getresponse()


if __name__ == "__main__":
    found = shutil.which("npm")
    sys.exit("azurite is installed by npm, which is not here") if found is None else install(found)
    sys.exit(program() is None)
