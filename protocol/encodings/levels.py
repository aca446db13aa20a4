"""Updates rounded at random to levels between the least and the greatest number of a block (thesis 4.2.2).

The encoding `levels`. For every block of 1,024 weights, a payload has two float32 numbers, the block's least and
greatest; then follows the level of each weight, in 1 to 8 bits. With ``rotate`` a seed comes first, and the numbers
belong to the rotated update, whose last block is padded with zeros to a power of two (Suresh et al. 2017).

The mean of decoded payloads is the update. Its variance is d² f (1 - f), where d is the distance of two levels, and f
is the number's position between them, from 0 to 1.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Literal

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from fedping.protocol.draws import Keys, child_keys, uniforms
from fedping.protocol.encodings.blocks import BLOCK, Layout, field_table, looked_up_between, padded, padded_size, tiles
from fedping.protocol.encodings.payloads import payload_seeds
from fedping.protocol.encodings.rotation import block_keys, exact_hadamard, random_signs, rotated
from fedping.protocol.link_ends import ClientEnd, Decoded, Ends, ServerEnd
from fedping.protocol.rules import Traits, traits_where
from fedping.protocol.weights import LARGEST

if TYPE_CHECKING:
    import pyarrow as pa

    from fedping.protocol.spec import ModelSpec


class Levels(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True, tag_field="link", tag="levels"):
    """Round each number at random to one of 2^bits levels between the least and the greatest of its block (4.2.2).

    ``rotate`` has each client rotate its update first, by its own rotation (Suresh et al. 2017).
    """

    bits: Literal[1, 2, 3, 4, 5, 6, 7, 8]
    rotate: bool = False

    @property
    def traits(self) -> Traits:
        """Traits of the link (`fedping.protocol.rules`)."""
        return traits_where({"encodes": True, "inexact": True, "follows a mask": not self.rotate})

    @property
    def encoding(self) -> str:
        """The tag of the link's payloads."""
        return f"levels-r-{self.bits}" if self.rotate else f"levels-{self.bits}"

    def ends(self, spec: ModelSpec) -> Ends:
        """Return the link's two ends (`fedping.protocol.link_ends`)."""
        bits, rotate = self.bits, self.rotate

        def layout_of(m: int) -> Layout:
            return Layout(padded_size(m) if rotate else m, bits, head=2, seeded=rotate)

        def encode(updates: NDArray[np.floating], keys: Keys) -> pa.BinaryArray:
            layout, seeds = layout_of(updates.shape[1]), payload_seeds(keys) if rotate else None
            uniform = uniforms(child_keys(keys, 1), layout.numbers)
            with np.errstate(over="ignore", invalid="ignore"):  # the server refuses what is not finite
                numbers = updates.astype(np.float32)
                if seeds is not None:
                    numbers = rotated(padded(numbers), seeds)
                heads, fields = levels_fields(numbers, uniform, bits)
            return layout.payloads(heads, fields, seeds)

        def decode(payloads: pa.BinaryArray, m: int) -> Decoded:
            layout = layout_of(m)
            seeds, heads, fields, ok = layout.read(payloads, _in_order)
            if rotate:
                return levels_rotated_back(heads, fields, seeds, layout.numbers, bits)[:, :m], ok
            return levels_numbers(heads, fields, m, bits), ok

        def trouble(payload: bytes, m: int) -> str | None:
            return layout_of(m).trouble(payload, _in_order, _OUT_OF_ORDER)

        return ClientEnd(encode=encode), ServerEnd(
            decode=decode, lengths=lambda m: (layout_of(m).size, layout_of(m).size), trouble=trouble
        )


EXAMPLES = (Levels(bits=1), Levels(bits=2), Levels(bits=8), Levels(bits=4, rotate=True), Levels(bits=5))
"""Example settings for tests."""

_LEVELS = {bits: field_table(np.arange(2.0**bits)) for bits in range(1, 9)}
_WHOLE = {bits: table.astype(np.float32) for bits, table in _LEVELS.items()}


def levels_fields(
    updates: NDArray[np.float32], uniform: NDArray[np.float64], bits: int
) -> tuple[NDArray[np.float32], NDArray[np.uint8]]:
    """Return the heads of k updates, shape (k, blocks, 2), and the level of each weight, shape (k, m).

    A weight's level is t + u rounded down, where t is its distance from the least number, in steps between levels, and
    u is random in [0, 1).

    Args:
        updates: shape (k, m).
        uniform: in [0, 1), shape (k, m).
        bits: the number of bits of a level.
    """
    most = 2**bits - 1
    k, m = updates.shape
    heads = np.empty((k, -(-m // BLOCK), 2), np.float32)
    fields = np.empty((k, m), np.uint8)
    for of_pings, of_blocks, where, block in tiles(k, m):
        blocks = updates[of_pings, where].reshape(-1, of_blocks.stop - of_blocks.start, block)
        least, greatest = blocks.min(axis=2), blocks.max(axis=2)
        heads[of_pings, of_blocks, 0], heads[of_pings, of_blocks, 1] = least, greatest
        low, high = least.astype(np.float64)[:, :, None], greatest.astype(np.float64)[:, :, None]
        levels = (blocks - low) / np.where(low < high, high - low, 1.0)  # 1 for the greatest, for any least
        levels *= most
        levels += uniform[of_pings, where].reshape(levels.shape)
        np.minimum(levels, most, out=levels)
        fields[of_pings, where] = levels.astype(np.uint8).reshape(len(blocks), -1)  # rounds down
    return heads, fields


def levels_numbers(heads: NDArray[np.float32], rows: NDArray[np.uint8], m: int, bits: int) -> NDArray[np.float32]:
    """Return the updates for heads and packed levels, shape (k, m): level q is lo + q d, and the greatest exactly hi.

    They are computed in doubles and rounded to float32 once. So the greatest is already exact, unless it is tiny
    compared with the least.
    """
    k, most = len(rows), 2**bits - 1
    low, high = heads[:, :, 0].astype(np.float64), heads[:, :, 1].astype(np.float64)
    apart = (high - low) / most
    missed = (low + most * apart).astype(np.float32) != heads[:, :, 1]
    numbers = np.empty((k, m), np.float32)
    for of_pings, of_blocks, where, block in tiles(k, m):
        levels = looked_up_between(rows[of_pings], where, _LEVELS[bits])
        levels = levels.reshape(len(levels), -1, block)
        values = levels * apart[of_pings, of_blocks, None]
        values += low[of_pings, of_blocks, None]
        if missed[of_pings, of_blocks].any():
            greatest = (levels == most) & missed[of_pings, of_blocks, None]  # a zero may have another sign
            np.copyto(values, high[of_pings, of_blocks, None], where=greatest)
        numbers[of_pings, where] = values.reshape(len(values), -1)
    return numbers


def levels_rotated_back(
    heads: NDArray[np.float32], rows: NDArray[np.uint8], seeds: Keys, m: int, bits: int
) -> NDArray[np.float32]:
    """Return the updates, rotated back, for heads and packed levels of rotated updates, shape (k, m).

    The transform of a block of D numbers lo + q d is d times the transform of the levels q, plus lo D in its first
    number. The transform of the levels is exact, because its numbers are below 2^18. They are multiplied by d / √D in
    single precision, except the first of each block, which is computed in doubles. The rest of m beyond its blocks of
    1,024 must be a power of two.
    """
    keys = block_keys(seeds, heads.shape[1])
    low, high = heads[:, :, 0].astype(np.float64), heads[:, :, 1].astype(np.float64)
    apart = (high - low) / (2**bits - 1)
    numbers = np.empty((len(rows), m), np.float32)
    for of_pings, of_blocks, where, block in tiles(len(rows), m):
        levels = looked_up_between(rows[of_pings], where, _WHOLE[bits])
        turned = exact_hadamard(levels.reshape(len(levels), -1, block))
        scales = apart[of_pings, of_blocks] * math.sqrt(1 / block)
        firsts = turned[:, :, 0] * scales + low[of_pings, of_blocks] * math.sqrt(block)
        turned *= scales.astype(np.float32)[:, :, None]
        turned[:, :, 0] = firsts
        into = numbers[of_pings, where].reshape(turned.shape)  # a view
        np.multiply(turned, random_signs(keys[of_pings, of_blocks], block), out=into)
    return numbers


_OUT_OF_ORDER = "has a block whose least and greatest number are not finite, beyond ±1e30, or the wrong way around"


def _in_order(heads: NDArray[np.float32]) -> NDArray[np.bool_]:
    """Return which of k payloads have valid heads, shape (k,): finite numbers in order."""
    ordered = (heads[:, :, 0] >= -LARGEST) & (heads[:, :, 0] <= heads[:, :, 1]) & (heads[:, :, 1] <= LARGEST)
    return np.asarray(ordered.all(axis=1))
