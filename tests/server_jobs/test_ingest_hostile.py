"""Hostile requests: their memory is limited, slow ones are cut off, and honest pings get through."""

import asyncio
import gc
import gzip
import json
import random
import select
import socket
import sys
import threading
import tracemalloc
import uuid
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest
import zstandard

from benchmarks import hostile
from fedping.client_sim.http import _outcome
from fedping.protocol.ping import FRECENCY_UPDATE, MODEL_UPDATE
from fedping.server_jobs.ingest.admission import LineHead
from fedping.server_jobs.ingest.answers import Rejection
from fedping.server_jobs.ingest.body import Budget
from fedping.server_jobs.ingest.decoding import decoding_of
from fedping.server_jobs.ingest.segments import SegmentWriter
from fedping.server_jobs.ingest.settings import MIB, SLICE, IngestSettings, Limits
from fedping.server_jobs.ingest.slow_clients import GRACE, Arrivals
from fedping.server_jobs.ingest.submit import Aside, Receive, Step, Steps
from tests.support.effort import few_or_all
from tests.support.ingest_app import PATH, IngestApp, ingest_app, landed_ids
from tests.support.ingest_server import running_ingest
from tests.support.pings import ping_json
from tests.support.processes import wait_until

ZSTD = {"Content-Encoding": "zstd"}


@pytest.fixture
def ingest(tmp_path: Path) -> IngestApp:
    return ingest_app(tmp_path)


@pytest.fixture
def calm() -> Iterator[None]:
    """Disable the garbage collector, so that freed memory was freed by reference counts."""
    gc.collect()
    gc.disable()
    yield
    gc.enable()


def batched(**payload: Any) -> bytes:
    return json.dumps({"documentId": str(uuid.uuid4()), **ping_json(**payload)}).encode()


LEFT_BEHIND = {
    "zeros": (PATH, zstandard.compress(bytes(3_000_000)), ZSTD),
    "refused lines": (PATH, b"nonsense " * 10 + b"\n" + b"x" * 500_000, {}),
    "refused by a rule": (PATH, batched(update=[1.0] * 3) + b" " * 100_000, {}),
    "a ping that is none": (f"{PATH}/{uuid.UUID(int=1)}", b" " * 2_000_000 + b"x", {}),
    "a repeated key": (f"{PATH}/{uuid.UUID(int=1)}", b'{"a":1,"a":2}' + b" " * 500_000, {}),
    "gzip that is none": (PATH, b"x" * 2_000_000, {"Content-Encoding": "gzip"}),
    "too long": (PATH, b"", {"Content-Length": "100000000"}),
    "no such study": (f"/submit/none/frecency-update/1/{uuid.UUID(int=1)}", b"x" * 500_000, {}),
}


@pytest.mark.parametrize("case", LEFT_BEHIND)
@pytest.mark.usefixtures("calm")
def test_nothing_outlives_a_refused_request(ingest: IngestApp, case: str) -> None:
    path, body, headers = LEFT_BEHIND[case]

    def ask() -> None:
        environ = {
            "REQUEST_METHOD": "POST",
            "PATH_INFO": path,
            "QUERY_STRING": "",
            "SERVER_NAME": "x",
            "SERVER_PORT": "80",
            "SERVER_PROTOCOL": "HTTP/1.1",
            "wsgi.url_scheme": "http",
            "wsgi.input": _Input(bytes(bytearray(body))),
            "CONTENT_LENGTH": headers.get("Content-Length", str(len(body))),
            **{f"HTTP_{name.upper().replace('-', '_')}": value for name, value in headers.items()},
        }
        for _ in ingest.app(environ, lambda *_: None):  # type: ignore[arg-type,return-value]
            pass

    ask()
    tracemalloc.start()
    before, _ = tracemalloc.get_traced_memory()
    for _ in range(5):
        ask()
    grown = tracemalloc.get_traced_memory()[0] - before
    tracemalloc.stop()
    assert grown < 300_000, f"{grown} bytes are held"


class _Input:
    def __init__(self, data: bytes) -> None:
        self._data = data

    def read(self, size: int = -1) -> bytes:
        """Return the next bytes."""
        end = len(self._data) if size < 0 else size
        given, self._data = self._data[:end], self._data[end:]
        return given


@pytest.mark.usefixtures("calm")
def test_nothing_outlives_pings_that_could_not_be_stored(ingest: IngestApp, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(SegmentWriter, "append", full)
    journal = ingest.services.journals.of(FRECENCY_UPDATE)
    tracemalloc.start()
    before, _ = tracemalloc.get_traced_memory()
    for _ in range(5):
        with pytest.raises(Exception, match="No space"):
            journal.append(bytes(1_000_000), 1)
    grown = tracemalloc.get_traced_memory()[0] - before
    tracemalloc.stop()
    assert grown < 1_000_000, f"{grown} bytes are held"
    assert ingest.ping().status_code == 507


def test_a_batch_is_read_no_further_after_a_thousand_refused_lines(ingest: IngestApp) -> None:
    body = zstandard.compress(b"\n".join([batched()] + [b'{"' + b"k" * 250 + b'":1}'] * 20_000 + [batched()]))
    answer = ingest.post(PATH, body, headers=ZSTD)
    assert answer.json["accepted"] == 1
    assert [line["line"] for line in answer.json["rejected"]] == list(range(2, 1003))
    assert len(answer.json["rejected"][0]["reason"]) > 100
    assert answer.json["rejected"][-2]["reason"] == "not_a_ping"
    assert "this line and all later ones were not read" in answer.json["rejected"][-1]["reason"]
    assert ingest.totals()["rejected.not_a_ping"] == 1000
    assert ingest.totals()["rejected.not_read"] == 1
    assert ingest.post(PATH, zstandard.compress(b"0\n" * 99_000), headers=ZSTD).status_code == 400


def test_lines_are_numbered_across_slices_and_all_good_ones_are_taken(ingest: IngestApp) -> None:
    lines: list[bytes] = []
    refused = []
    while sum(map(len, lines)) < 5 * SLICE:
        kind = len(lines) % 70
        if kind == 3:
            refused.append(len(lines) + 1)
        lines.append(b"nonsense" if kind == 3 else b"" if kind == 5 else batched())
    lines[10] = b"x" * (2 * SLICE)  # longer than a slice, so a slice of its own
    refused = sorted({*refused, 11})
    answer = ingest.post(PATH, b"\n".join(lines)).json
    assert [line["line"] for line in answer["rejected"]] == refused
    assert answer["accepted"] == sum(1 for line in lines if line) - len(refused)
    ingest.land()
    assert len(landed_ids(ingest.settings.landing)) == answer["accepted"]


# 2. The size of a study's ping, and a budget for requests in flight.


@pytest.mark.parametrize("m", [1, 8, 22, 5000])
def test_no_honest_ping_is_beyond_its_study(m: int) -> None:
    longest = ping_json(
        update=[-1.2345678901234567e-300] * m,
        frecency_scores=[-1.2345678901234567e-300] * 1000,
        selected_style='\U0001f600",' * 21,
        study_addon_version="," * 64,
    )
    for document, ping in ((FRECENCY_UPDATE, longest), (MODEL_UPDATE, hostile.honest(random.Random(1)))):
        bounds = decoding_of(document).bounds(max(m, hostile.M))
        for indent in (None, 1, 4, 8):
            bounds.check(json.dumps({"documentId": str(uuid.uuid4()), **ping}, indent=indent).encode())


@pytest.mark.parametrize("as_batch", [False, True])
def test_numbers_beyond_the_study_are_refused_before_they_are_made(ingest: IngestApp, as_batch: bool) -> None:
    ping = {"documentId": str(uuid.uuid4())} if as_batch else {}
    body = json.dumps(ping | ping_json(update=["@"])).encode().replace(b'"@"', b",".join([b"0"] * 1_900_000))
    path = PATH if as_batch else f"{PATH}/{uuid.uuid4()}"
    tracemalloc.start()
    answer = ingest.post(path, zstandard.compress(body), headers=ZSTD)
    highest = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert answer.status_code == 400
    assert ingest.totals()["rejected.beyond_study"] == 1
    assert highest < 4 * len(body), f"{highest} bytes were held"


def test_a_request_beyond_the_budget_is_told_to_come_back(ingest: IngestApp) -> None:
    working = ingest.services.memory.working
    body = zstandard.compress(b"\n".join(batched() for _ in range(1000)))
    working._patience = 0.05
    with working.lease(working.total):
        answer = ingest.post(PATH, body, headers=ZSTD)
        assert ingest.ping().status_code == 200, "a small ping asks for nothing"
    assert answer.status_code == 503
    assert int(answer.headers["Retry-After"]) > 0
    assert _outcome(503, answer.headers["Retry-After"], answer.data).retry_after == 5
    assert ingest.totals()["rejected.busy"] == 1
    assert ingest.post(PATH, body, headers=ZSTD).json["accepted"] == 1000
    assert (working.taken, ingest.services.memory.receiving.taken) == (0, 0)


def test_a_body_beyond_what_may_be_received_is_told_to_come_back(ingest: IngestApp) -> None:
    receiving = ingest.services.memory.receiving
    body = b"\n".join(batched() for _ in range(1000))
    with receiving.lease(receiving.total - 1000):
        assert ingest.post(PATH, body).status_code == 503
        assert ingest.ping().status_code == 200
    assert ingest.post(PATH, body).json["accepted"] == 1000
    assert receiving.taken == 0


def test_the_budget_serves_who_came_first() -> None:
    budget = Budget(100, patience=60, waiting=3)
    order: list[str] = []

    def ask(name: str, amount: int) -> threading.Thread:
        def run() -> None:
            with budget.lease(amount):
                order.append(name)

        thread = threading.Thread(target=run)
        thread.start()
        assert wait_until(lambda: len(budget._queue) >= expected)
        return thread

    with budget.lease(50):
        expected = 1
        large = ask("large", 100)
        expected = 2
        small = ask("small", 10)
        assert order == [], "who is small does not overtake"
        expected = 3
        third = ask("third", 10)
        with pytest.raises(Rejection, match="send it again"), budget.lease(10):
            pass
    for thread in (large, small, third):
        thread.join()
    assert order[0] == "large"
    assert budget.taken == 0


def test_gzip_that_says_too_little_of_its_size_is_unpacked_all_the_same(ingest: IngestApp) -> None:
    lines = [batched() for _ in range(600)]
    body = gzip.compress(b"\n".join(lines) + b"\n") + gzip.compress(batched())
    assert ingest.post(PATH, body, headers={"Content-Encoding": "gzip"}).json["accepted"] == 601
    assert ingest.services.memory.working.taken == 0


# 3. Slow bodies.


class _Bodies:
    """A granian body stream: pieces, each after a pause; None means no more data and no end."""

    def __init__(self, *pieces: bytes | None, pause: float = 0.0) -> None:
        self._pieces, self._pause = pieces, pause

    async def __aiter__(self) -> AsyncIterator[bytes]:
        for piece in self._pieces:
            await asyncio.sleep(self._pause)
            if piece is None:
                await asyncio.Event().wait()
            else:
                yield piece


def test_nothing_holds_a_body_that_took_its_time() -> None:
    async def received() -> int:
        body = await Arrivals(most=9, seconds=0.02, rate=0).receive(
            _Bodies(*[bytes(50_000)] * 6, pause=0.02),  # type: ignore[arg-type]
            300_000,
        )
        assert len(body) == 300_000
        await asyncio.sleep(0)
        return sys.getrefcount(body)

    assert asyncio.run(received()) <= 2, "a timer or a task still holds it"


@pytest.mark.parametrize("pieces", [(None,), (bytes(900_000), None)], ids=["nothing came", "nearly all came at once"])
def test_a_body_that_stops_is_cut_off_however_much_of_it_has_come(pieces: tuple[bytes | None, ...]) -> None:
    async def received() -> None:
        arrivals = Arrivals(most=9, seconds=0.05, rate=1000)
        with pytest.raises(Rejection, match="too slowly"):
            await arrivals.receive(_Bodies(*pieces), 1_000_000)  # type: ignore[arg-type]
        assert not arrivals._waiting

    asyncio.run(received())


def test_slow_bodies_that_came_one_after_another_are_cut_off_all_the_same() -> None:
    """Some were too young at the first check, and no later request triggers another."""

    async def cut() -> None:
        arrivals = Arrivals(most=2, seconds=3600, rate=0)
        receiving = []
        for _ in range(2):
            receiving += [
                asyncio.ensure_future(arrivals.receive(_Bodies(None), 1_000_000))  # type: ignore[arg-type]
                for _ in range(3)
            ]
            await asyncio.sleep(GRACE / 2)
        async with asyncio.timeout(60):
            while len([one for one in receiving if one.done()]) < 4:
                await asyncio.wait([one for one in receiving if not one.done()], return_when=asyncio.FIRST_COMPLETED)
        assert {type(one.exception()) for one in receiving if one.done()} == {Rejection}
        for one in receiving:
            one.cancel()

    asyncio.run(cut())


def following(steps: Steps, result: object) -> Step | None:
    """Return the next step after a step; None after the last."""
    try:
        return steps.send(result)
    except StopIteration:
        return None


def test_the_store_is_never_asked_where_all_requests_are_answered(
    ingest: IngestApp, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A read of the store may be slow; only work in separate threads may wait for it."""
    looks: list[str] = []
    monkeypatch.setattr(ingest.services.catalogue, "refresh", lambda: looks.append("study"))
    monkeypatch.setattr(LineHead, "latest", lambda head: looks.append("version") or head.known)
    body = json.dumps(ping_json(model_version=5)).encode()
    none = f"/submit/none/frecency-update/1/{uuid.uuid4()}"
    for path, reason in ((none, "unknown_study"), (f"{PATH}/{uuid.uuid4()}", "model_version")):
        ingest.services.catalogue._refreshed = 0.0
        environ = {"REQUEST_METHOD": "POST", "PATH_INFO": path, "CONTENT_LENGTH": str(len(body))}
        steps = ingest.app.submit.steps(environ)
        step: Step | None = next(steps)
        apart = 0
        while step is not None:
            before = len(looks)
            result = step.work() if isinstance(step, Aside) else body if isinstance(step, Receive) else None
            apart += len(looks) - before
            step = following(steps, result)
        assert ingest.totals()[f"rejected.{reason}"] == 1
        assert apart == len(looks) == 1
        looks.clear()


def test_batches_keep_neither_heartbeats_nor_pings_waiting(tmp_path: Path) -> None:
    hostile.make_store(tmp_path / "store")
    bomb = gzip.compress(b"0\n" * 99_000)
    with running_ingest(tmp_path / "store", tmp_path / "landing", "--workers", "1") as server:
        ended = threading.Event()
        sent = Counter[int]()

        def flood() -> None:
            while not ended.is_set():
                sent[hostile.post(server.port, hostile.PATH, bomb, {"Content-Encoding": "gzip"})[0]] += 1

        threads = [threading.Thread(target=flood) for _ in range(40)]
        for thread in threads:
            thread.start()
        try:
            assert wait_until(lambda: sent[400] > 40)
            path, body, _ = _ping()
            for _ in range(10):
                assert server.ask("/__lbheartbeat__") == {"status": "ok"}
                packed = {"Content-Encoding": "gzip"}
                assert hostile.post(server.port, path, gzip.compress(body), packed)[0] == 200
        finally:
            ended.set()
            for thread in threads:
                thread.join()


@pytest.mark.long
def test_slow_connections_are_cut_off_and_keep_no_ping_from_being_taken(tmp_path: Path) -> None:
    hostile.make_store(tmp_path / "store")
    with running_ingest(tmp_path / "store", tmp_path / "landing", "--workers", "2", "--body-seconds", "4") as server:
        outcome, ended = hostile.Outcome(), threading.Event()
        slow = threading.Thread(target=hostile.dribble, args=(server.port, 300, outcome, ended.is_set, 1.0))
        honest = threading.Thread(target=hostile.send_honest, args=(server.port, 1, outcome, ended.is_set, 0.01))
        slow.start()
        honest.start()
        try:
            assert wait_until(lambda: outcome.answers["slow body", 408] >= 100), outcome
            assert wait_until(lambda: outcome.cut["slow headers"] and outcome.cut["idle"]), outcome
            taken = len(outcome.accepted)
            assert wait_until(lambda: len(outcome.accepted) > taken + 20), "pings are taken beside them"
        finally:
            ended.set()
            slow.join()
            honest.join()
        answers = {status for (kind, status) in outcome.answers if kind == "honest"}
        assert answers == {200}
        server.flush()
        assert set(outcome.accepted) <= hostile.landed(tmp_path / "landing")
        assert server.operator_asks("/__status__")["rejected"]["body_timeout"] >= 100


def test_a_body_that_is_cut_off_gives_its_thread_back(tmp_path: Path) -> None:
    hostile.make_store(tmp_path / "store")
    options = ("--workers", "1", "--threads", "1", "--slow-bodies", "2", "--body-seconds", "3600")
    with running_ingest(tmp_path / "store", tmp_path / "landing", *options) as server:
        connections = [socket.create_connection(("127.0.0.1", server.port), timeout=240) for _ in range(6)]
        for connection in connections:
            connection.sendall(hostile.SLOW["slow body"][0])
        cut: list[socket.socket] = []
        while len(cut) < 4:  # all but the two that may be slow
            answered, _, _ = select.select([one for one in connections if one not in cut], [], [], 60)
            assert answered, "a slow body is not cut off"
            assert [one.recv(12) for one in answered] == [b"HTTP/1.1 408"] * len(answered)
            cut += answered
        assert hostile.post(server.port, *_ping())[0] == 200
        for connection in connections:
            connection.close()


def test_a_connection_that_does_not_read_its_answer_is_closed(tmp_path: Path) -> None:
    hostile.make_store(tmp_path / "store")
    _, body, _ = hostile.HOSTILE["100,000 wrong lines"](random.Random(1))
    head = f"POST {hostile.PATH} HTTP/1.1\r\nHost: x\r\nContent-Encoding: zstd\r\nContent-Length: {len(body)}\r\n\r\n"
    with running_ingest(tmp_path / "store", tmp_path / "landing", "--workers", "1", "--body-seconds", "1") as server:
        lazy = socket.socket()
        lazy.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        lazy.settimeout(60)
        lazy.connect(("127.0.0.1", server.port))
        lazy.sendall(head.encode() + body)
        worker = Path(f"/proc/{server.workers()[0]}/fd")

        def sockets() -> int:
            return sum(1 for one in worker.iterdir() if one.is_symlink() and "socket" in one.readlink().name)

        assert select.select([lazy], [], [], 60)[0], "it is answered"
        while_open = sockets()
        assert wait_until(lambda: sockets() < while_open), "the server keeps it, and its answer"
        lazy.close()
        assert hostile.post(server.port, *_ping())[0] == 200


def _ping() -> tuple[str, bytes, dict[str, str]]:
    rng = random.Random(1)
    return f"{hostile.PATH}/{uuid.uuid4()}", json.dumps(hostile.honest(rng)).encode(), {}


# Bounded memory for any input.


@pytest.mark.long
@pytest.mark.thorough
def test_memory_stays_within_the_stated_bound_whatever_comes(tmp_path: Path) -> None:
    hostile.make_store(tmp_path / "store")
    bound = IngestSettings(store=tmp_path, landing=tmp_path, journal=tmp_path).memory_bound
    with running_ingest(tmp_path / "store", tmp_path / "landing", "--workers", "2") as server:
        before = server.workers()
        with hostile.hostile_load(server.port, server.workers, seed=4, senders=6, slow=30, each=1) as outcome:
            assert wait_until(
                lambda: sum(outcome.answers.values()) > few_or_all(100, 250) and len(outcome.accepted) > 20, 400
            )
            repeated = hostile.HOSTILE["zeros, zstd"](random.Random(1))
            for _ in range(few_or_all(10, 30)):
                hostile.post(server.port, hostile.PATH, *repeated[1:])
        assert server.workers() == before, "no worker died"
        server.flush()
    assert outcome.failures == 0, outcome.answers
    assert set(outcome.accepted) <= hostile.landed(tmp_path / "landing")
    assert outcome.highest
    assert max(outcome.highest.values()) < bound, f"{max(outcome.highest.values()) // MIB} of {bound // MIB} MiB"


def test_the_stated_bound_follows_the_settings(tmp_path: Path) -> None:
    def bound(**limits: Any) -> int:
        settings = IngestSettings(store=tmp_path, landing=tmp_path, journal=tmp_path, limits=Limits(**limits))
        return settings.memory_bound // MIB

    assert bound() == 192 + 256 + 16 + 384
    assert bound(memory_bytes=1024 * MIB) == bound() + 640
    assert bound(decompressed_bytes=512 * MIB) > bound() + 350, "the largest request has to fit"
