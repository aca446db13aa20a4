"""A mixture of two experts, which are models of the same kind, by a gate (Peterson et al. 2019)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np

from fedping.client_sim.learning.batch import Examples, FloatArray, Floats, counts, shares
from fedping.client_sim.learning.model import (
    Mixes,
    Model,
    has_precision,
    mixes,
    precision,
    predictions_and_scores,
)
from fedping.client_sim.learning.models.classes import classes_of
from fedping.protocol.errors import InvalidSettings

LEAST = 1e-6
"""Minimum probability of a class in a mixture's loss; the maximum is 1 minus this."""


class Parts(NamedTuple):
    """The weights of a mixture, or their gradients.

    Attributes:
        shared: weights of the shared expert, w, shape (k, m).
        private: weights of the client's own expert, P, shape (k, m).
        gate: g and then b, shape (k, d + 1).
    """

    shared: Any
    private: Any
    gate: Any


class Mixed(NamedTuple):
    """Predictions, numbers of shape (k, n) or probabilities of shape (k, n) or (k, n, c).

    Attributes:
        share: a(x), the share of the shared expert, shape (k, n).
        of_shared: M(x; w).
        of_private: M(x; P).
    """

    share: FloatArray
    of_shared: FloatArray
    of_private: FloatArray

    @property
    def prediction(self) -> FloatArray:
        """Return a M(x; w) + (1 - a) M(x; P), which equals either expert's prediction where both agree, to the bit."""
        apart = self.of_shared - self.of_private
        return np.asarray(self.of_private + wide(self.share, apart) * apart)


@dataclass(frozen=True)
class Mixture:
    """y = a(x) M(x; w) + (1 - a(x)) M(x; P), with a(x) = σ(g · x + b): a :class:`Model` of the weights w, P, g, b.

    The loss is the mean of the squares (y - t)², or the mean cross-entropy of the mixed probabilities, between
    :data:`LEAST` and 1 - LEAST, plus the shared expert's own penalty. At a = 1 it equals the loss of the shared model.

    Attributes:
        model: the model of both experts; it implements :class:`Mixes`.
    """

    model: Any

    @cached_property
    def weight_names(self) -> Sequence[str]:
        """See :attr:`Model.weight_names`."""
        names = tuple(self.model.weight_names)
        gate = (*(f"gate[{j}]" for j in range(self.model.features)), "gate")
        return (*names, *(f"own {name}" for name in names), *gate)

    @cached_property
    def start(self) -> FloatArray:
        """See :attr:`Model.start`."""
        return np.concatenate([self.model.start, self.model.start, np.zeros(self.model.features + 1)])

    @property
    def dtype(self) -> np.dtype[Any]:
        """See :class:`HasPrecision`."""
        return precision(self.model)

    @property
    def floats_per_example(self) -> int:
        """See :class:`HasPrecision`."""
        return 2 * (self.model.floats_per_example if has_precision(self.model) else 4) + 4

    def parts(self, weights: Floats) -> Parts:
        """Return w, P and the gate of weights of shape (m',) or (k, m')."""
        m = len(self.model.weight_names)
        return Parts(weights[..., :m], weights[..., m : 2 * m], weights[..., 2 * m :])

    def mixed(self, weights: Parts, batch: Examples) -> Mixed:
        """Return the shares of both experts, and their predictions."""
        return Mixed(
            _sigmoid(_scores(weights.gate, batch)),
            self.model.predict(weights.shared, batch),
            self.model.predict(weights.private, batch),
        )

    def predict(self, weights: FloatArray, batch: Examples) -> FloatArray:
        """See :meth:`Model.predict`."""
        return self.mixed(self.parts(weights), batch).prediction

    def predictions_and_scores(self, weights: FloatArray, batch: Examples) -> tuple[FloatArray, FloatArray | None]:
        """See :class:`fedping.client_sim.learning.model.GivesScores`."""
        parts = self.parts(weights)
        gate = _scores(parts.gate, batch)
        of_shared, shared = predictions_and_scores(self.model, parts.shared, batch)
        of_private, private = predictions_and_scores(self.model, parts.private, batch)
        found = Mixed(_sigmoid(gate), of_shared, of_private).prediction
        return found, None if shared is None or private is None else _log_odds(gate, shared, private)

    def losses(self, weights: FloatArray, batch: Examples) -> FloatArray:
        """See :meth:`Model.losses`."""
        parts = self.parts(weights)
        each = losses_of(self.model, self.mixed(parts, batch).prediction, batch)
        found: FloatArray = np.einsum("kn,kn->k", shares(batch), each) + self.model.penalty(parts.shared, batch)[0]
        return found

    def gradients(self, weights: FloatArray, batch: Examples) -> Floats:
        """See :meth:`Model.gradients`."""
        own = self.parts(weights)
        mixed = self.mixed(own, batch)
        pulls = pulls_on(self.model, mixed.prediction, batch) * wide(shares(batch), mixed.of_shared)
        found = self.pulled(own, batch, mixed, pulls)
        penalty = self.model.penalty(own.shared, batch)[1]
        return np.concatenate([found.shared + penalty, found.private, found.gate], axis=1)

    def pulled(self, weights: Parts, batch: Examples, mixed: Mixed, pulls: FloatArray) -> Parts:
        """Return the gradients by w, P and the gate, given the gradients ``pulls`` by the mixed predictions."""
        return Parts(
            self.model.pulled(weights.shared, batch, pulls_on_shared(mixed, pulls)),
            self.model.pulled(weights.private, batch, pulls * wide(1.0 - mixed.share, pulls)),
            self._pulled_gate(batch, mixed, pulls),
        )

    def _pulled_gate(self, batch: Examples, mixed: Mixed, pulls: FloatArray) -> FloatArray:
        apart = pulls * (mixed.of_shared - mixed.of_private)
        on_share = apart if apart.ndim == 2 else apart.sum(axis=2)
        on_scores = on_share * mixed.share * (1.0 - mixed.share)
        by_features = np.einsum("kn,knd->kd", on_scores, batch.x)
        return np.concatenate([by_features, on_scores.sum(axis=1, keepdims=True)], axis=1)


def mixture_of(model: Model[Any]) -> Mixture:
    """Return the mixture of two models of this kind.

    Raises:
        InvalidSettings: the model has no predictions that can be mixed.
    """
    if not mixes(model):
        raise InvalidSettings(
            "an expert is mixed with the shared model by their predictions, numbers or probabilities of classes, and "
            "this model gives no gradient of them. Choose linear-regression, logistic-regression or network, or "
            'personalize with by = "fine_tune"'
        )
    return Mixture(model)


def pulls_on_shared(mixed: Mixed, pulls: FloatArray) -> FloatArray:
    """Return the gradients by the shared expert's predictions, given the gradients by the mixed predictions."""
    found: FloatArray = pulls * wide(mixed.share, pulls)
    return found


def losses_of(model: Mixes, predicted: FloatArray, batch: Examples) -> FloatArray:
    """Return the loss of each prediction, shape (k, n)."""
    if not (classes := getattr(model, "classes", 0)):
        return np.asarray((predicted - batch.y) ** 2)
    y = classes_of(batch, classes)
    if predicted.ndim == 2:
        of_class = np.where(y == 1, predicted, 1.0 - predicted)
    else:
        of_class = np.take_along_axis(predicted, y[..., None], axis=2)[..., 0]
    return np.asarray(-np.log(np.clip(of_class, LEAST, 1.0 - LEAST)))


def pulls_on(model: Mixes, predicted: FloatArray, batch: Examples) -> FloatArray:
    """Return the gradient of each example's loss by its prediction, in the shape of the predictions.

    Below :data:`LEAST`, it is the gradient at that probability, so that even an error of full certainty can be
    unlearned.
    """
    if not (classes := getattr(model, "classes", 0)):
        return np.asarray(2.0 * (predicted - batch.y))
    y = classes_of(batch, classes)
    clipped = np.clip(predicted, LEAST, 1.0 - LEAST)
    if predicted.ndim == 2:
        return np.asarray((clipped - y) / (clipped * (1.0 - clipped)))
    found = np.zeros_like(predicted)
    of_class = np.take_along_axis(clipped, y[..., None], axis=2)
    np.put_along_axis(found, y[..., None], -1.0 / of_class, axis=2)
    return found


def shrunk(gate: Floats, batch: Examples, l2: float) -> Floats:
    """Return the gradient of a penalty l2 / 2 |g|² on gates, shape (k, d + 1); b, an intercept, has no penalty."""
    found = l2 * gate * (counts(batch) > 0)[:, None]
    found[:, -1] = 0.0
    return np.asarray(found)


def _scores(gate: Floats, batch: Examples) -> FloatArray:
    scores: FloatArray = np.einsum("...d,knd->kn" if gate.ndim == 1 else "kd,knd->kn", gate[..., :-1], batch.x)
    return scores + gate[..., -1:]


def _sigmoid(scores: FloatArray) -> FloatArray:
    small = np.exp(-np.abs(scores))
    return np.asarray(np.where(scores >= 0, 1.0, small) / (1.0 + small))


def _log_odds(gate: FloatArray, shared: FloatArray, private: FloatArray) -> FloatArray:
    """Return the log-odds of class 1 of the mixture from those of both experts; all of shape (k, n).

    Where both experts agree, the result equals theirs to the bit. ``gate`` has the log-odds of the shared expert's
    share.
    """
    found = _log_mixed(gate, shared, private) - _log_mixed(gate, -shared, -private)
    return np.where(shared == private, shared, found)


def _log_mixed(gate: FloatArray, shared: FloatArray, private: FloatArray) -> FloatArray:
    """Return log(a σ(shared) + (1 - a) σ(private)) with a = σ(gate), computed without underflow."""
    found: FloatArray = np.logaddexp(
        _log_sigmoid(gate) + _log_sigmoid(shared), _log_sigmoid(-gate) + _log_sigmoid(private)
    )
    return found


def _log_sigmoid(scores: FloatArray) -> FloatArray:
    return np.asarray(-np.logaddexp(0.0, -scores))


def wide(of_examples: Any, like: FloatArray) -> Any:
    """Return values of examples, shape (k, n), with an axis for broadcasting if ``like`` has an axis of classes."""
    return of_examples[..., None] if like.ndim == 3 else of_examples
