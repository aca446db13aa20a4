"""Linear ranking models of pages, which are weighted sums of a page's features, and the thesis' 15 features.

The simulation of thesis 7.3 encodes a visit as one-hot over kind and recency. Several visits are combined as in 7.1,
where the score is |S| / |T| × the sum over the visits in T: a feature is visit_count / sampled × the number of sampled
visits of that kind and recency. If all visits of a page have the same kind and recency, this is the one-hot vector
times the page's frequency.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from fedping.client_sim.models.arrays import FloatArray, Rows, intervals, sum_rows
from fedping.client_sim.models.pages import Block, PageTable, Searches, VisitType, blocks
from fedping.client_sim.models.ranking_loss import pulls_of, shown_violations
from fedping.client_sim.models.ranking_model import check_weights

_CUTOFFS: NDArray[np.int32] = np.array([4, 14, 31, 90], dtype=np.int32)
_RECENCIES = ("FirstBucket", "SecondBucket", "ThirdBucket", "FourthBucket", "DefaultBucket")
_KINDS = {"link": VisitType.LINK, "typed": VisitType.TYPED, "bookmark": VisitType.BOOKMARK}

LINEAR_15_NAMES: tuple[str, ...] = tuple(f"{kind}{recency}" for kind in _KINDS for recency in _RECENCIES)
"""Names of the 15 weights, such as ``linkFirstBucket``, by kind, then by recency from new to old."""

_M = len(LINEAR_15_NAMES)
_FIRST_OF_TYPE = np.full(len(VisitType), _M, np.intp)
_FIRST_OF_TYPE[list(_KINDS.values())] = np.arange(len(_KINDS)) * len(_RECENCIES)

# One row per feature; the last rows are for visits of other kinds, of any recency.
_ONE_HOT: FloatArray = np.eye(_M + len(_RECENCIES), _M)


def linear_15_truth() -> FloatArray:
    """Return the weights equivalent to the formula of thesis 7.1, type factor × recency points, shape (15,)."""
    return np.outer([1.2, 2.0, 1.4], [100.0, 70.0, 50.0, 30.0, 10.0]).ravel()


def linear_15_features(pages: PageTable) -> FloatArray:
    """Return the features of every page, shape (P, 15); zeros for a page without visits."""
    codes = _FIRST_OF_TYPE[pages.visit_type]
    codes += intervals(pages.age_days, _CUTOFFS)
    codes[np.arange(codes.shape[1]) >= pages.sampled[:, None]] = _M
    features = sum_rows(_ONE_HOT, codes)
    features *= (pages.visit_count / np.maximum(pages.sampled, 1))[:, None]
    return features


FeaturesOf: TypeAlias = Callable[[Rows], FloatArray]
"""Function from rows of a page table to the pages' features, shape (p, m). For a matrix: ``matrix.__getitem__``."""

_FINITE_DIFFERENCES_BLOCK = 256
_ANALYTIC_BLOCK = 768


def linear_scores(weights: FloatArray, features: FloatArray) -> FloatArray:
    """Return the scores, shape (P,), for weights of shape (m,) and features of shape (P, m).

    Pages with equal features get equal scores to the bit, wherever they are in the matrix, so that ties stay ties; a
    BLAS doesn't guarantee this.
    """
    scores: FloatArray = np.einsum("pm,m->p", features, weights)
    return scores


def linear_scores_by_search(
    weights: FloatArray, features_of: FeaturesOf, searches: Searches, block_size: int
) -> FloatArray:
    """Return every candidate's score under its search's own weights, shape (S, m); minus infinity in the padding.

    Returns:
        Shape (S, C), equal to :func:`linear_scores` for each search to the bit.
    """
    scores = np.full(searches.candidates.shape, -np.inf)
    for block in blocks(searches, block_size):
        _, shown = _shown(weights, features_of, block)
        scores[block.searches] = np.where(block.candidates >= 0, shown, -np.inf)
    return scores


def _shown(weights: FloatArray, features_of: FeaturesOf, block: Block) -> tuple[FloatArray, FloatArray]:
    """Return the candidates' features, shape (s, C, m), and scores, shape (s, C), under weights (m,) or (S, m)."""
    features = features_of(block.pages)
    shown = block.shown(features)
    if weights.ndim == 1:
        return shown, block.shown(linear_scores(weights, features))
    return shown, np.einsum("scm,sm->sc", shown, weights[block.searches])


def linear_analytic_updates(
    weights: FloatArray, features_of: FeaturesOf, searches: Searches, margin: float
) -> FloatArray:
    """Return the exact negative gradient of each search's loss, shape (S, m); weights of shape (m,) or (S, m)."""
    updates = np.zeros((len(searches), weights.shape[-1]))
    for block in blocks(searches, _ANALYTIC_BLOCK):
        shown, scores = _shown(weights, features_of, block)
        pulls = pulls_of(shown_violations(scores, block, margin), block)
        np.matmul(pulls[:, None, :], shown, out=updates[block.searches][:, None, :])
    return updates


def linear_finite_differences(
    weights: FloatArray, features_of: FeaturesOf, searches: Searches, margin: float, epsilon: float = 1.0
) -> FloatArray:
    """Return (loss(w - ε) - loss(w + ε)) / 2ε per search and weight, shape (S, m); weights of shape (m,) or (S, m).

    With w + ε in weight k, candidate j's violation grows by exactly ε × (x_jk - x_ik), so the violations are shifted
    rather than recomputed for 2m weight vectors. The result equals the black box's, up to rounding.
    """
    updates = np.zeros((len(searches), weights.shape[-1]))
    for block in blocks(searches, _FINITE_DIFFERENCES_BLOCK):
        shown, scores = _shown(weights, features_of, block)
        over = shown_violations(scores, block, margin)[:, :, None]
        change = shown - shown[np.arange(len(block.chosen)), block.chosen][:, None]
        change *= epsilon
        more = over + change
        less = np.subtract(over, change, out=change)
        np.maximum(more, 0.0, out=more)
        np.maximum(less, 0.0, out=less)
        less -= more
        updates[block.searches] = less.sum(axis=1) / (2 * epsilon)
    return updates


_PAGES_AT_A_TIME = 4096


@dataclass(frozen=True)
class LinearModel:
    """See :class:`fedping.client_sim.models.ranking_model.RankingModel`; each search may have its own weights.

    Attributes:
        name: the model's name.
        weight_names: names of the weights, one per feature.
        features: a function from pages to their features, shape (P, m).
    """

    name: str
    weight_names: tuple[str, ...]
    features: Callable[[PageTable], FloatArray]

    @property
    def m(self) -> int:
        """The number of weights."""
        return len(self.weight_names)

    def scores(self, weights: FloatArray, pages: PageTable) -> FloatArray:
        """Return the score of every page, in points, shape (P,)."""
        check_weights(self, weights)
        result = np.empty(len(pages))
        for start in range(0, len(pages), _PAGES_AT_A_TIME):
            rows = slice(start, start + _PAGES_AT_A_TIME)
            result[rows] = linear_scores(weights, self.features(pages.rows(rows)))
        return result

    def scores_by_search(self, weights: FloatArray, pages: PageTable, searches: Searches) -> FloatArray:
        """See :class:`fedping.client_sim.models.ranking_model.WeighsEachSearch`."""
        check_weights(self, weights, len(searches))
        return linear_scores_by_search(weights, self._features_in(pages), searches, _ANALYTIC_BLOCK)

    def finite_differences(
        self, weights: FloatArray, pages: PageTable, searches: Searches, margin: float, epsilon: float = 1.0
    ) -> FloatArray:
        """Return each search's update by central finite differences, shape (S, m)."""
        check_weights(self, weights, len(searches))
        return linear_finite_differences(weights, self._features_in(pages), searches, margin, epsilon)

    def analytic_updates(self, weights: FloatArray, pages: PageTable, searches: Searches, margin: float) -> FloatArray:
        """Return each search's exact negative gradient, shape (S, m)."""
        check_weights(self, weights, len(searches))
        return linear_analytic_updates(weights, self._features_in(pages), searches, margin)

    def _features_in(self, pages: PageTable) -> FeaturesOf:
        return lambda rows: self.features(pages.rows(rows))
