"""Methods in compiled rounds, such as control variates and private blocks, agree with the NumPy engine."""

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest

from fedping.experiments.laboratory.one_run import run_unit
from fedping.experiments.laboratory.preparing import prepare
from fedping.experiments.laboratory.rounds import slots
from fedping.experiments.laboratory.rounds.compiled import CompiledRounds
from fedping.experiments.laboratory.settings import Setup
from fedping.experiments.laboratory.settings.experiment import experiment_of
from fedping.experiments.laboratory.units import Unit

pytest.importorskip("jax")

SETTINGS: dict[str, Any] = {
    "model": {"name": "logistic-regression", "l2": 0.01},
    "data": {"name": "breast-cancer", "standardise": True},
    "partition": {"partition": "dirichlet", "clients": 12, "alpha": 0.3},
    "sampling": {"sampling": "uniform", "clients": 5},
    "server": {"optimizer": {"optimizer": "gradient_descent"}, "min_clients": 1, "weighting": "client"},
    "evaluation": {"every": 4, "baselines": []},
    "rounds": 10,
}
NETWORK = {"name": "network", "hidden": "7, 5", "l2": 0.01}
STEPS = {"rate": 0.05, "epochs": 2, "batch": 10}
LOCAL = {"algorithm": "local", **STEPS}


def setup(**changes: Any) -> Setup:
    asked = experiment_of(SETTINGS | changes, name="x", folder=Path())
    return next(iter(asked.variants.values()))


def run(folder: Path, engine: str, **changes: Any) -> tuple[np.ndarray, dict[str, list[float]]]:
    unit = Unit(engine, None, setup(engine=engine, **changes), 3, None)
    run_unit(unit, folder)
    metrics: dict[str, list[float]] = {}
    for row in pq.read_table(unit.folder(folder).path / "metrics.parquet").to_pylist():
        metrics.setdefault(f"{row['split']} {row['metric']}", []).append(row["value"])
    return np.load(unit.folder(folder).path / "last.npy"), metrics


def personal(**settings: Any) -> dict[str, Any]:
    return {"by": "partly_local", "local": ["W3", "b3"], "rate": 0.03, **settings}


CASES: dict[str, dict[str, Any]] = {
    "scaffold": {"training": {"algorithm": "scaffold", "participation": 5 / 12, **STEPS}},
    "scaffold with the gradient at the fetched weights": {
        "training": {"algorithm": "scaffold", "option": "I", "participation": 5 / 12, **STEPS}
    },
    "scaffold of all clients, with whole batches": {
        "training": {"algorithm": "scaffold", "rate": 0.1, "steps": 3},
        "sampling": {"sampling": "all"},
    },
    "a hundred rounds of scaffold": {
        "training": {"algorithm": "scaffold", "participation": 5 / 12, **STEPS},
        "rounds": 100,
        "evaluation": {"every": 40, "baselines": []},
    },
    "feddyn": {"training": {"algorithm": "feddyn", "alpha": 0.1, "participation": 5 / 12, **STEPS}},
    "apfl": {"training": {"algorithm": "apfl", **STEPS}},
    "apfl, drawn by size, a client perhaps twice": {
        "training": {"algorithm": "apfl", "share_rate": 0.2, **STEPS},
        "sampling": {"sampling": "by_size", "clients": 8},
    },
    "the last layer is the client's (FedPer)": {
        "model": NETWORK,
        "training": LOCAL | {"proximal": 0.1, "personal": personal()},
    },
    "the last layer is the client's, along one gradient": {
        "model": NETWORK,
        "training": {"algorithm": "gradient", "personal": personal()},
    },
    "the last layer is the client's, by Adam": {
        "model": NETWORK,
        "training": LOCAL | {"rate": 0.01, "optimizer": {"optimizer": "adam"}, "personal": personal(rate=0.01)},
    },
    "the last layer is trained first (FedRep)": {
        "model": NETWORK,
        "training": LOCAL | {"personal": personal(order="local_first", steps=3)},
    },
    "the last layer is fitted each time (FedRecon)": {
        "model": NETWORK,
        "training": LOCAL
        | {"personal": {"by": "reconstruct", "local": ["W3", "b3"], "rate": 0.3, "steps": 2, "support": 0.3}},
    },
}


@pytest.mark.parametrize("case", CASES)
def test_methods_agree_with_numpy(case: str, tmp_path: Path) -> None:
    weights, metrics = run(tmp_path, "numpy", **CASES[case])
    compiled, same = run(tmp_path, "jax", **CASES[case])
    np.testing.assert_allclose(compiled, weights, rtol=1e-12, atol=1e-12)
    assert same.keys() == metrics.keys()
    for name in metrics.keys() - {"train posted_bytes", "train fetched_bytes"}:  # these are estimated
        np.testing.assert_allclose(same[name], metrics[name], rtol=1e-9, atol=1e-12, err_msg=name)


SCAFFOLD: dict[str, Any] = {"training": {"algorithm": "scaffold", "participation": 5 / 12, **STEPS}}


def test_a_table_with_too_few_rows_goes_to_the_host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With six rows for twelve clients, five of which train in a round, calls are split, and the bits stay the same."""
    whole, _ = run(tmp_path / "whole", "jax", **SCAFFOLD)
    monkeypatch.setattr(slots, "MOST_ON_DEVICE", 6 * 31 * 8)
    unit = Unit("jax", None, setup(engine="jax", **SCAFFOLD), 3, None)
    outcome = run_unit(unit, tmp_path / "cut")
    np.testing.assert_array_equal(np.load(unit.folder(tmp_path / "cut").path / "last.npy"), whole)
    assert any("keep 248 bytes each; the device has room for 6 of them" in note for note in outcome.notes)


def test_a_client_has_a_row_from_its_first_use_on() -> None:
    asked = setup(engine="jax", rounds=2, partition={"partition": "iid", "clients": 100}, **SCAFFOLD)
    rounds = CompiledRounds(asked, prepare(asked, 3, None))
    assert rounds._slots.capacity == 10, "five clients in each of two rounds"
    rounds.run([])
    rounds.run([])
    assert (rounds._slots._slot >= 0).sum() == len(np.unique(np.concatenate([r.keepers for r in drawn_of(rounds)])))


def drawn_of(rounds: CompiledRounds) -> list[Any]:
    return [rounds._round(number) for number in range(2)]


@pytest.mark.parametrize("finished", [4, 6])
def test_what_clients_keep_resumes(finished: int, tmp_path: Path) -> None:
    """A checkpoint between or within calls has the clients' state before the call, which is computed again."""
    asked = setup(engine="jax", **SCAFFOLD)
    problem = prepare(asked, 3, None)
    whole = CompiledRounds(asked, problem)
    for _ in range(finished):
        whole.run([])
    whole._written()
    saved = {name: np.array(value) for name, value in whole.snapshot().items()}
    kept = {name: np.array(value) for name, value in whole._states.snapshot().items()}
    resumed = CompiledRounds(asked, problem)
    resumed._states.restore(kept)
    resumed.restore(saved)
    for _ in range(finished, 10):
        whole.run([])
        resumed.run([])
    np.testing.assert_array_equal(resumed.weights, whole.weights)
    for rounds in (whole, resumed):
        rounds._written()
    everybody = np.arange(12)
    one, other = (rounds._states.load(everybody)["control"] for rounds in (whole, resumed))
    np.testing.assert_array_equal(one, other)
    assert np.abs(one).max() > 0.01


def test_a_client_that_diverges_with_what_it_keeps_is_named(tmp_path: Path) -> None:
    training = {"algorithm": "scaffold", "participation": 5 / 12, "rate": 1e12, "steps": 3}
    asked: dict[str, Any] = {"training": training, "model": {"name": "linear-regression"}, "data": {"name": "diabetes"}}
    asked |= {"partition": {"partition": "power_law", "clients": 12}}
    outcomes = [
        run_unit(Unit(engine, None, setup(engine=engine, **asked), 3, None), tmp_path) for engine in ("numpy", "jax")
    ]
    numpy, compiled = ([note for note in each.notes if "diverged" in note] for each in outcomes)
    assert numpy[0].startswith("stopped in round 1")
    assert compiled[0].startswith("stopped in round 1: training on client ")


def test_a_method_is_compiled_between_parts_that_numpy_computes(tmp_path: Path) -> None:
    asked = {"training": {"algorithm": "apfl", **STEPS}, "limits": {"examples": 20}}
    weights, metrics = run(tmp_path, "numpy", **asked)
    compiled, same = run(tmp_path, "jax", **asked)
    np.testing.assert_allclose(compiled, weights, rtol=1e-9, atol=1e-9)  # updates are rounded to float32
    np.testing.assert_allclose(same["personal loss"], metrics["personal loss"], rtol=1e-9)
