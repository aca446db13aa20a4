"""Groups of clients: those that never take part in training, and clients' segments."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedping.experiments.laboratory.baselines import run_baseline
from fedping.experiments.laboratory.cohort import Cohorts
from fedping.experiments.laboratory.evaluation import measure
from fedping.experiments.laboratory.preparing import Problem, prepare
from fedping.experiments.laboratory.report import segments_of, write_report
from fedping.experiments.laboratory.results import MetricLog
from fedping.experiments.laboratory.run import run_experiment
from fedping.experiments.laboratory.settings import Setup
from fedping.experiments.laboratory.settings.experiment import ONLY_VARIANT
from fedping.experiments.laboratory.summary import told
from fedping.protocol.errors import InvalidSettings
from tests.support.laboratory import small

USERS: dict[str, Any] = {"model": {"name": "linear-15"}, "data": {"users": 60, "judges": 40}}


def setup(newcomers: float, **changes: Any) -> Setup:
    return small(evaluation__newcomers=newcomers, **changes).variants[ONLY_VARIANT]


def problem(newcomers: float, seed: int = 1, **changes: Any) -> Problem:
    return prepare(setup(newcomers, **changes), seed, None)


@settings(max_examples=15, deadline=None)
@given(seed=st.integers(0, 1000), fewer=st.integers(0, 30), more=st.integers(0, 9))
def test_newcomers_are_drawn_from_those_with_tests_and_more_of_them_hold_fewer(
    seed: int, fewer: int, more: int
) -> None:
    few, many = (problem(count, seed, **USERS) for count in (fewer, fewer + more))
    assert len(few.newcomers) == fewer
    assert len(many.newcomers) == fewer + more
    assert set(few.newcomers.tolist()) <= set(many.newcomers.tolist()) <= set(range(40))
    assert sorted([*many.newcomers, *many.learners]) == list(range(60))


def test_a_share_is_of_the_clients_and_at_least_one() -> None:
    assert len(problem(0.25, **USERS).newcomers) == 10
    assert len(problem(1e-6, **USERS).newcomers) == 1
    drawn = {tuple(problem(3, seed, **USERS).newcomers.tolist()) for seed in range(8)}
    assert len(drawn) > 4


@pytest.mark.parametrize(
    "sampling",
    [
        {"sampling": "all"},
        {"sampling": "uniform", "clients": 5},
        {"sampling": "by_size", "clients": 9},
        {"sampling": "bernoulli", "share": 0.7},
    ],
)
@pytest.mark.parametrize("of", [{}, USERS])
def test_newcomers_never_take_part_and_samples_are_of_the_others(of: dict[str, Any], sampling: dict[str, Any]) -> None:
    chosen = setup(3, sampling=sampling, **of)
    made = prepare(chosen, 2, None)
    cohorts = Cohorts(chosen, made)
    seen: set[int] = set()
    for round_ in range(30):
        clients = np.concatenate([block.clients for block in cohorts.sent(round_, [made.spec.start_array])])
        if sampling["sampling"] in ("uniform", "by_size"):
            assert len(clients) == sampling["clients"]
        seen |= set(clients.tolist())
    assert not seen & set(made.newcomers.tolist())
    assert len(seen) > 0.9 * len(made.learners)


def test_they_are_measured_by_the_shared_model_on_their_own_tests() -> None:
    made, weights = problem(3), np.linspace(-1, 1, 31)
    found, of = measure(made, weights, local=False), made.test.select(made.newcomers)  # type: ignore[attr-defined]
    predicted = made.model.predict(weights, of.batch(np.arange(3)))
    there, y = of.batch(np.arange(3)).weight > 0, of.batch(np.arange(3)).y
    right = [((p > 0.5) == z)[t].mean() for p, z, t in zip(predicted, y, there, strict=True)]
    assert found["newcomers"]["accuracy"] == pytest.approx(np.mean(right))
    assert "local" not in found
    assert "newcomers" not in measure(problem(0), weights, local=True)


def test_nobody_learns_from_them_and_a_central_learner_does_not_either() -> None:
    chosen = setup(3)
    made = prepare(chosen, 1, None)
    newcomer = np.isin(made.train.client_of, made.newcomers)  # type: ignore[attr-defined]
    learned = run_baseline("centralised", chosen, made, MetricLog("", 1, None)).weights
    x = made.train.x.copy()  # type: ignore[attr-defined]
    x[newcomer] = 1e6
    spoilt = replace(made, train=replace(made.train, x=x))  # type: ignore[type-var]
    np.testing.assert_array_equal(run_baseline("centralised", chosen, spoilt, MetricLog("", 1, None)).weights, learned)
    with_them = replace(spoilt, newcomers=np.empty(0, np.intp))
    assert not np.array_equal(run_baseline("centralised", chosen, with_them, MetricLog("", 1, None)).weights, learned)


@pytest.mark.parametrize("of", [{}, USERS])
def test_a_run_tells_of_them(tmp_path: Path, of: dict[str, Any]) -> None:
    summary = run_experiment(small(rounds=2, evaluation__newcomers=2, **of), tmp_path)
    row = summary.variants[ONLY_VARIANT]
    assert set(row.metrics) >= {"test", "local", "newcomers"}
    [file] = (path for path in tmp_path.rglob("clients.parquet") if "baseline" not in str(path.parent))
    table = pq.read_table(file, partitioning=None)
    theirs = table.filter(table["newcomer"])
    assert len(theirs) == 2
    for metric, values in row.metrics["newcomers"].items():
        assert values.mean == pytest.approx(np.nanmean(theirs[metric].to_numpy()))


@pytest.mark.parametrize(
    ("newcomers", "changes", "said"),
    [
        (60, USERS, "60 newcomers, and 40 of 60 clients have test examples"),
        (8, {}, "are left to train"),
        (2, {"co_op": {}, "training": {"algorithm": "local", "epochs": 1, "rate": 0.1}}, "merges every client"),
    ],
)
def test_newcomers_that_cannot_be_are_refused(newcomers: int, changes: dict[str, Any], said: str) -> None:
    with pytest.raises(InvalidSettings, match=said):
        problem(newcomers, **changes)


GROUPS = [
    {"share": 0.6, "population": {"noise_variance": 0.0, "true_weights": [1.0] * 15}},
    {"share": 0.35, "population": {"noise_variance": 0.0, "true_weights": [9.0, *[1.0] * 13, 9.0]}},
    {"share": 0.05},
]


def test_the_report_tells_of_segments_that_are_no_few_persons(tmp_path: Path) -> None:
    of = {"model": {"name": "linear-15"}, "data": {"users": 120, "judges": 120, "groups": GROUPS}}
    summary = run_experiment(small(seeds=2, rounds=1, evaluation__baselines=["start"], **of), tmp_path)
    found = segments_of(tmp_path, summary.metric)
    assert found is not None
    assert list(found.clients) == ["0", "1"], "the third group is too small"
    assert set(found.rows) == {ONLY_VARIANT, "start"}
    each: list[list[float]] = []
    for file in sorted((tmp_path / "runs").rglob("clients.parquet")):
        table = pq.read_table(file, partitioning=None)
        key, values = np.array(table["key"]), table[summary.metric].to_numpy()
        each.append([float(np.nanmean(values[key == segment])) for segment in ("0", "1")])
    assert [one.mean for one in found.rows[ONLY_VARIANT]] == pytest.approx(np.mean(each, axis=0))
    assert [one.seeds for one in found.rows[ONLY_VARIANT]] == [2, 2]
    text = write_report(tmp_path, tmp_path / "report.html").read_text()
    assert "By segment" in text
    assert told(found.rows["start"][1]) in text


def test_without_segments_the_report_has_no_table_of_them(tmp_path: Path) -> None:
    summary = run_experiment(small(rounds=1, evaluation__baselines=[]), tmp_path)
    assert segments_of(tmp_path, summary.metric) is None
    assert "By segment" not in write_report(tmp_path, tmp_path / "report.html").read_text()
