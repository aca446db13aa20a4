"""The simulations of `fedping power train`, by the size of their cohorts, and the loss that compares them.

A cohort is the clients whose usable pings a round gets: they are in an arm that trains, searched in the iteration,
chose a result, and held the version that the round steps from. Its size follows from the number of clients and their
searches, so a plan sets the number of clients. The size is a mean over the iterations, since users are more active at
some hours of the day than at others.

The final loss of a training is its version's loss over searches of users who never train, the same in every run.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from msgspec.structs import replace

from fedping.client_sim.fleet.interactions import Ranking
from fedping.client_sim.models import model_for
from fedping.client_sim.population.behaviour import Activity, Seekers, Users, behave
from fedping.experiments.simulate.settings import Experiment, FixedLength
from fedping.experiments.simulate.ticks import SEARCHES_AT_A_TIME
from fedping.protocol.draws import child_keys, root_key, uniforms
from fedping.protocol.errors import InvalidSettings
from fedping.protocol.study import Arm, Study

MOST_CLIENTS = 100_000_000
"""Maximum number of clients, the same as in an experiment's file."""


@dataclass(frozen=True, kw_only=True)
class TrainingPlan:
    """The settings of the simulations: every cohort size with every repetition.

    Attributes:
        experiment: the experiment's optimization phase.
        study: the study reduced to the trained line and the arms that train it.
        enrolled_share: the share of the clients enrolled in the whole study, including other arms.
        cohorts: the sizes of the cohorts, ascending.
        repetitions: the number of runs per cohort, each with its own users.
        validation_searches: the number of searches in the final loss.
        keep_pings: whether a finished run's landed pings are kept.
    """

    experiment: Experiment
    study: Study
    enrolled_share: float
    cohorts: tuple[int, ...]
    repetitions: int
    validation_searches: int = 20_000
    keep_pings: bool = False

    def clients(self, cohort: int) -> int:
        """Return the number of clients that gives rounds a cohort of this size on average."""
        return math.ceil(cohort / (self.training_share * searching_share(self.experiment)))

    @property
    def training_share(self) -> float:
        """The share of all clients that are in an arm that trains."""
        return sum(arm.share for arm in self.study.arms if arm.submits)

    def run(self, cohort: int, repetition: int) -> Experiment:
        """Return the experiment of one run; repetition 1 has the file's seed, and each further one the next seed."""
        return replace(self.experiment, clients=self.clients(cohort), seed=self.experiment.seed + repetition - 1)


def training_plan(
    experiment: Experiment,
    study: Study,
    cohorts: Sequence[int],
    repetitions: int,
    *,
    line: str | None = None,
    iterations: int | None = None,
    validation_searches: int = 20_000,
    keep_pings: bool = False,
) -> TrainingPlan:
    """Return the plan of an experiment.

    Only the arms that train the line take part (and the one that early stopping uses), because further arms don't
    change the result. A round takes its step with any number of clients: ``min_clients`` becomes 1.

    Raises:
        InvalidSettings: the study is private, a cohort is impossible, there are several lines but none is named, or
            iterations have no fixed length, so that the number of clients would not determine a round's cohort.
    """
    if study.is_private:
        raise InvalidSettings(
            f"study '{study.name}' is private, and its learning also depends on the noise. 'fedping privacy plan' "
            "computes the number of clients that it takes"
        )
    if not cohorts or min(cohorts) < 1 or len(set(cohorts)) < len(cohorts):
        raise InvalidSettings("cohorts are different whole numbers of at least 1; write --cohorts 50,100,200,400")
    if not isinstance(experiment.optimization.length, FixedLength):
        raise InvalidSettings(
            "the experiment's iterations do not last a fixed time, so that the number of clients does not determine a "
            'round\'s. Remove length from [optimization], or set it to { by = "time" }'
        )
    count = iterations if iterations is not None else experiment.optimization.iterations
    if count < 1:
        raise InvalidSettings("training needs at least one iteration; give --iterations")
    changed = replace(experiment, evaluation=None, optimization=replace(experiment.optimization, iterations=count))
    plan = TrainingPlan(
        experiment=changed,
        study=_training_part(study, line, experiment),
        enrolled_share=sum(arm.share for arm in study.arms),
        cohorts=tuple(sorted(cohorts)),
        repetitions=repetitions,
        validation_searches=validation_searches,
        keep_pings=keep_pings,
    )
    if (clients := plan.clients(max(cohorts))) > MOST_CLIENTS:
        raise InvalidSettings(
            f"a cohort of {max(cohorts):,} takes {clients:,} clients with so few searches, more than can be simulated; "
            "give smaller --cohorts, or raise searches_per_day in the experiment"
        )
    return plan


def searching_share(experiment: Experiment) -> float:
    """Return the mean share of a training arm's clients that send a usable ping in an iteration.

    A client's number of searches in an iteration is Poisson, with a mean that is gamma distributed over the clients, so
    the share without any is (1 + mean / shape) to the power -shape. This ignores searches whose page was never visible,
    so a round's actual number is slightly smaller. The actual number is reported, too.
    """
    phase, activity, length = experiment.optimization, experiment.activity, experiment.optimization.length
    ticks = length.ticks if isinstance(length, FixedLength) else 1
    day, start = experiment.tick_minutes / 1440, experiment.start
    swing = Activity(1, activity, 0, day, start.hour + start.minute / 60 + start.second / 3600).swing
    fresh = 1 - activity.fetch_late ** np.arange(1, ticks + 1)
    usable = phase.searches_per_day / (1 - activity.away) * day * (1 - experiment.users.nothing_selected)
    shares = []
    for iteration in range(phase.iterations):
        first = iteration * ticks
        mean = usable * sum(swing(first + i) * fresh[i] for i in range(ticks))
        enrolled = np.mean([_rolled_out(activity.rollout_days, (first + i) * day) for i in range(ticks)])
        there = (1 - activity.away) * enrolled
        shares.append(there * (1 - (1 + mean / phase.activity_shape) ** -phase.activity_shape))
    return float(np.mean(shares))


def _rolled_out(rollout_days: float, day: float) -> float:
    return min(1.0, day / rollout_days) if rollout_days else 1.0


def _training_part(study: Study, name: str | None, experiment: Experiment) -> Study:
    if name is None and len(study.lines) > 1:
        names = ", ".join(one.name for one in study.lines)
        raise InvalidSettings(f"study '{study.name}' trains {len(study.lines)} lines; name one of {names} with --line")
    line = study.line(name) if name is not None else study.lines[0]
    if line.length is not None:
        raise InvalidSettings(
            f"line '{line.name}' of study '{study.name}' has a 'length', so that the number of clients may not "
            "determine a round's. Remove it here"
        )
    stopping = line.early_stopping or experiment.optimization.early_stopping

    def takes_part(arm: Arm) -> bool:
        return arm.line == line.name and (arm.submits or (stopping is not None and arm.name == stopping.arm))

    return replace(
        study,
        arms=tuple(arm for arm in study.arms if takes_part(arm)),
        lines=(replace(line, pipeline=replace(line.pipeline, min_clients=1)),),
    )


_VALIDATION = 0x7E57
_KEYS, _DAYS = range(2)


class Validation:
    """Validation on one search of each of many users, on the day after the training.

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
        """Return the mean loss of these weights on the searches that end with a selection; NaN if none does."""
        ranking = Ranking(spec=self._spec, weights=np.array(weights), decays=self._decays)
        total, selections = 0.0, 0
        for begun in range(0, self._searches, SEARCHES_AT_A_TIME):
            users = np.arange(begun, min(begun + SEARCHES_AT_A_TIME, self._searches))
            keys = child_keys(child_keys(self._root, _KEYS), users)
            day = self._day + uniforms(child_keys(keys, _DAYS), 1)[:, 0]
            interactions = behave(
                self._users, ranking, Seekers(users, child_keys(keys, _KEYS), day), self._iterations
            ).seen
            chose = interactions.rank >= 0
            total += float(interactions.loss[chose].sum())
            selections += int(chose.sum())
        return total / selections if selections else float("nan")
