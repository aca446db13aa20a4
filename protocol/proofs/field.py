"""Arithmetic modulo p = 2^64 - 2^32 + 1, the draft's Field64, on uint64 arrays of at least one axis.

Every function takes and returns elements below p. Modulo p, 2^64 is 2^32 - 1 and 2^96 is -1, so a product of 128 bits
is reduced without a division. Nothing branches on a value.

A polynomial is given by its values along the first axis, at 1, ω, ω², …, where the number of values is a power of two
and ω is the :func:`root` of that order. The draft calls this the Lagrange basis, and sends polynomials in this form.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

Elements: TypeAlias = NDArray[np.uint64]

P = 2**64 - 2**32 + 1

GENERATOR = pow(7, 2**32 - 1, P)
"""Generator of the roots of unity of order 2^32, as the draft chooses it."""

LOW = np.uint64(2**32 - 1)
_P = np.uint64(P)
_32 = np.uint64(32)

_BLOCK = 16384
"""Elements computed at a time: few enough that all intermediate arrays stay in the cache."""


def add(a: Elements, b: Elements) -> Elements:
    """Return a + b, broadcast."""
    return _in_blocks(_add, a, b)


def sub(a: Elements, b: Elements) -> Elements:
    """Return a - b, broadcast."""
    return _in_blocks(_sub, a, b)


def mul(a: Elements, b: Elements) -> Elements:
    """Return a b, broadcast."""
    return _in_blocks(_mul, a, b)


def _in_blocks(compute: Callable[[Elements, Elements, Elements], None], a: Elements, b: Elements) -> Elements:
    """Return the output (last argument) of a function called block by block with parts of a and b."""
    out = np.empty(np.broadcast_shapes(a.shape, b.shape), np.uint64)

    def fill(a: Elements, b: Elements, out: Elements) -> None:
        if out.size <= _BLOCK:
            compute(a, b, out)
            return
        step = max(1, _BLOCK * len(out) // out.size)
        for start in range(0, len(out), step):
            part: slice | int = slice(start, start + step) if step > 1 or out.ndim == 1 else start
            fill(a[part], b[part], out[part])

    fill(np.broadcast_to(a, out.shape), np.broadcast_to(b, out.shape), out)
    return out


def _add(a: Elements, b: Elements, out: Elements) -> None:
    np.add(a, b, out=out)
    out += (out < a) * LOW
    np.minimum(out, out - _P, out=out)


def _sub(a: Elements, b: Elements, out: Elements) -> None:
    np.subtract(a, b, out=out)
    out -= (a < b) * LOW


def _mul(a: Elements, b: Elements, out: Elements) -> None:
    a_low, a_high, b_low, b_high = a & LOW, a >> _32, b & LOW, b >> _32
    np.multiply(a, b, out=out)
    middle = a_low * b_low
    middle >>= _32
    a_low *= b_high
    middle += a_low
    b_high *= a_high
    b_high += middle >> _32
    middle &= LOW
    a_high *= b_low
    middle += a_high
    middle >>= _32
    b_high += middle
    _reduce(b_high, out)


def _reduce(high: Elements, low: Elements) -> None:
    """Write 2^64 high + low into low, and overwrite high."""
    top = high >> _32  # counts multiples of 2^96, which is -1
    high &= LOW
    borrowed = low < top
    low -= top
    low -= borrowed * LOW
    np.left_shift(high, _32, out=top)
    top -= high
    low += top
    low += (low < top) * LOW
    np.minimum(low, low - _P, out=low)


def power(a: Elements, exponent: int) -> Elements:
    """Return a to the power of an exponent of at least 0; 0 to the power of 0 is 1."""
    result = np.ones_like(a)
    while exponent:
        if exponent & 1:
            result = mul(result, a)
        a = mul(a, a)
        exponent >>= 1
    return result


def powers(a: Elements, count: int) -> Elements:
    """Return 1, a, …, a^(count - 1) along a new first axis."""
    result = np.empty((count, *a.shape), np.uint64)
    result[0] = 1
    for k in range(1, count):
        result[k] = mul(result[k - 1], a)
    return result


def total(elements: Elements, axis: int) -> Elements:
    """Return the sum along an axis of at most 2^31 elements; at least one other axis must be left."""
    low = (elements & LOW).sum(axis=axis, dtype=np.uint64)
    high = (elements >> _32).sum(axis=axis, dtype=np.uint64)  # both are below 2^63
    upper = high << _32
    _reduce(high >> _32, upper)
    return add(upper, low)


def root(count: int) -> int:
    """Return the root of unity of order ``count``, a power of two up to 2^32."""
    return pow(GENERATOR, 2**32 // count, P)


def other_values(values: Elements) -> Elements:
    """Return polynomials' values at the odd powers of the root of order 2n, given the n values at its even powers.

    The polynomials' degree is below n.
    """
    count = len(values)
    coefficients = _transformed(values, pow(root(count), -1, P))
    shift = _geometric(root(2 * count), pow(count, -1, P), count)
    return _transformed(mul(coefficients, _down(shift, values.ndim)), root(count))


def evaluation(t: Elements, count: int) -> Elements:
    """Return weights, along a new first axis; the sum of a polynomial's values with these weights is its value at t.

    Args:
        t: where to evaluate, any shape.
        count: number of values, a power of two; the degree is below it.
    """
    last = _down(np.full(1, pow(count, -1, P), np.uint64), t.ndim + 1)
    return mul(_transformed(powers(t, count), pow(root(count), -1, P)), last)


def evaluation_without_last(t: Elements, count: int) -> Elements:
    """Return the weights for evaluation from only the first n - 1 values of a polynomial of degree below n - 1.

    Its coefficient of degree n - 1 is 0, so Σ ω^k f(ω^k) = 0. The last value follows from the others: f(ω^(n-1)) = -Σ
    ω^(k+1) f(ω^k) over k < n - 1.
    """
    every = evaluation(t, count)
    shift = _geometric(root(count), root(count), count - 1)
    return sub(every[:-1], mul(every[-1:], _down(shift, every.ndim)))


def _transformed(values: Elements, omega: int) -> Elements:
    """Return Σ_j values[j] ω^(jk) for k = 0, 1, …, n - 1 along the first axis, for an ω of order n (an NTT)."""
    if len(values) == 1:
        return values
    half = len(values) // 2
    even, odd = (_transformed(values[start::2], omega * omega % P) for start in (0, 1))
    if half > 1:
        odd = np.concatenate([odd[:1], mul(odd[1:], _down(_geometric(omega, omega, half - 1), odd.ndim))])
    return np.concatenate([add(even, odd), sub(even, odd)])


@cache
def _geometric(ratio: int, first: int, count: int) -> Elements:
    return np.array([first * pow(ratio, k, P) % P for k in range(count)], np.uint64)


def _down(constants: Elements, axes: int) -> Elements:
    """Return constants as an array with the given number of axes, along its first axis."""
    return constants.reshape(-1, *[1] * (axes - 1))
