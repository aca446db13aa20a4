"""Choices among candidates in the laboratory: a model learns from a file, equally in memory and over landed files."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedping.experiments.laboratory.one_run import run_unit
from fedping.experiments.laboratory.results import Outcome
from fedping.experiments.laboratory.settings import experiment_from_toml
from fedping.experiments.laboratory.units import Unit
from fedping.protocol.errors import FedpingError

WANTED = np.array([2.0, -1.0, 0.5])

EXPERIMENT = """
rounds = 60
[model]
name = "svm-ranking"
margin = 1.0
[data]
file = "searches.csv"
target = "clicked"
choice = "search"
client = "user"
standardise = true
[partition]
partition = "key"
[server]
optimizer = { optimizer = "gradient_descent", rate = 0.2 }
[evaluation]
local = true
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """Write an experiment on searches of six users with two to five results, whose best was clicked."""
    rng = np.random.default_rng(1)
    lines = ["user,search,a,b,c,clicked"]
    for search in range(150):
        results = rng.standard_normal((rng.integers(2, 6), 3))
        best = (results @ WANTED).argmax()
        lines += [f"u{search % 6},{search},{a},{b},{c},{int(at == best)}" for at, (a, b, c) in enumerate(results)]
    (tmp_path / "searches.csv").write_text("\n".join(lines) + "\n")
    (tmp_path / "ranking.toml").write_text(EXPERIMENT)
    return tmp_path / "ranking.toml"


def run(file: Path, out: str, *changes: str, baseline: Any = None) -> tuple[Outcome, np.ndarray]:
    setup = experiment_from_toml(file, changes).variants["federated"]
    unit = Unit("ranking", baseline, setup, 1, None)
    outcome = run_unit(unit, file.parent / out)
    return outcome, np.load(unit.folder(file.parent / out).path / "last.npy")


def metric(outcome: Outcome, name: str) -> float:
    value = outcome.final["test"][name]
    assert value is not None
    return value


def test_clients_learn_to_rank_from_a_file_wherever_the_rounds_run(file: Path) -> None:
    in_memory, weights = run(file, "memory")
    assert metric(in_memory, "top_choice") > 0.9
    assert weights @ WANTED / np.linalg.norm(weights) / np.linalg.norm(WANTED) > 0.98
    assert (run(file, "files", "where=files")[1] == weights).all()


def test_what_clients_learn_together_lies_between_the_baselines(file: Path) -> None:
    together, _ = run(file, "together")
    start, pooled = (run(file, name, baseline=name)[0] for name in ("start", "centralised"))
    assert metric(start, "top_choice") == 0.0
    losses = [metric(each, "loss") for each in (pooled, together, start)]
    assert losses[1] < 0.5 * losses[2]
    assert losses[0] < 0.5 * losses[2]


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        (['model={name="linear-regression"}'], "choices among candidates, and the model 'linear-regression'"),
        (['data={name="diabetes"}'], "'svm-ranking' learns from choices among candidates; name a data set of choices"),
        (["data.class_weights=true"], "class_weights are for classes"),
        (["evaluation.task=regression"], "but choices are ranked"),
        (["data.kind=class"], "'choice', whose target is the chosen candidate, and 'kind'"),
        (['model={name="linear-15"}', 'data={name="diabetes"}'], "ranks pages, which only synthetic users have"),
    ],
)
def test_what_does_not_go_with_choices_is_told(file: Path, changes: list[str], said: str) -> None:
    with pytest.raises(FedpingError) as raised:
        run(file, "out", *changes)
    assert said in str(raised.value)


@pytest.mark.parametrize("training", ['algorithm="gradient"', 'algorithm="local", rate=0.05, epochs=2, batch=7'])
def test_compiled_rounds_learn_the_same_from_choices_of_any_size(file: Path, training: str) -> None:
    pytest.importorskip("jax")
    changes = (f"training={{{training}}}", 'model={name="svm-ranking", margin=1.0, l2=0.01}', "rounds=20")
    plain, weights = run(file, "numpy", *changes)
    outcome, compiled = run(file, "jax", *changes, 'engine="jax"')
    np.testing.assert_allclose(compiled, weights, rtol=1e-12, atol=1e-12)
    assert outcome.final["test"] == pytest.approx(plain.final["test"])
