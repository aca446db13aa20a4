"""Stress test of ingest with hours of hostile requests: its memory, its answers, and the honest pings among them.

    python -m benchmarks.hostile --minutes 60 [--seed 1] [--senders 8] [--slow 100]

Starts a real ingest with a study of eight weights, posts a mix of hostile requests drawn from the seed, keeps slow
connections open at the same time (headers, bodies and idle connections that send a byte now and then), and sends an
honest ping every tenth of a second. The exit code is 1 if memory exceeded the stated bound, an honest ping was lost, or
an answer was a 5xx other than 503.
"""

from __future__ import annotations

import argparse
import contextlib
import gzip
import http.client
import json
import random
import selectors
import socket
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
import uuid
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import zstandard

MIB = 1024 * 1024
M = 8
STUDY = "bench"
PATH = f"/submit/{STUDY}/model-update/1"
PAUSE = 0.1
DRIBBLE = 2.0

Request = tuple[bool, bytes, dict[str, str]]
"""A request: whether it is for the batch endpoint, its body, and its headers."""


def honest(rng: random.Random, **payload: Any) -> dict[str, Any]:
    """Return a valid ping."""
    told = {
        "model_version": 0,
        "study_variation": "treatment",
        "update": [round(rng.gauss(0, 1), 4) for _ in range(M)],
        "loss": round(rng.expovariate(1), 4),
        "examples": rng.randrange(1, 50),
    }
    return {"clientId": _id(rng), "type": "model-update", "payload": told | payload}


def _id(rng: random.Random) -> str:
    return str(uuid.UUID(int=rng.getrandbits(128), version=4))


def _text(ping: dict[str, Any]) -> bytes:
    return json.dumps(ping, separators=(",", ":")).encode()


def _zstd(body: bytes) -> Request:
    return True, zstandard.compress(body), {"Content-Encoding": "zstd"}


def _gzip(body: bytes) -> Request:
    return True, gzip.compress(body, 6), {"Content-Encoding": "gzip"}


def _one(request: Request) -> Request:
    return False, *request[1:]


def _streamed(body: bytes) -> Request:
    return True, zstandard.ZstdCompressor(write_content_size=False).compress(body), {"Content-Encoding": "zstd"}


def _with_update(rng: random.Random, numbers: bytes) -> bytes:
    return _text(honest(rng, update=["@"])).replace(b'["@"]', b"[" + numbers + b"]")


def _lines_of(rng: random.Random, number: int, **payload: Any) -> bytes:
    return b"\n".join(_text({"documentId": _id(rng), **honest(rng, **payload)}) for _ in range(number))


HOSTILE: dict[str, Callable[[random.Random], Request]] = {
    "zeros, zstd": lambda rng: _zstd(bytes(60_000_000)),
    "zeros, zstd, of unknown size": lambda rng: _streamed(bytes(60_000_000)),
    "zeros, gzip": lambda rng: _gzip(bytes(60_000_000)),
    "too much, zstd": lambda rng: _zstd(bytes(100_000_000)),
    "too much, gzip": lambda rng: _gzip(bytes(100_000_000)),
    "two gzip members": lambda rng: (
        True,
        gzip.compress(bytes(30_000_000)) + gzip.compress(b"x"),
        {"Content-Encoding": "gzip"},
    ),
    "2,000,000 numbers": lambda rng: _one(_zstd(_with_update(rng, b",".join([b"0"] * 1_900_000)))),
    "2,000,000 numbers, plain": lambda rng: (False, _with_update(rng, b",".join([b"0"] * 1_900_000)), {}),
    "lines of numbers": lambda rng: _zstd(b"\n".join([_with_update(rng, b",".join([b"1"] * 100_000))] * 250)),
    "one line of numbers": lambda rng: _zstd(_with_update(rng, b",".join([b"1"] * 25_000_000))),
    "100,000 wrong lines": lambda rng: _zstd(b"x\n" * 99_000),
    "empty lines": lambda rng: _zstd(b"\n" * 99_000),
    "lines of another arm": lambda rng: _zstd(_lines_of(rng, 20_000, study_variation="nobody")),
    "lines of short updates": lambda rng: _zstd(_lines_of(rng, 20_000, update=[1])),
    "a good line first": lambda rng: _zstd(_lines_of(rng, 1) + b"\n" + b"{}\n" * 90_000),
    "nested": lambda rng: (False, b"[" * rng.randrange(10, 500_000), {}),
    "nested in a field": lambda rng: (False, _with_update(rng, b"[" * 400_000), {}),
    "nested, unpacked": lambda rng: _zstd(b'{"a":' * 10_000_000),
    "a long string": lambda rng: (False, _text(honest(rng, study_variation="x" * 3_000_000)), {}),
    "a long wide string": lambda rng: _zstd(
        _text(honest(rng, study_variation="@")).replace(b"@", "\U0001f600".encode() * 14_000_000)
    ),
    "a huge key": lambda rng: (False, _text(honest(rng) | {"k" * 3_000_000: 1}), {}),
    "many keys": lambda rng: (False, b"{" + b",".join(b'"%x":1' % i for i in range(200_000)) + b"}", {}),
    "a key many times": lambda rng: (
        False,
        _text(honest(rng)).replace(b'"loss"', b'"loss":1,' * 300_000 + b'"loss"'),
        {},
    ),
    "many digits": lambda rng: (False, _with_update(rng, b"9" * 3_000_000), {}),
    "not UTF-8": lambda rng: (False, _text(honest(rng)).replace(b"treatment", b"\xff\xfe" * 1000), {}),
    "noise": lambda rng: (rng.random() < 0.5, rng.randbytes(rng.randrange(1, 200_000)), {}),
    "noise, as gzip": lambda rng: (True, rng.randbytes(100_000), {"Content-Encoding": "gzip"}),
    "zstd cut short": lambda rng: (True, zstandard.compress(rng.randbytes(50_000))[:-9], {"Content-Encoding": "zstd"}),
    "gzip cut short": lambda rng: (True, gzip.compress(bytes(50_000_000))[:-9], {"Content-Encoding": "gzip"}),
    "16 MB without a newline": lambda rng: (True, b" " * (16 * MIB), {}),
    "too long": lambda rng: (True, b"", {"Content-Length": str(10**9)}),
    "another length": lambda rng: (False, b"x" * 1000, {"Content-Length": "900000", "Connection": "close"}),
    "another type": lambda rng: (False, b"a=b", {"Content-Type": "application/x-www-form-urlencoded"}),
}
"""Generators of hostile requests, by name."""


@dataclass
class Outcome:
    """Numbers of answers by kind and status (0: the connection ended), and the honest pings answered with 200."""

    answers: Counter[tuple[str, int]] = field(default_factory=Counter)
    accepted: list[str] = field(default_factory=list)
    longest: float = 0.0
    cut: Counter[str] = field(default_factory=Counter)
    highest: dict[int, int] = field(default_factory=dict)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def count(self, kind: str, status: int) -> None:
        """Count an answer."""
        with self.lock:
            self.answers[kind, status] += 1

    @property
    def failures(self) -> int:
        """The number of answers that show a defect."""
        return sum(n for (_, status), n in self.answers.items() if status >= 500 and status != 503)


class Variants:
    """A few requests of each kind, made once, because a compression bomb takes longer to make than to send."""

    def __init__(self, seed: int, each: int) -> None:
        rng = random.Random(seed)
        self._made = {kind: [make(rng) for _ in range(each)] for kind, make in HOSTILE.items()}

    def draw(self, rng: random.Random) -> tuple[str, Request]:
        """Return the name of a kind and a request."""
        kind = rng.choice(list(self._made))
        return kind, rng.choice(self._made[kind])


def post(port: int, path: str, body: bytes, headers: dict[str, str], timeout: float = 60) -> tuple[int, bytes]:
    """Post a body; return the status (0 without an answer) and the body of the answer."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=timeout)
    try:
        connection.putrequest("POST", path)
        for name, value in ({"Content-Length": str(len(body)), "Content-Type": "application/json"} | headers).items():
            connection.putheader(name, value)
        connection.endheaders()
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):  # it may answer before reading everything
            connection.send(body)
        if int(headers.get("Content-Length", len(body))) > len(body) and connection.sock and "Connection" in headers:
            connection.sock.shutdown(socket.SHUT_WR)
        answer = connection.getresponse()
        return answer.status, answer.read()
    except (OSError, http.client.HTTPException):
        return 0, b""
    finally:
        connection.close()


def attack(port: int, seed: int, variants: Variants, outcome: Outcome, until: Callable[[], bool]) -> None:
    """Post hostile requests until ``until`` returns true."""
    rng = random.Random(seed)
    while not until():
        kind, (batch, body, headers) = variants.draw(rng)
        path = PATH if batch else f"{PATH}/{_id(rng)}"
        outcome.count(kind, post(port, path, body, headers)[0])


def send_honest(port: int, seed: int, outcome: Outcome, until: Callable[[], bool], pause: float = PAUSE) -> None:
    """Send honest pings, one by one; repeat each with the same document id until it is answered with 200."""
    rng = random.Random(seed)
    while not until():
        document, body = _id(rng), _text(honest(rng))
        began = time.perf_counter()
        status = 0
        while status != 200 and not until():
            status, _ = post(port, f"{PATH}/{document}", body, {})
            outcome.count("honest", status)
        if status == 200:
            outcome.accepted.append(document)
            outcome.longest = max(outcome.longest, time.perf_counter() - began)
        time.sleep(pause)


_HEAD = f"POST {PATH}/{uuid.UUID(int=1)} HTTP/1.1\r\nHost: x\r\nContent-Length: 100000\r\n\r\n".encode()
SLOW = {
    "slow headers": (b"POST /submit/", b"x"),
    "slow body": (_HEAD, b" "),
    "idle": (b"GET /__lbheartbeat__ HTTP/1.1\r\nHost: x\r\n\r\n", b""),
}
"""The bytes that each kind of slow connection sends at first and then repeatedly, by name."""


def dribble(port: int, number: int, outcome: Outcome, until: Callable[[], bool], every: float = DRIBBLE) -> None:
    """Keep ``number`` slow connections open, a third of each kind; closed connections are counted and reopened."""
    selector = selectors.DefaultSelector()
    open_now: dict[socket.socket, str] = {}

    def connect(kind: str) -> None:
        connection = socket.create_connection(("127.0.0.1", port), timeout=10)
        connection.sendall(SLOW[kind][0])
        connection.setblocking(False)
        open_now[connection] = kind
        selector.register(connection, selectors.EVENT_READ)

    def close(connection: socket.socket) -> str:
        selector.unregister(connection)
        connection.close()
        return open_now.pop(connection)

    wanted = [list(SLOW)[i % len(SLOW)] for i in range(number)]
    said = time.monotonic()
    while not until():
        while wanted:
            try:
                connect(wanted[-1])
            except OSError:
                break
            wanted.pop()
        for key, _ in selector.select(0.2):
            connection = key.fileobj
            assert isinstance(connection, socket.socket)
            try:
                answer = connection.recv(65536)
            except OSError:
                answer = b""
            if answer.startswith(b"HTTP/1.1 408"):
                outcome.count(open_now[connection], 408)
            if not answer or b"408" in answer[:13]:
                kind = close(connection)
                outcome.cut[kind] += 1
                wanted.append(kind)
        if time.monotonic() - said >= every:
            said = time.monotonic()
            for connection in list(open_now):
                with contextlib.suppress(OSError):
                    connection.send(SLOW[open_now[connection]][1])
    for connection in list(open_now):
        close(connection)


def peak(pid: int) -> int:
    """Return the peak memory of a process in bytes."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmHWM"):
            return int(line.split()[1]) * 1024
    return 0


def watch_memory(workers: Callable[[], list[int]], outcome: Outcome, until: Callable[[], bool]) -> None:
    """Record each worker's peak memory until ``until`` returns true."""
    while not until():
        look(workers(), outcome)
        time.sleep(0.5)


def look(workers: list[int], outcome: Outcome) -> None:
    """Record the peak memory of these processes."""
    for pid in workers:
        with contextlib.suppress(OSError):
            outcome.highest[pid] = max(outcome.highest.get(pid, 0), peak(pid))


def children(pid: int) -> list[int]:
    """Return the child processes of a process."""
    found: list[int] = []
    with contextlib.suppress(OSError):  # it has ended, which the search itself raises
        for task in Path(f"/proc/{pid}/task").glob("*/children"):
            with contextlib.suppress(OSError):
                found += [int(child) for child in task.read_text().split()]
    return sorted(found)


@contextlib.contextmanager
def hostile_load(
    port: int, workers: Callable[[], list[int]], seed: int, senders: int, slow: int, each: int = 2
) -> Iterator[Outcome]:
    """Attack ingest until the block ends; yield the outcome so far."""
    outcome, ended = Outcome(), threading.Event()
    variants = Variants(seed, each)
    tasks: list[Callable[[], None]] = [
        lambda: send_honest(port, seed + 1000, outcome, ended.is_set),
        lambda: watch_memory(workers, outcome, ended.is_set),
    ]
    if slow:
        tasks.append(lambda: dribble(port, slow, outcome, ended.is_set))
    tasks += [partial(attack, port, seed + number, variants, outcome, ended.is_set) for number in range(senders)]
    threads = [threading.Thread(target=task) for task in tasks]
    for thread in threads:
        thread.start()
    try:
        yield outcome
    finally:
        ended.set()
        for thread in threads:
            thread.join()
        look(workers(), outcome)


def make_store(folder: Path) -> None:
    """Make a store with one study of :data:`M` weights at version 0."""
    from fedping.model_store import open_store
    from fedping.model_store.version import first_version
    from fedping.protocol.spec import ModelSpec, Step, Weight
    from fedping.protocol.study import Arm, Line, Study

    step = Step(start=1, min=0.1, max=3)
    spec = ModelSpec(name="bench", model="bench", weights=tuple(Weight(f"w{i}", 1.0, step) for i in range(M)))
    arm = Arm(name="treatment", share=1, line="main", applies=True, submits=True)
    study = Study(name=STUDY, arms=(arm,), lines=(Line(name="main", spec=spec),), pings="model-update")
    version = first_version(STUDY, "main", spec, (), "2026-01-01T00:00:00+00:00", "bench", "")
    open_store(folder, create=True).create_study(study, (version,))


def landed(folder: Path) -> set[str]:
    """Return the document ids of every landed ping."""
    import pyarrow.parquet as pq

    found: set[str] = set()
    for file in folder.glob("study=*/line=*/iteration=*/*.parquet"):
        column = pq.ParquetFile(file).read(columns=["document_id"]).column("document_id")
        found |= {str(uuid.UUID(bytes=one)) for one in column.to_pylist()}
    return found


def main() -> int:
    from benchmarks.ingest import free_port
    from fedping.server_jobs.ingest.settings import IngestSettings

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=60.0)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--senders", type=int, default=8)
    parser.add_argument("--slow", type=int, default=100)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        make_store(folder / "store")
        port = free_port()
        command = [sys.executable, "-m", "fedping", "ingest", "--store", str(folder / "store"), "--port", str(port)]
        ingest = subprocess.Popen(
            [*command, "--landing", str(folder / "landing"), "--compact-every", "5", "--operations-port", "0"]
        )
        try:
            _wait_well(ingest, port)

            def workers() -> list[int]:
                return [pid for child in children(ingest.pid) for pid in children(child)]

            with hostile_load(port, workers, options.seed, options.senders, options.slow) as outcome:
                time.sleep(options.minutes * 60)
        finally:
            ingest.terminate()
            code = ingest.wait()
        lost = set(outcome.accepted) - landed(folder / "landing")
        settings = IngestSettings(store=folder, landing=folder, journal=folder)
        print(table(outcome, lost, settings.memory_bound))
        beyond = max(outcome.highest.values(), default=0) > settings.memory_bound
        return 1 if code or lost or beyond or outcome.failures else 0


def _wait_well(ingest: subprocess.Popen[bytes], port: int) -> None:
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline and ingest.poll() is None:
        with contextlib.suppress(OSError):
            urllib.request.urlopen(f"http://127.0.0.1:{port}/__heartbeat__", timeout=10).close()
            return
        time.sleep(0.05)
    raise RuntimeError("ingest did not start")


def table(outcome: Outcome, lost: set[str], bound: int) -> str:
    """Return the outcome as text."""
    kinds = sorted({kind for kind, _ in outcome.answers})
    lines = [f"{'kind':<30} answers by status (0: the connection ended without one)"]
    for kind in kinds:
        told = {status: n for (one, status), n in sorted(outcome.answers.items()) if one == kind}
        lines.append(f"{kind:<30} " + "  ".join(f"{status}: {n:,}" for status, n in told.items()))
    lines.append("slow connections closed: " + ", ".join(f"{kind} {n:,}" for kind, n in sorted(outcome.cut.items())))
    lines.append(f"requests: {sum(outcome.answers.values()):,}; 5xx other than 503: {outcome.failures}")
    lines.append(
        f"honest pings answered 200: {len(outcome.accepted):,}, of these not landed: {len(lost)}; "
        f"the longest took {outcome.longest:.2f} s"
    )
    highest = ", ".join(f"{one / MIB:,.0f}" for one in sorted(outcome.highest.values(), reverse=True))
    lines.append(f"highest memory by worker, MiB: {highest}; the stated bound of each: {bound / MIB:,.0f}")
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
