"""Verdicts without Spark: a study's tally from values given by a test."""

import msgspec
import numpy as np

from fedping.analysis.statistics import ClientSums, ValueCounts
from fedping.analysis.study import METRICS, ArmTally, MetricTally, StudyTally, Window
from fedping.analysis.verdict import Plan, Verdict, all_pairs, reach_verdict
from fedping.protocol.study import Arm, Study
from tests.support.versions import small_study

HOUR = 425_000
"""The time of the first ping, in hours since 1970."""


def metric_tally(clients: np.ndarray) -> MetricTally:
    """Return the tally of a metric from every client's values, shape (clients, pings of each)."""
    sums = clients.sum(axis=1)
    n = clients.shape[1]
    return MetricTally(
        pings=ValueCounts.of(clients.ravel()),
        clients=ValueCounts.of(clients.mean(axis=1)),
        sums=ClientSums(
            clients=len(clients),
            pings=clients.size,
            total=float(sums.sum()),
            ss=float((sums**2).sum()),
            sn=float(sums.sum() * n),
            nn=float(len(clients) * n * n),
        ),
    )


def arm_tally(typed: np.ndarray, ranks: np.ndarray) -> ArmTally:
    """Return the tally of an arm from two metrics, each of shape (clients, pings of each)."""
    return ArmTally(
        pings=typed.size,
        clients=len(typed),
        selections=typed.size,
        exposed=len(typed),
        metrics={"num_chars_typed": metric_tally(typed), "rank_selected": metric_tally(ranks)},
        by_hour={HOUR: typed.size // 2, HOUR + 2: typed.size - typed.size // 2},
        exposed_by_hour={HOUR: len(typed) - 5, HOUR + 2: 5},
    )


def made_tally(arms: dict[str, float], clients: int = 600, seed: int = 1) -> StudyTally:
    """Return a tally of arms with given means of typed characters, with three pings for each client."""
    rng = np.random.default_rng(seed)
    return StudyTally(
        arms={
            name: arm_tally(rng.poisson(mean, (clients, 3)), rng.geometric(0.6, (clients, 3)) - 1)
            for name, mean in arms.items()
        },
        duplicates=2,
        mixed=0,
    )


def made_verdict(arms: dict[str, float], window: Window | None = None, study: Study | None = None) -> Verdict:
    """Return the verdict on such a tally; arms follow the line of a small study."""
    shares = {name: 1 / len(arms) for name in arms}
    line_arms = tuple(
        Arm(name=name, share=share, line="main", applies=i == 0, submits=i == 0)
        for i, (name, share) in enumerate(shares.items())
    )
    study = study or msgspec.structs.replace(small_study(), arms=line_arms)
    plan = Plan(metrics=METRICS[:2], pairs=all_pairs(study), window=window or Window())
    return reach_verdict(study, plan, made_tally(arms))
