"""Every optimizer compared with other implementations, or with the papers' equations for one weight."""

import math
from collections.abc import Callable, Sequence

import numpy as np
import pytest
from autograd.misc import optimizers as autograds
from hypothesis import given
from hypothesis import strategies as st
from scipy.optimize import minimize
from sklearn.neural_network._stochastic_optimizers import AdamOptimizer, SGDOptimizer

from fedping.protocol.pipeline import Adagrad, Adam, GradientDescent, Momentum, Optimizer, Pipeline, RProp, Yogi
from fedping.protocol.spec import ModelSpec, Step, Weight
from fedping.server_jobs.optimize import pipeline_for

number = st.one_of(st.just(0.0), st.floats(-100, 100).filter(lambda x: abs(x) > 1e-6))
histories = st.integers(1, 3).flatmap(
    lambda m: st.lists(st.lists(number, min_size=m, max_size=m), min_size=1, max_size=12).map(np.array)
)
rates = st.floats(1e-4, 2)
shares = st.floats(0, 0.99)


def spec_of(m: int, step: Step = Step(start=1, min=1e-12, max=50)) -> ModelSpec:  # noqa: B008 (frozen)
    return ModelSpec(name="s", model="any", weights=tuple(Weight(name=f"w{i}", start=0, step=step) for i in range(m)))


def moved(optimizer: Optimizer, updates: np.ndarray) -> np.ndarray:
    """Return the steps for updates of shape (rounds, m)."""
    spec = spec_of(updates.shape[1])
    chosen = pipeline_for(spec, Pipeline(optimizer=optimizer))
    state, steps = chosen.init(spec), []
    for update in updates:
        step, state = chosen.update(update, state, np.zeros(spec.m))
        steps.append(step)
    return np.array(steps)


def replay(updates: np.ndarray) -> Callable[[np.ndarray, int], np.ndarray]:
    """Return a gradient function that replays the negative updates, for optimizers that call for gradients."""
    return lambda _, i: -updates[i]


@given(histories, rates, shares, shares)
def test_adam_is_autograds(updates: np.ndarray, rate: float, beta1: float, beta2: float) -> None:
    steps = moved(Adam(rate=rate, beta1=beta1, beta2=beta2, epsilon=1e-8), updates)
    end = autograds.adam(replay(updates), np.zeros(updates.shape[1]), None, len(updates), rate, beta1, beta2, 1e-8)
    np.testing.assert_allclose(steps.sum(axis=0), end, rtol=1e-9, atol=1e-9 * rate * len(updates))


@given(histories, rates)
def test_adam_is_scikit_learns(updates: np.ndarray, rate: float) -> None:
    """scikit-learn adds its epsilon at another place, which makes no difference for a tiny epsilon."""
    weights = np.zeros(updates.shape[1])
    theirs = AdamOptimizer([weights], rate, epsilon=1e-30)
    for update in updates:
        theirs.update_params([weights], [-update])
    steps = moved(Adam(rate=rate, epsilon=1e-30), updates)
    np.testing.assert_allclose(steps.sum(axis=0), weights, rtol=1e-9, atol=1e-9 * rate * len(updates))


@given(histories, rates, shares, st.booleans(), st.sampled_from([("none", 0.0), ("1/sqrt(t)", 0.5), ("1/t", 1.0)]))
def test_momentum_is_scikit_learns(
    updates: np.ndarray, rate: float, beta: float, nesterov: bool, decay: tuple[str, float]
) -> None:
    name, power = decay
    weights, ends = np.zeros(updates.shape[1]), []
    theirs = SGDOptimizer([weights], rate, "invscaling", beta, nesterov, power)
    for t, update in enumerate(updates, start=1):
        theirs.update_params([weights], [-update])
        ends.append(weights.copy())
        theirs.iteration_ends(t)
    steps = moved(Momentum(rate=rate, beta=beta, nesterov=nesterov, decay=name), updates)
    np.testing.assert_allclose(steps.cumsum(axis=0), ends, rtol=1e-9, atol=1e-9 * rate * 1000)


@given(histories, rates, shares)
def test_momentum_is_autograds_at_its_scale(updates: np.ndarray, rate: float, beta: float) -> None:
    """autograd multiplies the new part of the velocity by 1 - beta."""
    end = autograds.sgd(replay(updates), np.zeros(updates.shape[1]), None, len(updates), rate, beta)
    steps = moved(Momentum(rate=rate * (1 - beta), beta=beta), updates)
    np.testing.assert_allclose(steps.sum(axis=0), end, rtol=1e-9, atol=1e-9 * rate * 1000)


@given(histories, rates)
def test_gradient_descent_with_each_decay_is_its_formula(updates: np.ndarray, rate: float) -> None:
    factors: dict[str, Callable[[int], float]] = {"none": lambda t: 1.0, "1/sqrt(t)": math.sqrt, "1/t": float}
    for decay, factor in factors.items():
        expected = [[rate / factor(t) * x for x in row] for t, row in enumerate(updates.tolist(), start=1)]
        np.testing.assert_allclose(moved(GradientDescent(rate=rate, decay=decay), updates), expected, rtol=1e-12)


def test_half_over_the_root_of_t() -> None:
    """The best rates for logistic regression on the credit data: 0.5, 0.35, 0.29, 0.25."""
    steps = moved(GradientDescent(rate=0.5, decay="1/sqrt(t)"), np.ones((4, 1)))
    np.testing.assert_allclose(steps.ravel(), [0.5, 0.5 / math.sqrt(2), 0.5 / math.sqrt(3), 0.25], rtol=1e-15)


def algorithm_2(
    which: str, rate: float, beta1: float, beta2: float, tau: float, updates: Sequence[float]
) -> list[float]:
    """Run algorithm 2 of Reddi et al. 2021 for one weight, starting with v = τ² and m = 0."""
    m, v, steps = 0.0, tau**2, []
    for delta in updates:
        m = beta1 * m + (1 - beta1) * delta
        if which == "adagrad":
            v = v + delta**2
        elif which == "yogi":
            v = v - (1 - beta2) * delta**2 * ((v > delta**2) - (v < delta**2))
        else:
            v = beta2 * v + (1 - beta2) * delta**2
        steps.append(rate * m / (math.sqrt(v) + tau))
    return steps


@given(histories, rates, shares, shares, st.floats(1e-4, 0.1))
def test_the_federated_three_are_algorithm_2(
    updates: np.ndarray, rate: float, beta1: float, beta2: float, tau: float
) -> None:
    common = {"rate": rate, "beta1": beta1, "epsilon": tau, "initial": tau**2}
    links: dict[str, Optimizer] = {
        "adam": Adam(beta2=beta2, bias_correction=False, **common),
        "yogi": Yogi(beta2=beta2, **common),
        "adagrad": Adagrad(**common),
    }
    for which, optimizer in links.items():
        steps = moved(optimizer, updates)
        for i in range(updates.shape[1]):
            expected = algorithm_2(which, rate, beta1, beta2, tau, updates[:, i].tolist())
            np.testing.assert_allclose(steps[:, i], expected, rtol=1e-9, atol=1e-12 * rate)


def test_adam_by_hand() -> None:
    """For updates 2 and -1, β1 = 0.5 and β2 = 0.75, the corrected means are 2 and 0, of squares 4 and 16/7."""
    steps = moved(Adam(rate=0.1, beta1=0.5, beta2=0.75, epsilon=1e-12), np.array([[2.0], [-1.0], [-1.0]]))
    third_mean, third_square = (0.5 * 0 + 0.5 * -1) / (1 - 0.125), (0.75 * 1.0 + 0.25) / (1 - 0.75**3)
    np.testing.assert_allclose(
        steps.ravel(), [0.1, 0.0, 0.1 * third_mean / math.sqrt(third_square)], rtol=1e-9, atol=1e-15
    )


def test_yogi_by_hand() -> None:
    """With β2 = 0.5 and v = 1, the square 4 raises v to 3, the square 1 lowers it to 2.5; Adam's would fall to 2."""
    steps = moved(Yogi(rate=1, beta1=0, beta2=0.5, epsilon=1e-9, initial=1), np.array([[2.0], [-1.0]]))
    np.testing.assert_allclose(steps.ravel(), [2 / math.sqrt(3), -1 / math.sqrt(2.5)], rtol=1e-8)


@given(st.floats(1e-3, 1e3), st.integers(1, 30))
def test_adagrad_on_one_direction_decays_by_the_root_of_t(update: float, rounds: int) -> None:
    steps = moved(Adagrad(rate=0.3, epsilon=1e-30), np.full((rounds, 1), update))
    np.testing.assert_allclose(steps.ravel(), 0.3 / np.sqrt(np.arange(1, rounds + 1)), rtol=1e-12)


SEEKERS: list[tuple[Optimizer, int]] = [
    (GradientDescent(rate=0.2), 400),
    (GradientDescent(rate=0.4, decay="1/sqrt(t)"), 4000),
    (Momentum(rate=0.1, beta=0.8), 400),
    (Momentum(rate=0.1, beta=0.8, nesterov=True), 400),
    (Adam(rate=0.05, beta2=0.9, epsilon=0.1), 2000),
    (Adam(rate=0.05, beta2=0.99, epsilon=0.1, initial=0.01, bias_correction=False), 2000),
    (Yogi(rate=0.05, beta2=0.99), 4000),
    (Adagrad(rate=1.0), 4000),
    (RProp(), 400),
]


@pytest.mark.parametrize(("optimizer", "rounds"), SEEKERS, ids=lambda x: type(x).__name__)
def test_each_finds_the_minimum_that_scipy_finds(optimizer: Optimizer, rounds: int) -> None:
    rng = np.random.default_rng(4)
    root = rng.normal(size=(4, 4))
    curvature, pull = root @ root.T / 4 + np.eye(4), rng.normal(size=4)
    minimum = minimize(lambda x: x @ curvature @ x / 2 - pull @ x, np.zeros(4), tol=1e-12).x
    spec = spec_of(4)
    chosen = pipeline_for(spec, Pipeline(optimizer=optimizer))
    weights, state = np.full(4, 3.0), chosen.init(spec)
    for _ in range(rounds):
        step, state = chosen.update(pull - curvature @ weights, state, weights)
        weights = weights + step
    np.testing.assert_allclose(weights, minimum, atol=1e-5)
