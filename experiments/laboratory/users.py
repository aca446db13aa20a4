"""Synthetic users as clients: in every round, each makes new searches and learns from them once (thesis 3.4, 7.3)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property
from typing import Any, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from fedping.client_sim.data.seeds import key
from fedping.client_sim.learning.batch import ClientData, Clients, FloatArray
from fedping.client_sim.learning.registry import is_ranking_model
from fedping.client_sim.learning.searches import ClientSearches, SearchData
from fedping.client_sim.models import NO_CANDIDATE, PageTable, RankingModel, Searches, model_for, ranking_models
from fedping.client_sim.models.arrays import IntArray
from fedping.client_sim.population.settings import PopulationSettings
from fedping.client_sim.population.synthetic import Sample, SyntheticPopulation, Wishes, searches_of
from fedping.experiments.laboratory.models import of_spec_and_own
from fedping.experiments.laboratory.settings.data import UserGroup
from fedping.protocol.draws import child_keys, uniforms
from fedping.protocol.errors import InvalidSettings

TRAINING, VALIDATION, TEST = 0, 1 << 40, 1 << 41
"""Number of the first iteration for each purpose, far enough apart that no search serves two purposes."""


class FleetData(ClientData[Any], Protocol):
    """The data of all clients of a problem, client by client."""

    def pooled(self, clients: Clients | None = None) -> ClientData[Any]:
        """Return all examples, or some clients' examples, as a single client's, as for a centralised learner."""
        ...


@runtime_checkable
class NewEachRound(Protocol):
    """Examples of clients that get new ones in every round and learn from each once."""

    def of_iteration(self, iteration: int, weights: FloatArray) -> ClientData[Any]:
        """Return the same clients' examples in an iteration.

        Args:
            iteration: its number, from 0.
            weights: the weights that all clients hold, shape (m,), or each client's own, shape (clients, m).
        """
        ...

    def drifted(self, iteration: int) -> bool:
        """Return whether clients' behaviour in an iteration differs from the first one."""
        ...

    def to_judge(self, clients: int, iteration: int, time: int) -> FleetData:
        """Return examples of the first clients, for the evaluation of many versions.

        Args:
            clients: the number of these clients.
            iteration: the iteration that the examples are drawn for: :data:`VALIDATION`, :data:`TEST` or a round's.
            time: the iteration that the clients have drifted to.
        """
        ...

    def learned(self, clients: int, rounds: int, weights: FloatArray) -> ClientData[Any]:
        """Return the first clients' examples of the last round; no examples before the first round."""
        ...


@dataclass(frozen=True)
class Habits:
    """The behaviour of some users: distributions, the population drawn from them, and the weights of their wishes."""

    settings: PopulationSettings
    population: SyntheticPopulation
    wishes: Wishes

    @classmethod
    def of(cls, ranker: RankingModel, settings: PopulationSettings, seed: int) -> Habits:
        """Return the habits of the users drawn with a seed."""
        return cls(settings, SyntheticPopulation(ranker, settings, seed), Wishes.under(ranker, settings, seed))

    def at(self, iteration: int) -> Habits:
        """Return these habits after their drift up to an iteration."""
        if self.settings.drift is None:
            return self
        return self.of(self.wishes.model, self.settings.at(iteration), self.wishes.seed)


@dataclass(frozen=True)
class UserSearches:
    """All users' searches in one iteration, generated on request; a :class:`client_sim.learning.ClientData`.

    Attributes:
        habits: the habits of each group.
        natural_keys: the group of each user, shape (users,).
        seed: the seed that, with the iteration, determines the searches.
        iteration: the iteration that the searches are drawn for.
        time: the iteration that their habits have drifted to.
    """

    habits: tuple[Habits, ...]
    natural_keys: NDArray[np.intp]
    seed: int
    iteration: int
    time: int = 0

    def __len__(self) -> int:
        return len(self.natural_keys)

    @cached_property
    def sizes(self) -> NDArray[np.int64]:
        """Number of each user's searches, shape (users,)."""
        sizes = np.zeros(len(self), np.int64)
        for group, habits in enumerate(self.habits):
            clients = np.flatnonzero(self.natural_keys == group)
            _, client, _ = searches_of(self.seed, clients, self.iteration, habits.settings)
            sizes[clients] = np.bincount(client, minlength=len(clients))
        return sizes

    def drifted(self, iteration: int) -> bool:
        """Return whether habits in an iteration differ from those in the first one."""
        return any(habits.settings.at(iteration) != habits.settings.at(0) for habits in self.habits)

    def of_iteration(self, iteration: int, weights: FloatArray | None = None) -> UserSearches:
        """Return the same users' searches in another iteration; they don't depend on the weights."""
        return replace(self, iteration=iteration, time=iteration)

    def to_judge(self, clients: int, iteration: int, time: int) -> SearchData:
        """See :meth:`NewEachRound.to_judge`."""
        return replace(self.first(clients), iteration=iteration, time=time).to_judge_by()

    def learned(self, clients: int, rounds: int, weights: FloatArray) -> ClientData[Any]:
        """See :meth:`NewEachRound.learned`."""
        if rounds:
            return self.first(clients).of_iteration(rounds - 1)
        first = self.first(min(clients, 1)).pooled()
        none = Searches(first.searches.candidates[:0], first.searches.chosen[:0])
        return SearchData(first.pages, none, first.client[:0], clients)

    def first(self, users: int) -> UserSearches:
        """Return the searches of only the first users."""
        return replace(self, natural_keys=self.natural_keys[:users])

    def batch(self, clients: Clients) -> ClientSearches:
        """Return the searches of these users."""
        return self._of(np.asarray(clients)).batch(np.arange(len(clients)))

    def pooled(self, clients: Clients | None = None) -> SearchData:
        """Return all searches, or some users' searches, as a single client's."""
        return self._of(np.arange(len(self)) if clients is None else clients).pooled()

    def to_judge_by(self) -> SearchData:
        """Return all searches for the evaluation of many versions.

        If users choose without noise, candidates that are wanted exactly as much as the chosen one are left out,
        because ranking them on top would be just as right.
        """
        searches = self._of(np.arange(len(self)))
        candidates, chosen = searches.searches.candidates, searches.searches.chosen
        everyone = np.arange(len(self))
        for group, habits in enumerate(self._habits):
            if habits.settings.noise_variance == 0:
                wanted = habits.wishes.wanted(everyone, searches.client, searches.pages, searches.searches.candidates)
                equal = _equals(chosen, wanted)
                equal &= (self.natural_keys[searches.client] == group)[:, None]
                candidates = np.where(equal, NO_CANDIDATE, candidates)
        return replace(searches, searches=_closed_up(candidates, chosen))

    @property
    def _habits(self) -> tuple[Habits, ...]:
        return tuple(habits.at(self.time) for habits in self.habits)

    def _of(self, clients: NDArray[np.int64]) -> SearchData:
        parts = [self._in_group(group, habits, clients) for group, habits in enumerate(self._habits)]
        return _joined(parts, len(clients))

    def _in_group(self, group: int, habits: Habits, clients: NDArray[np.int64]) -> Sample:
        """Return the searches of the clients in a group, with their owners as positions in ``clients``."""
        at = np.flatnonzero(self.natural_keys[clients] == group)
        sample = habits.population.sample(clients[at], self.iteration)
        return replace(sample, client=at[sample.client])


def made_users(model: RankingModel, groups: Sequence[UserGroup], seed: int, users: int) -> UserSearches:
    """Return users' searches in iteration 0; a ranking model's true weights define the pages that they want.

    Args:
        model: the ranking model; its true weights, those of the population, define the users' wishes.
        groups: each with its share of the users, who are assigned at random.
        seed: the seed of all draws.
        users: the number of users.
    """
    habits = tuple(Habits.of(model, group.population, seed) for group in groups)
    uniform = uniforms(child_keys(key(seed, "group"), np.arange(users)), 1)[:, 0]
    ends = np.cumsum([group.share for group in groups])
    of_user = np.minimum(np.searchsorted(ends, uniform, side="right"), len(groups) - 1)
    return UserSearches(habits, of_user, seed, TRAINING)


def ranker_of(model: Mapping[str, Any]) -> RankingModel:
    """Return the ranking model of a table [model].

    Raises:
        InvalidSettings: the model does not rank pages.
    """
    name = model["name"]
    if not is_ranking_model(name):
        raise InvalidSettings(
            f"synthetic users choose among pages, which the model '{name}' does not rank; choose "
            f"{' or '.join(ranking_models())}, or examples by 'name' or 'file'"
        )
    return model_for(name, of_spec_and_own(model)[1])


def _joined(parts: Sequence[Sample], users: int) -> SearchData:
    """Return the searches of several groups joined together, in the order of the users."""
    parts = [part for part in parts if len(part.searches)] or list(parts[:1])
    if len(parts) == 1:
        return SearchData(parts[0].pages, parts[0].searches, parts[0].client, users)
    pages = PageTable(*(np.concatenate([getattr(part.pages, f.name) for part in parts]) for f in fields(PageTable)))
    width = max(part.searches.candidates.shape[1] for part in parts)
    before = np.cumsum([0, *(len(part.pages) for part in parts)])
    client = np.concatenate([part.client for part in parts])
    order = np.argsort(client, kind="stable")
    candidates = [_moved(part.searches.candidates, int(by), width) for part, by in zip(parts, before, strict=False)]
    chosen = np.concatenate([part.searches.chosen for part in parts])
    return SearchData(pages, Searches(np.concatenate(candidates)[order], chosen[order]), client[order], users)


def _moved(candidates: IntArray, by: int, width: int) -> IntArray:
    """Return candidates with page numbers shifted by ``by``, for a longer table of pages, padded to a width."""
    wider = np.full((len(candidates), width), NO_CANDIDATE, np.int64)
    wider[:, : candidates.shape[1]] = np.where(candidates == NO_CANDIDATE, NO_CANDIDATE, candidates + by)
    return wider


def _equals(chosen: IntArray, wanted: FloatArray) -> NDArray[np.bool_]:
    """Return whether each candidate, other than the chosen one, is wanted exactly as much, shape (S, C)."""
    best = np.take_along_axis(wanted, np.maximum(chosen, 0)[:, None], axis=1)
    equal: NDArray[np.bool_] = (wanted == best) & (np.arange(wanted.shape[1]) != chosen[:, None])
    return equal & (chosen >= 0)[:, None]


def _closed_up(candidates: IntArray, chosen: IntArray) -> Searches:
    """Return searches without gaps between their candidates, in the same order."""
    order = np.argsort(candidates == NO_CANDIDATE, axis=1, kind="stable")
    at = np.argmax(order == chosen[:, None], axis=1)
    return Searches(np.take_along_axis(candidates, order, axis=1), np.where(chosen >= 0, at, chosen))
