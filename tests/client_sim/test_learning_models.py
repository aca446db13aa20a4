"""Losses, gradients and optima of the models, compared with finite differences, scikit-learn and autograd."""

from __future__ import annotations

from typing import Any

import autograd.numpy as anp
import numpy as np
import pytest
from autograd import grad
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.linear_model import LogisticRegression as SkLogistic
from sklearn.linear_model import Ridge
from sklearn.metrics import log_loss, mean_squared_error

from fedping.client_sim.learning import Examples, learner_for, model_spec
from fedping.client_sim.learning.model import losses_and_gradients
from fedping.client_sim.learning.models.matrix_factorization import USER
from fedping.protocol.errors import FedpingError, InvalidSettings

NAMES = {
    "linear": ("linear-regression", {"features": 3, "l2": 0.3}, 0),
    "linear-without-intercept": ("linear-regression", {"features": 3, "intercept": False}, 0),
    "binary": ("logistic-regression", {"features": 3, "l2": 0.2}, 2),
    "multinomial": ("logistic-regression", {"features": 3, "classes": 4, "l2": 0.2}, 4),
    "network": ("network", {"features": 3, "classes": 4, "hidden": 5, "l2": 0.1}, 4),
    "ratings": ("matrix-factorization", {"items": 4, "factors": 2, "l2": 0.1, "mean": 0.5}, 0),
    "deep": ("network", {"features": 3, "classes": 4, "hidden": "5, 6,4", "l2": 0.1}, 4),
}


def learner(name: str) -> Any:
    model, chosen, _ = NAMES[name]
    return learner_for(model_spec(model, chosen))


def examples(name: str, seed: int, sizes: tuple[int, ...] = (5, 0, 2)) -> Examples:
    """Return examples of clients of different sizes; the padding has numbers that must not matter."""
    rng, classes = np.random.default_rng(seed), NAMES[name][2]
    shape = (len(sizes), max(sizes))
    y = rng.integers(0, classes, shape) if classes else rng.standard_normal(shape)
    there = np.arange(shape[1]) < np.array(sizes)[:, None]
    items = NAMES[name][1].get("items")
    x = rng.integers(0, items, (*shape, 1)).astype(float) if items else rng.standard_normal((*shape, 3))
    return Examples(x, y, np.where(there, rng.uniform(0.5, 2.0, shape), 0.0))


def differences(model: Any, weights: np.ndarray, batch: Examples, step: float = 1e-6) -> np.ndarray:
    one = np.eye(weights.shape[-1]) * step
    ahead = np.stack([model.losses(weights + e, batch) for e in one], axis=1)
    return (ahead - np.stack([model.losses(weights - e, batch) for e in one], axis=1)) / (2 * step)


@pytest.mark.parametrize("name", NAMES)
@given(seed=st.integers(0, 2**32 - 1))
@settings(max_examples=10)
def test_gradients_are_the_differences_of_the_loss(name: str, seed: int) -> None:
    model, batch = learner(name), examples(name, seed)
    weights = np.random.default_rng(seed + 1).standard_normal(len(model.weight_names))
    np.testing.assert_allclose(model.gradients(weights, batch), differences(model, weights, batch), atol=2e-7)
    own = weights + np.random.default_rng(seed + 2).standard_normal((3, len(weights)))
    np.testing.assert_allclose(model.gradients(own, batch), differences(model, own, batch), atol=2e-7)


@pytest.mark.parametrize("name", NAMES)
def test_own_weights_shared_weights_and_both_at_once_agree(name: str) -> None:
    model, batch = learner(name), examples(name, 3)
    weights = np.random.default_rng(1).standard_normal(len(model.weight_names))
    own = np.tile(weights, (3, 1))
    np.testing.assert_allclose(model.gradients(own, batch), model.gradients(weights, batch), atol=1e-14)
    np.testing.assert_allclose(model.losses(own, batch), model.losses(weights, batch), atol=1e-14)
    np.testing.assert_allclose(model.predict(own, batch), model.predict(weights, batch), atol=1e-14)
    losses, gradients = losses_and_gradients(model, weights, batch)
    np.testing.assert_allclose(losses, model.losses(weights, batch), atol=1e-14)
    np.testing.assert_array_equal(gradients, model.gradients(weights, batch))


@pytest.mark.parametrize("name", NAMES)
def test_a_client_without_examples_has_no_loss_and_no_gradient(name: str) -> None:
    model, batch = learner(name), examples(name, 5)
    weights = np.ones(len(model.weight_names))
    assert model.losses(weights, batch)[1] == 0
    assert not model.gradients(weights, batch)[1].any()


@pytest.mark.parametrize("name", NAMES)
def test_padding_does_not_matter(name: str) -> None:
    model, batch = learner(name), examples(name, 7)
    other = Examples(
        np.where(batch.weight[..., None] > 0, batch.x, 1e3), np.where(batch.weight > 0, batch.y, 0), batch.weight
    )
    weights = np.linspace(-1, 1, len(model.weight_names))
    np.testing.assert_allclose(model.losses(weights, other), model.losses(weights, batch), rtol=1e-13)
    np.testing.assert_allclose(model.gradients(weights, other), model.gradients(weights, batch), rtol=1e-9, atol=1e-13)


def test_the_mean_by_examples_is_the_pooled_loss_with_weighted_examples_too() -> None:
    model, batch = learner("binary"), examples("binary", 11, (4, 9, 1))
    weights = np.array([0.3, -1.0, 2.0, 0.5])
    there = batch.weight > 0
    pooled = Examples(batch.x[there][None], batch.y[there][None], batch.weight[there][None])
    sizes = there.sum(axis=1)
    mean = sizes @ model.gradients(weights, batch) / sizes.sum()
    np.testing.assert_allclose(mean, model.gradients(weights, pooled)[0], atol=1e-14)
    np.testing.assert_allclose(sizes @ model.losses(weights, batch) / sizes.sum(), model.losses(weights, pooled)[0])


@pytest.mark.parametrize("odd", [4.0, -1.0, 0.5])
def test_an_example_of_no_item_is_refused(odd: float) -> None:
    model = learner("ratings")
    batch = Examples(np.full((1, 1, 1), odd), np.ones((1, 1)), np.ones((1, 1)))
    with pytest.raises(FedpingError, match=rf"an example is of item {odd:g}, and the model .* has items 0 to 3"):
        model.losses(model.start, batch)
    with pytest.raises(FedpingError, match="one feature, the number of the item, but these have 3"):
        model.losses(model.start, examples("linear", 1))


def test_a_user_beside_the_items_is_a_linear_regression_with_the_same_gradients() -> None:
    """The user's blocks get the same gradients from a smaller model as from the whole model, for all items."""
    model, batch = learner("ratings"), examples("ratings", 4)
    weights = np.random.default_rng(2).standard_normal((3, model.m))
    small, its = model.reduced(USER, weights[:, :-3], batch)
    np.testing.assert_allclose(small.gradients(weights[:, -3:], its), model.gradients(weights, batch)[:, -3:])
    shared = small.predict(weights[:, -3:], its) + (batch.y - its.y)
    np.testing.assert_allclose(shared, model.predict(weights, batch))


def test_losses_are_those_of_scikit_learn() -> None:
    rng = np.random.default_rng(2)
    x, y = rng.standard_normal((40, 3)), rng.integers(0, 4, 40)
    batch = Examples(x[None], y[None], np.ones((1, 40)))
    for name, classes in (("binary", 2), ("multinomial", 4), ("network", 4)):
        model = learner_for(model_spec(NAMES[name][0], {**NAMES[name][1], "l2": 0.0}))
        these = Examples(batch.x, batch.y % classes, batch.weight)
        weights = rng.standard_normal(len(model.weight_names))
        expected = log_loss(these.y[0], model.predict(weights, these)[0], labels=range(classes))
        assert model.losses(weights, these)[0] == pytest.approx(expected)
    linear = learner_for(model_spec("linear-regression", {"features": 3}))
    weights = rng.standard_normal(4)
    assert linear.losses(weights, batch)[0] == pytest.approx(mean_squared_error(y, x @ weights[:3] + weights[3]))


@pytest.mark.parametrize("classes", [2, 3])
def test_the_gradient_is_zero_at_scikit_learns_optimum(classes: int) -> None:
    rng = np.random.default_rng(4)
    x, y, weight = rng.standard_normal((60, 3)), rng.integers(0, classes, 60), rng.uniform(0.5, 2, 60)
    reference = SkLogistic(C=0.7, tol=1e-12, max_iter=10_000).fit(x, y, sample_weight=weight)
    chosen = {"features": 3, "classes": classes, "l2": 1 / (0.7 * 60)}
    model = learner_for(model_spec("logistic-regression", chosen))
    weights = np.concatenate([reference.coef_.T.ravel(), reference.intercept_])
    batch = Examples(x[None], y[None], weight[None])
    np.testing.assert_allclose(model.gradients(weights, batch), 0, atol=1e-6)
    probabilities = reference.predict_proba(x)
    np.testing.assert_allclose(model.predict(weights, batch)[0], probabilities if classes > 2 else probabilities[:, 1])


def test_the_gradient_is_zero_at_the_optimum_of_ridge_regression() -> None:
    rng = np.random.default_rng(5)
    x, y = rng.standard_normal((50, 3)), rng.standard_normal(50)
    reference = Ridge(alpha=2.5).fit(x, y)
    model = learner_for(model_spec("linear-regression", {"features": 3, "l2": 2 * 2.5 / 50}))
    weights = np.append(reference.coef_, reference.intercept_)
    np.testing.assert_allclose(model.gradients(weights, Examples(x[None], y[None], np.ones((1, 50)))), 0, atol=1e-12)


def network_loss(weights: Any, x: np.ndarray, y: np.ndarray, hidden: int, classes: int) -> Any:
    d = x.shape[1]
    sizes = [d * hidden, hidden, hidden * classes, classes]
    w1, b1, w2, b2 = (weights[end - size : end] for size, end in zip(sizes, np.cumsum(sizes), strict=True))
    scores = anp.maximum(anp.dot(x, w1.reshape(d, hidden)) + b1, 0.0) @ w2.reshape(hidden, classes) + b2
    normal = anp.log(anp.sum(anp.exp(scores), axis=1))
    return anp.mean(normal - scores[np.arange(len(y)), y])


@pytest.mark.parametrize(("precision", "tolerance"), [("float64", 1e-13), ("float32", 1e-5)])
def test_the_networks_gradient_is_autograds(precision: str, tolerance: float) -> None:
    rng = np.random.default_rng(6)
    chosen = {"features": 7, "classes": 3, "precision": precision}
    model = learner_for(model_spec("network", chosen))
    x, y = rng.standard_normal((2, 9, 7)), rng.integers(0, 3, (2, 9))
    found = model.gradients(model.start, Examples(x, y, np.ones((2, 9))))
    assert found.dtype == np.dtype(precision)
    for client in range(2):
        expected = grad(network_loss)(np.array(model.start), x[client], y[client], 100, 3)
        np.testing.assert_allclose(found[client], expected, atol=tolerance)


def test_a_network_of_several_hidden_layers_has_their_arrays_in_order() -> None:
    model = learner_for(model_spec("network", {"features": 7, "classes": 3, "hidden": "6, 5"}))
    assert [(block.name, block.shape) for block in model.arrays] == [
        ("W1", (7, 6)),
        ("b1", (6,)),
        ("W2", (6, 5)),
        ("b2", (5,)),
        ("W3", (5, 3)),
        ("b3", (3,)),
    ]
    x = np.random.default_rng(1).standard_normal((1, 4, 7))
    w1, b1, w2, b2, w3, b3 = np.split(model.start + 0.1, np.cumsum([42, 6, 30, 5, 15]))
    inner = np.maximum(np.maximum(x[0] @ w1.reshape(7, 6) + b1, 0) @ w2.reshape(6, 5) + b2, 0)
    scores = np.exp(inner @ w3.reshape(5, 3) + b3)
    shown = model.predict(model.start + 0.1, Examples(x, np.zeros((1, 4), int), np.ones((1, 4))))
    np.testing.assert_allclose(shown[0], scores / scores.sum(axis=1, keepdims=True), atol=1e-12)


@pytest.mark.parametrize("hidden", ["128; 64", "", "5,0", True, 2.5, [8, 4]])
def test_odd_hidden_layers_are_refused(hidden: Any) -> None:
    with pytest.raises(InvalidSettings, match="or several in a text"):
        learner_for(model_spec("network", {"features": 7, "classes": 3, "hidden": hidden}))


def test_a_network_starts_at_its_seed_and_with_the_published_spreads() -> None:
    spec = model_spec("network", {"features": 50, "classes": 10, "seed": 3})
    start = learner_for(spec).start
    np.testing.assert_array_equal(start, spec.start_array)
    w1, b1, w2, b2 = np.split(start, np.cumsum([5000, 100, 1000]))
    assert w1.std() == pytest.approx(np.sqrt(2 / 50), rel=0.05)
    assert np.abs(w2).max() == pytest.approx(np.sqrt(6 / 110), rel=0.02)
    assert not b1.any()
    assert not b2.any()
    assert (start != model_spec("network", {"features": 50, "classes": 10}).start_array).any()


@pytest.mark.parametrize(
    ("name", "change", "message"),
    [
        ("binary", {"y": -1}, "numbered 0 to 1"),
        ("multinomial", {"y": 4}, "numbered 0 to 3"),
        ("binary", {"features": 2}, "set features = 2"),
    ],
)
def test_examples_that_do_not_fit_are_told(name: str, change: dict[str, int], message: str) -> None:
    model, batch = learner(name), examples(name, 1)
    x = batch.x[..., : change.get("features", 3)]
    y = np.full_like(batch.y, change["y"]) if "y" in change else batch.y
    with pytest.raises(FedpingError, match=message):
        model.losses(np.zeros(len(model.weight_names)), Examples(x, y, batch.weight))
