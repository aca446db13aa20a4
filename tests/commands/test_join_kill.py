"""`fedping join`, killed between storing and landing a ping, counts once in a real round."""

import contextlib
import http.client
import json
import os
import signal
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from queue import SimpleQueue

import pytest
from msgspec.structs import replace

from fedping.main import main
from fedping.model_store.store import open_store
from tests.support.effort import few_or_all
from tests.support.ingest_server import running_ingest
from tests.support.institutions import ARMS, OPEN, STUDY, agreed, joining, tables, tumours
from tests.support.rounds import store_with


class Between:
    """A proxy in front of ingest that kills a ping's sender before forwarding or after landing it; some pings pass."""

    def __init__(self, port: int) -> None:
        self.port = port
        self.url = ""
        self.victims: SimpleQueue[int] = SimpleQueue()
        self.goes_on = False
        self.passes = 0


class _Handler(BaseHTTPRequestHandler):
    between: Between

    def do_GET(self) -> None:
        self._answer(*self._asked("GET", None))

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        if self.between.passes:
            self.between.passes -= 1
            self._answer(*self._asked("POST", body))
            return
        if self.between.goes_on:
            assert self._asked("POST", body)[0] == 200
        os.kill(self.between.victims.get(timeout=60), signal.SIGKILL)

    def _asked(self, method: str, body: bytes | None) -> tuple[int, bytes]:
        asking = http.client.HTTPConnection("127.0.0.1", self.between.port, timeout=60)
        with contextlib.closing(asking):
            asking.request(method, self.path, body, {"Content-Type": "application/json"})
            answer = asking.getresponse()
            return answer.status, answer.read()

    def _answer(self, status: int, body: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        pass


@contextlib.contextmanager
def proxy(port: int) -> Iterator[Between]:
    between = Between(port)
    server = ThreadingHTTPServer(("127.0.0.1", 0), type("Handler", (_Handler,), {"between": between}))
    server.daemon_threads = True
    between.url = f"http://127.0.0.1:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    try:
        yield between
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def _outcomes(state: Path) -> list[str]:
    return [json.loads(line)["outcome"] for line in (state / "sent.ndjson").read_text().splitlines()]


def test_killed_before_and_after_its_ping_landed_it_counts_once(tmp_path: Path) -> None:
    store, landing = tmp_path / "store", tmp_path / "landing"
    store_with(store, tumours(min_clients=1))
    options = ["--data", tables(tmp_path)[0], "--columns", agreed(tmp_path / "columns.toml"), "--yes", "--rounds", "1"]
    options += ["--state", tmp_path / "state", "--every", "0.1s"]
    with running_ingest(store, landing, "--workers", "1") as server, proxy(server.port) as between:
        for version, landed in enumerate((False, True)):
            between.goes_on = landed
            process = joining(between.url, *options)
            between.victims.put(process.pid)
            process.communicate(timeout=60)
            assert process.returncode == -signal.SIGKILL
            assert (tmp_path / "state" / "waiting.json").exists()
            assert main(["join", server.url, STUDY, OPEN, *map(str, options)]) == 0
            server.flush()
            assert main(["round", STUDY, "--engine", "numpy", "--store", str(store), "--landing", str(landing)]) == 0
            lineage = open_store(store).version(STUDY, "main", version + 1).lineage
            assert lineage is not None
            assert (lineage.counts["used"], lineage.arms["hospitals"].examples) == (1, 190)
    assert _outcomes(tmp_path / "state") == ["unanswered", "accepted"] * 2


KILLS = [(True, 0), (False, 1), (False, 0), (True, 1)][: few_or_all(2, 4)]
"""Whether the ping at which it is killed has landed, and the number of pings before."""


@pytest.mark.thorough
def test_killed_at_either_of_its_two_pings_each_counts_once(tmp_path: Path) -> None:
    """The held-out rows' ping is first; the process is killed at either ping, before or after it has landed."""
    store, landing = tmp_path / "store", tmp_path / "landing"
    store_with(store, replace(tumours(arms=ARMS, min_clients=1), enrolment="hash"))
    options = ["--data", tables(tmp_path)[0], "--columns", agreed(tmp_path / "columns.toml"), "--yes", "--rounds", "1"]
    options += ["--state", tmp_path / "state", "--every", "0.1s", "--hold-out", "0.2"]
    with running_ingest(store, landing, "--workers", "1") as server, proxy(server.port) as between:
        for version, (landed, passes) in enumerate(KILLS):
            between.goes_on, between.passes = landed, passes
            process = joining(between.url, *options)
            between.victims.put(process.pid)
            process.communicate(timeout=60)
            assert process.returncode == -signal.SIGKILL
            assert main(["join", server.url, STUDY, OPEN, *map(str, options)]) == 0
            server.flush()
            assert main(["round", STUDY, "--engine", "numpy", "--store", str(store), "--landing", str(landing)]) == 0
            lineage = open_store(store).version(STUDY, "main", version + 1).lineage
            assert lineage is not None
            assert (lineage.counts["used"], lineage.counts["duplicate"]) == (1, 0)
            assert {name: arm.pings for name, arm in lineage.arms.items()} == {"hospitals": 1, "held-out": 1}
    for folder in (tmp_path / "state", tmp_path / "state" / "held-out"):
        assert _outcomes(folder) == ["unanswered", "accepted"] * len(KILLS)
