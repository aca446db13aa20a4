"""Rounds compiled by JAX have the same results as the NumPy engine's, with the same draws."""

import json
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pyarrow.parquet as pq
import pytest
from msgspec.structs import replace

from fedping.client_sim.learning import Diverged
from fedping.experiments.laboratory.cohort import Cohorts
from fedping.experiments.laboratory.one_run import run_unit
from fedping.experiments.laboratory.preparing import prepare
from fedping.experiments.laboratory.rounds.compiled import CompiledRounds, Lanes
from fedping.experiments.laboratory.rounds.compiling import Work, compiled
from fedping.experiments.laboratory.rounds.inside import check_inside, resolved
from fedping.experiments.laboratory.rounds.memory import MemoryChannel
from fedping.experiments.laboratory.rounds.server import ServerRounds
from fedping.experiments.laboratory.run import run_experiment
from fedping.experiments.laboratory.settings import Experiment, Setup
from fedping.experiments.laboratory.settings.experiment import experiment_of
from fedping.experiments.laboratory.units import Unit
from fedping.protocol.errors import FedpingError, InvalidSettings

pytest.importorskip("jax")

UNEVEN: dict[str, Any] = {"partition": "dirichlet", "clients": 12, "alpha": 0.3}


def setup(**changes: Any) -> Setup:
    settings: dict[str, Any] = {
        "model": {"name": "logistic-regression", "l2": 0.01},
        "data": {"name": "breast-cancer", "standardise": True},
        "partition": UNEVEN,
        "sampling": {"sampling": "uniform", "clients": 5},
        "training": {"algorithm": "local", "rate": 0.05, "epochs": 2, "batch": 10, "proximal": 0.1},
        "server": {"optimizer": {"optimizer": "gradient_descent"}, "min_clients": 1},
        "evaluation": {"every": 5},
        "rounds": 10,
    }
    return msgspec.convert(settings | changes, Setup)


def run(folder: Path, engine: str, **changes: Any) -> tuple[np.ndarray, list[float], list[int]]:
    unit = Unit(engine, None, setup(engine=engine, **changes), 3, None)
    run_unit(unit, folder)
    rows = pq.read_table(unit.folder(folder).path / "metrics.parquet").to_pylist()
    train = [row for row in rows if row["split"] == "train"]
    losses = [row["value"] for row in train if row["metric"] == "loss"]
    counts = [row["value"] for row in train if row["metric"] in ("clients", "update_bytes")]
    return np.load(unit.folder(folder).path / "last.npy"), losses, counts


LOCAL = {"algorithm": "local", "rate": 0.02, "epochs": 2, "batch": 10}
SERVER: dict[str, Any] = {"optimizer": {"optimizer": "gradient_descent"}, "min_clients": 1}

CASES: dict[str, dict[str, Any]] = {
    "mini-batches": {},
    "a hundred rounds": {"rounds": 100, "evaluation": {"every": 40}},
    "one gradient of some examples, weighted by them": {
        "training": {"algorithm": "gradient", "batch": 7},
        "server": {
            "optimizer": {"optimizer": "gradient_descent", "rate": 0.5, "decay": "1/sqrt(t)"},
            "min_clients": 1,
            "weighting": "examples",
        },
    },
    "whole batches in pieces, of a network": {
        "model": {"name": "network", "hidden": "7, 5", "l2": 0.01},
        "training": {"algorithm": "local", "rate": 0.1, "steps": 3},
    },
    "numbers, with weighted draws": {
        "model": {"name": "linear-regression"},
        "data": {"name": "diabetes", "standardise": True},
        "partition": {"partition": "power_law", "clients": 9},
        "sampling": {"sampling": "bernoulli", "share": 0.5},
        "training": {"algorithm": "local", "rate": 0.01, "epochs": 1, "batch": 70},
        "server": {"optimizer": {"optimizer": "gradient_descent"}, "min_clients": 4},
    },
    "a step of all examples of a network, in one piece": {
        "model": {"name": "network", "hidden": "7", "l2": 0.01},
        "partition": {"partition": "iid", "clients": 12},
        "training": {"algorithm": "local", "rate": 0.1, "steps": 1, "optimizer": {"optimizer": "adam"}},
    },
    "signs": {"training": {"algorithm": "gradient", "sign": True}},
    "clipped, with momentum on both sides": {
        "training": LOCAL | {"optimizer": {"optimizer": "momentum", "nesterov": True}, "proximal": 0.3},
        "server": SERVER | {"optimizer": {"optimizer": "momentum", "beta": 0.5}, "clip": {"by": "norm", "norm": 0.4}},
    },
    "Adam on both sides": {
        "training": LOCAL | {"optimizer": {"optimizer": "adam"}},
        "server": SERVER | {"optimizer": {"optimizer": "adam", "rate": 0.05, "decay": "1/t"}},
    },
    "RMSprop and Yogi": {
        "training": LOCAL | {"optimizer": {"optimizer": "rmsprop"}, "rate": 0.01},
        "server": SERVER | {"optimizer": {"optimizer": "yogi", "rate": 0.1}},
    },
    "RProp and Adagrad": {
        "training": LOCAL | {"optimizer": {"optimizer": "rprop"}, "rate": 1.0},
        "server": SERVER | {"optimizer": {"optimizer": "adagrad", "beta1": 0.3, "rate": 0.1}},
    },
}
"""Experiments in which whole rounds are compiled."""

EVERYONE: dict[str, dict[str, Any]] = {
    "one step": {"training": {"algorithm": "local", "rate": 0.05, "steps": 1}},
    "one gradient, weighted by examples": {
        "training": {"algorithm": "gradient"},
        "server": SERVER | {"weighting": "examples"},
    },
    "several steps, with Adam and a proximal term": {
        "training": {
            "algorithm": "local",
            "rate": 0.02,
            "epochs": 3,
            "proximal": 0.2,
            "optimizer": {"optimizer": "adam"},
        },
        "server": SERVER | {"clip": {"by": "norm", "norm": 0.1}},
    },
    "a network, some clients at a time": {
        "model": {"name": "network", "hidden": "7", "l2": 0.01},
        "training": {"algorithm": "local", "rate": 0.1, "steps": 2},
    },
    "numbers, of clients with a few more or fewer examples": {
        "model": {"name": "linear-regression", "l2": 0.1},
        "data": {"name": "diabetes", "standardise": True},
        "training": {"algorithm": "local", "rate": 0.01, "steps": 2},
    },
}
"""Experiments in which all clients train on all their examples in every round, in parallel."""

BETWEEN: dict[str, dict[str, Any]] = {
    "the median, then RProp": {"server": SERVER | {"optimizer": {"optimizer": "rprop"}, "aggregate": {"by": "median"}}},
    "Krum, late": {
        "server": SERVER | {"aggregate": {"by": "krum"}, "staleness": {}},
        "lateness": {"shares": [0.5, 0.5]},
    },
    "the trimmed mean, clipped": {
        "training": {"algorithm": "gradient", "batch": 10},
        "server": SERVER | {"aggregate": {"by": "trimmed_mean"}, "clip": {"by": "quantile"}},
    },
    "signs as bits": {"upload": [{"link": "sign"}], "training": {"algorithm": "gradient"}},
}
"""Experiments in which only training is compiled, one round in each call."""


@pytest.mark.parametrize("case", CASES)
def test_rounds_agree_with_numpy(case: str, tmp_path: Path) -> None:
    weights, losses, counts = run(tmp_path, "numpy", **CASES[case])
    compiled, same_losses, same_counts = run(tmp_path, "jax", **CASES[case])
    np.testing.assert_allclose(compiled, weights, rtol=1e-12, atol=1e-12)
    np.testing.assert_allclose(same_losses, losses, rtol=1e-12)
    assert same_counts == counts


@pytest.mark.parametrize("case", EVERYONE)
def test_rounds_of_everyone_agree_with_numpy(case: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fedping.experiments.laboratory.rounds.compiled._CACHE", 2**12)
    asked = {"sampling": {"sampling": "all"}, "partition": {"partition": "iid", "clients": 13}} | EVERYONE[case]
    lanes = Lanes(setup(engine="jax", **asked), prepare(setup(**asked), 3, None), with_server=True)
    assert lanes.rectangle is not None
    assert (lanes.rectangle.at_once == 13) == ("one" in case)
    weights, losses, counts = run(tmp_path, "numpy", **asked)
    compiled, same_losses, same_counts = run(tmp_path, "jax", **asked)
    np.testing.assert_allclose(compiled, weights, rtol=1e-12, atol=1e-12)
    np.testing.assert_allclose(same_losses, losses, rtol=1e-12)
    assert same_counts == counts


def test_single_precision_agrees_to_its_digits(tmp_path: Path) -> None:
    model = {"model": {"name": "logistic-regression", "precision": "float32"}}
    weights, compiled = (run(tmp_path, engine, **model)[0] for engine in ("numpy", "jax"))
    np.testing.assert_allclose(compiled, weights, atol=1e-5)


def test_a_loss_of_ones_own_agrees(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "loss_of_the_tests.py").write_text(OWN_LOSS)
    monkeypatch.syspath_prepend(str(tmp_path))
    own = {"name": "jax", "function": "loss_of_the_tests:loss", "weights": 31, "predict": "loss_of_the_tests:predict"}
    asked = {"model": own | {"predicts": "log_odds"}, "rounds": 3, "partition": {"partition": "iid", "clients": 8}}
    weights, losses, counts = run(tmp_path, "numpy", **asked)
    compiled, same_losses, same_counts = run(tmp_path, "jax", **asked)
    np.testing.assert_allclose(compiled, weights, atol=1e-5)
    np.testing.assert_allclose(same_losses, losses, rtol=1e-5)
    assert same_counts == counts
    assert np.abs(weights).max() > 0.05


def test_a_loss_that_is_not_finite_in_an_evaluation_names_the_split(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "odd_loss_of_the_tests.py").write_text(
        OWN_LOSS.replace("softplus(odds)", "softplus(odds) * jax.numpy.nan")
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    module = "odd_loss_of_the_tests"
    own = {"name": "jax", "function": f"{module}:loss", "weights": 31, "predict": f"{module}:predict"}
    with pytest.raises(FedpingError, match=r"evaluated on (validation|test) examples: the loss is nan for client"):
        run(tmp_path, "jax", model=own | {"predicts": "log_odds"}, rounds=1)


OWN_LOSS = """
import jax

def predict(weights, x):
    return x @ weights[:30] + weights[30]

def loss(weights, x, y):
    odds = predict(weights, x)
    return jax.numpy.mean(jax.nn.softplus(odds) - y * odds)
"""


@pytest.mark.parametrize(("alpha", "clients", "most"), [(0.3, 50, 0.35), (10.0, 40, 0.3)])
def test_little_is_computed_for_nothing(alpha: float, clients: int, most: float) -> None:
    """Overhead is computed over needed rows, minus one; padding to the largest client has 2 to 20 times as much."""
    data = {"name": "digits"}
    partition = {"partition": "dirichlet", "clients": clients, "alpha": alpha}
    local = {"algorithm": "local", "rate": 0.05, "epochs": 1, "batch": 20}
    sampling = {"sampling": "uniform", "clients": 20}
    asked = setup(engine="jax", data=data, partition=partition, training=local, sampling=sampling)
    lanes = Lanes(asked, prepare(asked, 1, None), with_server=True)
    for number in range(10):
        clients_of = lanes.participants.of_round(number)
        lanes.drawn_round(clients_of, lanes.problem.keys(number)[clients_of])
    assert lanes.padding.computed / lanes.padding.needed - 1 < most


def test_rounds_resume_within_a_call() -> None:
    """A checkpoint may be between two evaluations, and gives the same bits."""
    asked = setup(engine="jax")
    problem = prepare(asked, 3, None)
    whole = CompiledRounds(asked, problem)
    for _ in range(7):
        whole.run([])
    assert whole.notes[0].startswith("made by JAX ")
    resumed = CompiledRounds(asked, problem)
    resumed.restore({name: np.array(value) for name, value in whole.snapshot().items()})
    for _ in range(3):
        whole.run([])
        resumed.run([])
    np.testing.assert_array_equal(resumed.weights, whole.weights)


@pytest.mark.parametrize("sampling", [{"sampling": "uniform", "clients": 5}, {"sampling": "all"}])
@pytest.mark.parametrize("at", ["client", "server"])
def test_a_divergence_is_computed_once(sampling: dict[str, Any], at: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The rest of a call after a diverged round has no effect, so no round is computed twice."""
    rate = {"rate": 1e25} if at == "server" else {}
    asked = setup(
        engine="jax",
        model={"name": "linear-regression"},
        data={"name": "diabetes", "standardise": True},
        partition={"partition": "iid", "clients": 12},
        sampling=sampling,
        training={"algorithm": "local", "rate": 0.01 if at == "server" else 1e5, "steps": 3},
        server=SERVER | {"optimizer": SERVER["optimizer"] | rate},
    )
    problem, calls = prepare(asked, 3, None), []

    def counted(work: Work) -> Any:
        calls.append(work)
        return compiled(work)

    monkeypatch.setattr("fedping.experiments.laboratory.rounds.compiled.compiled", counted)
    rounds, channel = CompiledRounds(asked, problem), ServerRounds(MemoryChannel(problem.line, problem.ids))
    cohorts = Cohorts(replace(asked, engine="numpy"), problem)
    told = "would be .*1e30" if at == "server" else "training on client [0-9]+ has diverged|no longer finite"
    done = until_it_diverges(lambda _: rounds.run([]), told)
    assert len(calls) == 1
    assert done == until_it_diverges(lambda number: channel.run(cohorts.sent(number, [channel.weights])), "diverged")
    np.testing.assert_allclose(rounds.weights, channel.weights, rtol=1e-9)


def until_it_diverges(run: Callable[[int], object], sentence: str) -> int:
    """Return the number of rounds before the one that diverges with this sentence."""
    for number in range(5):
        try:
            run(number)
        except Diverged as error:
            if re.search(sentence, str(error)):
                return number
            raise
    raise AssertionError("no round diverged")


def test_clients_of_any_size_and_seed_share_one_compilation() -> None:
    asked = setup(engine="jax", training={"algorithm": "local", "rate": 0.05, "epochs": 1, "batch": 9})
    problems = [prepare(asked, seed, None) for seed in range(3)]
    for problem in problems:
        rounds = CompiledRounds(asked, problem)
        for _ in range(10):
            rounds.run([])
    assert compiled(rounds._work)._cache_size() == 1  # type: ignore[attr-defined]


@pytest.mark.parametrize("case", BETWEEN)
def test_training_agrees_with_numpy_where_the_server_is_numpy(case: str, tmp_path: Path) -> None:
    asked = BETWEEN[case] | {"rounds": 4}
    weights, losses, counts = run(tmp_path, "numpy", **asked)
    compiled, same_losses, same_counts = run(tmp_path, "jax", **asked)
    np.testing.assert_allclose(compiled, weights, rtol=1e-9, atol=1e-9)  # updates are rounded to float32
    np.testing.assert_allclose(same_losses, losses, rtol=1e-9)
    assert same_counts == counts
    outcome = run_unit(Unit("jax", None, setup(engine="jax", **asked), 3, None), tmp_path)
    parts = {"upload": "'upload'", "lateness": "[lateness]", "training": "'clip' in [server]"}
    part = next((words for key, words in parts.items() if key in asked), "'optimizer' in [server]")
    assert any(f"one round a call, and NumPy {part}" in note for note in outcome.notes)


@pytest.mark.parametrize(
    ("changes", "part"),
    [
        ({"model": {"name": "k-means"}}, "the model 'k-means'"),
        ({"training": LOCAL | {"personal": {"by": "fine_tune", "rate": 0.1, "steps": 1}}}, "'personal' in .training."),
        ({"training": LOCAL | {"optimizer": {"optimizer": "adam", "keep": True}}}, "'keep' of a client optimizer"),
        ({"where": "files"}, "in memory"),
    ],
)
def test_what_cannot_be_compiled_is_refused_before_the_first_round(changes: dict[str, Any], part: str) -> None:
    with pytest.raises((InvalidSettings, msgspec.ValidationError), match=part):
        check_inside(setup(engine="jax", **changes))


def test_an_algorithm_that_is_not_compiled_is_refused_by_its_name() -> None:
    training = {"algorithm": "decaying", "rate": 0.1, "steps": 2, "decay": 0.1}
    raw = {"engine": "jax", "data": {"name": "breast-cancer"}, "model": {"name": "logistic-regression"}}
    asked = experiment_of(raw | {"rounds": 1, "training": training}, name="x", folder=Path())
    with pytest.raises(InvalidSettings, match=r"algorithm = 'decaying' in \[training\] cannot be compiled"):
        check_inside(next(iter(asked.variants.values())))


def test_every_variant_is_checked_before_the_first_round_of_any(tmp_path: Path) -> None:
    variants = {"a": setup(), "b": setup(engine="jax", model={"name": "k-means"})}
    with pytest.raises(InvalidSettings, match=r"variant 'b': .*the model 'k-means' cannot be compiled"):
        run_experiment(Experiment(name="x", seeds=(1,), variants=variants), tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_auto_is_resolved_once_and_recorded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With an accelerator, JAX compiles whole rounds; the folder records this, also if JAX is missing later."""
    asked = setup(engine="auto", rounds=2, evaluation={"every": 2, "baselines": []})
    assert resolved(asked).engine == "numpy", "on a processor, NumPy is as fast"
    monkeypatch.setattr("jax.default_backend", lambda: "gpu")
    by_median = setup(engine="auto", rounds=1, server=BETWEEN["the median, then RProp"]["server"])
    assert resolved(asked).engine == "jax"
    assert [resolved(each).engine for each in (by_median, setup(engine="auto", where="files"))] == ["numpy", "numpy"]
    experiment = Experiment(name="x", seeds=(1,), variants={"a": asked})
    run_experiment(experiment, tmp_path / "out")
    assert json.loads((tmp_path / "out" / "experiment.json").read_bytes())["variants"]["a"]["engine"] == "jax"
    monkeypatch.setattr("fedping.experiments.laboratory.rounds.inside.find_spec", lambda name: None)
    assert resolved(asked).engine == "numpy"
    assert resolved(asked, replace(asked, engine="jax")).engine == "jax"
    run_experiment(experiment, tmp_path / "out")  # continues after the finished runs
    longer = Experiment(name="x", seeds=(1, 2), variants={"a": asked})
    with pytest.raises(InvalidSettings, match=r"pip install"):
        run_experiment(longer, tmp_path / "out")


def test_without_jax_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fedping.experiments.laboratory.rounds.inside.find_spec", lambda name: None)
    with pytest.raises(InvalidSettings, match=r'engine = "jax" needs JAX.*pip install "fedping\[jax\]"'):
        check_inside(setup(engine="jax"))


def test_a_platform_that_is_not_there_is_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails() -> str:
        raise RuntimeError("Unable to initialize backend 'cuda'")

    monkeypatch.setattr("jax.default_backend", fails)
    monkeypatch.setattr("jax.devices", fails)
    assert resolved(setup(engine="auto")).engine == "numpy"
    with pytest.raises(InvalidSettings, match=r'engine = "jax" finds no device.*backend .cuda..*set engine = "numpy"'):
        CompiledRounds(setup(engine="jax"), prepare(setup(), 3, None))


def test_nothing_but_the_engine_imports_jax(tmp_path: Path) -> None:
    code = "import sys; import fedping.experiments.laboratory.run; sys.exit('jax' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_a_device_without_memory_is_told_what_takes_it(monkeypatch: pytest.MonkeyPatch) -> None:
    import jax

    asked = setup(engine="jax")
    rounds = CompiledRounds(asked, prepare(asked, 3, None))

    def full(work: object) -> Any:
        def call(*_: object) -> Any:
            raise jax.errors.JaxRuntimeError("RESOURCE_EXHAUSTED: Out of memory allocating 29601511208 bytes.")

        return call

    monkeypatch.setattr("fedping.experiments.laboratory.rounds.compiled.compiled", full)
    with pytest.raises(FedpingError, match=r"5 clients train at a time, each on up to 10 examples in a step, by 31 w"):
        rounds.run([])
