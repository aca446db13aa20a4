"""Linear ranking of candidates by the SVM loss for ranking (thesis 7.2)."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from fedping.client_sim.learning.batch import FloatArray, Floats, shares
from fedping.client_sim.learning.choices import Choices
from fedping.client_sim.learning.models.arrays import InPrecision, Precision, array, check_width, precision_of
from fedping.client_sim.learning.models.layer import Layer, add_to_gradients, add_to_losses
from fedping.client_sim.learning.settings import Settings
from fedping.protocol.spec import Block

NAME = "svm-ranking"


@dataclass(frozen=True)
class SvmRanking(InPrecision):
    """A candidate's score is x · w; the loss of a choice i is the sum over j ≠ i of max(0, score_j + Δ - score_i).

    The loss of a client is the mean over its choices plus l2 / 2 · |w|². A hinge at exactly zero is inactive, and a
    group without a chosen candidate has loss 0, as everywhere here (:mod:`fedping.client_sim.models.ranking_loss`).
    """

    features: int
    margin: float = 10.0
    l2: float = 0.0
    precision: Precision = "float64"

    @property
    def arrays(self) -> tuple[Block, ...]:
        """See :attr:`OfArrays.arrays`."""
        return (array("coefficients", (self.features,)),)

    @cached_property
    def _layer(self) -> Layer:
        return Layer(self.features, 1, intercept=False)

    def _scores(self, weights: Floats, batch: Choices) -> Floats:
        """Return every candidate's score, shape (k, n, c); minus infinity for missing candidates."""
        check_width(weights.shape[-1], self.m, NAME)
        k, n, c, d = batch.x.shape
        x = self.own(batch.x).reshape(k, n * c, d)
        scores = self._layer.forward(self.own(weights), x).reshape(k, n, c)
        if batch.absent is not None:
            scores[batch.absent] = -np.inf
        return scores

    def predict(self, weights: FloatArray, batch: Choices) -> FloatArray:
        """Return every candidate's score, shape (k, n, c); minus infinity for missing candidates."""
        return self._scores(weights, batch).astype(np.float64, copy=False)

    def losses(self, weights: FloatArray, batch: Choices) -> FloatArray:
        """See :meth:`fedping.client_sim.learning.model.Model.losses`."""
        return self._losses(weights, batch, self._over(weights, batch))

    def gradients(self, weights: FloatArray, batch: Choices) -> Floats:
        """See :meth:`fedping.client_sim.learning.model.Model.gradients`."""
        return self.losses_and_gradients(weights, batch)[1]

    def losses_and_gradients(self, weights: FloatArray, batch: Choices) -> tuple[FloatArray, Floats]:
        """See :class:`fedping.client_sim.learning.model.GivesBoth`."""
        over = self._over(weights, batch)
        k, n, c, d = batch.x.shape
        pulls = (over > 0).astype(self.dtype)
        pulls.reshape(-1)[batch.chosen] = -pulls.sum(axis=2).ravel()
        pulls *= shares(batch, self.dtype)[..., None]
        gradients = np.empty((k, self.m), self.dtype)
        self._layer.backward(self.own(batch.x).reshape(k, n * c, d), pulls.reshape(k, n * c, 1), gradients)
        add_to_gradients(gradients, self.l2, self.own(weights), batch, self._layer)
        return self._losses(weights, batch, over), gradients

    def _over(self, weights: Floats, batch: Choices) -> Floats:
        """Return each candidate's violation of the margin, 0 without one, shape (k, n, c)."""
        over = self._scores(weights, batch)
        best = np.take(over.reshape(-1), batch.chosen)
        best[batch.nothing | np.isneginf(best)] = np.inf
        over += (self.margin - best).reshape(*over.shape[:2], 1)
        np.maximum(over, 0.0, out=over)
        over.reshape(-1)[batch.chosen] = 0.0
        return over

    def _losses(self, weights: FloatArray, batch: Choices, over: Floats) -> FloatArray:
        found = np.einsum("kn,knc->k", shares(batch, self.dtype), over)
        losses: FloatArray = found.astype(np.float64, copy=False)
        add_to_losses(losses, self.l2, weights, batch, self._layer)
        return losses


def svm_ranking(settings: Settings) -> SvmRanking:
    """Return the model of these settings: ``features``, ``l2`` (0), ``precision``; Δ is the spec's margin."""
    return SvmRanking(
        features=settings.whole("features"),
        margin=settings.margin,
        l2=settings.number("l2", 0.0),
        precision=precision_of(settings),
    )
