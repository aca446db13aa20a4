"""The interface of the personal methods, the parts of a client's state, and training before a method starts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol, Self, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from fedping.client_sim.learning.algorithm import Algorithm, Personalizes, State, updated
from fedping.client_sim.learning.batch import Batch, FloatArray, Floats
from fedping.client_sim.learning.model import Model, Projected
from fedping.protocol.draws import Keys
from fedping.protocol.errors import InvalidSettings
from fedping.protocol.weights import WeightNames

_OWN = "own_"
"""Prefix of the names of a method's state; other names belong to the algorithm for the shared weights."""

OWN_DRAWS = 1 << 33
"""Index of a client's child key for a method's mini-batches, after the index for the shared weights."""


class PersonalAlgorithm(Algorithm, Personalizes, Protocol):
    """An algorithm that also returns a client's model for predictions."""


@runtime_checkable
class GoesByVersion(Protocol):
    """A method that trains differently on different versions."""

    def at(self, version: int) -> Self:
        """Return the method for clients that train on a version."""
        ...


def unprojected(model: Model[Any]) -> Model[Any]:
    """Return the model with unprojected gradients, for parts that are never sent over an upload link."""
    return model.model if isinstance(model, Projected) else model


def own(state: State) -> State:
    """Return the method's part of a state, by the method's names."""
    return {name.removeprefix(_OWN): value for name, value in state.items() if name.startswith(_OWN)}


def shared(state: State) -> State:
    """Return the part of a state that belongs to the algorithm for the shared weights, by the algorithm's names."""
    return {name: value for name, value in state.items() if not name.startswith(_OWN)}


def joined(of_shared: State, of_own: State) -> State:
    """Return one state with both parts."""
    return {**of_shared, **{_OWN + name: value for name, value in of_own.items()}}


def named(model: Model[Any], names: Sequence[str], setting: str) -> NDArray[np.bool_]:
    """Return whether each of a model's weights has one of these names, or is in a block with one, shape (m,).

    Args:
        model: the model.
        names: names of weights and blocks.
        setting: the setting that names them, used in the message.

    Raises:
        InvalidSettings: the model has no such weight or block.
    """
    there = model.weight_names
    every = there if isinstance(there, WeightNames) else WeightNames(tuple(there), ())
    found = np.zeros(len(every), np.bool_)
    for name in names:
        places = every.places(name) or every.layer_places(name)
        if not places:
            known = every.block_names or every[:30]
            raise InvalidSettings(
                f"'{setting}' names {name!r}, and the model has neither a weight nor a block of that name; it has "
                f"{', '.join(known)}"
            )
        found[places] = True
    return found


@dataclass(frozen=True)
class Waiting:
    """A method before its first version: trains only the shared weights, and leaves the client's own part unchanged.

    Attributes:
        method: the method of later versions.
        shared: trains the shared weights.
    """

    method: PersonalAlgorithm
    shared: Algorithm

    def init_state(self, model: Model[Any]) -> State:
        """See :meth:`Algorithm.init_state`; the state includes the method's part for later versions."""
        return self.method.init_state(model)

    def update(
        self, model: Model[Any], weights: FloatArray, batch: Batch, keys: Keys, state: State
    ) -> tuple[Floats, State]:
        """See :meth:`Algorithm.update`."""
        updates, after = self.shared.update(model, weights, batch, keys, shared(state))
        return updates, joined(after, own(state))

    def update_and_losses(
        self, model: Model[Any], weights: FloatArray, batch: Batch, keys: Keys, state: State
    ) -> tuple[Floats, State, FloatArray]:
        """See :meth:`GivesLosses.update_and_losses`."""
        updates, after, losses = updated(self.shared, model, weights, batch, keys, shared(state), with_losses=True)
        return updates, joined(after, own(state)), losses

    def personal_model(self, model: Model[Any]) -> Model[Any]:
        """See :meth:`Personalizes.personal_model`."""
        return self.method.personal_model(model)

    def personal_weights(self, model: Model[Any], weights: FloatArray, batch: Any, state: State) -> Floats:
        """See :meth:`Personalizes.personal_weights`."""
        return self.method.personal_weights(model, weights, batch, state)
