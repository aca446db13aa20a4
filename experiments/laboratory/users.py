"""Made users as clients: every round brings each of them new searches, which they learn from once (thesis 3.4, 7.3)."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from client_sim.learning.batch import Clients
from client_sim.learning.searches import ClientSearches, SearchData
from client_sim.models import Searches
from client_sim.population.sample import Sample
from client_sim.population.searching import searches_of
from client_sim.population.settings import PopulationSettings
from client_sim.population.synthetic import SyntheticPopulation

TRAINING, VALIDATION, TEST = 0, 1 << 40, 1 << 41
"""The first iteration of what users do for each purpose: far enough from each other that no search serves two."""


@dataclass(frozen=True)
class Habits:
    """How some users search: the distributions, and who draws from them."""

    settings: PopulationSettings
    population: SyntheticPopulation


@dataclass(frozen=True)
class UserSearches:
    """What all users search in one iteration, made when it is asked for: a :class:`client_sim.learning.ClientData`.

    Attributes:
        model: the ranking model by which users want pages.
        habits: of each group.
        natural_keys: the group of each user, shape (users,).
        seed: what they do follows from it.
        iteration: and from this.
    """

    model: str
    habits: tuple[Habits, ...]
    natural_keys: NDArray[np.intp]
    seed: int
    iteration: int

    def __len__(self) -> int:
        return len(self.natural_keys)

    @cached_property
    def sizes(self) -> NDArray[np.int64]:
        """How many searches each user makes, shape (users,)."""
        sizes = np.zeros(len(self), np.int64)
        for group, habits in enumerate(self.habits):
            clients = np.flatnonzero(self.natural_keys == group)
            _, client, _ = searches_of(self.seed, clients, self.iteration, habits.settings)
            sizes[clients] = np.bincount(client, minlength=len(clients))
        return sizes

    def of_iteration(self, iteration: int) -> UserSearches:
        """Return what the same users search in another iteration."""
        return replace(self, iteration=iteration)

    def first(self, users: int) -> UserSearches:
        """Return what only the first so many users search."""
        return replace(self, natural_keys=self.natural_keys[:users])

    def batch(self, clients: Clients) -> ClientSearches:
        """Return the searches of these users."""
        return self._of(np.asarray(clients)).batch(np.arange(len(clients)))

    def pooled(self) -> SearchData:
        """Return all searches as those of a single client."""
        everyone = self._of(np.arange(len(self)))
        return SearchData(everyone.pages, everyone.searches, np.zeros_like(everyone.client), 1)

    def to_judge_by(self) -> SearchData:
        """Return all searches, to be kept: those by which versions are judged again and again.

        Where users choose without noise, a candidate that the user wants exactly as much as the chosen one is left out:
        to put it on top would be as right.
        """
        made = self._of(np.arange(len(self)))
        candidates = made.searches.candidates
        for group, habits in enumerate(self.habits):
            if habits.settings.noise_variance == 0:
                rows = self.natural_keys[made.client] == group
                wanted = habits.population.wanted(made.pages)
                candidates = np.where(rows[:, None], _without_equals(candidates, made.searches.chosen, wanted), candidates)
        return replace(made, searches=_compact(Searches(candidates, made.searches.chosen)))

    def _of(self, clients: NDArray[np.int64]) -> SearchData:
        return _joined([self._in_group(group, clients) for group in range(len(self.habits))], len(clients))

    def _in_group(self, group: int, clients: NDArray[np.int64]) -> Sample:
        """Return the searches of those of the clients that are in a group; whose they are by positions in clients."""
        at = np.flatnonzero(self.natural_keys[clients] == group)
        made = self.habits[group].population.sample(clients[at], self.iteration)
        return replace(made, client=at[made.client])
