"""Blocks of a model that stay with the client: FedPer and FedRep keep them, FedRecon refits them each time."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from fedping.client_sim.learning.algorithm import Algorithm, State
from fedping.client_sim.learning.batch import Batch, FloatArray, Floats, counts
from fedping.client_sim.learning.descent import LocalAlgorithm
from fedping.client_sim.learning.mini_batches import divided
from fedping.client_sim.learning.model import Model, precision
from fedping.client_sim.learning.personal.method import OWN_DRAWS, joined, own, shared
from fedping.client_sim.learning.submodel import Part, reduced
from fedping.protocol.draws import Keys, child_keys
from fedping.protocol.personalization import PartlyLocal, Reconstruct
from fedping.protocol.training import LocalSteps, OneGradient


@dataclass(frozen=True)
class PartlyLocalModel:
    """See :class:`fedping.protocol.personalization.PartlyLocal`.

    The model to train is a :class:`Part` with the shared weights. A client keeps the local weights, in single
    precision, and the number of their trainings. It sends a movement of the shared weights, which is computed with the
    local ones but doesn't include them.

    Attributes:
        settings: the method's settings.
        training: the training of the shared weights.
        algorithm: the algorithm of that training.
    """

    settings: PartlyLocal
    training: OneGradient | LocalSteps
    algorithm: Algorithm

    def init_state(self, model: Model[Any]) -> State:
        """See :meth:`Algorithm.init_state`."""
        part = part_of(model)
        trains = part.whole if self.settings.order == "together" else part
        mine: State = {"weights": part.others.astype(np.float32), "trained": np.zeros((), np.int64)}
        return joined(self.algorithm.init_state(trains), mine)

    def update(
        self, model: Model[Any], weights: FloatArray, batch: Batch, keys: Keys, state: State
    ) -> tuple[Floats, State]:
        """See :meth:`Algorithm.update`."""
        part, mine = part_of(model), own(state)
        begin, there = _local(part, mine), counts(batch) > 0
        move = self._together if self.settings.order == "together" else self._local_first
        updates, after, local = move(part.beside(begin), weights, batch, keys, shared(state))
        kept = np.where(there[:, None], local, mine["weights"]).astype(np.float32)
        return updates, joined(after, {"weights": kept, "trained": mine["trained"] + there})

    def personal_model(self, model: Model[Any]) -> Model[Any]:
        """See :meth:`Personalizes.personal_model`."""
        return part_of(model).whole

    def personal_weights(self, model: Model[Any], weights: FloatArray, batch: Any, state: State) -> Floats:
        """See :meth:`Personalizes.personal_weights`."""
        part = part_of(model)
        found: Floats = part.beside(_local(part, own(state))).joined(weights)
        return found

    def _together(
        self, part: Part, weights: FloatArray, batch: Batch, keys: Keys, memory: State
    ) -> tuple[Floats, State, Floats]:
        """Return updates of the shared weights, the optimizer's state, and the local weights, trained as in FedPer."""
        algorithm, pace = self.algorithm, self.settings.rate
        if isinstance(self.training, LocalSteps):
            rates = np.where(part.mine, self.training.rate, self.settings.rate)
            algorithm, pace = LocalAlgorithm(self.training, rates), 1.0
        moved, after = algorithm.update(part.whole, part.joined(weights), batch, keys, memory)
        return moved[:, part.mine], after, part.others + pace * moved[:, ~part.mine]

    def _local_first(
        self, part: Part, weights: FloatArray, batch: Batch, keys: Keys, memory: State
    ) -> tuple[Floats, State, Floats]:
        """Return the results of :meth:`_together`, trained as in FedRep."""
        steps = LocalSteps(rate=self.settings.rate, steps=self.settings.steps, batch=self.training.batch)
        local = fitted(part, weights, batch, child_keys(keys, OWN_DRAWS), steps)
        updates, after = self.algorithm.update(part.beside(local), weights, batch, keys, memory)
        return updates, after, local


def part_of(model: Model[Any]) -> Part:
    """Return a model of a personal training, typed as a :class:`Part`: a model without its local blocks.

    See :func:`fedping.client_sim.learning.algorithms.with_more`.
    """
    assert isinstance(model, Part)
    return model


def fitted(part: Part, weights: FloatArray, batch: Batch, keys: Keys, steps: LocalSteps) -> Floats:
    """Return the local weights of k clients after some steps with fixed shared weights, shape (k, l).

    Args:
        part: the shared part, with the clients' initial local weights, shape (k, l).
        weights: the shared weights, shape (m,) or (k, m).
        batch: the examples.
        keys: a random key for each client.
        steps: the steps.
    """
    model, examples = reduced(part.whole, part.other_names, weights, batch)
    moved, _ = LocalAlgorithm(steps).update(model, part.others, examples, keys, {})
    found: Floats = part.others + moved
    return found


def _local(part: Part, mine: State) -> Floats:
    """Return the clients' local weights, shape (k, l); for a client that has not trained, the model's start values."""
    begun = mine["trained"][:, None] > 0
    found: Floats = np.where(begun, mine["weights"], part.others).astype(precision(part), copy=False)
    return found


DIVISION = 1 << 33
"""Index of a client's child key for the division of its examples, after the shared weights' mini-batches."""


@dataclass(frozen=True)
class Reconstructed:
    """See :class:`fedping.protocol.personalization.Reconstruct`.

    The model to train is a :class:`Part` with the shared weights. A client's examples are divided in two parts of at
    least one example; with a single example, the shared weights are trained with the local weights' start values.

    Attributes:
        settings: the method's settings.
        training: the training of the shared weights.
        algorithm: the algorithm of that training.
    """

    settings: Reconstruct
    training: OneGradient | LocalSteps
    algorithm: Algorithm

    def init_state(self, model: Model[Any]) -> State:
        """See :meth:`Algorithm.init_state`; the state is that of the algorithm for the shared weights."""
        return self.algorithm.init_state(part_of(model))

    def update(
        self, model: Model[Any], weights: FloatArray, batch: Batch, keys: Keys, state: State
    ) -> tuple[Floats, State]:
        """See :meth:`Algorithm.update`."""
        support, query = divided(batch, child_keys(keys, DIVISION), self.settings.support)
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
        """Return the shared part with local weights fitted on some examples, shape (k, l)."""
        steps = LocalSteps(rate=self.settings.rate, steps=self.settings.steps)
        start = part.beside(np.tile(part.others, (len(batch), 1)).astype(precision(part), copy=False))
        return part.beside(fitted(start, weights, batch, np.zeros(len(batch), np.uint64), steps))
