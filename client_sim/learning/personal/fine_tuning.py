"""A client's own model, fine-tuned from the shared one, optionally with a pull towards it (Ditto)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from fedping.client_sim.learning.algorithm import Algorithm, State, updated
from fedping.client_sim.learning.batch import Batch, FloatArray, Floats, counts
from fedping.client_sim.learning.descent import LocalAlgorithm
from fedping.client_sim.learning.model import Model, Projected, has_bounds, precision
from fedping.client_sim.learning.personal.method import OWN_DRAWS, joined, named, own, shared, unprojected
from fedping.protocol.draws import Keys, child_keys
from fedping.protocol.personalization import FineTune
from fedping.protocol.training import LocalSteps, OneGradient


@dataclass(frozen=True)
class FineTuned:
    """See :class:`fedping.protocol.personalization.FineTune`.

    A client keeps the weights P that are not frozen, in the model's own precision, and the number of their trainings.
    So P is unchanged when w moves, and a client that has not trained predicts with w. P is not rounded, even if the
    spec publishes whole numbers: steps of less than a half would have no effect.

    Attributes:
        settings: the method's settings.
        training: the training of the shared weights.
        algorithm: the algorithm of that training.
    """

    settings: FineTune
    training: OneGradient | LocalSteps
    algorithm: Algorithm

    def init_state(self, model: Model[Any]) -> State:
        """See :meth:`Algorithm.init_state`."""
        free = self._free(model)
        mine: State = {"weights": np.zeros(int(free.sum()), precision(model)), "trained": np.zeros((), np.int64)}
        memory = self._steps().init_state(model) if self.settings.steps else {}
        return joined(self.algorithm.init_state(model), {**mine, **memory})

    def sends(self, keys: Keys, state: State) -> Any:
        """See :meth:`MaySendNothing.sends`."""
        return np.full(len(keys), self.settings.shares)

    def update(
        self, model: Model[Any], weights: FloatArray, batch: Batch, keys: Keys, state: State
    ) -> tuple[Floats, State]:
        """See :meth:`Algorithm.update`; the update is computed at w."""
        return self._update(model, weights, batch, keys, state, with_losses=False)[:2]

    def update_and_losses(
        self, model: Model[Any], weights: FloatArray, batch: Batch, keys: Keys, state: State
    ) -> tuple[Floats, State, FloatArray]:
        """See :meth:`GivesLosses.update_and_losses`."""
        return self._update(model, weights, batch, keys, state, with_losses=True)

    def personal_model(self, model: Model[Any]) -> Model[Any]:
        """See :meth:`Personalizes.personal_model`."""
        return model

    def personal_weights(self, model: Model[Any], weights: FloatArray, batch: Any, state: State) -> Floats:
        """See :meth:`Personalizes.personal_weights`."""
        mine = own(state)
        personal: Floats = np.array(np.broadcast_to(weights, (len(mine["trained"]), weights.shape[-1])))
        free, begun = self._free(model), mine["trained"] > 0
        personal[np.ix_(begun, free)] = mine["weights"][begun]
        if has_bounds(model) and begun.any():  # frozen weights may have moved since
            personal[begun] = model.within(personal[begun], free)
        return personal

    def _update(
        self, model: Model[Any], weights: FloatArray, batch: Batch, keys: Keys, state: State, *, with_losses: bool
    ) -> tuple[Floats, State, FloatArray]:
        """Return updates, the new state, and losses, which are NaN unless requested."""
        after = shared(state)
        if self.settings.shares:
            updates, after, losses = updated(self.algorithm, model, weights, batch, keys, after, with_losses)
        else:
            updates = np.zeros((len(batch), weights.shape[-1]), precision(model))
            losses = model.losses(weights, batch) if with_losses else np.full(len(batch), np.nan)
        return updates, joined(after, self._trained(unprojected(model), weights, batch, keys, own(state))), losses

    def _trained(self, model: Model[Any], weights: FloatArray, batch: Batch, keys: Keys, mine: State) -> State:
        """Return the clients' state after their own steps; clients without examples keep theirs."""
        if not self.settings.steps:
            return mine
        free, there = self._free(model), counts(batch) > 0
        begin = self.personal_weights(model, weights, batch, joined({}, mine)).astype(precision(model), copy=False)
        memory: State = {name: value for name, value in mine.items() if name not in ("weights", "trained")}
        moved, memory = self._steps().moved(
            Projected(model, lambda gradients: np.where(free, gradients, 0)),
            weights,
            batch,
            child_keys(keys, OWN_DRAWS),
            memory,
            (begin - weights).astype(precision(model), copy=False),
        )
        personal: Floats = weights + moved
        if has_bounds(model):
            personal = model.within(personal, free)
        kept = np.where(there[:, None], personal[:, free], mine["weights"])
        return {**memory, "weights": kept, "trained": mine["trained"] + there}

    def _steps(self) -> LocalAlgorithm:
        own = self.settings
        return LocalAlgorithm(
            LocalSteps(rate=own.rate, steps=own.steps, batch=own.batch, proximal=own.proximal, optimizer=own.optimizer)
        )

    def _free(self, model: Model[Any]) -> Any:
        return ~named(model, self.settings.frozen, "frozen")
