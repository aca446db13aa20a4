"""The SVM loss for ranking (thesis 7.2) and the updates that descend it, over many searches at once.

Every form of the loss and of its gradient has the same rule for kinks: a candidate **violates** the margin if f(x_j) +
Δ - f(x_i) is *greater* than zero. A hinge at exactly zero is inactive: it contributes nothing to the loss or to its
gradient.

Updates, by finite differences or analytic, are directions of **descent**, which a ping carries and the server adds.
The update of a search without a choice is zero.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from fedping.client_sim.models.arrays import FloatArray, Rows
from fedping.client_sim.models.pages import NOTHING_CHOSEN, Block, Searches, blocks

_BLOCK = 4096


def violations(scores: FloatArray, block: Block, margin: float) -> FloatArray:
    """Return f(x_j) + Δ - f(x_i) for every candidate j, given the chosen i.

    The result is minus infinity where no hinge exists: at the chosen candidate itself, in the padding, and in a search
    without a choice. So such a hinge is inactive, whatever is added to it.

    Args:
        scores: scores of the block's pages, shape (p,), or shape (p, K) for K weight vectors at once.
        block: the searches.
        margin: Δ, in points of the score.

    Returns:
        Shape (s, C) or (s, C, K).
    """
    return shown_violations(block.shown(scores), block, margin)


def shown_violations(shown: FloatArray, block: Block, margin: float) -> FloatArray:
    """Return the results of :func:`violations` from the scores of the candidates, shape (s, C) or (s, C, K)."""
    every = np.arange(len(block.chosen))
    best = shown[every, block.chosen]
    best[block.chosen == NOTHING_CHOSEN] = np.inf
    over: FloatArray = shown + margin
    over -= best[:, None]
    over[every, block.chosen] = -np.inf
    if block.candidates[:, -1].min() < 0:
        over[block.candidates < 0] = -np.inf
    return over


def block_losses(scores: FloatArray, block: Block, margin: float) -> FloatArray:
    """Return the losses of the block's searches, shape (s,) or (s, K) for scores of shape (p,) or (p, K)."""
    over = violations(scores, block, margin)
    np.maximum(over, 0.0, out=over)
    total: FloatArray = over.sum(axis=1)
    return total


def losses(scores: FloatArray, searches: Searches, margin: float) -> FloatArray:
    """Return the loss of each search, in points of the score; 0 without a choice.

    Args:
        scores: scores of every page of the table, shape (P,).
        searches: S searches over that table.
        margin: Δ, in points.

    Returns:
        Shape (S,).
    """
    result = np.zeros(len(searches))
    scores = np.asarray(scores, dtype=np.float64)  # integers could not hold the infinities of `violations`
    for block in blocks(searches, _BLOCK):
        result[block.searches] = block_losses(scores[block.pages], block, margin)
    return result


def selected_ranks(scores: FloatArray, searches: Searches) -> NDArray[np.int64]:
    """Return the rank of each chosen candidate by score, shape (S,): 0 at the top, -1 without a choice.

    Among equal scores, the first displayed one ranks higher.
    """
    result = np.full(len(searches), NOTHING_CHOSEN, np.int64)
    for block in blocks(searches, _BLOCK):
        result[block.searches] = _block_ranks(scores[block.pages], block)
    return result


def _block_ranks(scores: FloatArray, block: Block) -> NDArray[np.int64]:
    shown = block.shown(scores)
    best = shown[np.arange(len(block.chosen)), block.chosen][:, None]
    earlier = np.arange(shown.shape[1]) < block.chosen[:, None]
    above = ((shown > best) | ((shown == best) & earlier)) & (block.candidates >= 0)
    return np.where(block.chosen == NOTHING_CHOSEN, NOTHING_CHOSEN, np.count_nonzero(above, axis=1))


ScoresUnderAll: TypeAlias = Callable[[Rows], FloatArray]
"""Function from rows of a page table to the pages' scores under K weight vectors, shape (p, K)."""

ScoresAndGradients: TypeAlias = Callable[[Rows], tuple[FloatArray, FloatArray]]
"""Function from rows of a page table to the pages' scores, shape (p,), and their gradients, shape (p, m)."""


def perturbed(weights: FloatArray, epsilon: float) -> FloatArray:
    """Return w - ε for each weight in turn, then w + ε for each, shape (2m, m)."""
    one_at_a_time = epsilon * np.eye(len(weights))
    return np.concatenate([weights - one_at_a_time, weights + one_at_a_time])


def black_box_updates(
    scores_under: ScoresUnderAll, searches: Searches, m: int, margin: float, epsilon: float, block_size: int
) -> FloatArray:
    """Return (loss(w - ε) - loss(w + ε)) / 2ε per search and weight, using only scores.

    Args:
        scores_under: returns scores under the 2m weight vectors of :func:`perturbed`, shape (p, 2m).
        searches: S searches.
        m: the number of weights.
        margin: Δ of the loss, in points.
        epsilon: ε, in units of the weights.
        block_size: number of searches to hold in memory at a time.

    Returns:
        Shape (S, m).
    """
    updates = np.zeros((len(searches), m))
    for block in blocks(searches, block_size):
        lost = block_losses(scores_under(block.pages), block, margin)
        updates[block.searches] = (lost[:, :m] - lost[:, m:]) / (2 * epsilon)
    return updates


def analytic_updates(
    evaluate: ScoresAndGradients, searches: Searches, m: int, margin: float, block_size: int
) -> FloatArray:
    """Return the negative gradient of each search's loss, shape (S, m); arguments as in :func:`black_box_updates`.

    A violating candidate contributes f'(x_i) - f'(x_j), and any other candidate 0.
    """
    updates = np.zeros((len(searches), m))
    for block in blocks(searches, block_size):
        scores, gradients = evaluate(block.pages)
        pulls = pulls_of(violations(scores, block, margin), block)
        np.matmul(pulls[:, None, :], block.shown(gradients), out=updates[block.searches][:, None, :])
    return updates


def pulls_of(over: FloatArray, block: Block) -> FloatArray:
    """Return the loss' pull on each candidate's score, shape (s, C): -1 for violators, their number for the choice."""
    violating = over > 0
    pulls = np.where(violating, -1.0, 0.0)
    pulls[np.arange(len(block.chosen)), block.chosen] = np.count_nonzero(violating, axis=1)
    return pulls
