"""The AUC of whole experiments: exact at every scale of scores, and never mixed with earlier, inexact ones."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from msgspec.structs import replace
from sklearn.metrics import roc_auc_score

from fedping.experiments.laboratory import resuming
from fedping.experiments.laboratory.comparing import chosen, compared
from fedping.experiments.laboratory.one_run import run_unit
from fedping.experiments.laboratory.preparing import prepare
from fedping.experiments.laboratory.report import write_report
from fedping.experiments.laboratory.resuming import CHECKPOINT
from fedping.experiments.laboratory.run import run_experiment
from fedping.experiments.laboratory.settings import Experiment, experiment_of
from fedping.experiments.laboratory.units import units_of
from fedping.laboratory import open_results
from tests.support.laboratory import small

NOTE = "AUC was computed from 1,024 bins"


def unstandardised() -> Experiment:
    """Return the experiment without standardised features, so that log-odds are between 1 and 2,000.

    With 1,024 bins over ±24, the first variant's AUC was 0.636 instead of 0.971, and the last variant seemed the best
    instead of the second.
    """
    variants = [
        {"name": "FedGD", "server.optimizer": {"optimizer": "gradient_descent", "rate": 1e-4}},
        {"name": "FedAvg", "training": {"algorithm": "local", "epochs": 1, "batch": 16, "rate": 1e-3}},
        {"name": "slow", "server.optimizer": {"optimizer": "gradient_descent", "rate": 1e-5}},
    ]
    return experiment_of(
        {
            "rounds": 5,
            "model": {"name": "logistic-regression"},
            "data": {"name": "breast-cancer"},
            "partition": {"partition": "iid", "clients": 10},
            "evaluation": {"metric": "auc", "baselines": []},
            "variants": variants,
        },
        name="raw",
        folder=Path(),
    )


def test_examples_that_are_not_standardised_have_the_right_area_and_the_right_best(tmp_path: Path) -> None:
    experiment = unstandardised()
    summary = run_experiment(experiment, tmp_path / "out", jobs=1)
    right: dict[str, float] = {}
    for unit in units_of(experiment):
        outcome = unit.folder(tmp_path / "out").finished()
        assert outcome is not None
        test = prepare(unit.setup, unit.seed, unit.fold).test.batch(np.arange(10))
        weights = np.load(unit.folder(tmp_path / "out").path / "best.npy")
        there = test.weight > 0
        right[unit.name] = roc_auc_score(test.y[there], (test.x @ weights[:-1] + weights[-1])[there])
        assert outcome.final["test"]["auc"] == pytest.approx(right[unit.name], abs=1e-12)
    assert right == pytest.approx({"FedGD": 0.9714, "FedAvg": 0.9778, "slow": 0.9721}, abs=1e-4)
    assert summary.best == "FedAvg"


def as_before(folder: Path) -> None:
    """Change a finished run into one of an earlier fedping."""
    run = json.loads((folder / "run.json").read_text())
    assert run.pop("auc") == "exact"
    (folder / "run.json").write_text(json.dumps(run))


def experiment(seeds: int = 2, **changes: Any) -> Experiment:
    made = small(evaluation__baselines=[], **changes)
    return replace(made, seeds=tuple(range(1, seeds + 1)))


def test_a_finished_run_of_an_earlier_fedping_says_so_and_is_run_again_beside_a_new_one(tmp_path: Path) -> None:
    out, made = tmp_path / "out", experiment()
    new = run_experiment(made, out, jobs=1)
    assert not any(NOTE in note for note in new.notes)
    first, second = (unit.folder(out).path for unit in units_of(made))
    as_before(first)
    as_before(second)
    stored = open_results(out).summary
    assert stored.variants == new.variants
    assert sum(NOTE in note for note in stored.notes) == 1
    assert NOTE in write_report(out, tmp_path / "report.html").read_text()
    old = run_experiment(made, out, jobs=1)
    assert any(NOTE in note for note in old.notes)
    assert open_results(out).summary == old
    assert old.variants == new.variants
    (second / "run.json").unlink()
    assert run_experiment(made, out, jobs=1) == new, "the other one is run again, too"
    for folder in (first, second):
        as_before(folder)
    assert run_experiment(made, out, jobs=1, replace=True) == new
    assert json.loads((first / "run.json").read_text())["auc"] == "exact"


def test_runs_without_an_area_are_as_before(tmp_path: Path) -> None:
    out = tmp_path / "out"
    made = small(model={"name": "linear-regression"}, evaluation={"task": "regression", "baselines": []})
    run_experiment(made, out, jobs=1)
    [unit] = units_of(made)
    assert "auc" not in json.loads((unit.folder(out).path / "run.json").read_text())


def test_two_kinds_of_areas_are_not_compared(tmp_path: Path) -> None:
    for name in ("a", "b"):
        run_experiment(experiment(), tmp_path / name, jobs=1)
    both = chosen(str(tmp_path / "a")), chosen(str(tmp_path / "b"))
    assert "auc" in {each.metric for each in compared(*both).differences}
    assert not compared(*both).notes
    for unit in units_of(experiment()):
        as_before(unit.folder(tmp_path / "a").path)
    mixed = compared(chosen(str(tmp_path / "a")), both[1])
    metrics = {each.metric for each in mixed.differences}
    assert "accuracy" in metrics
    assert "auc" not in metrics
    [note] = mixed.notes or ()
    assert note.startswith("a: ")
    assert NOTE in note


def test_a_run_that_was_killed_with_bins_begins_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Killed(BaseException):
        pass

    def kill(done: int, rows: object) -> None:
        if done == 2:
            raise Killed

    monkeypatch.setattr(resuming, "MOST_OF_THE_TIME", np.inf)
    [unit] = units_of(experiment(seeds=1, rounds=4))
    whole = run_unit(unit, tmp_path / "whole")
    with pytest.raises(Killed):
        run_unit(unit, tmp_path / "killed", kill)
    checkpoint = unit.folder(tmp_path / "killed").path / CHECKPOINT
    with np.load(checkpoint) as file:
        saved = {name: file[name] for name in file.files if name != "log/exact_auc"}
    assert len(saved) < len(np.load(checkpoint).files)
    np.savez(checkpoint, **saved)
    told: list[int] = []
    after = run_unit(unit, tmp_path / "killed", lambda done, _: told.append(done))
    assert told[0] == 0
    assert after.final == whole.final
    assert any("AUC from bins" in note for note in after.notes)
