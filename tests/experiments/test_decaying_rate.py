"""Decaying rates on the clients, and the version number that a client algorithm gets."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fedping
from fedping.algorithms import Decaying
from fedping.client_sim.learning.batch import Examples
from fedping.experiments.laboratory.one_run import run_unit
from fedping.experiments.laboratory.preparing import prepare
from fedping.experiments.laboratory.units import Unit
from fedping.protocol.errors import InvalidSettings
from tests.experiments.test_laboratory_run import objective
from tests.support.laboratory import small
from tests.support.registry import registry_of_its_own


def unit(**changes: Any) -> Unit:
    [setup] = small(**{"evaluation": {"every": 6, "baselines": []}, **changes}).variants.values()
    return Unit("only", None, setup, 1, None)


def weights_of(of: Unit, folder: Path) -> np.ndarray:
    run_unit(of, folder)
    found: np.ndarray = np.load(of.folder(folder).path / "last.npy")
    return found


class TwoBowls:
    """A model with the losses w²/2 and 3 (w - 1)²/2, whose sum has its minimum at 3/4."""

    weight_names = ("w",)
    start = np.zeros(1)

    def gradients(self, weights: Any, batch: Any) -> Any:
        return np.array([[1.0], [3.0]]) * (np.broadcast_to(weights, (2, 1)) - np.array([[0.0], [1.0]]))


@pytest.mark.parametrize(("decay", "expected", "close"), [(0.0, 0.54589, 1e-4), (0.1, 0.74, 5e-3)])
def test_falling_rates_end_at_the_common_minimum_and_a_fixed_one_does_not(
    decay: float, expected: float, close: float
) -> None:
    """By hand: 5 steps of 0.3 cover 1 - 0.7⁵ and 1 - 0.1⁵ of the distance, so w = 0.99999 / (0.83193 + 0.99999)."""
    algorithm: Any = Decaying(rate=0.3, steps=5, decay=decay)
    batch, weights = Examples(np.zeros((2, 1, 1)), np.zeros((2, 1)), np.ones((2, 1))), np.zeros(1)
    for version in range(400):
        moved, _ = algorithm.update(TwoBowls(), weights, batch, np.zeros(2, np.uint64), {}, version)
        weights = weights + moved.mean(axis=0)
    assert weights[0] == pytest.approx(expected, abs=close)


@pytest.mark.parametrize("where", ["memory", "files"])
def test_a_run_is_gradient_descent_at_falling_rates(tmp_path: Path, where: str) -> None:
    """One step of each client on all its examples equals a step of gradient descent on the pooled data."""
    training = {"algorithm": "decaying", "steps": 1, "rate": 1.0, "decay": 0.5, "schedule": "exponential", "every": 2}
    of = unit(training=training, where=where)
    expected, problem = np.zeros(31), prepare(of.setup, 1, None)
    for number in range(6):
        expected = expected - 0.5 ** (number // 2) * objective(problem, expected)[1]
    np.testing.assert_allclose(weights_of(of, tmp_path), expected, rtol=1e-4, atol=1e-5)


def test_steps_are_those_that_local_training_takes() -> None:
    found = Decaying(rate=0.1, epochs=2, batch=8, decay=0.1).steps_taken(np.array([0, 1, 8, 9]))
    assert found.tolist() == [0, 2, 2, 4]
    assert Decaying(rate=0.1, steps=3, decay=0.1).steps_taken(np.array([0, 5])).tolist() == [0, 3]


def test_impossible_settings_are_refused() -> None:
    training = {"algorithm": "decaying", "steps": 1, "rate": 1.0, "decay": 2.0, "schedule": "exponential"}
    with pytest.raises(InvalidSettings, match="set it above 0 and to 1 at most"):
        unit(training=training)


def test_an_algorithm_of_ones_own_gets_the_version_if_it_asks_for_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    registry_of_its_own(monkeypatch)
    seen: list[int] = []

    @fedping.client_algorithm("seeing")
    def seeing(model: Any, weights: Any, batch: Any, keys: Any, version: int) -> Any:
        seen.append(version)
        return -model.gradients(weights, batch)

    late = {"lateness": {"shares": [0.5, 0.5]}, "server__staleness": {"most": 1}}
    weights_of(unit(training={"algorithm": "seeing"}, **late), tmp_path)
    assert {*seen} == set(range(6))
    assert any(after < before for before, after in zip(seen, seen[1:], strict=False)), "late ones have an older version"
