"""Exactly sampled discrete Gaussian noise on whole numbers: each released number is possible for any data.

Floating-point noise reveals data: if 100,000 outputs of NumPy's `laplace` are added to two neighbouring data sets,
four in five results are possible for only one of them. The discrete Gaussian has probability ∝ exp(-y²/2σ²) at each
whole number y; its scale is σ, not the variance.

The noise of a published round comes from the operating system (:class:`SystemNoise`). Seeded noise is a different
type, in the package for research. A round accepts it only if the study is declared to be simulated.

Source: Canonne, Kamath and Steinke, "The Discrete Gaussian for Differential Privacy", 2020.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Protocol, final

import numpy as np

from fedping.protocol.discrete_gaussian import Integers, discrete_gaussian
from fedping.server_jobs.privacy.gaussian import NoGuarantee

BY_OPENDP = 10_000
"""Maximum number of coordinates for which OpenDP is used; they take 0.8 s, and a million would take a minute."""

_LARGEST_SIGMA = 2.0**40


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
            NoGuarantee: σ has another value. Below 1, the accountant's figures don't hold for whole numbers.
        """
        if checked_sigma(sigma) == 0 or d == 0:
            return np.zeros(d, np.int64)
        return _by_opendp(sigma, d) if d <= BY_OPENDP else discrete_gaussian(os.urandom, sigma, d)


def checked_sigma(sigma: float) -> float:
    """Return σ if it is valid.

    Raises:
        NoGuarantee: σ is neither 0 nor from 1 to 2^40.
    """
    if not (sigma == 0 or 1 <= sigma <= _LARGEST_SIGMA):
        raise NoGuarantee(
            f"the noise's standard deviation is {sigma:g}: for whole numbers it must be 0, or from 1 to 2^40; scale "
            "updates to larger whole numbers"
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


def has_its_size(noise: Integers, sigma: float) -> bool:
    """Return whether noise has the declared size: Σ y²/σ² in the χ² band of d degrees with all but 2 in 10^6.

    To compute the noise, callers need the line's secret key and its pings: their exact sum is subtracted from the
    released sum.

    Args:
        noise: the difference of the sums, shape (d,).
        sigma: the declared σ, at least 1; or 0, for which all noise must be 0.
    """
    if checked_sigma(sigma) == 0:
        return not np.any(noise)
    from scipy.stats import chi2

    low, high = chi2.ppf([1e-6, 1 - 1e-6], len(noise))
    return bool(low <= float(np.sum((noise / sigma) ** 2)) <= high)
