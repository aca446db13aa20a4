"""`docs/deploy/nginx.conf` in a real nginx in front of a real ingest: forwarded and stopped requests."""

import contextlib
import http.client
import http.server
import json
import re
import threading
import time
import uuid
from collections.abc import Iterator
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from fedping.model_store import open_store
from fedping.protocol.landing import landed_files
from fedping.server_jobs.ingest.settings import CONNECTION_BYTES, Limits
from tests.support.ingest_app import PATH, STUDY, landed_ids, make_store
from tests.support.ingest_server import IngestServer, free_port, running_ingest
from tests.support.nginx import CONFIGURATION, Nginx, nginx_before
from tests.support.pings import ping_json
from tests.support.versions import after

BODY = json.dumps(ping_json()).encode()
MIB = 1024 * 1024


@pytest.fixture(scope="module")
def ingest(tmp_path_factory: pytest.TempPathFactory) -> Iterator[IngestServer]:
    folder = tmp_path_factory.mktemp("behind")
    make_store(folder / "store")
    # Two threads, so that slow requests that pass nginx stop ingest at once.
    with running_ingest(folder / "store", folder / "landing", "--workers", "1", "--threads", "2") as running:
        yield running


@pytest.fixture(scope="module")
def nginx(ingest: IngestServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Nginx]:
    with nginx_before([ingest.port], tmp_path_factory.mktemp("nginx") / "run") as running:
        yield running


def test_its_limits_are_those_of_ingest() -> None:
    text = CONFIGURATION.read_text()
    sizes = re.findall(r"client_max_body_size\s+(\d+)m;", text)
    assert [int(size) * MIB for size in sizes] == [Limits().batch.sent] == [Limits().ping.sent]
    buffers = re.search(r"large_client_header_buffers (\d+) (\d+)k;", text)
    assert buffers is not None
    assert int(buffers[1]) * int(buffers[2]) * 1024 < CONNECTION_BYTES
    assert "proxy_request_buffering on;" in text


def test_a_ping_through_tls_lands(nginx: Nginx, ingest: IngestServer) -> None:
    document = str(uuid.uuid4())
    answer, body = nginx.ask("POST", f"{PATH}/{document}", BODY, Content_Type="application/json")
    assert (answer.status, json.loads(body)["accepted"]) == (200, 1)
    assert answer.headers.get_all("Access-Control-Allow-Origin") == ["*"]
    ingest.flush()
    assert document in landed_ids(ingest.landing)


def test_plain_http_is_led_to_tls(nginx: Nginx) -> None:
    with contextlib.closing(http.client.HTTPConnection("127.0.0.1", nginx.plain_port, timeout=240)) as connection:
        connection.request("GET", "/models/study/study.json", headers={"Host": "evil.example"})
        answer = connection.getresponse()
        assert (answer.status, answer.headers["Location"]) == (301, "https://localhost/models/study/study.json")


@pytest.mark.parametrize("method", ["GET", "POST"])
@pytest.mark.parametrize(
    "path",
    [
        "/metrics",
        "/__status__",
        "/__flush__",
        "//metrics",
        "/models/../metrics",
        "/%6detrics",
        "/metrics/",
        "/submit/..%2f__flush__",
        "/",
        "/demo/",
        "/anything",
    ],
)
def test_what_is_private_is_not_there(nginx: Nginx, method: str, path: str) -> None:
    answer, body = nginx.ask(method, path, b"" if method == "POST" else None)
    assert answer.status in (403, 404, 405)
    assert "error" in json.loads(body)
    assert b"accepted" not in body


def test_what_load_balancers_ask_is(nginx: Nginx) -> None:
    for path in ("/__lbheartbeat__", "/__heartbeat__", "/__version__"):
        answer, body = nginx.ask("GET", path)
        assert answer.status == 200, path
        assert str(nginx.folder.parent.parent).encode() not in body


@pytest.mark.parametrize(
    ("path", "size"),
    [
        (f"{PATH}/00000000-0000-4000-8000-000000000000", Limits().batch.sent + 1),
        (PATH, Limits().batch.sent + 1),
        (PATH, 10**12),
    ],
)
def test_a_body_over_the_limit_is_refused_before_ingest_hears_of_it(nginx: Nginx, path: str, size: int) -> None:
    with contextlib.closing(nginx.connect()) as connection:
        connection.putrequest("POST", path)
        connection.putheader("Content-Length", str(size))
        connection.endheaders()
        answer = connection.getresponse()
        assert answer.status == 413
        assert answer.headers.get_all("Access-Control-Allow-Origin") == ["*"]
        assert json.loads(answer.read()) == {"error": "the body is too large; send less in one request"}


@pytest.mark.parametrize("long", [Limits().header_bytes + 1, 1900, 5000, 10_000])
def test_a_header_or_path_over_the_limit_is_refused_by_either(nginx: Nginx, long: int) -> None:
    answer, body = nginx.ask("GET", "/models/study/study.json", If_None_Match="x" * long)
    assert answer.status == 431
    assert "error" in json.loads(body)
    answer, body = nginx.ask("GET", f"/models/study/{'x' * long}")
    assert answer.status == 414
    assert "error" in json.loads(body)


def test_a_header_that_ingest_takes_passes(nginx: Nginx) -> None:
    for long in (Limits().header_bytes, 15_000):
        answer, _ = nginx.ask("POST", f"{PATH}/{uuid.uuid4()}", BODY, Cookie="x" * long, Traceparent="x" * long)
        assert answer.status == 200
    assert nginx.ask("GET", "/models/study/study.json", X_Long="x" * 17_000)[0].status == 431


def test_a_body_within_nginx_limits_may_still_be_too_large_for_ingest(nginx: Nginx) -> None:
    answer, body = nginx.ask("POST", PATH, b"\n" * (Limits().batch_lines + 1))
    assert answer.status == 413
    assert "lines" in json.loads(body)["error"]


def test_slow_bodies_end_at_it(nginx: Nginx, ingest: IngestServer) -> None:
    """More slow bodies are sent than ingest has threads; a ping from another network still passes."""
    held = [nginx.connect("127.0.0.10") for _ in range(12)]
    for connection in held:
        connection.putrequest("POST", f"{PATH}/{uuid.uuid4()}")
        connection.putheader("Content-Length", "1000")
        connection.endheaders()
        connection.send(BODY[:10])
    for _ in range(5):
        assert nginx.ask("POST", f"{PATH}/{uuid.uuid4()}", BODY, source="127.0.0.11")[0].status == 200
    for connection in held:
        connection.close()
    assert ingest.ask("/__heartbeat__")["status"] == "ok"


def test_a_flood_is_put_off_while_an_honest_client_passes(nginx: Nginx) -> None:
    seen: set[int] = set()
    over = threading.Event()

    def flood() -> None:
        with contextlib.closing(nginx.connect("127.0.0.20")) as connection:
            while not over.is_set():
                with contextlib.suppress(OSError, http.client.HTTPException):
                    connection.request("POST", f"{PATH}/none", b"no ping")
                    answer = connection.getresponse()
                    answer.read()
                    seen.add(answer.status)
                    if answer.status == 429:
                        assert answer.headers["Retry-After"] == "1"

    threads = [threading.Thread(target=flood) for _ in range(8)]
    for thread in threads:
        thread.start()
    try:
        deadline = time.monotonic() + 300
        while 429 not in seen:
            assert time.monotonic() < deadline
            time.sleep(0.02)
        statuses = [nginx.ask("POST", f"{PATH}/{uuid.uuid4()}", BODY, source="127.0.0.21")[0].status for _ in range(20)]
    finally:
        over.set()
        for thread in threads:
            thread.join()
    assert set(statuses) == {200}
    assert seen == {400, 429}  # ingest's answer to invalid pings, and nginx's to the flood


def test_numbered_versions_are_cached_and_the_latest_is_revalidated(nginx: Nginx, ingest: IngestServer) -> None:
    first, document = nginx.ask("GET", f"/models/{STUDY}/main/0.json", source="127.0.0.30")
    again, same = nginx.ask("GET", f"/models/{STUDY}/main/0.json", source="127.0.0.30")
    assert (first.status, again.status) == (200, 200)
    assert again.headers["X-Cache"] == "HIT"
    assert again.headers["Cache-Control"] == "public, max-age=31536000, immutable"
    assert same == document
    answer, latest = nginx.ask("GET", f"/models/{STUDY}/main/latest.json", source="127.0.0.30")
    assert answer.headers["Cache-Control"] == "no-cache"
    tag = answer.headers["ETag"]
    answer, body = nginx.ask("GET", f"/models/{STUDY}/main/latest.json", source="127.0.0.30", If_None_Match=tag)
    assert (answer.status, body) == (304, b"")
    store = open_store(ingest.landing.parent / "store")
    version = after(store.head(STUDY, "main"))
    store.publish(version)
    answer, body = nginx.ask("GET", f"/models/{STUDY}/main/latest.json", source="127.0.0.30", If_None_Match=tag)
    assert (answer.status, json.loads(body)["iteration"]) == (200, version.iteration)
    assert json.loads(latest)["iteration"] == version.iteration - 1


def test_the_senders_address_reaches_nothing_that_is_kept(nginx: Nginx, ingest: IngestServer) -> None:
    source, claimed = "127.0.0.77", "203.0.113.99"
    headers = {"X_Forwarded_For": claimed, "X_Real_IP": claimed, "Forwarded": f"for={claimed}"}
    document = str(uuid.uuid4())
    for path, body, status in ((f"{PATH}/{document}", BODY, 200), (f"{PATH}/{uuid.uuid4()}", b"{}", 400)):
        assert nginx.ask("POST", path, body, source=source, **headers)[0].status == status
    for size in (Limits().batch.sent + 1, 10**12):  # rejected by nginx itself, which might log it
        assert nginx.ask("POST", PATH, None, source=source, Content_Length=str(size))[0].status == 413
    ingest.flush()
    assert document in landed_ids(ingest.landing)
    kept = [path for path in (*ingest.landing.parent.rglob("*"), *nginx.folder.rglob("*")) if path.is_file()]
    assert any(path.suffix == ".parquet" for path in kept)
    for path in kept:
        data = path.read_bytes()
        assert source.encode() not in data, path
        assert claimed.encode() not in data, path
    for path in landed_files(ingest.landing / f"study={STUDY}" / "line=main" / "iteration=0"):
        rows = str(pq.ParquetFile(path).read().to_pylist())
        assert source not in rows
        assert claimed not in rows


def test_ingest_is_not_even_told_the_address(tmp_path: Path) -> None:
    told: list[str] = []

    class Told(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            told.append(str(self.headers))
            self.send_response(200)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Told)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    claimed = "203.0.113.99"
    try:
        with nginx_before([server.server_address[1]], tmp_path / "nginx") as nginx:
            headers = {"X_Forwarded_For": claimed, "X_Real_IP": claimed, "Forwarded": f"for={claimed}", "Cookie": "a=b"}
            assert nginx.ask("GET", "/models/study/study.json", source="127.0.0.77", **headers)[0].status == 200
    finally:
        server.shutdown()
        server.server_close()
    [seen] = told
    assert "127.0.0.77" not in seen
    assert claimed not in seen
    assert "a=b" not in seen
    assert "X-Forwarded-Proto: https" in seen


def test_networks_are_told_apart_behind_it(tmp_path: Path) -> None:
    """With --prefix-rate, a network that floods doesn't delay others."""
    make_store(tmp_path / "store")
    options = ("--workers", "1", "--prefix-rate", "1", "--trusted-proxy", "127.0.0.1")
    with (
        running_ingest(tmp_path / "store", tmp_path / "landing", *options) as server,
        nginx_before([server.port], tmp_path / "nginx") as nginx,
    ):

        def ask(source: str) -> int:
            claimed = {"X_Forwarded_For": "198.51.100.7"}
            return nginx.ask("POST", f"{PATH}/{uuid.uuid4()}", BODY, source=source, **claimed)[0].status

        assert {ask("127.0.5.9") for _ in range(60)} == {200, 429}
        assert [ask("127.0.6.9") for _ in range(20)] == [200] * 20


def test_an_ingest_that_is_away_is_told_as_something_to_try_again(tmp_path: Path) -> None:
    with nginx_before([free_port()], tmp_path / "nginx") as nginx:
        answer, body = nginx.ask("POST", f"{PATH}/{uuid.uuid4()}", BODY)
        assert answer.status == 503
        assert answer.headers["Retry-After"] == "10"
        assert answer.headers.get_all("Access-Control-Allow-Origin") == ["*"]
        assert "send it again later" in json.loads(body)["error"]
