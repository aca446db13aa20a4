"""The test examples of a data set's authors, kept by ``test = "authors"``."""

from pathlib import Path

import numpy as np
import pytest

from fedping.client_sim.data import load_original
from fedping.experiments.laboratory.preparing import prepare
from fedping.experiments.laboratory.report import write_report
from fedping.experiments.laboratory.run import run_experiment
from fedping.experiments.laboratory.settings.experiment import Experiment, experiment_from_toml
from fedping.protocol.errors import FedpingError, InvalidSettings
from tests.support.original_files import cifar_10, leaf, picture

BATCHES = [[0, 1, 2], [2, 1], [0, 2], [1, 1], [0, 2], [0, 1, 2, 0]]

CIFAR = """
rounds = 1
data = { name = "cifar-10", folder = "cifar", test = "authors", validation = 0.25 }
partition = { partition = "iid", clients = 3 }
model = { name = "logistic-regression" }
training = { algorithm = "gradient" }
evaluation = { baselines = ["local"] }
"""


def experiment(folder: Path, text: str) -> Experiment:
    file = folder / "authors.toml"
    file.write_text(text)
    return experiment_from_toml(file)


def writers(folder: Path) -> None:
    """Write two writers with examples in both of LEAF's parts, and one with test examples alone."""
    train = {f"f{at}": ([picture(10 * at + one) for one in range(4)], [0, 1, 2, at]) for at in range(2)}
    test = {f"f{at}": ([picture(100 * (at + 1))], [at]) for at in range(3)}
    leaf(train, folder / "leaf/train/a.json")
    leaf(test, folder / "leaf/test/a.json")


WRITERS = """
rounds = 2
data = { name = "femnist", folder = "leaf", test = "authors" }
partition = { partition = "key" }
model = { name = "logistic-regression" }
training = { algorithm = "gradient" }
"""


def test_the_test_batch_of_cifar_is_the_test_set_of_all_clients_together(tmp_path: Path) -> None:
    cifar_10(tmp_path / "cifar", BATCHES, binary=False)
    table = load_original("cifar-10", tmp_path / "cifar", {})
    assert table.for_test is not None
    assert table.for_test.tolist() == [False] * 11 + [True] * 4
    for seed in (1, 2):
        problem = prepare(experiment(tmp_path, CIFAR).variants["federated"], seed, None)
        assert sorted(map(tuple, problem.test.x)) == sorted(map(tuple, table.x[11:]))
        learned = [*map(tuple, problem.train.x), *map(tuple, problem.validation.x)]
        assert sorted(learned) == sorted(map(tuple, table.x[:11]))
        assert problem.validation.sizes.sum() > 0


def test_clients_that_have_test_examples_alone_never_train(tmp_path: Path) -> None:
    writers(tmp_path)
    problem = prepare(experiment(tmp_path, WRITERS).variants["federated"], 1, None)
    assert problem.train.natural_keys.tolist() == ["f0", "f1", "f2"]
    assert problem.train.sizes.tolist() == [4, 4, 0]
    assert problem.test.sizes.tolist() == [1, 1, 1]
    assert problem.test.x[2] == pytest.approx(np.array(picture(300)), abs=1e-7)
    assert problem.newcomers.tolist() == [2]


def test_an_experiment_reports_on_the_authors_split(tmp_path: Path) -> None:
    writers(tmp_path)
    summary = run_experiment(experiment(tmp_path, WRITERS), tmp_path / "out")
    metrics = summary.variants["federated"].metrics
    assert metrics["test"]["accuracy"].mean is not None
    assert metrics["newcomers"]["accuracy"].mean is not None
    said = "1 of 3 clients have test examples alone: they never train, and are measured as newcomers"
    assert any(said in note for note in summary.notes)
    assert not any("take no part" in note for note in summary.notes)
    assert any(
        "classes for 8 training examples, too many to learn; read more examples" in note for note in summary.notes
    )
    page = write_report(tmp_path / "out", tmp_path / "a.html").read_text()
    assert "Dashed: the baselines." in page
    bare = run_experiment(experiment(tmp_path, WRITERS + "evaluation = { baselines = [] }\n"), tmp_path / "bare")
    assert not bare.baselines
    assert "loss over the rounds" in (page := write_report(tmp_path / "bare", tmp_path / "b.html").read_text())
    assert "Dashed" not in page


@pytest.mark.parametrize(
    ("data", "said"),
    [
        ('{ name = "digits", test = "authors" }', "'digits' does not have training and test examples of its authors"),
        ('{ name = "femnist", folder = "all", test = "authors" }', "'femnist' does not have training and test"),
        ('{ name = "femnist", folder = "leaf", test = "authors", folds = 3 }', "'folds', which test on every example"),
        ('{ file = "a.csv", target = "y", test = "authors" }', "a 'file' has no such split"),
        ('{ users = 5, test = "authors" }', "not a setting of synthetic users"),
        ('{ name = "digits", test = "theirs" }', "test"),
    ],
)
def test_what_has_no_split_of_authors_is_refused(data: str, said: str, tmp_path: Path) -> None:
    writers(tmp_path)
    leaf({"f0": ([picture(0), picture(1)], [0, 1])}, tmp_path / "all/all_data/all.json")
    text = WRITERS.replace('{ name = "femnist", folder = "leaf", test = "authors" }', data)
    if "digits" in data:
        text = text.replace('partition = { partition = "key" }', "")
    with pytest.raises((InvalidSettings, FedpingError), match=said):
        run_experiment(experiment(tmp_path, text), tmp_path / "out")
