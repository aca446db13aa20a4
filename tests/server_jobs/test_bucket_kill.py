"""Random kill -9 of ingest, its compactor and workers, rounds and the schedule, over a faulty bucket.

Store and landing folder are in the bucket, the journal is on disk. Clients fetch the model and post until they get
200. In the end each answered ping is in exactly one version, and every version was published once.
"""

import contextlib
import http.client
import itertools
import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
import uuid
from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import msgspec
import pytest

from fedping.main import main
from fedping.model_store import ModelStore
from fedping.protocol.landed_file import open_landed
from fedping.protocol.landing import open_landing
from fedping.protocol.location import key_in, place_of
from fedping.protocol.object_store import PATIENCE_VARIABLE
from fedping.protocol.pipeline import Pipeline, Staleness
from fedping.protocol.study import Study
from tests.support import forked
from tests.support.ingest_app import PATH, STUDY, ingest_study
from tests.support.ingest_server import IngestServer
from tests.support.object_server import Bucket, bucket_of
from tests.support.pings import ping_json
from tests.support.processes import wait_until
from tests.support.rounds import store_with

ROOT = Path(__file__).parents[2]
TARGETS = ("ingest", "compactor", "worker", "round", "schedule")
KILLS = 100
"""Number of kills with each of two seeds."""

FAULTS = ("slow_down", "error", "throttled", "lost", "cut", "reset")
SHARES = (0.05, 0.15)
"""Minimum and maximum share of failing requests."""

MOST_REQUESTS = 80
"""Maximum number of requests to the bucket before a kill; a round makes about 80."""

LONG = 900.0
"""Timeout in seconds for progress, on a busy machine."""

CLIENTS = 4
AGAIN = 0.1
"""Share of answered pings that are sent again."""


@pytest.fixture
def bucket(object_servers: Callable[[str], str]) -> Iterator[Bucket]:
    with bucket_of(object_servers("s3"), "s3") as made:
        yield made


def study() -> Study:
    """Return a study in which all pings count, also very late ones."""
    [line] = ingest_study().lines
    pipeline = Pipeline(min_clients=1, staleness=Staleness(most=10))
    return msgspec.structs.replace(ingest_study(), lines=(msgspec.structs.replace(line, pipeline=pipeline),))


class Fleet:
    """Clients that fetch the model and post its pings, each until it is answered with 200."""

    def __init__(self, port: int, seed: int) -> None:
        self.answered: list[str] = []
        self.retries = 0
        self.refused: Counter[int] = Counter()
        self.models: dict[int, set[bytes]] = {}
        self._port = port
        self._over = threading.Event()
        draws = [random.Random(f"{seed} {n}") for n in range(CLIENTS)]
        self._threads = [threading.Thread(target=self._run, args=(each,), daemon=True) for each in draws]
        for thread in self._threads:
            thread.start()

    @property
    def newest(self) -> int:
        """The newest version that any client has fetched; -1 before the first."""
        return max(list(self.models), default=-1)

    def has_sent_more(self) -> bool:
        """Return whether another ping is answered within the timeout."""
        before = len(self.answered)
        return wait_until(lambda: len(self.answered) > before, LONG)

    def has_fetched_another(self) -> bool:
        """Return whether a newer version is fetched within the timeout."""
        before = self.newest
        return wait_until(lambda: self.newest > before, LONG)

    def stop(self) -> None:
        """Stop each client after its current request."""
        self._over.set()
        for thread in self._threads:
            thread.join()

    def _run(self, draws: random.Random) -> None:
        lately: deque[tuple[str, bytes]] = deque(maxlen=20)
        while not self._over.is_set():
            model = self._until_answered("GET", f"/models/{STUDY}/main/latest.json")
            iteration = json.loads(model)["iteration"]
            self.models.setdefault(iteration, set()).add(model)
            client = str(uuid.UUID(bytes=draws.randbytes(16), version=4))
            update = [draws.uniform(-1, 1) for _ in range(22)]
            body = {**ping_json(model_version=iteration, update=update), "clientId": client}
            lately.append((str(uuid.UUID(bytes=draws.randbytes(16), version=4)), json.dumps(body).encode()))
            self._send(*lately[-1])
            if draws.random() < AGAIN:
                self._send(*draws.choice(lately))
            time.sleep(0.05)

    def _send(self, document: str, body: bytes) -> None:
        self._until_answered("POST", f"{PATH}/{document}", body)
        self.answered.append(document)

    def _until_answered(self, method: str, path: str, body: bytes | None = None) -> bytes:
        while True:
            with contextlib.suppress(OSError, http.client.HTTPException):
                connection = http.client.HTTPConnection("127.0.0.1", self._port, timeout=240)
                with contextlib.closing(connection):
                    connection.request(method, path, body, {"Content-Type": "application/json"})
                    answer = connection.getresponse()
                    said = answer.read()
                if answer.status == 200:
                    return said
                self.refused[answer.status] += 1
            self.retries += 1
            time.sleep(0.05)


class Work:
    """All processes over a bucket; each can be killed and restarted by the same command."""

    def __init__(self, folder: Path, bucket: Bucket, draws: random.Random) -> None:
        self._bucket, self._draws = bucket, draws
        self.logs = folder / "logs"
        self.logs.mkdir()
        self.store, self.landing = f"{bucket.url}/models", f"{bucket.url}/landing"
        said = ("--workers", "2", "--journal", str(folder / "journal"), "--compact-every", "1")
        says = (self.logs / "ingest.out", self.logs / "ingest.err")
        self.ingest = IngestServer(self.store, self.landing, *said, says=says)  # type: ignore[arg-type]
        self.ingest.start()
        self.schedule = self._start("schedule", "--every", "1s", "--now")

    def _start(self, command: str, *more: str) -> subprocess.Popen[bytes]:
        said = [command, STUDY, *more, "--engine", "numpy", "--store", self.store, "--landing", self.landing]
        with open(self.logs / f"{command}.out", "ab") as out, open(self.logs / f"{command}.err", "ab") as err:
            return forked.Popen([sys.executable, "-m", "fedping", *said], cwd=ROOT, stdout=out, stderr=err)

    def round(self) -> int:
        """Run a round to its end, and return its exit code."""
        return self._start("round").wait(240)

    def _requests(self) -> int:
        seen = self._bucket.seen()
        return sum(seen.values()) - seen.get("failed", 0)

    def _in_the_middle(self, of: subprocess.Popen[bytes] | None = None) -> None:
        """Wait for a number of requests to the bucket, or until a process has ended."""
        until = self._requests() + self._draws.randint(1, MOST_REQUESTS)
        assert wait_until(lambda: self._requests() >= until or (of is not None and of.poll() is not None))

    def kill(self, target: str) -> bool:
        """Kill a part during its work and restart it; return whether it was still running."""
        if target == "round":
            process = self._start("round")
            self._in_the_middle(process)
            process.kill()
            return process.wait() == -signal.SIGKILL
        self._in_the_middle()
        if target == "schedule":
            self.schedule.kill()
            assert self.schedule.wait() == -signal.SIGKILL, "the schedule has ended by itself"
            self.schedule = self._start("schedule", "--every", "1s", "--now")
        elif target == "ingest":
            self.ingest.kill()
            self.ingest.start()
        else:
            pids = [self.ingest.compactor()] if target == "compactor" else self.ingest.workers()
            if not pids:  # just being started again
                return False
            with contextlib.suppress(ProcessLookupError):
                os.kill(self._draws.choice(pids), signal.SIGKILL)
        return True

    def misbehave(self) -> None:
        """Let some requests fail from now on, in random ways."""
        self._bucket.faults(
            self._draws.choice(FAULTS), share=self._draws.uniform(*SHARES), seed=self._draws.randrange(2**31)
        )

    def end(self) -> None:
        """End all faults, stop everything normally, and let a round count the remaining pings."""
        self._bucket.well()
        assert self.ingest.flush()["flushed"]
        assert self.ingest.stop() == 0
        self.schedule.terminate()
        assert self.schedule.wait(240) == 0
        assert self.round() == 0

    def give_up(self) -> None:
        """Kill all processes after a failed test."""
        if self.schedule.poll() is None:
            self.schedule.kill()
        with contextlib.suppress(AssertionError):  # it was just being started
            self.ingest.kill()


def documents_in(landing: str) -> Mapping[str, list[bytes]]:
    """Return the document ids of each landed file, by its path relative to the landing folder."""
    place = place_of(landing)
    return {
        key_in(place, file): [
            document for batch in open_landed(file).batches(["document_id"]) for document in batch.column(0).to_pylist()
        ]
        for file in open_landing(place).all_files()
    }


def every_ping_is_in_one_version(store: ModelStore, landed: Mapping[str, list[bytes]]) -> None:
    """Check that each version's counts match the files in its lineage, and that each ping is in one version."""
    known: set[bytes] = set()
    read: set[str] = set()
    for number in store.iterations(STUDY, "main")[1:]:
        lineage = store.version(STUDY, "main", number).lineage
        paths = {file.path for file in lineage.inputs}
        assert not paths & read, f"version {number} has read a file again"
        new = {document for path in paths for document in landed[path]} - known
        rows = sum(len(landed[path]) for path in paths)
        assert lineage.counts["used"] == len(new), number
        assert lineage.counts["duplicate"] == rows - len(new), number
        known |= new
        read |= paths
    missed = {document for path in landed.keys() - read for document in landed[path]} - known
    assert not missed, f"no version has counted {len(missed)} pings that have landed"


def every_version_was_published_once(store: ModelStore, fleet: Fleet) -> None:
    numbers = store.iterations(STUDY, "main")
    assert numbers == list(range(len(numbers)))
    for before, number in itertools.pairwise(numbers):
        parent, version = store.version(STUDY, "main", before), store.version(STUDY, "main", number)
        assert (version.parent, version.parent_digest) == (before, parent.digest)
    for number, bodies in fleet.models.items():
        assert bodies == {store.public.document(STUDY, "main", number)}, f"version {number} was another for a while"


@pytest.mark.long
@pytest.mark.timeout(14_400)
@pytest.mark.parametrize("seed", range(2))
def test_kills_of_everything_over_a_misbehaving_bucket_lose_nothing_and_count_nothing_twice(
    seed: int, tmp_path: Path, bucket: Bucket, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv(PATIENCE_VARIABLE, "10")
    draws, kills, began = random.Random(seed), Counter[str](), time.monotonic()
    store = store_with(place_of(f"{bucket.url}/models"), study())
    work = Work(tmp_path, bucket, draws)
    fleet = Fleet(work.ingest.port, seed)
    try:
        while kills.total() < KILLS:
            target = TARGETS[kills.total() % len(TARGETS)]
            work.misbehave()
            kills[target] += work.kill(target)
            assert fleet.has_sent_more(), "no ping is answered any more"
            if target == TARGETS[-1]:
                assert fleet.has_fetched_another(), "no version is published any more"
        bucket.well()
        fleet.stop()
        work.end()
    except BaseException:
        work.give_up()
        raise
    minutes = (time.monotonic() - began) / 60

    landed = documents_in(work.landing)
    found = [str(uuid.UUID(bytes=document)) for documents in landed.values() for document in documents]
    assert set(found) == set(fleet.answered)
    every_version_was_published_once(store, fleet)
    every_ping_is_in_one_version(store, landed)
    left = [file.name for file in (tmp_path / "journal").rglob("*") if file.suffix in (".open", ".closed", ".bad")]
    assert left == [], "what may have been answered did not land"
    head = store.head(STUDY, "main").iteration
    for number in range(1, head + 1):
        again = ["store", "recompute", STUDY, "main", str(number), "--store", work.store, "--landing", work.landing]
        assert main(again) == 0, number
    said = "".join(file.read_text() for file in work.logs.iterdir())
    assert "Traceback" not in said
    assert set(fleet.refused) <= {503}, "a 503 asks to send again"
    with capsys.disabled():
        print(
            f"\n{kills.total()} kills in {minutes:.1f} minutes {dict(kills)}: {len(set(found)):,} pings in "
            f"{len(found):,} rows and {len(landed):,} files, {fleet.retries:,} tries again, {head} versions, "
            f"{bucket.seen()} requests"
        )
