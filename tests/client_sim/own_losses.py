"""Losses that tests name as "own_losses:...", like a user's module."""

from __future__ import annotations

from typing import Any

import autograd.numpy as anp
import numpy as np

NUMBER = 3.0
START = (1.0, -2.0, 0.5)


def start() -> tuple[float, ...]:
    return START


def squared(weights: Any, x: Any, y: Any) -> Any:
    return anp.mean((anp.dot(x, weights[:-1]) + weights[-1] - y) ** 2)


def in_numpy(weights: Any, x: Any, y: Any) -> Any:
    """The same as ``squared``, with an assignment and plain NumPy, which autograd can't differentiate."""
    errors = np.zeros(len(y))
    errors[:] = x @ weights[:-1] + weights[-1] - y
    return float(np.mean(errors**2))


def predicted(weights: Any, x: Any) -> Any:
    return x @ weights[:-1] + weights[-1]


def one_for_each(weights: Any, x: Any, y: Any) -> Any:
    return (anp.dot(x, weights[:-1]) - y) ** 2


def of_five_features(weights: Any, x: Any, y: Any) -> Any:
    return anp.mean((x[:, 4] * weights[0] - y) ** 2)


def not_a_number(weights: Any, x: Any, y: Any) -> Any:
    return anp.log(-1.0 - anp.sum(weights**2))


def steep_at_zero(weights: Any, x: Any, y: Any) -> Any:
    return anp.sum(anp.sqrt(weights))


def of_the_last(weights: Any, x: Any, y: Any) -> Any:
    return np.log(1.5 - x[0, 0] * 2) + 0 * (weights @ weights)


def steep_for_the_last(weights: Any, x: Any, y: Any) -> Any:
    return anp.sqrt(anp.dot(weights, weights)) if x[0, 0] else anp.dot(weights, weights)
