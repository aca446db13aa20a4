"""Bands, early stopping, and the baselines' descent, compared with SciPy and computations by hand."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import optimize, stats

from fedping.experiments.laboratory.baselines import minimise
from fedping.experiments.laboratory.settings import EarlyStopping
from fedping.experiments.laboratory.summary import Band, band
from fedping.experiments.laboratory.training import Watchman


@given(st.lists(st.floats(-1e3, 1e3), min_size=2, max_size=12))
def test_a_band_is_the_t_interval_of_the_mean(values: list[float]) -> None:
    found = band([*values, float("nan")])
    assert found.seeds == len(values)
    assert found.mean == pytest.approx(np.mean(values), abs=1e-9)
    scale = stats.sem(values)
    exact = stats.t.interval(0.95, len(values) - 1, loc=0, scale=scale)[1] if scale > 0 else 0
    assert found.half == pytest.approx(exact, abs=1e-9)


def test_one_repetition_has_no_band_and_none_no_mean() -> None:
    assert band([3.0]) == Band(3.0, None, 1)
    assert band([float("nan")]) == Band(None, None, 0)


def watched(settings: EarlyStopping, losses: list[float]) -> Watchman:
    watchman = Watchman(settings)
    for round_, loss in enumerate(losses):
        watchman.see(round_, {"loss": loss, "auc": loss})
        if watchman.stop:
            break
    return watchman


def test_it_stops_when_the_best_is_as_old_as_patience_says() -> None:
    watchman = watched(EarlyStopping(patience=2), [3, 2, 2.5, 1, 1.5, 1, 0.5])
    assert (watchman.stop, watchman.best_round, watchman.best_value) == (True, 3, 1)


def test_it_stops_at_once_when_the_loss_rises_by_more_than_its_share() -> None:
    watchman = watched(EarlyStopping(rise=0.01), [1.0, 0.5, 0.504, 0.506, 0.1])
    assert (watchman.stop, watchman.best_round) == (True, 1)


def test_a_metric_that_is_better_high_is_followed_upwards() -> None:
    watchman = watched(EarlyStopping(metric="auc", patience=3), [0.5, 0.9, 0.8, 0.95, 0.94])
    assert (watchman.stop, watchman.best_round) == (False, 3)


def logistic(k: int, n: int, d: int) -> tuple[np.ndarray, np.ndarray]:
    random = np.random.default_rng(k + n + d)
    x = random.normal(size=(k, n, d)) * random.uniform(0.1, 5, d)
    return x, (random.random((k, n)) < 1 / (1 + np.exp(-x @ random.normal(size=d)))).astype(float)


def test_every_client_comes_to_the_minimum_that_scipy_finds_for_it_alone() -> None:
    x, y = logistic(20, 40, 6)

    def function(weights: np.ndarray, x: np.ndarray, y: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        z = np.einsum("knd,kd->kn", x, weights)
        losses = (np.logaddexp(0, z) - y * z).mean(axis=1) + 0.005 * (weights**2).sum(axis=1)
        residual = (1 / (1 + np.exp(-z)) - y) / x.shape[1]
        return losses, np.einsum("kn,knd->kd", residual, x) + 0.01 * weights

    def alone(k: int) -> np.ndarray:
        def one(w: np.ndarray) -> tuple[float, np.ndarray]:
            losses, gradients = function(w[None], x[k : k + 1], y[k : k + 1])
            return losses[0], gradients[0]

        return np.asarray(optimize.minimize(one, np.zeros(6), jac=True, method="BFGS", options={"gtol": 1e-9}).x)

    found = minimise(lambda rows: lambda w: function(w, x[rows], y[rows]), np.zeros((20, 6)), tolerance=1e-9)
    assert found.converged.all()
    np.testing.assert_allclose(found.weights, [alone(k) for k in range(20)], atol=1e-6)


def test_it_goes_down_a_curved_valley() -> None:
    def rosenbrock(w: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        return np.array([optimize.rosen(row) for row in w]), np.array([optimize.rosen_der(row) for row in w])

    found = minimise(lambda _: rosenbrock, np.array([[-1.2, 1.0, 0.5], [3.0, 3.0, 3.0]]), tolerance=1e-8)
    np.testing.assert_allclose(found.weights, 1, atol=1e-6)


def test_who_is_done_stays_and_who_is_stopped_stops() -> None:
    seen = []

    def stop_the_second(weights: np.ndarray, rows: np.ndarray) -> np.ndarray:
        seen.append((weights.copy(), rows))
        return np.asarray(rows == 1)

    def bowls(rows: np.ndarray) -> Any:
        scale = np.array([1.0, 1.0, 1e-12])[rows, None]
        return lambda w: ((scale * (w - 3) ** 4).sum(axis=1), 4 * scale * (w - 3) ** 3)

    found = minimise(bowls, np.zeros((3, 2)), on_iteration=stop_the_second)
    np.testing.assert_allclose(found.weights[0], 3, atol=0.02)
    np.testing.assert_array_equal(found.weights[1], seen[0][0][1])
    assert seen[-1][1].tolist() == [0]  # the others are no longer computed
    np.testing.assert_array_equal(found.weights[2], 0)
    assert found.converged.tolist() == [True, False, True]
