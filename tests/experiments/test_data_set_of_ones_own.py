"""The data set of docs/extending.md, with gaps, natural keys and its own test examples, runs as written there."""

import importlib
import inspect
import re
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fedping
from fedping.experiments.laboratory.preparing import prepare
from fedping.experiments.laboratory.settings import experiment_of
from tests.support.registry import registry_of_its_own

PAGE = (Path(__file__).parents[2] / "docs" / "extending.md").read_text()
SECTION = re.split(r"\n##+ ", PAGE.partition("### A data set\n")[2])[0]
PYTHON, TOML = re.findall(r"```(?:python|toml)\n(.*?)```", SECTION, re.DOTALL)

pytestmark = pytest.mark.usefixtures("visits")


@pytest.fixture
def visits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    registry_of_its_own(monkeypatch)
    (tmp_path / "visits.py").write_text(PYTHON)
    monkeypatch.syspath_prepend(str(tmp_path))
    importlib.import_module("visits")
    yield
    sys.modules.pop("visits", None)


def settings(**more: Any) -> dict[str, Any]:
    return tomllib.loads(TOML) | {
        "rounds": 2, "model": {"name": "logistic-regression"}, "evaluation": {"baselines": []}, **more,
    }  # fmt: skip


def test_its_test_examples_are_the_authors_and_its_gaps_are_filled_by_indicators() -> None:
    [setup] = experiment_of(settings(), name="visits", folder=Path()).variants.values()
    problem = prepare(setup, 1, None)
    assert len(problem.train) == 12
    assert (problem.train.sizes.sum(), problem.test.sizes.sum()) == (600, 200)
    assert problem.train.features[-1] == "x4 is missing"
    assert np.isfinite(problem.train.x).all()
    assert problem.train.target.classes == ("no", "yes")


def test_it_runs_and_refuses_gaps_without_a_rule(tmp_path: Path) -> None:
    file = tmp_path / "visits.toml"
    file.write_text(
        'rounds = 2\nmodel = { name = "logistic-regression" }\n' + TOML + "evaluation = { baselines = [] }\n"
    )
    results = fedping.run(file, folder=tmp_path / "out")
    [accuracy] = [
        row["value"]
        for row in results.metrics().to_pylist()
        if (row["split"], row["metric"], row["round"], row["variant"]) == ("test", "accuracy", 2, "federated")
    ]
    assert accuracy > 0.6
    with pytest.raises(fedping.FedpingError, match="missing"):
        fedping.run(file, overrides={"data.missing": "refuse"}, folder=tmp_path / "refused")


def test_every_parameter_of_a_table_has_a_row() -> None:
    rows = {name for line in SECTION.splitlines() if line.startswith("| `") for name in re.findall(r"`(\w+)`", line)}
    assert set(inspect.signature(fedping.table).parameters) <= rows
