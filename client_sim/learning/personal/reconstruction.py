"""Blocks of a model that a client fits anew each time and does not keep: FedRecon."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from fedping.client_sim.learning.algorithm import Algorithm, State
from fedping.client_sim.learning.batch import Batch, FloatArray, Floats
from fedping.client_sim.learning.mini_batches import divided
from fedping.client_sim.learning.model import Model, precision
from fedping.client_sim.learning.personal.partly_local import fitted, part_of
from fedping.client_sim.learning.submodel import Part
from fedping.protocol.draws import Keys, child_keys
from fedping.protocol.personalization import Reconstruct
from fedping.protocol.training import LocalSteps, OneGradient

_DIVISION = 1 << 33
"""The child of a client's key that divides its examples, behind those of the shared weights' mini-batches."""


@dataclass(frozen=True)
class Reconstructed:
    """See :class:`fedping.protocol.personalization.Reconstruct`.

    The model to train is a :class:`Part`, whose weights are the shared ones. Both parts of the examples have at least
    one; of a single example the shared weights are trained beside the start of the local ones.

    Attributes:
        settings: what is asked for.
        training: how the shared weights are trained.
        algorithm: the algorithm for that.
    """

    settings: Reconstruct
    training: OneGradient | LocalSteps
    algorithm: Algorithm

    def init_state(self, model: Model[Any]) -> State:
        """See :meth:`Algorithm.init_state`; it is that of the algorithm for the shared weights."""
        return self.algorithm.init_state(part_of(model))

    def update(
        self, model: Model[Any], weights: FloatArray, batch: Batch, keys: Keys, state: State
    ) -> tuple[Floats, State]:
        """See :meth:`Algorithm.update`."""
        support, query = divided(batch, child_keys(keys, _DIVISION), self.settings.support)
        beside = self._beside(part_of(model), weights, support)
        return self.algorithm.update(beside, weights, query, keys, state)

    def personal_model(self, model: Model[Any]) -> Model[Any]:
        """See :meth:`Personalizes.personal_model`."""
        return part_of(model).whole

    def personal_weights(self, model: Model[Any], weights: FloatArray, batch: Any, state: State) -> Floats:
        """See :meth:`Personalizes.personal_weights`; the local blocks are fitted on all these examples."""
        found: Floats = self._beside(part_of(model), weights, batch).joined(weights)
        return found

    def _beside(self, part: Part, weights: FloatArray, batch: Batch) -> Part:
        """Return the shared part beside local weights that are fitted on some examples, shape (k, l)."""
        steps = LocalSteps(rate=self.settings.rate, steps=self.settings.steps)
        start = part.beside(np.tile(part.others, (len(batch), 1)).astype(precision(part), copy=False))
        return part.beside(fitted(start, weights, batch, np.zeros(len(batch), np.uint64), steps))
