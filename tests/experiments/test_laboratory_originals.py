"""Experiments on data sets in their authors' files."""

from pathlib import Path

import pytest

from fedping.experiments.laboratory.run import code_identity, run_experiment
from fedping.experiments.laboratory.settings.experiment import experiment_from_toml
from fedping.experiments.run_folder import OtherRun
from fedping.protocol.errors import InvalidSettings
from tests.support.original_files import leaf, picture
from tests.support.tff_files import sentences, sqlite

WRITERS = """
rounds = 2
data = { name = "femnist", folder = "leaf", settings = { users = 3 } }
partition = { partition = "key" }
model = { name = "logistic-regression" }
training = { algorithm = "gradient" }
"""


def written(folder: Path) -> Path:
    users = {
        f"f{writer}": ([picture(10 * writer + at) for at in range(5)], [at % 3 for at in range(5)])
        for writer in range(4)
    }
    leaf(users, folder / "leaf/all_data/all.json")
    file = folder / "writers.toml"
    file.write_text(WRITERS)
    return file


def test_an_experiment_trains_on_the_writers_of_a_folder_beside_it(tmp_path: Path) -> None:
    experiment = experiment_from_toml(written(tmp_path))
    summary = run_experiment(experiment, tmp_path / "out")
    row = summary.variants["federated"]
    assert row.rounds.mean == 2
    assert row.metrics["test"]["accuracy"].mean is not None


def test_results_of_other_files_are_never_mixed(tmp_path: Path) -> None:
    file = written(tmp_path)
    run_experiment(experiment_from_toml(file), tmp_path / "out")
    (tmp_path / "leaf/raw.txt").write_text("not read")
    run_experiment(experiment_from_toml(file), tmp_path / "out")
    leaf({"f0": ([picture(1), picture(2)], [1, 2])}, tmp_path / "leaf/all_data/all.json")
    with pytest.raises(OtherRun, match=r"made with another file .*leaf"):
        run_experiment(experiment_from_toml(file), tmp_path / "out")
    assert any(name.startswith("file ") for name in code_identity(experiment_from_toml(file)))


@pytest.mark.parametrize(
    ("data", "said"),
    [
        ('{ name = "femnist" }', "Set 'folder' in"),
        ('{ name = "digits", folder = "leaf" }', "no data set 'digits' is read from a folder"),
        ('{ file = "a.csv", target = "y", folder = "leaf" }', "'file' and 'folder'"),
        ('{ users = 5, folder = "leaf" }', "not a setting of synthetic users"),
        ('{ name = "femnist", folder = "leaf", settings = { writers = 3 } }', "writers"),
        ('{ name = "femnist", folder = "leaf", target = "y" }', "are of a 'file'"),
    ],
)
def test_what_does_not_go_with_a_folder_is_refused(data: str, said: str, tmp_path: Path) -> None:
    file = written(tmp_path)
    file.write_text(WRITERS.replace('{ name = "femnist", folder = "leaf", settings = { users = 3 } }', data))
    with pytest.raises(InvalidSettings, match=said):
        run_experiment(experiment_from_toml(file), tmp_path / "out")


WORDS = """
rounds = 2
data = { name = "stackoverflow", folder = "so", test = "authors", settings = { words = 3, length = 4 } }
partition = { partition = "key" }
model = { name = "lstm", units = "4", embedding = 2, padding = 0, scored = "last" }
training = { algorithm = "gradient" }
evaluation = { baselines = [] }
"""


def test_a_network_learns_the_next_words_of_users(tmp_path: Path) -> None:
    pytest.importorskip("jax")
    train = {f"{user}": sentences("the css is", "to the css") for user in range(3)}
    test = {"0": sentences("the css"), "7": sentences("to")}
    sqlite(tmp_path / "so/stackoverflow.sqlite", {"train": train, "test": test})
    (tmp_path / "so/stackoverflow.word_count").write_text("the\t9\nto\t7\ncss\t2\n")
    file = tmp_path / "words.toml"
    file.write_text(WORDS)
    summary = run_experiment(experiment_from_toml(file), tmp_path / "out")
    metrics = summary.variants["federated"].metrics
    assert metrics["test"]["loss"].mean < 2.2
    assert metrics["newcomers"]["accuracy"].mean is not None
