"""The full frecency of 2018 with its 22 weights: scores of many pages, the daily decay, and the trainable model.

Frecency is a step function of its weights. Without the two ceilings, the -1 for visits without points and the single
precision, it is smooth in bucket weights and bonuses:

    visited:    visit_count / sampled × sum over visits of weight × bonus / 100
    unvisited:  first bucket weight × bonus / 100

The cutoffs only decide which bucket a visit falls into. A small change of a cutoff almost never has an effect, so the
gradient of cutoffs is zero. Finite differences do show their effect.

Page by page, scores equal those of :mod:`fedping.client_sim.models.reference` bit for bit. The points of a visit depend
on its kind and on the interval of days that contains its age. So they are computed once per interval, kind and weight
vector, and a page only sums the rows of its visits. Each row holds the points under *all* weight vectors, which is why
44 finite differences cost little more than a few plain scores.

The kind of a visit is 2 × its bonus, plus 1 if its page is bookmarked. One more kind, with no points, fills the unused
places in a page's row.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedping.client_sim.models.arrays import FloatArray, Rows, intervals, sum_rows, whole_thresholds
from fedping.client_sim.models.pages import ORIGIN_NOT_KNOWN, Onward, PageTable, Searches, VisitType
from fedping.client_sim.models.ranking_loss import analytic_updates, black_box_updates, perturbed
from fedping.client_sim.models.ranking_model import check_weights


class FrecencyWeights(NamedTuple):
    """The weights in wire order; all defaults but two are the values that the browser shipped.

    The browser gave redirect targets of unknown origin bonuses of 50 and 40. The study started these bonuses at 0,
    also in its control arm, so that control and version 0 rank in the same way.
    """

    first_bucket_cutoff: float = 4
    """Cutoffs in whole days, inclusive."""
    second_bucket_cutoff: float = 14
    third_bucket_cutoff: float = 31
    fourth_bucket_cutoff: float = 90
    first_bucket_weight: float = 100
    """Bucket weights in points."""
    second_bucket_weight: float = 70
    third_bucket_weight: float = 50
    fourth_bucket_weight: float = 30
    default_bucket_weight: float = 10
    embed_visit_bonus: float = 0
    """Bonuses in percent."""
    framed_link_visit_bonus: float = 0
    link_visit_bonus: float = 100
    typed_visit_bonus: float = 2000
    bookmark_visit_bonus: float = 75
    download_visit_bonus: float = 0
    perm_redirect_visit_bonus: float = 0
    temp_redirect_visit_bonus: float = 0
    redirect_source_visit_bonus: float = 25
    default_visit_bonus: float = 0
    unvisited_bookmark_bonus: float = 140
    unvisited_typed_bonus: float = 200
    reload_visit_bonus: float = 0


def _as_preference(field: str) -> str:
    first, *rest = field.split("_")
    return first + "".join(word.capitalize() for word in rest)


FRECENCY_NAMES: tuple[str, ...] = tuple(map(_as_preference, FrecencyWeights._fields))
"""The weights' names on the wire, such as ``firstBucketCutoff``."""


def frecency_start() -> FloatArray:
    """Return the weights of version 0, by which the control arm always ranks, shape (22,)."""
    return np.array(FrecencyWeights(), dtype=np.float64)


_BONUS_OF_TYPE = {
    VisitType.UNKNOWN: "default_visit_bonus",
    VisitType.LINK: "link_visit_bonus",
    VisitType.TYPED: "typed_visit_bonus",
    VisitType.BOOKMARK: "bookmark_visit_bonus",
    VisitType.EMBED: "embed_visit_bonus",
    VisitType.PERM_REDIRECT: "perm_redirect_visit_bonus",
    VisitType.TEMP_REDIRECT: "temp_redirect_visit_bonus",
    VisitType.DOWNLOAD: "download_visit_bonus",
    VisitType.FRAMED_LINK: "framed_link_visit_bonus",
    VisitType.RELOAD: "reload_visit_bonus",
}
_REDIRECT_SOURCE = len(_BONUS_OF_TYPE)

BONUS_WEIGHT: NDArray[np.intp] = np.array(
    [FrecencyWeights._fields.index(name) for name in (*_BONUS_OF_TYPE.values(), "redirect_source_visit_bonus")]
)
"""The index of each bonus among the 22 weights, shape (11,)."""

NO_VISIT = 2 * len(BONUS_WEIGHT)
KINDS = NO_VISIT + 1

_TYPES, _ORIGINS, _ONWARDS = len(VisitType), len(VisitType) + 1, len(Onward)


def _bonus_number(own: int, origin: int, onward: int) -> int:
    is_target = own in (VisitType.PERM_REDIRECT, VisitType.TEMP_REDIRECT)
    visit_type = origin if is_target and origin != ORIGIN_NOT_KNOWN else own
    is_source = onward == Onward.PERMANENTLY or (onward == Onward.TEMPORARILY and visit_type != VisitType.TYPED)
    return _REDIRECT_SOURCE if is_source else visit_type


_KIND: NDArray[np.uint8] = np.array(
    [
        2 * _bonus_number(own, origin, onward)
        for onward in range(_ONWARDS)
        for origin in range(ORIGIN_NOT_KNOWN, _ORIGINS - 1)
        for own in range(_TYPES)
    ],
    dtype=np.uint8,
)


def visit_kinds(pages: PageTable) -> NDArray[np.uint8]:
    """Return the kind of every visit, 0 to 22, shape (P, V)."""
    key = pages.onward * np.int16(_ORIGINS)
    key += pages.origin_type - np.int16(ORIGIN_NOT_KNOWN)
    key *= np.int16(_TYPES)
    key += pages.visit_type
    kinds: NDArray[np.uint8] = _KIND[key]
    kinds += pages.bookmarked[:, None]
    kinds[np.arange(kinds.shape[1]) >= pages.sampled[:, None]] = NO_VISIT
    return kinds


BUCKETS = 5
FIRST_WEIGHT = FrecencyWeights._fields.index("first_bucket_weight")
BOOKMARK = FrecencyWeights._fields.index("bookmark_visit_bonus")
UNVISITED_BOOKMARK = FrecencyWeights._fields.index("unvisited_bookmark_bonus")
UNVISITED_TYPED = FrecencyWeights._fields.index("unvisited_typed_bonus")


@dataclass(frozen=True)
class PointTable:
    """The points of visits and unvisited pages under K weight vectors.

    Attributes:
        thresholds: ascending whole days that separate the intervals of age, shape (I - 1,).
        points: float32 points of a visit, shape (I * KINDS, K), one row per interval and kind.
        unvisited: scores of pages without a sample, shape (3, K): hidden, bookmarked, bookmarked and typed.
    """

    thresholds: NDArray[np.int32]
    points: NDArray[np.float32]
    unvisited: FloatArray

    @classmethod
    def of(cls, weights: FloatArray) -> PointTable:
        """Return the table for weights of shape (K, 22)."""
        thresholds = np.unique(whole_thresholds(weights[:, :FIRST_WEIGHT]))
        per_bucket = bucket_weights(weights, thresholds)
        points = per_bucket[:, None, :] * bonuses(weights) / 100
        return cls(thresholds, points.astype(np.float32).reshape(-1, len(weights)), _unvisited_scores(weights))


def buckets(weights: FloatArray, thresholds: NDArray[np.int32]) -> NDArray[np.intp]:
    """Return the bucket, 0 to 4, of each interval of ages under each weight vector, shape (I, K).

    All ages of an interval are on the same side of every cutoff, so its upper end represents them all. The cutoffs are
    tried in their order, which need not be ascending. Beyond the last threshold is the default bucket.
    """
    within = whole_thresholds(weights[:, :FIRST_WEIGHT]) >= thresholds[:, None, None]
    bucket = np.where(within.any(axis=2), within.argmax(axis=2), BUCKETS - 1)
    return np.concatenate([bucket, np.full((1, len(weights)), BUCKETS - 1)])


def bucket_weights(weights: FloatArray, thresholds: NDArray[np.int32]) -> FloatArray:
    """Return the bucket weight of each interval of ages under each weight vector, in points, shape (I, K)."""
    by_bucket = weights[:, FIRST_WEIGHT : FIRST_WEIGHT + BUCKETS]
    return by_bucket[np.arange(len(weights)), buckets(weights, thresholds)]


def bonuses(weights: FloatArray) -> FloatArray:
    """Return the bonus of each kind of visit under each weight vector, in percent, shape (KINDS, K)."""
    bonus = np.zeros((KINDS, len(weights)))
    bonus[0:-1:2] = weights[:, BONUS_WEIGHT].T
    bonus[1:-1:2] = bonus[0:-1:2] + weights[:, BOOKMARK]
    return bonus


def visit_codes(pages: PageTable, thresholds: NDArray[np.int32]) -> NDArray[np.intp]:
    """Return each visit's row in a table by interval and kind, shape (P, V)."""
    codes = intervals(pages.age_days, thresholds)
    codes *= KINDS
    codes += visit_kinds(pages)
    return codes


def is_sampled(pages: PageTable) -> NDArray[np.bool_]:
    """Return whether each page is scored by its visits, shape (P,)."""
    return (pages.visit_count > 0) & (pages.sampled > 0)


def unvisited_kind(pages: PageTable) -> NDArray[np.intp]:
    """Return each page's kind if it has no sample, shape (P,): 0 hidden, 1 bookmarked, 2 bookmarked and typed."""
    return np.where(pages.bookmarked & ~pages.is_query, 1 + pages.typed, 0)


def frecency_scores(table: PointTable, pages: PageTable) -> FloatArray:
    """Return the score of every page under every weight vector, shape (P, K): integers, in points."""
    points = sum_rows(table.points, visit_codes(pages, table.thresholds))
    no_points = points == 0
    np.ceil(points, out=points)
    # Single precision up to the last ceiling, as in the browser: above 2^24 products are no longer exact.
    points *= pages.visit_count[:, None].astype(np.float32)
    points /= np.maximum(pages.sampled, 1)[:, None].astype(np.float32)
    np.ceil(points, out=points)
    scores = points.astype(np.float64)
    scores[no_points] = -1.0
    unsampled = np.flatnonzero(~is_sampled(pages))
    scores[unsampled] = table.unvisited[unvisited_kind(pages)[unsampled]]
    scores += 0.0  # the ceiling of -0.5 is -0.0; make it 0.0
    return scores


def _unvisited_scores(weights: FloatArray) -> FloatArray:
    first = weights[:, FIRST_WEIGHT].astype(np.float32)
    bookmark, typed = weights[:, UNVISITED_BOOKMARK], weights[:, UNVISITED_TYPED]
    bonus = np.stack([np.zeros_like(bookmark), bookmark, bookmark + typed]).astype(np.float32)
    return np.ceil(first * (bonus / np.float32(100))).astype(np.float64) + 0.0


LARGEST_THAT_STAYS = 20


def decayed(scores: FloatArray) -> FloatArray:
    """Return the scores one day later: score × 0.975, rounded half away from zero; 20 and below do not change.

    Args:
        scores: integers, any shape.
    """
    return np.where(scores > LARGEST_THAT_STAYS, np.floor(0.975 * scores + 0.5), scores)


@dataclass(frozen=True)
class SmoothTable:
    """The points of visits and unvisited pages (column 0), and their derivatives by the weights (columns 1 to m).

    Attributes:
        thresholds: ascending whole days that separate the intervals of age, shape (I - 1,).
        visits: shape (I * KINDS, 1 + m), one row per interval and kind.
        unvisited: shape (3, 1 + m): hidden, bookmarked, bookmarked and typed.
    """

    thresholds: NDArray[np.int32]
    visits: FloatArray
    unvisited: FloatArray

    @classmethod
    def of(cls, weights: FloatArray) -> SmoothTable:
        """Return the table for weights of shape (22,)."""
        thresholds = np.unique(whole_thresholds(weights[:FIRST_WEIGHT]))
        return cls(thresholds, _visit_rows(weights, thresholds), _unvisited_rows(weights))


def smooth_frecency(table: SmoothTable, pages: PageTable) -> tuple[FloatArray, FloatArray]:
    """Return the smooth score of every page, shape (P,), and its gradient in the weights, shape (P, 22)."""
    both = sum_rows(table.visits, visit_codes(pages, table.thresholds))
    both *= (pages.visit_count / np.maximum(pages.sampled, 1))[:, None]
    unsampled = np.flatnonzero(~is_sampled(pages))
    both[unsampled] = table.unvisited[unvisited_kind(pages)[unsampled]]
    return both[:, 0], both[:, 1:]


def _visit_rows(weights: FloatArray, thresholds: NDArray[np.int32]) -> FloatArray:
    per_bucket = bucket_weights(weights[None], thresholds)[:, 0] / 100
    bonus = bonuses(weights[None])[:, 0]
    rows = np.zeros((len(thresholds) + 1, KINDS, 1 + len(weights)))
    rows[:, :, 0] = per_bucket[:, None] * bonus
    every = np.arange(len(rows))
    rows[every, :, 1 + FIRST_WEIGHT + buckets(weights[None], thresholds)[:, 0]] = bonus / 100
    for number, weight in enumerate(BONUS_WEIGHT):
        rows[:, 2 * number : 2 * number + 2, 1 + weight] = per_bucket[:, None]
    # A bookmark's bonus counts twice if the visit came by a bookmark and the page is bookmarked.
    rows[:, 1:-1:2, 1 + BOOKMARK] += per_bucket[:, None]
    return rows.reshape(-1, 1 + len(weights))


def _unvisited_rows(weights: FloatArray) -> FloatArray:
    rows = np.zeros((3, 1 + len(weights)))
    first = weights[FIRST_WEIGHT] / 100
    for row, typed in ((1, 0.0), (2, 1.0)):
        bonus = weights[UNVISITED_BOOKMARK] + typed * weights[UNVISITED_TYPED]
        rows[row, 0] = first * bonus
        rows[row, 1 + FIRST_WEIGHT] = bonus / 100
        rows[row, 1 + UNVISITED_BOOKMARK] = first
        rows[row, 1 + UNVISITED_TYPED] = first * typed
    return rows


_PAGES_AT_A_TIME = 4096
_SEARCHES_AT_A_TIME = 128


class Frecency2018:
    """See :class:`fedping.client_sim.models.ranking_model.RankingModel`.

    Finite differences treat the score as a black box, including its ceilings, its -1 and its cutoffs. The analytic
    update is the exact negative gradient of the loss of the *smooth* formula
    (:mod:`fedping.client_sim.models.frecency`), a different function: the gradient is zero for the cutoffs, and the
    hinges use the smooth scores.
    """

    name = "frecency-2018"
    weight_names = FRECENCY_NAMES
    m = len(FRECENCY_NAMES)

    def scores(self, weights: FloatArray, pages: PageTable) -> FloatArray:
        """Return the score of every page: integers, in points, shape (P,)."""
        check_weights(self, weights)
        table = PointTable.of(weights[None])
        result = np.empty(len(pages))
        for start in range(0, len(pages), _PAGES_AT_A_TIME):
            rows = slice(start, start + _PAGES_AT_A_TIME)
            result[rows] = frecency_scores(table, pages.rows(rows))[:, 0]
        return result

    def finite_differences(
        self, weights: FloatArray, pages: PageTable, searches: Searches, margin: float, epsilon: float = 1.0
    ) -> FloatArray:
        """Return each search's update by central finite differences of the black box, shape (S, 22)."""
        check_weights(self, weights)
        table = PointTable.of(perturbed(weights, epsilon))

        def scores_under(rows: Rows) -> FloatArray:
            return frecency_scores(table, pages.rows(rows))

        return black_box_updates(scores_under, searches, self.m, margin, epsilon, _SEARCHES_AT_A_TIME)

    def analytic_updates(self, weights: FloatArray, pages: PageTable, searches: Searches, margin: float) -> FloatArray:
        """Return each search's negative gradient of the smooth formula's loss, shape (S, 22)."""
        check_weights(self, weights)
        table = SmoothTable.of(weights)

        def evaluate(rows: Rows) -> tuple[FloatArray, FloatArray]:
            return smooth_frecency(table, pages.rows(rows))

        return analytic_updates(evaluate, searches, self.m, margin, _SEARCHES_AT_A_TIME)
