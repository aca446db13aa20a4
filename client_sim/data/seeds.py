"""Random numbers from a seed and a purpose, so that draws for one purpose do not affect those for another."""

from __future__ import annotations

import numpy as np


def generator(seed: int, purpose: str, number: int = 0) -> np.random.Generator:
    """Return a seed's generator for a purpose, such as the sample of round ``number``; both numbers are at least 0."""
    return np.random.default_rng(np.random.SeedSequence(seed, spawn_key=(*purpose.encode(), number)))


def key(seed: int, purpose: str) -> np.uint64:
    """Return the key of a seed for a purpose, to derive clients' keys from (`fedping.protocol.draws`)."""
    return generator(seed, purpose).integers(2**64, dtype=np.uint64)
