"""A client algorithm from a user's own package."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from fedping.client_sim.learning.batch import FloatArray, Floats
from fedping.client_sim.learning.model import Model
from fedping.protocol.draws import Keys
from fedping.protocol.extensions import Extension, ExtensionFailed, extension_of
from fedping.protocol.spec import Block
from fedping.protocol.training import OwnTraining


@dataclass(frozen=True)
class OwnAlgorithm:
    """An algorithm that is a function of (model, weights, batch, keys), or an instance of a class.

    The function returns updates and has no state. The class has the methods of
    :class:`fedping.client_sim.learning.algorithms.Algorithm`; without ``init_state`` it has no state either.

    Raises:
        ExtensionFailed: it raises an error, returns no pair, returns a state without ``init_state``, or returns updates
            or weights of another shape.
    """

    extension: Extension
    settings: dict[str, Any]
    instance: Any

    def init_state(self, model: Model[Any]) -> Any:
        """See :meth:`Algorithm.init_state`."""
        if not hasattr(self.instance, "init_state"):
            return {}
        with self.extension.guarded():
            found = self.instance.init_state(model)
        if not isinstance(found, Mapping):
            raise ExtensionFailed(
                f"{self.extension}, an extension, returned a {type(found).__name__} as its first state; return a dict "
                "of arrays, which may be empty"
            )
        return found

    def update(self, model: Model[Any], weights: FloatArray, batch: Any, keys: Keys, state: Any) -> tuple[Floats, Any]:
        """See :meth:`Algorithm.update`."""
        shape = [len(batch), weights.shape[-1]]
        if self.instance is None:
            return self._judged(self.extension.made(self.settings, model, weights, batch, keys), shape), state
        with self.extension.guarded():
            found = self.instance.update(model, weights, batch, keys, state)
        if not isinstance(found, tuple) or len(found) != 2:
            raise ExtensionFailed(
                f"{self.extension}, an extension, returned a {type(found).__name__}; return updates and state"
            )
        after = {} if found[1] is None else found[1]
        if isinstance(after, Mapping) and after and not hasattr(self.instance, "init_state"):
            raise ExtensionFailed(
                f"{self.extension}, an extension, returned a state, but has no init_state(model), so that clients keep "
                "none; add init_state, which returns the state of a client that has never trained, or return {}"
            )
        return self._judged(found[0], shape), after

    def _judged(self, found: Any, shape: list[int], what: str = "updates") -> Floats:
        with self.extension.guarded():
            numbers = np.asarray(found)
        if list(numbers.shape) != shape or numbers.dtype.kind not in "fiu":
            raise ExtensionFailed(
                f"{self.extension}, an extension, returned {what} of {numbers.dtype} and shape {list(numbers.shape)}; "
                f"return numbers of shape {shape}"
            )
        return numbers


@dataclass(frozen=True)
class OwnPublishing(OwnAlgorithm):
    """One whose clients need more from the server than the model's weights; see :class:`PublishesMore`."""

    def beside(self, model: Model[Any]) -> tuple[Block, ...]:
        """See :meth:`PublishesMore.beside`."""
        with self.extension.guarded():
            return tuple(self.instance.beside(model))


@dataclass(frozen=True)
class OwnPersonal(OwnAlgorithm):
    """One after which clients predict with weights of their own; see :class:`Personalizes`."""

    def personal_model(self, model: Model[Any]) -> Model[Any]:
        """See :meth:`Personalizes.personal_model`; the model itself, if the class has no such method."""
        if not hasattr(self.instance, "personal_model"):
            return model
        with self.extension.guarded():
            found: Model[Any] = self.instance.personal_model(model)
            return found

    def personal_weights(self, model: Model[Any], weights: FloatArray, batch: Any, state: Any) -> Floats:
        """See :meth:`Personalizes.personal_weights`."""
        with self.extension.guarded():
            found = self.instance.personal_weights(model, weights, batch, state)
        return self._judged(found, [len(batch), len(self.personal_model(model).weight_names)], "personal weights")


@dataclass(frozen=True)
class OwnPublishingPersonal(OwnPublishing, OwnPersonal):
    """One that is both."""


def own_algorithm(training: OwnTraining) -> OwnAlgorithm:
    """Return the algorithm of an extension.

    Raises:
        InvalidSettings: it is not installed, or its code is not what the settings name.
        ExtensionFailed: it raises an error.
    """
    extension = extension_of(training)
    instance = extension.made(training.settings) if isinstance(extension.make, type) else None
    made: type[OwnAlgorithm] = OwnPersonal if hasattr(instance, "personal_weights") else OwnAlgorithm
    if hasattr(instance, "beside"):
        made = OwnPublishingPersonal if made is OwnPersonal else OwnPublishing
    return made(extension, training.settings, instance)
