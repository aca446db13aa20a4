"""Measures a model's match with users' true preferences, on lists of a fixed seed that no client has seen."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from fedping.client_sim.features import vectors
from fedping.client_sim.features.encode import FloatArray
from fedping.client_sim.features.vectors import Lists
from fedping.client_sim.learning.batch import Floats
from fedping.client_sim.learning.models.classes import softmax
from fedping.client_sim.rehearsal.users import Users, as_lists
from fedping.protocol.draws import Keys, child_keys, root_key

LISTS = 2_000
"""Number of lists for the evaluation of a version."""

_JUDGED = 2**31


class Recovered(Struct, frozen=True, kw_only=True):
    """The match of a version with users' preferences.

    Attributes:
        version: number of the version, -1 for the start.
        gain: share of the possible gain in the mean true utility of the top item: 0 for the start model, 1 for the true
            weights. None if the start ranks as well as the truth.
        cosine: the cosine of the angle between the version's weights and the true ones, without offsets of places and
            hidden layers. None if either has no length.
        mrr: the mean of 1 / place of the item that a user who sees all items chooses.
        ndcg: the normalised discounted cumulative gain of the order, with the probability of an item's choice as its
            gain.
        clicks: share of lists from which users choose, when they look at lists by the rehearsal's settings.
    """

    version: int
    gain: float | None
    cosine: float | None
    mrr: float
    ndcg: float
    clicks: float


@dataclass(frozen=True)
class Judge:
    """Evaluates versions of a model by the true preferences of simulated users.

    Attributes:
        users: the users, with average taste.
        start: the weights of version 0, shape (m,).
        seed: seed of the lists.
    """

    users: Users
    start: FloatArray
    seed: int

    def recovered(self, version: int, weights: FloatArray, iteration: int = 0) -> Recovered:
        """Return the match of a version, with weights of shape (m,), with an iteration's true weights."""
        utility = self.users.utilities(self._lists, iteration)
        wanted = self.users.wanted(iteration)
        tops = [self._top(utility, by) for by in (self.start, weights, wanted)]
        possible = tops[2] - tops[0]
        visits = self.users.visits(self._keys, self._keys, weights, iteration)
        likely = softmax(utility / max(self.users.rehearsal.noise, 1e-9))
        place = self._places(weights)
        return Recovered(
            version=version,
            gain=(tops[1] - tops[0]) / possible if possible > 1e-12 else None,
            cosine=self._cosine(weights, wanted),
            mrr=float((likely / (1 + place)).sum(axis=1).mean()),
            ndcg=float((_discounted(likely, place) / _discounted(likely, _ranks(likely))).mean()),
            clicks=float(visits.has_choice.mean()),
        )

    @cached_property
    def _keys(self) -> Keys:
        return child_keys(child_keys(root_key(self.seed), _JUDGED), np.arange(LISTS))

    @cached_property
    def _lists(self) -> Lists:
        at, value, shown, _ = self.users.catalogue.offered(self._keys)
        return as_lists(at, value, shown)

    def _top(self, utility: FloatArray, by: FloatArray) -> float:
        top = np.argmax(vectors.scores(self.users.spec, by, self._lists).T, axis=1)
        return float(utility[np.arange(len(top)), top].mean())

    def _places(self, weights: FloatArray) -> NDArray[np.intp]:
        return _ranks(vectors.scores(self.users.spec, weights, self._lists).T)

    def _cosine(self, weights: FloatArray, wanted: FloatArray) -> float | None:
        spec = self.users.spec
        layout = spec.layout
        own = np.ones(spec.m, np.bool_)
        own[layout.places : layout.places + layout.offsets] = False
        if layout.hidden:
            own[layout.hidden_in :] = False
        one, other = weights[: spec.m][own], wanted[own]
        length = float(np.linalg.norm(one) * np.linalg.norm(other))
        return float(one @ other) / length if length else None


def _ranks(score: Floats) -> NDArray[np.intp]:
    """Return the place of each item, from 0, shape (N, c)."""
    return np.argsort(np.argsort(-score, axis=1, kind="stable"), axis=1)


def _discounted(relevance: Floats, place: NDArray[np.intp]) -> FloatArray:
    found: FloatArray = (relevance / np.log2(2 + place)).sum(axis=1)
    return found
