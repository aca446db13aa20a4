"""Whole experiments: their files and expected results; they repeat to the bit, and resume after a kill."""

import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pyarrow.parquet as pq
import pytest
from scipy import optimize
from sklearn.cluster import KMeans

from fedping.client_sim.learning.models.own_loss import own_loss
from fedping.experiments.laboratory import pool
from fedping.experiments.laboratory.baselines import run_baseline
from fedping.experiments.laboratory.cohort import Cohorts
from fedping.experiments.laboratory.one_run import run_unit
from fedping.experiments.laboratory.pool import threads_for
from fedping.experiments.laboratory.preparing import Problem, prepare
from fedping.experiments.laboratory.results import MetricLog, Outcome
from fedping.experiments.laboratory.run import run_experiment
from fedping.experiments.laboratory.settings import Experiment, Setup, experiment_from_toml
from fedping.experiments.laboratory.summary import Summary
from fedping.experiments.laboratory.units import Unit, units_of
from fedping.protocol.errors import FedpingError, InvalidSettings
from tests.support import forked
from tests.support.laboratory import small, small_file

ROOT = Path(__file__).parents[2]


def contents(out: Path) -> dict[str, bytes]:
    """Return the files of a run, without its durations."""
    found = {str(file.relative_to(out)): file.read_bytes() for file in sorted(out.rglob("*")) if file.is_file()}
    for name, said in found.items():
        if name.endswith("run.json"):
            found[name] = json.dumps({**json.loads(said), "seconds": 0}).encode()
    return found


def only_setup(experiment: Experiment) -> Setup:
    [setup] = experiment.variants.values()
    return setup


def run_one(folder: Path, **changes: Any) -> tuple[Outcome, np.ndarray, Problem]:
    """Run the small experiment's first variant once; return its outcome, its last weights and its problem."""
    setup = only_setup(small(**changes))
    unit = Unit("only", None, setup, 1, None)
    outcome = run_unit(unit, folder)
    return outcome, np.load(unit.folder(folder).path / "last.npy"), prepare(setup, 1, None)


def objective(problem: Problem, weights: np.ndarray) -> tuple[float, np.ndarray]:
    """Return the pooled loss and its gradient, by the definition of logistic regression."""
    data, l2 = problem.train, 1e-2  # type: ignore[var-annotated]
    x, y = data.x, data.y  # type: ignore[attr-defined]
    z = x @ weights[:-1] + weights[-1]
    residual = (1 / (1 + np.exp(-z)) - y) / len(y)
    loss = np.mean(np.logaddexp(0, z) - y * z) + l2 / 2 * (weights[:-1] ** 2).sum()
    return float(loss), np.append(x.T @ residual + l2 * weights[:-1], residual.sum())


def test_one_gradient_a_round_is_gradient_descent_on_the_pooled_data(tmp_path: Path) -> None:
    _, weights, problem = run_one(tmp_path, rounds=20)
    centralised = np.zeros(31)
    for _ in range(20):
        centralised = centralised - objective(problem, centralised)[1]
    # Updates are sent as float32, whose rounding of 6e-8 in each round is the only difference.
    np.testing.assert_allclose(weights, centralised, atol=1e-6)


def test_local_steps_need_fewer_rounds_than_gradients(tmp_path: Path) -> None:
    _, one, problem = run_one(tmp_path / "one", rounds=5)
    _, several, _ = run_one(tmp_path / "several", rounds=5, training={"algorithm": "local", "steps": 5, "rate": 1.0})
    assert objective(problem, several)[0] < objective(problem, one)[0] - 0.005


def test_a_sample_of_clients_estimates_the_full_gradient_without_bias(tmp_path: Path) -> None:
    setup = only_setup(small(sampling={"sampling": "by_size", "clients": 2}, server__weighting="ping"))
    problem = prepare(setup, 1, None)
    cohorts, weights = Cohorts(setup, problem), np.full(31, 0.1)
    means = [
        np.mean(np.concatenate([block.updates for block in cohorts.sent(number, [weights])]), axis=0)
        for number in range(3000)
    ]
    exact = -objective(problem, weights)[1]
    error = np.std(means, axis=0) / np.sqrt(len(means))
    assert cohorts.notes == ()
    assert (np.abs(np.mean(means, axis=0) - exact) < 5 * error).all()


def test_the_centralised_baseline_is_the_minimum_and_the_local_one_each_clients_own(tmp_path: Path) -> None:
    setup = only_setup(small(data__validation=0))
    outcomes = {
        name: run_unit(Unit(name, name, setup, 1, None), tmp_path)  # type: ignore[arg-type]
        for name in ("centralised", "local", "start")
    }
    problem = prepare(setup, 1, None)
    weights = np.load(tmp_path / "baselines/centralised/seed-1/best.npy")
    exact = optimize.minimize(lambda w: objective(problem, w), np.zeros(31), jac=True, tol=1e-12).x
    np.testing.assert_allclose(weights, exact, atol=1e-4)
    own = np.load(tmp_path / "baselines/local/seed-1/best.npy")
    assert own.shape == (8, 31)
    for k in range(8):
        batch = problem.train.batch(np.array([k]))
        assert np.abs(problem.model.gradients(own[k], batch)).max() < 1e-6
    accuracy = {name: outcome.final["test"]["accuracy"] for name, outcome in outcomes.items()}
    assert accuracy["centralised"] > 0.9 > accuracy["start"]  # type: ignore[operator]
    np.testing.assert_array_equal(np.load(tmp_path / "baselines/start/seed-1/best.npy"), 0)


@pytest.mark.parametrize("part", ["train", "validation"])
@pytest.mark.parametrize(
    ("name", "whose"),
    [("local", "for client 3; check it for"), ("centralised", "for the pooled examples of the clients;")],
)
def test_a_baseline_names_the_client_whose_loss_is_no_number(name: Any, whose: str, part: str) -> None:
    """The client is named by its number in the fleet; a central learner pools the examples, and so names none."""
    setup = only_setup(small(data__validation=0.3, early_stopping={"patience": 5}))
    problem = prepare(setup, 1, None)

    def loss(weights: Any, x: Any, y: Any) -> Any:
        return np.nan if np.max(x) > 1e5 else ((x @ weights[:-1] - y) ** 2).mean()

    data: Any = getattr(problem, part)
    x = data.x.copy()
    x[data.client_of == 3] = 1e6
    model = own_loss(loss, np.zeros(31), epsilon=1e-4)
    spoilt: Any = {"model": model, part: replace(data, x=x)}
    with pytest.raises(FedpingError, match=f"returned nan {whose}"):
        run_baseline(name, setup, replace(problem, **spoilt), MetricLog("", 1, None))


def test_a_baseline_keeps_the_version_that_is_best_on_validation_examples_if_runs_stop_early(tmp_path: Path) -> None:
    setup = only_setup(small(model__l2=0, data__validation=0.3, early_stopping={"patience": 5}))
    outcome = run_unit(Unit("centralised", "centralised", setup, 1, None), tmp_path / "stopped")
    data = msgspec.structs.replace(setup.data, validation=0.0)
    without = msgspec.structs.replace(setup, data=data, early_stopping=None)
    problem = prepare(setup, 1, None)
    best = np.load(tmp_path / "stopped/baselines/centralised/seed-1/best.npy")
    assert np.linalg.norm(best) < 20  # separable without a penalty: the minimum is at infinity
    assert outcome.final["validation"]["loss"] < 0.2  # type: ignore[operator]
    assert len(prepare(without, 1, None).train.sizes) == len(problem.train.sizes)


def test_a_baseline_goes_on_to_the_minimum_if_runs_go_on_to_their_last_round(tmp_path: Path) -> None:
    setup = only_setup(small(data__validation=0.3))
    assert setup.early_stopping is None
    run_unit(Unit("centralised", "centralised", setup, 1, None), tmp_path)
    problem = prepare(setup, 1, None)
    exact = optimize.minimize(lambda w: objective(problem, w), np.zeros(31), jac=True, tol=1e-12).x
    np.testing.assert_allclose(np.load(tmp_path / "baselines/centralised/seed-1/best.npy"), exact, atol=1e-4)


def test_baselines_of_runs_that_stop_early_and_of_those_that_do_not_are_two(tmp_path: Path) -> None:
    stopped = {"name": "stopped", "early_stopping": {"patience": 5}}
    units = units_of(small(variants=[{"name": "whole"}, stopped], evaluation={"baselines": ["centralised"]}, seeds=1))
    assert [unit.name for unit in units if unit.baseline] == ["centralised (whole)", "centralised (stopped)"]


def test_the_baseline_of_k_means_is_the_best_of_ten_starts(tmp_path: Path) -> None:
    """The baseline equals scikit-learn's best of ten k-means++ starts, which a single random start seldom reaches."""
    file = ROOT / "experiments/papers/rodriguez_barroso_2020_k_means.toml"
    setup = experiment_from_toml(file).variants["mean, IID"]
    run_unit(Unit("centralised", "centralised", setup, 1, None), tmp_path)
    problem = prepare(setup, 1, None)
    pooled = problem.train.pooled().batch(np.array([0]))
    found = np.load(tmp_path / "baselines/centralised/seed-1/best.npy")
    reference = KMeans(10, n_init=10, random_state=1).fit(pooled.x[0]).inertia_ / pooled.x.shape[1]
    assert problem.model.losses(found, pooled)[0] == pytest.approx(reference, rel=0.005)


@pytest.mark.parametrize("where", ["files", "http"])
def test_where_the_rounds_run_makes_no_difference(tmp_path: Path, where: str) -> None:
    changes = {"rounds": 3, "training": {"algorithm": "local", "epochs": 2, "batch": 16, "rate": 0.5}}
    outcome, weights, _ = run_one(tmp_path / "memory", **changes)
    other, elsewhere, _ = run_one(tmp_path / where, **changes, where=where)
    np.testing.assert_allclose(elsewhere, weights, rtol=1e-12, atol=1e-14)
    assert other.final.keys() == outcome.final.keys()
    assert other.final["test"] == pytest.approx(outcome.final["test"])
    if where == "files":
        np.testing.assert_array_equal(elsewhere, weights)


@pytest.mark.spark
@pytest.mark.usefixtures("warm_commands")
def test_spark_rounds_come_to_the_same_bits(tmp_path: Path) -> None:
    _, weights, _ = run_one(tmp_path / "memory", rounds=2)
    _, elsewhere, _ = run_one(tmp_path / "spark", rounds=2, where="files", engine="spark")
    np.testing.assert_array_equal(elsewhere, weights)


def test_an_experiment_leaves_the_same_bits_whatever_the_jobs_and_goes_on_after_a_kill(tmp_path: Path) -> None:
    experiment = experiment_from_toml(small_file(tmp_path), ["evaluation.baselines=['local']"])
    alone = run_experiment(experiment, tmp_path / "alone", jobs=1)
    together = run_experiment(experiment, tmp_path / "together", jobs=2)
    assert alone == together
    assert contents(tmp_path / "alone") == contents(tmp_path / "together")
    _killed_after_first_run(tmp_path / "small.toml", tmp_path / "killed")
    finished = len(list((tmp_path / "killed").rglob("run.json")))
    assert 1 <= finished < len(units_of(experiment))
    assert run_experiment(experiment, tmp_path / "killed", jobs=1) == alone
    assert contents(tmp_path / "killed") == contents(tmp_path / "alone")


@pytest.mark.parametrize(
    ("seeds", "jobs", "cores", "threads"),
    [(1, 2, 2, 2), (1, 8, 8, 8), (2, 8, 8, 4), (5, 2, 2, 1), (5, 1, 8, 8), (3, 8, 8, 2)],
)
def test_cores_that_no_other_variant_needs_work_on_the_clients(seeds: int, jobs: int, cores: int, threads: int) -> None:
    units = units_of(small(seeds=seeds))
    assert sum(unit.baseline is not None for unit in units) == 3 * seeds
    assert threads_for(units, jobs, cores) == threads


def _killed_after_first_run(file: Path, out: Path) -> None:
    code = f"""
import os, signal
from pathlib import Path
from fedping.experiments.laboratory.run import run_experiment
from fedping.experiments.laboratory.settings import experiment_from_toml
def watch(now):
    if now.unit.name == "local, three" and now.rounds == 3:
        os.kill(os.getpid(), signal.SIGKILL)
experiment = experiment_from_toml(Path({str(file)!r}), ["evaluation.baselines=['local']"])
run_experiment(experiment, Path({str(out)!r}), 1, watch)
"""
    ended = subprocess.run([sys.executable, "-c", code], cwd=ROOT, env={**os.environ, "PYTHONPATH": str(ROOT)})
    assert ended.returncode == -signal.SIGKILL


def test_what_an_experiment_leaves_fits_together(tmp_path: Path) -> None:
    experiment = experiment_from_toml(small_file(tmp_path), ["rounds=2"])
    summary = run_experiment(experiment, tmp_path / "out", jobs=1)
    assert msgspec.json.decode((tmp_path / "out/summary.json").read_bytes(), type=Summary) == summary
    table = pq.read_table(tmp_path / "out/metrics.parquet").to_pylist()
    finals = [
        row["value"]
        for row in table
        if (row["variant"], row["split"], row["metric"], row["round"]) == ("gradient", "test", "accuracy", 2)
    ]
    assert len(finals) == 2
    assert summary.variants["gradient"].metrics["test"]["accuracy"].mean == pytest.approx(np.mean(finals))
    assert {row["variant"] for row in table} == {"gradient", "local, three", "centralised", "local", "start"}
    assert summary.best in summary.variants
    gradient, local = summary.variants["gradient"], summary.variants["local, three"]
    assert gradient.update_bytes.mean == 2 * 8 * 31 * 4
    assert local.update_bytes.mean == 2 * 3 * 31 * 4
    assert any("biased" in note for note in summary.notes)
    assert (tmp_path / "out/runs/gradient/seed-1/best.npy").is_file()


def test_every_fold_is_tested_once_and_a_seed_counts_as_one(tmp_path: Path) -> None:
    experiment = small(data__folds=4, data__validation=0, rounds=1, evaluation={"baselines": []}, seeds=2)
    setup = only_setup(experiment)
    problems = [prepare(setup, 1, fold) for fold in range(4)]
    assert sum(int(problem.test.sizes.sum()) for problem in problems) == 569
    assert all(int((p.test.sizes + p.train.sizes).sum()) == 569 for p in problems)
    summary = run_experiment(experiment, tmp_path, jobs=1)
    assert summary.variants["federated"].runs == 8
    assert summary.variants["federated"].metrics["test"]["accuracy"].seeds == 2


def test_early_stopping_tests_the_version_that_was_best_on_the_validation_examples(tmp_path: Path) -> None:
    changes = {"rounds": 200, "training": {"algorithm": "local", "steps": 50, "rate": 3.0}, "model__l2": 0}
    outcome, last, _ = run_one(tmp_path, **changes, early_stopping={"patience": 4}, data__validation=0.3)
    table = pq.read_table(tmp_path / "runs/only/seed-1/metrics.parquet").to_pylist()
    losses = {row["round"]: row["value"] for row in table if (row["split"], row["metric"]) == ("validation", "loss")}
    assert outcome.rounds < 200
    assert outcome.best_round == min(losses, key=lambda round_: losses[round_])
    assert outcome.rounds == outcome.best_round + 4
    assert outcome.final["validation"]["loss"] == losses[outcome.best_round]
    assert not np.array_equal(np.load(tmp_path / "runs/only/seed-1/best.npy"), last)


def test_training_that_diverges_ends_with_a_note_and_without_figures(tmp_path: Path) -> None:
    outcome, _, _ = run_one(
        tmp_path,
        model={"name": "linear-regression"},
        data={"name": "diabetes"},
        rounds=400,
        server__optimizer__rate=50.0,
    )
    assert outcome.final == {}
    assert outcome.rounds < 400
    assert "diverged" in outcome.notes[0]


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"model__name": "logistic-regresion"}, "did you mean 'logistic-regression'"),
        ({"model__hidden": 3}, "has no setting 'hidden'"),
        ({"data": {"name": "breast"}}, "there is no data set 'breast'"),
        ({"data": {"name": "diabetes"}}, "the target"),
        ({"partition": {"partition": "key"}}, "has none"),
        ({"sampling": {"sampling": "uniform", "clients": 9}}, "cannot be drawn from 8"),
        ({"evaluation__metric": "rmse"}, "unknown metric 'rmse' here. Choose one of accuracy"),
        ({"early_stopping": {"metric": "r2", "patience": 3}}, "unknown metric 'r2'"),
    ],
)
def test_what_does_not_fit_together_is_told_in_one_sentence(
    tmp_path: Path, changes: dict[str, Any], words: str
) -> None:
    with pytest.raises(FedpingError) as raised:
        run_one(tmp_path, **changes)
    assert words in str(raised.value)
    assert "\n" not in str(raised.value)


def test_a_folder_of_another_experiment_is_left_alone(tmp_path: Path) -> None:
    run_experiment(small(rounds=1, evaluation={"baselines": []}), tmp_path, jobs=1)
    before = contents(tmp_path)
    with pytest.raises(InvalidSettings, match="holds a run of another experiment"):
        run_experiment(small(rounds=2), tmp_path, jobs=1)
    assert contents(tmp_path) == before


def test_variants_share_clients_examples_and_start_weights_seed_by_seed() -> None:
    experiment = small(model={"name": "network", "hidden": 5}, variants=[{"name": "a"}, {"name": "b", "rounds": 9}])
    a, b = (prepare(setup, 3, None) for setup in experiment.variants.values())
    c = prepare(experiment.variants["a"], 4, None)
    np.testing.assert_array_equal(a.train.x, b.train.x)  # type: ignore[attr-defined]
    np.testing.assert_array_equal(a.model.start, b.model.start)
    np.testing.assert_array_equal(a.ids, b.ids)
    assert not np.array_equal(a.model.start, c.model.start)
    assert not np.array_equal(a.ids, c.ids)


def test_linear_regression_comes_to_least_squares(tmp_path: Path) -> None:
    changes = {"model": {"name": "linear-regression"}, "data": {"name": "diabetes", "standardise": True, "test": 0.2}}
    outcome, weights, problem = run_one(
        tmp_path, **changes, rounds=2000, server__optimizer__rate=0.2, evaluation__every=2000
    )
    x, y = problem.train.x, problem.train.y  # type: ignore[attr-defined]
    exact = np.linalg.lstsq(np.column_stack([x, np.ones(len(y))]), y, rcond=None)[0]
    np.testing.assert_allclose(weights, exact, rtol=1e-3)
    assert 0.3 < outcome.final["test"]["r2"] < 0.7  # type: ignore[operator]


def test_clients_find_clusters_together(tmp_path: Path) -> None:
    changes = {
        "model": {"name": "k-means", "clusters": 10},
        "data": {"name": "digits", "drop_constant": True, "standardise": True},
        "training": {"algorithm": "local", "steps": 1, "rate": 1.0},
        "evaluation__baselines": ["centralised", "start"],
        "rounds": 15,
    }
    summary = run_experiment(small(**changes), tmp_path, jobs=1)
    loss = {name: row.metrics["test"]["loss"].mean for name, row in {**summary.variants, **summary.baselines}.items()}
    assert loss["start"] > 1.3 * loss["federated"]  # type: ignore[operator]
    assert loss["federated"] == pytest.approx(loss["centralised"], rel=0.15)
    assert summary.shown[0] == "loss"


def test_a_small_network_learns_digits_that_are_dealt_by_label(tmp_path: Path) -> None:
    outcome, _, _ = run_one(
        tmp_path,
        model={"name": "network", "hidden": 16},
        data={"name": "digits", "test": 0.2},
        partition={"partition": "labels", "clients": 10, "labels": 3},
        training={"algorithm": "local", "epochs": 2, "batch": 16, "rate": 0.03},
        rounds=30,
    )
    assert outcome.final["test"]["accuracy"] > 0.8  # type: ignore[operator]
    assert "recall_of_7" in outcome.final["test"]


USERS: dict[str, Any] = {
    "model": {"name": "linear-15", "margin": 100.0, "start": 60.0, "step": {"start": 8.0, "min": 0.5, "max": 25.0}},
    "data": {"users": 300, "judges": 200, "population": {"noise_variance": 0.0, "other_visits": 0.0}},
    "server": {"weighting": "client", "optimizer": {"optimizer": "rprop"}},
    "sampling": {"sampling": "uniform", "clients": 60},
    "evaluation__baselines": ["centralised", "start"],
}


def test_made_users_teach_a_ranking_model_what_they_want(tmp_path: Path) -> None:
    outcome, weights, _ = run_one(tmp_path / "memory", **USERS, rounds=10)
    start = run_unit(Unit("start", "start", only_setup(small(**USERS)), 1, None), tmp_path)
    top = [one.final["test"]["top_choice"] for one in (outcome, start)]
    assert top[0] > top[1] + 0.05  # type: ignore[operator]
    assert outcome.shown == ("top_choice", "mean_rank")
    _, elsewhere, _ = run_one(tmp_path / "files", **USERS, rounds=10, where="files")
    np.testing.assert_array_equal(elsewhere, weights)
    assert np.load(tmp_path / "baselines/start/seed-1/best.npy").tolist() == [60.0] * 15


def test_every_round_brings_made_users_new_searches() -> None:
    problem = prepare(only_setup(small(**USERS)), 1, None)
    clients = np.arange(20)
    rounds = [problem.train_in(number, problem.spec.start_array).batch(clients) for number in (0, 1, 1)]
    assert not np.array_equal(rounds[0].searches.candidates, rounds[1].searches.candidates)
    np.testing.assert_array_equal(rounds[1].searches.candidates, rounds[2].searches.candidates)
    np.testing.assert_array_equal(
        problem.train_in(1, problem.spec.start_array).sizes[clients], (rounds[1].weight > 0).sum(axis=1)
    )
    alone = problem.train_in(1, problem.spec.start_array).batch(np.array([7]))
    np.testing.assert_array_equal(alone.y[0], rounds[1].y[7][: alone.y.shape[1]])
    assert len(problem.validation) == len(problem.test) == 200
    assert problem.train.pooled().sizes.tolist() == [problem.train.sizes.sum()]


def test_made_users_need_a_model_that_ranks_pages() -> None:
    with pytest.raises(InvalidSettings, match="does not rank; choose"):
        prepare(only_setup(small(**{**USERS, "model": {"name": "network"}})), 1, None)


@pytest.mark.parametrize(
    "changes",
    [
        {"lateness": {"shares": [0.5, 0.3, 0.2]}, "server__staleness": {"most": 1}},
        {"lateness": {"shares": [0.5, 0.5]}},
        {"lateness": {"shares": [0.5, 0.3, 0.2]}, "server__staleness": {"most": 1, "on": "step"}},
        {
            "model": {"name": "k-means", "clusters": 3, "spread": 2.0},
            "training": {"algorithm": "local", "steps": 2, "rate": 1.0},
            "server__aggregate": {"by": "recluster"},
        },
    ],
    ids=["late", "too late", "late, by steps", "recluster"],
)
def test_late_pings_and_reclustering_come_to_the_same_in_memory_and_over_files(
    tmp_path: Path, changes: dict[str, Any]
) -> None:
    outcome, weights, _ = run_one(tmp_path / "memory", **changes)
    other, elsewhere, _ = run_one(tmp_path / "files", **changes, where="files")
    np.testing.assert_allclose(elsewhere, weights, rtol=1e-12, atol=1e-14)
    assert other.updates == outcome.updates
    plain = {key: value for key, value in changes.items() if key in ("model", "training")}
    _, prompt, _ = run_one(tmp_path / "plain", **plain)
    assert not np.allclose(prompt, weights)
    if "lateness" in changes:
        assert 0 < outcome.updates < 6 * 8


@pytest.mark.parametrize("staleness", [{}, {"server__staleness": {"most": 2}}])
def test_that_late_updates_are_lost_is_noted(staleness: dict[str, Any]) -> None:
    setup = only_setup(small(lateness={"shares": [0.5, 0.5]}, **staleness))
    notes = Cohorts(setup, prepare(setup, 1, None)).notes
    remedy = "set 'staleness' in [server] or [line.pipeline] to merge them"
    assert notes == (() if staleness else (f"late updates are left out; {remedy}",))


def test_who_is_late_learns_from_the_version_that_it_holds() -> None:
    setup = only_setup(small(lateness={"shares": [0.0, 0.0, 1.0]}, server__staleness={"most": 2}))
    cohorts = Cohorts(setup, prepare(setup, 1, None))
    newest, older, oldest = (np.full(31, value) for value in (0.3, 0.2, 0.1))
    [late] = cohorts.sent(4, [newest, older, oldest])
    [prompt] = Cohorts(only_setup(small()), prepare(setup, 1, None)).sent(4, [oldest])
    np.testing.assert_array_equal(late.updates, prompt.updates)
    assert (late.age, prompt.age) == (2, 0)
    [so_far] = cohorts.sent(0, [newest])
    assert so_far.age == 0


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGKILL])
def test_nothing_goes_on_unseen_when_an_experiment_is_ended(tmp_path: Path, how: signal.Signals) -> None:
    command = [sys.executable, "-m", "fedping", "simulate", str(small_file(tmp_path)), "--out", str(tmp_path / "out")]
    command += ["--jobs", "2", "--set", "rounds=1000000"]
    with forked.Popen(command, cwd=ROOT, stderr=subprocess.PIPE, start_new_session=True) as process:
        while len(workers := workers_of(process.pid)) < 2 or not list((tmp_path / "out").glob("runs/*/seed-1")):
            assert process.poll() is None
            time.sleep(0.05)
        process.send_signal(how)
        code = process.wait()
        said = process.stderr.read().decode() if process.stderr else ""
    deadline = time.monotonic() + 240
    while any(Path(f"/proc/{worker}").exists() for worker in workers):
        assert time.monotonic() < deadline, "a worker goes on"
        time.sleep(0.05)
    assert code == (130 if how is signal.SIGINT else -how)
    assert "Traceback" not in said


def workers_of(parent: int) -> list[int]:
    """Return the worker processes that a process has started."""
    found = [line for path in Path(f"/proc/{parent}/task").glob("*/children") for line in path.read_text().split()]
    return [int(pid) for pid in found if b"spawn_main" in Path(f"/proc/{pid}/cmdline").read_bytes()]


@pytest.mark.parametrize("short", [0.0, 1e9])
def test_runs_are_put_side_by_side_only_where_they_take_long(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, short: float
) -> None:
    started: list[int] = []
    side_by_side = pool._run_side_by_side

    def counted(work: Any, *more: Any) -> None:
        started.append(len(work.units))
        side_by_side(work, *more)

    monkeypatch.setattr(pool, "SHORT", short)
    monkeypatch.setattr(pool, "cores", lambda: 2)
    monkeypatch.setattr(pool, "_run_side_by_side", counted)
    experiment = experiment_from_toml(small_file(tmp_path), ["evaluation.baselines=[]", "rounds=2", "seeds=1"])
    run_experiment(experiment, tmp_path / "chosen")
    assert started == ([2] if short == 0 else []), "the first is taken over, too, and goes on at its round"
    run_experiment(experiment, tmp_path / "alone", jobs=1)
    assert contents(tmp_path / "chosen") == contents(tmp_path / "alone")
