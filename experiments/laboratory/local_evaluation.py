"""Clients' own models, measured before the server merges them.

Each trained client's model is measured on everybody's test examples, and on those of everybody else. This shows the
gain from merging, and whose model is far from the others (Rodríguez-Barroso et al. 2020, 5.4.5).
"""

from __future__ import annotations

from collections import defaultdict

import numpy as np

from fedping.client_sim.learning.batch import Clients, FloatArray, Floats
from fedping.experiments.laboratory.evaluate import Measured
from fedping.experiments.laboratory.evaluation.fleet import Evaluated, evaluate
from fedping.experiments.laboratory.preparing import Problem


class BeforeMerging:
    """Measures the models of one round after another, block by block as clients train."""

    def __init__(self, problem: Problem) -> None:
        self._problem = problem
        self._everybody: dict[str, list[float]] = defaultdict(list)
        self._others: dict[str, list[float]] = defaultdict(list)

    def see(self, clients: Clients, models: Floats) -> None:
        """Add the models of some clients, shape (k, m), without clients that have no examples to learn from."""
        problem = self._problem
        for client, model in zip(clients.tolist(), models.astype(np.float64), strict=True):
            if not problem.train.sizes[client]:
                continue
            for into, without in ((self._everybody, None), (self._others, client)):
                found = evaluate(problem.model, problem.tally, model, problem.test, each=False, without=without)
                for name, value in found.total.items():
                    into[name].append(value)

    def taken(self) -> Measured:
        """Return and reset the round's result: the mean over the clients, and over the worst tenth of them."""
        everybody, others = (
            Evaluated({}, _arrays(each), np.empty(0, np.intp)) for each in (self._everybody, self._others)
        )
        self._everybody.clear()
        self._others.clear()
        found = {"trained": everybody.mean(), "trained_worst": everybody.worst(), "others": others.mean()}
        return {split: metrics for split, metrics in found.items() if metrics}


def _arrays(found: dict[str, list[float]]) -> dict[str, FloatArray]:
    return {name: np.array(values) for name, values in found.items()}
