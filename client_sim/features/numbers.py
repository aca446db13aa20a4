"""exp and log of doubles by + - * / and exponent bits, to the same bit in every language.

Libraries differ in the last bit. These are the polynomials of fdlibm (Sun Microsystems 1993), within one unit in the
last place. Each works on a number or on an array, with the same bits.
"""

from __future__ import annotations

from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

N = TypeVar("N", float, NDArray[np.float64])

LN2_HIGH, LN2_LOW = 6.93147180369123816490e-01, 1.90821492927058770002e-10
_PER_LN2 = 1.44269504088896338700
_EXP = (
    1.66666666666666019037e-01,
    -2.77777777770155933842e-03,
    6.61375632143793436117e-05,
    -1.65339022054652515390e-06,
    4.13813679705723846039e-08,
)
_LOG = (
    6.666666666666735130e-01,
    3.999999999940941908e-01,
    2.857142874366239149e-01,
    2.222219843214978396e-01,
    1.818357216161805012e-01,
    1.531383769920937332e-01,
    1.479819860511658591e-01,
)
_ROOT_OF_HALF = 0.7071067811865476
LEAST_EXPONENT = -700.0
"""Least exponent; exp of a smaller one is 0."""


def exp(x: N) -> N:
    """Return e to the power of x, for x of at most 0; 0 below :data:`LEAST_EXPONENT`."""
    below = x < LEAST_EXPONENT
    power = np.where(below, 0.0, x)
    k = np.floor(power * _PER_LN2 + 0.5)
    high = power - k * LN2_HIGH
    low = k * LN2_LOW
    r = high - low
    t = r * r
    p: Any = _EXP[4]
    for coefficient in _EXP[3::-1]:
        p = coefficient + t * p
    c = r - t * p
    y = 1.0 - ((low - (r * c) / (2.0 - c)) - high)
    return _like(x, np.where(below, 0.0, np.ldexp(y, k.astype(np.int64))))


def log(x: N) -> N:
    """Return the natural logarithm of x, for x of at least 1."""
    fraction, exponent = np.frexp(x)
    small = fraction < _ROOT_OF_HALF
    f = np.where(small, fraction + fraction, fraction) - 1.0
    k = np.where(small, exponent - 1, exponent).astype(np.float64)
    s = f / (2.0 + f)
    z = s * s
    p: Any = _LOG[6]
    for coefficient in _LOG[5::-1]:
        p = coefficient + z * p
    r = z * p
    half = 0.5 * f * f
    return _like(x, k * LN2_HIGH - ((half - (s * (half + r) + k * LN2_LOW)) - f))


def log1p(x: N) -> N:
    """Return the natural logarithm of 1 + x, for x of at least 0."""
    u = 1.0 + np.asarray(x)
    return _like(x, log(u) + (x - (u - 1.0)) / u)


def single(x: N) -> N:
    """Return numbers rounded to single precision, as doubles."""
    return _like(x, np.float64(np.float32(x)) if np.ndim(x) == 0 else np.asarray(x, np.float32).astype(np.float64))


def _like(x: N, result: object) -> N:
    return result if np.ndim(x) else float(result)  # type: ignore[return-value, arg-type]
