"""A two-server line from the helper's side: terms and keys, a folder that has joined it, and a leader's requests."""

import hashlib
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple
from uuid import UUID

import msgspec
import numpy as np
from msgspec.structs import replace
from numpy.typing import NDArray

from fedping.helper.aggregate import Key
from fedping.helper.enrol import join
from fedping.helper.folder import HelperFolder, make_helper
from fedping.protocol.privacy import Central, Privacy, Shared
from fedping.protocol.sharing.exchange import Answer, AnsweredArm, AskedArm, Request, read_signed, signed
from fedping.protocol.sharing.keys import Seal, identity_of, new_private_key, public_key, sealer, signing_key
from fedping.protocol.sharing.offer import Offer, Terms, signed_offer, terms_of
from fedping.protocol.sharing.shares import WORDS, info_of, leader_shares, words_of
from fedping.protocol.study import PublicStudy, public_study
from tests.support.private import private_study

HELPER, LEADER = signing_key(b"helper", "test"), signing_key(b"leader", "test")
WHEN = "2026-01-01T00:00:00.000+00:00"
NOW = datetime(2026, 1, 1, 0, 5, tzinfo=UTC)


@dataclass
class Counted:
    """A noise source that counts its draws, and returns 1, 2, 3, …"""

    drawn: list[tuple[float, int]] = field(default_factory=list)

    def integers(self, sigma: float, d: int) -> NDArray[np.int64]:
        self.drawn.append((sigma, d))
        return np.arange(1, d + 1)


def terms(d: int = 5, *, seal: Seal = "x25519", min_batch: int = 2) -> tuple[Terms, Key]:
    """Return terms without noise, and the key offered with them."""
    private = new_private_key(seal)
    made = Terms(
        helper=identity_of(HELPER),
        leader=identity_of(LEADER),
        study="study",
        line="main",
        arms=("treatment", "control"),
        numbers=d,
        sigma=0.0,
        min_batch=min_batch,
        proofs=False,
        seal=seal,
        key=public_key(seal, private).hex(),
        made=WHEN,
    )
    return made, Key(made, private)


def offer_of(made: Terms) -> Offer:
    return signed_offer(made, HELPER)


def keys_of(*keys: Key) -> dict[bytes, Key]:
    return {offer_of(key.terms).id: key for key in keys}


@cache
def document(number: int) -> UUID:
    return UUID(bytes=hashlib.sha256(b"document %d" % number).digest()[:16])


class AskedOf(NamedTuple):
    """An arm of a request, with the leader's shares in the same order, shape (k, 8 d)."""

    rows: AskedArm
    shares: NDArray[np.uint8]


def asked(
    made: Terms,
    vectors: NDArray[np.int64],
    *,
    arm: str = "treatment",
    version: int = 3,
    first: int = 0,
    to: Offer | None = None,
    **wrong: Any,
) -> AskedOf:
    """Return the arm of a request whose clients send vectors, shape (k, d).

    ``first`` is the number of the first client; ``wrong`` has context values that clients bind incorrectly.
    """
    k, d = vectors.shape
    whose = (to or offer_of(made)).id
    seal = sealer(made.seal, bytes.fromhex(made.key))
    seeds = [hashlib.sha256(b"seed %d" % (first + number)).digest() for number in range(k)]
    ids = [document(first + number) for number in range(k)]
    bound = {"study": made.study, "line": made.line, "version": version, "arm": arm, "d": d, "offer": whose}
    sealed = [seal(seed, info_of(**({"document": id_} | bound | wrong))) for seed, id_ in zip(seeds, ids, strict=True)]
    order = sorted(range(k), key=lambda number: ids[number].bytes)
    rows = AskedArm(
        arm=arm,
        documents=b"".join(ids[number].bytes for number in order),
        offers=whose * k,
        sealed=b"".join(sealed[number] for number in order),
    )
    return AskedOf(rows, leader_shares(vectors, seeds)[order])


def numbers(total: bytes) -> NDArray[np.uint64]:
    return np.frombuffer(total, "<u8").astype(np.uint64)


def combined(shares: NDArray[np.uint8], arm: AnsweredArm) -> NDArray[np.int64]:
    """Return the sum of both servers' shares, shape (d,)."""
    counted = np.delete(shares, list(arm.refused), axis=0)
    return WORDS.centred(WORDS.plus(WORDS.total(words_of(counted)), numbers(arm.total)))


# --- a folder ---

CENTRAL = Central(epsilon=3.0, delta=1e-6, rounds=5, population=1000, noise_multiplier=4.0)


def shared_study(helper: str, *, m: int = 4, central: Central | None = None, **shared: Any) -> PublicStudy:
    """Return a study as clients fetch it, whose arms ``treatment`` and ``control`` follow a two-server line."""
    settings = Privacy(central=central, shared=Shared(helper=helper, **({"min_batch": 2} | shared)))
    return public_study(private_study(m, privacy=settings))


class Helping(NamedTuple):
    """A helper's folder that has joined a line, with its offer and terms."""

    folder: HelperFolder
    offer: Offer
    terms: Terms


def joined(path: Path, **settings: Any) -> Helping:
    """Make a helper's folder that has joined line ``main`` of study ``private``."""
    folder = make_helper(path)
    study = shared_study(folder.identity, **settings)
    offer, _ = join(folder, study, study.lines[0], identity_of(LEADER))
    return Helping(folder, offer, terms_of(offer, folder.identity))


def request_of(helping: Helping, *arms: AskedArm, version: int = 3, **more: Any) -> bytes:
    """Return the bytes of a request."""
    told = {"study": "private", "line": "main", "version": version, "arms": arms, "made": WHEN}
    return signed(Request(**(told | more)), LEADER)


def clients_of(helping: Helping, k: int = 3, **more: Any) -> AskedOf:
    """Return the arm of a request of k clients, each of which sends ones."""
    ones = np.ones((k, helping.terms.numbers), np.int64)
    return asked(helping.terms, ones, to=helping.offer, **more)


def answer_in(data: bytes) -> Answer:
    return read_signed(data, Answer)


def write_study(study: PublicStudy, file: Path) -> Path:
    """Write a study to a file, as clients fetch it."""
    file.write_bytes(msgspec.json.encode(study))
    return file


def with_arm(study: PublicStudy, **changes: Any) -> PublicStudy:
    """Return a study with its first line changed."""
    return replace(study, lines=(replace(study.lines[0], **changes), *study.lines[1:]))
