"""Synthetic users (thesis 7.3), each with new pages, visits and searches in every iteration.

A population returns the activity of clients in an iteration: pages, searches over them, and the client of each search.
The numbers of searches and candidates, and the choices, are drawn in the same way for a person's own history
(`fedping.client_sim.population.places`).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fedping.client_sim.models import (
    MAX_SAMPLED,
    NO_CANDIDATE,
    NOTHING_CHOSEN,
    ORIGIN_NOT_KNOWN,
    Onward,
    PageTable,
    RankingModel,
    Searches,
    VisitType,
    frecency_start,
    linear_15_truth,
    scores_by_client,
)
from fedping.client_sim.models.arrays import IntArray
from fedping.client_sim.models.ranking_model import OwnRanking
from fedping.client_sim.population.settings import PopulationSettings
from fedping.protocol.draws import FloatArray, Keys, child_keys, normals, numbers_within, root_key, uniforms
from fedping.protocol.errors import InvalidSettings


@dataclass(frozen=True)
class Sample:
    """Searches of several clients.

    Attributes:
        pages: P pages, of all the clients.
        searches: S searches, with candidates in arbitrary order, not ranked yet.
        client: the client of each search, shape (S,), as ascending positions in the requested clients.
        number: the number of each search among its client's searches, from 0, shape (S,).
    """

    pages: PageTable
    searches: Searches
    client: NDArray[np.intp]
    number: NDArray[np.intp]

    def of_searches(self, which: NDArray[np.intp]) -> tuple[PageTable, Searches]:
        """Return some of the searches, with only the pages they need."""
        candidates = self.searches.candidates[which]
        present = candidates != NO_CANDIDATE
        rows, places = np.unique(candidates[present], return_inverse=True)
        among = np.full(candidates.shape, NO_CANDIDATE, np.int64)
        among[present] = places
        return self.pages.rows(rows), Searches(among, self.searches.chosen[which])


def displayed(searches: Searches, scores: FloatArray) -> Searches:
    """Return the searches with their candidates ranked, the highest score at the top and ties in the given order.

    Args:
        searches: S searches.
        scores: the score of every page under the ranking model, shape (P,).
    """
    shown = np.where(searches.candidates >= 0, scores[searches.candidates], -np.inf)
    order = np.argsort(-shown, axis=1, kind="stable")
    rank = np.empty_like(order)
    np.put_along_axis(rank, order, np.broadcast_to(np.arange(order.shape[1]), order.shape), axis=1)
    at = np.where(
        searches.chosen >= 0,
        np.take_along_axis(rank, np.maximum(searches.chosen, 0)[:, None], axis=1)[:, 0],
        NOTHING_CHOSEN,
    )
    return Searches(np.take_along_axis(searches.candidates, order, axis=1), at)


_OTHER_TYPES = np.array(
    [
        VisitType.EMBED,
        VisitType.PERM_REDIRECT,
        VisitType.TEMP_REDIRECT,
        VisitType.DOWNLOAD,
        VisitType.FRAMED_LINK,
        VisitType.RELOAD,
    ],
    np.uint8,
)
_KINDS = np.array([VisitType.LINK, VisitType.TYPED, VisitType.BOOKMARK], np.uint8)
_NOT_COUNTED = [VisitType.EMBED, VisitType.DOWNLOAD, VisitType.FRAMED_LINK, VisitType.RELOAD]
_REDIRECT_TARGETS = [VisitType.PERM_REDIRECT, VisitType.TEMP_REDIRECT]
_NOT_COUNTED_OF_OTHERS = len(_NOT_COUNTED) / len(_OTHER_TYPES)

_AGES, _TYPES, _ORIGINS, _ONWARD, _PAGE = range(5)
"""Indices of a page key's child keys: one per draw, so that a draw doesn't depend on another draw's settings."""


def frecency_pages(keys: Keys, settings: PopulationSettings) -> PageTable:
    """Return one page for each key, with its 10 newest visits, or all if it has fewer."""
    frequency, never, bookmark, typed, rounding = uniforms(child_keys(keys, _PAGE), 5).T
    unvisited = never < settings.unvisited
    visits = np.where(unvisited, 0, number_of_visits(frequency, settings))
    sampled = np.minimum(visits, MAX_SAMPLED)
    present = np.arange(MAX_SAMPLED) < sampled[:, None]
    types = np.where(present, _visit_types(child_keys(keys, _TYPES), settings), VisitType.UNKNOWN)
    return PageTable(
        age_days=np.where(present, newest_ages(child_keys(keys, _AGES), visits, settings), 0).astype(np.int32),
        visit_type=types,
        origin_type=_origins(child_keys(keys, _ORIGINS), types, settings),
        onward=np.where(present, _onward(child_keys(keys, _ONWARD), settings), Onward.NO),
        sampled=sampled.astype(np.int8),
        visit_count=_counter(types, visits, rounding, settings),
        typed=np.where(unvisited, typed < settings.kinds[1], (types == VisitType.TYPED).any(axis=1)),
        bookmarked=unvisited | (bookmark < settings.bookmarked),
        is_query=np.zeros(len(keys), np.bool_),
    )


def number_of_visits(uniform: FloatArray, settings: PopulationSettings) -> NDArray[np.int64]:
    """Return exponential numbers with the settings' mean, rounded up to at least 1, from uniform numbers."""
    drawn = -settings.mean_visits * np.log1p(-uniform)
    return np.maximum(np.ceil(drawn), 1).astype(np.int64)


def newest_ages(keys: Keys, visits: NDArray[np.int64], settings: PopulationSettings) -> FloatArray:
    """Return the ages in days of each page's newest visits, newest first, shape (P, 10).

    The smallest of n uniform numbers and its successors are drawn in order, each from the remaining range: 1 - U_k+1 =
    (1 - U_k) V^(1 / (n - k)) for uniform V. So a page with thousands of visits takes no more time than one with ten.
    Ages beyond a page's number of visits are meaningless.
    """
    left = np.maximum(visits[:, None] - np.arange(MAX_SAMPLED), 1)
    remaining = np.cumsum(np.log1p(-uniforms(keys, MAX_SAMPLED)) / left, axis=1)
    ages: FloatArray = settings.days * (-np.expm1(remaining)) ** settings.recency_skew
    return ages


def _visit_types(keys: Keys, settings: PopulationSettings) -> NDArray[np.uint8]:
    """Return a type for each visit: one of the thesis' three kinds or, with a small probability, another type."""
    drawn = uniforms(keys, 2 * MAX_SAMPLED)
    which, kind = drawn[:, :MAX_SAMPLED], drawn[:, MAX_SAMPLED:]
    common = kinds_of(kind, settings)
    other = (kind * len(_OTHER_TYPES)).astype(np.intp)
    return np.where(which < settings.other_visits, _OTHER_TYPES[other], _KINDS[common])


def kinds_of(uniform: FloatArray, settings: PopulationSettings) -> NDArray[np.intp]:
    """Return 0 for link, 1 for typed, 2 for bookmark, with the shares of the settings; from uniform numbers."""
    link, typed, _ = settings.kinds
    return (uniform >= link).astype(np.intp) + (uniform >= link + typed)


def _origins(keys: Keys, types: NDArray[np.uint8], settings: PopulationSettings) -> NDArray[np.int8]:
    """Return the origin type of redirect targets: one of the three kinds, always known."""
    origin = _KINDS[kinds_of(uniforms(keys, MAX_SAMPLED), settings)].astype(np.int8)
    return np.where(np.isin(types, _REDIRECT_TARGETS), origin, np.int8(ORIGIN_NOT_KNOWN))


def _onward(keys: Keys, settings: PopulationSettings) -> NDArray[np.uint8]:
    drawn = uniforms(keys, MAX_SAMPLED)
    permanent, temporary = drawn < settings.redirect_sources / 2, drawn < settings.redirect_sources
    return np.where(permanent, Onward.PERMANENTLY, np.where(temporary, Onward.TEMPORARILY, Onward.NO)).astype(np.uint8)


def _counter(
    types: NDArray[np.uint8], visits: NDArray[np.int64], uniform: FloatArray, settings: PopulationSettings
) -> NDArray[np.int64]:
    """Return the stored counter, which omits some types: exactly in the sample, by the types' share beyond it.

    A visited page counts at least one, because a page with no counted visits would never be suggested.
    """
    left_out = np.isin(types, _NOT_COUNTED).sum(axis=1)
    beyond = np.maximum(visits - MAX_SAMPLED, 0) * settings.other_visits * _NOT_COUNTED_OF_OTHERS
    counted = visits - left_out - np.floor(beyond + uniform).astype(np.int64)
    return np.where(visits > 0, np.maximum(counted, 1), 0)


_SEARCHES, _CANDIDATES, _NOTHING, _NOISE, PAGES = range(5)
"""Indices of a search key's child keys: one per draw, so that a draw doesn't depend on another draw's settings."""

_TRUTHS = {"frecency-2018": frecency_start, "linear-15": linear_15_truth}


def searches_of(
    seed: int, clients: NDArray[np.int64], iteration: int, settings: PopulationSettings
) -> tuple[Keys, NDArray[np.intp], NDArray[np.intp]]:
    """Return each search's key, its client (a position in ``clients``) and its number for this client; shapes (S,)."""
    in_iteration = child_keys(child_keys(root_key(seed), iteration), clients)
    fewest, most = settings.searches
    drawn = uniforms(child_keys(in_iteration, _SEARCHES), 1)[:, 0]
    counts = fewest + (drawn * (most - fewest + 1)).astype(np.intp)
    client = np.repeat(np.arange(len(clients)), counts)
    number = numbers_within(counts)
    return child_keys(child_keys(in_iteration[client], _SEARCHES), number), client, number


def candidate_counts(keys: Keys, settings: PopulationSettings) -> NDArray[np.int64]:
    """Return the number of candidates of each search, shape (S,)."""
    drawn = normals(child_keys(keys, _CANDIDATES), 1)[:, 0]
    wished = np.rint(settings.candidates_mean + np.sqrt(settings.candidates_variance) * drawn)
    counts: NDArray[np.int64] = np.clip(wished, 2, settings.most_candidates).astype(np.int64)
    return counts


def choices(keys: Keys, wanted: FloatArray, settings: PopulationSettings) -> NDArray[np.int64]:
    """Return the position of each search's choice among its candidates, shape (S,); -1 without a choice.

    Args:
        keys: keys of the searches, shape (S,).
        wanted: utility of each candidate; minus infinity in the padding, which is never chosen; shape (S, C).
        settings: the noise, and the share of searches without a selection.
    """
    noise_keys = child_keys(child_keys(keys, _NOISE)[:, None], np.arange(wanted.shape[1]))
    noise = normals(noise_keys.ravel(), 1).reshape(wanted.shape)
    best = (wanted + np.sqrt(settings.noise_variance) * noise).argmax(axis=1)
    nothing = uniforms(child_keys(keys, _NOTHING), 1)[:, 0] < settings.nothing_selected
    return np.where(nothing, NOTHING_CHOSEN, best).astype(np.int64)


def true_weights(model: RankingModel, given: tuple[float, ...]) -> FloatArray:
    """Return the weights by which users choose: the given ones, or else the model's reference weights.

    Raises:
        InvalidSettings: their number differs from the model's, or none are given and the model has no reference.
    """
    if not given:
        if isinstance(model, OwnRanking):
            if (reference := model.reference) is not None:
                return reference
            raise InvalidSettings(
                f"{model.extension} has no reference weights, which simulated users would choose by; give it "
                "'reference', a number for each weight, or set true_weights in [users] of an experiment"
            )
        if model.name not in _TRUTHS:
            raise InvalidSettings(f"the ranking model '{model.name}' has no reference weights; set true_weights")
        return _TRUTHS[model.name]()
    if len(given) != model.m:
        raise InvalidSettings(
            f"{len(given)} true weights were given, but '{model.name}' has {model.m}; give as many, in the wire's order"
        )
    return np.array(given, dtype=np.float64)


_TASTES = 1 << 62
"""Index of a seed key's child key for users' tastes, beyond the indices of all iterations."""


@dataclass(frozen=True)
class Wishes:
    """Users' preferences for pages, as weights of a ranking model.

    Attributes:
        model: the ranking model that scores pages under these weights.
        truth: the true weights of all users, shape (m,).
        tastes: deviation of each user's weights from the true ones, τ of :class:`PopulationSettings`.
        seed: determines the tastes, which depend only on it and the user's number.
    """

    model: RankingModel
    truth: FloatArray
    tastes: float
    seed: int

    @classmethod
    def under(cls, model: RankingModel, settings: PopulationSettings, seed: int) -> Wishes:
        """Return the wishes that some settings describe, without drift."""
        return cls(model, true_weights(model, settings.true_weights), settings.tastes, seed)

    def of(self, clients: NDArray[np.int64]) -> FloatArray:
        """Return each user's true weights, shape (k, m)."""
        keys = child_keys(child_keys(root_key(self.seed), _TASTES), clients)
        return self.truth * np.exp(self.tastes * normals(keys, len(self.truth)))

    def wanted(
        self, clients: NDArray[np.int64], client: NDArray[np.intp], pages: PageTable, candidates: IntArray
    ) -> FloatArray:
        """Return the preference for each candidate, shape (S, C); minus infinity in the padding.

        Args:
            clients: the users.
            client: the user of each search, shape (S,), as ascending positions in ``clients``.
            pages: the pages of all users.
            candidates: rows of the pages, padded with -1; shape (S, C).
        """
        if not self.tastes:
            return np.append(self.model.scores(self.truth, pages), -np.inf)[candidates]
        nothing_yet = np.full(len(candidates), NOTHING_CHOSEN)
        return scores_by_client(self.model, self.of(clients), client, pages, Searches(candidates, nothing_yet))


class Population(ABC):
    """A source of clients' activity. Clients are integers; the fleet gives them their ids.

    A client's searches in an iteration depend only on the seed, its number and the iteration.

    Args:
        model: ranking model with the true weights of choices.
        settings: the distributions.
        seed: at least 0.

    Raises:
        InvalidSettings: the number of true weights is not the model's, or a model without a truth is given none.
    """

    def __init__(self, model: RankingModel, settings: PopulationSettings, seed: int) -> None:
        self._model = model
        self._settings = settings
        self._seed = seed
        Wishes.under(model, settings, seed)

    def sample(self, clients: NDArray[np.int64], iteration: int) -> Sample:
        """Return the searches of some clients in an iteration, which depend only on the client and the iteration."""
        settings = self._settings.at(iteration)
        keys, client, number = searches_of(self._seed, clients, iteration, settings)
        pages, candidates = self.candidates(keys, settings)
        wanted = Wishes.under(self._model, settings, self._seed).wanted(clients, client, pages, candidates)
        chosen = choices(keys, wanted, settings)
        return Sample(pages, Searches(candidates, chosen), client, number)

    @abstractmethod
    def candidates(self, keys: Keys, settings: PopulationSettings) -> tuple[PageTable, NDArray[np.int64]]:
        """Return pages, and the candidates of each search as rows of these, padded with -1, shape (S, C).

        Args:
            keys: keys of the searches, shape (S,).
            settings: the distributions in this iteration.
        """


class SyntheticPopulation(Population):
    """Users with new pages in every iteration; the arguments are those of :class:`Population`."""

    def candidates(self, keys: Keys, settings: PopulationSettings) -> tuple[PageTable, NDArray[np.int64]]:
        """See :meth:`Population.candidates`."""
        candidates = _rows_in_turn(candidate_counts(keys, settings))
        page_keys = child_keys(child_keys(keys, PAGES)[:, None], np.arange(candidates.shape[1]))
        return frecency_pages(page_keys[candidates != NO_CANDIDATE], settings), candidates


def _rows_in_turn(counts: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the candidates of searches with ``counts`` consecutive rows each, padded with -1."""
    place = np.arange(counts.max(initial=2))
    rows = (np.cumsum(counts) - counts)[:, None] + place
    return np.where(place < counts[:, None], rows, NO_CANDIDATE)
