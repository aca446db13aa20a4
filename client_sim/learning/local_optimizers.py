"""Client optimizers, which turn gradients into steps: momentum, RMSprop, Adam and RProp, for many clients at once.

The server's optimizers step once per round, along the mean of clients' updates. These optimizers step many times in
between, each along its client's own gradients, and their state stays with the client.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray

from fedping.client_sim.learning.batch import Floats
from fedping.protocol.local_optimizers import (
    LocalAdam,
    LocalDescent,
    LocalMomentum,
    LocalOptimizer,
    LocalRMSProp,
    LocalRProp,
)
from fedping.protocol.makers import Makers

Memory: TypeAlias = Mapping[str, NDArray[Any]]
"""The state of k clients' optimizers, arrays of shape (k, ...) by name."""


class Stepper(Protocol):
    """An optimizer, which computes the steps of k clients independently of each other."""

    def init(self, clients: int, m: int, dtype: np.dtype[Any]) -> Memory:
        """Return the initial state of the optimizers of a number of clients, with m weights each."""
        ...

    def step(self, uphill: Floats, memory: Memory) -> tuple[Floats, dict[str, NDArray[Any]]]:
        """Return a step of rate 1 against gradients of shape (k, m), and the new state; all arrays are new."""
        ...


STEPPERS: Makers[Callable[[Any], Stepper]] = Makers()
"""Factories of optimizers, by the type of their settings; plain descent needs no optimizer."""


@STEPPERS.of(LocalMomentum)
@dataclass(frozen=True)
class ByMomentum:
    """See :class:`fedping.protocol.local_optimizers.LocalMomentum`: v ← β v - g."""

    settings: LocalMomentum

    def init(self, clients: int, m: int, dtype: np.dtype[Any]) -> Memory:
        """See :meth:`Stepper.init`."""
        return {"velocity": np.zeros((clients, m), dtype)}

    def step(self, uphill: Floats, memory: Memory) -> tuple[Floats, dict[str, NDArray[Any]]]:
        """See :meth:`Stepper.step`."""
        beta = self.settings.beta
        velocity = beta * memory["velocity"] - uphill
        step = beta * velocity - uphill if self.settings.nesterov else velocity.copy()
        return step, {"velocity": velocity}


@STEPPERS.of(LocalRMSProp)
@dataclass(frozen=True)
class ByRMSProp:
    """See :class:`fedping.protocol.local_optimizers.LocalRMSProp`: v ← β v + (1 - β) g², step = -g / (√v + ε)."""

    settings: LocalRMSProp

    def init(self, clients: int, m: int, dtype: np.dtype[Any]) -> Memory:
        """See :meth:`Stepper.init`."""
        return {"square": np.zeros((clients, m), dtype)}

    def step(self, uphill: Floats, memory: Memory) -> tuple[Floats, dict[str, NDArray[Any]]]:
        """See :meth:`Stepper.step`."""
        beta = self.settings.beta
        square = beta * memory["square"] + (1 - beta) * uphill**2
        return -uphill / (np.sqrt(square) + _least(self.settings.epsilon, uphill.dtype)), {"square": square}


@STEPPERS.of(LocalAdam)
@dataclass(frozen=True)
class ByAdam:
    """See :class:`fedping.protocol.local_optimizers.LocalAdam`: the means m of g and v of g², step = -m̂ / (√v̂ + ε).

    ``powers`` are each client's β1^t and β2^t, shape (k, 2), for m̂ = m / (1 - β1^t) and v̂ = v / (1 - β2^t).
    """

    settings: LocalAdam

    def init(self, clients: int, m: int, dtype: np.dtype[Any]) -> Memory:
        """See :meth:`Stepper.init`."""
        return {
            "mean": np.zeros((clients, m), dtype),
            "square": np.zeros((clients, m), dtype),
            "powers": np.ones((clients, 2)),
        }

    def step(self, uphill: Floats, memory: Memory) -> tuple[Floats, dict[str, NDArray[Any]]]:
        """See :meth:`Stepper.step`."""
        beta1, beta2 = self.settings.beta1, self.settings.beta2
        mean = beta1 * memory["mean"] + (1 - beta1) * uphill
        square = beta2 * memory["square"] + (1 - beta2) * uphill**2
        powers = memory["powers"] * np.array([beta1, beta2])
        left = (1 - powers).astype(uphill.dtype)
        below = np.sqrt(square / left[:, 1:]) + _least(self.settings.epsilon, uphill.dtype)
        return -mean / left[:, :1] / below, {"mean": mean, "square": square, "powers": powers}


@STEPPERS.of(LocalRProp)
@dataclass(frozen=True)
class ByRProp:
    """See :class:`fedping.protocol.local_optimizers.LocalRProp`: step = -rate sign(g), the rate adapted by eq. 4.

    Like the server's RProp (`fedping.server_jobs.optimize.optimizers`), it also takes the step after a change of sign,
    at the smaller rate. It only compares, adds and multiplies, and so gives the same bits in any language.
    """

    settings: LocalRProp

    def init(self, clients: int, m: int, dtype: np.dtype[Any]) -> Memory:
        """See :meth:`Stepper.init`; the initial signs are 0, so that the first step has the initial rate."""
        return {
            "rate": np.full((clients, m), self.settings.step.start, dtype),
            "sign": np.zeros((clients, m), np.int8),
        }

    def step(self, uphill: Floats, memory: Memory) -> tuple[Floats, dict[str, NDArray[Any]]]:
        """See :meth:`Stepper.step`."""
        own, rate = self.settings, memory["rate"]
        sign = np.sign(-uphill)
        agreement = sign * memory["sign"]
        factor = np.where(agreement > 0, own.alpha, own.beta).astype(rate.dtype)
        rate = np.where(agreement == 0, rate, np.clip(rate * factor, own.step.min, own.step.max))
        return rate * sign, {"rate": rate, "sign": sign.astype(np.int8)}


def stepper_for(settings: LocalOptimizer) -> Stepper | None:
    """Return the optimizer for these settings; None for plain gradient descent."""
    make = STEPPERS.get(type(settings))
    return make(settings) if make else None


def keeps(settings: LocalOptimizer) -> bool:
    """Return whether the optimizer's state lasts from one training to the next."""
    return not isinstance(settings, LocalDescent) and settings.keep


def _least(epsilon: float, dtype: np.dtype[Any]) -> float:
    """Return ε, but never 0 in the precision of the weights, to avoid 0 / 0 where a gradient is 0."""
    return max(epsilon, float(np.finfo(dtype).tiny))
