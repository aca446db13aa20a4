"""Ranking by a product's own features, with the loss that the spec names (`fedping.protocol.features`)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from msgspec.structs import replace

from fedping.client_sim.features import vectors
from fedping.client_sim.features.vectors import Lists
from fedping.client_sim.learning.batch import FloatArray, Floats, shares
from fedping.client_sim.learning.lists import ListBatch
from fedping.protocol.features import FEATURES, is_block
from fedping.protocol.spec import ModelSpec

NAME = FEATURES

_NUMBERS_AT_A_TIME = 2**22
"""Maximum number of updates' values in memory at a time."""


@dataclass(frozen=True)
class FeatureRanking:
    """The loss and update of lists (:mod:`fedping.client_sim.features.vectors`), and their means by client.

    The update of a list equals that of a client in any other language to the bit.
    """

    spec: ModelSpec

    @property
    def weight_names(self) -> Sequence[str]:
        """The weights' names in wire order, without those that a training adds."""
        return self.spec.names

    @property
    def start(self) -> FloatArray:
        """See :attr:`fedping.client_sim.learning.model.Model.start`."""
        return self.spec.start_array

    def predict(self, weights: FloatArray, batch: ListBatch) -> FloatArray:
        """Return the score of every item, shape (k, n, c); minus infinity in the padding."""
        k, n = batch.weight.shape
        found = vectors.scores(self.spec, _of_lists(weights, n), batch.lists)
        return np.ascontiguousarray(found.T).reshape(k, n, -1)

    def losses(self, weights: FloatArray, batch: ListBatch) -> FloatArray:
        """See :meth:`fedping.client_sim.learning.model.Model.losses`."""
        k, n = batch.weight.shape
        each = vectors.losses(self.spec, _of_lists(weights, n), batch.lists)
        return _means(each.reshape(k, n), batch)

    def gradients(self, weights: FloatArray, batch: ListBatch) -> Floats:
        """See :meth:`fedping.client_sim.learning.model.Model.gradients`."""
        return self.losses_and_gradients(weights, batch)[1]

    def losses_and_gradients(self, weights: FloatArray, batch: ListBatch) -> tuple[FloatArray, Floats]:
        """See :class:`fedping.client_sim.learning.model.GivesBoth`."""
        k, n = batch.weight.shape
        losses, gradients = np.zeros((k, n)), np.zeros((k, self.spec.m))
        share = shares(batch, np.dtype(np.float64))
        for some in _clients_at_a_time(k, n * self.spec.m):
            own = weights if weights.ndim == 1 else weights[some]
            lists = batch.lists if len(range(*some.indices(k))) == k else _of_clients(batch.lists, some, n)
            loss, updates = vectors.losses_and_updates(self.spec, _of_lists(own, n), lists)
            losses[some] = loss.reshape(-1, n)
            if n == 1:
                gradients[some] = -(updates * share[some, 0]).T
            else:
                gradients[some] = -np.einsum("mkn,kn->km", updates.reshape(len(updates), -1, n), share[some])
        return _means(losses, batch), gradients

    def descents(self, weights: FloatArray, batch: ListBatch, pulls: FloatArray) -> FloatArray:
        """Return the update of clients' weights for pulls on their items' scores: the mean over a client's lists.

        Args:
            weights: shape (m,), or (k, m) for each client's own weights.
            batch: the lists of k clients.
            pulls: the desired growth of each score, shape (k, n, c); 0 in the padding.

        Returns:
            Directions that a client adds to its weights, shape (k, m).
        """
        k, n = batch.weight.shape
        by_list = np.ascontiguousarray(pulls.reshape(k * n, -1).T)
        moves = vectors.descents(self.spec, _of_lists(weights, n), batch.lists, by_list)
        found: FloatArray = np.einsum("mkn,kn->km", moves.reshape(-1, k, n), shares(batch, np.dtype(np.float64)))
        return found


def _of_lists(weights: FloatArray, n: int) -> FloatArray:
    """Return weights of shape (m,), or clients' own weights repeated for each of their n lists, shape (m, k · n)."""
    return weights if weights.ndim == 1 else np.repeat(weights.T, n, axis=1)


def _means(each: FloatArray, batch: ListBatch) -> FloatArray:
    found: FloatArray = np.einsum("kn,kn->k", each, shares(batch, np.dtype(np.float64)))
    return found


def _clients_at_a_time(k: int, numbers: int) -> Iterator[slice]:
    count = max(1, _NUMBERS_AT_A_TIME // max(numbers, 1))
    for first in range(0, k, count):
        yield slice(first, min(first + count, k))


def _of_clients(lists: Lists, some: slice, n: int) -> Lists:
    """Return the lists of some clients."""
    of = slice(some.start * n, some.stop * n)
    return Lists(
        lists.at[..., of],
        lists.value[..., of],
        lists.shown[of],
        lists.chosen[of],
        None if lists.seen is None else lists.seen[of],
        None if lists.pinned is None else lists.pinned[:, of],
    )


def feature_ranking(spec: ModelSpec) -> FeatureRanking:
    """Return the model of a spec with features, without the blocks that a training has added to the spec."""
    layout = spec.layout
    own = sum(is_block(span.feature) for span in layout.spans) + (3 if layout.hidden else 0)
    return FeatureRanking(replace(spec, blocks=spec.blocks[:own], constraints=()))
