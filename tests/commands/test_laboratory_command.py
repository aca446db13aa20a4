"""`fedping simulate`, `sweep` and `compare` with laboratory experiments, as typed by a user."""

import json
import sys
from pathlib import Path

import numpy as np
import pytest

from fedping.main import main
from tests.support.laboratory import small_file
from tests.support.small_experiment import experiment_file

FEW = ["--set", "rounds=2", "--jobs", "1"]


def test_it_prints_variants_baselines_and_where_everything_lies(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["simulate", str(small_file(tmp_path)), "--out", str(tmp_path / "out"), *FEW]) == 0
    said = capsys.readouterr().out
    for word in ("gradient", "local, three", "centralised", "start", "★", "2 seeds", "report.html", "biased"):
        assert word in said
    page = (tmp_path / "out/report.html").read_text()
    for word in ("<svg", "local, three", "centralised", "accuracy over the rounds", "accuracy of the final models"):
        assert word in page
    assert "http" not in page.replace("http://www.w3.org", "")


def test_it_reports_without_what_cannot_be_measured(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Test examples of a single class have no AUC in any round or baseline."""
    rows = "".join(f"{number},{number % 2}\n" for number in range(4))
    (tmp_path / "rows.csv").write_text("x,y\n" + rows)
    (tmp_path / "tiny.toml").write_text(
        'rounds = 2\n[model]\nname = "logistic-regression"\n[data]\nfile = "rows.csv"\ntarget = "y"\nkind = "class"\n'
        'test = 0.25\nstratified = false\n[partition]\npartition = "iid"\nclients = 1\n'
    )
    assert main(["simulate", str(tmp_path / "tiny.toml"), "--out", str(tmp_path / "out")]) == 0
    page = (tmp_path / "out/report.html").read_text()
    assert "accuracy over the rounds" in page
    assert "AUC over the rounds" not in page
    assert "1 variant ·" in page


def test_its_json_is_the_summary_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command = ["simulate", str(small_file(tmp_path)), "--out", str(tmp_path / "out"), *FEW, "--json"]
    assert main(command) == 0
    first = capsys.readouterr().out
    assert json.loads(first) == json.loads((tmp_path / "out/summary.json").read_text())
    assert main(command) == 0
    assert capsys.readouterr().out == first


def test_a_sweep_runs_every_variant_at_every_point(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command = ["sweep", str(small_file(tmp_path)), "--over", "server.optimizer.rate=0.1,1.0", "--out"]
    options = [*FEW, "--set", "seeds=1", "--json"]
    assert main([*command, str(tmp_path / "out"), *options]) == 0
    said = json.loads(capsys.readouterr().out)
    points = ["gradient, rate=0.1", "gradient, rate=1", "local, three, rate=0.1", "local, three, rate=1"]
    assert list(said["variants"]) == points
    assert list(said["baselines"]) == ["centralised", "local", "start"]
    losses = [said["variants"][name]["metrics"]["test"]["loss"]["mean"] for name in points]
    assert losses[1] < losses[0]


def test_two_variants_are_compared_over_the_seeds_that_they_share(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = str(tmp_path / "out")
    assert main(["simulate", str(small_file(tmp_path)), "--out", out, *FEW]) == 0
    capsys.readouterr()
    assert main(["compare", f"{out}:start", f"{out}:gradient", "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    summary = json.loads(Path(out, "summary.json").read_text())
    accuracy = next(d for d in said["differences"] if (d["split"], d["metric"]) == ("test", "accuracy"))
    means = [
        summary[kind][name]["metrics"]["test"]["accuracy"]["mean"]
        for kind, name in (("baselines", "start"), ("variants", "gradient"))
    ]
    assert (accuracy["a"], accuracy["b"]) == pytest.approx(means)
    assert accuracy["difference"]["mean"] == pytest.approx(means[1] - means[0])
    assert said["seeds"] == [1, 2]
    loss = next(d for d in said["differences"] if (d["split"], d["metric"]) == ("test", "loss"))
    assert (accuracy["better"], loss["better"]) == ("b", "b")
    assert main(["compare", f"{out}:start", f"{out}:gradient"]) == 0
    assert "paired by 2 seeds" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("command", "words"),
    [
        (["compare", "nowhere", "{out}:gradient"], "no results of a laboratory experiment in nowhere"),
        (["compare", "{out}", "{out}:gradient"], "has several variants; name one"),
        (["compare", "{out}:gradient", "{out}:other"], "has no variant 'other'; it has 'gradient'"),
    ],
)
def test_what_cannot_be_compared_is_told(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], command: list[str], words: str
) -> None:
    out = str(tmp_path / "out")
    options = [*FEW, "--set", "rounds=0", "--set", "seeds=1", "--set", "evaluation.baselines=[]"]
    assert main(["simulate", str(small_file(tmp_path)), "--out", out, *options]) == 0
    assert main([part.format(out=out) for part in command]) == 2
    assert words in capsys.readouterr().err


@pytest.mark.parametrize(("option", "value"), [("--clients", "5"), ("--seed", "2"), ("--threads", "1")])
def test_options_of_a_study_do_not_apply(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], option: str, value: str
) -> None:
    assert main(["simulate", str(small_file(tmp_path)), "--out", str(tmp_path / "out"), option, value]) == 2
    assert "is a laboratory experiment; change its settings with --set" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(("option", "value"), [("--jobs", "2"), ("--set", "rounds=1")])
def test_options_of_the_laboratory_do_not_apply_to_a_study(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], option: str, value: str
) -> None:
    assert main(["simulate", str(experiment_file(tmp_path)), "--out", str(tmp_path / "out"), option, value]) == 2
    assert "is the experiment of a study" in capsys.readouterr().err


def test_a_wrong_file_is_one_sentence(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = small_file(tmp_path, "[sampling]\nsampling = 'none'\n")
    assert main(["simulate", str(file), "--out", str(tmp_path / "out")]) == 2
    said = capsys.readouterr().err
    assert "small.toml" in said
    assert "'sampling' in [sampling] is 'none'; choose one of all" in said
    assert len(said.strip().splitlines()) == 1


def test_names_are_printed_as_they_are_and_not_as_markup(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = small_file(tmp_path, '\n[[variants]]\nname = "[iid] :star: [bold]x"\n')
    options = ["--set", "evaluation.baselines=[]", "--set", "seeds=1", "--set", "rounds=1", "--jobs", "1"]
    assert main(["simulate", str(file), "--out", str(tmp_path / "out"), *options]) == 0
    assert "[iid] :star: [bold]x" in capsys.readouterr().out
    out = tmp_path / "out"
    assert main(["compare", f"{out}:gradient", f"{out}:[iid] :star: [bold]x"]) == 0
    assert "out: [iid] :star: [bold]x" in capsys.readouterr().out


OWN = """
def loss(weights, x, y):
    return (weights**2).sum()

def predict(weights, x):
    return x[:, 0] * 0
"""


def test_a_module_that_it_names_lies_beside_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", list(sys.path))
    file = small_file(tmp_path / "mine")
    (file.parent / "beside_the_file.py").write_text(OWN)
    names = 'function = "beside_the_file:loss", predict = "beside_the_file:predict"'
    own = ["--set", f'model={{ name = "own", weights = 2, {names} }}', "--set", "evaluation.baselines=[]"]
    assert main(["simulate", str(file), "--out", str(tmp_path / "out"), *FEW, *own]) == 0
    assert sys.modules.pop("beside_the_file").__file__ == str(file.parent / "beside_the_file.py")
    assert sys.path[-1] == str(file.parent)


@pytest.mark.parametrize(
    ("start", "weights", "expected"),
    [
        ('start = "own_start:START"', "", [1.5, -2.0]),
        ('start = "own_start:start"', "weights = 2, ", [3.0, 4.0]),
        ("start = 0.5", "weights = 2, ", [0.5, 0.5]),
        ("start = [5, 6]", "weights = 2, ", [5.0, 6.0]),
    ],
)
def test_the_weights_of_a_loss_begin_where_its_module_or_the_file_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, start: str, weights: str, expected: list[float]
) -> None:
    monkeypatch.setattr(sys, "path", list(sys.path))
    file = small_file(tmp_path / "mine")
    (file.parent / "own_start.py").write_text(OWN + "START = (1.5, -2.0)\ndef start():\n    return [3, 4]\n")
    names = 'function = "own_start:loss", predict = "own_start:predict", gradient = "finite_differences"'
    options = ["--set", f'model={{ name = "own", {weights}{start}, {names} }}', "--set", "evaluation.baselines=[]"]
    options += ["--set", "rounds=0", "--set", "seeds=1", "--jobs", "1"]
    assert main(["simulate", str(file), "--out", str(tmp_path / "out"), *options]) == 0
    sys.modules.pop("own_start")
    [last, *_] = (tmp_path / "out" / "runs").glob("*/*/last.npy")
    assert np.load(last).tolist() == expected


def test_the_shipped_experiment_of_the_breast_cancer_clinics_can_be_meant() -> None:
    from fedping.experiments.laboratory.settings import experiment_from_toml

    experiment = experiment_from_toml(Path(__file__).parents[2] / "experiments/breast_cancer.toml")
    assert list(experiment.variants)[:2] == ["FedGD", "FedGD+"]
    assert len(experiment.seeds) == 5
