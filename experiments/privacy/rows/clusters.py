"""Clusters: with more centroids than groups of rows, some centroid is the nearest to one row, and moves onto it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from fedping.client_sim.learning.batch import FloatArray
from fedping.client_sim.learning.models.k_means import KMeans
from fedping.experiments.privacy.rows.victim import Over, Target, Victim
from fedping.protocol.training import LocalSteps


@dataclass(frozen=True)
class Clusters:
    """The attack by clusters; see the module."""

    name: str = "clusters"

    def why_not(self, target: Target) -> str | None:
        """See :meth:`Attack.why_not`."""
        return None if isinstance(target.kind, KMeans) else "it needs k-means"

    def guesses(self, victim: Victim) -> Iterator[FloatArray]:
        """See :meth:`Attack.guesses`."""
        target = victim.target
        model, random = target.kind, target.random()
        assert isinstance(model, KMeans)
        size, shape = model.clusters * model.features, (model.clusters, model.features)
        while True:
            weights = random.standard_normal(model.m)
            weights[size:] = 0.0
            try:
                given = victim.ask(weights)
            except Over:
                return
            if given is None:
                continue
            # a whole step ends at the row; a gradient has moved 2 / n of the way to it
            steps = isinstance(target.training, LocalSteps)
            way = given.update[:size] if steps else given.update[:size] * target.rows / 2
            moved = given.update[:size].reshape(shape).any(axis=1)
            if steps and model.counts:
                moved &= given.update[size:].round() == 1
            yield from (weights[:size] + way).reshape(shape)[moved]
