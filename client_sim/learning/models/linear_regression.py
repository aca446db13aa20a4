"""Linear regression by least squares."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from fedping.client_sim.learning.batch import Examples, FloatArray, Floats, shares
from fedping.client_sim.learning.models.arrays import Precision, array, check_width, precision_of
from fedping.client_sim.learning.models.layer import Layer, Penalised, add_to_gradients, add_to_losses
from fedping.client_sim.learning.settings import Settings
from fedping.protocol.spec import Block

NAME = "linear-regression"


@dataclass(frozen=True)
class LinearRegression(Penalised):
    """y = x · w + b. The loss is the mean of (x · w + b - y)², without a factor of ½, plus l2 / 2 · |w|².

    It has the same minimum as scikit-learn's ``Ridge`` with alpha = l2 · n / 2. The weights are the coefficients,
    followed by the intercept if there is one.
    """

    features: int
    intercept: bool = True
    l2: float = 0.0
    precision: Precision = "float64"

    @property
    def arrays(self) -> tuple[Block, ...]:
        """See :attr:`OfArrays.arrays`."""
        return (array("coefficients", (self.features,)), *([array("intercept", (1,))] if self.intercept else []))

    @cached_property
    def penalised_layers(self) -> tuple[Layer, ...]:
        """See :class:`Penalised`."""
        return (self._layer,)

    @cached_property
    def _layer(self) -> Layer:
        return Layer(self.features, 1, intercept=self.intercept)

    def predict(self, weights: FloatArray, batch: Examples) -> FloatArray:
        """Return the predicted numbers, shape (k, n)."""
        return self._predicted(weights, batch).astype(np.float64, copy=False)

    def _predicted(self, weights: FloatArray, batch: Examples) -> Floats:
        check_width(weights.shape[-1], self.m, NAME)
        return self._layer.forward(self.own(weights), self.own(batch.x))[..., 0]

    def _error(self, weights: FloatArray, batch: Examples) -> Floats:
        return self.own(self._predicted(weights, batch) - batch.y)

    def pulled(self, weights: FloatArray, batch: Examples, pulls: FloatArray) -> Floats:
        """See :meth:`fedping.client_sim.learning.model.Mixes.pulled`."""
        gradients = np.empty((len(batch), self.m), self.dtype)
        self._layer.backward(self.own(batch.x), self.own(pulls)[..., None], gradients)
        return gradients

    def losses(self, weights: FloatArray, batch: Examples) -> FloatArray:
        """See :meth:`fedping.client_sim.learning.model.Model.losses`."""
        return self._losses(weights, batch, self._error(weights, batch), shares(batch, self.dtype))

    def gradients(self, weights: FloatArray, batch: Examples) -> Floats:
        """See :meth:`fedping.client_sim.learning.model.Model.gradients`."""
        return self.losses_and_gradients(weights, batch)[1]

    def losses_and_gradients(self, weights: FloatArray, batch: Examples) -> tuple[FloatArray, Floats]:
        """See :class:`fedping.client_sim.learning.model.GivesBoth`."""
        error, share = self._error(weights, batch), shares(batch, self.dtype)
        gradients = np.empty((len(batch), self.m), self.dtype)
        self._layer.backward(self.own(batch.x), (2.0 * share * error)[..., None], gradients)
        add_to_gradients(gradients, self.l2, self.own(weights), batch, self._layer)
        return self._losses(weights, batch, error, share), gradients

    def _losses(self, weights: FloatArray, batch: Examples, error: Floats, share: Floats) -> FloatArray:
        found = np.einsum("kn,kn,kn->k", share, error, error)
        losses: FloatArray = found.astype(np.float64, copy=False)
        add_to_losses(losses, self.l2, weights, batch, self._layer)
        return losses


def linear_regression(settings: Settings) -> LinearRegression:
    """Return the model of these settings: ``features``, ``intercept`` (true), ``l2`` (0), ``precision``."""
    return LinearRegression(
        features=settings.whole("features"),
        intercept=settings.flag("intercept", True),
        l2=settings.number("l2", 0.0),
        precision=precision_of(settings),
    )
