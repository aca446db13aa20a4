"""The Gaussian mechanism without sampling: its exact privacy, and the bounds of the two textbook theorems.

The privacy of one Gaussian answer, with noise of standard deviation z times the L2 sensitivity, is the difficulty of
distinguishing N(0, 1) from N(μ, 1), with μ = 1/z. k answers are equivalent to one answer with μ = √k/z ("Gaussian
differential privacy").
All computations use logarithms of Φ, because e^ε overflows where δ does not. δ is rounded up, which matters for tiny ε
(`fedping.protocol.gaussian`).

Source: Balle and Wang, "Improving the Gaussian Mechanism for Differential Privacy", 2018; Dong, Roth and Su, "Gaussian
Differential Privacy", 2019; Dwork and Roth, "The Algorithmic Foundations of Differential Privacy", 2014, theorems 3.20
and A.1.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

from fedping.protocol.errors import InvalidSettings
from fedping.protocol.gaussian import ERROR

_UP, _DOWN = 1 + 1e-12, 1 - 1e-12
"""Factors for safe rounding up and down; they exceed the rounding error of ln δ."""


class NoGuarantee(InvalidSettings, ValueError):
    """The mechanism can't provide the guarantee."""


def delta_of(epsilon: float, mu: float) -> float:
    """Return the smallest δ for an ε, rounded up: Φ(μ/2 - ε/μ) - e^ε Φ(-μ/2 - ε/μ).

    Args:
        epsilon: ε, at least 0, in nats.
        mu: sensitivity divided by noise, √k/z for k answers; 0 for no answers, infinity for answers without noise.
    """
    return min(1.0, math.exp(_log_delta(_at_least_0("epsilon", epsilon), _at_least_0("mu", mu))) * _UP)


def epsilon_of(mu: float, delta: float) -> float:
    """Return the smallest ε for a δ, rounded up; infinity for δ = 0 or μ = infinity.

    Args:
        mu: sensitivity divided by noise, √k/z for k answers.
        delta: δ, at least 0.
    """
    if _at_least_0("mu", mu) == 0 or delta >= 1:
        return 0.0
    if not delta > 0 or mu > 1e100:  # the ε exceeds the range of doubles
        return math.inf
    log_delta = math.log(delta)
    if _log_delta(0, mu) <= log_delta:
        return 0.0
    high = 1.0
    while _log_delta(high, mu) > log_delta:
        high *= 2
    return _last(lambda epsilon: _log_delta(epsilon, mu) <= log_delta, high, 0.0) * _UP


def mu_of(epsilon: float, delta: float) -> float:
    """Return the largest μ that satisfies (ε, δ), rounded down; it bounds √k/z for k answers.

    Args:
        epsilon: ε, at least 0, in nats.
        delta: δ between 0 and 1; the result for δ = 0 is 0, because no Gaussian noise satisfies it.
    """
    if not delta > 0:
        return 0.0
    if delta >= 1 or math.isinf(_at_least_0("epsilon", epsilon)):
        return math.inf
    log_delta = math.log(delta)
    low, high = 1.0, 1.0
    while _log_delta(epsilon, high) <= log_delta:
        high *= 2
    while _log_delta(epsilon, low) > log_delta:
        low /= 2
    return _last(lambda mu: _log_delta(epsilon, mu) <= log_delta, low, high) * _DOWN


def _last(fits: Callable[[float], bool], yes: float, no: float) -> float:
    """Return the last number that fits, between ``yes``, which fits, and ``no``, which doesn't."""
    while (middle := (yes + no) / 2) not in (yes, no):
        yes, no = (middle, no) if fits(middle) else (yes, middle)
    return yes


def _log_delta(epsilon: float, mu: float) -> float:
    """Return ln δ, rounded up."""
    if mu == 0:
        return -math.inf
    if math.isinf(mu):
        return 0.0
    if epsilon == 0:
        return math.log(math.erf(mu / math.sqrt(8))) if mu > 1e-300 else -math.inf
    from scipy.special import log_ndtr

    larger, far = float(log_ndtr(mu / 2 - epsilon / mu)), float(log_ndtr(-mu / 2 - epsilon / mu))
    if math.isinf(far):
        return larger
    return larger + math.log(-math.expm1(min(epsilon + far - larger, 0.0) - ERROR * (1 - far)))


def textbook_noise(epsilon: float, delta: float) -> float:
    """Return z = √(2 ln(1.25/δ))/ε, the noise relative to the sensitivity, by Dwork and Roth's theorem A.1.

    For ε up to 0.5, it is 38 to 46 % more than needed. :func:`mu_of` is exact and valid for every ε.

    Raises:
        NoGuarantee: ε is 1 or more. The theorem doesn't hold then; for large ε, its noise would be too small.
    """
    if not 0 < epsilon < 1:
        raise NoGuarantee(
            f"the classical Gaussian mechanism needs an epsilon between 0 and 1, not {epsilon:g}: use the analytic "
            "Gaussian mechanism"
        )
    return math.sqrt(2 * math.log(1.25 / _a_probability("delta", delta))) / epsilon


def advanced_composition(epsilon: float, delta: float, k: int, slack: float) -> tuple[float, float]:
    """Return the (ε', δ') of k answers of (ε, δ) each: ε√(2k ln(1/δ₀)) + kε(e^ε - 1) and kδ + δ₀.

    Args:
        epsilon: ε of one answer, in nats.
        delta: δ of one answer.
        k: the number of answers.
        slack: δ₀, any number above 0.

    Source: Dwork and Roth, theorem 3.20.
    """
    growth = math.expm1(epsilon) if epsilon < 700 else math.inf
    spread = math.sqrt(2 * k * math.log(1 / _a_probability("slack", slack)))
    return (epsilon * spread + k * epsilon * growth if k else 0.0), k * delta + slack


class ByTheorems(NamedTuple):
    """The bounds of the two textbook theorems for k Gaussian answers."""

    epsilon: float
    """ε of all answers, in nats."""
    step: float
    """ε of one answer."""
    proven: bool
    """Whether the first theorem holds, which requires a step below 1. Otherwise, the figures prove nothing."""


def by_theorems(noise_multiplier: float, k: int, delta: float) -> ByTheorems:
    """Return ε of k answers by theorems A.1 and 3.20, with δ divided so that ε is minimal.

    Args:
        noise_multiplier: z, the noise divided by the sensitivity.
        k: the number of answers, at least 1.
        delta: δ of all answers.

    The bank project (thesis "Federated Learning for a bank", 5.3.1) computes its privacy this way. With its σ = 0.5
    and C = 0.2, a step has an ε above 1, so its figure 12 doesn't follow from the theorems; :func:`epsilon_of` is
    exact.
    """
    from scipy.optimize import minimize_scalar

    def spent(log_share: float) -> tuple[float, float]:
        slack = math.exp(log_share) * delta
        step = math.sqrt(2 * math.log(1.25 * k / (delta - slack))) / noise_multiplier
        return advanced_composition(step, (delta - slack) / k, k, slack)[0], step

    _a_probability("delta", delta)
    best = minimize_scalar(lambda x: spent(x)[0], bounds=(-30, -1e-9), method="bounded", options={"xatol": 1e-10})
    epsilon, step = spent(float(best.x))
    return ByTheorems(epsilon, step, step < 1)


def _at_least_0(name: str, value: float) -> float:
    if not value >= 0:
        raise NoGuarantee(f"{name} is {value:g}; give at least 0")
    return value


def _a_probability(name: str, value: float) -> float:
    if not 0 < value < 1:
        raise NoGuarantee(f"{name} is {value:g}; give a number between 0 and 1")
    return value
