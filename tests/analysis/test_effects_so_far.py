"""The effect so far equals an interim look's result at the end of each period."""

from dataclasses import replace

import msgspec
import numpy as np
import pytest

from fedping.analysis.statistics import ValueCounts, bounded_sequence, confidence_sequence
from fedping.analysis.study import METRICS, StudyTally
from fedping.analysis.study.tally import HOUR_MS, Arrivals
from fedping.analysis.verdict import Plan, Verdict, all_pairs, as_document, reach_verdict
from fedping.analysis.verdict.so_far import MOST_COMPARISONS
from fedping.protocol.study import Arm, Study
from tests.support.verdicts import HOUR, made_tally
from tests.support.versions import small_study

TYPED, RANK = METRICS[:2]
DAYS = 4


def arriving(arms: dict[str, float], clients: int = 600) -> tuple[StudyTally, dict[str, np.ndarray]]:
    """Return a tally whose clients arrive over four days, the same number each, and their first values by arm."""
    tally = made_tally(arms, clients)
    counts = {name: arm.metrics[TYPED.name].clients for name, arm in tally.arms.items()}
    values = {name: np.repeat(each.values, each.counts) for name, each in counts.items()}
    rng = np.random.default_rng(5)
    for each in values.values():
        rng.shuffle(each)
    arrivals = tuple(
        Arrivals(
            HOUR + 24 * day,
            {
                name: {metric.name: ValueCounts.of(each[day::DAYS]) for metric in (TYPED, RANK)}
                for name, each in values.items()
            },
        )
        for day in range(DAYS)
    )
    firsts = {
        name: replace(
            arm,
            metrics={
                metric.name: replace(arm.metrics[metric.name], first=ValueCounts.of(values[name]))
                for metric in (TYPED, RANK)
            },
        )
        for name, arm in tally.arms.items()
    }
    return replace(tally, arms=firsts, arrivals=arrivals, hours=24), values


def looked_at(tally: StudyTally, study: Study, metric: object = TYPED) -> Verdict:
    plan = Plan(metrics=(metric,), pairs=all_pairs(study), interim=True, planned=2000)  # type: ignore[arg-type]
    return reach_verdict(study, plan, tally)


def study_of(names: list[str]) -> Study:
    arms = tuple(Arm(name=name, share=1 / len(names), line="main", applies=True, submits=True) for name in names)
    return msgspec.structs.replace(small_study(), arms=arms)


def test_each_step_is_the_sequence_of_the_clients_so_far_and_the_last_is_the_look() -> None:
    tally, values = arriving({"new": 3.0, "old": 4.0})
    verdict = looked_at(tally, study_of(["new", "old"]))
    [series] = verdict.so_far
    assert [step.hour for step in series.steps] == [HOUR + 24 * (day + 1) for day in range(DAYS)]
    for day, step in enumerate(series.steps):
        a, b = (
            ValueCounts.of(np.concatenate([values[name][part::DAYS] for part in range(day + 1)]))
            for name in ("new", "old")
        )
        assert step.n == (150 * (day + 1), 150 * (day + 1))
        assert step.estimate == confidence_sequence(a, b, verdict.plan.confidence, 2000)
        assert step.percent == pytest.approx(100 * (a.mean - b.mean) / b.mean)
    assert series.steps[-1].estimate == verdict.comparisons[0].sequence
    assert np.isinf(series.steps[0].estimate.high), "150 clients decide nothing"
    [written] = as_document(verdict)["over_time"]["so_far"]
    assert written["until_ms"][0] == (HOUR + 24) * HOUR_MS
    assert written["low"][0] is None
    assert written["high"][-1] == verdict.comparisons[0].sequence.high  # type: ignore[union-attr]


def test_values_with_bounds_have_the_exact_interval() -> None:
    tally, values = arriving({"new": 3.0, "old": 4.0}, clients=60)
    bounded = replace(TYPED, bounds=(0.0, 20.0))
    [series] = looked_at(tally, study_of(["new", "old"]), bounded).so_far
    a, b = (ValueCounts.of(values[name][0::DAYS]) for name in ("new", "old"))
    assert series.steps[0].estimate == bounded_sequence(a, b, (0.0, 20.0), 0.95)


def test_an_arm_without_clients_yet_has_no_step_and_a_final_verdict_no_series() -> None:
    tally, _ = arriving({"new": 3.0, "old": 4.0})
    late = (replace(tally.arrivals[0], arms={"old": tally.arrivals[0].arms["old"]}), *tally.arrivals[1:])
    study = study_of(["new", "old"])
    [series] = looked_at(replace(tally, arrivals=late), study).so_far
    assert [step.n for step in series.steps] == [(150, 300), (300, 450), (450, 600)]
    assert (
        as_document(reach_verdict(study, Plan(metrics=(TYPED,), pairs=all_pairs(study)), tally))["over_time"]["so_far"]
        == []
    )


def test_of_many_comparisons_those_of_the_smallest_p_have_a_series(monkeypatch: pytest.MonkeyPatch) -> None:
    names = [f"a{i:02d}" for i in range(13)]
    tally, _ = arriving(dict.fromkeys(names, 4.0) | {"a12": 2.0}, clients=40)
    verdict = looked_at(tally, study_of(names))
    assert len(verdict.comparisons) > MOST_COMPARISONS == len(verdict.so_far)
    assert sum(one.pair[1] == "a12" for one in verdict.so_far) == 12
    monkeypatch.setattr("fedping.analysis.verdict.so_far.MOST_EXACT", 2 * DAYS)
    few = replace(tally, arms={name: tally.arms[name] for name in names[-3:]})
    exact = looked_at(few, study_of(names[-3:]), replace(TYPED, bounds=(0.0, 20.0)))
    assert [one.pair for one in exact.so_far] == [("a10", "a12"), ("a11", "a12")]
