"""Shares: splitting a client's vector between two servers, and adding up the servers' sums of shares.

The payload of a ping is ``offer id (8) ‖ leader's share ‖ helper's share, sealed``. Without proofs the helper's share
is a seed of 32 bytes, which SHAKE128 expands to a mask of d words of 64 bits; the leader's share is the vector minus
the mask in :data:`WORDS`, 8 d bytes, little-endian. Each share alone is uniformly random.

In sums of institutions with tables, the helper's share has, after the seed, a SHA-256 of the weights that the
institution was served and of their spec. The mask follows from seed and digest, so that the digest is bound to the
share, and the helper never sums shares with different digests.

With proofs (`fedping.protocol.proofs`), a vector of signs is shared as bits (:class:`Votes`): two bits per weight, one
for an upward and one for a downward vote; a few bits of fixed weights for the loss; one bit for whether the first
suggestion was on top. Any bits that a client can prove stand for a vector within the bound of the line
(`fedping.protocol.privacy.Frame`). The conversion from bits to numbers is linear, so each server applies it to its own
sum. The leader's share is then ``share of bits and proofs ‖ public share``, and the helper's share is two seeds; the
nonce is the document id.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from hashlib import shake_128
from typing import TYPE_CHECKING, NamedTuple, TypeAlias
from uuid import UUID

import numpy as np
from numpy.typing import NDArray

from fedping.protocol.privacy import METRICS, SIGN
from fedping.protocol.sharing.keys import OVERHEAD, Seal
from fedping.protocol.sharing.offer import OFFER_ID_BYTES

if TYPE_CHECKING:
    from fedping.protocol.proofs.sum_vec import SumVec
    from fedping.protocol.sharing.offer import Terms

Elements: TypeAlias = NDArray[np.uint64]
"""Elements of a ring: numbers below its modulus."""


@dataclass(frozen=True)
class Ring:
    """Whole numbers modulo ``modulus``, which is at most 2^64. Sums are exact, so their order does not matter."""

    modulus: int

    def of(self, whole: NDArray[np.int64]) -> Elements:
        """Return whole numbers as elements; negative numbers count down from the modulus."""
        found = whole.astype(np.uint64)  # wraps
        if self.modulus != 2**64:
            found = np.where(whole < 0, found - np.uint64(2**64 - self.modulus), found)
        return found

    def centred(self, elements: Elements) -> NDArray[np.int64]:
        """Return the whole numbers nearest to zero that elements represent; absolute values must be below 2^63."""
        if self.modulus == 2**64:
            return elements.astype(np.int64)
        above = elements > np.uint64(self.modulus // 2)
        return np.where(above, elements + np.uint64(2**64 - self.modulus), elements).astype(np.int64)

    def total(self, rows: Elements) -> Elements:
        """Return the sum of k rows of d elements, shape (d,); k is below 2^32."""
        if self.modulus == 2**64:
            words: Elements = rows.sum(axis=0, dtype=np.uint64)
            return words
        low = (rows & np.uint64(0xFFFFFFFF)).sum(axis=0, dtype=np.uint64).tolist()
        high = (rows >> np.uint64(32)).sum(axis=0, dtype=np.uint64).tolist()
        return np.array([((h << 32) + each) % self.modulus for h, each in zip(high, low, strict=True)], np.uint64)

    def plus(self, a: Elements, b: Elements) -> Elements:
        """Return a + b, for arrays of the same shape."""
        found: Elements = a + b
        if self.modulus != 2**64:
            over = (found < a) | (found >= np.uint64(self.modulus))
            found = np.where(over, found - np.uint64(self.modulus), found)
        return found

    def minus(self, a: Elements, b: Elements) -> Elements:
        """Return a - b, for arrays of the same shape."""
        found: Elements = a - b
        return found if self.modulus == 2**64 else np.where(a < b, found + np.uint64(self.modulus), found)


def as_bytes(elements: Elements) -> bytes:
    """Return elements in the form in which they are sent: 8 bytes each, little-endian."""
    return elements.astype("<u8").tobytes()


def from_bytes(data: bytes) -> Elements:
    """Return the elements in bytes of :func:`as_bytes`, shape (len(data) / 8,)."""
    return np.frombuffer(data, "<u8").astype(np.uint64, copy=False)


WORDS = Ring(2**64)
"""The ring of 64-bit words, for shares without proofs."""

PRIME = Ring(2**64 - 2**32 + 1)
"""The field of shares that come with proofs, Field64 of the VDAF draft."""

SEED_BYTES = 32
DIGEST_BYTES = 32
_MASK = b"fedping mask v1"
_RAND = b"fedping proof rand v1"


class Layout(NamedTuple):
    """Lengths of the parts of a payload, in bytes.

    Attributes:
        leader: length of the leader's share.
        sealed: length of the helper's sealed share.
    """

    leader: int
    sealed: int

    @property
    def size(self) -> int:
        """The length of a payload; all payloads of a line are equally long."""
        return OFFER_ID_BYTES + self.leader + self.sealed

    def parts(self, rows: NDArray[np.uint8]) -> tuple[NDArray[np.uint8], NDArray[np.uint8], NDArray[np.uint8]]:
        """Return the parts of k payloads, shape (k, size): offer ids, leader's shares, and sealed helper's shares."""
        start = OFFER_ID_BYTES + self.leader
        return rows[:, :OFFER_ID_BYTES], rows[:, OFFER_ID_BYTES:start], rows[:, start:]


def layout(d: int, seal: Seal, metric: int = 0, *, digest: bool = False) -> Layout:
    """Return the layout of shares of d numbers.

    Args:
        d: the count of numbers.
        seal: how the helper's share is sealed.
        metric: with proofs, the largest number of a metric; else 0.
        digest: whether the helper's share contains the digest of the weights.
    """
    if not metric:
        return Layout(8 * d, SEED_BYTES + (DIGEST_BYTES if digest else 0) + OVERHEAD[seal])
    from fedping.protocol.proofs.prio3 import sizes

    size = sizes(Votes(d, metric).circuit)
    return Layout(size.leader + size.public, size.helper + OVERHEAD[seal])


def layout_by(terms: Terms) -> Layout:
    """Return the layout of a line's shares under its helper's terms."""
    return layout(terms.numbers, terms.seal, terms.metric, digest=terms.seals_digest)


def info_of(study: str, line: str, version: int, arm: str, document: UUID, d: int, offer: bytes) -> bytes:
    """Return the context of a sealed share; the helper needs the same context to open the share.

    Args:
        study: the study's name.
        line: the line's name.
        version: the model version that the ping names.
        arm: the arm that the ping names.
        document: the ping's document id.
        d: number of numbers in the vector.
        offer: the id of the offer whose key seals the share; it identifies all of the offer's terms.
    """
    return f"fedping share v1|{study}|{line}|{version}|{arm}|{document}|{d}|{offer.hex()}".encode()


def mask(seed: bytes, d: int) -> Elements:
    """Return the d words that follow from a seed, and its digest, if any: SHAKE128("fedping mask v1" ‖ seed)."""
    return masks([seed], d).ravel()


def masks(seeds: list[bytes], d: int) -> Elements:
    """Return the masks of k seeds, shape (k, d)."""
    made = b"".join([shake_128(_MASK + seed).digest(8 * d) for seed in seeds])
    return from_bytes(made).reshape(len(seeds), d)


def leader_shares(vectors: NDArray[np.int64], seeds: list[bytes]) -> NDArray[np.uint8]:
    """Return the leader's shares of k vectors, shape (k, 8 d), given the seeds, which are the helper's shares."""
    found = WORDS.minus(WORDS.of(vectors), masks(seeds, vectors.shape[1]))
    return np.ascontiguousarray(found, "<u8").view(np.uint8).reshape(len(vectors), 8 * vectors.shape[1])


def words_of(shares: NDArray[np.uint8]) -> Elements:
    """Return the leader's shares, shape (k, 8 d), as numbers, shape (k, d)."""
    return np.ascontiguousarray(shares).view("<u8").astype(np.uint64, copy=False)


class Votes(NamedTuple):
    """The form of a line's vectors as bits.

    Attributes:
        numbers: d, the count of numbers in a vector.
        metric: largest number of a metric.
    """

    numbers: int
    metric: int

    @property
    def weights(self) -> int:
        """The number of weights among the numbers: m."""
        return self.numbers - len(METRICS)

    @property
    def bits(self) -> int:
        """The number of bits in a vector: L."""
        return 2 * self.weights + len(loss_weights(self.metric)) + 1

    @property
    def circuit(self) -> SumVec:
        """The circuit with which a client proves that its vector consists of bits."""
        return _circuit(self.bits)


def votes_in(terms: Terms) -> Votes | None:
    """Return the form of vectors as bits under an offer's terms; None if it requires no proofs."""
    return Votes(terms.numbers, terms.metric) if terms.proofs else None


@cache
def _circuit(bits: int) -> SumVec:
    from fedping.protocol.proofs.sum_vec import SumVec

    return SumVec.shortest(bits)


@cache
def loss_weights(metric: int) -> tuple[int, ...]:
    """Return the weights of the bits of a loss; their sums represent exactly the numbers from 0 to ``metric``."""
    found, left = [], metric
    while left:
        found.append((left + 1) // 2)
        left -= found[-1]
    return tuple(found)


def bits_of(votes: Votes, vectors: NDArray[np.int64]) -> NDArray[np.uint8]:
    """Return bounded vectors of signs, shape (k, m + 3), as bits, shape (k, L): ups, downs, loss bits, top bit."""
    m = votes.weights
    left, loss = vectors[:, m + 1].copy(), []
    for weight in loss_weights(votes.metric):
        loss.append(left >= weight)
        left -= np.where(loss[-1], weight, 0)
    told = np.stack([*loss, vectors[:, m + 2] > 0], axis=1)
    return np.concatenate([vectors[:, :m] > 0, vectors[:, :m] < 0, told], axis=1).astype(np.uint8)


def numbers_from(votes: Votes, shares: Elements, clients: int) -> Elements:
    """Return a share of a sum of vectors, shape (m + 3,), from a share of the sum of their bits, shape (L,).

    Args:
        votes: the form of vectors as bits.
        shares: one server's sum of its shares of bits, in the field.
        clients: number of clients, for the server that counts them; 0 for the other server.
    """
    m, p = votes.weights, PRIME.modulus
    elements = [int(each) for each in shares.tolist()]
    ups, downs, told = elements[:m], elements[m : 2 * m], elements[2 * m :]
    signs = [SIGN * (up - down) % p for up, down in zip(ups, downs, strict=True)]
    loss = sum(weight * bit for weight, bit in zip(loss_weights(votes.metric), told[:-1], strict=True)) % p
    return np.array([*signs, votes.metric * clients % p, loss, votes.metric * told[-1] % p], np.uint64)


def context_of(study: str, line: str, version: int, arm: str, votes: Votes) -> bytes:
    """Return the context that proofs are bound to; each proof is also bound to its document id."""
    return f"fedping proof v1|{study}|{line}|{version}|{arm}|{votes.numbers}|{votes.metric}".encode()


def proven(
    votes: Votes,
    vectors: NDArray[np.int64],
    documents: NDArray[np.uint8],
    seeds: Sequence[bytes],
    contexts: Sequence[bytes],
) -> tuple[NDArray[np.uint8], list[bytes]]:
    """Return the bytes that k clients send to the leader, shape (k, bytes), and to the helper.

    Args:
        votes: the form of vectors as bits.
        vectors: the clients' bounded vectors, shape (k, d).
        documents: the ids of the clients' pings, shape (k, 16).
        seeds: 32 secret bytes for each client, the source of all of its randomness, by SHAKE128.
        contexts: the context of each client (:func:`context_of`).
    """
    from fedping.protocol.proofs.prio3 import RAND_BYTES, shard

    drawn = b"".join(shake_128(_RAND + seed).digest(RAND_BYTES) for seed in seeds)
    rand = np.frombuffer(drawn, np.uint8).reshape(len(seeds), RAND_BYTES)
    made = shard(votes.circuit, bits_of(votes, vectors), documents, rand, list(contexts))
    return np.concatenate([made.leader, made.public], axis=1), [row.tobytes() for row in made.helper]


def split_public(votes: Votes, rows: NDArray[np.uint8]) -> tuple[NDArray[np.uint8], NDArray[np.uint8]]:
    """Return the leader's own share and the public share from the bytes that it received, shape (k, bytes)."""
    from fedping.protocol.proofs.prio3 import sizes

    own = sizes(votes.circuit).leader
    return rows[:, :own], rows[:, own:]


def bit_shares(votes: Votes, rows: NDArray[np.uint8]) -> Elements:
    """Return the leader's shares of bits, shape (k, L), from the received bytes; numbers outside the field become 0."""
    words = words_of(rows[:, : 8 * votes.bits])
    return np.where(words < np.uint64(PRIME.modulus), words, np.uint64(0))
