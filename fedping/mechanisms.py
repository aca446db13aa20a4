"""Mechanisms of differential privacy for experiments: upload links, and k-means with noise.

They are extensions like those of :mod:`fedping.algorithms`: an entry point in pyproject.toml names this module. They
are only for experiments: the noise comes from a run's seed, and its floating-point numbers leak data in their last
bits. A study has its own guarantees, in ``privacy``. docs/researchers.md describes each mechanism's guarantee.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
import numpy as np
from numpy.typing import NDArray

import fedping

if TYPE_CHECKING:
    from fedping.client_sim.learning.batch import Batch, FloatArray, Floats
    from fedping.client_sim.learning.model import Model
    from fedping.protocol.draws import Keys

Positive = Annotated[float, msgspec.Meta(gt=0, le=1e30)]
Share = Annotated[float, msgspec.Meta(gt=0, lt=1)]


@fedping.upload_link("laplace")
def laplace(*, bound: Positive, epsilon: Positive) -> tuple[fedping.ClientEnd, fedping.ServerEnd]:
    """Cut updates to ``bound`` in the L1 norm and add Laplace noise: each contribution costs ``epsilon``.

    Two updates are at most 2 ``bound`` apart, which is the sensitivity. Source: Dwork et al. 2006.
    """

    def transform(updates: Floats, keys: Keys) -> Floats:
        return _cut(updates, bound) + _laplace(keys, updates.shape[1], 2 * bound / epsilon)

    return fedping.ClientEnd(transform=transform), fedping.ServerEnd()


@fedping.upload_link("discrete-laplace")
def discrete_laplace(
    *, bound: Positive, step: Positive, epsilon: Positive
) -> tuple[fedping.ClientEnd, fedping.ServerEnd]:
    """Send whole multiples of ``step``, with whole noise y of probability proportional to e^(-ε |y| / Δ).

    An update is cut to ``bound`` in the L1 norm and rounded towards zero, so that two of them are at most
    Δ = 2 floor(bound / step) steps apart: each contribution costs ``epsilon``. Source: Ghosh, Roughgarden and
    Sundararajan 2009 (the geometric mechanism).
    """
    steps = int(np.floor(bound / step))
    if not 1 <= steps <= 2**40:
        raise ValueError("'bound' has to be 1 to 2^40 times as large as 'step'; change one of them")

    def transform(updates: Floats, keys: Keys) -> Floats:
        whole = np.trunc(_cut(updates, bound) / step)
        over = np.abs(whole).sum(axis=1, keepdims=True) > steps  # by rounding alone, where the norm is the bound
        whole = np.where(over, np.trunc(whole * (1 - 1e-12)), whole)
        rate = epsilon / (2 * steps)
        ends = fedping.uniforms(keys, 2 * updates.shape[1]).reshape(len(updates), 2, -1)
        noise = np.floor(np.log1p(-ends) / -rate)  # two geometric numbers, whose difference is discrete Laplace
        return (whole + noise[:, 0] - noise[:, 1]) * step

    return fedping.ClientEnd(transform=transform), fedping.ServerEnd()


@fedping.upload_link("exponential")
def exponential(*, bound: Positive, epsilon: Positive) -> tuple[fedping.ClientEnd, fedping.ServerEnd]:
    """Send one weight of an update, chosen by its size, as ``bound`` or ``-bound``; the others are zero.

    Of the answers (weight j, up or down), the exponential mechanism chooses one with probability proportional to
    e^(ε u / (2 Δu)), where the utility u is the update of j, or minus that, cut to ``bound``, and Δu = 2 ``bound``.
    Each contribution costs ``epsilon``. Source: McSherry and Talwar 2007; Rodríguez-Barroso et al. 2020, eq. 10.
    """

    def transform(updates: Floats, keys: Keys) -> Floats:
        utility = np.clip(np.hstack([updates, -updates]), -bound, bound)
        uniform = np.maximum(fedping.uniforms(keys, utility.shape[1]), 2.0**-54)
        # The largest of utilities with Gumbel noise is a draw from these probabilities.
        best = np.argmax(epsilon / (4 * bound) * utility - np.log(-np.log(uniform)), axis=1)
        sent, m = np.zeros(updates.shape), updates.shape[1]
        sent[np.arange(len(sent)), best % m] = np.where(best < m, bound, -bound)
        return sent

    return fedping.ClientEnd(transform=transform), fedping.ServerEnd()


def _cut(updates: Floats, bound: float) -> NDArray[np.float64]:
    """Return updates with an L1 norm of at most ``bound``; longer ones are shortened."""
    norms = np.abs(updates).sum(axis=1, keepdims=True)
    return np.asarray(updates * np.minimum(1, bound / np.maximum(norms, bound)), np.float64)


def _laplace(keys: Keys, count: int, scale: float | NDArray[np.float64]) -> NDArray[np.float64]:
    """Return Laplace noise, shape (k, count), with one scale or with scales of that shape."""
    u = np.maximum(fedping.uniforms(keys, count), 2.0**-54) - 0.5
    return np.asarray(-scale * np.sign(u) * np.log1p(-2 * np.abs(u)))


@fedping.client_algorithm("private-k-means")
@dataclass(frozen=True, kw_only=True)
class PrivateKMeans:
    """A step of Lloyd's k-means from sums with Laplace noise, drawn separately for each cluster.

    A client cuts its examples to ±``bound`` and assigns them to the fetched centroids. Of each cluster it draws noise
    for the number of its examples and for their sum, whose quotient, cut to ±``bound``, is its centroid. An example is
    in one cluster, so that a cluster's noise costs each example only once: adding or removing one changes a number by
    1 and a sum by d ``bound`` in the L1 norm, d being the number of features.

    With ``contour``, that share of ``epsilon`` first buys each cluster's contour coefficient c: the mean of 1 - a / b
    over its examples, a and b being their distances to the nearest and to the second centroid, from a noisy sum and a
    noisy number. The noise of a cluster is then 1 + c times as large, because a well separated cluster tolerates more
    noise. (Zhang, Liu and Wang 2018 set noise by contour coefficients of the data themselves, which then cost nothing
    in their account and are not protected.)

    Each round in which a client takes part costs each of its examples ``epsilon`` at most: rounds add up. It covers the
    centroids and numbers in the update, and not the loss and the number of examples that a client reports. The examples
    are those that clients learn from: a preparation that is computed from all of them, such as ``min_max``, is not
    covered, since one more example may then change all others.

    Attributes:
        bound: the largest number of a feature.
        epsilon: ε of a round; sets of examples that differ by one example are neighbours.
        contour: share of ``epsilon`` for the contour coefficients; equal noise for all clusters if None.
    """

    bound: Positive
    epsilon: Positive
    contour: Share | None = None

    def init_state(self, model: Model[Any]) -> Mapping[str, NDArray[Any]]:
        """Return an empty state; raise an error unless the model is k-means with numbers of examples."""
        if not getattr(model, "counts", False) or not hasattr(model, "clusters"):
            raise ValueError("it needs the model 'k-means' with counts = true; set it, or take another algorithm")
        return {}

    def update(
        self, model: Model[Any], weights: FloatArray, batch: Batch, keys: Keys, state: Mapping[str, NDArray[Any]]
    ) -> tuple[Floats, Mapping[str, NDArray[Any]]]:
        """Return the movements of the centroids and the noisy numbers, shape (k, m)."""
        means: Any = model
        clusters, features = means.clusters, means.features
        fetched, examples = weights[..., : clusters * features].reshape(-1, clusters, features), self._within(batch)
        member, second = self._members(fetched, examples, batch)
        epsilon, scale = self.epsilon, np.ones((len(batch), clusters))
        if self.contour is not None:
            epsilon = (1 - self.contour) * self.epsilon
            scale = 1 + self.contours(member, second, keys, self.contour * self.epsilon)
        each = scale * 2 / epsilon  # half for the number, half for the sum
        number = member.sum(axis=1) + _laplace(fedping.child_keys(keys, _NUMBERS), clusters, each)
        noise = _laplace(
            fedping.child_keys(keys, _SUMS),
            clusters * features,
            np.repeat(each * features * self.bound, features, axis=1),
        )
        sums = member.swapaxes(1, 2) @ examples + noise.reshape(-1, clusters, features)
        centroids = np.clip(sums / np.maximum(number, 1.0)[..., None], -self.bound, self.bound)
        there = np.maximum(np.rint(number), 0.0)
        moved = np.where(there[..., None] > 0, centroids - fetched, 0.0)
        before = weights[..., clusters * features :]
        return np.hstack([moved.reshape(len(batch), -1), there - before]), state

    def _within(self, batch: Any) -> NDArray[np.float64]:
        return np.clip(np.asarray(batch.x, np.float64), -self.bound, self.bound)

    def _members(
        self, fetched: NDArray[np.float64], examples: NDArray[np.float64], batch: Any
    ) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Return each example's membership in each cluster, and contour coefficient there, both (k, n, clusters)."""
        squares = np.square(examples).sum(-1)[..., None] + np.square(fetched).sum(-1)[:, None]
        away = np.sqrt(np.maximum(squares - 2 * examples @ fetched.swapaxes(1, 2), 0.0))
        nearest = away.argmin(axis=-1)
        member = (nearest[..., None] == np.arange(away.shape[-1])) & (batch.weight > 0)[..., None]
        if away.shape[-1] == 1:
            return member.astype(np.float64), np.zeros(away.shape)
        closest = np.partition(away, 1, axis=-1)
        own = 1 - closest[..., 0] / np.maximum(closest[..., 1], np.finfo(float).tiny)
        return member.astype(np.float64), member * own[..., None]

    @staticmethod
    def contours(
        member: NDArray[np.float64], own: NDArray[np.float64], keys: Keys, epsilon: float
    ) -> NDArray[np.float64]:
        """Return each cluster's contour coefficient from noisy sums, in [0, 1], shape (k, clusters); it costs ε."""
        clusters = member.shape[-1]
        sums = own.sum(axis=1) + _laplace(fedping.child_keys(keys, _CONTOURS), clusters, 2 / epsilon)
        numbers = member.sum(axis=1) + _laplace(fedping.child_keys(keys, _CONTOURS + 1), clusters, 2 / epsilon)
        return np.asarray(np.clip(sums / np.maximum(numbers, 1.0), 0.0, 1.0))


_NUMBERS, _SUMS, _CONTOURS = 2**32, 2**32 + 1, 2**32 + 2
"""Indices of the children of a client's key for the draws of noise."""
