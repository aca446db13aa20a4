"""The helper's service over real HTTP: answers, offers, limits of requests, and a log without clients' data."""

import asyncio
import concurrent.futures
import contextlib
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple
from urllib.parse import urlsplit

import pytest
import requests

from benchmarks.ingest import free_port
from fedping.helper import serving
from fedping.helper.serving import Response
from fedping.main import main
from fedping.protocol.notation import utc_now
from fedping.protocol.sharing.exchange import Answer, digest_of_signed, is_from
from fedping.protocol.sharing.offer import Offer
from tests.support import forked
from tests.support.effort import in_full
from tests.support.helping import Helping, answer_in, clients_of, combined, joined, request_of
from tests.support.processes import wait_until

ROOT = Path(__file__).parents[2]


class Running(NamedTuple):
    url: str
    process: "subprocess.Popen[bytes]"
    log: Path

    def post(self, data: bytes) -> requests.Response:
        return requests.post(f"{self.url}/answers", data=data, timeout=240)

    def get(self, path: str) -> requests.Response:
        return requests.get(self.url + path, timeout=240)


@contextlib.contextmanager
def running(folder: Path, *options: str) -> Iterator[Running]:
    port, log = free_port(), folder.parent / "log"
    command = [
        sys.executable,
        "-m",
        "fedping",
        "helper",
        "serve",
        "--folder",
        str(folder),
        "--port",
        str(port),
        *options,
    ]
    with open(log, "ab") as sink:
        process = forked.Popen(command, cwd=ROOT, stdout=sink, stderr=sink)
    made = Running(f"http://127.0.0.1:{port}", process, log)

    def answers() -> bool:
        assert process.poll() is None, log.read_text()
        with contextlib.suppress(requests.ConnectionError):
            return made.get("/__lbheartbeat__").ok
        return False

    try:
        assert wait_until(answers)
        yield made
    finally:
        process.terminate()
        process.wait(60)


def now(helping: Helping, k: int = 3, **more: Any) -> bytes:
    return request_of(helping, clients_of(helping, k, **more).rows, made=utc_now(), version=more.get("version", 3))


@pytest.fixture(scope="module")
def helping(tmp_path_factory: pytest.TempPathFactory) -> Helping:
    return joined(tmp_path_factory.mktemp("served") / "helper")


@pytest.fixture(scope="module")
def server(helping: Helping) -> Iterator[Running]:
    with running(helping.folder.path, "--max-request-mib", "1") as made:
        yield made


def test_an_answer_is_posted_for_and_can_be_fetched_again(helping: Helping, server: Running) -> None:
    some = clients_of(helping, 4, version=10, first=1000)
    data = request_of(helping, some.rows, version=10, made=utc_now())
    first = server.post(data)
    assert (first.status_code, first.headers["Content-Type"]) == (200, "application/octet-stream")
    assert is_from(first.content, Answer, helping.folder.identity)
    assert (combined(some.shares, answer_in(first.content).arms[0]) == 4).all()
    assert server.post(data).content == first.content
    assert server.get(f"/answers/{digest_of_signed(data)}").content == first.content
    assert server.get(f"/answers/{'0' * 64}").status_code == 404


def test_a_refusal_says_why_for_programs_and_people(helping: Helping, server: Running) -> None:
    one = server.post(now(helping, 1, first=2000))
    assert (one.status_code, one.json()["refused"]) == (422, "too_few")
    assert "a sum needs 2" in one.json()["why"]
    unknown = server.post(request_of(helping, clients_of(helping).rows, study="other"))
    assert (unknown.status_code, unknown.json()["refused"]) == (404, "unknown")
    for data in (b"", b"x" * 10, os.urandom(500)):
        assert server.post(data).json()["refused"] == "unreadable"


def test_the_offer_is_served(helping: Helping, server: Running) -> None:
    offered = server.get("/offers/private/main").json()
    assert Offer(**offered) == helping.offer
    for path in ("/offers/private/other", "/offers/private", "/offers", "/", "/answers/", "/offers/../helper.key"):
        found = server.get(path)
        assert found.status_code == 404
        assert "error" in found.json() or path == "/answers/"


def test_tools_of_operators_are_answered(helping: Helping, server: Running) -> None:
    assert server.get("/__lbheartbeat__").json() == {"status": "ok"}
    assert server.get("/__heartbeat__").json() == {
        "status": "ok",
        "checks": {"records": "ok", "keys": "ok", "disk": "ok"},
    }
    assert server.get("/__version__").json()["source"] == "fedping"
    metrics = server.get("/metrics").text
    assert 'fedping_helper_refused_total{reason="too_few"}' in metrics
    assert requests.head(f"{server.url}/metrics", timeout=240).content == b""
    assert requests.get(f"{server.url}/answers", timeout=240).status_code == 405
    assert requests.delete(f"{server.url}/metrics", timeout=240).headers["Allow"] == "GET, HEAD"


def connection(server: Running) -> socket.socket:
    where = urlsplit(server.url)
    assert where.hostname is not None
    return socket.create_connection((where.hostname, where.port or 80), timeout=240)


def said(connection_: socket.socket) -> bytes:
    """Return the first received bytes."""
    return connection_.recv(65536)


def test_bodies_are_bounded(helping: Helping, server: Running) -> None:
    too_long = server.post(bytes(1024 * 1024 + 1))
    assert (too_long.status_code, too_long.json()["refused"]) == (413, "too_many")
    head = b"POST /answers HTTP/1.1\r\nHost: x\r\n"
    with connection(server) as without:
        without.sendall(head + b"Transfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n")
        assert b" 411 " in said(without)
    for length in (b"-1", b"many", b"9" * 30):
        with connection(server) as odd:
            odd.sendall(head + b"Content-Length: " + length + b"\r\n\r\n")
            assert said(odd).split(b" ")[1] in (b"400", b"411", b"413")


@pytest.mark.long
def test_slow_bodies_are_cut_off_and_keep_nobody_waiting_for_long(helping: Helping, server: Running) -> None:
    head = b"POST /answers HTTP/1.1\r\nHost: x\r\nContent-Length: 1000\r\n\r\nx"
    with contextlib.ExitStack() as stack:
        slow: list[socket.socket] = []

        def is_crowded() -> bool:
            slow.append(stack.enter_context(connection(server)))
            slow[-1].sendall(head)
            busy = server.post(now(helping, 1, first=3000))
            return busy.status_code == 503 and busy.headers["Retry-After"] == "5"

        assert wait_until(is_crowded)
        told = {said(each).split(b" ")[1] for each in slow}
    assert b"408" in told <= {b"408", b"503"}
    assert wait_until(lambda: server.post(now(helping, 1, first=3000)).status_code == 422)


class _Body:
    """A granian body stream that yields some pieces and then neither data nor an end."""

    def __init__(self, *pieces: bytes) -> None:
        self._pieces = pieces

    async def __aiter__(self) -> AsyncIterator[bytes]:
        for piece in self._pieces:
            yield piece
        await asyncio.Event().wait()


@pytest.mark.parametrize("pieces", [(), (bytes(900_000),)], ids=["nothing came", "nearly all came at once"])
def test_a_body_that_stops_is_cut_off(pieces: tuple[bytes, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(serving, "SPAN", 0.02)

    async def received() -> bytes | Response:
        async with asyncio.timeout(60):
            return await serving._received(_Body(*pieces), 1_000_000)  # type: ignore[arg-type]

    cut = asyncio.run(received())
    assert isinstance(cut, Response)
    assert cut.status == 408
    assert ("connection", "close") in cut.headers


def test_no_more_bodies_arrive_at_a_time_than_memory_is_kept_for(helping: Helping) -> None:
    service = serving.Service(serving.ServeSettings(folder=helping.folder.path))
    scope = SimpleNamespace(headers={"content-length": "1000"})

    async def asked() -> set[int]:
        arriving = [
            asyncio.ensure_future(service._asked(scope, _Body()))  # type: ignore[arg-type]
            for _ in range(serving.BODIES + 1)
        ]
        done, waiting = await asyncio.wait(arriving, timeout=60, return_when=asyncio.FIRST_COMPLETED)
        for one in waiting:
            one.cancel()
        await asyncio.gather(*waiting, return_exceptions=True)
        return {one.result().status for one in done}

    assert asyncio.run(asked()) == {503}


def test_whoever_ends_in_the_middle_harms_nobody(helping: Helping, server: Running) -> None:
    for _ in range(5):
        with connection(server) as gone:
            gone.sendall(b"POST /answers HTTP/1.1\r\nHost: x\r\nContent-Length: 1000\r\n\r\nxyz")
    assert wait_until(lambda: server.post(now(helping, 1, first=4000)).status_code == 422)


def test_the_log_has_neither_documents_nor_addresses(helping: Helping, server: Running) -> None:
    some = clients_of(helping, 3, version=20, first=5000)
    server.post(request_of(helping, some.rows, version=20, made=utc_now()))
    server.post(request_of(helping, some.rows, version=21, made=utc_now()))
    log = server.log.read_text()
    assert "answered first: version 20 of line 'main' of study 'private', 3 clients, 0 of them left out" in log
    assert "refused (too_few)" in log
    for at in range(3):
        assert some.rows.documents[16 * at : 16 * at + 16].hex()[:12] not in log.replace("-", "")
    assert "127.0.0.1" not in log.replace(f"Answering requests on {server.url}", "")


def test_what_takes_long_is_asked_for_again_and_others_wait(tmp_path: Path) -> None:
    """The first request is told to retry; in the meantime, another finds the helper busy."""
    helping = joined(tmp_path / "helper")
    with running(helping.folder.path, "--patience", "0") as server:
        long, other = now(helping, 4000), now(helping, 3, version=4, first=9000)
        with concurrent.futures.ThreadPoolExecutor(2) as pool:
            first = pool.submit(server.post, long)
            assert wait_until(lambda: "fedping_helper_working 1.0" in server.get("/metrics").text or first.done())
            others = server.post(other)
        assert first.result().status_code in (200, 202)
        assert others.status_code in (200, 202, 503)
        assert wait_until(lambda: server.post(long).status_code == 200)
        assert wait_until(lambda: server.post(other).status_code == 200)


@pytest.mark.thorough
def test_a_server_killed_in_the_middle_and_started_again_answers_once(tmp_path: Path) -> None:
    helping = joined(tmp_path / "helper")
    some = clients_of(helping, 3000)
    data = request_of(helping, some.rows, made=utc_now())
    for delay in (0.0, 0.1, 0.3, 1.0) if in_full() else (0.1, 0.3):
        with running(helping.folder.path) as server, concurrent.futures.ThreadPoolExecutor(1) as pool:
            asked = pool.submit(server.post, data)
            time.sleep(delay)
            server.process.send_signal(signal.SIGKILL)
            with contextlib.suppress(requests.RequestException):
                asked.result()
    with running(helping.folder.path) as server:
        answers = {server.post(data).content for _ in range(2)}
        assert len(answers) == 1
        assert (combined(some.shares, answer_in(answers.pop()).arms[0]) == 3000).all()


def test_stopping_is_quick_and_in_order(tmp_path: Path) -> None:
    helping = joined(tmp_path / "helper")
    with running(helping.folder.path) as server:
        server.process.terminate()
        assert server.process.wait(60) == 0
    assert "Traceback" not in server.log.read_text()


@pytest.mark.parametrize("wrong", ["no folder", "a copy", "a key that others may read", "a port that is taken"])
def test_what_is_wrong_is_told_before_it_listens(tmp_path: Path, wrong: str, capfd: pytest.CaptureFixture[str]) -> None:
    helping = joined(tmp_path / "helper")
    folder, port = helping.folder.path, free_port()
    with socket.socket() as taken:
        if wrong == "no folder":
            folder = tmp_path / "other"
        elif wrong == "a copy":
            folder = Path(shutil.copytree(folder, tmp_path / "copy"))
        elif wrong == "a key that others may read":
            (folder / "helper.key").chmod(0o640)
        else:
            taken.bind(("127.0.0.1", port))
            taken.listen()
        command = ["helper", "serve", "--folder", str(folder), "--port", str(port)]
        if wrong == "a port that is taken":
            ended = forked.run([sys.executable, "-m", "fedping", *command], cwd=ROOT, timeout=240).returncode
        else:
            ended = main(command)
    told = capfd.readouterr().err
    assert ended in (1, 2)
    assert told.startswith("fedping: ")
    assert told.count("\n") == 1
