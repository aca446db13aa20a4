"""Losses for applications that Hartmann (2018, 1.4) names, in experiments with ``model = "own"``."""

from typing import Any

import autograd.numpy as np  # type: ignore[import-untyped]

FIRST_AXIS = np.ones(30) / np.sqrt(30)
"""Start of the search for a first principal axis, shape (d,)."""

L2 = 1e-3


def hinge(weights: Any, x: Any, y: Any) -> Any:
    """Return the loss of a linear support vector machine for classes 0 and 1; the last weight is the intercept."""
    margins = (2 * y - 1) * (x @ weights[:-1] + weights[-1])
    return np.mean(np.maximum(0.0, 1.0 - margins)) + 0.5 * L2 * np.sum(weights[:-1] ** 2)


def side(weights: Any, x: Any) -> Any:
    """Return a number from 0 to 1 for each example, above 1/2 on the side of class 1; it isn't a probability."""
    return 1 / (1 + np.exp(-(x @ weights[:-1] + weights[-1])))


def minus_variance(weights: Any, x: Any, y: Any) -> Any:
    """Return minus the variance of centred examples along an axis, the Rayleigh quotient of their covariance.

    A step of rate η goes to w + 2η (C w - ρ w) / |w|²: power iteration on the covariance C with a shift.
    """
    along = x @ weights
    return -np.mean(along**2) / np.sum(weights**2)


def along(weights: Any, x: Any) -> Any:
    """Return the positions of examples along the axis."""
    return x @ weights / np.sqrt(np.sum(weights**2))
