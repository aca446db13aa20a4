"""Updates rotated twice at random and rounded to the best levels for normal numbers: the encoding `eden`.

After Vargaftik et al. 2022. Let x be a rotated block of D numbers with the norm |x|, so that x √D / |x| is nearly
normal. It is rounded to the nearest levels z and decoded as s z, rotated back, with s = |x|² / <z, x>. A payload has a
seed, the s of every block as float32, and the level of each number in 1 to 4 bits. The last block is padded with zeros
to a power of two.

The error of a block of m weights in D numbers, as a share of its squared norm, is (m / D) E / (1 - E), where E is the
error of the levels for normal numbers; E / (1 - E) is .5708, .1331, .0358 and .0096 for 1 to 4 bits. The mean of
decoded payloads is the update, except for a bias that one rotation would leave large in updates of few weights: for two
weights, 14 % of the squared norm; with two rotations .2 %. With two rotations, the bias for one weight next to 39 tiny
weights is 1 %. For normal numbers at 1 bit, it is .1 % of the squared norm for 8 weights and less than .002 % for 22
and more.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Annotated, ClassVar

import numpy as np
from msgspec import Meta, Struct
from numpy.typing import NDArray

from fedping.protocol.draws import Keys
from fedping.protocol.encodings.blocks import BLOCK, Layout, field_table, looked_up_between, padded, padded_size, tiles
from fedping.protocol.encodings.payloads import payload_seeds
from fedping.protocol.encodings.rotation import block_keys, exact_hadamard, random_signs, rotated
from fedping.protocol.link_ends import ClientEnd, Decoded, Ends, ServerEnd
from fedping.protocol.rules import Traits
from fedping.protocol.weights import LARGEST

if TYPE_CHECKING:
    import pyarrow as pa

    from fedping.protocol.spec import ModelSpec


class Eden(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True, tag_field="link", tag="eden"):
    """Rotate twice at random and round to the best levels for normal numbers (EDEN, Vargaftik et al. 2022).

    This link has the least error at 1 to 4 bits a weight if the weights are of similar size, but takes more work. Its
    mean is biased: at 1 bit by less than 0.5 % of the norm for 22 or more weights of similar size, and by more for
    fewer weights or if a few stand out.
    """

    traits: ClassVar[Traits] = frozenset({"encodes", "inexact", "other draws"})

    bits: Annotated[int, Meta(ge=1, le=4)] = 1

    @property
    def encoding(self) -> str:
        """The tag of the link's payloads."""
        return f"eden-{self.bits}"

    def ends(self, spec: ModelSpec) -> Ends:
        """Return the link's two ends (`fedping.protocol.link_ends`)."""
        bits = self.bits

        def layout_of(m: int) -> Layout:
            return Layout(padded_size(m), bits, head=1, seeded=True)

        def encode(updates: NDArray[np.floating], keys: Keys) -> pa.BinaryArray:
            seeds = payload_seeds(keys)
            with np.errstate(over="ignore", invalid="ignore"):  # the server refuses what is not finite
                numbers = padded(updates.astype(np.float32))
                for rotation in _ROTATIONS:
                    numbers = rotated(numbers, seeds, rotation)
                scales, fields = nearest_levels(numbers, bits)
            return layout_of(updates.shape[1]).payloads(scales, fields, seeds)

        def decode(payloads: pa.BinaryArray, m: int) -> Decoded:
            layout = layout_of(m)
            seeds, scales, fields, ok = layout.read(payloads, _sound)
            return rotated_back_levels(scales, fields, seeds, layout.numbers, bits)[:, :m], ok

        def trouble(payload: bytes, m: int) -> str | None:
            return layout_of(m).trouble(payload, _sound, _UNSOUND)

        return ClientEnd(encode=encode), ServerEnd(
            decode=decode, lengths=lambda m: (layout_of(m).size, layout_of(m).size), trouble=trouble
        )


EXAMPLES = (Eden(bits=1), Eden(bits=3))
"""Example settings for tests."""

_POSITIVE = {
    1: (0.797884561,),
    2: (0.452780035, 1.510417608),
    3: (0.245094179, 0.756005281, 1.343909279, 2.151945705),
    4: (0.128395030, 0.388048299, 0.656759119, 0.942340456, 1.256231197, 1.618046386, 2.069017227, 2.732589571),
}
"""Positive levels of least squared error for a normal number, by the number of bits (Lloyd 1982, Max 1960)."""

_UNIT = np.float32(2**-7)
"""Unit of levels. All levels are below 2^9 units, so that no sum of 1,024 in two transforms exceeds 2^24 units.

Rounding levels to this unit adds less than a thousandth to the error.
"""

_LEVELS = {
    bits: np.rint(np.array([*(-level for level in reversed(levels)), *levels], np.float32) / _UNIT) * _UNIT
    for bits, levels in _POSITIVE.items()
}
_TABLES = {bits: field_table(levels) for bits, levels in _LEVELS.items()}
_ROTATIONS = (0, 1)


def nearest_levels(numbers: NDArray[np.float32], bits: int) -> tuple[NDArray[np.float32], NDArray[np.uint8]]:
    """Return the factor s of each block, shape (k, blocks, 1), and the index of each number's level, shape (k, M).

    The numbers, shape (k, M), belong to rotated updates. A block of zeros has the factor 0.
    """
    k, size = numbers.shape
    levels = _LEVELS[bits]
    middles = (levels[1:].astype(np.float64) + levels[:-1]) / 2
    scales = np.zeros((k, -(-size // BLOCK), 1), np.float32)
    fields = np.empty((k, size), np.uint8)
    for number, start in enumerate(range(0, size, BLOCK)):
        where = slice(start, start + BLOCK)
        block = numbers[:, where].astype(np.float64)
        squared = np.square(block).sum(axis=1)
        there = squared > 0
        units = np.sqrt(block.shape[1] / np.where(there, squared, 1.0))
        fields[:, where] = np.searchsorted(middles, block * units[:, None])
        along = (levels[fields[:, where]] * block).sum(axis=1)
        scales[:, number, 0] = np.divide(squared, along, out=np.zeros(k), where=there)
    return scales, fields


def rotated_back_levels(
    scales: NDArray[np.float32], rows: NDArray[np.uint8], seeds: Keys, m: int, bits: int
) -> NDArray[np.float32]:
    """Return the updates for factors and packed levels, shape (k, m).

    Both transforms and their signs are exact; only the final product with the block's factor is rounded.
    """
    keys = [block_keys(seeds, scales.shape[1], rotation) for rotation in reversed(_ROTATIONS)]
    numbers = np.empty((len(rows), m), np.float32)
    for of_pings, of_blocks, where, block in tiles(len(rows), m):
        levels = looked_up_between(rows[of_pings], where, _TABLES[bits])
        turned = levels.reshape(len(levels), -1, block)
        for of_rotation in keys:
            turned = exact_hadamard(turned)
            turned *= random_signs(of_rotation[of_pings, of_blocks], block)
            turned += 0  # which makes a negative zero a positive one
        shares = scales[of_pings, of_blocks] * np.float32(math.sqrt(1 / block ** len(_ROTATIONS)))
        np.multiply(turned, shares, out=numbers[of_pings, where].reshape(turned.shape))  # into a view
    return numbers


_UNSOUND = "has a block whose factor is not finite, beyond 1e30, or below 0"


def _sound(scales: NDArray[np.float32]) -> NDArray[np.bool_]:
    """Return which of k payloads have only valid factors, shape (k,); NaN is invalid."""
    return np.asarray(((scales >= 0) & (scales <= LARGEST)).all(axis=(1, 2)))
