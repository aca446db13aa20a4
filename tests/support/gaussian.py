"""The Gaussian mechanism's exact guarantee, to 60 digits, and test guarantees at the limits of doubles."""

import mpmath

GUARANTEES = tuple(
    (epsilon, 10.0**place)
    for epsilon in (1e-300, 1e-20, 1e-15, 1e-12, 1e-9, 1e-7, 1e-5, 1e-4, 1e-3, 1e-2, 0.1, 1.0, 3.0, 10.0, 100.0)
    for place in (-0.1, -1, -3, -6, -8, -10, -12, -14, -15, -16, -20, -50, -300)
)
"""Pairs of ε and δ to test."""


def true_delta(epsilon: float, mu: float | mpmath.mpf) -> mpmath.mpf:
    with mpmath.workdps(60):
        e, m = mpmath.mpf(epsilon), mpmath.mpf(mu)
        return mpmath.ncdf(m / 2 - e / m) - mpmath.exp(e) * mpmath.ncdf(-m / 2 - e / m)


def falls_short(epsilon: float, delta: float, z: float) -> bool:
    """Return whether noise of z times the sensitivity is too little for (ε, δ)."""
    with mpmath.workdps(60):
        return bool(true_delta(epsilon, 1 / mpmath.mpf(z)) > delta)
