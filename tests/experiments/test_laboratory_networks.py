"""Networks of one's own in the laboratory: the same work with both engines, with random keys and named blocks."""

from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pyarrow.parquet as pq
import pytest

from fedping.experiments.laboratory.one_run import run_unit
from fedping.experiments.laboratory.settings import Setup
from fedping.experiments.laboratory.settings.experiment import with_code
from fedping.experiments.laboratory.units import Unit

pytest.importorskip("jax")

from tests.support import networks  # noqa: F401 - registers them


def setup(**changes: Any) -> Setup:
    settings: dict[str, Any] = {
        "model": {"name": "of-functions", "width": 5},
        "data": {"name": "breast-cancer", "standardise": True},
        "partition": {"partition": "dirichlet", "clients": 12, "alpha": 0.3},
        "sampling": {"sampling": "uniform", "clients": 5},
        "training": {"algorithm": "local", "rate": 0.05, "epochs": 2, "batch": 10},
        "server": {"optimizer": {"optimizer": "gradient_descent"}, "min_clients": 1},
        "evaluation": {"every": 3},
        "rounds": 3,
    }
    return msgspec.convert(with_code(settings | changes), Setup)


def run(folder: Path, engine: str, **changes: Any) -> tuple[np.ndarray, list[float], dict[str, float]]:
    unit = Unit(engine, None, setup(engine=engine, **changes), 3, None)
    run_unit(unit, folder)
    rows = pq.read_table(unit.folder(folder).path / "metrics.parquet").to_pylist()
    losses = [row["value"] for row in rows if row["split"] == "train" and row["metric"] == "loss"]
    last = {row["metric"]: row["value"] for row in rows if row["split"] == "test"}
    return np.load(unit.folder(folder).path / "last.npy"), losses, last


DOUBLE = {"name": "of-functions", "width": 5, "precision": "float64"}

CASES: dict[str, dict[str, Any]] = {
    "mini-batches": {},
    "steps with all examples, in pieces": {"training": {"algorithm": "local", "rate": 0.05, "steps": 3}},
    "one gradient": {"training": {"algorithm": "gradient"}},
    "NumPy between compiled training": {
        "training": {"algorithm": "gradient", "batch": 7},
        "server": {"optimizer": {"optimizer": "rprop"}, "aggregate": {"by": "median"}, "min_clients": 1},
    },
}


@pytest.mark.parametrize("case", CASES)
def test_both_engines_draw_the_same_dropout(case: str, tmp_path: Path) -> None:
    weights, losses, last = run(tmp_path, "numpy", model=DOUBLE, **CASES[case])
    compiled, same_losses, same_last = run(tmp_path, "jax", model=DOUBLE, **CASES[case])
    np.testing.assert_allclose(compiled, weights, rtol=1e-12, atol=1e-12)
    np.testing.assert_allclose(same_losses, losses, rtol=1e-12)
    assert same_last == pytest.approx(last, rel=1e-9)
