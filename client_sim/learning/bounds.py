"""A spec's constraints, applied to clients' own weights (thesis 7.2).

The server shortens or lengthens its step to satisfy them (`fedping.server_jobs.optimize.constraints`). A client has no
single step to correct: some of its weights are frozen, and others change with the version. So its own weights take the
nearest values that the constraints and the remaining weights allow.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedping.client_sim.learning.batch import Floats
from fedping.client_sim.learning.model import Around, Model
from fedping.protocol.personalization import PartlyLocal, Reconstruct
from fedping.protocol.spec import ModelSpec, NonNegative, OrderedCutoffs
from fedping.protocol.training import Training


@dataclass(frozen=True)
class Bounded(Around):
    """A model that knows its spec's constraints: :class:`fedping.client_sim.learning.model.HasBounds`.

    Weights below zero become 0 in both modes: shifting all weights, like the server of 2018, would move frozen ones.
    Cutoffs are raised, as on the server when no step is left to shorten; cutoffs before a frozen one are lowered.
    """

    spec: ModelSpec

    def within(self, weights: Floats, free: NDArray[np.bool_]) -> Floats:
        """See :meth:`fedping.client_sim.learning.model.HasBounds.within`; allowed weights are unchanged to the bit."""
        found = weights.copy()
        for constraint in self.spec.constraints:
            if isinstance(constraint, NonNegative):
                below = free & (found < 0)
                if constraint.weights:
                    below[:, np.setdiff1d(np.arange(found.shape[1]), self.spec.positions(constraint.weights))] = False
                found[below] = 0.0
        for constraint in self.spec.constraints:
            if isinstance(constraint, OrderedCutoffs):
                _order(found, self.spec.positions(constraint.weights), constraint, free)
        return found


def bounded(model: Model[Any], spec: ModelSpec, training: Training | None) -> Model[Any]:
    """Return a model that knows a spec's constraints; the given model if clients have no weights of their own.

    Local blocks don't count: a spec doesn't describe them, and its constraints are for the shared weights.
    """
    personal = getattr(training, "personal", None)
    if not spec.constraints or personal is None or isinstance(personal, PartlyLocal | Reconstruct):
        return model
    return Bounded(model, spec)


def unbounded(model: Model[Any]) -> Model[Any]:
    """Return the model without its wrapper for constraints, so that its type can be checked."""
    return model.model if isinstance(model, Bounded) else model


def _order(found: Floats, places: Sequence[int], settings: OrderedCutoffs, free: NDArray[np.bool_]) -> None:
    """Put the cutoffs of k clients at these places in order, in place.

    First, from last to first, the cutoffs before a frozen one are lowered to leave room for all of them; then, from
    first to last, a cutoff too close to its predecessor is raised. If the frozen cutoffs are in order, all cutoffs
    are in order afterwards.
    """
    highest: Any = np.inf
    for place in reversed(places):
        if free[place]:
            found[:, place] = np.minimum(found[:, place], highest)
            highest = highest - settings.gap
        else:
            highest = found[:, place] - settings.gap
    least: Any = settings.first
    for place in places:
        if free[place]:
            found[:, place] = np.maximum(found[:, place], least)
        least = found[:, place] + settings.gap
