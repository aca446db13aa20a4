"""Clients' updates: laws of the algorithms for every model."""

from __future__ import annotations

from collections.abc import Iterator
from threading import Thread
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace
from sklearn.datasets import load_breast_cancer
from sklearn.linear_model import LogisticRegression as SkLogistic
from threadpoolctl import threadpool_info, threadpool_limits

from fedping.client_sim.data import ExampleData, example_data
from fedping.client_sim.learning import Diverged, cohort_updates, learner_for, model_spec, updates_of_fleet
from fedping.client_sim.learning.algorithms import algorithm_for
from fedping.client_sim.learning.checking import check_training
from fedping.client_sim.learning.mini_batches import mini_batches, steps_of
from fedping.protocol.draws import child_keys, root_key
from fedping.protocol.errors import InvalidSettings
from fedping.protocol.local_optimizers import LocalAdam, LocalMomentum, LocalOptimizer, LocalRMSProp, LocalRProp
from fedping.protocol.training import LocalSteps, OneGradient, Training

MODELS = {
    "linear-regression": {"features": 3},
    "logistic-regression": {"features": 3, "l2": 0.1},
    "network": {"features": 3, "classes": 2, "hidden": 4},
}
TRAININGS: dict[str, Training] = {
    "gradient": OneGradient(),
    "gradient-of-some": OneGradient(batch=2),
    "sign": OneGradient(sign=True),
    "epochs": LocalSteps(rate=0.1, epochs=3, batch=2),
    "whole-epochs": LocalSteps(rate=0.1, epochs=3),
    "steps": LocalSteps(rate=0.1, steps=7, batch=3),
    "proximal": LocalSteps(rate=0.1, epochs=2, batch=4, proximal=0.5),
    "momentum": LocalSteps(rate=0.1, epochs=2, batch=2, optimizer=LocalMomentum(nesterov=True)),
    "rmsprop": LocalSteps(rate=0.1, epochs=2, batch=2, optimizer=LocalRMSProp()),
    "rprop": LocalSteps(rate=1.0, epochs=2, batch=2, optimizer=LocalRProp()),
    "adam": LocalSteps(rate=0.1, epochs=2, batch=2, optimizer=LocalAdam(), proximal=0.5),
}


def model(name: str) -> Any:
    return learner_for(model_spec(name, MODELS[name]))


def fleet(sizes: list[int], seed: int = 0) -> ExampleData:
    rng = np.random.default_rng(seed)
    return example_data(rng.standard_normal((sum(sizes), 3)), rng.integers(0, 2, sum(sizes)), np.array(sizes))


def keys(count: int, seed: int = 1) -> Any:
    return child_keys(root_key(seed), np.arange(count))


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("training", TRAININGS)
@given(sizes=st.lists(st.integers(0, 9), min_size=1, max_size=6), seed=st.integers(0, 1000))
@settings(max_examples=10)
def test_a_client_sends_what_it_would_alone(name: str, training: str, sizes: list[int], seed: int) -> None:
    learner, data, chosen = model(name), fleet(sizes, seed), TRAININGS[training]
    weights = learner.start + np.random.default_rng(seed).standard_normal(learner.m)
    together, losses, _ = cohort_updates(learner, chosen, weights, data.batch(np.arange(len(sizes))), keys(len(sizes)))
    for client, key in enumerate(keys(len(sizes))):
        alone, loss, _ = cohort_updates(learner, chosen, weights, data.batch(np.array([client])), np.array([key]))
        np.testing.assert_allclose(together[client], alone[0], atol=1e-12)
        assert losses[client] == pytest.approx(loss[0], abs=1e-12)
        if sizes[client] == 0:
            assert not together[client].any()


@given(
    sizes=st.lists(st.integers(0, 30), max_size=20),
    most=st.sampled_from([1, 2000, 10**9]),
    seed=st.integers(0, 1000),
    threads=st.sampled_from([1, 3]),
)
@settings(max_examples=25)
def test_blocks_hold_every_client_once_and_do_not_change_updates(
    sizes: list[int], most: int, seed: int, threads: int
) -> None:
    learner, data = model("logistic-regression"), fleet([*sizes, 1], seed)
    clients = np.random.default_rng(seed).integers(0, len(data), len(sizes))  # some of them twice
    training = LocalSteps(rate=0.1, epochs=2, batch=3)
    blocks = list(updates_of_fleet(learner, training, learner.start, data, clients, keys(len(sizes)), most, threads))
    at = np.concatenate([block.at for block in blocks]) if blocks else np.zeros(0, np.intp)
    assert sorted(at) == list(range(len(sizes)))
    if most == 1:
        assert all(len(block.at) == 1 for block in blocks)
    if not len(sizes):
        return
    expected, losses, _ = cohort_updates(learner, training, learner.start, data.batch(clients), keys(len(sizes)))
    np.testing.assert_allclose(np.concatenate([block.updates for block in blocks]), expected[at], atol=1e-12)
    np.testing.assert_allclose(np.concatenate([block.losses for block in blocks]), losses[at], atol=1e-12)


@pytest.mark.parametrize("name", MODELS)
def test_one_gradient_is_minus_the_gradient_and_one_whole_epoch_the_rate_times_that(name: str) -> None:
    learner, data = model(name), fleet([4, 7, 0])
    batch, weights = data.batch(np.arange(3)), learner.start + 0.3
    gradients = learner.gradients(weights, batch)
    sent, losses, _ = cohort_updates(learner, OneGradient(), weights, batch, keys(3))
    np.testing.assert_array_equal(sent, -gradients)
    np.testing.assert_allclose(losses, learner.losses(weights, batch), atol=1e-15)
    moved, losses, _ = cohort_updates(learner, LocalSteps(rate=0.25, epochs=1), weights, batch, keys(3))
    np.testing.assert_allclose(moved, -0.25 * gradients, atol=1e-15)
    np.testing.assert_allclose(losses, learner.losses(weights, batch), atol=1e-15)


@pytest.mark.parametrize("name", MODELS)
def test_local_steps_are_gradient_descent(name: str) -> None:
    learner, data = model(name), fleet([6, 3])
    batch, weights = data.batch(np.arange(2)), learner.start + 0.2
    expected = np.tile(weights, (2, 1))
    for _ in range(5):
        expected -= 0.1 * learner.gradients(expected, batch)
    for training in (LocalSteps(rate=0.1, epochs=5), LocalSteps(rate=0.1, steps=5)):
        moved, _, _ = cohort_updates(learner, training, weights, batch, keys(2))
        np.testing.assert_allclose(moved, expected - weights, atol=1e-14)


def adam_by_hand(gradients: Iterator[Any]) -> Iterator[Any]:
    mean: Any = 0.0
    square: Any = 0.0
    for t, gradient in enumerate(gradients, 1):
        mean, square = 0.9 * mean + 0.1 * gradient, 0.999 * square + 0.001 * gradient**2
        yield -(mean / (1 - 0.9**t)) / (np.sqrt(square / (1 - 0.999**t)) + 1e-8)


def rmsprop_by_hand(gradients: Iterator[Any]) -> Iterator[Any]:
    square: Any = 0.0
    for gradient in gradients:
        square = 0.9 * square + 0.1 * gradient**2
        yield -gradient / (np.sqrt(square) + 1e-7)


def momentum_by_hand(gradients: Iterator[Any]) -> Iterator[Any]:
    velocity: Any = 0.0
    for gradient in gradients:
        velocity = 0.9 * velocity - gradient
        yield velocity


def rprop_by_hand(gradients: Iterator[Any]) -> Iterator[Any]:
    rate: Any = None
    before: Any = None
    for gradient in gradients:
        rate = np.full(len(gradient), 0.1) if rate is None else rate
        if before is not None:
            rate = np.array([_adapted(*each) for each in zip(rate, gradient * before, strict=True)])
        before = gradient
        yield -rate * np.sign(gradient)


def _adapted(rate: float, product: float) -> float:
    return rate if product == 0 else min(max(rate * (1.2 if product > 0 else 0.5), 1e-6), 50.0)


OPTIMIZERS: list[tuple[LocalOptimizer, Any]] = [
    (LocalRProp(), rprop_by_hand),
    (LocalAdam(), adam_by_hand),
    (LocalRMSProp(), rmsprop_by_hand),
    (LocalMomentum(), momentum_by_hand),
]


@pytest.mark.parametrize(("optimizer", "by_hand"), OPTIMIZERS)
def test_an_optimizer_on_the_client_steps_as_its_paper_has_it(optimizer: LocalOptimizer, by_hand: Any) -> None:
    learner, data = model("network"), fleet([6])
    batch, weights = data.batch(np.arange(1)), learner.start + 0.2
    at = weights.copy()

    def gradients() -> Iterator[Any]:
        while True:
            yield learner.gradients(at, batch)[0]

    for _, step in zip(range(12), by_hand(gradients()), strict=False):
        at = at + 0.01 * step
    moved, _, _ = cohort_updates(learner, LocalSteps(rate=0.01, steps=12, optimizer=optimizer), weights, batch, keys(1))
    np.testing.assert_allclose(moved[0], at - weights, atol=1e-12)


@pytest.mark.parametrize(
    "optimizer", [LocalAdam(keep=True), LocalRMSProp(keep=True), LocalMomentum(keep=True), LocalRProp(keep=True)]
)
def test_a_kept_optimizer_goes_on_where_it_was_and_a_fresh_one_does_not(optimizer: LocalOptimizer) -> None:
    learner, data = model("logistic-regression"), fleet([6, 9])
    batch, weights = data.batch(np.arange(2)), learner.start + 0.2
    first = {
        name: np.repeat(np.asarray(value)[None], 2, axis=0)
        for name, value in algorithm_for(LocalSteps(rate=0.1, steps=1, optimizer=optimizer)).init_state(learner).items()
    }
    whole, _, _ = cohort_updates(
        learner, LocalSteps(rate=0.1, steps=10, optimizer=optimizer), weights, batch, keys(2), first
    )
    half = LocalSteps(rate=0.1, steps=5, optimizer=optimizer)
    fresh = LocalSteps(rate=0.1, steps=5, optimizer=replace(optimizer, keep=False))
    assert not algorithm_for(fresh).init_state(learner)
    for client in range(2):  # each client's second training begins where its first one ended
        alone = data.batch(np.array([client]))
        own = {name: value[[client]] for name, value in first.items()}
        begun, _, state = cohort_updates(learner, half, weights, alone, keys(1), own)
        gone_on, _, _ = cohort_updates(learner, half, weights + begun[0], alone, keys(1), state)
        np.testing.assert_allclose(begun[0] + gone_on[0], whole[client], atol=1e-12)
        begun_again, _, _ = cohort_updates(learner, fresh, weights + begun[0], alone, keys(1))
        assert np.abs(begun_again - gone_on).max() > 1e-3


def test_a_proximal_term_holds_an_optimizer_back_too() -> None:
    learner, data = model("logistic-regression"), fleet([30, 12])
    batch, weights = data.batch(np.arange(2)), np.array([1.0, -1.0, 2.0, 0.0])
    training = LocalSteps(rate=0.05, steps=3000, proximal=0.7, optimizer=LocalMomentum())
    moved, _, _ = cohort_updates(learner, training, weights, batch, keys(2))
    np.testing.assert_allclose(learner.gradients(weights + moved, batch) + 0.7 * moved, 0, atol=1e-9)


def test_an_optimizer_whose_squares_overflow_is_no_standstill() -> None:
    learner = learner_for(model_spec("network", MODELS["network"] | {"precision": "float32"}))
    data = example_data(np.full((5, 3), 1e20), np.array([0, 1, 0, 1, 1]), np.array([5]))
    training = LocalSteps(rate=0.1, steps=3, optimizer=LocalAdam())
    with pytest.raises(Diverged, match="standardise"):
        cohort_updates(learner, training, learner.start, data.batch(np.array([0])), keys(1))


def test_an_epoch_takes_every_example_once_in_an_order_of_its_own() -> None:
    training = LocalSteps(rate=1, epochs=2, batch=4)
    weight = (np.arange(10) < np.array([10, 7, 0])[:, None]).astype(float)
    taken = [part for part in mini_batches(training, keys(3), weight) if part is not None]
    assert [part.shape[1] for part in taken] == [4, 4, 4, 4, 4, 2]
    first = np.concatenate([part[0] for part in taken])
    assert sorted(first[:10]) == sorted(first[10:][first[10:] >= 0]) == list(range(10))
    assert list(first[:10]) != list(first[10:20])
    second = [list(part[1][part[1] >= 0]) for part in taken]
    assert [len(part) for part in second] == [4, 3, 4, 3, 0, 0]
    assert sorted(second[0] + second[1]) == sorted(second[2] + second[3]) == list(range(7))
    assert all((part[2] < 0).all() for part in taken)
    np.testing.assert_array_equal(steps_of(training, np.array([10, 7, 0])), [6, 4, 0])


def test_every_example_is_drawn_as_often_as_any_other() -> None:
    weight = np.ones((20_000, 5))
    (first,) = mini_batches(LocalSteps(rate=1, steps=1, batch=2), keys(len(weight)), weight)
    assert first is not None
    counts = np.bincount(first.ravel(), minlength=5)
    np.testing.assert_allclose(counts / counts.sum(), 0.2, atol=0.006)  # 4.8 standard deviations
    pairs = np.bincount(first.min(axis=1) * 5 + first.max(axis=1), minlength=25)
    np.testing.assert_allclose(pairs[pairs > 0] / len(weight), 0.1, atol=0.011)
    assert (pairs > 0).sum() == 10


def test_a_mini_batch_gradient_is_right_on_average() -> None:
    learner, data = model("logistic-regression"), fleet([7])
    weights, count = np.array([1.0, -2.0, 0.5, 0.1]), 20_000
    many, losses, _ = cohort_updates(
        learner, OneGradient(batch=3), weights, data.batch(np.zeros(count, np.intp)), keys(count)
    )
    expected = -learner.gradients(weights, data.batch(np.array([0])))[0]
    assert (np.abs(many.mean(axis=0) - expected) < 5 * many.std(axis=0) / np.sqrt(count)).all()
    assert (many.std(axis=0) > 0).all()
    np.testing.assert_allclose(losses, learner.losses(weights, data.batch(np.array([0])))[0])


def test_other_keys_draw_other_batches_and_the_same_keys_the_same() -> None:
    learner, data = model("network"), fleet([9])
    send = [
        cohort_updates(learner, LocalSteps(rate=0.1, epochs=1, batch=2), learner.start, data.batch(np.array([0])), k)[0]
        for k in (keys(1, 1), keys(1, 1), keys(1, 2))
    ]
    np.testing.assert_array_equal(send[0], send[1])
    assert (send[0] != send[2]).any()


@pytest.mark.parametrize("name", MODELS)
def test_a_strong_proximal_term_keeps_the_client_where_it_is(name: str) -> None:
    learner, data = model(name), fleet([5, 8])
    batch = data.batch(np.arange(2))
    lengths = []
    for proximal in (0.0, 1.0, 1e3, 1e9, 1e30):
        training = LocalSteps(rate=0.1, epochs=20, batch=4, proximal=proximal)
        moved, _, _ = cohort_updates(learner, training, learner.start + 0.5, batch, keys(2))
        lengths.append(np.linalg.norm(moved))
    assert lengths == sorted(lengths, reverse=True)
    assert lengths[3] < 1e-7
    assert lengths[4] < 1e-28


def test_the_proximal_term_ends_at_the_minimum_that_fedprox_asks_for() -> None:
    learner, data = model("logistic-regression"), fleet([30, 12])
    batch, weights = data.batch(np.arange(2)), np.array([1.0, -1.0, 2.0, 0.0])
    moved, _, _ = cohort_updates(learner, LocalSteps(rate=0.5, steps=3000, proximal=0.7), weights, batch, keys(2))
    np.testing.assert_allclose(learner.gradients(weights + moved, batch) + 0.7 * moved, 0, atol=1e-12)


def test_signs_are_the_signs() -> None:
    learner, data = model("logistic-regression"), fleet([5, 0])
    for training, signed in (
        (OneGradient(), OneGradient(sign=True)),
        (LocalSteps(rate=0.1, epochs=2), LocalSteps(rate=0.1, epochs=2, sign=True)),
    ):
        plain, _, _ = cohort_updates(learner, training, learner.start, data.batch(np.arange(2)), keys(2))
        signs, _, _ = cohort_updates(learner, signed, learner.start, data.batch(np.arange(2)), keys(2))
        np.testing.assert_array_equal(signs, np.sign(plain))
        assert set(np.unique(signs[0])) <= {-1.0, 1.0}
        assert not signs[1].any()


def test_training_that_diverges_says_so() -> None:
    learner, data = model("linear-regression"), fleet([5])
    with pytest.raises(Diverged, match=r"rate of 100 is too large"):
        cohort_updates(learner, LocalSteps(rate=100, steps=500), learner.start, data.batch(np.array([0])), keys(1))


def test_many_rounds_of_federated_gradient_descent_reach_scikit_learns_coefficients() -> None:
    x, y = load_breast_cancer(return_X_y=True)
    x = (x - x.mean(axis=0)) / x.std(axis=0)
    sizes = np.array([200, 150, 100, 60, 40, 15, 4])
    data = example_data(x, y, sizes)
    learner = learner_for(model_spec("logistic-regression", {"features": 30, "l2": 1 / len(y)}))
    weights, pooled = np.zeros(31), np.zeros(31)
    batch, everybody = data.batch(np.arange(7)), data.pooled().batch(np.array([0]))
    velocity, momentum = np.zeros(31), 0.98
    for iteration in range(3000):
        sent, _, _ = cohort_updates(learner, OneGradient(), weights, batch, keys(7))
        mean = sizes @ sent / sizes.sum()
        if iteration < 20:  # it is the centralised gradient, to rounding
            central, _, _ = cohort_updates(learner, OneGradient(), pooled, everybody, keys(1))
            np.testing.assert_allclose(mean, central[0], atol=1e-14)
        velocity = momentum * velocity + mean
        weights = weights + 0.15 * velocity
        pooled = weights
    reference = SkLogistic(C=1.0, tol=1e-10, max_iter=10_000).fit(x, y)
    np.testing.assert_allclose(weights[:30], reference.coef_[0], atol=1e-4)
    np.testing.assert_allclose(weights[30], reference.intercept_[0], atol=1e-4)


def test_matrix_products_use_one_thread_while_clients_train_and_as_many_as_before_afterwards() -> None:
    class Looks:
        weight_names, start, seen = ("w",), np.zeros(1), 0

        def losses(self, weights: Any, batch: Any) -> Any:
            self.seen = max(pool["num_threads"] for pool in threadpool_info() if pool["user_api"] == "blas")
            return np.zeros(len(batch))

        def gradients(self, weights: Any, batch: Any) -> Any:
            return np.zeros((len(batch), 1))

        def predict(self, weights: Any, batch: Any) -> Any:
            return batch.y

    looks, data = Looks(), fleet([1])
    with threadpool_limits(2, user_api="blas"):
        before = threadpool_info()
        batch = data.batch(np.array([0]))
        cohort_updates(looks, OneGradient(), looks.start, batch, keys(1))
        assert looks.seen == 1
        assert threadpool_info() == before
        looks.seen = 0
        other = Thread(target=cohort_updates, args=(looks, OneGradient(), looks.start, batch, keys(1)))
        other.start()
        other.join()
        assert looks.seen == 1
        assert threadpool_info() == before


def test_an_optimizer_is_refused_where_it_has_no_gradient_or_no_place_for_its_state() -> None:
    centroids = learner_for(model_spec("k-means", {"features": 3, "clusters": 2}))
    with pytest.raises(InvalidSettings, match="Remove 'optimizer'"):
        check_training(centroids, LocalSteps(rate=1.0, steps=1, optimizer=LocalAdam()))
    kept = LocalSteps(rate=1.0, steps=1, optimizer=LocalAdam(keep=True))
    with pytest.raises(InvalidSettings, match="keeps state with its clients"):
        check_training(model("network"), kept, keeps_state=False)
    check_training(model("network"), kept)
