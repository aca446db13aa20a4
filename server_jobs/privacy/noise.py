"""Discrete Gaussian noise on whole numbers, sampled exactly, so that each released number is possible for any data.

Floating-point noise reveals data: of 100,000 outputs of NumPy's `laplace` added to neighbouring data, four in five are
possible for one of the two only. The discrete Gaussian has probability ∝ exp(-y²/2σ²) at each whole number y; its scale
is σ, not the variance.

The noise of a published round comes from the operating system, by :class:`SystemNoise`. Seeded noise is another type,
in the package for research. A round accepts it only if the study is declared to be simulated.

Source: Canonne, Kamath and Steinke, "The Discrete Gaussian for Differential Privacy", 2020.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable
from dataclasses import dataclass
from decimal import Decimal, localcontext
from fractions import Fraction
from typing import Protocol, TypeAlias, final

import numpy as np
from numpy.typing import NDArray

from fedping.server_jobs.privacy.gaussian import NoGuarantee

Bits: TypeAlias = Callable[[int], bytes]
"""Returns a number of random bytes."""
Integers: TypeAlias = NDArray[np.int64]

BY_OPENDP = 10_000
"""Maximum coordinates that OpenDP draws, in 0.8 s; a million would take it a minute."""

_LARGEST_SIGMA = 2.0**40
_AT_A_TIME = 1 << 17
"""Coordinates drawn at a time, which keeps memory below 20 MB."""
_UNSURE = 2.0**-46
"""Ten times the maximum error of a probability that is computed in doubles here."""


class Noise(Protocol):
    """A source of noise for vectors of whole numbers."""

    def integers(self, sigma: float, d: int) -> Integers:
        """Return d independent discrete Gaussians of standard deviation σ, shape (d,)."""


@final
@dataclass(frozen=True)
class SystemNoise:
    """Irreproducible noise from the operating system's randomness, the only noise for published rounds."""

    def integers(self, sigma: float, d: int) -> Integers:
        """Return d independent discrete Gaussians, shape (d,); zeros for σ = 0.

        Args:
            sigma: σ, the standard deviation; 0, or from 1 to 2^40.
            d: the number of coordinates.

        Raises:
            NoGuarantee: another σ; below 1 the accountant's figures don't hold for whole numbers.
        """
        if checked_sigma(sigma) == 0 or d == 0:
            return np.zeros(d, np.int64)
        return _by_opendp(sigma, d) if d <= BY_OPENDP else discrete_gaussian(os.urandom, sigma, d)


def checked_sigma(sigma: float) -> float:
    """Return σ.

    Raises:
        NoGuarantee: it is neither 0 nor from 1 to 2^40.
    """
    if not (sigma == 0 or 1 <= sigma <= _LARGEST_SIGMA):
        raise NoGuarantee(
            f"the noise's standard deviation is {sigma:g}: on whole numbers it has to be from 1 to 2^40, or 0; scale "
            "what is sent to larger whole numbers"
        )
    return sigma


def _by_opendp(sigma: float, d: int) -> Integers:
    from opendp.domains import atom_domain, vector_domain
    from opendp.measurements import make_gaussian
    from opendp.metrics import l2_distance
    from opendp.mod import enable_features

    enable_features("contrib")  # for mechanisms that OpenDP's committee has not yet proven line by line
    add = make_gaussian(vector_domain(atom_domain(T="i64")), l2_distance(T="i64"), scale=float(sigma))
    return np.array(add([0] * d), np.int64)


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
    """Return those of n proposals that are accepted, which is about 45 % of them."""
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
    """Return coins that are true with probability exp(-x), shape (n,); ``exactly`` returns one of x as a fraction."""
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


def has_its_size(noise: Integers, sigma: float) -> bool:
    """Return whether noise has the declared size: Σ y²/σ² within the χ² band of d degrees that holds all but 2 in 10^6.

    It needs the line's secret key and its pings, whose exact sum is subtracted from the released one.

    Args:
        noise: the difference, shape (d,).
        sigma: the declared σ, at least 1; or 0, for which all noise must be 0.
    """
    if checked_sigma(sigma) == 0:
        return not np.any(noise)
    from scipy.stats import chi2

    low, high = chi2.ppf([1e-6, 1 - 1e-6], len(noise))
    return bool(low <= float(np.sum((noise / sigma) ** 2)) <= high)
