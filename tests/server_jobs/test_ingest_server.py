"""The running server over real HTTP: several workers, orderly stops, and restarted or ended processes."""

import contextlib
import http.client
import json
import os
import signal
import socket
import time
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.ingest_app import PATH, landed_ids, make_store
from tests.support.ingest_server import IngestServer, running_ingest
from tests.support.pings import ping_json

BODY = json.dumps(ping_json()).encode()


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[IngestServer]:
    folder = tmp_path_factory.mktemp("ingest")
    make_store(folder / "store")
    with running_ingest(folder / "store", folder / "landing", "--workers", "2") as running:
        yield running


def raw(server: IngestServer, request: bytes) -> bytes:
    with socket.create_connection(("127.0.0.1", server.port), timeout=10) as connection:
        connection.sendall(request)
        received = b""
        with contextlib.suppress(TimeoutError):
            while chunk := connection.recv(65536):
                received += chunk
                if b"\r\n\r\n" in received:
                    break
        return received


def status_of(answer: bytes) -> int:
    return int(answer[9:12])


def post(server: IngestServer, path: str, body: bytes, **headers: str) -> int:
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=240)
    connection.request("POST", path, body, headers)
    answer = connection.getresponse()
    answer.read()
    connection.close()
    return answer.status


def test_a_request_is_taken_whatever_host_and_headers_a_proxy_gives_it(server: IngestServer) -> None:
    long = "x" * 15_000
    path = f"/{PATH.replace('/', '//')}/{uuid.uuid4()}"
    headers = {"Host": "evil.example", "Cookie": long, "Traceparent": long, "X-Forwarded-For": long}
    assert post(server, path, BODY, **headers) == 200
    answer = raw(server, b"GET //models//study//main/latest.json HTTP/1.1\r\nHost: evil.example\r\n\r\n")
    assert status_of(answer) == 200
    assert b"evil.example" not in answer
    server.flush()


def test_pings_to_several_workers_are_all_landed_by_a_flush(server: IngestServer) -> None:
    ids = [str(uuid.uuid4()) for _ in range(100)]
    before = server.operator_asks("/__status__")
    assert [post(server, f"{PATH}/{i}", BODY) for i in ids] == [200] * 100  # a connection each: both workers get some
    status = server.flush()
    assert set(ids) <= set(landed_ids(server.landing))
    assert status["accepted"] - before["accepted"] == status["landed"] - before["landed"] == 100
    assert status["pending"] == 0


def test_chunked_bodies_are_asked_for_a_length_and_the_server_goes_on(server: IngestServer) -> None:
    head = f"POST {PATH}/{uuid.uuid4()} HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n".encode()
    assert status_of(raw(server, head + b"5\r\nhello\r\n0\r\n\r\n")) == 411
    assert status_of(raw(server, f"POST {PATH}/{uuid.uuid4()} HTTP/1.1\r\nHost: x\r\n\r\n".encode())) == 411


@pytest.mark.parametrize(
    ("head", "status"),
    [
        (b"GET /submit/" + b"x" * 3000 + b" HTTP/1.1\r\nHost: x\r\n\r\n", 414),
        (b"GET /" + b"x" * 100_000 + b" HTTP/1.1\r\nHost: x\r\n\r\n", 414),
        (b"GET /__lbheartbeat__ HTTP/1.1\r\nHost: x\r\nIf-None-Match: " + b"x" * 2000 + b"\r\n\r\n", 431),
        (b"GET /__lbheartbeat__ HTTP/1.1\r\nHost: x\r\nX-Long: " + b"x" * 30_000 + b"\r\n\r\n", 200),
        (b"GET /__lbheartbeat__ HTTP/1.1\r\nHost: x\r\nX-Long: " + b"x" * 200_000 + b"\r\n\r\n", 431),
        (b"GET /__lbheartbeat__ HTTP/1.1\r\nHost: x\r\n" + b"X-A: b\r\n" * 200 + b"\r\n", 431),
        (b"GET /%C4%80%F0%9F%98%80 HTTP/1.1\r\nHost: x\r\n\r\n", 404),
        (b"GET /%FF%00 HTTP/1.1\r\nHost: x\r\n\r\n", 404),
        (b"GET /models/%C4%80/study.json HTTP/1.1\r\nHost: x\r\n\r\n", 404),
        (b"POST /submit/%C4%80/x/1 HTTP/1.1\r\nHost: x\r\nContent-Length: 0\r\n\r\n", 404),
        (b"GET /%ED%A0%80?%FF=%ED%A0%80 HTTP/1.1\r\nHost: x\r\n\r\n", 404),
        (b"GET /nothing HTTP/1.1\r\nHost: x\r\nX-A: \xff\xfe\r\n\r\n", 404),
        (b"GET /nothing HTTP/1.1\r\nHost: \xff\r\n\r\n", 404),
        (b"nonsense\r\n\r\n", 400),
        (b"GET /__lbheartbeat__ HTTP/1.1\r\nHost: x\r\n\r\n", 200),
    ],
)
def test_requests_on_the_wire_get_their_status(server: IngestServer, head: bytes, status: int) -> None:
    assert status_of(raw(server, head)) == status


def test_a_large_body_is_refused_without_being_read(server: IngestServer) -> None:
    head = f"POST {PATH} HTTP/1.1\r\nHost: x\r\nContent-Length: {10**10}\r\n\r\n".encode()
    assert status_of(raw(server, head)) == 413


def test_a_body_that_never_comes_stores_nothing(server: IngestServer) -> None:
    before = server.operator_asks("/__status__")["accepted"]
    with socket.create_connection(("127.0.0.1", server.port)) as connection:
        connection.sendall(f"POST {PATH}/{uuid.uuid4()} HTTP/1.1\r\nHost: x\r\nContent-Length: 1000\r\n\r\n".encode())
        connection.sendall(BODY[:100])
    assert post(server, f"{PATH}/{uuid.uuid4()}", BODY) == 200
    assert server.operator_asks("/__status__")["accepted"] == before + 1


def test_a_refused_request_leaves_its_connection_usable(server: IngestServer) -> None:
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=240)
    for path, expected in ((f"{PATH}/none", 400), (f"{PATH}/{uuid.uuid4()}", 200), ("/submit/x/y/1/z", 404)):
        connection.request("POST", path, BODY)
        answer = connection.getresponse()
        answer.read()
        assert answer.status == expected


def test_a_dead_worker_and_a_dead_compactor_are_replaced(tmp_path: Path) -> None:
    make_store(tmp_path / "store")
    with running_ingest(tmp_path / "store", tmp_path / "landing", "--workers", "2") as server:
        workers, compactor = server.workers(), server.compactor()
        os.kill(workers[0], signal.SIGKILL)
        os.kill(compactor, signal.SIGKILL)
        deadline = time.monotonic() + 240
        while not (len(server.workers()) == 2 and server.workers() != workers and server.is_well()):
            assert time.monotonic() < deadline
            time.sleep(0.02)
        assert post(server, f"{PATH}/{uuid.uuid4()}", BODY) == 200
        assert server.flush()["flushed"]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_stop_lands_what_was_accepted_and_leaves_no_process(tmp_path: Path, number: signal.Signals) -> None:
    make_store(tmp_path / "store")
    server = IngestServer(tmp_path / "store", tmp_path / "landing", "--compact-every", "3600")
    server.start()
    ids = sorted(str(uuid.uuid4()) for _ in range(50))
    assert {post(server, f"{PATH}/{i}", BODY) for i in ids} == {200}
    assert landed_ids(tmp_path / "landing") == []
    assert server.stop(number) == 0
    assert landed_ids(tmp_path / "landing") == ids


def test_no_process_outlives_a_killed_supervisor_and_the_next_start_lands_the_rest(tmp_path: Path) -> None:
    make_store(tmp_path / "store")
    server = IngestServer(tmp_path / "store", tmp_path / "landing", "--compact-every", "3600")
    server.start()
    document = str(uuid.uuid4())
    assert post(server, f"{PATH}/{document}", BODY) == 200
    server.kill_supervisor()
    server.start()
    assert server.stop() == 0
    assert landed_ids(tmp_path / "landing") == [document]
