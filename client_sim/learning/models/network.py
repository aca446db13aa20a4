"""A network with hidden layers for classification."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise

import numpy as np

from fedping.client_sim.learning.batch import Examples, FloatArray, Floats, shares
from fedping.client_sim.learning.models.arrays import Precision, array, check_width, precision_of
from fedping.client_sim.learning.models.classes import (
    classes_of,
    cross_entropies,
    log_odds_of,
    pulls_on_scores,
    softmax,
)
from fedping.client_sim.learning.models.layer import Layer, Penalised, add_to_gradients, add_to_losses
from fedping.client_sim.learning.settings import Settings
from fedping.protocol.spec import Block, Normal, Start, Uniform

NAME = "network"


@dataclass(frozen=True)
class Network(Penalised):
    """softmax(relu(... relu(x · W1 + b1) ...) · Wn + bn); the loss is the mean cross-entropy plus l2 / 2 · Σ |W|².

    ``hidden`` is the number of units of each hidden layer. Hidden W start at normal numbers of variance 2 / inputs (He
    et al. 2015), the last W at uniform ones within ±√(6 / (inputs + classes)) (Glorot and Bengio 2010), every b at 0.
    The gradient of relu at 0 is 0.

    ``precision`` is the precision of :class:`InPrecision`.
    """

    features: int
    classes: int
    hidden: tuple[int, ...] = (100,)
    seed: int = 0
    l2: float = 0.0
    precision: Precision = "float64"

    @property
    def arrays(self) -> tuple[Block, ...]:
        """See :attr:`OfArrays.arrays`."""
        found: list[Block] = []
        for number, layer in enumerate(self._layers, 1):
            start: Start = Normal(seed=self.seed, scale=math.sqrt(2 / layer.inputs))
            if number == len(self._layers):
                start = Uniform(seed=self.seed, scale=math.sqrt(6 / (layer.inputs + layer.outputs)))
            found += [
                array(f"W{number}", (layer.inputs, layer.outputs), start),
                array(f"b{number}", (layer.outputs,)),
            ]
        return tuple(found)

    @property
    def floats_per_example(self) -> int:
        """See :class:`fedping.client_sim.learning.model.HasPrecision`."""
        return 2 * sum(self.hidden) + 2 * self.classes + (self.features if self.precision == "float32" else 0)

    @property
    def penalised_layers(self) -> tuple[Layer, ...]:
        """See :class:`Penalised`."""
        return self._layers

    @cached_property
    def _layers(self) -> tuple[Layer, ...]:
        layers: list[Layer] = []
        for inputs, outputs in pairwise((self.features, *self.hidden, self.classes)):
            layers.append(Layer(inputs, outputs, layers[-1].end if layers else 0))
        return tuple(layers)

    def _forward(self, weights: Floats, x: Floats) -> tuple[list[Floats], Floats]:
        """Return the input of each layer, shape (k, n, inputs) each, and the scores, shape (k, n, classes)."""
        check_width(weights.shape[-1], self.m, NAME)
        into = [x]
        for layer in self._layers[:-1]:
            out = layer.forward(weights, into[-1])
            into.append(np.maximum(out, 0, out=out))
        return into, self._layers[-1].forward(weights, into[-1])

    def predict(self, weights: FloatArray, batch: Examples) -> FloatArray:
        """Return the probability of each class, shape (k, n, classes)."""
        return self.predictions_and_scores(weights, batch)[0]

    def predictions_and_scores(self, weights: FloatArray, batch: Examples) -> tuple[FloatArray, FloatArray | None]:
        """See :class:`fedping.client_sim.learning.model.GivesScores`."""
        scores = self._forward(self.own(weights), self.own(batch.x))[1]
        odds = log_odds_of(scores)  # before softmax, which works in place
        return softmax(scores).astype(np.float64, copy=False), odds

    def pulled(self, weights: FloatArray, batch: Examples, pulls: FloatArray) -> Floats:
        """See :meth:`fedping.client_sim.learning.model.Mixes.pulled`."""
        own = self.own(weights)
        into, scores = self._forward(own, self.own(batch.x))
        return self._backward(own, into, pulls_on_scores(softmax(scores), self.own(pulls)))

    def losses(self, weights: FloatArray, batch: Examples) -> FloatArray:
        """See :meth:`fedping.client_sim.learning.model.Model.losses`."""
        own = self.own(weights)
        scores = self._forward(own, self.own(batch.x))[1]
        found = cross_entropies(scores, classes_of(batch, self.classes), shares(batch, self.dtype))[0]
        losses = found.astype(np.float64, copy=False)
        add_to_losses(losses, self.l2, own, batch, *self._layers)
        return losses

    def gradients(self, weights: FloatArray, batch: Examples) -> Floats:
        """See :meth:`fedping.client_sim.learning.model.Model.gradients`."""
        return self.losses_and_gradients(weights, batch)[1]

    def losses_and_gradients(self, weights: FloatArray, batch: Examples) -> tuple[FloatArray, Floats]:
        """See :class:`fedping.client_sim.learning.model.GivesBoth`."""
        own = self.own(weights)
        into, scores = self._forward(own, self.own(batch.x))
        found, pulls = cross_entropies(scores, classes_of(batch, self.classes), shares(batch, self.dtype))
        losses = found.astype(np.float64, copy=False)
        gradients = self._backward(own, into, pulls)
        add_to_losses(losses, self.l2, own, batch, *self._layers)
        add_to_gradients(gradients, self.l2, own, batch, *self._layers)
        return losses, gradients

    def _backward(self, weights: Floats, into: list[Floats], pulls: Floats) -> Floats:
        """Return the gradients by the weights, shape (k, m), given gradients by the scores, shape (k, n, classes)."""
        gradients = np.empty((len(pulls), self.m), self.dtype)
        for layer, given in zip(reversed(self._layers), reversed(into), strict=True):
            layer.backward(given, pulls, gradients)
            if layer.first:
                pulls = layer.pulls_on_inputs(weights, pulls)
                pulls *= given > 0
        return gradients


def network(settings: Settings) -> Network:
    """Return the model of these settings: ``features``, ``classes``, ``hidden`` (100), ``seed`` (0), ``l2`` (0).

    Also ``precision`` (``float64`` or ``float32``). Several hidden layers are given as a text, such as "128, 64".
    """
    return Network(
        features=settings.whole("features"),
        classes=settings.whole("classes", least=2),
        hidden=settings.wholes("hidden", 100),
        seed=settings.whole("seed", 0, least=0),
        l2=settings.number("l2", 0.0),
        precision=precision_of(settings),
    )
