"""Made users as clients: every round brings each of them new searches, which they learn from once (thesis 3.4, 7.3)."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from client_sim.learning.batch import Clients
from client_sim.learning.searches import ClientSearches, SearchData
from client_sim.models import MODELS, Searches, model_for
from client_sim.population.searching import searches_of
from client_sim.population.settings import PopulationSettings
from client_sim.population.synthetic import SyntheticPopulation
from protocol.errors import InvalidSettings

TRAINING, VALIDATION, TEST = 0, 1 << 40, 1 << 41
"""The first iteration of what users do for each purpose: far enough from each other that no search serves two."""


@dataclass(frozen=True)
class UserSearches:
    """What all users search in one iteration, made when it is asked for: a :class:`client_sim.learning.ClientData`."""

    population: SyntheticPopulation
    settings: PopulationSettings
    seed: int
    users: int
    iteration: int

    def __len__(self) -> int:
        return self.users

    @cached_property
    def sizes(self) -> NDArray[np.int64]:
        """How many searches each user makes, shape (users,)."""
        _, client, _ = searches_of(self.seed, np.arange(self.users), self.iteration, self.settings)
        return np.bincount(client, minlength=self.users)

    def of_iteration(self, iteration: int) -> UserSearches:
        """Return what the same users search in another iteration."""
        return replace(self, iteration=iteration)

    def batch(self, clients: Clients) -> ClientSearches:
        """Return the searches of these users."""
        return self._of(np.asarray(clients)).batch(np.arange(len(clients)))

    def pooled(self) -> SearchData:
        """Return all searches as those of a single client."""
        everyone = self._of(np.arange(self.users))
        return SearchData(everyone.pages, everyone.searches, np.zeros_like(everyone.client), 1)

    def all(self) -> SearchData:
        """Return all searches, to be kept: those by which versions are judged again and again."""
        return self._of(np.arange(self.users))

    def _of(self, clients: NDArray[np.int64]) -> SearchData:
        made = self.population.sample(clients, self.iteration)
        return SearchData(
            made.pages, Searches(made.searches.candidates, made.searches.chosen), made.client, len(clients)
        )


def made_users(model: str, settings: PopulationSettings, seed: int, users: int) -> UserSearches:
    """Return what so many users search in iteration 0; they want pages by the true weights of a ranking model.

    Raises:
        InvalidSettings: the model ranks no pages.
    """
    if model not in MODELS:
        raise InvalidSettings(
            f"made users choose among pages, which the model '{model}' does not rank; choose {' or '.join(MODELS)}, or "
            "examples by 'name' or 'file'"
        )
    return UserSearches(SyntheticPopulation(model_for(model), settings, seed), settings, seed, users, TRAINING)
