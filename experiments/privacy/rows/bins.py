"""Bins: the units of a network's first layer differ only by a threshold, so that each reveals the rows above it.

The gradients of two neighbouring units differ by the rows between their thresholds. If there is a single row, it is the
difference in the gradients of weights divided by that of offsets. One version can reveal as many rows as there are
units.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import cycle

import numpy as np
from scipy.special import ndtri

from fedping.client_sim.learning.batch import FloatArray
from fedping.client_sim.learning.models.network import Network
from fedping.experiments.privacy.rows.victim import Over, Target, Victim

FIRST, LAST = 1e-3, 1e-3
"""Sizes of the first and the last weights, so small that local steps move no row across a threshold."""

WIDTHS = (1.0, 2.5)
"""Spreads of the thresholds along a direction, used in turn. The rows' spread is 1, or more if columns correlate."""


@dataclass(frozen=True)
class Bins:
    """The attack by bins; see the module."""

    name: str = "bins"

    def why_not(self, target: Target) -> str | None:
        """See :meth:`Attack.why_not`."""
        if not isinstance(target.kind, Network):
            return "it needs a network, whose first layer has many units"
        signs = getattr(target.training, "sign", False)
        return "signs say too little of a row" if signs else None

    def guesses(self, victim: Victim) -> Iterator[FloatArray]:
        """See :meth:`Attack.guesses`."""
        model, features = victim.target.kind, victim.target.features
        assert isinstance(model, Network)
        random = victim.target.random()
        units = model.hidden[0]
        places = ndtri((np.arange(units) + 0.5) / units)
        for width in cycle(WIDTHS):
            direction = random.standard_normal(features)
            direction /= np.linalg.norm(direction)
            try:
                given = victim.ask(self._weights(model, direction, width * places))
            except Over:
                return
            if given is None:
                continue
            into = given.update[: features * units].reshape(features, units)
            offsets = given.update[features * units : (features + 1) * units]
            rows, share = -np.diff(into, axis=1), -np.diff(offsets)
            there = np.abs(share) > 1e-9 * np.abs(share).max(initial=0.0)
            yield from (rows[:, there] / share[there]).T
            if into[:, -1].any():
                yield into[:, -1] / (offsets[-1] or 1.0)

    def _weights(self, model: Network, direction: FloatArray, thresholds: FloatArray) -> FloatArray:
        """Return weights that pull every unit of the first layer equally, shape (m,)."""
        weights = np.zeros(model.m)
        sizes = (model.features, *model.hidden, model.classes)
        at = 0
        for number, (inputs, outputs) in enumerate(zip(sizes, sizes[1:], strict=False)):
            layer = weights[at : at + inputs * outputs].reshape(inputs, outputs)
            if number == 0:
                layer[:] = FIRST * direction[:, None]
                weights[at + inputs * outputs : at + (inputs + 1) * outputs] = -FIRST * thresholds
            elif number < len(model.hidden):
                layer[:] = 1.0 / inputs
            else:
                layer[:, 0] = LAST
            at += (inputs + 1) * outputs
        return weights
