"""Counter-based random numbers: each is a pure function of a key and a position, so whole fleets are drawn at once.

A key stands for a client, a search or a page. Keys derive from other keys (:func:`child_keys`), down from one seed, so
that a client's draws depend only on the seed and the client: not on the other clients, nor on the order or the chunks
of processing. The function is SplitMix64 (Steele, Lea and Flood 2014): a counter advanced by the golden ratio, followed
by a mixing of its bits.
"""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

Keys: TypeAlias = NDArray[np.uint64]
FloatArray: TypeAlias = NDArray[np.float64]

_UNIT = 2.0**-53

GOLDEN = np.uint64(0x9E3779B97F4A7C15)
"""Increment of the generator's counter."""


def mixed(words: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Return mixed words: each bit depends on all bits of the given word. This is the generator's finaliser."""
    words = (words ^ (words >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    words = (words ^ (words >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return words ^ (words >> np.uint64(31))


def root_key(seed: int) -> np.uint64:
    """Return the key of a seed, any integer of at least 0."""
    return np.uint64(np.random.SeedSequence(seed).generate_state(1, np.uint64)[0])


def child_keys(keys: Keys | np.uint64, numbers: NDArray[np.integer[Any]] | int) -> Keys:
    """Return each key's child with the given number; shapes broadcast."""
    counter = np.asarray(numbers).astype(np.uint64) * GOLDEN + np.uint64(1)
    return mixed(mixed(np.atleast_1d(keys)) ^ counter)


def numbers_within(counts: NDArray[np.integer[Any]]) -> NDArray[np.int64]:
    """Return the index of each member within its group, from 0, for consecutive groups of the given sizes."""
    found: NDArray[np.int64] = np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts)
    return found


def uniforms(keys: Keys, count: int) -> FloatArray:
    """Return ``count`` uniform numbers in [0, 1) for each of k keys, shape (k, count)."""
    return (bits(keys, count) >> np.uint64(11)).astype(np.float64) * _UNIT


def normals(keys: Keys, count: int) -> FloatArray:
    """Return ``count`` standard normal numbers for each of k keys, shape (k, count), by Box and Muller's method."""
    drawn = uniforms(keys, 2 * count)
    radius = np.sqrt(-2.0 * np.log1p(-drawn[:, :count]))
    return radius * np.cos(2.0 * np.pi * drawn[:, count:])


def bits(keys: Keys, count: int) -> Keys:
    """Return ``count`` numbers of 64 random bits for each of k keys, shape (k, count)."""
    return mixed(keys[:, None] + np.arange(1, count + 1, dtype=np.uint64) * GOLDEN)
