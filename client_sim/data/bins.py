"""Discretisation: features cut into bins whose edges are found from sums of clients' counts.

Edges are quantiles, or divide the range from the least to the greatest value evenly. Both kinds of edges follow from
counts alone (:func:`fedping.client_sim.data.federated.quantiles`), and so do the numbers of values in each bin.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Annotated, Literal

import numpy as np
from msgspec import Meta, Struct
from numpy.typing import NDArray

from fedping.client_sim.data.example_data import ExampleData
from fedping.client_sim.data.federated import quantiles
from fedping.client_sim.learning.batch import FloatArray

MOST_BINS = 256


class Discretise(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Settings of discretisation, which replaces features' values with bins.

    Attributes:
        bins: the number of bins of a feature; equal edges merge, so that a feature may have fewer.
        by: ``quantile``, so that bins have equally many values, or ``width``, so that they are equally wide.
        encode: a bin is its number from 0 (``ordinal``), or a feature of its own that is 1 or 0 (``one_hot``), of which
            two values need one.
    """

    bins: Annotated[int, Meta(ge=2, le=MOST_BINS)] = 10
    by: Literal["quantile", "width"] = "quantile"
    encode: Literal["ordinal", "one_hot"] = "ordinal"


@dataclass(frozen=True)
class Bins:
    """The bins of d features: (-∞, e₁], (e₁, e₂], …, (eₙ, ∞).

    Attributes:
        edges: each feature's edges, ascending, shape (d, b - 1); features with fewer edges are padded with ∞.
    """

    edges: FloatArray

    @property
    def counts(self) -> NDArray[np.intp]:
        """The number of bins of each feature, shape (d,)."""
        result: NDArray[np.intp] = 1 + np.isfinite(self.edges).sum(axis=1)
        return result

    def numbers(self, x: FloatArray) -> NDArray[np.intp]:
        """Return the bin of each value of x, shape (N, d), from 0."""
        bin_of = np.zeros(x.shape, np.intp)
        for edge in self.edges.T:
            bin_of += x > edge
        return bin_of


def quantile_bins(train: ExampleData, count: int) -> Bins:
    """Return at most ``count`` bins per feature with equal numbers of examples, as far as values differ."""
    edges = np.stack([quantiles(train, number / count) for number in range(1, count)], axis=1)
    return _without_empty(edges, quantiles(train, 1.0))


def equal_bins(train: ExampleData, count: int) -> Bins:
    """Return ``count`` equally wide bins of each feature from its least to its greatest value over all examples."""
    least, greatest = quantiles(train, _LEAST), quantiles(train, 1.0)
    parts = np.arange(1, count) / count
    edges = least[:, None] + (greatest - least)[:, None] * parts
    return _without_empty(edges, greatest)


_LEAST = 1e-300
"""Share whose quantile is the least value; any share up to that of one example would do."""


def _without_empty(edges: FloatArray, greatest: FloatArray) -> Bins:
    """Return bins after removing equal edges, and edges with no value above them."""
    again = np.diff(edges, axis=1, prepend=-np.inf) <= 0
    return Bins(np.sort(np.where(again | (edges >= greatest[:, None]), np.inf, edges), axis=1))


def client_bin_counts(data: ExampleData, bins: Bins) -> NDArray[np.int64]:
    """Return the number of each client's values of each feature in each bin, shape (k, d, b)."""
    width = bins.edges.shape[1] + 1
    clients, features = len(data), data.x.shape[1]
    cell = (data.client_of[:, None] * features + np.arange(features)) * width + bins.numbers(data.x)
    return np.bincount(cell.ravel(), minlength=clients * features * width).reshape(clients, features, width)


@dataclass(frozen=True)
class Discretising:
    """Replaces values with their bins; a feature with a single bin keeps its values.

    Attributes:
        bins: the bins of each feature.
        features: which bins become a feature if ``one_hot``, shape (d, b).
        one_hot: whether bins become features.
    """

    bins: Bins
    features: NDArray[np.bool_]
    one_hot: bool

    def of(self, data: ExampleData) -> ExampleData:
        """Return the data with bins instead of values."""
        numbers = self.bins.numbers(data.x)
        cut = self.bins.counts > 1
        if not self.one_hot:
            return replace(data, x=np.where(cut, numbers, data.x))
        columns, names = [], []
        for position, name in enumerate(data.features):
            if not cut[position]:
                columns.append(data.x[:, position])
                names.append(name)
                continue
            for bin_ in np.flatnonzero(self.features[position]):
                columns.append((numbers[:, position] == bin_).astype(np.float64))
                names.append(self._name(name, position, int(bin_)))
        return replace(data, x=np.stack(columns, axis=1), features=tuple(names))

    def _name(self, feature: str, position: int, bin_: int) -> str:
        edges = self.bins.edges[position]
        low = f"{edges[bin_ - 1]:.6g} < " if bin_ else ""
        return f"{low}{feature} <= {edges[bin_]:.6g}" if bin_ < self.bins.counts[position] - 1 else f"{low}{feature}"


def discretising(train: ExampleData, settings: Discretise) -> Discretising:
    """Return the discretisation of every feature over all examples.

    One-hot, a feature with two values becomes one that is 1 for the greater; zeros and ones stay as they are.
    """
    bins = (quantile_bins if settings.by == "quantile" else equal_bins)(train, settings.bins)
    occupied = client_bin_counts(train.pooled(), bins)[0] > 0  # of the sum over clients
    if settings.encode == "ordinal":
        return Discretising(bins, occupied, one_hot=False)
    least, greatest = quantiles(train, _LEAST), quantiles(train, 1.0)
    two = ((train.x == least) | (train.x == greatest)).all(axis=0) & (occupied.sum(axis=1) == 2)
    occupied[two, occupied[two].argmax(axis=1)] = False
    as_they_are = two & (least == 0) & (greatest == 1)
    return Discretising(Bins(np.where(as_they_are[:, None], np.inf, bins.edges)), occupied, one_hot=True)
