"""Gradient descent with one fixed rate (thesis 2.2): the plain baseline."""

from __future__ import annotations

from protocol.pipeline import GradientDescent
from protocol.spec import ModelSpec
from server_jobs.optimize.transformation import Arrays, Transformation, stateless


def gradient_descent(settings: GradientDescent, _: ModelSpec) -> Transformation[Arrays]:
    """Return the link that multiplies the direction by the rate."""
    return stateless(lambda step, weights: settings.rate * step)
