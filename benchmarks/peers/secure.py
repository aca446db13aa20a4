"""Cost of a round of secure aggregation in fedping, and of Flower's SecAgg+, on the same vectors.

    python -m benchmarks.peers.secure [--clients 10 50 100 200] [--numbers 25 1000 100000] [--gone 0] [--turns 3]
                                      [--seconds 600] [--python BINARY] [--json]

Each client has an update; the servers compute the sum of the clients' vectors, the vectors of a private line, without
seeing any single one. Flower's own workflow and mod run in its environment (`benchmarks.peers.environments`) or with
the interpreter ``--python``, without its simulation engine: messages are passed on at once, as Flower's bytes. Ours are
clients, leader and helper of a two-server line, without noise because SecAgg+ adds none; they pass on pings, a request
and an answer as bytes. Neither uses a network or a disk, and neither sends the model.

SecAgg+ is measured with the settings of Flower's example (two neighbours hide a client's vector, and any two of three
shares restore its key), and with half of the clients as neighbours, up to 50, two thirds of whose shares restore a key.
``--gone`` is the share of the clients that send nothing after the second stage; in ours they don't post a ping.

Prints CPU seconds of the servers together and of each client; bytes to and from a client, without the headers of HTTP
or gRPC; and the number of a client's answers. The ways run in turns, and the table has the medians. A round of Flower
that takes over ten seconds runs once, and one that takes over ``--seconds`` is stopped. The exit code is 1 if the two
sums differ, and 2 if Flower can't be installed or fails.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from uuid import UUID

import msgspec
import numpy as np
from numpy.typing import NDArray
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from benchmarks.peers.environments import PEERS, python_of
from fedping.client_sim.privacy.vectors import Sharer
from fedping.helper.aggregate import Key, arms_answered
from fedping.protocol.ping import PRIVATE_UPDATE, Ping, PrivatePayload
from fedping.protocol.pipeline import Pipeline
from fedping.protocol.privacy import METRICS, Privacy, Shared, frame_of, vectors_of
from fedping.protocol.sharing.exchange import (
    Answer,
    AskedArm,
    Request,
    digest_of_signed,
    is_from,
    read_signed,
    signed,
)
from fedping.protocol.sharing.keys import Seal, identity_of, new_private_key, public_key, signing_key
from fedping.protocol.sharing.offer import Offer, signed_offer
from fedping.protocol.sharing.shares import WORDS, layout, words_of
from fedping.protocol.sharing.terms import terms_for
from fedping.protocol.spec import ModelSpec, Step
from fedping.protocol.study import Arm, Line, PublicStudy, Study, public_study
from fedping.protocol.update import EncodedUpdate
from fedping.protocol.weights import Block
from fedping.server_jobs.ingest.decoding import Decoding
from fedping.server_jobs.privacy.noise import SystemNoise

(FLOWER,) = (peer for peer in PEERS if peer.name == "Flower")
WORKER = Path(__file__).with_name("secure_worker.py")
OURS = "fedping"
LONG = 10.0
"""Seconds above which a round of Flower is measured only once."""

WHEN = "2026-01-01T00:00:00Z"
CLOSE = 16 / 2**22
"""Tolerance on Flower's mean: a step of its quantization, for numbers of at most 1."""


@dataclass(frozen=True)
class Taken:
    """Result and costs of a round.

    Attributes:
        total: the sum of the vectors, shape (d,).
        servers: CPU seconds of all servers together, including the seconds of the ``helper``.
        client: CPU seconds of one client.
        up, down: bytes that a client sends and gets.
        stages: number of a client's answers.
    """

    total: NDArray[np.float64]
    servers: float
    client: float
    up: float
    down: float
    stages: int
    helper: float = 0.0


@dataclass(frozen=True)
class Row:
    """The median costs of one protocol; ``why`` is the reason why costs are missing."""

    way: str
    clients: int
    numbers: int
    servers: float | None = None
    client: float | None = None
    up: float | None = None
    down: float | None = None
    stages: int | None = None
    helper: float = 0.0
    turns: int = 0
    why: str = ""

    @classmethod
    def of(cls, way: str, clients: int, numbers: int, taken: list[Taken]) -> Row:
        """Return a protocol's medians over the turns."""

        def median(name: str) -> float:
            return statistics.median(getattr(each, name) for each in taken)

        figures = {name: median(name) for name in ("servers", "client", "up", "down", "helper")}
        return cls(way, clients, numbers, **figures, stages=taken[0].stages, turns=len(taken))


class Shares:
    """The prepared clients, leader and helper of a two-server line with vectors of d numbers.

    Args:
        d: number of numbers in a vector.
        clients: minimum number of clients.
        seal: the way of sealing shares.
    """

    def __init__(self, d: int, clients: int, seal: Seal = "x25519") -> None:
        self.leader, self.helper = signing_key(os.urandom(32), "leader"), signing_key(os.urandom(32), "helper")
        block = Block(name="W", shape=(d - len(METRICS),), step=Step(start=1, min=0.1, max=3))
        spec = ModelSpec(name="benchmark", model="any", blocks=(block,))
        privacy = Privacy(shared=Shared(helper=identity_of(self.helper), min_batch=clients, seal=seal))
        line = Line(name="main", spec=spec, pipeline=Pipeline(), privacy=privacy)
        arm = Arm(name="treatment", share=1.0, line="main", applies=True, submits=True)
        study = Study(name="benchmark", pings="private-update", enrolment="hash", arms=(arm,), lines=(line,))
        private = new_private_key(seal)
        self.terms = terms_for(study, line, identity_of(self.leader), public_key(seal, private), WHEN)
        offer = signed_offer(self.terms, self.helper)
        self.keys, self.offer = {offer.id: Key(self.terms, private)}, offer.id
        self.document = msgspec.json.encode(public_study(study, offers={"main": offer}))
        self.frame, self.decoder = frame_of(privacy, spec), Decoding(PRIVATE_UPDATE)

    def vectors(self, updates: NDArray[np.float32]) -> NDArray[np.int64]:
        """Return the vectors of clients with these updates, shape (k, m), as an array of shape (k, d)."""
        k = len(updates)
        return vectors_of(self.frame, updates, np.full(k, 0.5), np.ones(k), (0.0, 1.0))

    def posted(self, update: NDArray[np.float32], document: UUID) -> bytes:
        """Return a client's ping, made of the study's document and its update, shape (m,)."""
        study = msgspec.json.decode(self.document, type=PublicStudy)
        [line], [arm] = study.lines, study.arms
        assert line.privacy is not None
        assert isinstance(line.offer, Offer)
        vector = vectors_of(frame_of(line.privacy, line.spec), update[None], np.full(1, 0.5), np.ones(1), (0.0, 1.0))
        payload = Sharer(study, line, line.offer).payload(vector[0], document, 0, arm.name)
        told = PrivatePayload(model_version=0, study_variation=arm.name, update=EncodedUpdate("shared", payload))
        return msgspec.json.encode(Ping(client_id=UUID(bytes=os.urandom(16)), type=PRIVATE_UPDATE.name, payload=told))

    def request(self, pings: list[tuple[UUID, bytes]]) -> tuple[bytes, NDArray[np.uint64]]:
        """Return the leader's request for the pings that it received, and the sum of its own shares."""
        pings = sorted(pings, key=lambda ping: ping[0].bytes)
        payloads = b"".join(self._payload(body) for _, body in pings)
        rows = np.frombuffer(payloads, np.uint8).reshape(len(pings), -1)
        offers, shares, sealed = layout(self.terms.numbers, self.terms.seal).parts(rows)
        documents = b"".join(document.bytes for document, _ in pings)
        asked = AskedArm(arm="treatment", documents=documents, offers=offers.tobytes(), sealed=sealed.tobytes())
        request = Request(study="benchmark", line="main", version=0, arms=(asked,), made=WHEN)
        return signed(request, self.leader), WORDS.total(words_of(shares))

    def _payload(self, body: bytes) -> bytes:
        update = self.decoder.ping(body).payload.update
        assert isinstance(update, EncodedUpdate)
        return update.payload

    def answer(self, asked: bytes) -> bytes:
        """Return the helper's answer to a request."""
        assert is_from(asked, Request, self.terms.leader)
        request = read_signed(asked, Request)
        arms = arms_answered(self.terms, self.keys, request, SystemNoise())
        found = Answer(study="benchmark", line="main", version=0, request=digest_of_signed(asked), arms=arms, made=WHEN)
        return signed(found, self.helper)

    def combined(self, asked: bytes, sums: NDArray[np.uint64], answered: bytes) -> NDArray[np.int64]:
        """Return the sum of the vectors, shape (d,), which the leader computes from the helper's answer."""
        assert is_from(answered, Answer, self.terms.helper)
        answer = read_signed(answered, Answer)
        assert answer.request == digest_of_signed(asked)
        [arm] = answer.arms
        assert not arm.refused
        return WORDS.centred(WORDS.plus(sums, np.frombuffer(arm.total, "<u8")))

    def a_round(self, updates: NDArray[np.float32]) -> Taken:
        """Return the costs of a round with these clients' updates."""
        documents = [UUID(bytes=os.urandom(16)) for _ in updates]
        began = time.process_time()
        bodies = [self.posted(update, document) for update, document in zip(updates, documents, strict=True)]
        of_clients = time.process_time()
        asked, sums = self.request(list(zip(documents, bodies, strict=True)))
        of_leader = time.process_time()
        answered = self.answer(asked)
        of_helper = time.process_time()
        total = self.combined(asked, sums, answered)
        ended = time.process_time()
        return Taken(
            total=total.astype(np.float64),
            servers=ended - of_clients,
            client=(of_clients - began) / len(updates),
            up=sum(map(len, bodies)) / len(updates),
            down=len(self.document),
            stages=1,
            helper=of_helper - of_leader,
        )


@dataclass(frozen=True)
class Neighbours:
    """Settings of SecAgg+: the number of shares of a client's keys, and the number that restores a key."""

    shares: int
    threshold: int

    @property
    def name(self) -> str:
        """The name of the row with these settings."""
        return f"SecAgg+, {self.shares - 1} neighbours"


def neighbours_for(clients: int) -> tuple[Neighbours, ...]:
    """Return settings for a number of clients: the example's, and half of the clients (at most 50) as neighbours."""
    many = min(clients // 2 | 1, 51)
    return Neighbours(3, 2), Neighbours(many, -(-2 * many // 3))


def theirs(python: Path, vectors: NDArray[np.int64], of: Neighbours, gone: int, seconds: float) -> Taken | str:
    """Return the costs of Flower's round with these vectors, or the reason why there are none.

    Raises:
        RuntimeError: the worker fails.
    """
    largest = np.abs(vectors).max()
    with tempfile.TemporaryDirectory() as folder:
        sent, found = Path(folder) / "vectors.npy", Path(folder) / "found.npz"
        np.save(sent, vectors / largest)  # Flower clips at 8
        task = {"vectors": str(sent), "found": str(found), **asdict(of), "gone": gone}
        try:
            ran = subprocess.run([python, WORKER, json.dumps(task)], capture_output=True, text=True, timeout=seconds)
        except subprocess.TimeoutExpired:
            return f"over {seconds:g} s"
        if ran.returncode:
            raise RuntimeError(f"Flower didn't finish: {ran.stderr.strip()[-500:]}")
        with np.load(found) as told:
            if not told.files:
                return "given up by Flower"
            k = len(vectors)
            return Taken(
                total=told["mean"] * (k - gone) * largest,
                servers=float(told["server"]),
                client=float(told["clients"]) / k,
                up=float(told["up"].sum()) / k,
                down=float(told["down"].sum()) / k,
                stages=len(told["up"]),
            )


def compared(python: Path, clients: int, d: int, options: argparse.Namespace) -> Iterator[Row]:
    """Yield a row for each protocol; the protocols are measured in turns.

    Raises:
        RuntimeError: Flower fails, or its sum differs from ours.
    """
    gone = round(options.gone * clients)
    ours, updates = Shares(d, clients - gone), np.random.default_rng(1).normal(size=(clients, d - len(METRICS)))
    updates = updates.astype(np.float32)
    vectors = ours.vectors(updates)
    wanted, here = vectors[gone:].sum(axis=0), updates[gone:]
    ours.a_round(here)
    turns: dict[str, list[Taken]] = {OURS: []}
    missing: dict[str, str] = {}
    for turn in range(options.turns):
        turns[OURS].append(ours.a_round(here))
        for setting in neighbours_for(clients):
            there = turns.setdefault(setting.name, [])
            if setting.name in missing or (there and there[0].servers + clients * there[0].client > LONG):
                continue
            print(f"{clients} clients, {d:,} numbers, turn {turn + 1}: {setting.name}", file=sys.stderr, flush=True)
            found = theirs(python, vectors, setting, gone, options.seconds)
            if isinstance(found, str):
                missing[setting.name] = found
            else:
                there.append(found)
    for name, taken in turns.items():
        allowed = 0.0 if name == OURS else CLOSE * (clients - gone) * np.abs(vectors).max()
        if any(np.abs(each.total - wanted).max() > allowed for each in taken):
            raise _Different(f"{name} has a different sum: {clients} clients, {d:,} numbers")
        yield Row(name, clients, d, why=missing[name]) if name in missing else Row.of(name, clients, d, taken)


class _Different(Exception):
    """The sums of two protocols differ."""


def main() -> int:
    options = _options()
    rows: list[Row] = []
    try:
        python = _with_flower(options.python) if options.python else python_of(FLOWER)
        for d in options.numbers:
            for clients in options.clients:
                rows += compared(python, clients, d, options)
    except RuntimeError as error:
        print(f"{error}; secure aggregation cannot be compared", file=sys.stderr)
        return 2
    except _Different as error:
        print(error, file=sys.stderr)
        return 1
    if options.json:
        print(json.dumps([asdict(row) for row in rows], indent=1))
    else:
        Console(width=130).print(table_of(rows))
    return 0


def table_of(rows: list[Row]) -> Table:
    """Return the rows as a table for the terminal."""
    table = Table(box=SIMPLE_HEAD)
    for heading in ("numbers", "clients", "way", "servers, s", "a client, ms", "up", "down", "answers", "turns"):
        table.add_column(heading, justify="left" if heading == "way" else "right")
    for row in rows:
        cells = [row.why, "", "", "", ""]
        if row.servers is not None and row.client is not None and row.up is not None and row.down is not None:
            cells = [f"{row.servers:.4f}", f"{1000 * row.client:.2f}", f"{row.up:,.0f}", f"{row.down:,.0f}"]
            cells.append(str(row.stages))
        table.add_row(f"{row.numbers:,}", str(row.clients), row.way, *cells, str(row.turns))
    return table


def _with_flower(python: Path) -> Path:
    try:
        found = subprocess.run([python, "-c", "import flwr"], capture_output=True).returncode == 0
    except OSError:
        found = False
    if not found:
        raise RuntimeError(f"{python} has no Flower: install {FLOWER.packages[0]} there, or leave --python out")
    return python


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--clients", nargs="+", type=int, default=[10, 50, 100, 200])
    parser.add_argument("--numbers", nargs="+", type=int, default=[25, 1_000, 100_000], help="of a vector")
    parser.add_argument("--gone", type=float, default=0.0, help="the share of the clients that go during the round")
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=600.0, help="time limit of Flower's round")
    parser.add_argument("--python", type=Path, help="an interpreter that has Flower")
    parser.add_argument("--json", action="store_true")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
