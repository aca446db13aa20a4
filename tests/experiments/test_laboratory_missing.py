"""Experiments on data with missing values, and their report in the results."""

from pathlib import Path

import numpy as np
import pytest

from fedping.client_sim.data import ExampleData
from fedping.experiments.laboratory.preparing import Problem, check_model, prepare
from fedping.experiments.laboratory.run import run_experiment
from fedping.experiments.laboratory.settings.experiment import Experiment, experiment_from_toml
from fedping.protocol.errors import FedpingError, InvalidSettings

EXPERIMENT = """
rounds = 2
model = { name = "logistic-regression" }
training = { algorithm = "gradient" }
partition = { partition = "iid", clients = 4 }
evaluation = { baselines = [] }
"""
FILE = '\n[data]\nfile = "rows.csv"\ntarget = "y"\n'


def rows(file: Path, count: int = 80) -> None:
    random = np.random.default_rng(1)
    lines = ["a,b,c,y"]
    for number in range(count):
        a, b, c = random.normal(size=3)
        lines.append(f"{a:.4f},{'' if number % 4 == 0 else f'{b:.4f}'},{c:.4f},{'yes' if a + b > 0 else 'no'}")
    file.write_text("\n".join(lines) + "\n")


def experiment(folder: Path, data: str) -> Experiment:
    rows(folder / "rows.csv")
    (folder / "e.toml").write_text(EXPERIMENT + FILE + data)
    return experiment_from_toml(folder / "e.toml")


def problem(folder: Path, data: str, seed: int = 1) -> Problem:
    return prepare(experiment(folder, data).variants["federated"], seed, None)


def parts_of(of: Problem) -> tuple[ExampleData, ExampleData]:
    """Return the training and the test examples."""
    assert isinstance(of.train, ExampleData)
    assert isinstance(of.test, ExampleData)
    return of.train, of.test


def test_gaps_without_a_rule_are_refused_before_anything_runs(tmp_path: Path) -> None:
    with pytest.raises(InvalidSettings, match=r'20 of 80 rows miss values, first row 1 \(b 20\). Set missing = "drop"'):
        run_experiment(experiment(tmp_path, ""), tmp_path / "out")


def test_the_mean_is_of_the_training_examples_alone(tmp_path: Path) -> None:
    of = problem(tmp_path, 'missing = "mean"')
    raw = problem(tmp_path, 'missing = "indicator"')
    (train, test), (marked, marked_test) = parts_of(of), parts_of(raw)
    assert train.features == ("a", "b", "c")
    assert marked.features == ("a", "b", "c", "b is missing")
    mean = marked.x[marked.x[:, 3] == 0, 1].mean()
    for part in (marked, marked_test):
        assert part.x[part.x[:, 3] == 1, 1] == pytest.approx(mean)
    np.testing.assert_array_equal(test.x, marked_test.x[:, :3])
    assert of.notes == ("filled 20 of 240 values by means over the clients (b 20)",)
    assert raw.notes == ("filled 20 of 240 values by means over the clients (b 20), and added b is missing",)


def test_a_column_of_texts_counts_once_among_filled_values(tmp_path: Path) -> None:
    lines = [f"{at},{'' if at % 5 == 0 else 'rgb'[at % 3]},{'yes' if at % 2 else 'no'}" for at in range(20)]
    (tmp_path / "rows.csv").write_text("a,colour,y\n" + "\n".join(lines) + "\n")
    (tmp_path / "e.toml").write_text(EXPERIMENT + FILE + 'missing = "mean"')
    of = prepare(experiment_from_toml(tmp_path / "e.toml").variants["federated"], 1, None)
    assert parts_of(of)[0].features == ("a", "colour=b", "colour=g", "colour=r")
    assert "filled 4 of 40 values by means over the clients (colour 4)" in of.notes


def test_dropped_rows_are_in_no_part(tmp_path: Path) -> None:
    of = problem(tmp_path, 'missing = "drop"')
    assert sum(int(part.sizes.sum()) for part in (of.train, of.validation, of.test)) == 60
    assert of.notes == ("dropped 20 of 80 examples with missing values (b 20)",)


def test_an_indicator_survives_clipping(tmp_path: Path) -> None:
    of = problem(tmp_path, 'missing = "indicator"\nclip = 0.5\nstandardise = true')
    assert len(np.unique(parts_of(of)[0].x[:, 3])) == 2


@pytest.mark.parametrize("rule", ["drop", "mean", "indicator"])
def test_results_say_what_was_dropped_or_filled(rule: str, tmp_path: Path) -> None:
    summary = run_experiment(experiment(tmp_path, f'missing = "{rule}"'), tmp_path / "out")
    assert any("(b 20)" in note for note in summary.notes)
    assert summary.variants["federated"].metrics["test"]["accuracy"].mean is not None


def test_a_rule_without_gaps_is_said_to_change_nothing(tmp_path: Path) -> None:
    for rule in ("drop", "indicator"):
        of = problem(tmp_path, f'features = ["a", "c"]\nmissing = "{rule}"')
        assert parts_of(of)[0].features == ("a", "c")
        assert of.notes == (f'missing = "{rule}" in [data] changes nothing, because no value is missing',)


def test_a_module_goes_with_the_rule(tmp_path: Path) -> None:
    module = '[[data.modules]]\nfeatures = ["b", "c"]\nmissing = 0.5\nof = "clients"\n'
    with pytest.raises(InvalidSettings, match="no rule for them"):
        experiment(tmp_path, module)
    of = problem(tmp_path, f'missing = "indicator"\n{module}')
    assert parts_of(of)[0].features[3:] == ("b is missing", "c is missing")
    lacks = parts_of(of)[0].x[:, 4].reshape(4, -1)
    assert sorted(lacks.mean(axis=1)) == [0, 0, 1, 1]
    assert of.notes[0] == "2 of 4 clients lack the module b, c, drawn by the seed"


def test_separate_models_for_records_with_and_without_a_module(tmp_path: Path) -> None:
    module = '[[data.modules]]\nfeatures = ["b"]\nonly = "{}"\n'
    has, lacks = (problem(tmp_path, module.format(only)) for only in ("with", "without"))
    assert parts_of(has)[0].features == ("a", "b", "c")
    assert parts_of(lacks)[0].features == ("a", "c")
    assert has.spec.settings["features"] == 3
    assert lacks.spec.settings["features"] == 2
    sizes = [sum(int(part.sizes.sum()) for part in (of.train, of.test)) for of in (has, lacks)]
    assert sizes == [60, 20]
    check_model(experiment(tmp_path, module.format("without")).variants["federated"], 1)


def test_a_module_does_not_answer_for_the_gaps_of_others(tmp_path: Path) -> None:
    with pytest.raises(FedpingError, match="rows miss values"):
        problem(tmp_path, '[[data.modules]]\nfeatures = ["a"]\nonly = "with"\n')


def test_the_original_wisconsin_table_is_a_data_set_with_a_rule(tmp_path: Path) -> None:
    random = np.random.default_rng(2)
    lines = [f"{number},{','.join(map(str, random.integers(1, 11, 9)))},{2 + 2 * (number % 2)}" for number in range(40)]
    lines[3] = "3,1,1,1,1,2,?,3,1,1,4"
    (tmp_path / "uci").mkdir()
    (tmp_path / "uci/breast-cancer-wisconsin.data").write_text("\n".join(lines))
    file = tmp_path / "e.toml"
    data = '[data]\nname = "breast-cancer-original"\nfolder = "uci"\n'
    file.write_text(EXPERIMENT + data)
    with pytest.raises(InvalidSettings, match=r"1 of 40 rows miss values, first row 4 \(bare_nuclei 1\)"):
        run_experiment(experiment_from_toml(file), tmp_path / "out")
    file.write_text(EXPERIMENT + data + 'missing = "drop"\n')
    summary = run_experiment(experiment_from_toml(file), tmp_path / "out")
    assert any("dropped 1 of 40 examples" in note for note in summary.notes)


CHOICES = "list,pos,y\n" + "".join(f"{n // 2},{'' if n == 3 else n % 5},{n % 2}\n" for n in range(40))


@pytest.mark.parametrize("rule", ["drop", "mean"])
def test_candidates_may_be_filled_and_not_dropped(rule: str, tmp_path: Path) -> None:
    (tmp_path / "rows.csv").write_text(CHOICES)
    text = EXPERIMENT.replace("logistic-regression", "svm-ranking") + FILE + f'choice = "list"\nmissing = "{rule}"\n'
    (tmp_path / "e.toml").write_text(text)
    setup = experiment_from_toml(tmp_path / "e.toml").variants["federated"]
    if rule == "drop":
        with pytest.raises(InvalidSettings, match="these rows are candidates of choices"):
            prepare(setup, 1, None)
    else:
        assert prepare(setup, 1, None).notes[0].startswith("filled 1 of 40 values")
