"""Two versions of fedping at the same time, over one store and one landing folder: no ping is lost or counted twice.

The older ones are commits of this repository, from before stores in buckets, changing settings, JSON logs and metrics
of rounds; `tests/server_jobs/test_written_by_older.py` tests a part of this without the history.
"""

import contextlib
import http.client
import json
import random
import subprocess
import sys
import threading
import urllib.error
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest
from msgspec.structs import replace

from fedping.model_store import open_store
from fedping.server_jobs.optimize import first_versions
from fedping.server_jobs.round import recompute
from fedping.server_jobs.round.engine import NumpyEngine
from fedping.server_jobs.warm_start import warm_from
from tests.support.ingest_app import PATH, STUDY, ingest_study, landed_ids
from tests.support.ingest_server import IngestServer
from tests.support.older import ROOT, Older, older_program
from tests.support.pings import ping_json
from tests.support.processes import wait_until
from tests.support.rounds import WHEN, store_with

OLDER = {
    "numbers": "757cb5b452e840d13cd931bd299ebd2fbe20feee",  # the first whose segments say the format of their pings
    "shares": "9ac16698c5c0551bad42ae3f7c2f2aeef1e0fc1a",  # a day later, after two-server lines were added
}
pytestmark = [pytest.mark.long, pytest.mark.timeout(1200)]

CLIENTS, MOST_TRIES = 4, 2_000


@pytest.fixture(scope="module", params=OLDER)
def older(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Older:
    return older_program(OLDER[request.param], tmp_path_factory.mktemp("older") / "fedping")


class Senders:
    """Clients that send each document to any host until it is answered with 200, and sometimes once more.

    Args:
        hosts: the hosts that may answer; the test decides which run at a moment.
        version: the model version that the pings name.
    """

    def __init__(self, hosts: list[IngestServer], version: int) -> None:
        self.answered: list[str] = []
        self.repeated = 0
        self.refused: list[tuple[int, bytes]] = []
        self._hosts, self._version = hosts, version
        self._over = threading.Event()
        self._threads = [threading.Thread(target=self._send, args=(seed,)) for seed in range(CLIENTS)]
        for thread in self._threads:
            thread.start()

    def _send(self, seed: int) -> None:
        draw = random.Random(seed)
        while not self._over.is_set():
            document = str(uuid.uuid4())
            ping = {**ping_json(model_version=self._version), "clientId": str(uuid.uuid4())}
            body = json.dumps(ping).encode()
            for _ in range(MOST_TRIES):
                if self._is_taken(draw.choice(self._hosts), document, body):
                    break
            else:
                raise AssertionError("nobody takes it")
            self.answered.append(document)
            if draw.random() < 0.5:  # as if the answer had been lost; the same host may be asked again, or another
                self.repeated += self._is_taken(draw.choice(self._hosts), document, body)

    def _is_taken(self, host: IngestServer, document: str, body: bytes) -> bool:
        with contextlib.suppress(OSError, http.client.HTTPException):
            connection = http.client.HTTPConnection("127.0.0.1", host.port, timeout=120)
            with contextlib.closing(connection):
                connection.request("POST", f"{PATH}/{document}", body, {"Content-Type": "application/json"})
                answer = connection.getresponse()
                said = answer.read()
            if answer.status not in (200, 503):
                self.refused.append((answer.status, said))
            return answer.status == 200
        self._over.wait(0.01)  # this one is down
        return False

    def some_more(self) -> None:
        """Wait until some more pings were answered."""
        before = len(self.answered)
        assert wait_until(lambda: self.refused or len(self.answered) >= before + 15)
        assert not self.refused

    def stop(self) -> None:
        self._over.set()
        for thread in self._threads:
            thread.join()


@contextlib.contextmanager
def sending(hosts: list[IngestServer], version: int) -> Iterator[Senders]:
    senders = Senders(hosts, version)
    try:
        yield senders
    finally:
        senders.stop()
    assert not senders.refused
    assert senders.repeated > 0


class Place:
    """A store, a landing folder, and hosts with separate journals, on which either program runs."""

    def __init__(self, folder: Path, older: Older) -> None:
        self.store, self.landing = folder / "store", folder / "landing"
        self.older, self._folder = older, folder

    def host(self, name: str, *, older: bool) -> IngestServer:
        """Return a host's ingest, not started yet; both programs use the host's journal."""
        journal = str(self._folder / f"journal-{name}")
        program = self.older.folder if older else ROOT
        return IngestServer(self.store, self.landing, "--workers", "1", "--journal", journal, cwd=program)

    def typed(self, *words: object, older: bool) -> subprocess.CompletedProcess[str]:
        """Run a command of one of the programs."""
        command = [sys.executable, "-m", "fedping", *map(str, words), "--store", str(self.store)]
        program = self.older.folder if older else ROOT
        return subprocess.run(command, cwd=program, capture_output=True, encoding="utf-8")

    def round(self, *, older: bool) -> dict[str, int]:
        """Run a round of one of the programs, and return the outcomes of the pings."""
        done = self.typed("round", STUDY, "--engine", "numpy", "--landing", self.landing, "--json", older=older)
        assert done.returncode == 0, done.stdout + done.stderr
        made = json.loads(done.stdout)
        assert made["status"] == "published", made
        counts: dict[str, int] = made["counts"]
        return counts

    def has_counted_each_once(self, senders: Senders, version: int, counts: dict[str, int]) -> None:
        """Check that all answered pings have landed, and count once even if they landed repeatedly."""
        landed = landed_ids(self.landing, version)
        assert set(senders.answered) <= set(landed)
        assert counts["used"] == len(set(landed))
        assert counts["duplicate"] == len(landed) - len(set(landed))


@pytest.fixture
def place(tmp_path: Path, older: Older) -> Place:
    store_with(tmp_path / "store", ingest_study())
    return Place(tmp_path, older)


def test_an_upgrade_host_by_host_and_back_loses_nothing_and_counts_nothing_twice(place: Place) -> None:
    old = {name: place.host(name, older=True) for name in "ab"}
    new = {name: place.host(name, older=False) for name in "ab"}
    with contextlib.ExitStack() as stack:

        def start(host: IngestServer) -> None:
            host.start()
            stack.callback(lambda: host.stop() if host.is_up else 0)

        start(old["a"])
        start(old["b"])
        with sending([*old.values(), *new.values()], version=0) as senders:
            senders.some_more()
            assert old["a"].stop() == 0
            start(new["a"])  # old and new side by side
            senders.some_more()
            old["b"].kill()
            start(new["b"])  # it finds the older one's accepted pings that haven't landed
            senders.some_more()
            new["b"].kill()
            start(old["b"])  # back, and it finds the new one's accepted pings
            senders.some_more()
            assert old["b"].stop() == 0
            start(new["b"])
            senders.some_more()
        for host in new.values():
            assert host.flush()["missing"] == 0
        place.has_counted_each_once(senders, 0, place.round(older=True))

        assert new["a"].stop() == 0
        start(old["a"])
        with sending([old["a"], new["b"]], version=1) as senders:
            senders.some_more()
        assert old["a"].flush()["missing"] == new["b"].flush()["missing"] == 0
        place.has_counted_each_once(senders, 1, place.round(older=False))

    store = open_store(place.store)
    for number in (0, 1, 2):
        assert recompute(store, place.landing, STUDY, "main", number, NumpyEngine()).identical
        done = place.typed("store", "recompute", STUDY, "main", number, "--landing", place.landing, older=True)
        assert "is bit-identical" in done.stdout, done.stdout + done.stderr


def test_what_the_older_one_cannot_read_it_names_and_does_everything_else(place: Place, tmp_path: Path) -> None:
    store = open_store(place.store)
    warm = replace(store.study(STUDY), name="warm")
    begun = warm_from(store, warm.line("main"), STUDY, "main", None, {})
    firsts = first_versions(warm, created=WHEN, code_version="t", warm={"main": (begun.weights, begun.origin)})
    store.create_study(warm, firsts)
    done = place.typed("round", "warm", "--engine", "numpy", "--landing", tmp_path / "landing", older=True)
    assert (done.returncode, done.stdout) == (1, "")
    assert "has format 3, and fedping 0.1.0 reads up to format 2" in done.stderr
    assert "upgrade fedping here" in done.stderr
    assert "Traceback" not in done.stderr

    host = place.host("a", older=True)
    host.start(well=False)
    try:
        with sending([host], version=0) as senders:
            senders.some_more()
        host.flush()
        with pytest.raises(urllib.error.HTTPError) as told:
            host.operator_asks("/__heartbeat__")
        assert "has format 3" in json.loads(told.value.read())["checks"]["store"]
    finally:
        host.stop()
    place.has_counted_each_once(senders, 0, place.round(older=True))
