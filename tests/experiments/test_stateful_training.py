"""SCAFFOLD, FedDyn and APFL in runs: by name, everywhere, resumed to the same bits, and rejected where impossible."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest

from fedping.client_sim.learning import MemoryStates, algorithm_for, bare
from fedping.client_sim.learning.checking import check_clients
from fedping.experiments.laboratory import resuming
from fedping.experiments.laboratory.one_run import run_unit
from fedping.experiments.laboratory.run import run_experiment
from fedping.experiments.laboratory.settings import Experiment
from fedping.experiments.laboratory.units import Unit
from fedping.protocol.errors import InvalidSettings
from tests.experiments.test_laboratory_run import contents
from tests.support.laboratory import small

TRAININGS: dict[str, dict[str, Any]] = {
    "scaffold": {"algorithm": "scaffold", "rate": 0.1, "epochs": 1, "batch": 8},
    "feddyn": {"algorithm": "feddyn", "rate": 0.1, "steps": 5, "alpha": 0.2},
    "apfl": {"algorithm": "apfl", "rate": 0.1, "epochs": 1, "batch": 8},
}
ALL = pytest.mark.parametrize("name", TRAININGS)


def experiment(name: str, **changes: Any) -> Experiment:
    return small(training=TRAININGS[name], **{"rounds": 4, "evaluation__baselines": [], **changes})


def last(out: Path) -> Any:
    """Return the final weights of an experiment's only run."""
    [found] = out.glob("**/seed-1/last.npy")
    return np.load(found)


@ALL
def test_it_comes_to_the_same_in_memory_in_files_and_over_http(name: str, tmp_path: Path) -> None:
    for where in ("memory", "files", "http"):
        run_experiment(experiment(name, where=where), tmp_path / where, jobs=1)
    np.testing.assert_array_equal(last(tmp_path / "files"), last(tmp_path / "memory"))
    np.testing.assert_allclose(last(tmp_path / "http"), last(tmp_path / "memory"), rtol=1e-12)
    assert len(last(tmp_path / "memory")) == (31 if name == "apfl" else 62)


@pytest.mark.spark
@pytest.mark.usefixtures("warm_commands")
def test_it_comes_to_the_same_on_spark(tmp_path: Path) -> None:
    run_experiment(experiment("scaffold", rounds=2), tmp_path / "memory", jobs=1)
    run_experiment(experiment("scaffold", rounds=2, where="files", engine="spark"), tmp_path / "spark", jobs=1)
    np.testing.assert_array_equal(last(tmp_path / "spark"), last(tmp_path / "memory"))


class Killed(BaseException):
    pass


@ALL
def test_a_run_that_was_killed_comes_to_the_same_bits_whatever_the_threads(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(resuming, "MOST_OF_THE_TIME", np.inf)
    uniform = {"sampling": "uniform", "clients": 3}
    sampled = experiment(name, rounds=12, sampling=uniform, server__weighting="client", evaluation__every=4)
    [setup] = sampled.variants.values()
    unit = Unit("only", None, setup, 1, None)

    def killed_after(rounds: int) -> None:
        def on_round(done: int, rows: object) -> None:
            if done == rounds:
                raise Killed

        with pytest.raises(Killed):
            run_unit(unit, tmp_path / "killed", on_round)

    run_unit(unit, tmp_path / "whole")
    killed_after(3)
    killed_after(8)
    run_unit(unit, tmp_path / "killed", threads=2)
    assert contents(tmp_path / "killed") == contents(tmp_path / "whole")


def test_the_published_control_variate_is_the_mean_of_the_clients_own(tmp_path: Path) -> None:
    """Equal up to rounding in a ping, whose numbers have seven digits."""
    from fedping.experiments.laboratory.cohort import Cohorts
    from fedping.experiments.laboratory.preparing import prepare
    from fedping.experiments.laboratory.rounds import open_rounds

    [setup] = experiment("scaffold", server__weighting="client").variants.values()
    problem = prepare(setup, 1, None)
    states = MemoryStates(algorithm_for(setup.training).init_state(bare(problem.model)))
    cohorts = Cohorts(setup, problem, states=states)
    with open_rounds(setup, problem, tmp_path) as rounds:
        for round_ in range(4):
            rounds.run(cohorts.sent(round_, [rounds.weights]))
            control = states.load(np.arange(len(problem.train)))["control"]
            assert np.abs(control).max() > 0.1
            np.testing.assert_allclose(control.mean(axis=0), rounds.weights[31:], atol=1e-7)


def test_a_model_of_ones_own_is_measured_beside_the_common_one(tmp_path: Path) -> None:
    """Clients with two of ten digits each do better with their own part; before training there is no difference."""
    few = {"partition": "labels", "labels": 2, "clients": 10}
    data = {"name": "digits", "validation": 0.1}
    run_experiment(experiment("apfl", data=data, partition=few, rounds=10), tmp_path / "out", jobs=1)
    rows = pq.read_table(tmp_path / "out" / "metrics.parquet").to_pylist()
    gain = {row["round"]: row["value"] for row in rows if (row["split"], row["metric"]) == ("gain", "accuracy")}
    assert gain[0] == 0
    assert gain[10] > 0.02


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        (
            {"server": {"optimizer": {"optimizer": "adam"}}},
            'another optimizer. Set optimizer = { optimizer = "gradient_',
        ),
        ({"server__optimizer": {"optimizer": "gradient_descent", "rate": 0.5}}, "the server has another optimizer"),
        ({"server__aggregate": {"by": "median"}}, "the server has another 'aggregate'"),
        ({"server__clip": {"by": "norm", "norm": 1.0}}, "the server clips updates"),
        ({"server__staleness": {"most": 2}}, "with 'staleness' the server adds late updates too"),
        ({"upload": [{"link": "sign"}]}, "'upload' sends signs alone"),
        (
            {"sampling": {"sampling": "bernoulli", "share": 0.5}},
            "a client counts for more in one round than in another",
        ),
        (
            {"sampling": {"sampling": "uniform", "clients": 2}, "server__weighting": "examples"},
            'set sampling = "uniform" or "all" in .sampling., and weighting = "client" in .server.',
        ),
        ({"lateness": {"shares": [0.7, 0.3]}}, r"adds up the means of all rounds.*\[lateness\]"),
        ({"co_op": {}}, r"\[co_op\] mixes the clients' models one by one, and this training needs a server that adds"),
    ],
)
def test_a_server_that_does_not_add_the_mean_is_refused_when_the_file_is_read(
    changes: dict[str, Any], sentence: str
) -> None:
    for name in ("scaffold", "feddyn"):
        with pytest.raises(InvalidSettings, match=sentence):
            experiment(name, **changes)
    if "co_op" not in changes:
        experiment("apfl", **changes)


@pytest.mark.parametrize(
    ("training", "sentence"),
    [
        ({"algorithm": "scaffold", "rate": 0.1}, "needs either 'steps' or 'epochs'; give one of them"),
        ({"algorithm": "scaffold", "rate": 0.1, "steps": 2, "option": "III"}, "'option' in .training. is 'III'"),
        ({"algorithm": "feddyn", "rate": 0.1, "steps": 2, "alpha": 0}, "'alpha' in .training. is 0: expected"),
        ({"algorithm": "apfl", "rate": 0.1, "steps": 2, "share": 2}, "'share' in .training. is 2: expected"),
        ({"algorithm": "scaffold", "rate": 0.1, "steps": 2, "participation": 0}, "'participation' in .training. is 0"),
    ],
)
def test_a_setting_that_is_none_is_refused(training: dict[str, Any], sentence: str) -> None:
    with pytest.raises(InvalidSettings, match=sentence):
        small(training=training)


def test_users_of_a_simulated_study_keep_none() -> None:
    from fedping.client_sim.learning import model_spec
    from fedping.experiments.laboratory.rounds import study_of
    from fedping.protocol.study import public_study

    [setup] = experiment("scaffold").variants.values()
    spec = model_spec("logistic-regression", {"features": 30}, training=setup.training)
    study = public_study(study_of(setup.line(spec)))
    check_clients(study)
    with pytest.raises(InvalidSettings, match=r"'scaffold' keeps state"):
        check_clients(study, keeps_state=False)


def test_what_is_written_down_does_not_change_with_the_rest_of_fedping() -> None:
    """A run continues with a later fedping, unless the algorithm itself has changed."""
    from fedping.protocol.canonical_source import canonical_source
    from fedping.protocol.extensions import extension_of
    from fedping.protocol.source_digest import _sources

    [setup] = experiment("scaffold").variants.values()
    extension = extension_of(setup.training)  # type: ignore[arg-type]
    assert algorithm_for(setup.training)
    named = {name for name, _ in _sources(extension.make, "scaffold", canonical_source, set())}
    assert {name.partition(":")[0].partition(".")[0] for name in named} == {"Scaffold", "LocalTraining", "_precision"}
