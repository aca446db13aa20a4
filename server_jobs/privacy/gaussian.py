"""The Gaussian mechanism without sampling: its exact privacy, and what the two textbook theorems say of it.

One Gaussian answer with noise of standard deviation z times the L2 sensitivity is exactly as private as telling N(0, 1)
from N(μ, 1) is hard, with μ = 1/z; k answers are one with μ = √k/z ("Gaussian differential privacy"). Everything goes
by logarithms of Φ, because e^ε overflows where δ does not, and δ is taken to be as large as rounding allows, which
matters where ε is tiny (`fedping.protocol.gaussian`). Sources: Balle and Wang, "Improving the Gaussian Mechanism for
Differential Privacy", 2018; Dong, Roth and Su, "Gaussian Differential Privacy", 2019; Dwork and Roth, "The
Algorithmic Foundations of Differential Privacy", 2014, theorems 3.20 and A.1.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

from fedping.protocol.errors import InvalidSettings
from fedping.protocol.gaussian import ERROR

_UP, _DOWN = 1 + 1e-12, 1 - 1e-12
"""By more than ln δ is off by rounding: what is told is on the safe side."""


class NoGuarantee(InvalidSettings, ValueError):
    """What was asked for cannot be guaranteed in this way."""


def delta_of(epsilon: float, mu: float) -> float:
    """Return the least δ for an ε, never below the truth: Φ(μ/2 - ε/μ) - e^ε Φ(-μ/2 - ε/μ).

    Args:
        epsilon: ε, at least 0; nats.
        mu: sensitivity over noise, √k/z for k answers; 0 is no answer at all, infinity one without noise.
    """
    return min(1.0, math.exp(_log_delta(_at_least_0("epsilon", epsilon), _at_least_0("mu", mu))) * _UP)


def epsilon_of(mu: float, delta: float) -> float:
    """Return the least ε for a δ, never below the truth; infinity for δ = 0 or μ = infinity.

    Args:
        mu: sensitivity over noise, √k/z for k answers.
        delta: δ, at least 0.
    """
    if _at_least_0("mu", mu) == 0 or delta >= 1:
        return 0.0
    if not delta > 0 or mu > 1e100:  # whose ε would be no double
        return math.inf
    log_delta = math.log(delta)
    if _log_delta(0, mu) <= log_delta:
        return 0.0
    high = 1.0
    while _log_delta(high, mu) > log_delta:
        high *= 2
    return _last(lambda epsilon: _log_delta(epsilon, mu) <= log_delta, high, 0.0) * _UP


def mu_of(epsilon: float, delta: float) -> float:
    """Return the largest μ that keeps (ε, δ), never above the truth: the answers may have √k/z up to it.

    Args:
        epsilon: ε, at least 0; nats.
        delta: δ between 0 and 1; no Gaussian noise keeps δ = 0, which gives 0.
    """
    if not delta > 0:
        return 0.0
    if delta >= 1 or math.isinf(_at_least_0("epsilon", epsilon)):
        return math.inf
    wanted = math.log(delta)
    low, high = 1.0, 1.0
    while _log_delta(epsilon, high) <= wanted:
        high *= 2
    while _log_delta(epsilon, low) > wanted:
        low /= 2
    return _last(lambda mu: _log_delta(epsilon, mu) <= wanted, low, high) * _DOWN


def _last(fits: Callable[[float], bool], yes: float, no: float) -> float:
    """Return the last number that fits on the way from one that does to one that does not."""
    while (middle := (yes + no) / 2) not in (yes, no):
        yes, no = (middle, no) if fits(middle) else (yes, middle)
    return yes


def _log_delta(epsilon: float, mu: float) -> float:
    """Return ln δ, or a little more."""
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
    """Return z = √(2 ln(1.25/δ))/ε, the noise over the sensitivity by Dwork and Roth's theorem A.1.

    It is 38 to 46 % more than needed for ε up to a half. :func:`mu_of` is exact and holds for every ε.

    Raises:
        NoGuarantee: for ε of 1 or more, where the theorem says nothing; for large ε its noise would be too small.
    """
    if not 0 < epsilon < 1:
        raise NoGuarantee(
            "the textbook's theorem of the Gaussian mechanism holds for an epsilon between 0 and 1, not for "
            f"{epsilon:g}: use the analytic Gaussian mechanism"
        )
    return math.sqrt(2 * math.log(1.25 / _a_probability("delta", delta))) / epsilon


def advanced_composition(epsilon: float, delta: float, k: int, slack: float) -> tuple[float, float]:
    """Return the (ε', δ') of k answers of (ε, δ) each: ε√(2k ln(1/δ₀)) + kε(e^ε - 1) and kδ + δ₀.

    Args:
        epsilon: of one answer; nats.
        delta: of one answer.
        k: the number of answers.
        slack: δ₀, which may be chosen freely above 0.

    Source: Dwork and Roth, theorem 3.20.
    """
    growth = math.expm1(epsilon) if epsilon < 700 else math.inf
    spread = math.sqrt(2 * k * math.log(1 / _a_probability("slack", slack)))
    return (epsilon * spread + k * epsilon * growth if k else 0.0), k * delta + slack


class ByTheorems(NamedTuple):
    """What the two textbook theorems give for k Gaussian answers."""

    epsilon: float
    """Of all answers; nats."""
    step: float
    """Of one."""
    proven: bool
    """Whether the first theorem may be used, which needs a step below 1. If not, the figures follow from nothing."""


def by_theorems(noise_multiplier: float, k: int, delta: float) -> ByTheorems:
    """Return ε of k answers by theorems A.1 and 3.20, with δ divided between them so that ε is least.

    Args:
        noise_multiplier: z, the noise over the sensitivity.
        k: the number of answers, at least 1.
        delta: δ of all answers.

    The bank project (thesis "Federated Learning for a bank", 5.3.1) draws its privacy that way. With its σ = 0.5 and
    C = 0.2 a step has an ε above 1, so its figure 12 does not follow from the theorems; :func:`epsilon_of` is exact.
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
        raise NoGuarantee(f"{name} is {value:g}, and has to be at least 0")
    return value


def _a_probability(name: str, value: float) -> float:
    if not 0 < value < 1:
        raise NoGuarantee(f"{name} is {value:g}, and has to lie between 0 and 1")
    return value
