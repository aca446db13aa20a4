"""k-means clustering by many clients together (Lloyd 1982).

Clients and server share this layout. The weights are K centroids of d features, row by row; with ``counts``, K numbers
of examples follow. As with every model, the centroids' part of a client's update after local steps is its own centroids
minus the fetched ones, so *fetched + update* are the client's K local centroids. A centroid that is not the nearest one
of any of the client's examples doesn't move. The counts are 0 in every published model, so at rate 1 the last K numbers
of an update are the numbers of the client's examples in each cluster. A server needs them to cluster all clients' local
centroids again (Rodríguez-Barroso et al. 2020, 5.3), or to weight them. The loss, the predictions and the gradients do
not depend on the counts.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from fedping.client_sim.learning.batch import Examples, FloatArray, Floats, shares
from fedping.client_sim.learning.models.arrays import OfArrays, array, check_width
from fedping.client_sim.learning.models.layer import Layer
from fedping.client_sim.learning.settings import Settings
from fedping.protocol.draws import Keys, child_keys, uniforms
from fedping.protocol.errors import FedpingError
from fedping.protocol.spec import Block, Normal

NAME = "k-means"


@dataclass(frozen=True)
class KMeans(OfArrays):
    """The loss is the mean squared distance to the nearest centroid, scikit-learn's inertia / n.

    Its gradient with respect to centroid j is 2 n_j / n × (centroid - mean of the n_j examples nearest to it). A local
    step is Lloyd's: at rate 1 the centroid moves to that mean, at a lower rate that share of the way. Ties go to the
    first centroid. Targets are never used. Centroids start at normal numbers of standard deviation ``spread``; a better
    start is the model spec's start weights.

    Attributes:
        features: number of features of an example.
        clusters: number of centroids.
        spread: standard deviation of the start.
        seed: seed of the start.
        counts: whether the weights have each cluster's number of examples.
        fewest: minimum number of examples of a cluster that isn't empty. A step with a smaller cluster raises
            :class:`FedpingError`. It isn't a setting of the spec: a client that guards its own rows sets it.
    """

    features: int
    clusters: int
    spread: float = 1.0
    seed: int = 0
    counts: bool = True
    fewest: int = 1

    @property
    def arrays(self) -> tuple[Block, ...]:
        """See :attr:`OfArrays.arrays`."""
        centroids = array("centroids", (self.clusters, self.features), Normal(seed=self.seed, scale=self.spread))
        return (centroids, *([array("counts", (self.clusters,))] if self.counts else []))

    @property
    def _size(self) -> int:
        return self.clusters * self.features

    @cached_property
    def _distances(self) -> Layer:
        return Layer(self.features, self.clusters)

    def _centroids(self, weights: Floats) -> Floats:
        """Return a view of the centroids, shape (clusters, features) or (k, clusters, features)."""
        check_width(weights.shape[-1], self.m, NAME)
        return weights[..., : self._size].reshape(*weights.shape[:-1], self.clusters, self.features)

    def predict(self, weights: FloatArray, batch: Examples) -> FloatArray:
        """Return the number of each example's nearest centroid, shape (k, n)."""
        return self._nearest(weights, batch).astype(np.float64)

    def _nearest(self, weights: FloatArray, batch: Examples) -> NDArray[np.intp]:
        """Return the centroid with the least |c|² / 2 - x · c, computed as a layer with W = -c and b = |c|² / 2."""
        centroids = self._centroids(weights)
        half = 0.5 * np.einsum("...cd,...cd->...c", centroids, centroids)
        flat = -centroids.swapaxes(-1, -2).reshape(*weights.shape[:-1], -1)
        nearest: NDArray[np.intp] = self._distances.forward(np.concatenate([flat, half], axis=-1), batch.x).argmin(-1)
        return nearest

    def losses(self, weights: FloatArray, batch: Examples) -> FloatArray:
        """See :meth:`fedping.client_sim.learning.model.Model.losses`."""
        nearest, centroids = self._nearest(weights, batch), self._centroids(weights)
        of_client = () if weights.ndim == 1 else (np.arange(len(batch))[:, None],)
        away = batch.x - centroids[(*of_client, nearest)]
        losses: FloatArray = np.einsum("kn,knd,knd->k", shares(batch), away, away)
        return losses

    def gradients(self, weights: FloatArray, batch: Examples) -> Floats:
        """See :meth:`fedping.client_sim.learning.model.Model.gradients`; zero for the counts."""
        share, sums = self._sums(weights, batch, shares(batch))
        gradients = np.zeros((len(batch), self.m))
        self._centroids(gradients)[...] = 2.0 * (share[..., None] * self._centroids(weights) - sums)
        return gradients

    def movements(self, weights: FloatArray, batch: Examples) -> Floats:
        """Return Lloyd's step from each client's centroids, shape (k, m): see :class:`~.model.MovesItself`.

        The step of the counts leads from the counts in ``weights`` to the cluster sizes before the step.
        """
        count, sums = self._sums(weights, batch, batch.weight)
        means = sums / np.where(count > 0, count, 1.0)[..., None]
        movements = np.zeros((len(batch), self.m))
        away = np.where(count[..., None] > 0, means - self._centroids(weights), 0.0)
        self._centroids(movements)[...] = away
        if self.counts:
            there = count.sum(axis=1, keepdims=True) > 0
            movements[:, self._size :] = np.where(there, count - weights[..., self._size :], 0.0)
        return movements

    def starts(self, batch: Examples, keys: Keys, count: int) -> FloatArray:
        """See :class:`~.model.KnowsStarts`: k-means++ (Arthur and Vassilvitskii 2007).

        The first centroid is an example drawn by weight; each further one is an example drawn by weight × its squared
        distance to the nearest centroid so far. If there are fewer distinct examples than clusters, some repeat.
        """
        return np.stack([self._spread_out(batch, child_keys(keys, number)) for number in range(count)])

    def _spread_out(self, batch: Examples, keys: Keys) -> FloatArray:
        clients, examples = batch.weight.shape
        weights = np.zeros((clients, self.m))
        if examples == 0:
            return weights
        chances, centroids, rows = uniforms(keys, self.clusters), self._centroids(weights), np.arange(clients)
        least: FloatArray = np.ones((clients, examples))
        for number in range(self.clusters):
            mass = batch.weight * least
            mass = np.where(mass.any(axis=1, keepdims=True), mass, batch.weight)
            reached = mass.cumsum(axis=1)
            drawn = (reached <= chances[:, number, None] * reached[:, -1:]).sum(axis=1)
            centroids[:, number] = batch.x[rows, np.minimum(drawn, examples - 1)]
            away = np.square(batch.x - centroids[:, number, None]).sum(axis=2)
            least = away if number == 0 else np.minimum(least, away)
        return weights

    def _sums(self, weights: FloatArray, batch: Examples, each: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Return each cluster's sum of ``each`` over its examples, (k, clusters), and of ``each`` × x, (k, c, d)."""
        nearest = self._nearest(weights, batch)
        if self.fewest > 1:
            self._check_sizes(nearest[batch.weight > 0])
        member = np.where(nearest[..., None] == np.arange(self.clusters), each[..., None], 0.0)
        return member.sum(axis=1), member.swapaxes(1, 2) @ batch.x

    def _check_sizes(self, nearest: NDArray[np.intp]) -> None:
        """Raise if a non-empty cluster has fewer than ``fewest`` examples; ``nearest`` has one client's clusters."""
        sizes = np.bincount(nearest, minlength=self.clusters)
        small = np.flatnonzero((sizes > 0) & (sizes < self.fewest))
        if len(small):
            rows = "1 row" if self.fewest == 2 else f"fewer than {self.fewest:,} rows"
            raise FedpingError(
                f"cluster {small[0] + 1} of {self.clusters:,} has {rows} in a step of the training, and its centroid "
                "would reveal them, so nothing is sent of this version; ask the study's operator for fewer clusters or "
                "larger batches"
            )


def k_means(settings: Settings) -> KMeans:
    """Return the model of these settings: ``features``, ``clusters``, ``spread``, ``seed`` and ``counts``.

    Defaults are ``spread`` 1, ``seed`` 0 and ``counts`` true.
    """
    return KMeans(
        features=settings.whole("features"),
        clusters=settings.whole("clusters"),
        spread=settings.number("spread", 1.0, least=1e-30),
        seed=settings.whole("seed", 0, least=0),
        counts=settings.flag("counts", True),
    )
