"""The final loss of a training: its version's loss over searches of users who never train, the same in every run."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from fedping.client_sim.fleet.interactions import Ranking
from fedping.client_sim.models import model_for
from fedping.client_sim.population.behaviour import Seekers, Users, behave
from fedping.experiments.power.plan import TrainingPlan
from fedping.experiments.simulate.settings import FixedLength
from fedping.experiments.simulate.ticks import SEARCHES_AT_A_TIME
from fedping.protocol.draws import child_keys, root_key, uniforms

_VALIDATION = 0x7E57
_KEYS, _DAYS = range(2)


class Validation:
    """One search each of many users, on the day after the training.

    All models are evaluated by the same users with the same wishes and draws, so their losses differ only because of
    their rankings.
    """

    def __init__(self, plan: TrainingPlan) -> None:
        experiment, length = plan.experiment, plan.experiment.optimization.length
        self._searches = plan.validation_searches
        self._spec = plan.study.lines[0].spec
        self._decays = next(arm.decays for arm in plan.study.arms if arm.submits)
        self._iterations = experiment.optimization.iterations
        ticks = self._iterations * (length.ticks if isinstance(length, FixedLength) else 1)
        self._day = ticks * experiment.tick_minutes / 1440
        seed = int(
            np.random.SeedSequence([experiment.seed, _VALIDATION]).generate_state(1, np.uint64)[0] >> np.uint64(1)
        )
        self._root = root_key(seed)
        self._users = Users(model_for(self._spec.model), experiment.users, seed)

    def loss(self, weights: Sequence[float]) -> float:
        """Return the mean loss of the searches that end with a selection, with these weights; NaN if none does."""
        ranking = Ranking(spec=self._spec, weights=np.array(weights), decays=self._decays)
        total, selections = 0.0, 0
        for begun in range(0, self._searches, SEARCHES_AT_A_TIME):
            users = np.arange(begun, min(begun + SEARCHES_AT_A_TIME, self._searches))
            keys = child_keys(child_keys(self._root, _KEYS), users)
            day = self._day + uniforms(child_keys(keys, _DAYS), 1)[:, 0]
            seen = behave(self._users, ranking, Seekers(users, child_keys(keys, _KEYS), day), self._iterations).seen
            chose = seen.rank >= 0
            total += float(seen.loss[chose].sum())
            selections += int(chose.sum())
        return total / selections if selections else float("nan")
