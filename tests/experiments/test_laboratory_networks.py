"""Users' networks in the laboratory: the same results with both engines, with random keys and named blocks."""

from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pyarrow.parquet as pq
import pytest

from fedping.client_sim.sampling import sampler_for
from fedping.experiments.laboratory.notes import of_problem
from fedping.experiments.laboratory.one_run import run_unit
from fedping.experiments.laboratory.preparing import check_model, prepare
from fedping.experiments.laboratory.run import run_experiment
from fedping.experiments.laboratory.settings import Experiment, Setup
from fedping.experiments.laboratory.settings.experiment import with_code
from fedping.experiments.laboratory.units import Unit
from fedping.protocol.errors import FedpingError, InvalidSettings

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


FEDBN = {"by": "partly_local", "local": ["norm"], "rate": 0.05}


def test_batch_norm_stays_with_its_client_and_is_refused_where_it_cannot_run(tmp_path: Path) -> None:
    asked = {"model": {"name": "with-norm"}, "training": {"algorithm": "local", "rate": 0.05, "epochs": 2, "batch": 10}}
    kept = asked | {"training": asked["training"] | {"personal": FEDBN}, "evaluation": {"every": 3, "local": True}}
    weights, _, _ = run(tmp_path / "local", "numpy", **kept)
    assert len(weights) == 31 * 2, "the head is shared, and not the norm"
    averaged, _, _ = run(tmp_path / "average", "numpy", **asked | {"model": {"name": "with-norm", "keeps": "average"}})
    assert len(averaged) == 31 * 2 + 4 * 30
    for changes, says in (
        (asked, "which are to be local, and the training shares them"),
        (asked | {"model": {"name": "with-norm", "keeps": "average"}, "engine": "jax"}, 'Set engine = "numpy"'),
    ):
        with pytest.raises(InvalidSettings, match=says):
            check_model(setup(**changes), 3)


@pytest.mark.parametrize("engine", ["numpy", "jax"])
def test_a_loss_that_is_not_finite_names_client_and_round(engine: str, tmp_path: Path) -> None:
    """Both engines stop with the same sentence, also within a compiled call."""
    asked = setup(engine=engine, model={"name": "sometimes-nan"}, rounds=6, evaluation={"every": 6})
    problem = prepare(asked, 3, None)
    worst = int(problem.train.client_of[problem.train.x.max(axis=1).argmax()])  # type: ignore[union-attr]
    sampler = sampler_for(asked.sampling, problem.train.sizes[problem.learners], 3, None)
    first = next(number for number in range(6) if worst in problem.learners[sampler.draw(number)])
    assert first > 0
    says = f"in round {first + 1}: the loss of the model 'sometimes-nan' is nan for client {worst}; check"
    with pytest.raises(FedpingError, match=says):
        run_unit(Unit("a", None, asked, 3, None), tmp_path)


AVERAGED: dict[str, Any] = {"model": {"name": "with-norm", "keeps": "average"}}


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        (AVERAGED | {"engine": "jax"}, r"variant 'b': .*has buffers, .*Set engine = .numpy."),
        (AVERAGED | {"server": {"optimizer": {"optimizer": "adam"}}}, "variant 'b': .*adds the mean of the updates"),
    ],
)
def test_batch_norm_is_refused_before_the_first_round_of_any_variant(
    changes: dict[str, Any], says: str, tmp_path: Path
) -> None:
    variants = {"a": setup(), "b": setup(**changes)}
    with pytest.raises(InvalidSettings, match=says):
        run_experiment(Experiment(name="x", seeds=(1,), variants=variants), tmp_path / "out")
    assert not (tmp_path / "out").exists()
    with pytest.raises(InvalidSettings, match=says.partition(": ")[2]):
        run_unit(Unit("b", None, variants["b"], 1, None), tmp_path / "unit")


def test_a_convolution_of_jax_is_noted(tmp_path: Path) -> None:
    problem = prepare(setup(model={"name": "of-equinox"}, data={"name": "digits"}), 3, None)
    assert any("conv_general_dilated = fedping.convolution" in note for note in of_problem(setup(), problem))
