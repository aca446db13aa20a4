"""The networks that fedping ships have their papers' layers, and learn."""

from typing import Any

import numpy as np
import pytest

from fedping.client_sim.learning import cohort_updates, learner_for, model_spec
from fedping.client_sim.learning.batch import Examples
from fedping.client_sim.learning.networks.tree_model import TreeModel
from fedping.protocol.errors import FedpingError, InvalidSettings
from fedping.protocol.training import LocalSteps

pytest.importorskip("jax")

from jax import numpy as jnp

SIZES: dict[str, tuple[str, dict[str, Any], int]] = {
    "McMahan et al. 2017, MNIST": ("cnn", {"features": 784, "classes": 10}, 1_663_370),
    "Reddi et al. 2021, EMNIST": ("cnn", {"features": 784, "classes": 62, "layout": "reddi-2021"}, 1_206_590),
    "Reddi et al. 2021, Shakespeare": ("lstm", {"features": 80, "classes": 90}, 820_522),
    "Rodríguez-Barroso et al. 2020": (
        "cnn",
        {"features": 784, "classes": 10, "layout": "rodriguez-barroso-2020"},
        320 + 9_248 + 200_832 + 8_256 + 650,
    ),
}


@pytest.mark.parametrize("paper", SIZES)
def test_a_network_has_as_many_weights_as_its_paper_says(paper: str) -> None:
    name, settings, weights = SIZES[paper]
    assert model_spec(name, settings).m == weights


def images(side: int = 8) -> Examples:
    """Return images that are bright at the top or at the bottom."""
    random = np.random.default_rng(3)
    y = random.integers(0, 2, (4, 12))
    x = random.normal(0, 0.3, (4, 12, side, side))
    x[:, :, : side // 2] += (y == 0)[..., None, None]
    x[:, :, side // 2 :] += (y == 1)[..., None, None]
    return Examples(x.reshape(4, 12, side * side), y, np.ones(y.shape))


def texts() -> Examples:
    """Return sequences in which each of four symbols follows the previous one."""
    begins = np.random.default_rng(4).integers(0, 4, (4, 12))
    places = (begins[..., None] + np.arange(6)) % 4
    return Examples(places[..., :5].astype(float), places[..., 5], np.ones(begins.shape))


LEARNS: dict[str, tuple[str, dict[str, Any], Examples, float]] = {
    "mcmahan-2017": ("cnn", {"features": 64}, images(), 0.1),
    "rodriguez-barroso-2020": ("cnn", {"features": 64, "layout": "rodriguez-barroso-2020"}, images(), 0.2),
    "reddi-2021": ("cnn", {"features": 64, "layout": "reddi-2021"}, images(), 0.1),
    "lstm": ("lstm", {"features": 5, "units": "6, 5", "embedding": 3}, texts(), 2.0),
    "transformer": ("transformer", {"features": 5, "width": 8, "heads": 2, "layers": 1}, texts(), 1.0),
}


SHORT = ("rodriguez-barroso-2020", "lstm")


@pytest.mark.parametrize(
    "network", [pytest.param(each, marks=[pytest.mark.long] * (each not in SHORT)) for each in LEARNS]
)
def test_it_learns(network: str) -> None:
    """Compiling takes some seconds. The final loss is at most a fifth of the untrained network's."""
    name, settings, batch, rate = LEARNS[network]
    spec = model_spec(name, {"classes": 2 if name == "cnn" else 4, **settings})
    model, weights = learner_for(spec), spec.start_array
    before = model.losses(weights, batch).mean()
    assert before == pytest.approx(np.log(2 if name == "cnn" else 4), rel=0.4)
    training = LocalSteps(rate=rate, epochs=3, batch=4)
    for number in range(15):
        keys = np.arange(4, dtype=np.uint64) + np.uint64(4 * number)
        weights = weights + cohort_updates(model, training, weights, batch, keys).updates.mean(axis=0)
    assert model.losses(weights, batch).mean() < before / 5
    assert (model.predict(weights, batch).argmax(axis=2) == batch.y).mean() > 0.9


def network_of(name: str, **settings: Any) -> tuple[TreeModel, dict[str, Any]]:
    spec = model_spec(name, {"features": 5, "classes": 4, **settings})
    model = learner_for(spec)
    assert isinstance(model, TreeModel)
    return model, model.network.structure.tree(jnp.asarray(np.random.default_rng(5).normal(size=spec.m), "float32"))


@pytest.mark.parametrize("name", ["lstm", "transformer"])
def test_no_symbol_is_predicted_from_a_later_one(name: str) -> None:
    model, weights = network_of(name, **({"units": "6, 5"} if name == "lstm" else {"width": 8, "heads": 2}))
    one, other = np.array([[0, 1, 2, 3, 0.0]]), np.array([[0, 1, 2, 0, 3.0]])
    outputs = [np.asarray(model.network.outputs(weights, jnp.asarray(x), None))[0] for x in (one, other)]
    np.testing.assert_allclose(outputs[0][:3], outputs[1][:3], atol=1e-5)
    assert np.abs(outputs[0][3:] - outputs[1][3:]).min() > 1e-4


def test_an_lstm_is_that_of_the_formulas() -> None:
    model, weights = network_of("lstm", units="3", embedding=2)
    w = {name: np.asarray(value, np.float64) for name, value in weights.items()}
    x = np.array([2, 0, 1, 3, 3])
    output, cell = np.zeros(3), np.zeros(3)
    for symbol in x:
        gates = w["embedding.table"][symbol] @ w["lstm1.kernel"] + output @ w["lstm1.recurrent"] + w["lstm1.bias"]
        enters, forgets, new, leaves = np.split(gates, 4)
        cell = cell / (1 + np.exp(-forgets - 1)) + np.tanh(new) / (1 + np.exp(-enters))
        output = np.tanh(cell) / (1 + np.exp(-leaves))
    wanted = output @ w["head.kernel"] + w["head.bias"]
    found = model.network.outputs(weights, jnp.asarray(x[None], "float32"), None)
    np.testing.assert_allclose(found[0, -1], wanted, atol=1e-5)


def test_the_loss_is_of_the_symbols_that_are_asked_for() -> None:
    log_odds = np.random.default_rng(6).normal(size=(1, 5, 4))
    each = np.log(np.exp(log_odds[0]).sum(axis=1))[:, None] - log_odds[0]
    x, y = np.array([[3.0, 1, 2, 0, 0]]), np.array([2])
    nexts = np.array([1, 2, 0, 0, 2])
    of_next = each[np.arange(5), nexts]
    for settings, wanted in (
        ({}, of_next.mean()),
        ({"scored": "last"}, of_next[-1]),
        ({"padding": 0}, of_next[nexts != 0].mean()),
    ):
        model, _ = network_of("lstm", units="3", **settings)
        found = model.network.losses(jnp.asarray(log_odds), jnp.asarray(x), jnp.asarray(y))
        np.testing.assert_allclose(found, [wanted], rtol=1e-5)


@pytest.mark.parametrize(
    ("name", "settings", "says"),
    [
        ("cnn", {"features": 63}, "features = 63 and channels = 1, which is not a square image"),
        ("cnn", {"features": 4}, "an image of 2 by 2 pixels is too small for the layers 'mcmahan-2017'"),
        ("cnn", {"features": 64, "layout": "lenet"}, "'mcmahan-2017' or 'rodriguez-barroso-2020' or 'reddi-2021'"),
        ("lstm", {"padding": 4}, "'padding' of the model 'lstm' is 4, and there are 4 classes"),
        ("transformer", {"width": 10, "heads": 4}, "width = 10, which 4 heads don't divide"),
        ("transformer", {"dropout": 1.0}, "'dropout' of the model 'transformer' is 1; set it below 1"),
    ],
)
def test_settings_that_do_not_fit_are_told(name: str, settings: dict[str, Any], says: str) -> None:
    with pytest.raises(InvalidSettings, match=says):
        model_spec(name, {"features": 5, "classes": 4, **settings})


def test_a_symbol_that_is_none_is_told() -> None:
    model, _ = network_of("lstm", units="3")
    batch = texts()
    batch.x[0, 0, 0] = 4
    with pytest.raises(FedpingError, match="knows 4 symbols, and examples have numbers from 0 to 4"):
        model.losses(model.start, batch)
