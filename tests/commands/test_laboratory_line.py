"""A laboratory file with a [line] table as in studies: the same runs as without, and lines that move into a study."""

import json
import tomllib
from pathlib import Path

import pytest

import fedping
from fedping.main import main

REFERENCE = Path(__file__).parents[2] / "docs" / "reference.md"

HEAD = """
rounds = 3
seeds = 2
[data]
name = "breast-cancer"
standardise = true
[partition]
partition = "iid"
clients = 6
[evaluation]
baselines = ["start"]
"""

TABLES = """
[model]
name = "logistic-regression"
l2 = 1e-2
[training]
algorithm = "local"
epochs = 2
rate = 0.5
[[upload]]
link = "levels"
bits = 4
[server]
weighting = "examples"
min_clients = 2
optimizer = { optimizer = "gradient_descent", rate = 0.5 }
[[variants]]
name = "two epochs"
[[variants]]
name = "one, by Adam"
training.epochs = 1
server.optimizer = { optimizer = "adam" }
"""

LINE = """
[model]
name = "logistic-regression"
l2 = 1e-2
[line.training]
algorithm = "local"
epochs = 2
rate = 0.5
[[line.upload]]
link = "levels"
bits = 4
[line.pipeline]
weighting = "examples"
min_clients = 2
optimizer = { optimizer = "gradient_descent", rate = 0.5 }
[[variants]]
name = "two epochs"
[[variants]]
name = "one, by Adam"
line.training.epochs = 1
line.pipeline.optimizer = { optimizer = "adam" }
"""

SPEC = """
[line.spec]
name = "biopsies"
model = "logistic-regression"
settings = { features = 30, classes = 2, l2 = 1e-2 }
blocks = [
  { name = "coefficients", shape = [30], step = { start = 0.1, min = 1e-6, max = 50.0 } },
  { name = "intercept", shape = [1], step = { start = 0.1, min = 1e-6, max = 50.0 } },
]
"""

ARMS = """
name = "biopsies"
pings = "model-update"
[[arms]]
name = "treatment"
share = 0.5
line = "main"
applies = true
submits = true
[[arms]]
name = "control"
share = 0.5
line = "main"
[[lines]]
name = "main"
"""


def written(folder: Path, text: str, name: str = "small") -> str:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"{name}.toml").write_text(text)
    return str(folder / f"{name}.toml")


def simulated(folder: Path, text: str, *options: str) -> Path:
    out = folder / "out"
    assert main(["simulate", written(folder, text), "--out", str(out), "--jobs", "1", *options]) == 0
    return out


def bits_of(out: Path) -> dict[str, bytes]:
    """Return the weights and metrics of all runs, and the settings, by file."""
    files = [*out.rglob("*.npy"), *out.rglob("metrics.parquet"), out / "experiment.json"]
    return {str(file.relative_to(out)): file.read_bytes() for file in files}


def test_both_forms_are_one_experiment_with_the_same_bits(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    plain, line = (simulated(tmp_path / name, HEAD + text) for name, text in (("plain", TABLES), ("line", LINE)))
    assert len(bits_of(plain)) > 8
    assert bits_of(plain) == bits_of(line)
    assert simulated(tmp_path / "line", HEAD + TABLES) == line, "either form goes on with a folder of the other"


def test_options_name_the_settings_of_either_form(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = written(tmp_path, HEAD + LINE)
    changes = ["--set", "line.training.rate=0.25", "--set", "server.min_clients=1", "--set", "seeds=1", "--json"]
    over = ["--over", "line.training.epochs=1,3", "--jobs", "1"]
    assert main(["sweep", file, "--out", str(tmp_path / "out"), *changes, *over]) == 0
    names = ["two epochs, epochs=1", "two epochs, epochs=3", "one, by Adam, epochs=1", "one, by Adam, epochs=3"]
    assert list(json.loads(capsys.readouterr().out)["variants"]) == names
    settings = json.loads((tmp_path / "out" / "experiment.json").read_bytes())["variants"][names[1]]
    assert (settings["training"]["rate"], settings["training"]["epochs"], settings["server"]["min_clients"]) == (
        0.25,
        3,
        1,
    )


def test_a_whole_line_runs_as_its_spec_says_and_moves_into_a_study(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with_spec = LINE.partition("[line.training]")[2].partition("[[variants]]")[0]
    line = f"{SPEC}[line.training]{with_spec}"
    whole = simulated(tmp_path / "whole", HEAD + line)
    short = simulated(tmp_path / "short", HEAD + LINE.partition("[[variants]]")[0])
    weights = "runs/federated/seed-1/last.npy"
    assert (whole / weights).read_bytes() == (short / weights).read_bytes()
    digests = [json.loads((out / "summary.json").read_bytes())["digest"] for out in (whole, short)]
    assert digests[0] != digests[1]

    study = written(tmp_path, ARMS + line.replace("[line.", "[lines."), "study")
    capsys.readouterr()
    assert main(["study", "check", study]) == 0
    assert "levels" in capsys.readouterr().out


def test_the_line_of_the_reference_runs(tmp_path: Path) -> None:
    text = REFERENCE.read_text().partition("**The line as a study has it.**")[2]
    simulated(tmp_path, HEAD + text.partition("```toml\n")[2].partition("```")[0], "--set", "rounds=1")


def test_the_defaults_of_a_line_are_a_studys(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = written(tmp_path, HEAD + '[model]\nname = "logistic-regression"\n[line]\n')
    assert main(["simulate", file, "--out", str(tmp_path / "out"), "--set", "rounds=0", "--jobs", "1"]) == 0
    [settings] = json.loads((tmp_path / "out" / "experiment.json").read_bytes())["variants"].values()
    server = settings["server"]
    assert (server["optimizer"]["optimizer"], server["min_clients"], server["weighting"]) == ("rprop", 100, "client")


def test_a_program_gives_a_line_too(tmp_path: Path) -> None:
    overrides = {"line.training.rate": 0.25, "rounds": 1}
    results = [
        fedping.run(tomllib.loads(HEAD + text), folder=tmp_path / name, overrides=overrides)
        for name, text in (("plain", TABLES), ("line", LINE))
    ]
    assert results[0].summary.digest == results[1].summary.digest


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[line]\nguard = {}", "[line] has 'guard', which only the lines of studies have"),
        ("[line]\nparticipation = 0.5", "set [sampling]"),
        ("[line]\nrounds = 3", "[line] has no setting 'rounds'. Choose one of name, spec, training"),
        ("[line]\npipeline = {}\n[server]\nmin_clients = 2", "'server' and 'pipeline' in [line]"),
        ('[line.spec]\nmodel = "logistic-regression"', "[model] and [line.spec] both describe the model"),
        ("[line.pipeline]\nmin_clients = 0", "'min_clients' in [line.pipeline] is 0"),
        ('[line.training]\nalgorithm = "lokal"', "'algorithm' in [line.training] is 'lokal'"),
        (
            "[line]\ntraining = { algorithm = 'gradient', sign = true }\npipeline.clip = { by = 'quantile' }",
            "'clip' has",
        ),
    ],
)
def test_a_mistake_in_a_line_is_named_where_it_is(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str, words: str
) -> None:
    file = written(tmp_path, HEAD + '[model]\nname = "logistic-regression"\n' + text)
    assert main(["simulate", file, "--out", str(tmp_path / "out")]) == 2
    assert words in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_a_spec_of_other_examples_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = HEAD.replace('"breast-cancer"', '"digits"') + SPEC + "[line.pipeline]\nmin_clients = 1\n"
    assert main(["simulate", written(tmp_path, text), "--out", str(tmp_path / "out"), "--jobs", "1"]) == 2
    assert "[line.spec.settings] has features = 30, and the examples have 64" in capsys.readouterr().err
