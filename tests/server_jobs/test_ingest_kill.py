"""kill -9 at random moments under load: after the next start, each ping answered with 200 is in Parquet once."""

import contextlib
import http.client
import json
import os
import signal
import threading
import time
import uuid
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from tests.support.effort import few_or_all
from tests.support.ingest_app import PATH, landed_ids, make_store
from tests.support.ingest_server import IngestServer
from tests.support.pings import ping_json

TARGETS = ["everything", "everything", "a worker", "the compactor", "the supervisor", "everything"]
KILLS = few_or_all(len(TARGETS), 4 * len(TARGETS))
SENDERS = 8
BODY = json.dumps(ping_json())


class Load:
    """Clients that send pings, one at a time and in small batches, and record those answered with 200.

    After the restart, an unanswered ping is sent again under the same document id, as a real client does.
    """

    def __init__(self, port: int, seed: int) -> None:
        self.answered: list[str] = []
        self.retried: set[str] = set()
        self.unanswered: list[str] = []
        self.refused: list[int] = []
        self._port = port
        self._over = threading.Event()
        seeds = np.random.SeedSequence(seed).spawn(SENDERS)
        self._threads = [threading.Thread(target=self._send, args=(s, k % 4 == 3)) for k, s in enumerate(seeds)]
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        self._over.set()
        for thread in self._threads:
            thread.join()

    def _send(self, seed: np.random.SeedSequence, in_batches: bool) -> None:
        rng = np.random.default_rng(seed)
        connection = http.client.HTTPConnection("127.0.0.1", self._port, timeout=240)
        again: list[str] = []
        while not self._over.is_set():
            ids = again or [str(uuid.UUID(bytes=rng.bytes(16), version=4)) for _ in range(10 if in_batches else 1)]
            again = self._send_once(connection, ids)
            self.retried.update(again)
        self.unanswered += again

    def _send_once(self, connection: http.client.HTTPConnection, ids: list[str]) -> list[str]:
        """Send one request; return the ids to send again."""
        one = len(ids) == 1
        path = f"{PATH}/{ids[0]}" if one else PATH
        body = BODY if one else "\n".join(f'{{"documentId":"{i}",{BODY[1:]}' for i in ids)
        try:
            connection.request("POST", path, body, {"Content-Type": "application/json"})
            answer = connection.getresponse()
            answer.read()
        except (OSError, http.client.HTTPException):
            connection.close()
            time.sleep(0.02)
            return ids
        if answer.status != 200:
            self.refused.append(answer.status)
            return ids
        self.answered.extend(ids)
        return []


def die(server: IngestServer, what: str, rng: np.random.Generator) -> bool:
    """Kill the whole ingest, its supervisor, a worker or the compactor; return whether it must be restarted."""
    if what == "everything":
        server.kill()
        return True
    if what == "the supervisor":
        server.kill_supervisor()
        return True
    pids = server.workers() if what == "a worker" else [server.compactor()]
    if pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(int(rng.choice(pids)), signal.SIGKILL)
    return False


@pytest.mark.long
@pytest.mark.thorough
@pytest.mark.parametrize("seed", [2018])
def test_nothing_that_was_answered_is_lost_or_doubled(tmp_path: Path, seed: int) -> None:
    make_store(tmp_path / "store")
    landing = tmp_path / "landing"
    server = IngestServer(tmp_path / "store", landing, "--workers", "2", "--threads", "16", "--compact-every", "0.1")
    rng = np.random.default_rng(seed)
    server.start()
    load = Load(server.port, seed)
    try:
        for kill in range(KILLS):
            time.sleep(float(rng.uniform(0.05, 0.9)))
            if die(server, TARGETS[kill % len(TARGETS)], rng):
                server.start()
    finally:
        load.stop()
    assert server.flush()["flushed"]
    assert server.operator_asks("/__status__")["pending"] == 0
    assert server.stop() == 0
    landed = landed_ids(landing)
    assert len(load.answered) > 40 * KILLS
    assert len(load.retried) >= KILLS / 2, "the kills did not interrupt anybody"
    assert not load.refused
    assert set(load.answered) <= set(landed) <= set(load.answered) | set(load.unanswered)
    assert not [document for document, times in Counter(landed).items() if times > 1]
    print(f"{KILLS} kills, {len(load.answered)} pings answered, {len(load.retried)} of them retried")
    assert not list((landing / ".journal").glob("*.open"))
    assert not list((landing / ".journal").glob("*.closed"))
    set_aside = [piece.name for piece in (landing / ".journal" / "quarantine").glob("*")]
    assert [name for name in set_aside if not name.endswith(".torn")] == [], "what may have been answered did not land"


@pytest.mark.thorough
@pytest.mark.parametrize("seed", range(few_or_all(1, 8)))
def test_what_was_sent_once_lands_once_after_a_kill(tmp_path: Path, seed: int) -> None:
    """Without retries no duplicates can occur: everything answered lands exactly once."""
    make_store(tmp_path / "store")
    landing = tmp_path / "landing"
    server = IngestServer(tmp_path / "store", landing, "--workers", "2", "--compact-every", "0.1")
    rng = np.random.default_rng(seed)
    sent: list[str] = []
    answered: list[str] = []
    for _ in range(3):
        server.start()
        deadline = time.monotonic() + float(rng.uniform(0.2, 0.6))
        connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=240)
        while time.monotonic() < deadline:
            sent.append(str(uuid.UUID(bytes=rng.bytes(16), version=4)))
            connection.request("POST", f"{PATH}/{sent[-1]}", BODY)
            answer = connection.getresponse()
            answer.read()
            assert answer.status == 200
            answered.append(sent[-1])
        server.kill()
    server.start()
    assert server.flush()["flushed"]
    assert server.stop() == 0
    assert landed_ids(landing) == sorted(answered)
