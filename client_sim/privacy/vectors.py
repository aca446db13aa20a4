"""The vector that a client of a private line sends: clipped, and with the client's noise or in two shares."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
from typing import TypeAlias
from uuid import UUID

import numpy as np
from numpy.typing import NDArray

from fedping.client_sim.privacy.exact_random import Chance
from fedping.protocol.encodings.payloads import fixed_payloads
from fedping.protocol.privacy import (
    SIGN,
    Frame,
    LocalGaussian,
    OneSign,
    Privacy,
    farthest,
    frame_of,
    local_sigma,
    vectors_of,
)
from fedping.protocol.sharing.keys import sealer
from fedping.protocol.sharing.offer import Offer
from fedping.protocol.sharing.shares import SEED_BYTES, context_of, info_of, layout_by, leader_shares, proven, votes_in
from fedping.protocol.sharing.terms import agreed
from fedping.protocol.spec import ModelSpec
from fedping.protocol.study import Line, PublicLine, PublicStudy, Study
from fedping.protocol.update import Payloads


class Contributor:
    """Makes the vectors of a line.

    Args:
        privacy: settings as published with the line.
        spec: the line's model spec.

    Attributes:
        frame: layout and bounds of the vectors.
    """

    def __init__(self, privacy: Privacy, spec: ModelSpec) -> None:
        self.frame: Frame = frame_of(privacy, spec)
        self._privacy, self._sigma = privacy, local_sigma(privacy, self.frame)
        self._kept = np.flatnonzero(self.frame.group >= 0)

    def vectors(
        self,
        updates: NDArray[np.floating],
        losses: NDArray[np.float64],
        tops: NDArray[np.float64],
        chances: Iterable[Chance],
    ) -> NDArray[np.int64]:
        """Return the vectors of k clients, shape (k, m + 3).

        Args:
            updates: their updates, shape (k, m).
            losses: their losses, shape (k,).
            tops: 1 where the choice was on top, else 0, shape (k,).
            chances: a noise source for each client, and possibly more.
        """
        vectors = vectors_of(self.frame, updates, losses, tops, self._privacy.loss)
        local = self._privacy.local
        if local is None:
            return vectors
        m = len(self.frame.group)
        vectors[:, m + 1 :] = 0  # local noise covers only the weights, so only weights are sent
        for vector, chance in zip(vectors, chances, strict=False):
            match local:
                case OneSign():
                    vector[:m] = self._one_sign(vector[:m], local.epsilon, chance)
                case LocalGaussian():
                    vector[self._kept] = self._noisy(vector[self._kept], chance)
        return vectors

    def _one_sign(self, signs: NDArray[np.int64], epsilon: float, chance: Chance) -> NDArray[np.int64]:
        """Return zeros except for one weight's sign, or its opposite by randomised response (Warner 1965)."""
        place = int(self._kept[chance.below(len(self._kept))])
        up = chance.coin() if signs[place] == 0 else bool(signs[place] > 0)
        response = np.zeros_like(signs)
        response[place] = SIGN if up == chance.is_true(epsilon) else -SIGN
        return response

    def _noisy(self, weights: NDArray[np.int64], chance: Chance) -> NDArray[np.int64]:
        most = farthest(self.frame, self._sigma)
        noisy: NDArray[np.int64] = weights + chance.discrete_gaussians(self._sigma, len(weights))
        return noisy.clip(-most, most)


Seeds: TypeAlias = Callable[[int], Sequence[bytes]]
"""Function that returns a number of seeds of 32 bytes; each is the helper's share of a ping."""


def system_seeds(count: int) -> list[bytes]:
    """Return secret seeds from the operating system; anyone with a seed and the leader's share can read the vector."""
    drawn = os.urandom(SEED_BYTES * count)
    return [drawn[at : at + SEED_BYTES] for at in range(0, len(drawn), SEED_BYTES)]


_BYTES_AT_A_TIME = 2**24
"""Maximum bytes of masks at a time, without their copies."""

FARTHEST = 2.0**52
"""Maximum distance from zero of hostile clients' numbers, so that sums of many stay exact."""


def unbounded(frame: Frame, updates: NDArray[np.floating]) -> NDArray[np.int64]:
    """Return the numbers of k unbounded updates, shape (k, m), which hostile clients send.

    A leader that can read vectors bounds them itself. Shares can't be bounded, unless clients prove the bounds.
    """
    with np.errstate(all="ignore"):
        numbers = np.nan_to_num(np.rint(updates / frame.units), posinf=FARTHEST, neginf=-FARTHEST)
    return np.where(frame.group >= 0, numbers.clip(-FARTHEST, FARTHEST), 0).astype(np.int64)


class Sharer:
    """Makes the payloads of a two-server line for one offer of its helper.

    A ping's shares are made once: a retry has the same bytes. Sealing draws a new key for each message from the
    operating system, so that equal seeds give equal shares, but never equal payloads. Sealing takes about 150 µs a
    ping; all other steps, for many pings at once, take a few µs, or with proofs about as long as sealing.

    Args:
        study: the study.
        line: the line.
        offer: the offer, as published with the line.

    Attributes:
        offer: the offer.

    Raises:
        InvalidSettings: the offer doesn't fit the line, or its key is invalid.
    """

    def __init__(self, study: Study | PublicStudy, line: Line | PublicLine, offer: Offer) -> None:
        self.offer, self._terms = offer, agreed(offer, study, line)
        self._seal = sealer(self._terms.seal, bytes.fromhex(self._terms.key))

    @property
    def size(self) -> int:
        """The number of bytes of a payload."""
        return layout_by(self._terms).size

    def payloads(
        self,
        vectors: NDArray[np.int64],
        documents: Sequence[UUID],
        versions: Sequence[int],
        arm: str,
        seeds: Seeds = system_seeds,
    ) -> Payloads:
        """Return the payloads of k pings.

        Args:
            vectors: the clients' vectors, shape (k, d).
            documents: the pings' document ids.
            versions: the model versions that the pings name.
            arm: the arm that the pings name.
            seeds: returns the seeds of the helper's shares.
        """
        terms, offer, drawn_seeds = self._terms, self.offer.id, seeds(len(vectors))
        payloads = np.empty((len(vectors), self.size), np.uint8)
        of_offer, of_leader, of_helper = layout_by(terms).parts(payloads)
        of_offer[:] = np.frombuffer(offer, np.uint8)
        step = max(1, _BYTES_AT_A_TIME // of_leader.shape[1])
        for at in range(0, len(vectors), step):
            some = slice(at, at + step)
            leaders, helpers = self._split(vectors[some], documents[some], versions[some], arm, drawn_seeds[some])
            of_leader[some] = leaders
            pings = zip(of_helper[some], helpers, versions[some], documents[some], strict=True)
            for row, share, version, document in pings:
                info = info_of(terms.study, terms.line, version, arm, document, terms.numbers, offer)
                row[:] = np.frombuffer(self._seal(share, info), np.uint8)
        return Payloads("shared", fixed_payloads(payloads))

    def _split(
        self,
        vectors: NDArray[np.int64],
        documents: Sequence[UUID],
        versions: Sequence[int],
        arm: str,
        seeds: Sequence[bytes],
    ) -> tuple[NDArray[np.uint8], Sequence[bytes]]:
        """Return the leader's shares of k vectors, shape (k, bytes), and the helper's."""
        terms = self._terms
        votes = votes_in(terms)
        if votes is None:
            return leader_shares(vectors, list(seeds)), seeds
        contexts = [context_of(terms.study, terms.line, version, arm, votes) for version in versions]
        nonces = np.frombuffer(b"".join(each.bytes for each in documents), np.uint8).reshape(len(vectors), 16)
        return proven(votes, vectors, nonces, seeds, contexts)

    def payload(self, vector: NDArray[np.int64], document: UUID, version: int, arm: str) -> bytes:
        """Return the payload of one client's vector, shape (d,), with a seed of the operating system."""
        [made] = self.payloads(vector[None], [document], [version], arm).column.to_pylist()
        return bytes(made)
