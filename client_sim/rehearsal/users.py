"""The users of a rehearsal: they see lists ordered by the model, and choose by their true preferences."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedping.client_sim.features import vectors
from fedping.client_sim.features.encode import FloatArray
from fedping.client_sim.features.reference import NOTHING_CHOSEN
from fedping.client_sim.features.vectors import Lists
from fedping.client_sim.learning.batch import Clients
from fedping.client_sim.learning.lists import ListBatch, ListData
from fedping.client_sim.rehearsal.catalogue import Catalogue, catalogue_for
from fedping.client_sim.rehearsal.settings import Look, Rehearsal
from fedping.protocol.draws import Keys, child_keys, normals, numbers_within, uniforms
from fedping.protocol.errors import InvalidSettings
from fedping.protocol.spec import ModelSpec

PLACE_POWER = 1.35
"""Power of an item's place in its probability of a choice, for users who look by ``place``."""

CONSIDER_POWER = 0.82
"""Power of an item's place in its probability of being considered."""

ATTRACTIVE = 2.0
"""Utility at which half of the users find an item attractive."""

CASCADE_SLOPE, ENOUGH = 0.6, 1.15
"""Weight of a utility for users who look from the top down, and the utility that satisfies them."""

_OFFERED, _NOISE, _CONSIDERED, _LEFT, _SWAPPED = range(5)
_TASTE = 2**30


@dataclass(frozen=True)
class Visits:
    """N lists as users saw them, with all items on the screen, and the users' choices.

    Attributes:
        at, value: positions and values of the items in displayed order, shape (N, c, S).
        shown: the number of items, shape (N,).
        chosen: the place of the chosen item, from 0; -1 for none, shape (N,).
        pinned: whether each item was pinned, shape (N, c).
        swapped: whether two neighbours were swapped, shape (N,).
        utility: the utility of each item to the user, minus infinity in the padding, shape (N, c).
    """

    at: NDArray[np.intp]
    value: FloatArray
    shown: NDArray[np.intp]
    chosen: NDArray[np.intp]
    pinned: NDArray[np.bool_]
    swapped: NDArray[np.bool_]
    utility: FloatArray

    def __len__(self) -> int:
        return len(self.chosen)

    @property
    def has_choice(self) -> NDArray[np.bool_]:
        """Whether an item was chosen in each list, shape (N,)."""
        found: NDArray[np.bool_] = self.chosen != NOTHING_CHOSEN
        return found

    def of_chosen(self, column: NDArray[Any]) -> NDArray[Any]:
        """Return the value of each chosen item in a column of shape (N, c); without a choice, that of the top item."""
        found: NDArray[Any] = column[np.arange(len(self)), np.maximum(self.chosen, 0)]
        return found

    def rows(self, which: NDArray[np.intp]) -> Visits:
        """Return the lists at these positions."""
        return Visits(**{name: column[which] for name, column in vars(self).items()})

    def data(self, sizes: NDArray[np.int64]) -> ListData:
        """Return the lists as the examples of clients with a fixed number of lists each, client after client."""
        return ListData(
            self.at.astype(np.int32),
            self.value,
            self.chosen,
            self.shown,
            self.shown,
            self.pinned,
            sizes,
        )


def chosen(look: Look, utility: FloatArray, gumbel: FloatArray, considered: FloatArray) -> NDArray[np.intp]:
    """Return the place of the chosen item in each list, -1 for none, shape (N,).

    With ``all``, users see all items and take the best. With ``place``, the probability of a choice is proportional to
    an item's attractiveness, 1 / (1 + exp(2 - utility)), times 1 / place^1.35. With ``consider``, they consider each
    item with probability 1 / place^0.82 and take the best of these. With ``cascade``, they look from the top down and
    take the first item that is good enough.

    Args:
        look: the way in which users look.
        utility: utility of each item in displayed order, minus infinity in the padding, shape (N, c).
        gumbel: noise of each utility, in the same unit, shape (N, c).
        considered: uniform numbers in [0, 1), shape (N, c).
    """
    place = np.arange(1, utility.shape[1] + 1)
    there = ~np.isneginf(utility)
    known = np.where(there, utility, 0.0)
    match look:
        case "all":
            appeal = known + gumbel
        case "place":
            appeal = gumbel - np.logaddexp(0.0, ATTRACTIVE - known) - PLACE_POWER * np.log(place)
        case "consider":
            appeal = np.where(considered < place**-CONSIDER_POWER, known + gumbel, -np.inf)
        case "cascade":
            appeal = np.where(CASCADE_SLOPE * known + gumbel > ENOUGH, -place.astype(np.float64), -np.inf)
    appeal = np.where(there, appeal, -np.inf)
    return np.where(np.isneginf(appeal).all(axis=1), NOTHING_CHOSEN, np.argmax(appeal, axis=1))


@dataclass(frozen=True)
class Users:
    """Users who visit lists of a catalogue.

    Attributes:
        spec: the spec.
        rehearsal: the settings.
        catalogue: the items.
        truth: users' weights in iteration 0, shape (m,).
        drift: the change of the weights per iteration, shape (m,).
    """

    spec: ModelSpec
    rehearsal: Rehearsal
    catalogue: Catalogue
    truth: FloatArray
    drift: FloatArray

    def wanted(self, iteration: int) -> FloatArray:
        """Return the true weights in an iteration, shape (m,)."""
        return self.truth + iteration * self.drift

    def visits(self, keys: Keys, owners: Keys, applied: FloatArray, iteration: int) -> Visits:
        """Return the lists of some keys, ordered by a model, and their users' choices.

        Args:
            keys: keys of the lists, shape (N,).
            owners: the key of each list's user, shape (N,).
            applied: the weights that rank the lists, shape (m,), or each list's own weights, shape (m, N).
            iteration: the iteration to which the truth has drifted.
        """
        at, value, shown, may_pin = self.catalogue.offered(child_keys(keys, _OFFERED))
        lists = as_lists(at, value, shown)
        score = vectors.scores(self.spec, applied, lists).T
        order = np.argsort(-score, axis=1, kind="stable")
        ranked_pins = np.take_along_axis(may_pin, order, axis=1)
        has_pin: NDArray[np.bool_] = np.any(ranked_pins, axis=1)
        on_top = np.argmax(ranked_pins, axis=1)
        places = np.arange(order.shape[1])
        moved = np.argsort(np.where(has_pin[:, None] & (places == on_top[:, None]), -1, places), axis=1, kind="stable")
        order = np.take_along_axis(order, moved, axis=1)
        order, swapped = self._explored(order, has_pin, shown, keys)
        pinned = has_pin[:, None] & (places == 0)
        utility = self._utilities(lists, owners, iteration)
        utility = np.take_along_axis(utility, order, axis=1)
        noise = uniforms(child_keys(keys, _NOISE), order.shape[1])
        gumbel = -np.log(-np.log(noise * (1 - 2e-9) + 1e-9)) * self.rehearsal.noise
        considered = uniforms(child_keys(keys, _CONSIDERED), order.shape[1])
        choice = chosen(self.rehearsal.look, utility, gumbel, considered)
        if self.rehearsal.leave:
            choice = np.where(uniforms(child_keys(keys, _LEFT), 1)[:, 0] < self.rehearsal.leave, NOTHING_CHOSEN, choice)
        row = np.arange(len(order))[:, None]
        return Visits(at[row, order], value[row, order], shown, choice, pinned, swapped, utility)

    def utilities(self, lists: Lists, iteration: int) -> FloatArray:
        """Return each item's utility to a user of average taste, minus infinity in the padding, shape (N, c)."""
        return vectors.scores(self.spec, self.wanted(iteration), lists).T

    def _utilities(self, lists: Lists, owners: Keys, iteration: int) -> FloatArray:
        found = self.utilities(lists, iteration)
        if not self.rehearsal.tastes:
            return found
        at, value = lists.at.transpose(2, 1, 0), lists.value.transpose(2, 1, 0)
        own = normals(child_keys(owners[:, None, None], _TASTE + at).ravel(), 1)[:, 0].reshape(at.shape)
        result: FloatArray = found + self.rehearsal.tastes * (own * value).sum(axis=2)
        return result

    def _explored(
        self, order: NDArray[np.intp], has_pin: NDArray[np.bool_], shown: NDArray[np.intp], keys: Keys
    ) -> tuple[NDArray[np.intp], NDArray[np.bool_]]:
        """Swap unpinned neighbours at random, like :func:`fedping.client_sim.features.reference.swapped`."""
        if not self.spec.explore:
            return order, np.zeros(len(order), np.bool_)
        draws = uniforms(child_keys(keys, _SWAPPED), 2)
        pairs = shown - 1 - has_pin
        swapped = (pairs > 0) & (draws[:, 0] < self.spec.explore)
        first = has_pin + np.floor(draws[:, 1] * np.maximum(pairs, 0)).astype(np.intp)
        found, some = order.copy(), np.flatnonzero(swapped)
        found[some, first[some]], found[some, first[some] + 1] = order[some, first[some] + 1], order[some, first[some]]
        return found, swapped


@dataclass(frozen=True)
class VisitData:
    """The visits of a fleet in an iteration, made on request: a :class:`fedping.client_sim.learning.batch.ClientData`.

    Attributes:
        users: the users.
        owners: the key of each user, the same in every iteration, shape (clients,).
        keys: the key of each user in the iteration, shape (clients,).
        sizes: the number of each user's lists, shape (clients,).
        applied: the weights that rank the lists, shape (m,), or each user's own weights, shape (clients, m).
        iteration: the iteration.
    """

    users: Users
    owners: Keys
    keys: Keys
    sizes: NDArray[np.int64]
    applied: FloatArray
    iteration: int

    def __len__(self) -> int:
        return len(self.keys)

    def visits(self, clients: Clients) -> Visits:
        """Return all the visits of these clients, client after client."""
        sizes = self.sizes[clients]
        keys = child_keys(np.repeat(self.keys[clients], sizes), numbers_within(sizes))
        applied = self.applied if self.applied.ndim == 1 else np.repeat(self.applied[clients].T, sizes, axis=1)
        return self.users.visits(keys, np.repeat(self.owners[clients], sizes), applied, self.iteration)

    def batch(self, clients: Clients) -> ListBatch:
        """See :meth:`fedping.client_sim.learning.batch.ClientData.batch`."""
        return self.lists(clients).batch(np.arange(len(clients)))

    def lists(self, clients: Clients) -> ListData:
        """Return all the lists of these clients as stored data, which isn't made on request."""
        return self.visits(clients).data(self.sizes[clients])


def as_lists(at: NDArray[np.intp], value: FloatArray, shown: NDArray[np.intp]) -> Lists:
    """Return lists without choices, from positions and values of shape (N, c, S)."""
    return Lists(
        np.ascontiguousarray(at.transpose(2, 1, 0)),
        np.ascontiguousarray(value.transpose(2, 1, 0)),
        shown,
        np.full(len(shown), NOTHING_CHOSEN),
    )


def users_of(spec: ModelSpec, rehearsal: Rehearsal, truth: Keys) -> Users:
    """Return the users of a rehearsal.

    Args:
        spec: the spec.
        rehearsal: the settings.
        truth: the key of random true weights, for settings without ``truth``, shape (1,).

    Raises:
        InvalidSettings: the truth names an unknown weight, or a table lacks columns that the features read.
        FedpingError: a table can't be read.
    """
    if rehearsal.truth:
        weights = named_weights(spec, rehearsal.truth, "truth")
    else:
        weights = normals(truth, spec.m)[0]
        layout = spec.layout
        weights[layout.places : layout.places + layout.offsets] = 0.0
    drift = named_weights(spec, rehearsal.drift, "drift")
    return Users(spec, rehearsal, catalogue_for(spec, rehearsal), weights, drift)


def named_weights(spec: ModelSpec, values: Mapping[str, float], setting: str) -> FloatArray:
    """Return weights by the names of weights and features, 0 for all others, shape (m,).

    Raises:
        InvalidSettings: a name doesn't belong to a weight or a feature.
    """
    weights = np.zeros(spec.m)
    for name, value in values.items():
        try:
            weights[spec.positions((name,))] = value
        except ValueError:
            known = ", ".join(span.feature.name for span in spec.layout.spans)
            raise InvalidSettings(
                f"'{setting}' names '{name}', which is neither a weight nor a feature of spec '{spec.name}'. Its "
                f"features with weights are {known}"
            ) from None
    layout = spec.layout
    if weights[layout.places : layout.places + layout.offsets].any():
        raise InvalidSettings(
            f"'{setting}' has offsets of places. Use 'look' for how users look at places, and remove the offsets"
        )
    return weights
