"""Shared parts of classification models: checked classes, and softmax with its loss."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from fedping.client_sim.learning.batch import Examples, FloatArray, Floats
from fedping.protocol.errors import FedpingError


def classes_of(batch: Examples, classes: int) -> NDArray[np.intp]:
    """Return each example's class, shape (k, n).

    Raises:
        FedpingError: a target is not the number of a class, from 0 to classes - 1.
    """
    y, whole = batch.classes
    if not whole or batch.largest >= classes:
        raise FedpingError(
            f"the targets must be classes numbered 0 to {classes - 1}, but they go from {batch.y.min():g} to "
            f"{batch.y.max():g}; number the classes from 0, and set classes to their number"
        )
    return y


def log_odds_of(scores: Floats) -> FloatArray | None:
    """Return the log-odds of class 1, shape (k, n), from two classes' scores, (k, n, 2); None for more classes."""
    if scores.shape[-1] != 2:
        return None
    odds: FloatArray = scores[..., 1].astype(np.float64) - scores[..., 0]
    return odds


def softmax(scores: Floats) -> Floats:
    """Turn scores into class probabilities along the last axis, in place, and return them."""
    scores -= scores.max(axis=-1, keepdims=True)
    np.exp(scores, out=scores)
    scores /= scores.sum(axis=-1, keepdims=True)
    return scores


def pulls_on_scores(probabilities: Floats, pulls: Floats) -> Floats:
    """Return the gradient by the scores, given the gradient by their softmax; all of shape (k, n, c)."""
    found: Floats = probabilities * (pulls - np.einsum("knc,knc->kn", probabilities, pulls)[..., None])
    return found


def cross_entropies(scores: Floats, y: NDArray[np.intp], share: Floats) -> tuple[Floats, Floats]:
    """Return the clients' mean cross-entropies, shape (k,), and their gradients with respect to the scores.

    Args:
        scores: shape (k, n, c); overwritten with the gradients.
        y: classes, shape (k, n).
        share: each example's share in its client's mean, shape (k, n).
    """
    scores -= scores.max(axis=-1, keepdims=True)
    flat = scores.reshape(-1)
    at = np.arange(0, flat.size, scores.shape[-1]) + y.ravel()
    of_class = np.take(flat, at).reshape(y.shape)
    np.exp(scores, out=scores)
    total = scores.sum(axis=-1)
    losses = np.einsum("kn,kn->k", share, np.log(total) - of_class)
    scores *= (share / total)[..., None]
    flat[at] -= share.ravel()
    return losses, scores
