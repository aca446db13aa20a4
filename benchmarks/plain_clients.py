"""The plain way of thesis 7.3: one object a client, which scores its own pages and computes its own update."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from fedping.client_sim.models import FrecencyWeights, Onward, Page, Visit, VisitType
from fedping.client_sim.models.arrays import FloatArray
from fedping.client_sim.models.pages import age_in_days
from fedping.client_sim.models.reference import bonus_of, bucket_weight, descent_by_finite_differences, frecency, loss

MARGIN = 10.0
NOW = 1_530_000_000_000_000
FIELDS = {name: i for i, name in enumerate(FrecencyWeights._fields)}


@dataclass
class PlainLinearClient:
    """A client with its searches: for each, the features of the candidates, shape (C, m), and the chosen one."""

    searches: list[tuple[FloatArray, int]]

    def loss(self, weights: FloatArray) -> float:
        """Return the sum over the searches."""
        total = 0.0
        for features, chosen in self.searches:
            scores = features @ weights
            hinges = np.maximum(0.0, scores + MARGIN - scores[chosen])
            total += hinges.sum() - hinges[chosen]
        return total

    def finite_differences(self, weights: FloatArray) -> FloatArray:
        """Return the update by central finite differences."""
        return descent_by_finite_differences(self.loss, weights)

    def analytic(self, weights: FloatArray) -> FloatArray:
        """Return the update by the negative gradient."""
        update = np.zeros(len(weights))
        for features, chosen in self.searches:
            scores = features @ weights
            violating = scores + MARGIN - scores[chosen] > 0
            violating[chosen] = False
            update += violating.sum() * features[chosen] - features[violating].sum(axis=0)
        return update


@dataclass
class PlainFrecencyClient:
    """A client with one search: its candidates as objects, and which one was chosen."""

    pages: list[Page]
    chosen: int

    def loss(self, weights: FloatArray) -> float:
        """Return the loss of the search."""
        return loss([frecency(weights, page, NOW) for page in self.pages], self.chosen, MARGIN)

    def finite_differences(self, weights: FloatArray) -> FloatArray:
        """Return the update by central finite differences."""
        return descent_by_finite_differences(self.loss, weights)

    def analytic(self, weights: FloatArray) -> FloatArray:
        """Return the update by the negative gradient."""
        w = FrecencyWeights(*weights.tolist())
        scored = [_smooth_score_and_gradient(w, page) for page in self.pages]
        best, best_gradient = scored[self.chosen]
        update = np.zeros(len(weights))
        for j, (score, gradient) in enumerate(scored):
            if j != self.chosen and score + MARGIN - best > 0:
                update += np.subtract(best_gradient, gradient)
        return update


def _smooth_score_and_gradient(w: FrecencyWeights, page: Page) -> tuple[float, list[float]]:
    """Return the score of a visited page without ceilings, and its derivative by each weight."""
    points, gradient = 0.0, [0.0] * len(w)
    for visit in page.visits:
        age = age_in_days(visit, NOW)
        weight, bonus = bucket_weight(w, age), bonus_of(w, visit, page.bookmarked)
        points += weight * bonus / 100
        gradient[FIELDS["first_bucket_weight"] + _bucket(w, age)] += bonus / 100
        gradient[_bonus_weight(visit)] += weight / 100
        if page.bookmarked:
            gradient[FIELDS["bookmark_visit_bonus"]] += weight / 100
    scale = page.visit_count / len(page.visits)
    return scale * points, [scale * derivative for derivative in gradient]


def _bucket(w: FrecencyWeights, age: int) -> int:
    return next((i for i, cutoff in enumerate((*w[:4], math.inf)) if age <= cutoff))


def _bonus_weight(visit: Visit) -> int:
    is_target = visit.type in (VisitType.PERM_REDIRECT, VisitType.TEMP_REDIRECT)
    visit_type = visit.origin_type if is_target and visit.origin_type is not None else visit.type
    temporarily = visit.onward == Onward.TEMPORARILY and visit_type != VisitType.TYPED
    if temporarily or visit.onward == Onward.PERMANENTLY:
        return FIELDS["redirect_source_visit_bonus"]
    return FIELDS["default_visit_bonus" if visit_type == 0 else f"{VisitType(visit_type).name.lower()}_visit_bonus"]
