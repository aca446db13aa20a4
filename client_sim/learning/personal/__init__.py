"""Personal models of clients: the methods of `fedping.protocol.personalization`, one file each.

A method is an algorithm that wraps the algorithm for the shared weights. A client's own part is in its state.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from fedping.client_sim.learning.algorithm import Algorithm
from fedping.client_sim.learning.personal.expert import with_expert
from fedping.client_sim.learning.personal.fine_tuning import FineTuned
from fedping.client_sim.learning.personal.method import GoesByVersion, PersonalAlgorithm, Waiting
from fedping.client_sim.learning.personal.partly_local import PartlyLocalModel, Reconstructed
from fedping.client_sim.learning.personal.vector import WithVector
from fedping.protocol.errors import InvalidSettings
from fedping.protocol.personalization import Expert, FineTune, PartlyLocal, Personalization, Reconstruct, Vector
from fedping.protocol.training import LocalSteps, OneGradient

METHODS: Mapping[type, Callable[[Any, OneGradient | LocalSteps, Algorithm], PersonalAlgorithm]] = {
    FineTune: FineTuned,
    Vector: WithVector,
    PartlyLocal: PartlyLocalModel,
    Reconstruct: Reconstructed,
    Expert: with_expert,
}
"""Factories of methods by the type of their settings; arguments: settings, training, and its algorithm."""


def personal_algorithm(
    personal: Personalization, training: OneGradient | LocalSteps, shared: Algorithm, version: int
) -> PersonalAlgorithm:
    """Return the algorithm of clients with a personal part.

    Args:
        personal: the method's settings.
        training: settings of the shared weights' training.
        shared: the algorithm of that training.
        version: the version that clients train on; before the method's ``from_version`` they only train the shared
            weights.
    """
    make = METHODS.get(type(personal))
    if make is None:
        raise InvalidSettings(f"clients do not know the personalization '{personal.__struct_config__.tag}'")
    method = make(personal, training, shared)
    method = method.at(version) if isinstance(method, GoesByVersion) else method
    return method if version >= getattr(personal, "from_version", 0) else Waiting(method, shared)
