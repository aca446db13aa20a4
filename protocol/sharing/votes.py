"""Votes as bits: a vector of signs as what a proof can be about, and the way back, for sums of shares of it.

A weight is two bits, one that votes up and one that votes down; the loss is a few bits of fixed weights, which add up
to the largest that it can be; whether the first suggestion was on top is one. Whatever bits a client has proven to
send, the vector that they stand for is within the bound of the line (`fedping.protocol.privacy.Frame`). The way back is
linear, so it can be gone with shares: each server turns its own into numbers, and these add up.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from fedping.protocol.privacy import SIGN, Frame
from fedping.protocol.sharing.ring import PRIME, Elements


def loss_weights(metric: int) -> tuple[int, ...]:
    """Return the weights of the bits that a loss from 0 to ``metric`` is told by: any sum up to that can be had."""
    found, left = [], metric
    while left:
        found.append((left + 1) // 2)
        left -= found[-1]
    return tuple(found)


def bits_in(frame: Frame) -> int:
    """Return how many bits a vector of a line is: L."""
    return 2 * len(frame.group) + len(loss_weights(frame.metric)) + 1


def bits_of(frame: Frame, vectors: NDArray[np.int64]) -> NDArray[np.uint8]:
    """Return bounded vectors of signs, shape (k, m + 3), as bits, shape (k, L): ups, downs, those of the loss, top."""
    m = len(frame.group)
    left, loss = vectors[:, m + 1].copy(), []
    for weight in loss_weights(frame.metric):
        loss.append(left >= weight)
        left -= np.where(loss[-1], weight, 0)
    told = np.stack([*loss, vectors[:, m + 2] > 0], axis=1)
    return np.concatenate([vectors[:, :m] > 0, vectors[:, :m] < 0, told], axis=1).astype(np.uint8)


def numbers_from(frame: Frame, shares: Elements, clients: int) -> Elements:
    """Return a share of a sum of vectors, shape (m + 3,), from one of a sum of bits, shape (L,), in the field.

    Args:
        frame: the line's.
        shares: what one server has added up.
        clients: of how many clients, for the server that counts them; 0 for the other.
    """
    m, p = len(frame.group), PRIME.modulus
    elements = [int(each) for each in shares.tolist()]
    ups, downs, told = elements[:m], elements[m : 2 * m], elements[2 * m :]
    votes = [SIGN * (up - down) % p for up, down in zip(ups, downs, strict=True)]
    loss = sum(weight * bit for weight, bit in zip(loss_weights(frame.metric), told[:-1], strict=True)) % p
    return np.array([*votes, frame.metric * clients % p, loss, frame.metric * told[-1] % p], np.uint64)
