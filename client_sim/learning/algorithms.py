"""The client algorithms by the settings of `fedping.protocol.training` that ask for them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
from msgspec.structs import replace

from fedping.client_sim.learning.algorithm import Algorithm, ModelAndMore, PublishesMore
from fedping.client_sim.learning.descent import GradientAlgorithm, LocalAlgorithm
from fedping.client_sim.learning.model import Model
from fedping.client_sim.learning.own_algorithm import own_algorithm
from fedping.client_sim.learning.personal import personal_algorithm
from fedping.client_sim.learning.submodel import shared_part
from fedping.protocol.errors import InvalidSettings
from fedping.protocol.extensions import Own
from fedping.protocol.personalization import PartlyLocal, Reconstruct
from fedping.protocol.training import LocalSteps, OneGradient, OwnTraining, Training

ALGORITHMS: dict[type[msgspec.Struct], Callable[[Any], Algorithm]] = {
    OneGradient: GradientAlgorithm,
    LocalSteps: LocalAlgorithm,
    OwnTraining: own_algorithm,
}
"""From the type of a line's training settings to the factory of its algorithm."""


def algorithm_for(training: Training, version: int = 0) -> Algorithm:
    """Return the algorithm for a line's training settings, as clients run it on a version.

    Raises:
        InvalidSettings: there is no such algorithm.
    """
    if not isinstance(training, OwnTraining) and training.personal is not None:
        shared = replace(training, personal=None)
        return personal_algorithm(training.personal, shared, algorithm_for(shared), version)
    make = ALGORITHMS.get(type(training))
    if make is None:
        raise InvalidSettings(
            f"clients do not know the training '{algorithm_name(training)}'; they know "
            f"{', '.join(_name_of(each) for each in ALGORITHMS if not issubclass(each, Own))}"
        )
    return make(training)


def with_more(model: Model[Any], training: Training) -> Model[Any]:
    """Return a model as published for a training.

    That is without blocks that stay with the clients, and with any additional arrays that the algorithm needs.

    Raises:
        InvalidSettings: the model cannot be divided so.
    """
    algorithm = algorithm_for(training)
    personal = getattr(training, "personal", None)
    if isinstance(personal, PartlyLocal | Reconstruct):
        model = shared_part(model, personal.local)
    arrays = algorithm.beside(model) if isinstance(algorithm, PublishesMore) else ()
    return ModelAndMore(model, arrays) if arrays else model


def algorithm_name(training: Training) -> str:
    """Return the name by which a line asks for an algorithm."""
    return training.name if isinstance(training, Own) else _name_of(type(training))


def _name_of(settings: type[msgspec.Struct]) -> str:
    return str(settings.__struct_config__.tag or settings.__name__)
