"""The shares of a client: how a vector is split, and what of it travels how.

The payload of a ping is ``offer id (8) ‖ the leader's share ‖ the helper's, sealed``. Without proofs the helper's share
is a seed of 32 bytes, from which SHAKE128 makes a mask of d words of 64 bits; the leader's is the vector minus the mask
in :data:`fedping.protocol.sharing.ring.WORDS`, 8 d bytes, little-endian. Each alone is uniformly random. With proofs
both are as `fedping.protocol.sharing.votes` says.
"""

from __future__ import annotations

from hashlib import shake_128
from typing import NamedTuple
from uuid import UUID

import numpy as np
from numpy.typing import NDArray

from fedping.protocol.sharing.offer import OFFER_ID_BYTES, Seal
from fedping.protocol.sharing.ring import WORDS, Elements, from_bytes
from fedping.protocol.sharing.sealing import OVERHEAD

SEED_BYTES = 32
_MASK = b"fedping mask v1"


class Layout(NamedTuple):
    """Where in a payload what is, in bytes.

    Attributes:
        leader: how long the leader's share is.
        sealed: how long the helper's is, sealed.
    """

    leader: int
    sealed: int

    @property
    def size(self) -> int:
        """How long a payload is: all of a line are equally long."""
        return OFFER_ID_BYTES + self.leader + self.sealed

    def parts(self, rows: NDArray[np.uint8]) -> tuple[NDArray[np.uint8], NDArray[np.uint8], NDArray[np.uint8]]:
        """Return of k payloads, shape (k, size), the offers' ids, the leader's shares, and the helper's, sealed."""
        start = OFFER_ID_BYTES + self.leader
        return rows[:, :OFFER_ID_BYTES], rows[:, OFFER_ID_BYTES:start], rows[:, start:]


def layout(d: int, seal: Seal, metric: int = 0) -> Layout:
    """Return the layout of shares of d numbers; with proofs, where ``metric`` is the largest number of a metric."""
    if not metric:
        return Layout(8 * d, SEED_BYTES + OVERHEAD[seal])
    from fedping.protocol.proofs.prio3 import sizes
    from fedping.protocol.sharing.votes import Votes

    size = sizes(Votes(d, metric).circuit)
    return Layout(size.leader + size.public, size.helper + OVERHEAD[seal])


def info_of(study: str, line: str, version: int, arm: str, document: UUID, d: int, offer: bytes) -> bytes:
    """Return what a sealed share belongs to, as the helper has to say when it opens it.

    Args:
        study: the study's name.
        line: the line's.
        version: the model version that the ping names.
        arm: the name of the arm that the ping names.
        document: the ping's document id.
        d: how many numbers the vector has.
        offer: the id of the offer whose key it is sealed with, which stands for all of its terms.
    """
    return f"fedping share v1|{study}|{line}|{version}|{arm}|{document}|{d}|{offer.hex()}".encode()


def mask(seed: bytes, d: int) -> Elements:
    """Return the d words that follow from a seed of 32 bytes: SHAKE128("fedping mask v1" ‖ seed)."""
    return masks([seed], d).ravel()


def masks(seeds: list[bytes], d: int) -> Elements:
    """Return the masks of k seeds, shape (k, d)."""
    made = b"".join([shake_128(_MASK + seed).digest(8 * d) for seed in seeds])
    return from_bytes(made).reshape(len(seeds), d)


def leader_shares(vectors: NDArray[np.int64], seeds: list[bytes]) -> NDArray[np.uint8]:
    """Return the leader's shares of k vectors, shape (k, 8 d), given the helper's: the seeds."""
    found = WORDS.minus(WORDS.of(vectors), masks(seeds, vectors.shape[1]))
    return np.ascontiguousarray(found, "<u8").view(np.uint8).reshape(len(vectors), 8 * vectors.shape[1])


def words_of(shares: NDArray[np.uint8]) -> Elements:
    """Return the leader's shares, shape (k, 8 d), as numbers, shape (k, d)."""
    return np.ascontiguousarray(shares).view("<u8").astype(np.uint64, copy=False)
