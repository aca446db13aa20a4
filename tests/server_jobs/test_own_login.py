"""fedping's requests carry no login except configured ones: those in `~/.netrc` stay on the machine."""

import asyncio
import threading
from base64 import b64encode
from collections.abc import Callable, Iterator
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from uuid import UUID

import pytest

from fedping.client_sim.http import HttpSettings, HttpTransport
from fedping.client_sim.transport import TransportError
from fedping.commands.study_offer import read_offer
from fedping.protocol.errors import FedpingError
from fedping.server_jobs.health.monitor import make_poster
from fedping.server_jobs.round.helper_client import HttpHelper


class Recorder:
    """A server or proxy that answers 404 to everything, and records the requests' headers."""

    def __init__(self) -> None:
        self.paths: list[str] = []
        self.headers: list[dict[str, str]] = []
        recorder = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                recorder.paths.append(self.path)
                recorder.headers.append(dict(self.headers))
                while self.headers.get("Transfer-Encoding") and self.rfile.readline() != b"0\r\n":
                    pass
                self.rfile.read(int(self.headers.get("Content-Length", 0)))
                self.send_response(404)
                self.send_header("Content-Length", "0")
                self.send_header("Connection", "close")
                self.end_headers()

            def do_POST(self) -> None:
                self.do_GET()

            def log_message(self, *_: object) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.place = f"127.0.0.1:{self.server.server_port}"


@pytest.fixture
def recorder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Recorder]:
    netrc = tmp_path / "netrc"
    netrc.write_text("default login somebody password secret\n")
    netrc.chmod(0o600)
    monkeypatch.setenv("NETRC", str(netrc))
    for name in ("http_proxy", "HTTP_PROXY", "no_proxy", "NO_PROXY"):
        monkeypatch.delenv(name, raising=False)
    recorder = Recorder()
    thread = threading.Thread(target=recorder.server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield recorder
    recorder.server.shutdown()
    thread.join()
    recorder.server.server_close()


def transported(url: str) -> None:
    async def both() -> None:
        transport = HttpTransport(url, settings=HttpSettings(proxies=True, redirects="secure"))
        with suppress(TransportError):
            await transport.fetch_study("tumours")
        await transport.submit("tumours", UUID(int=1), b"{}")
        await transport.close()

    asyncio.run(both())


def told(url: str) -> None:
    assert make_poster(url)({"study": "tumours"}) == "HTTP 404"


def offered(url: str) -> None:
    with pytest.raises(FedpingError):
        read_offer(url, "tumours", "main")


def asked(url: str) -> None:
    with pytest.raises(FedpingError):
        HttpHelper(url, patience=2.0).answer(b"request", 100)


WAYS = [transported, told, offered, asked]


@pytest.mark.parametrize("way", WAYS)
def test_the_login_of_netrc_is_not_sent(recorder: Recorder, way: Callable[[str], None]) -> None:
    way(f"http://{recorder.place}")
    assert recorder.headers
    assert not any("Authorization" in headers for headers in recorder.headers)


@pytest.mark.parametrize("way", WAYS)
def test_the_login_in_an_address_is_sent(recorder: Recorder, way: Callable[[str], None]) -> None:
    way(f"http://me:mine@{recorder.place}")
    wanted = "Basic " + b64encode(b"me:mine").decode()
    assert {headers.get("Authorization") for headers in recorder.headers} == {wanted}


@pytest.mark.parametrize("bypassed", [False, True])
def test_the_proxy_of_the_environment_is_used(
    recorder: Recorder, monkeypatch: pytest.MonkeyPatch, bypassed: bool
) -> None:
    monkeypatch.setenv("http_proxy", f"http://me:mine@{recorder.place}")
    if bypassed:
        monkeypatch.setenv("no_proxy", "fedping.invalid")
    transported("http://fedping.invalid")
    assert len(recorder.paths) == (0 if bypassed else 2)
    assert all(path.startswith("http://fedping.invalid/") for path in recorder.paths)
    wanted = "Basic " + b64encode(b"me:mine").decode()
    assert all(headers["Proxy-Authorization"] == wanted for headers in recorder.headers)
    assert not any("Authorization" in headers for headers in recorder.headers)
