"""The vector that a client of a private line sends: clipped, with its own noise or in two shares, as the line asks."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
from typing import TypeAlias
from uuid import UUID

import numpy as np
from numpy.typing import NDArray

from fedping.client_sim.privacy.exact_random import Chance
from fedping.protocol.encodings.columns import fixed_payloads
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
from fedping.protocol.sharing.offer import Offer
from fedping.protocol.sharing.sealing import sealer
from fedping.protocol.sharing.shares import SEED_BYTES, info_of, layout, leader_shares
from fedping.protocol.sharing.terms import agreed
from fedping.protocol.sharing.votes import context_of, proven, votes_in
from fedping.protocol.spec import ModelSpec
from fedping.protocol.study import Line, PublicLine, PublicStudy, Study
from fedping.protocol.update import Payloads


class Contributor:
    """Makes the vectors of a line.

    Args:
        privacy: as published with the line.
        spec: the line's.

    Attributes:
        frame: how they are made.
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
        """Return what k clients send, shape (k, m + 3).

        Args:
            updates: theirs, shape (k, m).
            losses: theirs, shape (k,).
            tops: 1 where what was chosen was on top, else 0, shape (k,).
            chances: each client's own; there may be more.
        """
        made = vectors_of(self.frame, updates, losses, tops, self._privacy.loss)
        local = self._privacy.local
        if local is None:
            return made
        m = len(self.frame.group)
        made[:, m + 1 :] = 0  # noise of one's own covers the weights alone, so nothing else is told
        for vector, chance in zip(made, chances, strict=False):
            match local:
                case OneSign():
                    vector[:m] = self._one_sign(vector[:m], local.epsilon, chance)
                case LocalGaussian():
                    vector[self._kept] = self._noisy(vector[self._kept], chance)
        return made

    def _one_sign(self, signs: NDArray[np.int64], epsilon: float, chance: Chance) -> NDArray[np.int64]:
        """Return one weight's sign, or its opposite by randomised response (Warner 1965), and zeros."""
        place = int(self._kept[chance.below(len(self._kept))])
        up = chance.coin() if signs[place] == 0 else bool(signs[place] > 0)
        sent = np.zeros_like(signs)
        sent[place] = SIGN if up == chance.is_true(epsilon) else -SIGN
        return sent

    def _noisy(self, weights: NDArray[np.int64], chance: Chance) -> NDArray[np.int64]:
        most = farthest(self.frame, self._sigma)
        noisy: NDArray[np.int64] = weights + chance.discrete_gaussians(self._sigma, len(weights))
        return noisy.clip(-most, most)


Seeds: TypeAlias = Callable[[int], Sequence[bytes]]
"""Returns so many seeds of 32 bytes, each of which is the helper's share of one ping."""


def system_seeds(count: int) -> list[bytes]:
    """Return seeds from the operating system, as clients need them: whoever knows a seed can read the vector."""
    drawn = os.urandom(SEED_BYTES * count)
    return [drawn[at : at + SEED_BYTES] for at in range(0, len(drawn), SEED_BYTES)]


_BYTES_AT_A_TIME = 2**24
"""Of masks: those of many clients at once, of which several copies are made."""

FARTHEST = 2.0**52
"""How far from zero the numbers of hostile clients are at most, so that the sum of many can still be told."""


def unbounded(frame: Frame, updates: NDArray[np.floating]) -> NDArray[np.int64]:
    """Return the numbers that stand for k updates, shape (k, m), if nothing bounds them: what hostile clients send.

    Where the leader reads vectors it bounds them itself. Of shares nobody can, unless clients prove what they share.
    """
    with np.errstate(all="ignore"):
        numbers = np.nan_to_num(np.rint(updates / frame.units), posinf=FARTHEST, neginf=-FARTHEST)
    return np.where(frame.group >= 0, numbers.clip(-FARTHEST, FARTHEST), 0).astype(np.int64)


class Sharer:
    """Makes the payloads of a line of shares for one offer of its helper.

    A ping's shares are made once: what is sent again has the same bytes. Sealing draws a key for each message, from the
    operating system and from nowhere else, so that the same seeds make the same shares, but never the same payload. It
    takes about 150 µs a ping; everything else, for many pings at once, a few, or with proofs as much again.

    Args:
        study: what the line is of.
        line: the line.
        offer: as published with the line.

    Attributes:
        offer: the offer.

    Raises:
        InvalidSettings: the offer does not fit the line, or its key cannot be sealed for.
    """

    def __init__(self, study: Study | PublicStudy, line: Line | PublicLine, offer: Offer) -> None:
        self.offer, self._terms = offer, agreed(offer, study, line)
        self._seal = sealer(self._terms.seal, bytes.fromhex(self._terms.key))

    @property
    def size(self) -> int:
        """How many bytes a payload has."""
        return layout(self._terms.numbers, self._terms.seal, self._terms.metric).size

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
            vectors: the clients', shape (k, d).
            documents: the pings' document ids.
            versions: the model versions that the pings name.
            arm: the arm that they name.
            seeds: where the helper's shares are from.
        """
        terms, offer, drawn = self._terms, self.offer.id, seeds(len(vectors))
        made = np.empty((len(vectors), self.size), np.uint8)
        of_offer, of_leader, of_helper = layout(terms.numbers, terms.seal, terms.metric).parts(made)
        of_offer[:] = np.frombuffer(offer, np.uint8)
        step = max(1, _BYTES_AT_A_TIME // of_leader.shape[1])
        for at in range(0, len(vectors), step):
            some = slice(at, at + step)
            leaders, helpers = self._split(vectors[some], documents[some], versions[some], arm, drawn[some])
            of_leader[some] = leaders
            pings = zip(of_helper[some], helpers, versions[some], documents[some], strict=True)
            for row, share, version, document in pings:
                info = info_of(terms.study, terms.line, version, arm, document, terms.numbers, offer)
                row[:] = np.frombuffer(self._seal(share, info), np.uint8)
        return Payloads("shared", fixed_payloads(made))

    def _split(
        self,
        vectors: NDArray[np.int64],
        documents: Sequence[UUID],
        versions: Sequence[int],
        arm: str,
        seeds: Sequence[bytes],
    ) -> tuple[NDArray[np.uint8], Sequence[bytes]]:
        """Return what is the leader's of k vectors, shape (k, bytes), and what is the helper's."""
        terms = self._terms
        votes = votes_in(terms)
        if votes is None:
            return leader_shares(vectors, list(seeds)), seeds
        contexts = [context_of(terms.study, terms.line, version, arm, votes) for version in versions]
        nonces = np.frombuffer(b"".join(each.bytes for each in documents), np.uint8).reshape(len(vectors), 16)
        return proven(votes, vectors, nonces, seeds, contexts)

    def payload(self, vector: NDArray[np.int64], document: UUID, version: int, arm: str) -> bytes:
        """Return the payload of one client's ping, of its vector, shape (d,); its seed is the operating system's."""
        [made] = self.payloads(vector[None], [document], [version], arm).column.to_pylist()
        return bytes(made)
