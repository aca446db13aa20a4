"""Exact draws of whole numbers from random bytes, so that proofs about their probabilities apply.

Bernoulli trials with probability e^-γ, discrete Laplace and discrete Gaussian draws follow algorithms 1 to 3 of
Canonne, Kamath and Steinke, "The Discrete Gaussian for Differential Privacy" (2020). Probabilities are never floats.
"""

from __future__ import annotations

import math
import secrets
from collections.abc import Callable
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

Draw: TypeAlias = Callable[[int], bytes]
"""Function that returns a number of random bytes."""

_FRACTION = 2**20
"""Denominator of the fraction to which an ε is rounded down, so that every language has the same exact value."""


class Chance:
    """Draws from a source of random bytes: clients use :data:`SYSTEM`; simulations and tests use others."""

    def __init__(self, draw: Draw) -> None:
        self._draw = draw

    def below(self, n: int) -> int:
        """Return a whole number from 0 to n - 1, uniformly: the first draw of enough bits that is below n."""
        bits = (n - 1).bit_length()
        size = -(-bits // 8)
        while True:
            drawn = int.from_bytes(self._draw(size), "big") >> (8 * size - bits)
            if drawn < n:
                return drawn

    def coin(self) -> bool:
        """Return True or False with equal probability."""
        return self.below(2) == 1

    def decays(self, numerator: int, denominator: int) -> bool:
        """Return True with probability exp(-numerator / denominator)."""
        while numerator > denominator:
            if not self._decays_by_1(1, 1):
                return False
            numerator -= denominator
        return self._decays_by_1(numerator, denominator)

    def _decays_by_1(self, numerator: int, denominator: int) -> bool:
        """Return True with probability exp(-γ) for a γ of at most 1."""
        k = 1
        while self.below(denominator * k) < numerator:
            k += 1
        return k % 2 == 1

    def is_true(self, epsilon: float) -> bool:
        """Return True with probability e^ε / (1 + e^ε), and never more often, as randomised response needs."""
        numerator = math.floor(epsilon * _FRACTION)
        while not self.coin():
            if self.decays(numerator, _FRACTION):
                return False
        return True

    def discrete_laplace(self, scale: int) -> int:
        """Return a whole number x with probability proportional to exp(-|x| / scale)."""
        while True:
            within = self.below(scale)
            if not self.decays(within, scale):
                continue
            beyond = 0
            while self.decays(1, 1):
                beyond += 1
            found, negative = within + scale * beyond, self.coin()
            if not (negative and found == 0):
                return -found if negative else found

    def discrete_gaussian(self, sigma: int) -> int:
        """Return a whole number x with probability proportional to exp(-x² / 2σ²)."""
        variance, scale = sigma * sigma, sigma + 1
        while True:
            found = self.discrete_laplace(scale)
            if self.decays((abs(found) * scale - variance) ** 2, 2 * variance * scale * scale):
                return found

    def discrete_gaussians(self, sigma: int, d: int) -> NDArray[np.int64]:
        """Return d independent draws of :meth:`discrete_gaussian`, shape (d,)."""
        return np.array([self.discrete_gaussian(sigma) for _ in range(d)], np.int64)


SYSTEM = Chance(secrets.token_bytes)
"""Draws from the platform's randomness, whose seed no server knows."""
