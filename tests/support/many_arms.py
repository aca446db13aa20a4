"""A study with many arms, and its verdict against the control, without Spark."""

import msgspec

from fedping.analysis.verdict import Asked, Verdict, against, plan_of, reach_verdict
from fedping.protocol.study import Arm, Study
from tests.support.verdicts import made_tally
from tests.support.versions import small_study

EFFECTS = {"v-20": 3.0, "v-39": 5.0}
"""Mean of typed characters in the arms with an effect; it is 4 in all others."""


def many_arms(number: int, name: str = "many") -> Study:
    """Return a study with a control and other arms, ``v-01``, ``v-02``, …"""
    names = ["control", *(f"v-{i:02d}" for i in range(1, number))]
    arms = tuple(
        Arm(name=name, share=1 / number, line="main", applies=name != "control", submits=True) for name in names
    )
    return msgspec.structs.replace(small_study(name), arms=arms)


def against_control(study: Study) -> Asked:
    """Return the question that compares every arm with the control."""
    return Asked(pairs=tuple(map(":".join, against(study, "control"))), guardrails=("rank_selected",))


def verdict_against_control(study: Study) -> Verdict:
    """Return the verdict of that question."""
    means = {arm.name: EFFECTS.get(arm.name, 4.0) for arm in study.arms}
    return reach_verdict(study, plan_of(study, against_control(study)), made_tally(means, clients=300))
