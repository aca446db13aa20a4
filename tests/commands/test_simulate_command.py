"""`fedping simulate` as typed by a user."""

import json
from pathlib import Path

import pytest

from fedping.main import main
from tests.support.small_experiment import experiment_file


def test_it_prints_what_came_of_each_phase(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = experiment_file(tmp_path)
    assert main(["simulate", str(file), "--out", str(tmp_path / "out"), "--iterations", "2"]) == 0
    said = capsys.readouterr().out
    for word in ("optimization", "evaluation", "treatment", "control", "2 rounds, version 2 evaluated", "summary.json"):
        assert word in said


def test_its_json_is_the_summary_file_and_options_change_the_experiment(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    options = ["--clients", "300", "--seed", "8", "--evaluation-ticks", "0", "--iterations", "1", "--json"]
    assert main(["simulate", str(experiment_file(tmp_path)), "--out", str(tmp_path / "out"), *options]) == 0
    said = json.loads(capsys.readouterr().out)
    assert said == json.loads((tmp_path / "out/summary.json").read_text())
    assert (said["clients"], said["seed"], said["evaluation"]) == (300, 8, None)


def test_a_missing_file_is_one_sentence(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["simulate", str(tmp_path / "none.toml")]) == 2
    assert "cannot read the experiment file" in capsys.readouterr().err


def test_a_file_of_nothing_to_simulate_is_told_what_it_lacks(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["simulate", str(Path(__file__).parents[2] / "experiments/demo.toml")]) == 2
    assert "add [model] or [line]" in capsys.readouterr().err


def test_the_experiment_of_2018_has_its_original_size() -> None:
    from fedping.experiments.simulate import experiment_from_toml

    experiment, study = experiment_from_toml(Path(__file__).parents[2] / "experiments/firefox_study.toml")
    assert experiment.clients == 723_581
    assert experiment.optimization.iterations == 137
    assert experiment.evaluation is not None
    assert experiment.evaluation.ticks * experiment.tick_minutes == 10 * 24 * 60
    assert [(arm.name, arm.share) for arm in study.arms] == [
        ("treatment", 0.6),
        ("control", 0.2),
        ("control-no-decay", 0.2),
    ]
