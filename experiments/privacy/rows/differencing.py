"""Differencing: a table changes by one row between two versions, and the difference of the answers is that row."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from fedping.client_sim.joining.answering import Answer
from fedping.client_sim.learning.batch import FloatArray
from fedping.client_sim.learning.models.linear_regression import LinearRegression
from fedping.client_sim.learning.models.logistic_regression import LogisticRegression
from fedping.experiments.privacy.rows.victim import Over, Target, Victim
from fedping.protocol.training import LocalSteps

SURE = 1e3
"""Offset that makes a model certain of a class, or wrong about the target, on every row."""

LEAST = 1e-3
"""Minimum difference between two counts of rows, in rows, that is more than rounding."""


@dataclass(frozen=True)
class Differencing:
    """The attack by differencing; see the module. ``rows`` are attacked, one after another."""

    rows: int = 20
    name: str = "differencing"

    def why_not(self, target: Target) -> str | None:
        """See :meth:`Attack.why_not`."""
        model = target.kind
        if not isinstance(model, LogisticRegression | LinearRegression) or not model.intercept:
            return "it needs a regression with an intercept, whose gradient is a multiple of the row"
        if isinstance(model, LinearRegression) and isinstance(target.training, LocalSteps):
            return "the steps of a linear regression follow from all rows"
        return None if target.of_sums else "it needs updates of all rows at once, by plain steps"

    def guesses(self, victim: Victim) -> Iterator[FloatArray]:
        """See :meth:`Attack.guesses`."""
        target = victim.target
        try:
            whole = [(weights, victim.ask(weights)) for weights in _sure(target)]
        except Over:
            return
        for row in target.random().permutation(target.rows)[: self.rows]:
            changed = victim.without(int(row))
            for weights, before in whole:
                try:
                    after = changed.ask(weights)
                except Over:
                    return
                if before is None or after is None:
                    continue
                difference = _sums(target, before) - _sums(changed.target, after)
                layer = difference.reshape(target.features + 1, -1)
                score = int(np.abs(layer[-1]).argmax())
                if abs(layer[-1, score]) > LEAST:
                    yield layer[:-1, score] / layer[-1, score]
                    break


def _sums(target: Target, given: Answer) -> FloatArray:
    return (target.of_sums or 1.0) * given.update


def _sure(target: Target) -> Iterator[FloatArray]:
    """Yield weights that are certain of the first class, and of another, so that any row pulls one of the models."""
    model = target.kind
    for offset in (SURE, -SURE):
        weights = np.zeros(len(target.model.weight_names))
        if isinstance(model, LogisticRegression):
            weights[-(1 if model.classes == 2 else model.classes)] = offset
        else:
            weights[-1] = offset
        yield weights
