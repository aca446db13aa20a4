"""Matrices of random signs that both ends of a link draw from a seed (`fedping.protocol.encodings.low_rank`)."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from fedping.protocol.draws import bits, child_keys


def random_signs(seeds: NDArray[np.uint64], block: int, length: int, rank: int) -> NDArray[np.int8]:
    """Return the signs of the factors of the spec's ``block``-th block for k seeds, shape (k, length, rank).

    Entry i, row by row, is bit i mod 64, lowest first, of draw i div 64 of the seed's child ``block``; a bit of 1 is
    -1.
    """
    words = bits(child_keys(seeds, block), -(-length * rank // 64))
    random_bits = np.unpackbits(words.astype("<u8").view(np.uint8), axis=1, count=length * rank, bitorder="little")
    return (1 - 2 * random_bits.view(np.int8)).reshape(len(seeds), length, rank)
