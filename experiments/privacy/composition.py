"""The joint guarantee of several answers about the same people, and filters that stop before a budget is exceeded.

An answer's guarantee is a pair (ε, δ): but with probability δ, an answer is at most e^ε times as likely from some data
as from their neighbours. Sources: Dwork and Roth, "The Algorithmic Foundations of Differential Privacy", 2014, section
3.5; Rogers, Roth, Ullman and Vadhan, "Privacy Odometers and Filters", 2016; Rodríguez-Barroso et al., "Federated
Learning and Differential Privacy", 2020, section 2.4, whose equations are numbered here.

For rounds of training with Gaussian noise :mod:`fedping.server_jobs.privacy.accounting` is several times tighter.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import NamedTuple, Self

from fedping.server_jobs.privacy.gaussian import NoGuarantee, advanced_composition


class Guarantee(NamedTuple):
    """A guarantee of differential privacy for one answer or several."""

    epsilon: float
    """ε, in nats."""
    delta: float = 0.0


def basic(guarantees: Iterable[Guarantee]) -> Guarantee:
    """Return the joint guarantee of answers by basic composition: the sum of all ε and of all δ."""
    each = list(guarantees)
    return Guarantee(math.fsum(g.epsilon for g in each), math.fsum(g.delta for g in each))


def composed(one: Guarantee, k: int, delta: float) -> Guarantee:
    """Return the guarantee of k equal answers at a δ: the smaller ε of basic and advanced composition (eq. 14).

    Raises:
        NoGuarantee: if the sum of the answers' own δ exceeds ``delta``.
    """
    slack = delta - k * one.delta
    if slack < 0:
        raise NoGuarantee(
            f"{k} answers have a delta of {k * one.delta:g} together, which is more than the {delta:g} asked for"
        )
    sums = k * one.epsilon
    return Guarantee(min(sums, advanced_composition(*one, k, slack)[0]) if 0 < slack < 1 else sums, delta)


def subsampled(one: Guarantee, taken: int, of: int) -> Guarantee:
    """Return the guarantee of an answer computed from a secret sample of rows, without replacement (eq. 17).

    Neighbours differ in the content of one row. ε is ln(1 + (m/n)(e^ε - 1)) and δ is (m/n)δ. For Gaussian noise in many
    rounds the accountant is far tighter.

    Args:
        one: the guarantee for the sampled rows.
        taken: m, the number of rows in the sample.
        of: n, the number of all rows.
    """
    if not 0 <= taken <= of or of == 0:
        raise NoGuarantee(f"{taken} of {of} rows cannot be taken")
    share = taken / of
    # As e^ε·share + (1 - share), so that a large ε does not overflow.
    epsilon = one.epsilon + math.log(share + (1 - share) * math.exp(-one.epsilon)) if taken else 0.0
    return Guarantee(max(0.0, epsilon), share * one.delta)


@dataclass(frozen=True)
class Filter:
    """A privacy budget for answers whose ε may depend on earlier answers.

    The kind of filter has to be chosen in advance: continuing while either of two filters allows it breaks both
    guarantees.
    """

    budget: Guarantee
    spent: tuple[Guarantee, ...] = ()

    def allows(self, answer: Guarantee) -> bool:
        """Return whether the budget also covers this answer; call it before giving the answer."""
        return self._holds((*self.spent, answer))

    def after(self, answer: Guarantee) -> Self:
        """Return the filter after an answer is given.

        Raises:
            NoGuarantee: if the filter does not allow the answer.
        """
        if not self.allows(answer):
            raise NoGuarantee(
                f"after {len(self.spent)} answers the budget of epsilon {self.budget.epsilon:g} and delta "
                f"{self.budget.delta:g} has no room for another of ({answer.epsilon:g}, {answer.delta:g})"
            )
        return replace(self, spent=(*self.spent, answer))

    def allowed(self, answer: Guarantee) -> int:
        """Return the number of further such answers, with an ε or δ above 0, that the filter allows."""
        if not answer > (0.0, 0.0):
            raise NoGuarantee("answers that reveal nothing are allowed without end")
        left, count = self, 0
        while left.allows(answer):
            left, count = left.after(answer), count + 1
        return count

    def _holds(self, answers: tuple[Guarantee, ...]) -> bool:
        raise NotImplementedError


@dataclass(frozen=True)
class BasicFilter(Filter):
    """Filter that stops before the sum of all ε, or of all δ, would exceed the budget."""

    def _holds(self, answers: tuple[Guarantee, ...]) -> bool:
        together = basic(answers)
        return together.epsilon <= self.budget.epsilon and together.delta <= self.budget.delta


@dataclass(frozen=True)
class AdvancedFilter(Filter):
    """Filter that stops by Rogers et al.'s theorem 5.1, for a budget with δ between 0 and 1/e.

    With H = ε_g²/(28.04 ln(1/δ_g)), K = Σ ε(e^ε - 1)/2 + √((Σε² + H)(2 + ln(Σε²/H + 1)) ln(2/δ_g)) has to be at most
    ε_g, and Σδ at most δ_g/2. Rodríguez-Barroso et al. print the first sum under the root, which is a misprint.

    Only for many small answers does it allow more than :class:`BasicFilter`: for (4, 1e-5), 2,678 instead of 400
    answers of ε = 0.01, but 6 instead of 20 of ε = 0.2.
    """

    def __post_init__(self) -> None:
        if not (0 < self.budget.delta < math.exp(-1) and 0 < self.budget.epsilon < math.inf):
            raise NoGuarantee(
                f"the advanced filter needs a budget with a delta between 0 and 1/e and an epsilon above 0, not "
                f"({self.budget.epsilon:g}, {self.budget.delta:g}): take the basic filter"
            )

    def _holds(self, answers: tuple[Guarantee, ...]) -> bool:
        epsilon, delta = self.budget
        if max(answer.epsilon for answer in answers) > min(epsilon, 700) or basic(answers).delta > delta / 2:
            return False
        squares = math.fsum(answer.epsilon**2 for answer in answers)
        mean = math.fsum(answer.epsilon * math.expm1(answer.epsilon) / 2 for answer in answers)
        h = epsilon**2 / (28.04 * math.log(1 / delta))
        return mean + math.sqrt((squares + h) * (2 + math.log(squares / h + 1)) * math.log(2 / delta)) <= epsilon
