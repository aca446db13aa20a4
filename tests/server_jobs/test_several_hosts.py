"""Three ingests with one store and one landing folder, behind a real nginx, during restarts and kills."""

import contextlib
import http.client
import itertools
import json
import threading
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from fedping.model_store import open_store
from fedping.protocol.location import Place, child, place_of
from fedping.server_jobs.round import RoundOptions, run_round
from fedping.server_jobs.round.engine import NumpyEngine
from tests.support.ingest_app import PATH, STUDY, ingest_study, landed_ids
from tests.support.ingest_server import IngestServer
from tests.support.nginx import Nginx, nginx_before
from tests.support.object_server import bucket_of, object_server
from tests.support.pings import ping_json
from tests.support.processes import wait_until
from tests.support.rounds import WHEN, store_with

CLIENTS, MOST_TRIES = 6, 2_000


class Senders:
    """Clients that post documents in turn, each until it is answered with 200, until they are stopped."""

    def __init__(self, nginx: Nginx) -> None:
        self.answered: list[str] = []
        self.tries = 0
        self.refused: list[tuple[int, bytes]] = []
        self._nginx = nginx
        self._over = threading.Event()
        # nginx lets an address send so many a second; each request is of another.
        self._addresses = itertools.cycle(f"127.0.{a}.{b}" for a in range(1, 100) for b in range(1, 250))
        self._threads = [threading.Thread(target=self._send) for _ in range(CLIENTS)]
        for thread in self._threads:
            thread.start()

    def _send(self) -> None:
        while not self._over.is_set():
            document, client = str(uuid.uuid4()), str(uuid.uuid4())
            body = json.dumps({**ping_json(), "clientId": client}).encode()
            for _ in range(MOST_TRIES):
                self.tries += 1
                if self._is_taken(f"{PATH}/{document}", body):
                    self.answered.append(document)
                    break

    def _is_taken(self, path: str, body: bytes) -> bool:
        with contextlib.suppress(OSError, http.client.HTTPException):
            answer, said = self._nginx.ask("POST", path, body, next(self._addresses), Content_Type="application/json")
            if answer.status not in (200, 429, 502, 503, 504):
                self.refused.append((answer.status, said))
            return answer.status == 200
        return False

    def some_more(self) -> None:
        """Wait until some more pings were answered."""
        before = len(self.answered)
        assert wait_until(lambda: self.refused or len(self.answered) >= before + 10)
        assert not self.refused

    def stop(self) -> None:
        """Stop each client after its current document."""
        self._over.set()
        for thread in self._threads:
            thread.join()


@pytest.fixture(params=["folder", pytest.param("bucket", marks=pytest.mark.long)])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Place]:
    """Return the place of store and landing folder: a shared disk, or a bucket."""
    if request.param == "folder":
        yield tmp_path
        return
    with object_server() as endpoint, bucket_of(endpoint) as bucket:
        yield place_of(bucket.url)


def test_rolling_restarts_and_a_kill_behind_a_balancer_lose_nothing_and_count_nothing_twice(
    tmp_path: Path, place: Place
) -> None:
    store, landing = child(place, "store"), child(place, "landing")
    store_with(store, ingest_study())
    hosts = [IngestServer(store, landing, "--workers", "1", "--journal", str(tmp_path / f"host{n}")) for n in range(3)]
    with contextlib.ExitStack() as running:
        for host in hosts:
            host.start()
            running.callback(host.stop)
        nginx = running.enter_context(nginx_before([host.port for host in hosts], tmp_path / "nginx"))
        senders = Senders(nginx)
        running.callback(senders.stop)
        for host in hosts:
            senders.some_more()
            assert host.stop() == 0
            senders.some_more()
            host.start()
        hosts[1].kill()
        senders.some_more()
        hosts[1].start()
        senders.some_more()
        senders.stop()
        for host in hosts:
            host.flush()
    assert not senders.refused
    landed = landed_ids(landing)
    assert set(senders.answered) <= set(landed)
    made = run_round(
        open_store(store), landing, STUDY, "main", NumpyEngine(), RoundOptions(clock=lambda: WHEN, code_version="test")
    )
    counts = made.counts
    assert counts["used"] == len(set(landed))
    assert sum(counts.values()) == len(landed)
