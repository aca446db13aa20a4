"""Privacy mechanisms for the laboratory, with their sensitivities, guarantees, and costs in variance.

They are randomised response, Laplace, discrete Laplace, Gaussian and exponential. Each states its sensitivity and its
guarantee, and rejects what it can't guarantee. All draw from a given NumPy generator, so that an experiment can be
repeated: anyone who knows its seed knows the noise, and floating-point noise leaks data in its last bits. Anything
published needs :class:`fedping.server_jobs.privacy.noise.SystemNoise`.

A sampled sensitivity is an estimate: the change of an answer between random neighbouring data. It gives *random*
differential privacy, with confidence over the distribution of the data, and no guarantee for the data at hand.

The cost of privacy on the client: for RProp, a client sends one sign, of a coordinate chosen uniformly, by randomised
response. A shuffler that hides the senders recovers part of that cost.

Sources: Dwork and Roth, "The Algorithmic Foundations of Differential Privacy", 2014, section 3; Rodríguez-Barroso et
al., "Federated Learning and Differential Privacy", 2020, section 2.3, whose equations are numbered here, and 6.2.4;
Rubinstein and Aldà, "Pain-Free Random Differential Privacy with Sensitivity Sampling", 2017; Erlingsson et al.,
"RAPPOR", 2014, on the response; Feldman, McMillan and Talwar, "Hiding Among the Clones", 2021, for shuffling.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, NamedTuple, TypeVar, final

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fedping.experiments.privacy.composition import Guarantee
from fedping.protocol.discrete_gaussian import Integers, discrete_gaussian
from fedping.server_jobs.privacy.gaussian import NoGuarantee, mu_of, textbook_noise
from fedping.server_jobs.privacy.noise import checked_sigma

T = TypeVar("T")


class SampledSensitivity(NamedTuple):
    """A sensitivity estimated from an answer's differences between pairs of neighbouring data sets."""

    largest: float
    mean: float
    pairs: int
    gamma: float
    """Maximum probability over the data that neighbours differ by more than the largest sampled difference."""


def pairs_needed(gamma: float) -> int:
    """Return the number of pairs to draw so that the largest difference holds except with probability γ.

    ρ = exp(W₋₁(-γ/(2√e)) + ½) and m = ⌈ln(1/ρ)/(2(γ - ρ)²)⌉, which is 1,305 for γ = 0.05. Sherpa.ai's framework takes
    the second branch of Lambert's W, which gives 1,325.
    """
    if not 0 < gamma < 1:
        raise NoGuarantee(f"gamma is {gamma:g}, and has to lie between 0 and 1")
    rho = _rho(gamma)
    return math.ceil(math.log(1 / rho) / (2 * (gamma - rho) ** 2))


def _rho(gamma: float) -> float:
    from scipy.special import lambertw

    return math.exp(float(lambertw(-gamma / (2 * math.sqrt(math.e)), -1).real) + 0.5)


def sampled_sensitivity(
    answer: Callable[[T], NDArray[np.float64]],
    neighbours: Callable[[np.random.Generator], tuple[T, T]],
    gamma: float,
    rng: np.random.Generator,
    norm: int = 1,
) -> SampledSensitivity:
    """Return the sampled differences of an answer, from as many pairs as γ needs.

    Args:
        answer: the query, from data to a vector.
        neighbours: draws a pair of data sets that differ in one row and are as large as the queried one. With more
            rows, each row has less effect, and the sensitivity would be too small.
        gamma: maximum probability over the data that neighbours differ by more than the largest sampled difference.
        rng: the generator of the pairs.
        norm: 1 for :class:`~fedping.experiments.privacy.mechanisms.Laplace`, 2 for Gaussian noise.
    """
    differences = []
    for _ in range(pairs_needed(gamma)):
        one, other = neighbours(rng)
        differences.append(float(np.linalg.norm(np.ravel(answer(one) - answer(other)), norm)))
    return SampledSensitivity(max(differences), float(np.mean(differences)), len(differences), gamma)


Answers = NDArray[np.bool_]


@dataclass(frozen=True)
class RandomisedResponse:
    """Each person reports the truth or, by a first coin, a second coin's result. Any two answers are neighbours."""

    truth: float = 0.5
    """The probability of reporting the truth by the first coin."""
    yes: float = 0.5
    """The probability that the second coin says yes."""

    def __post_init__(self) -> None:
        if not (0 <= self.truth <= 1 and 0 <= self.yes <= 1):
            raise NoGuarantee(f"coins of {self.truth:g} and {self.yes:g}: each has to lie between 0 and 1")

    @classmethod
    def of_epsilon(cls, epsilon: float) -> RandomisedResponse:
        """Return the response that reports the truth, by either coin, with probability e^ε/(1 + e^ε)."""
        return cls(math.tanh(_above_0("epsilon", epsilon) / 2), 0.5)

    @property
    def guarantee(self) -> Guarantee:
        """The largest log-ratio over both answers; infinity if an answer reveals the truth; ln 3 for two fair coins."""
        lie_yes, lie_no = (1 - self.truth) * self.yes, (1 - self.truth) * (1 - self.yes)
        if self.truth == 0:
            return Guarantee(0.0)
        if not lie_yes or not lie_no:
            return Guarantee(math.inf)
        return Guarantee(math.log1p(self.truth / min(lie_yes, lie_no)))

    def __call__(self, answers: ArrayLike, rng: np.random.Generator) -> Answers:
        """Return a randomised report for each answer; both are booleans of the same shape."""
        true = np.asarray(answers, np.bool_)
        return np.where(rng.random(true.shape) < self.truth, true, rng.random(true.shape) < self.yes)

    def share(self, told: ArrayLike) -> float:
        """Return the unbiased estimate of the share of true yes among the reports.

        Raises:
            NoGuarantee: if the truth is never reported.
        """
        if not self.truth:
            raise NoGuarantee("the truth is never reported, so nothing can be estimated")
        return (float(np.mean(np.asarray(told, np.bool_))) - (1 - self.truth) * self.yes) / self.truth


@dataclass(frozen=True)
class Laplace:
    """Adds Laplace noise of scale Δ₁/ε to each component (eq. 8)."""

    sensitivity: float | SampledSensitivity
    """Δ₁, the maximum change of the answer between neighbouring data, in the L1 norm. A sampled one guarantees
    nothing."""
    epsilon: float

    def __post_init__(self) -> None:
        _above_0("epsilon", self.epsilon)
        _above_0("the sensitivity", self._norm)

    @property
    def _norm(self) -> float:
        return self.sensitivity.largest if isinstance(self.sensitivity, SampledSensitivity) else self.sensitivity

    @property
    def scale(self) -> float:
        """Δ₁/ε; the standard deviation is √2 times as large."""
        return self._norm / self.epsilon

    @property
    def guarantee(self) -> Guarantee:
        """Pure differential privacy: (ε, 0).

        Raises:
            NoGuarantee: if the sensitivity was sampled.
        """
        if isinstance(self.sensitivity, SampledSensitivity):
            raise NoGuarantee(
                f"a sampled sensitivity is an estimate: with probability up to {self.sensitivity.gamma:g} over the "
                "data an answer reveals more than its epsilon. Bound it by clipping to get a guarantee"
            )
        return Guarantee(self.epsilon)

    def __call__(self, answer: ArrayLike, rng: np.random.Generator) -> NDArray[np.float64]:
        """Return the noisy answer, with the shape of the answer."""
        exact = np.asarray(answer, np.float64)
        return exact + rng.laplace(0.0, self.scale, exact.shape)


@dataclass(frozen=True)
class DiscreteLaplace:
    """Adds whole numbers y of probability ∝ exp(-ε|y|/Δ₁) to whole numbers ("geometric mechanism")."""

    sensitivity: int
    """Δ₁, a whole number."""
    epsilon: float

    def __post_init__(self) -> None:
        _above_0("epsilon", self.epsilon)
        _above_0("the sensitivity", self.sensitivity)
        if self.sensitivity != int(self.sensitivity):
            raise NoGuarantee(f"the sensitivity of whole numbers is a whole number, not {self.sensitivity:g}")

    @property
    def guarantee(self) -> Guarantee:
        """Pure differential privacy: (ε, 0)."""
        return Guarantee(self.epsilon)

    def probability(self, y: int) -> float:
        """Return the probability that y is added."""
        rate = self.epsilon / self.sensitivity
        return math.tanh(rate / 2) * math.exp(-rate * abs(y))

    def __call__(self, answer: ArrayLike, rng: np.random.Generator) -> NDArray[np.int64]:
        """Return the noisy answer, with the shape of the answer.

        Raises:
            NoGuarantee: if the answer has fractions, which the noise would not hide.
        """
        exact = np.asarray(answer)
        if exact.dtype.kind not in "iub":
            raise NoGuarantee(
                "discrete noise hides whole numbers alone; round the answer, or take the Laplace mechanism"
            )
        stop = -math.expm1(-self.epsilon / self.sensitivity)
        noise: NDArray[np.int64] = rng.geometric(stop, exact.shape) - rng.geometric(stop, exact.shape)
        return exact.astype(np.int64) + noise


@dataclass(frozen=True)
class Gaussian:
    """Adds N(0, σ²) to each component, with the least σ that the theorem allows."""

    sensitivity: float
    """Δ₂, the maximum L2 norm of the answer's change between neighbouring data; 2C for answers clipped to C."""
    epsilon: float
    delta: float
    theorem: Literal["analytic", "textbook"] = "analytic"
    """Balle and Wang's exact formula, for every ε, or Dwork and Roth's formula, only for ε below 1."""

    def __post_init__(self) -> None:
        _above_0("epsilon", self.epsilon)
        _above_0("the sensitivity", self.sensitivity)
        if not 0 < self.delta < 1:
            raise NoGuarantee(f"delta is {self.delta:g}, and Gaussian noise needs one between 0 and 1")
        _ = self.sigma  # refuses what the theorem does not cover

    @property
    def sigma(self) -> float:
        """σ, the standard deviation (not the variance) of the noise."""
        if self.theorem == "textbook":
            return self.sensitivity * textbook_noise(self.epsilon, self.delta)
        return self.sensitivity / mu_of(self.epsilon, self.delta)

    @property
    def guarantee(self) -> Guarantee:
        """(ε, δ)."""
        return Guarantee(self.epsilon, self.delta)

    def __call__(self, answer: ArrayLike, rng: np.random.Generator) -> NDArray[np.float64]:
        """Return the noisy answer, with the shape of the answer."""
        exact = np.asarray(answer, np.float64)
        return exact + rng.normal(0.0, self.sigma, exact.shape)


@dataclass(frozen=True)
class Exponential:
    """Chooses one of several answers; answer r with utility u(r) has probability ∝ exp(ε u(r)/(2Δu)) (eq. 10).

    The paper's "2εΔu-private" belongs to exp(ε u(r)), without the denominator.
    """

    sensitivity: float
    """Δu, the maximum change of any answer's utility between neighbouring data."""
    epsilon: float

    def __post_init__(self) -> None:
        _above_0("epsilon", self.epsilon)
        _above_0("the sensitivity", self.sensitivity)

    @property
    def guarantee(self) -> Guarantee:
        """Pure differential privacy: (ε, 0)."""
        return Guarantee(self.epsilon)

    def probabilities(self, utilities: ArrayLike) -> NDArray[np.float64]:
        """Return the probability of each answer from their utilities, shape (answers,)."""
        utility = np.asarray(utilities, np.float64)
        if utility.ndim != 1 or not len(utility) or not np.all(np.isfinite(utility)):
            raise NoGuarantee("the exponential mechanism needs a finite utility for each of its answers")
        weights = np.exp(self.epsilon / (2 * self.sensitivity) * (utility - utility.max()))
        return np.asarray(weights / weights.sum())

    def __call__(self, utilities: ArrayLike, rng: np.random.Generator) -> int:
        """Return the index of the chosen answer."""
        chances = self.probabilities(utilities)
        return int(rng.choice(len(chances), p=chances))


def _above_0(name: str, value: float) -> float:
    if not 0 < value < math.inf:
        raise NoGuarantee(f"{name} is {value:g}, and has to be finite and above 0")
    return value


def one_sign_truth(epsilon: float) -> float:
    """Return e^ε/(1 + e^ε), the probability that the sent sign is true, for one contribution of pure ε."""
    return 1 / (1 + math.exp(-epsilon))


def one_sign_variance(epsilon: float, coordinates: int, clients: int) -> float:
    """Return the variance of a coordinate's estimated mean sign: (m/n)((e^ε + 1)/(e^ε - 1))², if signs cancel out."""
    return coordinates / clients / math.tanh(epsilon / 2) ** 2


def gaussian_signs_variance(noise_multiplier: float, coordinates: int, clients: int) -> float:
    """Return the variance that Gaussian noise on all signs of each client adds to a coordinate's mean: 4z²m/n.

    Any two sign vectors differ by at most 2√m; z is the noise's standard deviation divided by that.
    """
    return 4 * noise_multiplier**2 * coordinates / clients


def shuffled(epsilon: float, clients: int, delta: float) -> float:
    """Return the central ε of n clients' contributions of local ε₀ from unidentifiable senders.

    ε = ln(1 + (e^ε₀ - 1)/(e^ε₀ + 1) · (8√(e^ε₀ ln(4/δ)/n) + 8e^ε₀/n)). It holds only if ids, times and addresses are
    removed before anyone sees them.

    Args:
        epsilon: ε₀ of one contribution, in nats.
        clients: n, the number of clients.
        delta: δ, between 0 and 1.

    Raises:
        NoGuarantee: if ε₀ is more than ln(n/(16 ln(2/δ))), beyond which the theorem says nothing.
    """
    if not 0 < delta < 1:
        raise NoGuarantee(f"delta is {delta:g}, and has to lie between 0 and 1")
    most = math.log(clients / (16 * math.log(2 / delta))) if clients > 0 else -math.inf
    if not 0 <= epsilon <= most:
        raise NoGuarantee(
            f"shuffling {clients} contributions is known to help for a local epsilon up to {max(most, 0):.3g}, and "
            f"this is {epsilon:g}: take more clients or a smaller epsilon"
        )
    spread = 8 * math.sqrt(math.exp(epsilon) * math.log(4 / delta) / clients) + 8 * math.exp(epsilon) / clients
    return math.log1p(math.tanh(epsilon / 2) * spread)


@final
class SeededNoise:
    """Noise drawn from a seed, with the distribution of :class:`fedping.server_jobs.privacy.noise.SystemNoise`.

    Anyone with the seed can subtract the noise, so this is a separate type, which a round accepts only from a study
    declared as simulated.
    """

    def __init__(self, seed: int | np.random.SeedSequence | np.random.Generator) -> None:
        self._rng = np.random.default_rng(seed)

    def integers(self, sigma: float, d: int) -> Integers:
        """Return the next d discrete Gaussians of standard deviation σ, shape (d,); zeros for σ = 0.

        Raises:
            NoGuarantee: for σ that is neither 0 nor from 1 to 2^40.
        """
        if checked_sigma(sigma) == 0:
            return np.zeros(d, np.int64)
        return discrete_gaussian(self._rng.bytes, sigma, d)
