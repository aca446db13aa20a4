"""Formulas for the protection of each row of an institution's table, and for the cost of this protection.

Each release of a table is a sum over its rows: each row's vector is shortened to norm 1 and scaled to whole numbers,
rounded towards 0; the vectors are added up, and each number of the sum gets discrete Gaussian noise of standard
deviation z. Whether a row is in the sum or is empty is then as hard to distinguish as N(0, 1) from N(μ, 1), with μ =
1/z (Gaussian differential privacy). All releases together are like one with μ² = Σ 1/z². The number of rows is assumed
to be known. Replacing a row means removing one and adding another, so it has 2 μ; g rows of one person that are not
joined into one vector have g μ.

Source: Dong, Roth and Su, "Gaussian Differential Privacy", 2019; Balle and Wang, "Improving the Gaussian Mechanism for
Differential Privacy", 2018; Kairouz, Liu and Steinke, "The Distributed Discrete Gaussian Mechanism for Federated
Learning with Secure Aggregation", 2021, for noise in shares.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

import numpy as np
from numpy.typing import NDArray

from fedping.protocol.discrete_gaussian import Bits, Integers, discrete_gaussian
from fedping.protocol.gaussian import least_noise, log_delta
from fedping.protocol.training import LocalSteps, OneGradient, Training

UNIT = 2**14
"""Scale of whole numbers: a norm of 1 becomes this number."""

EPSILON = 3.0
"""Default ε of a table; its institution may set another."""

VERSIONS = 50
"""Default number of versions for which a table's budget is planned; its institution may set another."""

LOSS = 0.25
"""Share of a row's norm for its loss, next to its gradient."""

TABLE_MODELS = ("linear-regression", "logistic-regression", "network", "k-means")
"""Models whose examples are rows of a table; institutions train only these."""

GRADIENT_MODELS = frozenset(TABLE_MODELS) - {"k-means"}
"""Models of tables that learn by gradients, whose noise is the same on each number."""

NIL = 1e-30
"""Maximum τ of a sum of noise shares; so small a τ is lost in the rounding of any δ."""

_HALVINGS = 200
_UP = 1 + 1e-12
"""Factor for rounding up; it exceeds the rounding error of ln δ."""


def why_unprotected(training: Training) -> str | None:
    """Return the reason why a training cannot protect rows; None if it can."""
    if not isinstance(training, OneGradient | LocalSteps):
        return f"the training '{training.name}' is an extension, whose sums over rows are unknown"
    if training.personal is not None:
        return "your own model, next to the shared one, would be trained on your rows without noise"
    return None


def steps_on_rows(training: Training) -> int:
    """Return the number of steps of a training with protected rows. A step uses all rows, as does an epoch."""
    return (training.steps or training.epochs or 1) if isinstance(training, LocalSteps) else 1


def usual_delta(units: int) -> float:
    """Return the default δ of a table with n rows or persons: n^-1.1."""
    return math.pow(max(units, 2), -1.1)


def mu_of(epsilon: float, delta: float) -> float:
    """Return the largest μ that keeps (ε, δ), rounded down.

    Args:
        epsilon: ε, above 0; nats.
        delta: δ, between 0 and 1.
    """
    return 1.0 / least_noise(epsilon, delta)


def delta_of(epsilon: float, mu: float) -> float:
    """Return the δ for an ε, rounded up: Φ(μ/2 - ε/μ) - e^ε Φ(-μ/2 - ε/μ); 0 if nothing was released."""
    return min(1.0, math.exp(log_delta(epsilon, 1.0 / mu)) * _UP) if mu > 0 else 0.0


def epsilon_of(mu: float, delta: float) -> float:
    """Return the ε for a δ, rounded up; 0 if nothing was released, infinity without noise."""
    if mu <= 0:
        return 0.0
    if math.isinf(mu):
        return math.inf
    if log_delta(0.0, 1.0 / mu) <= math.log(delta):
        return 0.0
    low, high = 0.0, 1.0
    while log_delta(high, 1.0 / mu) > math.log(delta):
        high *= 2
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        low, high = (low, middle) if log_delta(middle, 1.0 / mu) <= math.log(delta) else (middle, high)
    return high * _UP


def composed(mus: Iterable[float]) -> float:
    """Return the μ of several releases of the same rows together; each may depend on the previous releases."""
    return math.sqrt(math.fsum(mu * mu for mu in mus))


def noise_multiplier(mu: float, releases: int) -> float:
    """Return the noise multiplier z of each of T releases that together have μ: √T / μ."""
    return math.sqrt(releases) / mu


def noise_of_gradient(rows: int, versions: int, steps: int = 1) -> float:
    """Return the standard deviation of the noise that an institution usually adds to each number of a mean gradient.

    Args:
        rows: number of rows n of its table, whose gradients have a norm of at most 1.
        versions: number of versions that share its budget of :data:`EPSILON`.
        steps: number of gradients in a version.
    """
    z = noise_multiplier(mu_of(EPSILON, usual_delta(rows)), versions * steps)
    return z * math.hypot(1.0, LOSS) / rows


def noise_of_mean(rows: Sequence[int], votes: Sequence[float], versions: int, steps: int = 1) -> float:
    """Return the standard deviation of the noise on each number of a weighted mean of institutions' mean gradients.

    With one vote per row, the mean is a sum over all rows with the noise of one sum per institution; with equal votes,
    the smallest table contributes most of the noise.

    Args:
        rows: number of rows of each institution.
        votes: weight of each institution in the mean.
        versions: number of versions that share each budget.
        steps: number of gradients in a version.
    """
    each = (vote * noise_of_gradient(n, versions, steps) for n, vote in zip(rows, votes, strict=True))
    return math.hypot(*each) / math.fsum(votes)


def mu_of_replacing(mu: float) -> float:
    """Return the μ of replacing a row by another row, given the μ of replacing it by an empty row."""
    return 2 * mu


def mu_of_group(mu: float, rows: int) -> float:
    """Return the μ of a person with several rows, each protected separately."""
    return rows * mu


def noise_of_share(sigma: float, institutions: int, colluding: int) -> float:
    """Return the σ of the noise that each institution adds to its part of a sum.

    The noise of the institutions that do not collude then adds up to at least σ.

    Raises:
        ValueError: all institutions collude, so that no noise remains to protect any of them.
    """
    if not 0 <= colluding < institutions:
        raise ValueError(f"{colluding} of {institutions} institutions collude, so no noise is left")
    return sigma / math.sqrt(institutions - colluding)


def noise_of_own_share(sigma: float, institutions: int, colluding: int, feared: int) -> float:
    """Return the σ of the noise of an institution that assumes more collusion than the others have agreed on.

    Each other institution that does not collude adds :func:`noise_of_share`. This institution adds the rest of σ: all
    of it if it assumes that all others collude.

    Args:
        sigma: σ of the sum.
        institutions: K, the minimum number in a sum.
        colluding: t, the number of colluding institutions that the others' shares protect against.
        feared: number of colluding institutions that this institution assumes, from t to K - 1.
    """
    if not colluding <= feared < institutions:
        raise ValueError(
            f"{feared} of {institutions} institutions cannot collude. Give at least {colluding}, and fewer than all"
        )
    if feared == colluding:
        return noise_of_share(sigma, institutions, colluding)
    return sigma * math.sqrt(1 - (institutions - feared - 1) / (institutions - colluding))


def discreteness(sigma: float, institutions: int) -> float:
    """Return τ, the maximum difference between a sum of discrete Gaussians and one: 10 Σ exp(-2π²σ²k/(k+1)).

    Each discrete Gaussian has standard deviation σ. k runs from 1 to the number of institutions minus 1. From σ = 4 on,
    τ is negligible.
    """
    return 10 * math.fsum(math.exp(-2 * math.pi**2 * sigma**2 * k / (k + 1)) for k in range(1, institutions))


def reach(rows: int, versions: int, numbers: int, features: int) -> int:
    """Return the number of rows that the best known attack reconstructs by choosing weights: min(n, T ⌊m / (f + 1)⌋).

    This is not an upper bound; better attacks may exist. A model with fewer numbers than a row still reveals one row
    per version.

    Args:
        rows: n, number of rows.
        versions: T, number of versions.
        numbers: m, count of numbers in an update.
        features: f, number of features of a row.
    """
    return min(rows, versions * max(1, numbers // (features + 1)))


def shortened(vectors: NDArray[np.float64], norm: float = 1.0) -> NDArray[np.float64]:
    """Return vectors, shape (n, d), each shortened to a maximum norm; vectors with a non-finite number become 0."""
    vectors = np.where(np.isfinite(vectors).all(axis=1, keepdims=True), vectors, 0.0)
    largest = np.abs(vectors).max(axis=1, initial=0.0)
    scale = np.where(largest > 0, largest, 1.0)
    directions = vectors / scale[:, None]
    lengths = np.sqrt(np.square(directions).sum(axis=1))
    with np.errstate(over="ignore"):
        sizes = np.minimum(scale * lengths, norm)
    found: NDArray[np.float64] = directions * (sizes / np.where(lengths > 0, lengths, 1.0))[:, None]
    return found


def unit_of_row() -> float:
    """Return the value of the whole number 1 in a row's gradient, which shares the norm of the vector with the loss."""
    return math.hypot(1.0, LOSS) / UNIT


def whole_numbers(vectors: NDArray[np.float64]) -> Integers:
    """Return vectors of norm at most 1 in units of 2^-14, rounded towards 0, so that their norm does not grow."""
    found: Integers = np.trunc(vectors * (UNIT * (1 - 1e-12))).astype(np.int64)
    return found


def noisy(total: Integers, z: float, bits: Bits) -> Integers:
    """Return a sum of whole vectors, shape (d,), with noise of z times the maximum norm of one vector."""
    return total + discrete_gaussian(bits, z * UNIT, len(total))
