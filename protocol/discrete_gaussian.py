"""Exact, vectorised sampling of discrete Gaussians from random bytes: the noise of rounds and of institutions.

Two-sided geometric numbers are proposed and accepted, so that no probability is rounded. The same bytes give the same
numbers on every machine.

Source: Canonne, Kamath and Steinke, "The Discrete Gaussian for Differential Privacy", 2020, algorithms 1 to 3.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from decimal import Decimal, localcontext
from fractions import Fraction
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

Bits: TypeAlias = Callable[[int], bytes]
"""A source of randomness: a function that returns the requested number of random bytes."""
Integers: TypeAlias = NDArray[np.int64]

_AT_A_TIME = 1 << 17
"""Coordinates drawn at a time, which keeps memory below 20 MB."""
_UNSURE = 2.0**-46
"""Ten times the maximum error of a probability that is computed in doubles here."""


def discrete_gaussian(bits: Bits, sigma: float, d: int) -> Integers:
    """Return d discrete Gaussians from a source of random bytes, shape (d,), vectorised and exact.

    Two-sided geometric numbers are proposed and accepted by algorithm 3 of Canonne, Kamath and Steinke. Each coin
    compares 64 random bits with a probability in doubles. If they are too close, once in 2^45 coins, 192 more bits and
    80 decimals decide.

    Args:
        bits: the source.
        sigma: σ, from 1 to 2^40.
        d: the number of coordinates.
    """
    parts, count = [np.zeros(0, np.int64)], 0
    while count < d:
        proposed = min(3 * (d - count) + 32, _AT_A_TIME)
        parts.append(_accepted(bits, sigma, proposed)[: d - count])
        count += len(parts[-1])
    return np.concatenate(parts)


def _accepted(bits: Bits, sigma: float, n: int) -> Integers:
    """Return the accepted ones of n proposals, about 45 %."""
    t = math.floor(sigma) + 1
    size = _two_sided(bits, t, n)
    variance = Fraction(sigma) ** 2
    centre = variance / t
    below = (np.abs(size) - float(centre)) / sigma
    return size[_coins(bits, below * below / 2, lambda i: (abs(int(size[i])) - centre) ** 2 / (2 * variance))]


def _two_sided(bits: Bits, t: int, n: int) -> Integers:
    """Return at most n numbers y of probability ∝ exp(-|y|/t)."""
    words = _words(bits, n)
    rest = (words[words < (1 << 64) // t * t] % np.uint64(t)).astype(np.int64)
    rest = rest[_coins(bits, rest / t, lambda i: Fraction(int(rest[i]), t))]
    times, going = np.zeros(len(rest), np.int64), np.arange(len(rest))
    while len(going):
        going = going[_coins(bits, np.ones(len(going)), lambda _: Fraction(1))]
        times[going] += 1
    size: Integers = rest + t * times
    negative = _words(bits, len(size)) >> np.uint64(63) == 1
    size[negative] *= -1
    accepted: Integers = size[~negative | (size != 0)]
    return accepted


def _coins(bits: Bits, x: NDArray[np.float64], exactly: Callable[[int], Fraction]) -> NDArray[np.bool_]:
    """Return coins that are true with probability exp(-x), shape (n,); ``exactly(i)`` is x[i] as a fraction."""
    words = _words(bits, len(x))
    above = words * 2.0**-64 - np.exp(-x)
    coins: NDArray[np.bool_] = above < 0
    for i in np.flatnonzero(np.abs(above) < _UNSURE):
        more = int.from_bytes(bits(24), "little")
        with localcontext(prec=100):
            exponent = exactly(int(i))
            probability = (-Decimal(exponent.numerator) / Decimal(exponent.denominator)).exp()
            coins[i] = Decimal((int(words[i]) << 192) + more) / (1 << 256) < probability
    return coins


def _words(bits: Bits, n: int) -> NDArray[np.uint64]:
    return np.frombuffer(bits(8 * n), "<u8")
