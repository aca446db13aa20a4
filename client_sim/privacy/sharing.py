"""The shares that a client of a line of shares sends (`fedping.protocol.sharing.shares`)."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import TypeAlias
from uuid import UUID

import numpy as np
from numpy.typing import NDArray

from fedping.protocol.encodings.columns import fixed_payloads
from fedping.protocol.errors import InvalidSettings
from fedping.protocol.privacy import Frame
from fedping.protocol.sharing.agreed import agreed
from fedping.protocol.sharing.offer import Offer
from fedping.protocol.sharing.sealing import sealer
from fedping.protocol.sharing.shares import SEED_BYTES, info_of, layout, leader_shares
from fedping.protocol.study import Line, PublicLine, PublicStudy, Study
from fedping.protocol.update import Payloads

Seeds: TypeAlias = Callable[[int], Sequence[bytes]]
"""Returns so many seeds of 32 bytes, each of which is the helper's share of one ping."""


def system_seeds(count: int) -> list[bytes]:
    """Return seeds from the operating system, as clients need them: whoever knows a seed can read the vector."""
    drawn = os.urandom(SEED_BYTES * count)
    return [drawn[at : at + SEED_BYTES] for at in range(0, len(drawn), SEED_BYTES)]


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
    takes about 150 µs a ping; everything else, for many pings at once, a few.

    Args:
        study: what the line is of.
        line: the line.
        offer: as published with the line.

    Attributes:
        offer: the offer.

    Raises:
        InvalidSettings: the offer does not fit the line, its key cannot be sealed for, or the line asks for proofs.
    """

    def __init__(self, study: Study | PublicStudy, line: Line | PublicLine, offer: Offer) -> None:
        self.offer, self._terms = offer, agreed(offer, study, line)
        if self._terms.proofs:
            raise InvalidSettings(
                f"clients of line '{line.name}' of study '{study.name}' are to prove their votes, which simulated "
                "clients do not do; let browsers take part, or create a study without 'proofs'"
            )
        self._seal = sealer(self._terms.seal, bytes.fromhex(self._terms.key))

    @property
    def size(self) -> int:
        """How many bytes a payload has."""
        return layout(self._terms.numbers, self._terms.seal).size

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
        sealed = [
            self._seal(seed, info_of(terms.study, terms.line, version, arm, document, terms.numbers, offer))
            for seed, version, document in zip(drawn, versions, documents, strict=True)
        ]
        k = len(vectors)
        parts = (offer * k, leader_shares(vectors, list(drawn)).tobytes(), b"".join(sealed))
        rows = [np.frombuffer(part, np.uint8).reshape(k, len(part) // k) for part in parts] if k else []
        made = np.concatenate(rows, axis=1) if k else np.zeros((0, self.size), np.uint8)
        return Payloads("shared", fixed_payloads(made))

    def payload(self, vector: NDArray[np.int64], document: UUID, version: int, arm: str) -> bytes:
        """Return the payload of one client's ping, of its vector, shape (d,); its seed is the operating system's."""
        [made] = self.payloads(vector[None], [document], [version], arm).column.to_pylist()
        return bytes(made)
