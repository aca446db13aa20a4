"""Randomised response in two stages: a noisy answer is drawn once and kept, and each report adds noise to it.

A stage keeps an answer with probability p, and else draws one of all k answers, each with the same probability. So a
stage of ε has p = (e^ε - 1) / (e^ε + k - 1), and two consecutive stages are one stage with the product of both p. The
first stage bounds what all reports together reveal; the second makes a single report reveal less.

Sources: Warner 1965; Erlingsson, Pihur and Korolova, "RAPPOR", 2014, on the stages; Kairouz, Bonawitz and Ramage 2016,
on k answers; Jiang, Li and Lin, "Towards a More Reliable Privacy-preserving Recommender System", 2019, on ratings.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True)
class TwoStageResponse:
    """The two stages for an answer out of several. Any two answers are neighbours.

    Attributes:
        answers: number of possible answers, k, at least 2.
        permanent: ε of the first stage, which is drawn once for an answer.
        instantaneous: ε of the second stage, which is drawn for each report; None without one.
    """

    answers: int
    permanent: float
    instantaneous: float | None = None

    def kept(self, epsilon: float | None) -> float:
        """Return the probability that a stage keeps the answer; 1 without a stage."""
        return 1.0 if epsilon is None else math.expm1(epsilon) / (math.expm1(epsilon) + self.answers)

    @property
    def truth(self) -> float:
        """The probability that neither stage draws another answer."""
        return self.kept(self.permanent) * self.kept(self.instantaneous)

    @property
    def epsilon_of_report(self) -> float:
        """The exact local ε of a single report, through both stages."""
        return self.epsilon_of(1)

    def epsilon_of(self, reports: int) -> float:
        """Return the exact local ε of a number of reports of one answer: their largest log-ratio.

        The largest ratio occurs if all reports are the same answer. It grows with the number of reports, to the ε of
        the first stage.
        """
        if self.instantaneous is None:
            return self.permanent
        first, second = self._chances(self.permanent), self._chances(self.instantaneous)
        ratio = (second[1] / second[0]) ** reports  # 0 in the limit
        true = first[0] + (1 - first[0]) * ratio
        return math.log(true / (first[1] + (1 - first[1]) * ratio))

    def _chances(self, epsilon: float) -> tuple[float, float]:
        """Return the probabilities that a stage reports a given answer if it is the true one, and if it isn't."""
        other = (1 - self.kept(epsilon)) / self.answers
        return self.kept(epsilon) + other, other

    def channel(self) -> NDArray[np.float64]:
        """Return the probability of each report (column) given each answer (row), shape (k, k)."""
        uniform = (1 - self.truth) / self.answers
        return np.full((self.answers, self.answers), uniform) + self.truth * np.eye(self.answers)

    def drawn(
        self, answers: NDArray[np.integer[Any]], first: NDArray[np.float64], second: NDArray[np.float64]
    ) -> NDArray[np.intp]:
        """Return the reports of answers, numbers from 0 to k - 1.

        Args:
            answers: the true answers, of any shape.
            first: uniform numbers in [0, 1), the same for all reports of an answer.
            second: uniform numbers in [0, 1), new for each report.
        """
        stages = ((self.permanent, first), (self.instantaneous, second))
        reports = answers.astype(np.intp)
        for epsilon, uniform in stages:
            keep = self.kept(epsilon)
            if keep < 1:
                others = ((uniform - keep) / (1 - keep) * self.answers).astype(np.intp)
                reports = np.where(uniform < keep, reports, np.minimum(others, self.answers - 1))
        return reports

    def unbiased(self, reports: NDArray[np.intp], values: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return unbiased estimates of the true answers' values, given the values of all k answers."""
        middle = values.mean()
        return np.asarray(middle + (values[reports] - middle) / self.truth)
