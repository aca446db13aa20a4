"""Single precision: as close to double as seven digits allow, for every model that supports it; and the stored data.

Features and weights are on a grid on which scores are exact in both precisions, so that no hinge or relu switches by
a rounding error. The remaining difference is the rounding of exp, log and sums.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedping.client_sim.data import example_data
from fedping.client_sim.learning import ChoiceData, ClientData, cohort_updates, learner_for, model_spec
from fedping.client_sim.learning.batch import KeptBatches
from fedping.protocol.draws import child_keys, root_key
from fedping.protocol.training import LocalSteps, OneGradient, Training

MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    "linear": ("linear-regression", {"features": 3, "l2": 0.5}),
    "binary": ("logistic-regression", {"features": 3, "l2": 0.5}),
    "binary-without-intercept": ("logistic-regression", {"features": 3, "intercept": False}),
    "multinomial": ("logistic-regression", {"features": 3, "classes": 4}),
    "network": ("network", {"features": 3, "classes": 4, "hidden": 5, "l2": 0.5}),
    "ranking": ("svm-ranking", {"features": 3, "l2": 0.5}),
}
TRAININGS: dict[str, Training] = {
    "gradient": OneGradient(),
    "some": OneGradient(batch=2),
    "steps": LocalSteps(rate=0.01, steps=4),
    "batches": LocalSteps(rate=0.01, epochs=2, batch=2, proximal=0.5),
}
SIZES = st.lists(st.integers(0, 6), min_size=1, max_size=5)


def learner(name: str, precision: str) -> Any:
    model, chosen = MODELS[name]
    return learner_for(model_spec(model, chosen | {"precision": precision}, margin=1.0))


def grid(rng: np.random.Generator, *shape: int, most: int = 8) -> Any:
    return rng.integers(-most, most + 1, shape) / 8


def fleet(name: str, sizes: list[int], rng: np.random.Generator) -> Any:
    count = sum(sizes)
    if name == "ranking":
        shown = rng.integers(1, 6, count)
        return ChoiceData(grid(rng, count, 5, 3), rng.integers(-1, shown), np.array(sizes), shown)
    classes = 2 if name.startswith("binary") else 4
    return example_data(grid(rng, count, 3), rng.integers(0, classes, count), np.array(sizes))


def keys(count: int) -> Any:
    return child_keys(root_key(1), np.arange(count))


def near(single: Any, double: Any, within: float = 2e-6) -> None:
    np.testing.assert_allclose(single, double, rtol=0, atol=within * max(1.0, float(np.abs(double).max(initial=0.0))))


@pytest.mark.parametrize("name", MODELS)
@given(sizes=SIZES, seed=st.integers(0, 10_000), far=st.booleans())
@settings(max_examples=30)
def test_losses_and_gradients_agree_to_six_digits(name: str, sizes: list[int], seed: int, far: bool) -> None:
    rng = np.random.default_rng(seed)
    data, single, double = fleet(name, sizes, rng), learner(name, "float32"), learner(name, "float64")
    everyone = np.arange(len(sizes))
    for shape in ((single.m,), (len(sizes), single.m)):
        weights = grid(rng, *shape, most=2000 if far else 8)  # far: exp overflows
        losses, gradients = single.losses_and_gradients(weights, data.single().batch(everyone))
        expected, ascents = double.losses_and_gradients(weights, data.batch(everyone))
        assert (losses.dtype, gradients.dtype) == (np.float64, np.float32)
        near(losses, expected)
        near(gradients, ascents)
        near(single.losses(weights, data.batch(everyone)), expected)  # from features in double precision, too


@pytest.mark.parametrize("training", TRAININGS)
@pytest.mark.parametrize("name", ["linear", "binary", "multinomial", "network"])
@given(sizes=SIZES, seed=st.integers(0, 10_000))
@settings(max_examples=15)
def test_what_clients_send_agrees_to_five_digits(name: str, training: str, sizes: list[int], seed: int) -> None:
    rng = np.random.default_rng(seed)
    data, everyone, chosen = fleet(name, sizes, rng), np.arange(len(sizes)), TRAININGS[training]
    single, double = learner(name, "float32"), learner(name, "float64")
    # Away from points where a relu switches, because a step's last bit may do that.
    weights = grid(rng, single.m) if name != "network" else np.abs(grid(rng, single.m)) + 1 / 16
    data = data if name != "network" else example_data(np.abs(data.x) + 1 / 8, data.y, np.array(sizes))
    found = cohort_updates(single, chosen, weights, data.single().batch(everyone), keys(len(sizes)))
    exact = cohort_updates(double, chosen, weights, data.batch(everyone), keys(len(sizes)))
    assert found.updates.dtype == np.float32
    near(found.updates, exact.updates, 2e-5)
    near(found.losses, exact.losses, 2e-5)


def test_a_loss_far_beyond_what_exp_can_say_is_still_finite_in_single_precision() -> None:
    model = learner("binary", "float32")
    data = example_data(np.full((2, 3), 1e3), np.array([0, 1]), np.array([1, 1]))
    losses, gradients = model.losses_and_gradients(np.ones(4), data.batch(np.arange(2)))
    np.testing.assert_allclose(losses, [3001 + 0.25 * 3, 0.25 * 3], rtol=1e-6)
    np.testing.assert_allclose(gradients[0], [1000.5, 1000.5, 1000.5, 1.0], rtol=1e-6)


@given(sizes=SIZES, seed=st.integers(0, 10_000), name=st.sampled_from(["ranking", "binary"]))
def test_kept_batches_are_those_of_the_data_whether_there_is_room_or_not(
    sizes: list[int], seed: int, name: str
) -> None:
    rng = np.random.default_rng(seed)
    data = fleet(name, sizes, rng)
    for kept in (KeptBatches(data), KeptBatches(data, most_bytes=0)):
        for _ in range(3):
            clients = rng.permutation(len(sizes))[: rng.integers(1, len(sizes) + 1)]
            for _ in range(2):
                same(kept, data, clients)


def same(kept: ClientData[Any], data: ClientData[Any], clients: Any) -> None:
    found, expected = kept.batch(clients), data.batch(clients)
    for name in ("x", "y", "weight"):
        np.testing.assert_array_equal(getattr(found, name), getattr(expected, name))
    for at, client in enumerate(clients):  # as wide as the longest client of the batch
        alone = data.batch(np.array([client]))
        np.testing.assert_array_equal(found.x[at, : data.sizes[client]], alone.x[0])
    assert not (found.x.size and found.x.flags.writeable)  # a change by a client would change the next round's data
