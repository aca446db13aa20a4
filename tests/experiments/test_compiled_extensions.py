"""Extensions in compiled rounds: JAX extensions run inside; NumPy extensions run between calls, or are rejected."""

import importlib
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedping.experiments.laboratory.preparing import prepare
from fedping.experiments.laboratory.rounds.compiled import CompiledRounds
from fedping.experiments.laboratory.rounds.inside import between, check_inside
from fedping.experiments.laboratory.run import run_experiment
from fedping.experiments.laboratory.settings import Experiment
from fedping.protocol.errors import InvalidSettings
from fedping.protocol.extensions import ExtensionFailed
from fedping.server_jobs.optimize import BrokenLink
from tests.experiments.test_compiled_methods import LOCAL, STEPS, run, setup
from tests.support.registry import registry_of_its_own

pytest.importorskip("jax")

EXTENSIONS = """
from dataclasses import dataclass

import numpy as np
from jax import numpy as jnp

import fedping


@fedping.client_algorithm("own-scaffold")
@dataclass(frozen=True, kw_only=True)
class OwnScaffold(fedping.Stepwise):
    rate: float
    participation: float = 1.0
    adds_mean = True

    def init_state(self, model):
        return {"control": np.zeros(len(model.weight_names))}

    def beside(self, model):
        return (fedping.array("control", (len(model.weight_names),)),)

    def begin(self, weights, state):
        fetched, common = jnp.split(weights, 2)
        return {"moved": jnp.zeros_like(fetched), "correction": common - state["control"], "steps": jnp.zeros(())}

    def at(self, weights, local):
        return jnp.split(weights, 2)[0] + local["moved"]

    def step(self, weights, local, gradient):
        moved = local["moved"] - self.rate * (gradient + local["correction"])
        return {**local, "moved": moved, "steps": local["steps"] + 1}

    def end(self, weights, local, state):
        change = -jnp.split(weights, 2)[1] - local["moved"] / (local["steps"] * self.rate)
        return jnp.concatenate([local["moved"], self.participation * change]), {"control": state["control"] + change}


@fedping.client_algorithm("counting")
@dataclass(frozen=True, kw_only=True)
class Counting(fedping.Stepwise):
    def init_state(self, model):
        return {"trained": np.zeros(())}

    def begin(self, weights, state):
        return {"moved": jnp.zeros_like(weights), "taken": 0}

    def at(self, weights, local):
        return weights + local["moved"]

    def step(self, weights, local, gradient):
        return {"moved": local["moved"] - 0.1 / local["taken"].clip(1) * gradient, "taken": local["taken"] + 1}

    def end(self, weights, local, state):
        return local["moved"], {"trained": 1}


@fedping.client_algorithm("momentum-beside")
@dataclass(frozen=True, kw_only=True)
class MomentumBeside(fedping.Stepwise):
    rate: float
    adds_mean = True

    def init_state(self, model):
        return {"last": np.zeros(len(model.weight_names))}

    def beside(self, model):
        return (fedping.array("direction", (len(model.weight_names),)),)

    def begin(self, weights, state):
        fetched, direction = jnp.split(weights, 2)
        return {"moved": jnp.zeros_like(fetched), "direction": direction}

    def at(self, weights, local):
        return jnp.split(weights, 2)[0] + local["moved"]

    def step(self, weights, local, gradient):
        return {**local, "moved": local["moved"] - self.rate * (gradient + 0.5 * local["direction"])}

    def end(self, weights, local, state):
        change = -local["moved"] - jnp.split(weights, 2)[1]
        return jnp.concatenate([local["moved"], change]), {"last": local["moved"]}

    def personal_weights(self, model, weights, batch, state):
        return np.split(weights, 2)[0] + state["last"]


@fedping.client_algorithm("misshapen")
@dataclass(frozen=True, kw_only=True)
class Misshapen(fedping.Stepwise):
    sort: bool = False
    cut: bool = False

    def begin(self, weights, state):
        return {"moved": jnp.zeros_like(weights)}

    def at(self, weights, local):
        return weights + local["moved"]

    def step(self, weights, local, gradient):
        moved = local["moved"] - (np.sort(gradient) if self.sort else gradient)
        return {"moved": moved[1:] if self.cut else moved}

    def end(self, weights, local, state):
        return local["moved"][:3], {}


@fedping.client_algorithm("misnamed")
@dataclass(frozen=True, kw_only=True)
class Misnamed(fedping.Stepwise):
    where: str

    def init_state(self, model):
        return {"own": np.zeros(2), "times": np.zeros(())}

    def begin(self, weights, state):
        local = {"moved": jnp.zeros_like(weights)}
        return tuple(local) if self.where == "begin" else local

    def at(self, weights, local):
        return weights + local["moved"]

    def step(self, weights, local, gradient):
        moved = local["moved"] - gradient
        return {"move": moved} if self.where == "step" else {"moved": moved}

    def end(self, weights, local, state):
        return local["moved"], {"own": state["own"]} if self.where == "end" else state


@fedping.aggregation("middle-jax")
def middle_jax(*, share: float = 0.2):
    def finish(kept, line, weights, state, key):
        cut = int(share * len(kept.updates))
        return jnp.sort(kept.updates, axis=0)[cut : len(kept.updates) - cut].mean(axis=0)

    return fedping.of_all(finish)


@fedping.aggregation("spoilt")
def spoilt():
    def finish(kept, line, weights, state, key):
        return kept.updates.mean(axis=0) / jnp.where(weights == 0, 1, 0)  # from round 2 on

    return fedping.of_all(finish)


@fedping.aggregation("middle-numpy")
def middle_numpy(*, share: float = 0.2):
    def finish(kept, line, weights, state, key):
        cut = int(share * len(kept.updates))
        return np.sort(kept.updates, axis=0)[cut : len(kept.updates) - cut].mean(axis=0)

    return fedping.of_all(finish)


@fedping.aggregation("drawn")
def drawn():
    def finish(kept, line, weights, state, key):
        return kept.updates[int.from_bytes(key[:4], "little") % len(kept.updates)]

    return fedping.of_all(finish)


@fedping.aggregation("remembered")
def remembered():
    def finish(kept, line, weights, state, key):
        direction = kept.updates.mean(axis=0)
        return fedping.Finished(direction, {"before": direction})

    return fedping.of_all(finish)
"""


@pytest.fixture(autouse=True)
def extensions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Register the extensions for this test alone."""
    registry_of_its_own(monkeypatch)
    (tmp_path / "extensions_in_compiled_rounds.py").write_text(EXTENSIONS)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setenv("FEDPING_EXTENSIONS", "extensions_in_compiled_rounds")
    monkeypatch.delitem(sys.modules, "extensions_in_compiled_rounds", raising=False)
    importlib.import_module("extensions_in_compiled_rounds")


def by(name: str, **settings: Any) -> dict[str, Any]:
    aggregate = {"by": name, **settings}
    server = {"optimizer": {"optimizer": "gradient_descent"}, "min_clients": 1, "aggregate": aggregate}
    return {"training": LOCAL, "server": server | {"weighting": "client"}}


def test_an_algorithm_in_jax_runs_inside_and_by_numpy(tmp_path: Path) -> None:
    """The algorithm is SCAFFOLD, so it must also agree with fedping's own."""
    training = {"algorithm": "own-scaffold", "participation": 5 / 12, **STEPS}
    weights, _ = run(tmp_path / "own", "numpy", training=training)
    compiled, _ = run(tmp_path / "own", "jax", training=training)
    ours, _ = run(tmp_path / "ours", "numpy", training=training | {"algorithm": "scaffold"})
    np.testing.assert_allclose(compiled, weights, rtol=1e-12, atol=1e-12)
    np.testing.assert_allclose(compiled, ours, rtol=1e-9, atol=1e-9)  # updates are rounded to float32
    assert between(setup(engine="jax", training=training)) == ()


def test_clients_predict_without_what_is_published_beside(tmp_path: Path) -> None:
    training = {"algorithm": "momentum-beside", "rate": 0.1, "steps": 2}
    weights, metrics = run(tmp_path, "numpy", training=training)
    compiled, same = run(tmp_path, "jax", training=training)
    np.testing.assert_allclose(compiled, weights, rtol=1e-12, atol=1e-12)
    np.testing.assert_allclose(same["personal loss"], metrics["personal loss"], rtol=1e-9)
    assert metrics["personal loss"][-1] < 0.2 < metrics["personal loss"][0]


def test_an_algorithm_may_have_plain_numbers_for_arrays(tmp_path: Path) -> None:
    training = {"algorithm": "counting", "steps": 3, "batch": 10}
    weights, _ = run(tmp_path, "numpy", training=training)
    compiled, _ = run(tmp_path, "jax", training=training)
    np.testing.assert_allclose(compiled, weights, rtol=1e-12, atol=1e-12)


def test_an_algorithm_in_jax_that_does_not_fit_is_refused_before_the_first_round() -> None:
    for settings, sentence in (
        ({"sort": True}, r"'misshapen'.*JAX cannot compile its step \(Tracer.*jax.numpy, for one client$"),
        (
            {"cut": True},
            r"'misshapen'.*step returned 'moved' of shape \[30\]; return .* \[31\]",
        ),
        ({"sort": False}, r"'misshapen'.*has the shape \[3\] for the update of end; return the shape \[31\]"),
    ):
        asked = setup(engine="jax", training={"algorithm": "misshapen", "steps": 1, **settings})
        with pytest.raises(ExtensionFailed, match=sentence):
            CompiledRounds(asked, prepare(asked, 3, None))


@pytest.mark.parametrize("engine", ["numpy", "jax"])
@pytest.mark.parametrize(
    ("where", "says"),
    [
        ("begin", "begin returned tuple as arrays; return a dict of arrays by name"),
        ("step", "step returned arrays with the keys move; return those of begin: moved"),
        ("end", "end returned state with the keys own; return those of init_state: own, times"),
    ],
)
def test_wrong_keys_are_said_in_our_words(engine: str, where: str, says: str, tmp_path: Path) -> None:
    training = {"algorithm": "misnamed", "steps": 2, "where": where}
    with pytest.raises(ExtensionFailed, match=rf"the client algorithm 'misnamed', .*an extension, says: {says}$"):
        run(tmp_path, engine, training=training)


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"sort": True}, r"'misshapen'.*JAX cannot compile its step \(Tracer.*jax.numpy, for one client"),
        ({"cut": True}, r"'misshapen'.*step returned 'moved' of shape \[30\]"),
    ],
)
def test_an_algorithm_in_jax_that_does_not_fit_is_named_by_the_other_engine_too(
    settings: dict[str, bool], sentence: str, tmp_path: Path
) -> None:
    with pytest.raises(ExtensionFailed, match=sentence):
        run(tmp_path, "numpy", training={"algorithm": "misshapen", "steps": 1, **settings})


def test_an_algorithm_in_numpy_is_refused_with_what_to_do() -> None:
    asked = setup(engine="jax", training={"algorithm": "decaying", "rate": 0.1, "steps": 2, "decay": 0.1})
    with pytest.raises(InvalidSettings, match=r"'decaying'.*cannot be compiled.*or make its class a fedping.Stepwise"):
        check_inside(asked)


def test_an_aggregation_in_jax_runs_inside(tmp_path: Path) -> None:
    assert between(setup(engine="jax", **by("middle-jax"))) == ()
    weights, _ = run(tmp_path / "numpy", "numpy", **by("middle-numpy"))
    compiled, _ = run(tmp_path / "jax", "jax", **by("middle-jax"))
    np.testing.assert_allclose(compiled, weights, atol=1e-6)  # its mean is in single precision


@pytest.mark.parametrize("engine", ["numpy", "jax"])
def test_an_aggregation_that_returns_no_number_is_named(engine: str, tmp_path: Path) -> None:
    sentence = r"round 2 failed: the aggregation 'spoilt' returned a direction that is -?(inf|nan) at weight 'coe"
    with pytest.raises(BrokenLink, match=sentence):
        run(tmp_path, engine, **by("spoilt"))


@pytest.mark.parametrize("name", ["middle-numpy", "drawn", "remembered"])
def test_an_aggregation_that_jax_cannot_compile_runs_between(name: str) -> None:
    """An aggregation with random draws or state also runs between calls."""
    assert between(setup(engine="jax", **by(name))) == ("'aggregate' in [server]",)


def test_an_aggregation_sees_as_many_rows_as_there_are_clients() -> None:
    by_coin = {"sampling": {"sampling": "bernoulli", "share": 0.5}}
    assert between(setup(engine="jax", **by("middle-jax"), **by_coin)) == ("'aggregate' in [server]",)


def test_what_numpy_computes_is_said_before_the_first_round(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    said: list[str] = []

    def stopped(*_: object) -> None:
        said.append(capsys.readouterr().err)
        raise KeyboardInterrupt

    monkeypatch.setattr("fedping.experiments.laboratory.run.run_units", stopped)
    variants = {"a": setup(), "b": setup(engine="jax", **by("middle-numpy"))}
    with pytest.raises(KeyboardInterrupt):
        run_experiment(Experiment(name="x", seeds=(1,), variants=variants), tmp_path / "out")
    assert (
        "variant 'b': JAX computes the training of clients, one round a call, and NumPy 'aggregate' in [server]"
        in said[0]
    )
