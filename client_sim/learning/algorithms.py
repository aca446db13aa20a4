"""The client algorithms of `fedping.protocol.training`, and those of a user's own package."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import msgspec
import numpy as np
from msgspec.structs import replace
from numpy.typing import NDArray

from fedping.client_sim.learning.algorithm import Algorithm, ModelAndMore, PublishesMore
from fedping.client_sim.learning.batch import FloatArray, Floats
from fedping.client_sim.learning.descent import GradientAlgorithm, LocalAlgorithm
from fedping.client_sim.learning.mini_batches import steps_of
from fedping.client_sim.learning.model import Model
from fedping.client_sim.learning.personal import personal_algorithm
from fedping.client_sim.learning.submodel import shared_part
from fedping.protocol.draws import Keys
from fedping.protocol.errors import InvalidSettings
from fedping.protocol.extensions import Extension, ExtensionFailed, Own, asks_for, extension_of
from fedping.protocol.personalization import PartlyLocal, Reconstruct
from fedping.protocol.spec import Block
from fedping.protocol.training import LocalSteps, OneGradient, OwnTraining, Training


@dataclass(frozen=True)
class OwnAlgorithm:
    """An algorithm that is a function of (model, weights, batch, keys), or an instance of a class.

    The function returns updates and has no state. The class has the methods of
    :class:`fedping.client_sim.learning.algorithms.Algorithm`; without ``init_state`` it has no state either.

    Raises:
        ExtensionFailed: the extension raises an error, returns no pair, returns a state without ``init_state``, or
            returns updates or weights of another shape.
    """

    extension: Extension
    settings: dict[str, Any]
    instance: Any
    version: int = 0
    now: FloatArray | None = None

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
            asked = self._asked(self.extension.make)
            return self._judged(self.extension.made(self.settings, model, weights, batch, keys, **asked), shape), state
        with self.extension.guarded():
            found = self.instance.update(model, weights, batch, keys, state, **self._asked(self.instance.update))
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

    def _asked(self, function: Any) -> dict[str, Any]:
        """Return the number of the fetched version and the time, each if the function has a parameter for it."""
        known = {"version": self.version, "now": self.now}
        return {name: value for name, value in known.items() if asks_for(function, name)}

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
    """A user's algorithm whose clients need additional arrays from the server; see :class:`PublishesMore`."""

    def beside(self, model: Model[Any]) -> tuple[Block, ...]:
        """See :meth:`PublishesMore.beside`."""
        with self.extension.guarded():
            return tuple(self.instance.beside(model))


@dataclass(frozen=True)
class OwnPersonal(OwnAlgorithm):
    """A user's algorithm that gives clients their own weights to predict with; see :class:`Personalizes`."""

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
    """A user's algorithm that publishes more arrays, and gives clients their own weights."""


def own_algorithm(training: OwnTraining, version: int = 0, now: FloatArray | None = None) -> OwnAlgorithm:
    """Return the algorithm of an extension, as clients run it on a version; ``now`` as :func:`algorithm_for`.

    Raises:
        InvalidSettings: the extension is not installed, or its code differs from the settings' digest.
        ExtensionFailed: the extension raises an error.
    """
    extension = extension_of(training)
    instance = extension.made(training.settings) if isinstance(extension.make, type) else None
    made: type[OwnAlgorithm] = OwnPersonal if hasattr(instance, "personal_weights") else OwnAlgorithm
    if hasattr(instance, "beside"):
        made = OwnPublishingPersonal if made is OwnPersonal else OwnPublishing
    return made(extension, training.settings, instance, version, now)


ALGORITHMS: dict[type[msgspec.Struct], Callable[[Any], Algorithm]] = {
    OneGradient: GradientAlgorithm,
    LocalSteps: LocalAlgorithm,
    OwnTraining: own_algorithm,
}
"""Factories of client algorithms, by the type of a line's training settings."""


def algorithm_for(training: Training, version: int = 0, now: FloatArray | None = None) -> Algorithm:
    """Return the algorithm for a line's training settings, as clients run it on a version.

    Args:
        training: what a client does.
        version: the number of the fetched version.
        now: each client's simulated time, for extensions, in seconds since the run began, shape (k,); None without.

    Raises:
        InvalidSettings: there is no such algorithm.
    """
    if isinstance(training, OwnTraining):
        return own_algorithm(training, version, now)
    if training.personal is not None:
        shared = replace(training, personal=None)
        return personal_algorithm(training.personal, shared, algorithm_for(shared), version)
    make = ALGORITHMS.get(type(training))
    if make is None:
        raise InvalidSettings(
            f"clients do not know the training '{algorithm_name(training)}'; they know "
            f"{', '.join(_name_of(each) for each in ALGORITHMS if not issubclass(each, Own))}"
        )
    return make(training)


def steps_taken(training: Training, sizes: NDArray[np.integer]) -> FloatArray:
    """Return the number of local steps of each client, given its number of examples, shape (k,); NaN if unknown.

    A gradient counts as one step. An extension reports it by a method ``steps_taken(sizes)``.
    """
    if isinstance(training, OneGradient):
        return (sizes > 0).astype(np.float64)
    if isinstance(training, LocalSteps):
        return steps_of(training, sizes).astype(np.float64)
    instance: Any = getattr(algorithm_for(training), "instance", None)
    if not hasattr(instance, "steps_taken"):
        return np.full(len(sizes), np.nan)
    extension = extension_of(training)
    with extension.guarded():
        steps = np.asarray(instance.steps_taken(sizes), np.float64)
    if steps.shape != sizes.shape:
        raise ExtensionFailed(
            f"{extension}, an extension, returned steps of shape {list(steps.shape)}; return a number for each of "
            f"{len(sizes)} clients"
        )
    return steps


def with_more(model: Model[Any], training: Training) -> Model[Any]:
    """Return the published form of a model, for a training.

    The published model has no blocks that stay with the clients, but has any additional arrays that the algorithm
    needs.

    Raises:
        InvalidSettings: the model can't be divided in this way.
    """
    algorithm = algorithm_for(training)
    personal = getattr(training, "personal", None)
    if isinstance(personal, PartlyLocal | Reconstruct):
        model = shared_part(model, personal.local)
    arrays = algorithm.beside(model) if isinstance(algorithm, PublishesMore) else ()
    return ModelAndMore(model, arrays) if arrays else model


def algorithm_name(training: Training) -> str:
    """Return the name of an algorithm in a line's settings."""
    return training.name if isinstance(training, Own) else _name_of(type(training))


def _name_of(settings: type[msgspec.Struct]) -> str:
    return str(settings.__struct_config__.tag or settings.__name__)
