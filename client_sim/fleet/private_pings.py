"""Pings of private lines, for many clients at once: the clients that contribute, and their contributions."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from random import Random
from types import MappingProxyType
from typing import Protocol
from uuid import UUID

import msgspec
import numpy as np
from msgspec import UnsetType
from numpy.typing import NDArray

from fedping.client_sim.fleet.roster import uuids
from fedping.client_sim.learning.states import ClientStates, StatesOf
from fedping.client_sim.privacy import NEVER, Chance, Contributed, Contributor, Sharer, has_turn, rotating_id
from fedping.client_sim.privacy.vectors import unbounded
from fedping.protocol.draws import FloatArray, Keys, bits, child_keys
from fedping.protocol.encodings.private import vector_payloads
from fedping.protocol.errors import InvalidSettings
from fedping.protocol.ping import PRIVATE_UPDATE, Ping, PrivatePayload
from fedping.protocol.privacy import Frame
from fedping.protocol.sharing.offer import Offer
from fedping.protocol.study import Arm, PublicLine, PublicStudy
from fedping.protocol.update import EncodedUpdate, Payloads

_COUNTED = {"times": np.array(NEVER.times), "last": np.array(NEVER.last)}
_SECRETS, _SEEDS = 16, 17

_encoder = msgspec.json.Encoder()


class Randomness(Protocol):
    """Source of the secrets and noise of clients of private lines, which no server may know or compute."""

    def secrets(self, roots: Keys) -> Sequence[bytes]:
        """Return the secret of each of k clients, 32 bytes, from keys that are always the same, shape (k,)."""
        ...

    def chances(self, keys: Keys) -> Iterable[Chance]:
        """Yield a noise source for each of k clients, and possibly more."""
        ...

    def seeds(self, keys: Keys) -> Sequence[bytes]:
        """Return the seed of the helper's share of each of k pings, 32 bytes."""
        ...

    def documents(self, keys: Keys) -> list[UUID]:
        """Return the document ids of k pings."""
        ...


class Simulated:
    """A :class:`Randomness` that follows from the keys of simulated clients, which need no protection.

    Their actions and shares can be repeated, except for the bytes in which one of two shares is sealed.
    """

    def secrets(self, roots: Keys) -> Sequence[bytes]:
        """See :meth:`Randomness.secrets`."""
        return _bytes_of(roots, _SECRETS)

    def chances(self, keys: Keys) -> Iterable[Chance]:
        """See :meth:`Randomness.chances`."""
        return (Chance(Random(key).randbytes) for key in keys.tolist())

    def seeds(self, keys: Keys) -> Sequence[bytes]:
        """See :meth:`Randomness.seeds`."""
        return _bytes_of(keys, _SEEDS)

    def documents(self, keys: Keys) -> list[UUID]:
        """See :meth:`Randomness.documents`."""
        return uuids(keys)


SIMULATED = Simulated()


class MakesVectors(Protocol):
    """Makes the vectors of a line's clients, like :class:`fedping.client_sim.privacy.Contributor`."""

    frame: Frame

    def vectors(
        self, updates: NDArray[np.floating], losses: FloatArray, tops: FloatArray, chances: Iterable[Chance]
    ) -> NDArray[np.int64]:
        """Return the vectors of k clients, shape (k, m + 3)."""
        ...


class PrivatePings:
    """Makes the pings of the clients of a study with private lines.

    Args:
        study: a study whose lines are private.
        seed: part of the name under which clients count their contributions.
        states_of: returns the storage of these counts.
        randomness: source of secrets and noise; by default, that of simulated clients.
        makers: makers of vectors, by line, for lines of institutions with tables.

    Raises:
        InvalidSettings: the offer of a line's helper doesn't fit the line, or the line is for institutions with tables.

    Attributes:
        waits: the reason why the clients of a two-server line send nothing, by the line's name.
        randomness: the given randomness, or the default.
    """

    def __init__(
        self,
        study: PublicStudy,
        seed: int,
        states_of: StatesOf,
        randomness: Randomness = SIMULATED,
        makers: Mapping[str, MakesVectors] = MappingProxyType({}),
    ) -> None:
        self._study, self.randomness = study, randomness
        self._sharers: dict[str, Sharer] = {}
        self.waits: dict[str, str] = {}
        self._shared = {line.name: line for line in study.lines if line.privacy and line.privacy.shared}
        self._unproven = {name for name, line in self._shared.items() if not _proves(line)}
        for line in self._shared.values():
            self._use_offer(line, line.offer)
        self._makers: dict[str, MakesVectors] = dict(makers)
        self._limits: dict[str, int | None] = {}
        self._shares: dict[str, float] = {}
        for line in study.lines:
            if line.privacy is not None:
                if line.privacy.rows is not None and line.name not in makers:
                    raise InvalidSettings(
                        f"line '{line.name}' of study '{study.name}' is for institutions that protect each row of "
                        "their tables; take part by 'fedping join'"
                    )
                if line.name not in makers:
                    self._makers[line.name] = Contributor(line.privacy, line.spec)
                self._limits[line.name] = line.privacy.contributions
                self._shares[line.name] = line.privacy.turns
        self._counts: Mapping[str, ClientStates] = {
            name: states_of(f"study {study.name}, line {name}, seed {seed}, contributions", _COUNTED)
            for name in self._makers
        }

    @property
    def needs_offers(self) -> bool:
        """Whether clients fetch offers with their models, because an offer may be published or replaced."""
        return bool(self._shared)

    def use_offers(self, study: PublicStudy) -> None:
        """Use the study's currently published offers; clients wait if one doesn't fit.

        An offer has to fit the study that the clients joined, whose settings never change. An offer with another
        helper, or with less noise, is not accepted.
        """
        for published in study.lines:
            if (line := self._shared.get(published.name)) is None:
                continue
            try:
                self._use_offer(line, published.offer)
            except InvalidSettings as error:
                self._sharers.pop(line.name, None)
                self.waits[line.name] = str(error)

    def _use_offer(self, line: PublicLine, offer: Offer | UnsetType) -> None:
        if isinstance(offer, UnsetType):
            self._sharers.pop(line.name, None)
            self.waits[line.name] = (
                f"line '{line.name}' of study '{self._study.name}' has no offer of its helper yet; 'fedping study "
                "offer' publishes one"
            )
            return
        before = self._sharers.get(line.name)
        if before is None or before.offer != offer:
            self._sharers[line.name] = Sharer(self._study, line, offer)
        self.waits.pop(line.name, None)

    def choose(
        self, line: str, who: NDArray[np.int64], versions: NDArray[np.int64], roots: Keys, useful: NDArray[np.bool_]
    ) -> NDArray[np.intp]:
        """Return the rows of S interactions that their clients contribute, and count the contributions.

        A client contributes its first useful interaction, if it is selected for its version and has not contributed to
        it. While the line waits for an offer, no client contributes.

        Args:
            line: the line's name.
            who: the client of each interaction, shape (S,).
            versions: the version that the client of each interaction holds, shape (S,).
            roots: a key of each client that is always the same, shape (S,).
            useful: whether each interaction has an example, shape (S,).
        """
        if line in self.waits:
            return np.zeros(0, np.intp)
        rows = np.flatnonzero(useful & (versions >= 0))
        rows = rows[np.sort(np.unique(who[rows], return_index=True)[1])]
        rows = rows[self.willing(line, who[rows], versions[rows], roots[rows])]
        pairs = zip(self._before(line, who[rows]), versions[rows].tolist(), strict=True)
        after = [one.after(version) for one, version in pairs]
        if after:
            counts, last = np.array(after).T
            self._counts[line].save(who[rows], {"times": counts, "last": last})
        return rows

    def willing(self, line: str, who: NDArray[np.int64], versions: NDArray[np.int64], roots: Keys) -> NDArray[np.bool_]:
        """Return whether each of k clients may contribute to the version that it holds, shape (k,).

        Such a client is selected for the version, has not contributed to it, and has not reached its limit.
        """
        pairs = zip(self._before(line, who), versions.tolist(), strict=True)
        willing = (versions >= 0) & np.array([one.may(version, self._limits[line]) for one, version in pairs], np.bool_)
        if (share := self._shares[line]) < 1:
            rows = np.flatnonzero(willing)
            draws = zip(self.randomness.secrets(roots[rows]), versions[rows].tolist(), strict=True)
            willing[rows] = [has_turn(self._study.name, secret, line, version, share) for secret, version in draws]
        return willing

    def _before(self, line: str, who: NDArray[np.int64]) -> list[Contributed]:
        """Return the contributions of clients to a line so far."""
        counts = self._counts[line].load(who)
        return [Contributed(*each) for each in zip(counts["times"].tolist(), counts["last"].tolist(), strict=True)]

    def vectors(
        self,
        line: str,
        updates: NDArray[np.floating] | None,
        losses: FloatArray,
        tops: FloatArray,
        keys: Keys,
        forging: NDArray[np.bool_] | None = None,
    ) -> NDArray[np.int64]:
        """Return the vectors of k clients, shape (k, d), with zeros for updates that they don't compute.

        Args:
            line: the line's name.
            updates: the clients' updates, shape (k, m).
            losses: the clients' losses, shape (k,).
            tops: 1 where the choice was on top, else 0, shape (k,).
            keys: key of each client's noise, shape (k,).
            forging: whether each client exceeds the bounds, shape (k,). Clients do so only in shares without proofs,
                which hide it. Elsewhere their vectors would be rejected or clipped, so they stay within the bounds.
        """
        maker = self._makers[line]
        m = len(maker.frame.group)
        computed = np.zeros((len(losses), m)) if updates is None else updates
        vectors = maker.vectors(computed, losses, tops, self.randomness.chances(keys))
        if forging is not None and line in self._unproven:
            vectors[forging, :m] = unbounded(maker.frame, computed[forging])
        return vectors

    def payloads(
        self,
        arm: Arm,
        versions: NDArray[np.int64],
        documents: Sequence[UUID],
        vectors: NDArray[np.int64],
        keys: Keys,
    ) -> Payloads:
        """Return the updates of k clients' pings.

        Args:
            arm: the clients' arm.
            versions: the version that each holds, shape (k,).
            documents: ids of their pings.
            vectors: their vectors, shape (k, d).
            keys: key of each client's shares, shape (k,).
        """
        assert arm.line is not None
        if (sharer := self._sharers.get(arm.line)) is None:
            return Payloads("private", vector_payloads(vectors))
        seeds = self.randomness.seeds(keys)
        return sharer.payloads(vectors, documents, versions.tolist(), arm.name, lambda _: seeds)

    def client_ids(self, arm: Arm, versions: NDArray[np.int64], roots: Keys) -> Iterator[UUID]:
        """Yield the client ids of k clients' pings; see :meth:`bodies` for the arguments."""
        assert arm.line is not None
        for secret, version in zip(self.randomness.secrets(roots), versions.tolist(), strict=True):
            yield rotating_id(self._study, secret, arm.line, version, arm.name)

    def bodies(
        self, arm: Arm, versions: NDArray[np.int64], roots: Keys, updates: Payloads
    ) -> Iterator[tuple[UUID, bytes]]:
        """Yield the client id and the JSON of each of k pings.

        Args:
            arm: the clients' arm.
            versions: the version that each holds, shape (k,).
            roots: a key of each client that is always the same, shape (k,).
            updates: the updates of the k pings.
        """
        clients = self.client_ids(arm, versions, roots)
        for client, version, payload in zip(clients, versions.tolist(), updates.column.to_pylist(), strict=True):
            private = PrivatePayload(
                model_version=version,
                study_variation=arm.name,
                update=EncodedUpdate(updates.encoding, payload),
            )
            yield client, _encoder.encode(Ping(client_id=client, type=PRIVATE_UPDATE.name, payload=private))


def _proves(line: PublicLine) -> bool:
    return line.privacy is not None and line.privacy.shared is not None and line.privacy.shared.proofs


def _bytes_of(keys: Keys, which: int) -> list[bytes]:
    """Return 32 bytes for each key: a client's secret from its root, or a seed from the key of a ping."""
    return [secret.tobytes() for secret in bits(child_keys(keys, which), 4)]


def private_pings(study: PublicStudy, seed: int, states_of: StatesOf) -> PrivatePings | None:
    """Return the maker of a study's private pings; None if its lines aren't private."""
    return PrivatePings(study, seed, states_of) if study.pings == PRIVATE_UPDATE.name else None
