"""Random rotations of updates, block by block: for the link `rotation`, and within `levels` and `eden`.

A block of D weights, D a power of two, becomes (1/√D) H S h: S flips signs at random, H is the Walsh-Hadamard matrix in
its natural order (Suresh et al. 2017). Butterflies only add and subtract, so that every machine gets the same bits.
A product with a matrix is five times as fast, but adds in an order of the processor's own, which is harmless only where
all sums are exact: a server transforms the levels that were sent, as whole numbers, and scales them afterwards.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from functools import cache
from itertools import product
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, TypeVar

import numpy as np
from msgspec import Meta, Struct
from numpy.typing import NDArray

from fedping.protocol.draws import Keys, bits, child_keys
from fedping.protocol.encodings.blocks import BLOCK
from fedping.protocol.link_ends import ClientEnd, Ends, ServerEnd
from fedping.protocol.rules import Traits

if TYPE_CHECKING:
    from fedping.protocol.spec import ModelSpec


class Rotation(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True, tag_field="link", tag="rotation"):
    """Rotate an update at random, by the same rotation for every client, so that no weight is much larger than others.

    If the server takes a mean of the updates, it rotates back only the mean; otherwise each update. The rotation
    follows from ``seed``.
    """

    traits: ClassVar[Traits] = frozenset({"inexact"})

    seed: Annotated[int, Meta(ge=0, lt=2**53)] = 0

    def ends(self, spec: ModelSpec) -> Ends:
        """Return the link's two ends. The rotation is linear, so it can be undone once, on a sum of updates."""
        seeds = np.array([self.seed], np.uint64)
        return ClientEnd(transform=lambda updates, _: rotated(updates, seeds)), ServerEnd(
            undo=lambda updates: rotated_back(updates, seeds),
            undo_sum=lambda spec, direction: rotated_back(direction[None], seeds)[0],
        )


EXAMPLES = (Rotation(seed=5),)
"""Example settings for tests."""

Real = TypeVar("Real", bound=np.floating[Any])

_IN_CACHE = 63 * BLOCK
"""Numbers rotated at a time, so few that they stay in the processor's cache."""

_EIGHT_SIGNS = np.float32(1) - 2 * np.unpackbits(np.arange(256, dtype=np.uint8)[:, None], axis=1, bitorder="little")
"""The eight signs of each byte, the lowest bit's first; a bit of 1 is -1."""

_SIDE = 32
"""Numbers in a row when a block is multiplied as a matrix; a block of 1,024 numbers is square."""

_ROWS = 256
"""Rows multiplied at a time, few enough that libraries start no threads for them."""


def hadamard(blocks: NDArray[Real]) -> NDArray[Real]:
    """Return the unscaled Walsh-Hadamard transforms of blocks along the last axis, whose length is a power of two."""
    return np.ascontiguousarray(_hadamard(blocks)).reshape(blocks.shape)


def _hadamard(blocks: NDArray[Real]) -> NDArray[Real]:
    """Return transforms as a view of shape (…, A, B) for blocks of A B numbers, contiguous along another axis.

    A block, as a matrix of A rows and B columns, is transformed down the columns, then along the rows. The transformed
    axis comes first each time, so that one addition covers long runs over all blocks.
    """
    *others, size = blocks.shape
    a = 1 << (size.bit_length() // 2)
    b, n = size // a, math.prod(others)
    down = np.ascontiguousarray(np.moveaxis(blocks.reshape(*others, a, b), -2, 0)).reshape(a, n, b)
    along = np.ascontiguousarray(_butterflies(down).transpose(2, 1, 0))
    return np.moveaxis(_butterflies(along).reshape(b, *others, a), 0, -1)


def _butterflies(numbers: NDArray[Real]) -> NDArray[Real]:
    """Return the transforms along the first axis of a contiguous array, which is overwritten."""
    shape, other = numbers.shape, np.empty_like(numbers)
    half = shape[0] // 2
    while half:
        pairs, into = (each.reshape(shape[0] // (2 * half), 2, -1) for each in (numbers, other))
        np.add(pairs[:, 0], pairs[:, 1], out=into[:, 0])
        np.subtract(pairs[:, 0], pairs[:, 1], out=into[:, 1])
        numbers, other, half = other, numbers, half // 2
    return numbers


def exact_hadamard(blocks: NDArray[np.float32]) -> NDArray[np.float32]:
    """Return the unscaled transforms of whole numbers along the last axis, whose length is a power of two up to 1,024.

    In single precision, whole numbers below 2^24 are added exactly in any order, and so are multiples of a power of
    two. The caller ensures that no sum is larger. Sums of D numbers up to c are at most c D, and at most c D √D after a
    second transform, since a sum is at most √D times the root of the sum of squares.

    Args:
        blocks: without negative zeros, because the sign of a sum of zeros would depend on the library.
    """
    size = blocks.shape[-1]
    across = min(size, _SIDE)
    rows, down = blocks.reshape(-1, across), size // across
    turned = np.empty(rows.shape, np.float32)
    for start in range(0, len(rows), _ROWS):
        part = slice(start, start + _ROWS)
        np.matmul(rows[part], _matrix(across), out=turned[part])
    if down > 1:
        turned = np.matmul(_matrix(down), turned.reshape(-1, down, across))
    return turned.reshape(blocks.shape)


@cache
def _matrix(size: int) -> NDArray[np.float32]:
    """Return the matrix of the transform of ``size`` numbers."""
    return hadamard(np.eye(size, dtype=np.float32))


def block_keys(seeds: Keys, blocks: int, number: int = 0) -> Keys:
    """Return the keys that determine the signs of each block of k updates, shape (k, blocks)."""
    return child_keys(child_keys(seeds, number)[:, None], np.arange(blocks))


def random_signs(keys: Keys, size: int) -> NDArray[np.float32]:
    """Return ``size`` signs, -1 or 1, for each key, shape (…, size): bit i of draw i div 64, low bit first."""
    octets = bits(keys.ravel(), -(-size // 64)).astype("<u8", copy=False).view(np.uint8)
    return np.take(_EIGHT_SIGNS, octets, axis=0).reshape(*keys.shape, -1)[..., :size]


def random_sign_matrices(seeds: Keys, block: int, length: int, rank: int) -> NDArray[np.float32]:
    """Return a matrix of signs for the spec's ``block``-th block and each of k seeds, shape (k, length, rank)."""
    return random_signs(child_keys(seeds, block), length * rank).reshape(len(seeds), length, rank)


def blocks_of(size: int) -> Iterator[tuple[slice, int]]:
    """Yield the positions of all blocks of one size, with this size: 1,024, then each power of two in the rest."""
    start, block = 0, BLOCK
    while start < size:
        if block <= size - start:
            stop = size - (size - start) % block
            yield slice(start, stop), block
            start = stop
        block //= 2


def rotated(updates: NDArray[Real], seeds: Keys, number: int = 0) -> NDArray[Real]:
    """Return updates of shape (k, M) rotated, each by its seed, shape (k,) or (1,).

    Args:
        updates: of any length M; a rest that isn't a power of two becomes several blocks.
        seeds: determine the rotations.
        number: index of the rotation, for updates that are rotated several times.
    """
    return _through(updates, seeds, number, back=False)


def rotated_back(updates: NDArray[Real], seeds: Keys, number: int = 0) -> NDArray[Real]:
    """Return updates of shape (k, M) rotated back: the inverse of :func:`rotated` with the same seeds."""
    return _through(updates, seeds, number, back=True)


def _through(updates: NDArray[Real], seeds: Keys, number: int, back: bool) -> NDArray[Real]:
    k, size = updates.shape
    of_rotation = np.broadcast_to(child_keys(seeds, number), (k,))[:, None]
    result, before = np.empty_like(updates), 0
    for where, block in blocks_of(size):
        count = (where.stop - where.start) // block
        blocks, turned = (each[:, where].reshape(k, count, block) for each in (updates, result))  # views
        pings, at_a_time = max(_IN_CACHE // (block * count), 1), max(_IN_CACHE // block, 1)
        for ping, first in product(range(0, k, pings), range(0, count, at_a_time)):
            part = slice(ping, ping + pings), slice(first, first + at_a_time)
            numbers = np.arange(before, before + count)[part[1]]
            _turn(blocks[part], child_keys(of_rotation[part[0]], numbers), turned[part], back)
        before += count
    return result


def _turn(blocks: NDArray[Real], keys: Keys, into: NDArray[Real], back: bool) -> None:
    """Rotate blocks of shape (p, c, D) by keys of shape (p, c), or back, and write them into an array of this shape."""
    size = blocks.shape[2]
    signs = random_signs(keys, size).astype(blocks.dtype, copy=False)
    signs *= blocks.dtype.type(math.sqrt(1 / size))  # a power is rounded otherwise by some machines
    if back:
        turned = _hadamard(blocks)
        np.multiply(turned, signs.reshape(turned.shape), out=into.reshape(turned.shape))
    else:
        turned = _hadamard(np.multiply(blocks, signs, out=np.empty(blocks.shape, blocks.dtype)))
        into.reshape(turned.shape)[...] = turned
