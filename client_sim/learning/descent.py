"""The algorithms that follow a model's gradient: one gradient, or steps on the client."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from fedping.client_sim.learning.algorithm import NO_STATE, State
from fedping.client_sim.learning.batch import Batch, FloatArray, Floats, counts, with_keys_of_step
from fedping.client_sim.learning.local_optimizers import Memory, Stepper, keeps, stepper_for
from fedping.client_sim.learning.mini_batches import mini_batches, some
from fedping.client_sim.learning.model import (
    Model,
    MovesItself,
    has_modes,
    losses_and_gradients,
    moves_itself,
    precision,
)
from fedping.protocol.draws import Keys
from fedping.protocol.training import LocalSteps, OneGradient


@dataclass(frozen=True)
class GradientAlgorithm:
    """See :class:`fedping.protocol.training.OneGradient`."""

    settings: OneGradient

    def init_state(self, model: Model[Any]) -> State:
        """See :meth:`Algorithm.init_state`."""
        return NO_STATE

    def update(
        self, model: Model[Any], weights: FloatArray, batch: Batch, keys: Keys, state: State
    ) -> tuple[Floats, State]:
        """See :meth:`Algorithm.update`."""
        size = self.settings.batch
        part = batch if self._takes_all(batch) else batch.only(some(keys, batch.weight, size or 0))
        if has_modes(model):
            part = with_keys_of_step(part, keys, 0)
        gradients = model.gradients(weights, part)
        return np.negative(gradients, out=gradients), state

    def update_and_losses(
        self, model: Model[Any], weights: FloatArray, batch: Batch, keys: Keys, state: State
    ) -> tuple[Floats, State, FloatArray]:
        """See :meth:`GivesLosses.update_and_losses`."""
        if not self._takes_all(batch):
            return *self.update(model, weights, batch, keys, state), model.losses(weights, batch)
        if has_modes(model):
            batch = with_keys_of_step(batch, keys, 0)
        losses, gradients = losses_and_gradients(model, weights, batch)
        return np.negative(gradients, out=gradients), state, losses

    def _takes_all(self, batch: Batch) -> bool:
        return self.settings.batch is None or self.settings.batch >= batch.weight.shape[1]


@dataclass(frozen=True)
class LocalAlgorithm:
    """See :class:`fedping.protocol.training.LocalSteps`.

    With the local weights fetched + moved, a step is moved ← (moved + rate × descent) / (1 + rate μ). So the proximal
    term is applied implicitly: when the weights stop moving, descent = μ × moved, which is FedProx's minimum, and any
    μ works with any rate.

    A client optimizer's step follows the gradient of the proximal loss, gradient + μ moved.

    Attributes:
        settings: the settings of the training.
        rates: the step size of each weight, shape (m,), in place of that of the settings.
    """

    settings: LocalSteps
    rates: FloatArray | None = None

    @cached_property
    def _stepper(self) -> Stepper | None:
        return stepper_for(self.settings.optimizer)

    @property
    def _rate(self) -> float | FloatArray:
        return self.settings.rate if self.rates is None else self.rates

    def init_state(self, model: Model[Any]) -> State:
        """See :meth:`Algorithm.init_state`; only an optimizer that lasts between trainings has a state."""
        if self._stepper is None or not keeps(self.settings.optimizer):
            return NO_STATE
        first = self._stepper.init(1, len(model.weight_names), precision(model))
        return {name: value[0] for name, value in first.items()}

    def moved(
        self, model: Model[Any], weights: FloatArray, batch: Batch, keys: Keys, state: State, moved: Floats
    ) -> tuple[Floats, State]:
        """Continue a training that has already moved the weights.

        Args:
            model: the model; see :meth:`Algorithm.update`.
            weights: the fetched weights, to which ``proximal`` pulls back.
            batch: the examples.
            keys: random keys.
            state: the clients' state.
            moved: each client's movement so far from the fetched weights, shape (k, m); unchanged by the call.

        Returns:
            Each client's movement after its steps, shape (k, m), and the new state.
        """
        return self._trained(model, weights, batch, keys, state, None, moved.copy())

    def update(
        self, model: Model[Any], weights: FloatArray, batch: Batch, keys: Keys, state: State
    ) -> tuple[Floats, State]:
        """See :meth:`Algorithm.update`."""
        return self._trained(model, weights, batch, keys, state, None)

    def update_and_losses(
        self, model: Model[Any], weights: FloatArray, batch: Batch, keys: Keys, state: State
    ) -> tuple[Floats, State, FloatArray]:
        """See :meth:`GivesLosses.update_and_losses`."""
        found: list[FloatArray] = []
        moved, state = self._trained(model, weights, batch, keys, state, found)
        fetched = weights.astype(precision(model), copy=False)
        return moved, state, found[0] if found else model.losses(fetched, batch)

    def _trained(
        self,
        model: Model[Any],
        weights: FloatArray,
        batch: Batch,
        keys: Keys,
        state: State,
        losses: list[FloatArray] | None,
        moved: Floats | None = None,
    ) -> tuple[Floats, State]:
        """Return the total movement and the new state; append the losses at the fetched weights to ``losses`` if given.

        The losses are computed only if the first step uses all examples. ``moved`` is the movement so far, shape (k,
        m), which this function may change.
        """
        fetched = weights.astype(precision(model), copy=False)
        stepper, kept = self._stepper, keeps(self.settings.optimizer)
        memory: Memory = stepper.init(len(batch), fetched.shape[-1], fetched.dtype) if stepper and not kept else state
        local: Floats = fetched
        modes, paces = has_modes(model), self._paces(model)
        for step, taken in enumerate(mini_batches(self.settings, keys, batch.weight)):
            part = batch if taken is None else batch.only(taken)
            if modes:
                part = with_keys_of_step(part, keys, step)
            if moved is not None:
                local = np.add(fetched, moved, out=None if local is fetched else local)
            if losses is not None and step == 0 and taken is None:
                first, uphill = _losses_and_uphill(model, local, part)
                losses.append(first)
            else:
                uphill = _uphill(model, local, part)
            if stepper is None:
                moved = self._moved_on(moved, uphill, part, paces)
            else:
                moved, memory = self._stepped(stepper, moved, uphill, part, memory)
        if moved is None:
            moved = np.zeros((len(batch), fetched.shape[-1]), fetched.dtype)
        elif stepper is not None:
            _spoil_overflown(moved, memory)
        return moved, memory if kept else state

    def _stepped(
        self, stepper: Stepper, moved: Floats | None, uphill: Floats, batch: Batch, memory: Memory
    ) -> tuple[Floats, Memory]:
        """Run an optimizer step for clients with examples left; other clients are unchanged."""
        if moved is not None and self.settings.proximal:
            uphill = uphill + self.settings.proximal * moved
        step, after = stepper.step(uphill, memory)
        step *= self._rate
        there = counts(batch) > 0
        if not there.all():
            step[~there] = 0.0
            for name, value in after.items():
                value[~there] = memory[name][~there]
        if moved is not None:
            step += moved
        return step, after

    def _paces(self, model: Model[Any]) -> tuple[float | FloatArray, float | FloatArray]:
        """Return the step size and the proximal term's pull per step; buffers have step size 1 and no pull."""
        rate, pull = self._rate, self._rate * self.settings.proximal
        held: NDArray[np.bool_] | None = getattr(model, "buffers", None)
        return (rate, pull) if held is None else (np.where(held, 1.0, rate), np.where(held, 0.0, pull))

    def _moved_on(
        self, moved: Floats | None, uphill: Floats, batch: Batch, paces: tuple[float | FloatArray, float | FloatArray]
    ) -> Floats:
        """Add a step to the movements of clients with examples left, in place; None stands for movements of 0."""
        rate, pull = paces
        uphill *= -rate
        if moved is None:
            uphill += 0.0  # turns -0.0 into 0.0, as adding it to zeros would
            moved = uphill
        else:
            moved += uphill
        if self.settings.proximal:
            moved /= np.where(counts(batch)[:, None] > 0, 1.0 + pull, 1.0).astype(moved.dtype)
        return moved


def _spoil_overflown(moved: Floats, memory: Memory) -> None:
    """Make movements NaN, so that they are rejected, for clients whose optimizer's state has overflowed.

    An infinite mean of squares would silently stop all steps.
    """
    for value in memory.values():
        moved[~np.isfinite(value).all(axis=1)] = np.nan


def _losses_and_uphill(model: Model[Any], weights: Any, batch: Batch) -> tuple[FloatArray, Floats]:
    if moves_itself(model):
        return model.losses(weights, batch), _uphill(model, weights, batch)
    return losses_and_gradients(model, weights, batch)


def _uphill(model: Model[Any], weights: Any, batch: Batch) -> Floats:
    """Return the opposite of a step of rate 1, shape (k, m); zero for clients without examples left."""
    if moves_itself(model):
        movements: Floats = cast("MovesItself", model).movements(weights, batch)
        return np.negative(movements, out=movements)
    return model.gradients(weights, batch)
