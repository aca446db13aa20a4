"""Readable reference code of the ranking models and their loss, for one page and one search at a time.

- Frecency as Firefox computed it in 2018. Thesis 7.1 prints a simplified formula. This is the full rule, with
  redirects, bookmarks, both ceilings and the cases without points or visits, in single precision wherever the browser
  used it (its ``CalculateFrecencyFunction``). :mod:`fedping.client_sim.models.frecency` computes the same numbers for a
  whole fleet.
- The 15-weight model of the thesis' simulation (7.3): the simplified frecency of thesis 7.1, |S| / |T| × sum over the
  visits in T of recency × type, with one weight for each product of a recency and a type: 3 kinds of visit × 5
  recencies. So it is linear in its weights.
- The SVM loss for ranking of thesis 7.2, and its descent by finite differences.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np

from fedping.client_sim.models.arrays import FloatArray
from fedping.client_sim.models.frecency import FrecencyWeights
from fedping.client_sim.models.pages import NOTHING_CHOSEN, Onward, Page, Visit, VisitType, age_in_days, newest

_BONUS_OF_TYPE: dict[int, str] = {
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


def frecency(weights: FloatArray, page: Page, now: int) -> int:
    """Return the page's score in points, an integer; -1 for visits without points, 0 for a hidden page.

    Args:
        weights: the weights in wire order, shape (22,).
        page: the page with its visits.
        now: microseconds since 1970.
    """
    w = FrecencyWeights(*weights.tolist())
    sample = newest(page.visits) if page.visit_count > 0 else []
    if not sample:
        return _unvisited(w, page)
    points = np.float32(0)
    for visit in sample:
        bonus = bonus_of(w, visit, page.bookmarked)
        if bonus != 0:
            points += np.float32(bucket_weight(w, age_in_days(visit, now)) * bonus / 100)
    if points == 0:
        return -1
    return math.ceil(np.float32(page.visit_count) * np.float32(math.ceil(points)) / np.float32(len(sample)))


def _unvisited(w: FrecencyWeights, page: Page) -> int:
    if not page.bookmarked or page.is_query:
        return 0
    bonus = w.unvisited_bookmark_bonus
    if page.typed:
        bonus += w.unvisited_typed_bonus
    return math.ceil(np.float32(w.first_bucket_weight) * (np.float32(bonus) / np.float32(100)))


def bonus_of(w: FrecencyWeights, visit: Visit, bookmarked: bool) -> float:
    """Return the bonus of a visit, a factor on its points, in percent."""
    visit_type = _type_of(visit)
    is_source = _is_redirect_source(visit, visit_type)
    bonus = w.redirect_source_visit_bonus if is_source else _bonus_of_type(w, visit_type)
    if bookmarked:
        bonus += w.bookmark_visit_bonus
    return bonus


def _type_of(visit: Visit) -> int:
    """Return the effective type of a visit: for a redirect's target the type of its origin, if known, one hop back."""
    is_target = visit.type in (VisitType.PERM_REDIRECT, VisitType.TEMP_REDIRECT)
    return visit.origin_type if is_target and visit.origin_type is not None else visit.type


def _is_redirect_source(visit: Visit, visit_type: int) -> bool:
    if visit.onward == Onward.TEMPORARILY:
        return visit_type != VisitType.TYPED
    return visit.onward == Onward.PERMANENTLY


def _bonus_of_type(w: FrecencyWeights, visit_type: int) -> float:
    bonus: float = getattr(w, _BONUS_OF_TYPE.get(visit_type, "default_visit_bonus"))
    return bonus


def bucket_weight(w: FrecencyWeights, age: int) -> float:
    """Return the weight of the first bucket that contains the age; the cutoffs need not be ascending."""
    if age <= w.first_bucket_cutoff:
        return w.first_bucket_weight
    if age <= w.second_bucket_cutoff:
        return w.second_bucket_weight
    if age <= w.third_bucket_cutoff:
        return w.third_bucket_weight
    if age <= w.fourth_bucket_cutoff:
        return w.fourth_bucket_weight
    return w.default_bucket_weight


_CUTOFFS = (4, 14, 31, 90)
_KINDS = (VisitType.LINK, VisitType.TYPED, VisitType.BOOKMARK)


def linear_15(weights: FloatArray, page: Page, now: int) -> float:
    """Return the page's score in points; 0 for a page without visits.

    Args:
        weights: the weights by kind, then by recency from new to old, shape (15,).
        page: the page with its visits.
        now: microseconds since 1970.
    """
    sample = newest(page.visits)
    if not sample:
        return 0.0
    points = 0.0
    for visit in sample:
        if visit.type in _KINDS:  # other kinds have no weight, but count as sampled
            recency = sum(age_in_days(visit, now) > cutoff for cutoff in _CUTOFFS)
            points += float(weights[5 * _KINDS.index(VisitType(visit.type)) + recency])
    return page.visit_count / len(sample) * points


def linear(weights: Sequence[float], features: Sequence[float]) -> float:
    """Return the score of any linear model: the sum of weight × feature."""
    return float(sum(weight * feature for weight, feature in zip(weights, features, strict=True)))


def loss(scores: Sequence[float], chosen: int, margin: float) -> float:
    """Return sum over j != i of max(0, f(x_j) + Δ - f(x_i)), in points of the score.

    Args:
        scores: f of each candidate in displayed order.
        chosen: i, or -1 without a choice; the loss is then 0.
        margin: Δ, in points.
    """
    if chosen == NOTHING_CHOSEN:
        return 0.0
    return float(sum(max(0.0, score + margin - scores[chosen]) for j, score in enumerate(scores) if j != chosen))


def selected_rank(scores: Sequence[float], chosen: int) -> int:
    """Return the rank of the chosen candidate by score, 0 at the top, -1 without a choice.

    Among equal scores, the first displayed one ranks higher.
    """
    if chosen == NOTHING_CHOSEN:
        return NOTHING_CHOSEN
    by_score = sorted(range(len(scores)), key=lambda j: -scores[j])
    return by_score.index(chosen)


def descent_by_finite_differences(
    loss: Callable[[FloatArray], float], weights: FloatArray, epsilon: float = 1.0
) -> FloatArray:
    """Return (loss(w - ε) - loss(w + ε)) / 2ε for each weight, the others unchanged: the direction of **descent**.

    Args:
        loss: a black-box function of the weights.
        weights: w, shape (m,).
        epsilon: ε, in units of the weights; 1 for integer weights.

    Returns:
        The update that a ping carries and the server adds, shape (m,).
    """
    update = np.zeros(len(weights))
    for k in range(len(weights)):
        less, more = weights.copy(), weights.copy()
        less[k] -= epsilon
        more[k] += epsilon
        update[k] = (loss(less) - loss(more)) / (2 * epsilon)
    return update
