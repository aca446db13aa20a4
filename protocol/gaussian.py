"""The exact noise multiplier for one Gaussian release, with formulas that clients in every language can implement.

For noise with standard deviation z times the sensitivity, δ = Φ(1/(2z) - εz) - e^ε Φ(-1/(2z) - εz) (Balle and Wang,
"Improving the Gaussian Mechanism for Differential Privacy", 2018), for every ε. A client derives its noise from the
published guarantee, so that no party can make it add too little.

For tiny ε, the two terms of δ are nearly equal, and rounding errors are as large as their difference. So δ is assumed
to be as large as these errors allow. This increases z by a share of less than 1e-9 for ε from 0.001 and δ from 1e-10
on.
"""

from __future__ import annotations

import math

_HALVINGS = 200

ERROR = 2.0**-49
"""Maximum error of the difference between the logarithms of δ's two terms, as a share of 1 - ln Φ(-1/(2z) - εz): over
twice the error measured against 60 digits."""


def least_noise(epsilon: float, delta: float) -> float:
    """Return the least noise multiplier z (noise over sensitivity) that keeps (ε, δ), rounded up.

    Args:
        epsilon: ε, above 0; nats.
        delta: δ, between 0 and 1.
    """
    high = 1.0
    while log_delta(epsilon, high) > math.log(delta):
        high *= 2
    low = high
    while low > 2.0**-60 and log_delta(epsilon, low) <= math.log(delta):
        low /= 2
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        if log_delta(epsilon, middle) > math.log(delta):
            low = middle
        else:
            high = middle
    return high * (1 + 1e-12)  # more than the rounding error of ln δ


def log_delta(epsilon: float, z: float) -> float:
    """Return ln δ for noise of z times the sensitivity and ε ≥ 0; an upper bound, slightly above the exact value."""
    larger, far = _log_phi(1 / (2 * z) - epsilon * z), _log_phi(-1 / (2 * z) - epsilon * z)
    if math.isinf(far):
        return larger
    return larger + math.log(-math.expm1(min(epsilon + far - larger, 0.0) - ERROR * (1 - far)))


def _log_phi(x: float) -> float:
    """Return ln Φ(x), by Laplace's continued fraction far below 0, where a double can't represent Φ(x)."""
    if x > -5:
        return math.log(math.erfc(-x / math.sqrt(2)) / 2)
    fraction = -x
    for k in range(60, 0, -1):
        fraction = -x + k / fraction
    return -x * x / 2 - math.log(fraction) - math.log(2 * math.pi) / 2
