"""Evaluation: the loss of a steep model is linear in the row that is alone beyond a plane.

While a plane is beyond all rows, the loss of one class is linear in the plane's offset. Each row that the plane crosses
adds its distance from the plane. If a single row is beyond, the loss for slightly turned directions reveals its columns
one by one. A row takes about 2 f + 40 versions.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from fedping.client_sim.learning.batch import FloatArray
from fedping.client_sim.learning.models.logistic_regression import LogisticRegression
from fedping.experiments.privacy.rows.victim import Over, Target, Victim

STEEP = 1e6
FAR = 1e3
TURN = 1e-4
"""Size of the change that turns a direction, so small that the same row stays alone."""

HALVINGS = 60


@dataclass(frozen=True)
class Evaluation:
    """The attack by evaluation; see the module."""

    name: str = "evaluation"

    def why_not(self, target: Target) -> str | None:
        """See :meth:`Attack.why_not`."""
        model = target.kind
        if not isinstance(model, LogisticRegression) or model.classes > 2 or not model.intercept:
            return "it needs the loss of a logistic regression of two classes, with an intercept"
        return "the loss has its own penalty, which is larger than a row's part" if model.l2 else None

    def guesses(self, victim: Victim) -> Iterator[FloatArray]:
        """See :meth:`Attack.guesses`."""
        random, features = victim.target.random(), victim.target.features
        try:
            while True:
                direction = random.standard_normal(features)
                guess = self._row_beyond(victim, direction / np.linalg.norm(direction))
                if guess is not None:
                    yield guess
        except Over:
            return

    def _row_beyond(self, victim: Victim, direction: FloatArray) -> FloatArray | None:
        """Return the row that is the farthest along a direction; None if rows can't be distinguished."""
        slope, ground = self._line(victim, direction)

        def distance(threshold: float) -> float:
            """Return the sum of the distances from the plane of all rows beyond it."""
            return self._loss(victim, direction, threshold) - (slope * threshold + ground)

        low, high = -FAR, FAR  # many rows beyond, and none
        for _ in range(HALVINGS):
            middle = (low + high) / 2
            over = distance(middle)
            if over < 1e-7:
                high = middle
                continue
            nearer = distance(middle - TURN)
            rows = (nearer - over) / TURN
            if rows < 1.5:
                return self._columns(victim, direction, middle, slope, over)
            low = middle
        return None

    def _columns(
        self,
        victim: Victim,
        direction: FloatArray,
        threshold: float,
        slope: float,
        over: float,
    ) -> FloatArray:
        """Return the single row beyond a plane, from the changes of its distance ``over`` as the plane turns."""
        row = np.empty(len(direction))
        for column in range(len(direction)):
            turned = direction.copy()
            turned[column] += TURN
            ground = self._loss(victim, turned, FAR) - slope * FAR
            beyond = self._loss(victim, turned, threshold) - (slope * threshold + ground)
            row[column] = (beyond - over) / TURN
        return row

    def _line(self, victim: Victim, direction: FloatArray) -> tuple[float, float]:
        """Return the slope and intercept of the sum of losses, by the plane's offset, without rows beyond the plane."""
        at, further = self._loss(victim, direction, FAR), self._loss(victim, direction, 2 * FAR)
        slope = (further - at) / FAR
        return slope, at - slope * FAR

    def _loss(self, victim: Victim, direction: FloatArray, threshold: float) -> float:
        """Return the sum of the rows' losses, in units of distance."""
        weights = STEEP * np.append(direction, -threshold)
        given = victim.ask(weights)
        if given is None:
            raise Over
        return given.loss * victim.target.rows / STEEP
