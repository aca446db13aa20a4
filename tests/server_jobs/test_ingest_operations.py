"""The operations port is separate: strangers, web pages and load on the public port don't reach it."""

import http.client
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.request
import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path

import pytest

from fedping import __version__
from fedping.main import main
from fedping.server_jobs.ingest import backlog, heartbeat, operations
from fedping.server_jobs.listener import is_addressed
from tests.support.ingest_app import PATH, IngestApp, ingest_app, landed_ids, make_store
from tests.support.ingest_server import ROOT, IngestServer, children, free_port, running_ingest
from tests.support.pings import ping_json
from tests.support.processes import left_over, new_mark, wait_until

PRIVATE = [("GET", "/metrics"), ("GET", "/__status__"), ("POST", "/__flush__")]
BODY = json.dumps(ping_json()).encode()


@pytest.fixture
def ingest(tmp_path: Path) -> IngestApp:
    return ingest_app(tmp_path)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[IngestServer]:
    folder = tmp_path_factory.mktemp("operations")
    make_store(folder / "store")
    options = ("--workers", "1", "--threads", "4")
    with running_ingest(folder / "store", folder / "landing", *options) as running:
        yield running


def asked(port: int, method: str, path: str, headers: dict[str, str] | None = None) -> tuple[int, bytes]:
    with closing(http.client.HTTPConnection("127.0.0.1", port, timeout=240)) as connection:
        connection.request(method, path, headers=headers or {})
        answer = connection.getresponse()
        return answer.status, answer.read()


@pytest.mark.parametrize(("method", "path"), PRIVATE)
def test_the_public_port_has_none_of_it_whoever_asks(server: IngestServer, method: str, path: str) -> None:
    for headers in ({}, {"X-Forwarded-For": "192.0.2.1"}, {"Host": "localhost"}):
        assert asked(server.port, method, path, headers)[0] == 404
    assert asked(server.operations_port, method, path)[0] == 200


@pytest.mark.parametrize(("method", "path"), PRIVATE)
@pytest.mark.parametrize(
    "headers",
    [
        {"Host": "rebound.example:8082"},
        {"Host": "localhost.evil.example"},
        {"Host": ""},
        {"Host": "["},
        {"Origin": "https://evil.example"},
        {"Origin": "null"},
        {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "no-cors"},
        {"Sec-Fetch-Site": "same-site", "Sec-Fetch-Mode": "cors"},
    ],
)
def test_a_page_of_another_site_is_refused(
    server: IngestServer, method: str, path: str, headers: dict[str, str]
) -> None:
    status, body = asked(server.operations_port, method, path, headers)
    assert status in (400, 403)
    assert b"accepted" not in body
    assert server.operator_asks("/__status__")["pending"] >= 0


def test_it_is_known_by_addresses_and_by_its_own_names_only() -> None:
    for host in ("127.0.0.1:8082", "localhost", "[::1]:8082", "10.1.2.3", "LOCALHOST:1", "ingest", "Ingest:8082"):
        assert is_addressed(host, ["ingest"]), host
    for host in (
        "",
        "evil.example",
        "127.0.0.1.evil.example",
        "ingest.evil.example",
        "[::1",
        "localhost@evil.example:1",
    ):
        assert not is_addressed(host, ["ingest"]), host


def test_the_public_heartbeat_names_checks_and_tells_no_more(ingest: IngestApp, tmp_path: Path) -> None:
    (tmp_path / "store").rename(tmp_path / "elsewhere")
    ingest.services.catalogue.refresh()
    public, operators = ingest.client.get("/__heartbeat__"), ingest.operator.get("/__heartbeat__")
    assert (public.status_code, operators.status_code) == (503, 503)
    assert public.json["checks"].keys() == operators.json["checks"].keys()
    assert set(public.json["checks"].values()) <= {"ok", "error"}
    assert str(tmp_path) not in public.text
    assert public.json["checks"]["store"] == "error"
    assert str(tmp_path / "store") in operators.json["checks"]["store"]
    for path in ("/__lbheartbeat__", "/__version__"):
        assert (ingest.client.get(path).status_code, ingest.operator.get(path).status_code) == (200, 200)


def test_a_million_heartbeats_cost_a_tenth_of_the_time(ingest: IngestApp, monkeypatch: pytest.MonkeyPatch) -> None:
    """The checks are repeated only after ten times their duration."""
    asked: list[float] = []
    now, takes = 0.0, 0.1

    def check(_: object) -> dict[str, str | None]:
        nonlocal now
        now += takes
        asked.append(now)
        return {"journal": None}

    monkeypatch.setattr(heartbeat, "health", check)
    monkeypatch.setattr(heartbeat.time, "monotonic", lambda: now)
    pulse = heartbeat.Pulse(ingest.services, rest=9.0)
    for _ in range(1000):
        assert pulse() == {"journal": None}
        now += 0.01
    assert len(asked) == pytest.approx(10 + 1, abs=1), "in about ten seconds"
    takes = 60.0
    now += 1.0
    pulse()
    now += heartbeat.LONGEST_REST - 0.01
    pulse()
    assert len(asked) == pytest.approx(11 + 1, abs=1)
    now += 0.02
    pulse()
    assert len(asked) == pytest.approx(12 + 1, abs=1), "an answer that took long does not outlive what it is about"


@pytest.mark.parametrize("rest", [0.0, 9.0])
def test_a_check_that_hangs_is_told(ingest: IngestApp, monkeypatch: pytest.MonkeyPatch, rest: float) -> None:
    """The check hangs as on a network file system without its server; the last good answer must expire."""
    hangs, in_it = threading.Event(), threading.Event()

    def hang(_: object) -> dict[str, str | None]:
        in_it.set()
        hangs.wait(60)
        return {"journal": None}

    pulse = heartbeat.Pulse(ingest.services, rest)
    monkeypatch.setattr(heartbeat, "health", lambda _: {"journal": None})
    assert pulse() == {"journal": None}
    monkeypatch.setattr(heartbeat, "health", hang)
    monkeypatch.setattr(heartbeat, "PATIENCE", 0.05)
    pulse._stale_at = 0.0
    with ThreadPoolExecutor(1) as pool:
        hung = pool.submit(pulse)
        try:
            assert in_it.wait(60)
            deadline = time.monotonic() + 240
            while "answers" not in pulse():
                assert time.monotonic() < deadline
            assert "hangs" in str(pulse()["answers"])
            assert "hangs" in str(hung.result()["answers"]), "nor does the first who asked wait for it"
        finally:
            hangs.set()
    monkeypatch.setattr(heartbeat, "health", lambda _: {"journal": None})
    pulse._stale_at = 0.0
    while "answers" in pulse():  # until the hanging check has returned
        assert time.monotonic() < deadline
    assert pulse() == {"journal": None}


SERVE = """
import os, sys
from pathlib import Path
from fedping.server_jobs.ingest.operations import OperatorsListener
from fedping.server_jobs.ingest.settings import IngestSettings

here = Path(sys.argv[1])
settings = IngestSettings(store=here, landing=here, journal=here, operations_host=sys.argv[2], operations_port=0)
listener = OperatorsListener(settings)
print(listener.url, flush=True)
listener.serve(os.getppid())
"""


@pytest.mark.parametrize("host", ["localhost", "::1"])
def test_it_listens_where_it_is_told_to(tmp_path: Path, host: str) -> None:
    if host == "::1" and not Path("/proc/net/if_inet6").exists():
        pytest.skip("this machine has no IPv6")
    command = [sys.executable, "-c", SERVE, str(tmp_path), host]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            url = process.stdout.readline().strip()
            with urllib.request.urlopen(f"{url}/__status__", timeout=240) as answer:
                assert json.loads(answer.read())["pending"] == 0
        finally:
            process.kill()


def test_metrics_count_what_happened(ingest: IngestApp) -> None:
    ingest.ping()
    ingest.ping({"no": "ping"})
    ingest.land()
    text = ingest.operator.get("/metrics").text
    assert "fedping_ingest_pings_accepted_total 1.0" in text
    assert "fedping_ingest_pings_landed_total 1.0" in text
    assert 'fedping_ingest_rejected_total{reason="not_a_ping"} 1.0' in text
    assert "fedping_ingest_pings_pending 0.0" in text
    assert 'fedping_ingest_check{check="compactor"} 0.0' in text
    assert 'fedping_ingest_check{check="store"} 1.0' in text


def test_a_flush_says_whether_everything_has_landed(ingest: IngestApp) -> None:
    assert ingest.operator.post("/__flush__?timeout=0").json["flushed"] is True
    ingest.ping()
    answer = ingest.operator.post("/__flush__?timeout=0")
    assert (answer.status_code, answer.json["flushed"], answer.json["pending"]) == (504, False, 1)
    assert ingest.operator.get("/__flush__").status_code == 405


def test_the_command_flushes_a_running_ingest_and_says_what_keeps_it_from_that(
    server: IngestServer, capsys: pytest.CaptureFixture[str]
) -> None:
    operations_port = f"http://127.0.0.1:{server.operations_port}"
    document = str(uuid.uuid4())
    request = urllib.request.Request(f"{server.url}{PATH}/{document}", BODY, {"Content-Type": "application/json"})
    assert urllib.request.urlopen(request, timeout=240).status == 200
    assert main(["landing", "flush", f"{operations_port}/"]) == 0
    assert document in landed_ids(server.landing)
    for url, code, says in (
        (f"http://127.0.0.1:{free_port()}", 75, "doesn't answer"),
        (f"http://127.0.0.1:{server.port}", 1, "operations port"),
        ("127.0.0.1:8082", 1, "isn't an address"),
        ("http://", 1, "isn't an address"),
        ("file:///etc/passwd", 1, "isn't an address"),
        ("http://[::1", 1, "isn't an address"),
    ):
        assert main(["landing", "flush", url]) == code, url
        assert says in capsys.readouterr().err


@pytest.mark.parametrize(
    ("answer", "code", "says"),
    [
        (b"HTTP/1.1 504 x\r\nContent-Length: 2\r\n\r\n{}", 75, "within 1 s"),
        (b"HTTP/1.1 503 x\r\nContent-Length: 2\r\n\r\n{}", 75, "Run the command again"),
        (b"HTTP/1.1 200 x\r\nContent-Length: 5\r\n\r\nhello", 1, "not ingest's operations port"),
        (b'HTTP/1.1 200 x\r\nContent-Length: 17\r\n\r\n{"flushed":false}', 1, "not ingest's operations port"),
        (b"HTTP/1.1 307 x\r\nLocation: /\r\nContent-Length: 2\r\n\r\n{}", 1, "not ingest's operations port"),
        (b"HTTP/1.1 200 x\r\nContent-Length: 99\r\n\r\n{", 75, "doesn't answer"),
    ],
)
def test_only_an_answer_that_all_has_landed_is_believed(
    answer: bytes, code: int, says: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The last answer begins and never ends."""
    monkeypatch.setattr(backlog, "_PATIENCE", 1.0)
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def serve() -> None:
            connection, _ = listening.accept()
            connection.recv(65_536)
            connection.sendall(answer)
            over.wait(60)
            connection.close()

        over = threading.Event()
        serving = threading.Thread(target=serve)
        serving.start()
        try:
            url = f"http://127.0.0.1:{listening.getsockname()[1]}"
            assert main(["landing", "flush", url, "--timeout", "1"]) == code
        finally:
            over.set()
            serving.join()
    assert says in capsys.readouterr().err


def test_more_flushes_than_may_wait_are_told_to(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    inner: list[int] = []
    ingest = ingest_app(tmp_path)

    def wait_until_landed(*_: object) -> bool:
        inner.append(ingest.operator.post("/__flush__").status_code)
        return True

    monkeypatch.setattr(operations, "wait_until_landed", wait_until_landed)
    assert ingest.operator.post("/__flush__").status_code == 200
    assert len(inner) == operations.MOST_FLUSHES
    assert inner[0] == 503  # the innermost, rejected for lack of memory
    assert set(inner[1:]) == {200}


def test_hostile_load_on_the_public_port_does_not_stop_it(server: IngestServer) -> None:
    """Slow bodies occupy every thread of the public port, but the operations port still answers."""
    head = f"POST {PATH}/{uuid.uuid4()} HTTP/1.1\r\nHost: x\r\nContent-Length: 1000\r\n\r\n".encode()
    held = [socket.create_connection(("127.0.0.1", server.port)) for _ in range(40)]
    try:
        for connection in held:
            connection.sendall(head + BODY[:10])
        for _ in range(20):
            assert server.operator_asks("/__status__")["pending"] == 0
            assert asked(server.operations_port, "GET", "/metrics")[0] == 200
        assert server.flush()["flushed"]
    finally:
        for connection in held:
            connection.close()


def test_silent_connections_do_not_keep_it_from_answering(server: IngestServer) -> None:
    held = [socket.create_connection(("127.0.0.1", server.operations_port)) for _ in range(20)]
    try:
        with ThreadPoolExecutor(8) as pool:
            statuses = pool.map(lambda _: asked(server.operations_port, "GET", "/__status__")[0], range(32))
            assert set(statuses) == {200}
    finally:
        for connection in held:
            connection.close()


def metrics_of(server: IngestServer) -> str:
    return asked(server.operations_port, "GET", "/metrics")[1].decode()


@pytest.mark.parametrize("process", ["worker", "compactor"])
def test_a_process_that_dies_alone_is_told_and_counted(process: str, tmp_path: Path) -> None:
    make_store(tmp_path / "store")
    says = tmp_path / "out", tmp_path / "err"
    server = IngestServer(tmp_path / "store", tmp_path / "landing", "--workers", "2", says=says)
    server.start()
    died = f'fedping_ingest_processes_died_total{{process="{process}"}}'
    assert f"{died} 0.0" in metrics_of(server)
    os.kill(server.workers()[0] if process == "worker" else server.compactor(), signal.SIGKILL)
    assert wait_until(lambda: f"{died} 1.0" in metrics_of(server))
    assert wait_until(server.is_well)
    assert server.stop() == 0
    said = says[1].read_text()
    assert said.count(f"fedping ingest: the {process} died (SIGKILL) and is being restarted") == 1
    assert said.count("died") == 1, "and nobody else has"


def test_it_tells_its_version(ingest: IngestApp, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FEDPING_COMMIT", "abc123")
    made = f'fedping_build_info{{commit="abc123",part="ingest",version="{__version__}"}} 1.0'
    assert made in ingest.operator.get("/metrics").text
    assert ingest.client.get("/__heartbeat__").json["version"] == __version__
    assert ingest.operator.get("/__heartbeat__").json["version"] == __version__


def test_it_is_started_again_and_ends_with_its_parent(tmp_path: Path) -> None:
    make_store(tmp_path / "store")
    server = IngestServer(tmp_path / "store", tmp_path / "landing", "--workers", "1")
    server.start()
    before = server.operations()
    os.kill(before, signal.SIGKILL)
    assert server.operator_asks("/__status__")["pending"] == 0  # the socket is the supervisor's: the question waits
    assert server.operations() != before
    assert 'fedping_ingest_processes_died_total{process="other"} 1.0' in metrics_of(server)
    server.kill_supervisor()  # and asserts that nothing is left


def test_a_store_that_cannot_be_read_keeps_it_neither_from_answering_nor_from_starting(tmp_path: Path) -> None:
    make_store(tmp_path / "store")
    with running_ingest(tmp_path / "store", tmp_path / "landing", "--workers", "1") as server:
        (tmp_path / "store").rename(tmp_path / "elsewhere")
        os.kill(server.operations(), signal.SIGKILL)
        with pytest.raises(OSError, match="503"):
            server.operator_asks("/__heartbeat__")
        (tmp_path / "elsewhere").rename(tmp_path / "store")
        deadline = time.monotonic() + 240
        while not server.is_well():
            assert time.monotonic() < deadline
            time.sleep(0.05)


def test_port_0_is_any_free_one_and_what_is_printed_says_which(tmp_path: Path) -> None:
    make_store(tmp_path / "store")
    mark, said = new_mark(), tmp_path / "said"
    command = [sys.executable, "-u", "-m", "fedping", "ingest", "--store", tmp_path / "store", "--port", free_port()]
    command += ["--landing", tmp_path / "landing", "--operations-port", 0, "--workers", 1]
    with open(said, "wb") as sink:
        running = subprocess.Popen([*map(str, command)], cwd=ROOT, env={**os.environ, **mark}, stdout=sink)
    try:
        deadline = time.monotonic() + 240
        while "For operators: http://127.0.0.1:" not in said.read_text():
            assert time.monotonic() < deadline
            time.sleep(0.05)
        port = int(said.read_text().partition("For operators: http://127.0.0.1:")[2].split()[0])
        assert asked(port, "GET", "/__status__")[0] == 200
        assert children(running.pid)
    finally:
        running.send_signal(signal.SIGTERM)
        assert running.wait(60) == 0
    assert left_over(mark) == []


def test_its_port_is_refused_when_it_is_taken_or_another_ones(tmp_path: Path) -> None:
    make_store(tmp_path / "store")
    places = ["--store", str(tmp_path / "store"), "--landing", str(tmp_path / "landing")]
    port = str(free_port())

    def told(*options: str) -> tuple[int, str]:
        command = [sys.executable, "-m", "fedping", "ingest", *places, *options]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=240)
        assert "Traceback" not in done.stderr
        return done.returncode, done.stderr

    code, sentence = told("--port", port, "--operations-port", port)
    assert (code, "give another one" in sentence) == (2, True)
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        taken = other.getsockname()[1]
        code, sentence = told("--port", port, "--operations-port", str(taken))
    assert (code, f"port {taken} of 127.0.0.1 is in use" in sentence) == (1, True)
    assert "--operations-port" in sentence
    code, sentence = told("--port", port, "--operations-host", "no.such.host.invalid")
    assert (code, "correct --operations-host" in sentence) == (1, True)
