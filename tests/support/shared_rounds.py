"""A two-server line, its helper in a folder, and landed pings, for tests of two-server rounds."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from pathlib import Path
from typing import Any
from uuid import UUID

import msgspec
import numpy as np
from numpy.typing import NDArray

from fedping.client_sim.privacy.vectors import Sharer
from fedping.helper.enrol import join
from fedping.helper.folder import HelperFolder, make_helper
from fedping.helper.requests import reply
from fedping.protocol.pipeline import Pipeline
from fedping.protocol.privacy import Central, ClippedFlat, Privacy, Shared, Signs, frame_of, vectors_of
from fedping.protocol.sharing.exchange import DOCUMENT_BYTES, Refused, digest_of_signed, read_signed
from fedping.protocol.sharing.exchange import Request as Request
from fedping.protocol.sharing.keys import Seal
from fedping.protocol.sharing.offer import Offer
from fedping.protocol.study import Study, public_study
from fedping.server_jobs.privacy.keys import leader_identity
from tests.support.private import private_study
from tests.support.private_rounds import PrivatePing, client
from tests.support.rounds import WHEN, id_of

KEY = bytes(range(32))
NOW = datetime.fromisoformat(WHEN)
CENTRAL = Central(epsilon=3, delta=1e-6, rounds=5, population=1000, noise_multiplier=4.0)


@dataclass
class ByHand:
    """A connection to a helper in this process; ``seen`` has the requests that arrived, ``spoil`` changes answers."""

    folder: HelperFolder
    now: datetime = NOW
    seen: list[bytes] = field(default_factory=list)
    spoil: Callable[[bytes], bytes] = lambda data: data

    def answer(self, request: bytes, most: int) -> bytes:
        self.seen.append(request)
        data = reply(self.folder, request, self.now).data
        assert len(data) <= most
        return self.spoil(data)


@dataclass
class Refusing:
    """A connection on which all requests are rejected: with the helper's signature if its folder is given."""

    reason: Any
    helper: HelperFolder | None = None

    def answer(self, request: bytes, most: int) -> bytes:
        refused = Refused(self.reason, "because it likes to.")
        if self.helper is not None:
            refused.sign(digest_of_signed(request), self.helper.key)
        raise refused


@dataclass(frozen=True)
class SharedLine:
    """A study with a two-server line, its helper, and the helper's offer."""

    study: Study
    helper: HelperFolder
    offer: Offer

    @property
    def way(self) -> ByHand:
        return ByHand(self.helper)

    def vectors(self, n: int, seed: int = 0) -> NDArray[np.int64]:
        """Return the vectors of n honest clients, shape (n, m + 3)."""
        line, rng = self.study.lines[0], np.random.default_rng(seed)
        assert line.privacy is not None
        updates = rng.normal(0.5, 1, (n, line.spec.m))
        tops = rng.integers(0, 2, n).astype(float)
        return vectors_of(frame_of(line.privacy, line.spec), updates, rng.uniform(0, 1, n), tops, line.privacy.loss)

    def pings(
        self, vectors: NDArray[np.int64], *, seed: int = 0, arm: str = "treatment", version: int = 0, first: int = 0
    ) -> list[PrivatePing]:
        """Return the pings of clients with these vectors, each with its document."""
        k, line = len(vectors), self.study.lines[0]
        begin = 1_000_000 * seed + 100_000 * version + (50_000 if arm == "control" else 0) + first
        numbers = list(range(begin, begin + k))
        documents = [id_of("document", number) for number in numbers]
        sharer = Sharer(self.study, line, self.offer)
        ids = [UUID(bytes=each) for each in documents]
        made = sharer.payloads(vectors, ids, [version] * k, arm, lambda n: [b"%032d" % x for x in numbers][:n])
        return [
            PrivatePing(client(self.study, arm, number), payload.as_py(), arm, version, "shared", document)
            for number, payload, document in zip(numbers, made.column, documents, strict=True)
        ]

    def crowd(self, n: int, *, seed: int = 0, arm: str = "treatment", version: int = 0) -> list[PrivatePing]:
        """Return one ping for each of n clients of an arm; another seed gives other clients."""
        return self.pings(self.vectors(n, seed), seed=seed, arm=arm, version=version)


def shared_line(
    folder: Path,
    *,
    m: int = 4,
    central: Central | None = None,
    min_batch: int = 5,
    min_clients: int = 1,
    seal: Seal = "x25519",
    proofs: bool = False,
    name: str = "private",
    helper: HelperFolder | None = None,
    **privacy: Any,
) -> SharedLine:
    """Return a two-server line whose helper has joined it, in a separate folder."""
    made = helper or make_helper(folder / "helper")
    shared = Shared(helper=made.identity, min_batch=min_batch, seal=seal, proofs=proofs)
    contribution = Signs() if proofs else ClippedFlat(norm=2.0)
    settings = Privacy(central=central, shared=shared, **{"contribution": contribution, **privacy})
    study = private_study(m, privacy=settings, name=name)
    line = msgspec.structs.replace(study.lines[0], pipeline=Pipeline(min_clients=min_clients))
    study = msgspec.structs.replace(study, lines=(line,))
    public = public_study(study)
    offer, _ = join(made, public, public.lines[0], leader_identity(KEY))
    return SharedLine(study, made, offer)


def plain(line: SharedLine) -> Study:
    """Return the same study without a helper, whose rounds must have the same results as the two-server line's."""
    [of] = line.study.lines
    assert of.privacy is not None
    central = of.privacy.central or msgspec.structs.replace(CENTRAL, noise_multiplier=None)
    privacy = msgspec.structs.replace(of.privacy, shared=None, central=central)
    return msgspec.structs.replace(line.study, lines=(msgspec.structs.replace(of, privacy=privacy, upload=()),))


def as_plain(pings: Sequence[PrivatePing], vectors: NDArray[np.int64]) -> list[PrivatePing]:
    """Return pings with their vectors in place of their shares."""
    return [
        replace(ping, payload=vector.astype("<i4").tobytes(), encoding="private")
        for ping, vector in zip(pings, vectors, strict=True)
    ]


def documents_in(request: bytes) -> dict[str, list[bytes]]:
    """Return the document ids in a request, by arm."""
    return {
        arm.arm: [arm.documents[at : at + DOCUMENT_BYTES] for at in range(0, len(arm.documents), DOCUMENT_BYTES)]
        for arm in read_signed(request, Request).arms
    }
