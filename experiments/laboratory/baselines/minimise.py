"""Minimising the losses of many clients at once, each with weights of its own: L-BFGS, side by side.

L-BFGS (Nocedal 1980) with a backtracking line search by Armijo's rule; a pair of differences without positive curvature
is left out of the history. Every client has its own history, step and end; one NumPy call works on all of them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from client_sim.learning.batch import FloatArray

HISTORY = 10
_SLOPE = 1e-4
_HALVINGS = 40

LossAndGradient: TypeAlias = Callable[[FloatArray], tuple[FloatArray, FloatArray]]
"""From weights of shape (k, m) to losses (k,) and gradients (k, m)."""


@dataclass(frozen=True)
class Minimum:
    """Where the descent ended: weights (k, m), losses (k,), and whether each gradient had become small (k,)."""

    weights: FloatArray
    losses: FloatArray
    converged: NDArray[np.bool_]
    iterations: int


def minimise(
    function: LossAndGradient,
    start: FloatArray,
    *,
    most: int = 500,
    tolerance: float = 1e-7,
    on_iteration: Callable[[FloatArray], NDArray[np.bool_] | None] = lambda _: None,
) -> Minimum:
    """Return the minimum of each client's loss, going down from ``start``, shape (k, m).

    A client is done when the largest component of its gradient is at most ``tolerance``, when no step makes its loss
    smaller, or when ``on_iteration``, which is told the weights after each iteration, says so by a mask of shape (k,).
    """
    weights = start.copy()
    losses, gradients = function(weights)
    history: list[tuple[FloatArray, FloatArray, FloatArray]] = []
    going = np.abs(gradients).max(axis=1) > tolerance
    iterations = 0
    while going.any() and iterations < most:
        direction = _direction(gradients, history)
        there, losses_there, gradients_there = _search(
            function, weights, losses, gradients, direction, going, not history
        )
        moved = (there != weights).any(axis=1)
        history = [*history, _pair(there - weights, gradients_there - gradients)][-HISTORY:]
        weights, losses, gradients = there, losses_there, gradients_there
        iterations += 1
        going &= moved & (np.abs(gradients).max(axis=1) > tolerance)
        enough = on_iteration(weights)
        if enough is not None:
            going &= ~enough
    return Minimum(weights, losses, np.abs(gradients).max(axis=1) <= tolerance, iterations)


def _direction(gradients: FloatArray, history: list[tuple[FloatArray, FloatArray, FloatArray]]) -> FloatArray:
    """Return minus the gradients times the approximate inverse Hessians: the two loops of L-BFGS, shape (k, m)."""
    q = gradients.copy()
    alphas = []
    for s, y, rho in reversed(history):
        alpha = rho * _dot(s, q)
        q -= alpha[:, None] * y
        alphas.append(alpha)
    scale = np.ones(len(q))
    for s, y, rho in history:  # the newest valid pair of each client scales
        scale = np.where(rho > 0, _dot(s, y) / np.maximum(_dot(y, y), 1e-300), scale)
    q *= scale[:, None]
    for (s, y, rho), alpha in zip(history, reversed(alphas), strict=True):
        q += (alpha - rho * _dot(y, q))[:, None] * s
    return np.where((_dot(q, gradients) > 0)[:, None], -q, -gradients)


def _search(
    function: LossAndGradient,
    weights: FloatArray,
    losses: FloatArray,
    gradients: FloatArray,
    direction: FloatArray,
    going: NDArray[np.bool_],
    first: bool,
) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Halve each client's step until it pays; a client for which none does stays where it is."""
    length = np.sqrt(_dot(direction, direction))
    step = np.where(going, 1 / np.maximum(1.0, length) if first else 1.0, 0.0)
    slope = _dot(direction, gradients)
    rounding = 4 * np.finfo(np.float64).eps * np.abs(losses)  # near the end no step makes the loss visibly smaller
    for _ in range(_HALVINGS):
        there = weights + step[:, None] * direction
        losses_there, gradients_there = function(there)
        bad = ~(losses_there <= losses + _SLOPE * step * slope + rounding)  # also where the loss is not a number
        bad &= step > 0
        if not bad.any():
            return there, losses_there, gradients_there
        step = np.where(bad, step / 2, step)
    stuck = bad[:, None]
    return (
        np.where(stuck, weights, there),
        np.where(bad, losses, losses_there),
        np.where(stuck, gradients, gradients_there),
    )


def _pair(s: FloatArray, y: FloatArray) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Return differences of weights and gradients, and 1 / (s·y): 0 where there is no positive curvature."""
    curvature = _dot(s, y)
    valid = curvature > 1e-12 * np.sqrt(_dot(s, s) * _dot(y, y))
    return s, y, np.where(valid, 1.0 / np.where(valid, curvature, 1.0), 0.0)


def _dot(a: FloatArray, b: FloatArray) -> FloatArray:
    products: FloatArray = np.einsum("km,km->k", a, b)
    return products
