"""Experiments whose features are binned and selected by sums over the clients."""

import re
from pathlib import Path

import numpy as np
import pytest

from fedping.client_sim.data import Discretise, ExampleData, Select
from fedping.experiments.laboratory.preparing import Problem, check_model, prepare
from fedping.experiments.laboratory.run import run_experiment
from fedping.experiments.laboratory.settings.experiment import Experiment, experiment_from_toml
from fedping.protocol.errors import InvalidSettings

EXPERIMENT = """
rounds = 3
model = {{ name = "logistic-regression" }}
training = {{ algorithm = "gradient" }}
partition = {{ partition = "iid", clients = 5 }}
evaluation = {{ baselines = [] }}
[data]
name = "{name}"
{data}
"""


def experiment(folder: Path, data: str, name: str = "breast-cancer") -> Experiment:
    file = folder / "e.toml"
    file.write_text(EXPERIMENT.format(name=name, data=data))
    return experiment_from_toml(file)


def problem(folder: Path, data: str) -> Problem:
    return prepare(experiment(folder, data).variants["federated"], 1, None)


def train_of(of: Problem) -> ExampleData:
    assert isinstance(of.train, ExampleData)
    return of.train


def test_the_file_has_bins_and_a_selection(tmp_path: Path) -> None:
    data = experiment(tmp_path, 'discretise = { bins = 4, by = "width" }\nselect = { features = 3 }').variants
    assert data["federated"].data.discretise == Discretise(bins=4, by="width")
    assert data["federated"].data.select == Select(features=3)


def test_bins_are_found_on_training_examples_and_told_to_all(tmp_path: Path) -> None:
    of = problem(tmp_path, "discretise = { bins = 4 }")
    assert np.unique(train_of(of).x).tolist() == [0, 1, 2, 3]
    shares = np.bincount(train_of(of).x[:, 0].astype(int)) / len(train_of(of).y)
    assert shares == pytest.approx(np.full(4, 0.25), abs=0.01)


def test_the_model_has_the_selected_features_and_the_notes_name_them(tmp_path: Path) -> None:
    of = problem(tmp_path, 'select = { features = 6, by = "chi2" }\nstandardise = true')
    assert train_of(of).x.shape[1] == of.spec.settings["features"] == 6
    assert of.notes[0].startswith("kept 6 of 30 features by their χ² over the clients: ")
    assert of.notes[0].endswith(") and 1 more")
    assert re.search(r": mean [a-z ]+ \([\d.]+\), |: worst [a-z ]+ \([\d.]+\), ", of.notes[0])
    assert train_of(of).x.mean(axis=0) == pytest.approx(np.zeros(6), abs=1e-9)


def test_bins_become_features_of_which_the_best_are_selected(tmp_path: Path) -> None:
    both = 'discretise = { bins = 5, encode = "one_hot" }\nselect = { features = 8 }'
    of = problem(tmp_path, both)
    assert set(np.unique(train_of(of).x)) == {0.0, 1.0}
    assert all("<" in name for name in train_of(of).features)
    check_model(experiment(tmp_path, both).variants["federated"], 1)
    summary = run_experiment(experiment(tmp_path, both), tmp_path / "out")
    accuracy = summary.variants["federated"].metrics["test"]["accuracy"].mean
    assert accuracy is not None
    assert accuracy > 0.8


def test_too_many_features_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidSettings, match="features = 31, and there are 30"):
        problem(tmp_path, "select = { features = 31 }")


@pytest.mark.parametrize("wrong", ["discretise = { bins = 1 }", 'select = { features = 3, by = "p" }'])
def test_wrong_settings_are_named(wrong: str, tmp_path: Path) -> None:
    with pytest.raises(InvalidSettings, match=r"bins|by"):
        experiment(tmp_path, wrong)
