"""Half-spaces: each version reveals the sum of the rows beyond a plane; two planes reveal a single row between them.

A classifier with steep scores is certain of every row on either side of a plane, so its gradient is a sum of whole
rows. In k-means, two centroids divide the rows in the same way. Planes are moved closer until one row lies between two.
The first row is found after about log2 n versions; each further version finds one or two.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from fedping.client_sim.learning.batch import FloatArray
from fedping.client_sim.learning.models.k_means import KMeans
from fedping.client_sim.learning.models.logistic_regression import LogisticRegression
from fedping.experiments.privacy.rows.victim import Over, Target, Victim
from fedping.protocol.training import LocalSteps

STEEP = 1e6
"""Slope of scores; rows nearer than about 40 / STEEP to a plane count on both sides."""

FAR, FAR_OF_CENTROIDS = 1e12, 1e4
"""Distances beyond all rows, even with unscaled columns; the one for centroids is smaller to avoid rounding."""

OUT_OF_THE_WAY = 1e9
"""Coordinate at which a centroid is never the nearest, and score at which a class is never the likeliest."""

SERVED = 2**20
"""Maximum number of weights served under one version's number."""


@dataclass(frozen=True)
class HalfSpaces:
    """The attack by half-spaces; see the module.

    Attributes:
        one_version: whether to serve all weights under one version's number and refuse each ping, so that the attack
            appears in neither rounds nor logs of the study.
        most: maximum number of weights served in that way.
    """

    one_version: bool = False
    most: int = SERVED

    @property
    def name(self) -> str:
        """See :attr:`Attack.name`."""
        return "refused pings" if self.one_version else "half-spaces"

    def why_not(self, target: Target) -> str | None:
        """See :meth:`Attack.why_not`."""
        model, training = target.kind, target.training
        if isinstance(model, KMeans):
            if not isinstance(training, LocalSteps) or (training.steps or training.epochs) != 1 or training.rate != 1:
                return "for k-means it needs updates of one whole step"
            return None if model.counts and model.clusters > 1 else "it needs the counts of two clusters"
        if not isinstance(model, LogisticRegression):
            return "it needs scores that are linear in a row, as in logistic regression"
        if not model.intercept:
            return "without an intercept, all planes contain one point"
        return None if target.of_sums else "it needs updates of all rows at once, by plain steps"

    def guesses(self, victim: Victim) -> Iterator[FloatArray]:
        """See :meth:`Attack.guesses`."""
        target = victim.target
        direction = target.random().standard_normal(target.features)
        direction /= np.linalg.norm(direction)
        asked = 0

        def beyond(threshold: float) -> FloatArray | None:
            nonlocal asked
            asked += 1
            if asked > self.most:
                raise Over
            return self._beyond(victim, direction, threshold)

        try:
            far = FAR_OF_CENTROIDS if isinstance(target.kind, KMeans) else FAR
            ends = beyond(-far), beyond(far)
            if ends[0] is None or ends[1] is None:
                return
            stretches = [(-far, far, ends[0], ends[1])]
            while stretches:
                # fewest rows first, because they are separated soonest
                low, high, from_low, from_high = stretches.pop(
                    min(range(len(stretches)), key=lambda i: (stretches[i][2] - stretches[i][3])[-1])
                )
                inside = from_low - from_high
                if not inside[-1]:
                    continue
                middle = float(inside[:-1] @ direction / inside[-1])
                if not low < middle < high or (from_middle := beyond(middle)) is None:
                    continue
                for part in ((low, middle, from_low, from_middle), (middle, high, from_middle, from_high)):
                    rows = part[2] - part[3]
                    if round(rows[-1]) == 1:
                        yield rows[:-1] / rows[-1]
                    elif 1 < round(rows[-1]) < round(inside[-1]):
                        stretches.append(part)
                    elif round(rows[-1]) == round(inside[-1]) > 1:
                        yield rows[:-1] / rows[-1]  # rows are equal if the plane through their mean separates none
        except Over:
            return

    def _beyond(self, victim: Victim, direction: FloatArray, threshold: float) -> FloatArray | None:
        """Return the sum of the rows beyond a plane, each followed by a 1, up to a constant; shape (f + 1,)."""
        target, version = victim.target, 0 if self.one_version else None
        model, features = target.kind, target.features
        weights = np.zeros(len(target.model.weight_names))
        if isinstance(model, KMeans):
            centroids = weights[: model.clusters * features].reshape(model.clusters, features)
            centroids[:] = OUT_OF_THE_WAY
            centroids[:2] = (threshold + 1) * direction, (threshold - 1) * direction
            given = victim.ask(weights, version)
            if given is None:
                return None
            count = given.update[model.clusters * features]
            return np.append(count * (centroids[0] + given.update[:features]), count)
        assert isinstance(model, LogisticRegression)
        scores = 1 if model.classes == 2 else model.classes
        layer = weights.reshape(features + 1, scores)
        layer[:-1, 0], layer[-1, 0] = STEEP * direction, -STEEP * threshold
        layer[-1, 2:] = -STEEP * OUT_OF_THE_WAY
        given = victim.ask(weights, version)
        return None if given is None else -(target.of_sums or 1.0) * given.update.reshape(layer.shape)[:, 0]
