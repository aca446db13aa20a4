"""The ranking models of pages, such as frecency, adapted to the common model interface."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from fedping.client_sim.learning.batch import FloatArray
from fedping.client_sim.learning.searches import ClientSearches
from fedping.client_sim.learning.settings import Setting, Settings
from fedping.client_sim.models import (
    MODELS,
    NO_CANDIDATE,
    PageTable,
    RankingModel,
    Searches,
    frecency_start,
    linear_15_truth,
    losses,
    own_ranking,
    scores_by_client,
    weighs_each_search,
)

GradientKind = Literal["finite_differences", "analytic"]


@dataclass(frozen=True)
class PageRanking:
    """A ranking model with the SVM loss of thesis 7.2; a client's loss is the mean over its searches.

    The gradient is computed either by central finite differences with ε = ``epsilon``, which treat the model as a black
    box, or analytically; for frecency, this is the gradient of its smooth formula
    (:class:`fedping.client_sim.models.Frecency2018`). Both have the opposite sign of the thesis's: they are directions
    of ascent. Clients with their own weights are processed all at once if the ranking model accepts weights for each
    search, like linear-15; else one after another.
    """

    ranker: RankingModel
    start: FloatArray
    margin: float = 10.0
    epsilon: float = 1.0
    gradient: GradientKind = "finite_differences"

    @property
    def weight_names(self) -> tuple[str, ...]:
        """The weights' names in the ranking model."""
        return self.ranker.weight_names

    def predict(self, weights: FloatArray, batch: ClientSearches) -> FloatArray:
        """Return the score of every candidate, shape (k, n, C); minus infinity in the padding."""
        scores = np.full((*batch.rows.shape, batch.searches.candidates.shape[1]), -np.inf)
        client, searches = batch.there
        if weights.ndim == 2:
            scores[batch.weight > 0] = scores_by_client(self.ranker, weights, client, batch.pages, searches)
            return scores
        pages, among = _needed(batch.pages, searches)
        of_page = np.append(self.ranker.scores(weights, pages), -np.inf)
        scores[batch.weight > 0] = of_page[among.candidates]
        return scores

    def losses(self, weights: FloatArray, batch: ClientSearches) -> FloatArray:
        """See :meth:`fedping.client_sim.learning.model.Model.losses`."""
        client, searches = batch.there
        if weights.ndim == 2:
            scores = scores_by_client(self.ranker, weights, client, batch.pages, searches)
            each = losses(scores.ravel(), _each_its_own_page(searches), self.margin)
        else:
            pages, among = _needed(batch.pages, searches)
            each = losses(self.ranker.scores(weights, pages), among, self.margin)
        total = np.bincount(client, each, minlength=len(batch))
        return total / np.maximum(np.bincount(client, minlength=len(batch)), 1)

    def gradients(self, weights: FloatArray, batch: ClientSearches) -> FloatArray:
        """See :meth:`fedping.client_sim.learning.model.Model.gradients`."""
        if weights.ndim == 2 and not weighs_each_search(self.ranker):
            return _one_by_one(self.gradients, weights, batch)
        client, searches = batch.there
        if not len(client):
            return np.zeros((len(batch), self.ranker.m))
        if weights.ndim == 2:
            weights = weights[client]
        if self.gradient == "analytic":
            updates = self.ranker.analytic_updates(weights, batch.pages, searches, self.margin)
        else:
            updates = self.ranker.finite_differences(weights, batch.pages, searches, self.margin, self.epsilon)
        if len(client) == len(batch) == batch.rows.size:  # one search each: nothing to add up
            return np.negative(updates, out=updates)
        gradients = np.zeros((len(batch), self.ranker.m))
        first = np.flatnonzero(np.diff(client, prepend=-1))
        gradients[client[first]] = np.add.reduceat(updates, first, axis=0)
        gradients /= -np.maximum(np.bincount(client, minlength=len(batch)), 1)[:, None]
        return gradients


def _needed(pages: PageTable, searches: Searches) -> tuple[PageTable, Searches]:
    """Return the pages that these searches need, and the searches with indices of these pages; -1 stays -1."""
    rows, places = np.unique(searches.candidates, return_inverse=True)
    absent = int(np.searchsorted(rows, 0))
    among = places.reshape(searches.candidates.shape) - absent
    shown = np.where(searches.candidates == NO_CANDIDATE, NO_CANDIDATE, among)
    return pages.rows(rows[absent:].astype(np.intp)), Searches(shown, searches.chosen)


def _each_its_own_page(searches: Searches) -> Searches:
    """Return searches over a table with a separate page for each candidate, in the layout of scores of shape (S, C)."""
    places = np.arange(searches.candidates.size).reshape(searches.candidates.shape)
    return Searches(np.where(searches.candidates == NO_CANDIDATE, NO_CANDIDATE, places), searches.chosen)


def _one_by_one(
    method: Callable[[FloatArray, ClientSearches], FloatArray], weights: FloatArray, batch: ClientSearches
) -> FloatArray:
    return np.concatenate([method(own, batch.one(client)) for client, own in enumerate(weights)])


def page_ranking(name: str) -> Callable[[Settings], PageRanking]:
    """Return a factory of a ranking model from its setting ``gradient`` (``finite_differences`` or ``analytic``).

    Δ and ε come from the spec. Frecency starts at the browser's weights, linear-15 at the weights of thesis 7.1.
    """

    def of(settings: Settings) -> PageRanking:
        start = frecency_start() if name == "frecency-2018" else linear_15_truth()
        return _with_gradient(PageRanking(MODELS[name], start, settings.margin, settings.epsilon), settings)

    return of


def own_page_ranking(name: str, given: Mapping[str, Setting], margin: float, epsilon: float) -> PageRanking:
    """Return the model of an extension that ranks pages; like other ranking models, it has the setting ``gradient``."""
    ranker = own_ranking(name, given)
    kind = Settings(name, {key: value for key, value in given.items() if key == "gradient"})
    return _with_gradient(PageRanking(ranker, ranker.start, margin, epsilon), kind)


def _with_gradient(model: PageRanking, settings: Settings) -> PageRanking:
    kind = settings.choice("gradient", ("finite_differences", "analytic"))
    return replace(model, gradient="analytic") if kind == "analytic" else model
