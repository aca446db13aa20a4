"""Made users (thesis 7.3): every iteration brings each of them new pages and new searches over them."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from client_sim.models import NO_CANDIDATE, RankingModel, Searches, frecency_start, linear_15_truth
from client_sim.population.draws import FloatArray, Keys, child_keys, normals, root_key, uniforms
from client_sim.population.frecency_pages import frecency_pages
from client_sim.population.sample import Sample, choose
from client_sim.population.settings import PopulationSettings
from protocol.errors import InvalidSettings

_SEARCHES, _CANDIDATES, _NOTHING, _NOISE, _PAGES = range(5)
"""The children of a key: one for each thing that is drawn."""

_TRUTHS = {"frecency-2018": frecency_start, "linear-15": linear_15_truth}


class SyntheticPopulation:
    """See :class:`client_sim.population.sample.Population`.

    What a client does in an iteration depends on the seed, its number and the iteration alone.

    Args:
        model: the ranking model whose true weights users choose by.
        settings: the distributions.
        seed: at least 0.

    Raises:
        InvalidSettings: the true weights are not as many as the model's, or not given for a model without a truth.
    """

    def __init__(self, model: RankingModel, settings: PopulationSettings, seed: int) -> None:
        self.settings = settings
        self._model = model
        self._truth = true_weights(model, settings.true_weights)
        self._root = root_key(seed)

    def sample(self, clients: NDArray[np.int64], iteration: int) -> Sample:
        """See :meth:`client_sim.population.sample.Population.sample`."""
        in_iteration = child_keys(child_keys(self._root, iteration), clients)
        client, number = self._searches_of(in_iteration)
        keys = child_keys(child_keys(in_iteration[client], _SEARCHES), number)
        candidates = self._candidates_of(keys)
        present = candidates != NO_CANDIDATE
        page_keys = child_keys(child_keys(keys, _PAGES)[:, None], np.arange(candidates.shape[1]))
        pages = frecency_pages(page_keys[present], self.settings)
        utility = np.zeros(candidates.shape)
        utility[present] = self._model.scores(self._truth, pages)
        utility += self._noise(keys, candidates.shape[1])
        nothing = uniforms(child_keys(keys, _NOTHING), 1)[:, 0] < self.settings.nothing_selected
        return Sample(pages, Searches(candidates, choose(utility, candidates, nothing)), client, number)

    def _searches_of(self, keys: Keys) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
        """Return, for each search of these clients, whose it is and which one of theirs."""
        fewest, most = self.settings.searches
        drawn = uniforms(child_keys(keys, _SEARCHES), 1)[:, 0]
        counts = fewest + (drawn * (most - fewest + 1)).astype(np.intp)
        client = np.repeat(np.arange(len(keys)), counts)
        firsts = np.repeat(np.cumsum(counts) - counts, counts)
        return client, np.arange(len(client)) - firsts

    def _candidates_of(self, keys: Keys) -> NDArray[np.int64]:
        """Return how the pages are shared out: each search the next few rows, padded with -1."""
        settings = self.settings
        drawn = normals(child_keys(keys, _CANDIDATES), 1)[:, 0]
        wished = np.rint(settings.candidates_mean + np.sqrt(settings.candidates_variance) * drawn)
        counts = np.clip(wished, 2, settings.most_candidates).astype(np.int64)
        place = np.arange(counts.max(initial=2))
        rows = (np.cumsum(counts) - counts)[:, None] + place
        return np.where(place < counts[:, None], rows, NO_CANDIDATE)

    def _noise(self, keys: Keys, width: int) -> FloatArray:
        each = child_keys(child_keys(keys, _NOISE)[:, None], np.arange(width))
        drawn = normals(each.ravel(), 1).reshape(each.shape)
        noise: FloatArray = np.sqrt(self.settings.noise_variance) * drawn
        return noise


def true_weights(model: RankingModel, given: tuple[float, ...]) -> FloatArray:
    """Return the weights that users choose by: those given, else the reference weights of the model.

    Raises:
        InvalidSettings: they are not as many as the model's weights, or none are given and the model has no reference.
    """
    if not given:
        if model.name not in _TRUTHS:
            raise InvalidSettings(f"the ranking model '{model.name}' has no reference weights; set true_weights")
        return _TRUTHS[model.name]()
    if len(given) != model.m:
        raise InvalidSettings(
            f"{len(given)} true weights were given, but '{model.name}' has {model.m}; give as many, in the wire's order"
        )
    return np.array(given, dtype=np.float64)
