"""Preparation of clients' examples before they learn, from statistics that are sums over the clients.

Each function computes a transformation from the training examples of a fleet. Every client then applies it to its
training, validation and test examples.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from fedping.client_sim.data.example_data import ExampleData
from fedping.client_sim.data.federated import (
    class_weights,
    client_class_counts,
    client_exceeding,
    client_extremes,
    client_moments,
    constant_features,
    merged,
    quantiles,
)
from fedping.client_sim.learning.batch import FloatArray
from fedping.protocol.errors import FedpingError


@dataclass(frozen=True)
class Clipping:
    """Clips features to a range: ``low`` and ``high``, shape (d,) each; infinite for a feature without clipping."""

    low: FloatArray
    high: FloatArray

    def of(self, data: ExampleData) -> ExampleData:
        """Return the data with values outside the range set to the bound."""
        return replace(data, x=np.clip(data.x, self.low, self.high))


def clipping(train: ExampleData, high: float = 0.99, low: float | None = None) -> Clipping:
    """Return the clipping of every feature at its quantiles ``low`` (none if None) and ``high`` over all examples."""
    top = quantiles(train, high)
    return Clipping(np.full_like(top, -np.inf) if low is None else quantiles(train, low), top)


def outlier_clipping(train: ExampleData, share: float = 0.99, times: float = 10.0) -> Clipping:
    """Return the clipping, at quantile ``share``, of features whose maximum is over ``times`` that quantile.

    From counts of larger values, the server learns whether the maximum is that large, but not the maximum. Features
    whose quantile is not positive are unchanged, because the rule would remove rare values from them.
    """
    top = quantiles(train, share)
    extreme = client_exceeding(train, times * top).sum(axis=0) > 0
    return Clipping(np.full_like(top, -np.inf), np.where(extreme & (top > 0), top, np.inf))


@dataclass(frozen=True)
class Standardising:
    """Subtraction of ``mean`` and division by ``deviation``, shape (d,) each: to mean 0 and deviation 1, or to [0, 1].

    Constant features are only shifted to 0.
    """

    mean: FloatArray
    deviation: FloatArray

    def of(self, data: ExampleData) -> ExampleData:
        """Return the data after subtraction and division."""
        return replace(data, x=(data.x - self.mean) / self.deviation)


def standardising(train: ExampleData) -> Standardising:
    """Return the standardisation by the mean and the deviation (with 1/n) over all examples."""
    everyone = merged(client_moments(train))
    deviation = np.where(constant_features(everyone), 1.0, everyone.deviation[0])
    return Standardising(everyone.mean[0], deviation)


def min_max_scaling(train: ExampleData) -> Standardising:
    """Return the scaling of every feature to [0, 1] by its minimum and maximum over all examples.

    It takes an additional round, in which every client sends the two extremes of each feature, and the server keeps
    the outermost ones. These are values of single clients, which sums would hide. Values of other examples may lie
    outside [0, 1].
    """
    least, greatest = client_extremes(train)
    low = least.min(axis=0)
    width = greatest.max(axis=0) - low
    return Standardising(low, np.where(width > 0, width, 1.0))


@dataclass(frozen=True)
class Selecting:
    """A selection of features; ``kept`` is whether each is kept, shape (d,)."""

    kept: NDArray[np.bool_]

    def of(self, data: ExampleData) -> ExampleData:
        """Return the data with the kept features only."""
        names = tuple(name for name, kept in zip(data.features, self.kept, strict=True) if kept)
        return replace(data, x=np.ascontiguousarray(data.x[:, self.kept]), features=names)


def without_constants(train: ExampleData) -> Selecting:
    """Return the selection that drops features with one value in all examples, from which no model can learn.

    Raises:
        FedpingError: all features are constant.
    """
    constant = constant_features(merged(client_moments(train)))
    if constant.all():
        raise FedpingError("every feature has the same value for all examples, so there is nothing to learn from")
    return Selecting(~constant)


def balanced(train: ExampleData) -> ExampleData:
    """Return the data with each example's weight multiplied by that of its class over all clients.

    Raises:
        FedpingError: the target is a number.
    """
    weights = class_weights(client_class_counts(train))
    return replace(train, weight=train.weight * weights[train.y])
