"""Logistic regression with two or more classes."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from fedping.client_sim.learning.batch import Examples, FloatArray, Floats, shares
from fedping.client_sim.learning.models.arrays import Precision, array, check_width, precision_of
from fedping.client_sim.learning.models.classes import classes_of, cross_entropies, pulls_on_scores, softmax
from fedping.client_sim.learning.models.layer import Layer, Penalised, add_to_gradients, add_to_losses
from fedping.client_sim.learning.settings import Settings
from fedping.protocol.spec import Block

NAME = "logistic-regression"
_LARGEST_EXPONENT = np.float32(80.0)
"""Largest exponent of exp in single precision, which overflows slightly above it."""


@dataclass(frozen=True)
class LogisticRegression(Penalised):
    """The loss is the mean cross-entropy plus l2 / 2 · |w|², where w are the coefficients without the intercepts.

    It has the same minimum as scikit-learn's ``LogisticRegression`` with C = 1 / (l2 · n). With two classes, the model
    has one score, for class 1: coefficients (features), then the intercept. With c > 2 classes it has a score for each:
    coefficients (features × c), row by row, then c intercepts.
    """

    features: int
    classes: int = 2
    intercept: bool = True
    l2: float = 0.0
    precision: Precision = "float64"

    @property
    def arrays(self) -> tuple[Block, ...]:
        """See :attr:`OfArrays.arrays`."""
        several = (self.classes,) if self.classes > 2 else ()
        offsets = [array("intercept", several or (1,))] if self.intercept else []
        return (array("coefficients", (self.features, *several)), *offsets)

    @cached_property
    def penalised_layers(self) -> tuple[Layer, ...]:
        """See :class:`Penalised`."""
        return (self._layer,)

    @cached_property
    def _layer(self) -> Layer:
        return Layer(self.features, self.classes if self.classes > 2 else 1, intercept=self.intercept)

    def _scores(self, weights: FloatArray, batch: Examples) -> Floats:
        check_width(weights.shape[-1], self.m, NAME)
        return self._layer.forward(self.own(weights), self.own(batch.x))

    def predict(self, weights: FloatArray, batch: Examples) -> FloatArray:
        """Return the probability of class 1, shape (k, n), or, for more than two classes, of each class, (k, n, c)."""
        return self.predictions_and_scores(weights, batch)[0]

    def predictions_and_scores(self, weights: FloatArray, batch: Examples) -> tuple[FloatArray, FloatArray | None]:
        """See :class:`fedping.client_sim.learning.model.GivesScores`."""
        scores = self._scores(weights, batch)
        if self.classes > 2:
            return softmax(scores).astype(np.float64, copy=False), None
        odds = scores[..., 0]
        return _sigmoid(odds)[0].astype(np.float64, copy=False), odds.astype(np.float64, copy=False)

    def pulled(self, weights: FloatArray, batch: Examples, pulls: FloatArray) -> Floats:
        """See :meth:`fedping.client_sim.learning.model.Mixes.pulled`."""
        scores = self._scores(weights, batch)
        if self.classes > 2:
            on_scores = pulls_on_scores(softmax(scores), self.own(pulls))
        else:
            small = np.exp(-np.abs(scores[..., 0]))
            on_scores = (self.own(pulls) * small / (1.0 + small) ** 2)[..., None]
        gradients = np.empty((len(batch), self.m), self.dtype)
        self._layer.backward(self.own(batch.x), on_scores, gradients)
        return gradients

    def losses(self, weights: FloatArray, batch: Examples) -> FloatArray:
        """See :meth:`fedping.client_sim.learning.model.Model.losses`."""
        return self._losses_and_pulls(weights, batch)[0]

    def gradients(self, weights: FloatArray, batch: Examples) -> Floats:
        """See :meth:`fedping.client_sim.learning.model.Model.gradients`."""
        return self.losses_and_gradients(weights, batch)[1]

    def losses_and_gradients(self, weights: FloatArray, batch: Examples) -> tuple[FloatArray, Floats]:
        """See :class:`fedping.client_sim.learning.model.GivesBoth`."""
        losses, pulls = self._losses_and_pulls(weights, batch)
        gradients = np.empty((len(batch), self.m), self.dtype)
        self._layer.backward(self.own(batch.x), pulls, gradients)
        add_to_gradients(gradients, self.l2, self.own(weights), batch, self._layer)
        return losses, gradients

    def _losses_and_pulls(self, weights: FloatArray, batch: Examples) -> tuple[FloatArray, Floats]:
        scores, y, share = self._scores(weights, batch), classes_of(batch, self.classes), shares(batch, self.dtype)
        if self.classes > 2:
            found, pulls = cross_entropies(scores, y, share)
        elif scores.dtype == np.float32:
            found, pulls = _binary_single(scores, batch.signs, share)
        else:
            found, pulls = _binary(scores, y, share)
        losses: FloatArray = found.astype(np.float64, copy=False)
        add_to_losses(losses, self.l2, weights, batch, self._layer)
        return losses, pulls


def _sigmoid(scores: Floats) -> tuple[Floats, Floats]:
    """Return 1 / (1 + exp(-z)) for the scores z, and exp(-|z|), which does not overflow."""
    small = np.exp(-np.abs(scores))
    return np.where(scores >= 0, 1.0, small) / (1.0 + small), small


def _binary(scores: Floats, y: NDArray[np.intp], share: FloatArray) -> tuple[Floats, Floats]:
    """Return the results of :func:`cross_entropies` for one score z: log(1 + exp(z)) - y z, and its gradient in z."""
    z = scores[..., 0]
    probability, small = _sigmoid(z)
    each = np.log1p(small) + np.maximum(z, 0.0) - y * z
    return np.einsum("kn,kn->k", share, each), (share * (probability - y))[..., None]


def _binary_single(scores: Floats, turned: Floats, share: Floats) -> tuple[Floats, Floats]:
    """Return the results of :func:`_binary` in few passes: log(1 + exp(s)), where s = z, or -z for class 1.

    Where 1 + exp(s) rounds to 1 the loss is 0, with an error of less than 1e-7.
    """
    s = scores[..., 0] * turned
    beyond = np.maximum(s - _LARGEST_EXPONENT, 0) if s.max(initial=0.0) > _LARGEST_EXPONENT else None
    above = np.exp(s if beyond is None else s - beyond, out=s)
    total = above + 1
    pulls = np.divide(above, total, out=above)
    pulls *= turned
    pulls *= share
    each = np.log(total, out=total)
    if beyond is not None:
        each += beyond
    return np.einsum("kn,kn->k", share, each), pulls[..., None]


def logistic_regression(settings: Settings) -> LogisticRegression:
    """Return the model of these settings.

    ``features``, ``classes`` (2), ``intercept`` (true), ``l2`` (0), ``precision`` (``float64`` or ``float32``).
    """
    return LogisticRegression(
        features=settings.whole("features"),
        classes=settings.whole("classes", 2, least=2),
        intercept=settings.flag("intercept", True),
        l2=settings.number("l2", 0.0),
        precision=precision_of(settings),
    )
