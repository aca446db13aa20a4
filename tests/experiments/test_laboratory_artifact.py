"""A reviewer's folder: its contents, runs on another machine, and rejections."""

import hashlib
import json
import os
import shutil
import tomllib
from pathlib import Path

import numpy as np
import pytest

from fedping.experiments.laboratory.artifact import (
    Expected,
    ExpectedRun,
    Reproduction,
    _compared,
    reproduce,
    write_artifact,
)
from fedping.experiments.laboratory.run import run_experiment
from fedping.experiments.laboratory.settings.experiment import experiment_from_toml
from fedping.main import main
from fedping.protocol.errors import FedpingError
from tests.support.laboratory import small_file
from tests.support.original_files import leaf, picture

OF_FILE = """
rounds = 2
seeds = [3, 5]
model = { name = "linear-regression" }
data = { file = "rows.csv", target = "y", client = "who" }
partition = { partition = "key" }
training = { algorithm = "gradient" }
[[variants]]
name = "one, %"
[[variants]]
name = "line"
server = { weighting = "client", aggregate = { by = "median" }, optimizer = { optimizer = "adam", rate = 0.1 } }
"""


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Return the results of an experiment on a file, and the folder for reviewers."""
    folder = tmp_path_factory.mktemp("artifact")
    rng = np.random.default_rng(1)
    rows = "".join(f"{at % 4},{a:.3f},{2 * a:.3f}\n" for at, a in enumerate(rng.normal(size=80)))
    (folder / "rows.csv").write_text("who,x,y\n" + rows)
    (folder / "file.toml").write_text(OF_FILE)
    run_experiment(experiment_from_toml(folder / "file.toml"), folder / "out")
    assert write_artifact(folder / "out", folder / "artifact") == []
    return folder / "out", folder / "artifact"


@pytest.fixture
def copied(made: tuple[Path, Path], tmp_path: Path) -> Path:
    """Return a copy of the folder, as on another machine."""
    return Path(shutil.copytree(made[1], tmp_path / "elsewhere"))


def test_it_runs_elsewhere_to_the_same_bits(copied: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["reproduce", str(copied), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["runs"] == 10  # two variants and three baselines, two seeds
    assert found["figures"] == found["same"] > 0
    assert (found["apart"], found["largest"], found["same_environment"]) == ([], 0, True)
    assert found["found"] == 0
    assert main(["reproduce", str(copied)]) == 0
    said = capsys.readouterr().out
    assert f"{found['same']:,} to the bit" in said
    assert f"10 of 10 runs were in {copied / 'rerun'} before" in said


@pytest.mark.parametrize("name", ["rerun", "rerun/runs"])
def test_results_are_never_written_through_a_link(name: str, copied: Path, tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    (copied / name).parent.mkdir(exist_ok=True)
    (copied / name).symlink_to(tmp_path / "mine")
    with pytest.raises(FedpingError, match="is a link, and results would be written elsewhere"):
        reproduce(copied)
    assert list((tmp_path / "mine").iterdir()) == []


def test_data_outside_the_folder_and_pipes_are_refused(copied: Path, tmp_path: Path) -> None:
    data = next((copied / "data").iterdir())
    shutil.copy(data, tmp_path / "outside.csv")
    experiment, expected = copied / "experiment.toml", json.loads((copied / "expected.json").read_text())
    as_it_was = experiment.read_bytes()
    outside = "data/../../outside.csv"
    experiment.write_bytes(as_it_was.replace(f"data/{data.name}".encode(), outside.encode()))
    expected["files"][outside] = expected["files"][f"data/{data.name}"]
    expected["files"]["experiment.toml"] = hashlib.sha256(experiment.read_bytes()).hexdigest()
    (copied / "expected.json").write_text(json.dumps(expected))
    with pytest.raises(FedpingError, match="names data outside its folder"):
        reproduce(copied)
    experiment.write_bytes(as_it_was)
    expected["files"]["experiment.toml"] = hashlib.sha256(as_it_was).hexdigest()
    (copied / "expected.json").write_text(json.dumps(expected))
    data.unlink()
    os.mkfifo(data)
    with pytest.raises(FedpingError, match="is missing or has changed"):
        reproduce(copied)


def test_it_says_everything_a_reader_needs(made: tuple[Path, Path]) -> None:
    folder = made[1]
    readme = (folder / "README.md").read_text()
    assert "fedping reproduce ." in readme
    assert "seeds 3, 5" in readme
    tables = tomllib.loads((folder / "experiment.toml").read_text())
    assert tables["seeds"] == [3, 5]
    assert [each["name"] for each in tables["variants"]] == ["one, %", "line"]
    [data] = (folder / "data").iterdir()
    assert {each["data"]["file"] for each in tables["variants"]} == {f"data/{data.name}"}
    assert any(line.startswith("numpy==") for line in (folder / "requirements.txt").read_text().splitlines())


@pytest.mark.parametrize("name", ["experiment.toml", "requirements.txt", "data"])
def test_a_changed_file_is_refused_before_anything_runs(name: str, copied: Path) -> None:
    file = next((copied / "data").iterdir()) if name == "data" else copied / name
    file.write_bytes(file.read_bytes() + b"\n")
    with pytest.raises(FedpingError, match="is missing or has changed"):
        reproduce(copied)
    file.unlink()
    with pytest.raises(FedpingError, match="is missing or has changed"):
        reproduce(copied)
    assert not (copied / "rerun").exists()


def test_other_figures_are_shown_with_exit_code_1(copied: Path, capsys: pytest.CaptureFixture[str]) -> None:
    expected = json.loads((copied / "expected.json").read_text())
    run = next(each for each in expected["runs"] if each["name"] == "line" and each["seed"] == 5)
    run["final"]["test"]["mse"] *= 1.001
    (copied / "expected.json").write_text(json.dumps(expected))
    assert main(["reproduce", str(copied)]) == 1
    said = capsys.readouterr().out
    assert "line, seed 5: test mse: expected" in said
    assert said.count("expected") == 1


def test_figures_are_compared_within_their_size() -> None:
    def run(value: float | None) -> ExpectedRun:
        return ExpectedRun(name="a", seed=1, fold=0, final={"test": {"loss": value}})

    def found(one: float | None, other: float | None) -> Reproduction:
        expected = Expected(version="", files={}, code={}, environments=(), runs=(run(one),))
        return _compared(expected, {("a", 1, 0): run(other)})

    assert found(1e6, 1e6 + 0.5).apart == ()
    assert found(1e6, 1e6 + 0.5).same == 0
    assert found(1e6, 1e6 + 2).apart == (("a, seed 1, fold 0: test loss", 1e6, 1e6 + 2),)
    assert found(None, None).apart == ()
    assert len(found(None, 1.0).apart) == len(found(1.0, None).apart) == 1


def test_the_authors_own_files_are_named_and_not_copied(tmp_path: Path) -> None:
    users = {f"f{writer}": ([picture(writer), picture(9 + writer)], [0, 1]) for writer in range(2)}
    leaf(users, tmp_path / "leaf/all.json")
    file = tmp_path / "writers.toml"
    file.write_text(
        'rounds = 1\ndata = { name = "femnist", folder = "leaf", test = 0.5 }\npartition = { partition = "key" }\n'
        'model = { name = "logistic-regression" }\nevaluation = { baselines = [] }\n'
    )
    run_experiment(experiment_from_toml(file), tmp_path / "out")
    [place] = write_artifact(tmp_path / "out", tmp_path / "artifact")
    assert place in (tmp_path / "artifact/README.md").read_text()
    with pytest.raises(FedpingError, match="is missing or has changed"):
        reproduce(tmp_path / "artifact")
    shutil.copytree(tmp_path / "leaf", tmp_path / "artifact" / place)
    assert reproduce(tmp_path / "artifact").apart == ()


def test_data_that_have_changed_since_and_folders_of_others_are_refused(tmp_path: Path) -> None:
    with pytest.raises(FedpingError, match="has no finished experiment"):
        write_artifact(tmp_path, tmp_path / "artifact")
    with pytest.raises(FedpingError, match=r"has no expected.json"):
        reproduce(tmp_path)
    (tmp_path / "rows.csv").write_text("who,x,y\n" + "".join(f"{at % 2},{at},{at}\n" for at in range(20)))
    (tmp_path / "file.toml").write_text(OF_FILE.partition("[[variants]]")[0])
    run_experiment(experiment_from_toml(tmp_path / "file.toml", ["seeds=1", "rounds=1"]), tmp_path / "out")
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine/letter.txt").write_text("mine")
    with pytest.raises(FedpingError, match="has something else in it"):
        write_artifact(tmp_path / "out", tmp_path / "mine")
    (tmp_path / "rows.csv").write_text("who,x,y\n0,1,1\n1,1,1\n")
    with pytest.raises(FedpingError, match="are missing or have changed since the runs"):
        write_artifact(tmp_path / "out", tmp_path / "artifact")


def test_the_small_experiment_is_written_whole(tmp_path: Path) -> None:
    experiment = experiment_from_toml(small_file(tmp_path), ["seeds=1", "rounds=1", "evaluation.baselines=[]"])
    run_experiment(experiment, tmp_path / "out")
    assert main(["export", str(tmp_path / "out"), "--artifact", str(tmp_path / "artifact")]) == 0
    again = experiment_from_toml(tmp_path / "artifact/experiment.toml")
    assert again.digest == experiment.digest
