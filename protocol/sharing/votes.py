"""Votes as bits: a vector of signs as what a proof can be about, and the way back, for sums of shares of it.

A weight is two bits, one that votes up and one that votes down; the loss is a few bits of fixed weights, which add up
to the largest that it can be; whether the first suggestion was on top is one. Whatever bits a client has proven to
send, the vector that they stand for is within the bound of the line (`fedping.protocol.privacy.Frame`). The way back is
linear, so it can be gone with shares: each server turns its own into numbers, and these add up.

What is shared are the bits, in the field of the proofs (`fedping.protocol.proofs`). The leader's share is then
``share of bits and proofs ‖ public share``, the helper's two seeds; the nonce is the document id.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from hashlib import shake_128
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedping.protocol.privacy import METRICS, SIGN
from fedping.protocol.sharing.ring import PRIME, Elements
from fedping.protocol.sharing.shares import words_of

if TYPE_CHECKING:
    from fedping.protocol.proofs.sum_vec import SumVec
    from fedping.protocol.sharing.offer import Terms

_RAND = b"fedping proof rand v1"


class Votes(NamedTuple):
    """How vectors of a line are bits.

    Attributes:
        numbers: d, how many numbers a vector has.
        metric: the largest number of a metric.
    """

    numbers: int
    metric: int

    @property
    def weights(self) -> int:
        """How many of the numbers are weights: m."""
        return self.numbers - len(METRICS)

    @property
    def bits(self) -> int:
        """How many bits a vector is: L."""
        return 2 * self.weights + len(loss_weights(self.metric)) + 1

    @property
    def circuit(self) -> SumVec:
        """What a client proves: that they are bits."""
        return _circuit(self.bits)


def votes_in(terms: Terms) -> Votes | None:
    """Return how vectors are bits by the terms of an offer; None if clients prove nothing."""
    return Votes(terms.numbers, terms.metric) if terms.proofs else None


@cache
def _circuit(bits: int) -> SumVec:
    from fedping.protocol.proofs.sum_vec import SumVec

    return SumVec.shortest(bits)


@cache
def loss_weights(metric: int) -> tuple[int, ...]:
    """Return the weights of the bits that a loss from 0 to ``metric`` is told by: any sum up to that can be had."""
    found, left = [], metric
    while left:
        found.append((left + 1) // 2)
        left -= found[-1]
    return tuple(found)


def bits_of(votes: Votes, vectors: NDArray[np.int64]) -> NDArray[np.uint8]:
    """Return bounded vectors of signs, shape (k, m + 3), as bits, shape (k, L): ups, downs, those of the loss, top."""
    m = votes.weights
    left, loss = vectors[:, m + 1].copy(), []
    for weight in loss_weights(votes.metric):
        loss.append(left >= weight)
        left -= np.where(loss[-1], weight, 0)
    told = np.stack([*loss, vectors[:, m + 2] > 0], axis=1)
    return np.concatenate([vectors[:, :m] > 0, vectors[:, :m] < 0, told], axis=1).astype(np.uint8)


def numbers_from(votes: Votes, shares: Elements, clients: int) -> Elements:
    """Return a share of a sum of vectors, shape (m + 3,), from one of a sum of bits, shape (L,), in the field.

    Args:
        votes: how they are bits.
        shares: what one server has added up.
        clients: of how many clients, for the server that counts them; 0 for the other.
    """
    m, p = votes.weights, PRIME.modulus
    elements = [int(each) for each in shares.tolist()]
    ups, downs, told = elements[:m], elements[m : 2 * m], elements[2 * m :]
    signs = [SIGN * (up - down) % p for up, down in zip(ups, downs, strict=True)]
    loss = sum(weight * bit for weight, bit in zip(loss_weights(votes.metric), told[:-1], strict=True)) % p
    return np.array([*signs, votes.metric * clients % p, loss, votes.metric * told[-1] % p], np.uint64)


def context_of(study: str, line: str, version: int, arm: str, votes: Votes) -> bytes:
    """Return what proofs are for: they are valid for nothing else, and for no document id but their own."""
    return f"fedping proof v1|{study}|{line}|{version}|{arm}|{votes.numbers}|{votes.metric}".encode()


def proven(
    votes: Votes,
    vectors: NDArray[np.int64],
    documents: NDArray[np.uint8],
    seeds: Sequence[bytes],
    contexts: Sequence[bytes],
) -> tuple[NDArray[np.uint8], list[bytes]]:
    """Return what k clients send to the leader, shape (k, bytes), and to the helper.

    Args:
        votes: how vectors are bits.
        vectors: theirs, bounded, shape (k, d).
        documents: the ids of their pings, shape (k, 16).
        seeds: of each 32 secret bytes, from which all of its randomness follows, by SHAKE128.
        contexts: what each is for (:func:`context_of`).
    """
    from fedping.protocol.proofs.prio3 import RAND_BYTES, shard

    drawn = b"".join(shake_128(_RAND + seed).digest(RAND_BYTES) for seed in seeds)
    rand = np.frombuffer(drawn, np.uint8).reshape(len(seeds), RAND_BYTES)
    made = shard(votes.circuit, bits_of(votes, vectors), documents, rand, list(contexts))
    return np.concatenate([made.leader, made.public], axis=1), [row.tobytes() for row in made.helper]


def split_public(votes: Votes, rows: NDArray[np.uint8]) -> tuple[NDArray[np.uint8], NDArray[np.uint8]]:
    """Return of what the leader got, shape (k, bytes), its own share and the public one."""
    from fedping.protocol.proofs.prio3 import sizes

    own = sizes(votes.circuit).leader
    return rows[:, :own], rows[:, own:]


def bit_shares(votes: Votes, rows: NDArray[np.uint8]) -> Elements:
    """Return the leader's shares of the bits, shape (k, L), from what it got; numbers beyond the field become 0."""
    words = words_of(rows[:, : 8 * votes.bits])
    return np.where(words < np.uint64(PRIME.modulus), words, np.uint64(0))
