"""Cost of a second server: of rounds of a two-server line, of shares, and of proofs of votes.

    python -m benchmarks.shared_rounds [--json] [--what rounds shares proofs] [--clients 100000] [--proven 10000]
                                       [--repeats 9] [--some 5000] [--seed 1]

**rounds**: whole rounds with NumPy in one thread, over the Parquet files of clients that have sent a ping of 22 weights
each, compared with rounds of a private line without a helper, with the same clients and updates; in turns, as in
`benchmarks.private_rounds`. The helper reads the request, opens and adds up the shares in one thread, and stores its
answer on disk; the rest of the round is the leader's part. Request and answer are passed on in memory.

**shares**: for each way of sealing, the costs of a client's share, for the client and for the helper, with 22 weights.

**proofs**: the costs of proving that a client sends votes of 22 weights and nothing else: of making a proof, of each
server's part, and of the decision. Then whole rounds of ``--proven`` clients with proofs.

All seconds are CPU seconds; for shares and proofs the minimum of the repeats.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from datetime import datetime
from functools import partial
from operator import attrgetter
from pathlib import Path
from uuid import UUID

import numpy as np
import pyarrow as pa
from msgspec.structs import replace
from numpy.typing import NDArray
from rich.console import Console
from rich.table import Table

from benchmarks.encodings import fastest_in_turns
from benchmarks.private_rounds import KEY, WHEN, M, Ratio, a_round, land, study_of
from fedping.client_sim.privacy.vectors import Sharer
from fedping.helper.aggregate import arms_answered
from fedping.helper.enrol import join, keys_of
from fedping.helper.folder import HelperFolder, back_up, make_helper, restore
from fedping.helper.requests import reply
from fedping.protocol.privacy import METRICS, Shared, frame_of, vectors_of
from fedping.protocol.proofs.prio3 import KEY_BYTES, NONCE_BYTES, RAND_BYTES, Side, prepare, shard, sizes, valid
from fedping.protocol.sharing.exchange import AskedArm, Request
from fedping.protocol.sharing.keys import Seal
from fedping.protocol.sharing.offer import Offer, terms_of
from fedping.protocol.sharing.shares import Votes, bits_of, layout
from fedping.protocol.study import Study, public_study
from fedping.server_jobs.privacy.keys import leader_identity
from fedping.server_jobs.privacy.noise import SystemNoise

SEALS: tuple[Seal, ...] = ("x25519", "mlkem768-x25519")
PLAIN, LEADER, HELPER, BOTH = "private, no helper", "shares: the leader's part", "shares: the helper's part", "both"


@dataclass(frozen=True)
class RoundRow:
    """Cost of a part of a round: median and fastest seconds, microseconds per ping, and ratio to the plain round."""

    what: str
    clients: int
    seconds: float
    fastest: float
    microseconds: float
    beside_plain: Ratio | None


@dataclass(frozen=True)
class ShareRow:
    """Cost of a way of sealing: bytes of a payload, and microseconds of client and helper per payload."""

    seal: Seal
    payload: int
    client: float
    helper: float


@dataclass(frozen=True)
class ProofRow:
    """Cost of a step of proving votes: clients per second, and bytes per client."""

    what: str
    per_second: float
    bytes: int


def shared_study(helper: HelperFolder, seal: Seal = "x25519", *, proofs: bool = False) -> tuple[Study, Offer]:
    """Return the private study of `benchmarks.private_rounds` with a helper, and the helper's offer."""
    study = study_of(1.0)
    [line] = study.lines
    assert line.privacy is not None
    line = replace(
        line, privacy=replace(line.privacy, shared=Shared(helper=helper.identity, seal=seal, proofs=proofs)), upload=()
    )
    study = replace(study, lines=(line,))
    public = public_study(study)
    return study, join(helper, public, public.lines[0], leader_identity(KEY))[0]


@dataclass
class TimedHelper:
    """Calls a helper in the same process, and measures the helper's time."""

    folder: HelperFolder
    seconds: float = field(default=0.0)

    def answer(self, request: bytes, most: int) -> bytes:
        """Return the helper's answer; see :class:`fedping.server_jobs.round.helper_client.Helper`."""
        began = time.process_time()
        found = reply(self.folder, request, datetime.fromisoformat(WHEN)).data
        self.seconds += time.process_time() - began
        return found


def payloads_of(
    study: Study, offer: Offer, vectors: NDArray[np.int64], documents: NDArray[np.uint8], places: NDArray[np.integer]
) -> pa.BinaryArray:
    """Return the payloads of clients with these vectors, document ids (k, 16), and positions of their arms (k,)."""
    sharer, parts, order = Sharer(study, study.lines[0], offer), [], []
    for place, arm in enumerate(study.arms):
        rows = np.flatnonzero(places == place)
        ids = [UUID(bytes=documents[row].tobytes()) for row in rows]
        parts.append(sharer.payloads(vectors[rows], ids, [0] * len(rows), arm.name).column)
        order.append(rows)
    return pa.concat_arrays(parts).take(pa.array(np.argsort(np.concatenate(order))))


def rounds(where: Path, clients: int, repeats: int, seed: int, *, proofs: bool = False) -> Iterator[RoundRow]:
    """Yield the cost of each part of a two-server round and of a private one; with ``proofs``, clients prove votes."""
    made = make_helper(where / "helper")
    study, offer = shared_study(made, proofs=proofs)
    back_up(made, where / "who has not answered yet")
    plain = study_of(1.0)
    land(where / "plain", plain, clients, seed)
    land(where / "shared", study, clients, seed, partial(payloads_of, study, offer))
    taken: dict[str, list[float]] = {what: [] for what in (PLAIN, LEADER, HELPER, BOTH)}
    for repeat in range(repeats + 1):
        alone = a_round(where, where / "plain", plain)
        with tempfile.TemporaryDirectory(dir=where) as folder:
            first = {(study.name, study.lines[0].name): 0}
            helper = TimedHelper(restore(where / "who has not answered yet", Path(folder) / "helper", first))
            both = a_round(where, where / "shared", study, helper)
        if repeat:
            for what, seconds in zip(taken, (alone, both - helper.seconds, helper.seconds, both), strict=True):
                taken[what].append(seconds)
    for what, each in taken.items():
        beside = None if what == PLAIN else Ratio.of(each, taken[PLAIN])
        median = statistics.median(each)
        yield RoundRow(what, clients, median, min(each), 1e6 * median / clients, beside)


def shares(where: Path, k: int, repeats: int, seed: int) -> Iterator[ShareRow]:
    """Yield the cost of a share for each way of sealing, measured in turns."""
    ways: list[Callable[[], object]] = []
    sizes_of = []
    for seal in SEALS:
        helper = make_helper(where / seal)
        study, offer = shared_study(helper, seal)
        vectors = _vectors(study, k, seed)
        ids = sorted((UUID(bytes=os.urandom(16)) for _ in range(k)), key=attrgetter("bytes"))
        sharer = Sharer(study, study.lines[0], offer)
        make = partial(sharer.payloads, vectors, ids, [0] * k, "treatment")
        payloads = [each.as_py() for each in make().column]
        sealed = layout(M + len(METRICS), seal).sealed
        asked = AskedArm(
            arm="treatment",
            documents=b"".join(each.bytes for each in ids),
            offers=offer.id * k,
            sealed=b"".join(payload[-sealed:] for payload in payloads),
        )
        request = Request(study=study.name, line="main", version=0, arms=(asked,), made=WHEN)
        with helper.records() as records:
            keys = keys_of(helper, records.offers(1))
        ways += [make, partial(arms_answered, terms_of(offer, helper.identity), keys, request, SystemNoise())]
        sizes_of.append(len(payloads[0]))
    fastest = [1e6 * seconds / k for seconds in fastest_in_turns(repeats, *ways)]
    for seal, size, client, opened in zip(SEALS, sizes_of, fastest[::2], fastest[1::2], strict=True):
        yield ShareRow(seal, size, client, opened)


def proofs(k: int, repeats: int, seed: int) -> Iterator[ProofRow]:
    """Yield the cost of each step of proving."""
    [line] = (study := study_of(1.0)).lines
    assert line.privacy is not None
    votes = Votes(M + len(METRICS), frame_of(line.privacy, line.spec).metric)
    circuit = votes.circuit
    bits, rand, key = bits_of(votes, _vectors(study, k, seed)), _random(k, RAND_BYTES), os.urandom(KEY_BYTES)
    nonces, context = _random(k, NONCE_BYTES), [b"fedping benchmark %d" % number for number in range(k)]
    sent = shard(circuit, bits, nonces, rand, context)
    leader = prepare(circuit, Side.LEADER, key, nonces, sent.public, sent.leader, context)
    helper = prepare(circuit, Side.HELPER, key, nonces, sent.public, sent.helper, context)
    assert valid(circuit, sent.public, leader.shown, helper.shown).all()
    steps: dict[str, tuple[int, Callable[[], object]]] = {
        "a client makes them": (sum(sizes(circuit)[:3]), partial(shard, circuit, bits, nonces, rand, context)),
        "the leader's part": (
            sizes(circuit).prepared,
            partial(prepare, circuit, Side.LEADER, key, nonces, sent.public, sent.leader, context),
        ),
        "the helper's part": (
            sizes(circuit).prepared,
            partial(prepare, circuit, Side.HELPER, key, nonces, sent.public, sent.helper, context),
        ),
        "the decision": (0, partial(valid, circuit, sent.public, leader.shown, helper.shown)),
    }
    fastest = fastest_in_turns(repeats, *(way for _, way in steps.values()))
    for (what, (size, _)), seconds in zip(steps.items(), fastest, strict=True):
        yield ProofRow(what, k / seconds, size)


def _vectors(study: Study, k: int, seed: int) -> NDArray[np.int64]:
    """Return vectors of a study's clients, shape (k, d)."""
    rng, [line] = np.random.default_rng(seed), study.lines
    assert line.privacy is not None
    updates, losses = rng.normal(size=(k, M)).astype(np.float32), rng.uniform(0, 1, k)
    return vectors_of(frame_of(line.privacy, line.spec), updates, losses, np.zeros(k), line.privacy.loss)


def _random(k: int, width: int) -> NDArray[np.uint8]:
    return np.frombuffer(os.urandom(k * width), np.uint8).reshape(k, width)


def main() -> None:
    """Measure, and print tables or JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="print JSON, a list of rows by name")
    parser.add_argument(
        "--what", nargs="+", choices=("rounds", "shares", "proofs"), default=["rounds", "shares", "proofs"]
    )
    parser.add_argument("--clients", type=int, default=100_000, help="of a round")
    parser.add_argument("--proven", type=int, default=10_000, help="clients of a round with proofs")
    parser.add_argument("--repeats", type=int, default=9)
    parser.add_argument(
        "--some", type=int, default=5_000, help="clients whose shares and proofs are made again and again"
    )
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args()
    found: dict[str, list[RoundRow] | list[ShareRow] | list[ProofRow]] = {}
    with tempfile.TemporaryDirectory() as folder:
        where = Path(folder)
        if "rounds" in given.what:
            found["rounds"] = list(rounds(where, given.clients, given.repeats, given.seed))
        if "shares" in given.what:
            found["shares"] = list(shares(where, given.some, given.repeats, given.seed))
        if "proofs" in given.what:
            (where / "proofs").mkdir()
            proven = rounds(where / "proofs", given.proven, given.repeats, given.seed, proofs=True)
            found["rounds with proofs"] = list(proven)
            found["proofs"] = list(proofs(given.some, given.repeats, given.seed))
    if given.json:
        print(json.dumps({name: [asdict(row) for row in rows] for name, rows in found.items()}))
        return
    for name, rows in found.items():
        headings = [each.replace("_", " ") for each in rows[0].__dataclass_fields__]
        table = Table(*headings, title=name)
        for row in rows:
            table.add_row(*map(_told, (getattr(row, each) for each in row.__dataclass_fields__)))
        Console(width=140).print(table)


def _told(value: object) -> str:
    if isinstance(value, float):
        return f"{value:,.4f}" if value < 10 else f"{value:,.0f}"
    return "" if value is None else f"{value:,}" if isinstance(value, int) else str(value)


if __name__ == "__main__":
    main()
