"""Selection of the features that are most informative about the target, by scores from sums over the clients.

``f`` is an F statistic. If the target is a class, it is that of a one-way analysis of variance, from each class'
count, mean and squares in each client; if the target is a number, it is that of the linear correlation. ``chi2`` is
Pearson's χ² of the table of ten quantile bins by classes.

Source: Fisher 1925, *Statistical Methods for Research Workers*, chapters 7 and 8; Pearson 1900 for χ².
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal, TypeAlias

import numpy as np
from msgspec import Meta, Struct
from numpy.typing import NDArray

from fedping.client_sim.data.bins import Bins, quantile_bins
from fedping.client_sim.data.example_data import ExampleData
from fedping.client_sim.data.federated import client_moments, constant_features, merged, sums_by_client
from fedping.client_sim.data.preparing import Selecting
from fedping.client_sim.learning.batch import FloatArray
from fedping.protocol.errors import InvalidSettings

Score: TypeAlias = Literal["f", "chi2"]
BINS = 10
"""Number of bins in the table of a χ²."""


class Select(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Settings of a selection of the best features.

    Attributes:
        features: the number of features that are kept.
        by: the score: ``f`` of an analysis of variance, or of a correlation with a number; ``chi2`` of bins by classes.
    """

    features: Annotated[int, Meta(ge=1)]
    by: Score = "f"


def selecting(train: ExampleData, settings: Select) -> tuple[Selecting, FloatArray]:
    """Return the selection of the features with the largest scores, and all scores; among equals, the first wins.

    Raises:
        InvalidSettings: there are fewer features, or the score needs classes.
    """
    if settings.features > len(train.features):
        raise InvalidSettings(
            f"[data.select] features = {settings.features}, and there are {len(train.features)}. Lower it"
        )
    scores = scores_of(train, settings.by)
    kept = np.zeros(len(scores), np.bool_)
    kept[np.argsort(-scores, kind="stable")[: settings.features]] = True
    return Selecting(kept), scores


def scores_of(train: ExampleData, by: Score) -> FloatArray:
    """Return the score of each feature over the examples of all clients, shape (d,); 0 for constant ones.

    Raises:
        InvalidSettings: ``chi2`` of a target that is a number.
    """
    if by == "chi2":
        if not train.target.is_class:
            raise InvalidSettings(
                f"[data.select] by = \"chi2\" counts classes, and the target '{train.target.name}' is a number. Set "
                'by = "f"'
            )
        return chi_squared(
            client_class_bin_counts(train.pooled(), quantile_bins(train, BINS))[0]
        )  # counts are summed over clients
    scores = _f_of_classes(train) if train.target.is_class else _f_of_number(train)
    return np.where(constant_features(merged(client_moments(train))), 0.0, scores)


def _f_of_classes(train: ExampleData) -> FloatArray:
    everyone = merged(client_moments(train))
    of_class = [merged(client_moments(train.only(train.y == number))) for number in range(len(train.target.classes))]
    there = [each for each in of_class if each.count[0]]
    between = sum(
        (each.count[0] * (each.mean[0] - everyone.mean[0]) ** 2 for each in there), np.zeros(train.x.shape[1])
    )
    within = sum((each.squares[0] for each in there), np.zeros(train.x.shape[1]))
    return _ratio(between, within, len(there) - 1, int(everyone.count[0]) - len(there))


def _f_of_number(train: ExampleData) -> FloatArray:
    of_features, with_target, of_target = comoments(train)
    explained = with_target**2 / np.maximum(of_features, np.finfo(np.float64).tiny)
    return _ratio(explained, of_target - explained, 1, len(train.y) - 2)


def _ratio(explained: FloatArray, rest: FloatArray, of_explained: int, of_rest: int) -> FloatArray:
    """Return the F statistic of two sums of squares with their degrees of freedom; 0 where the explained sum is 0."""
    if of_explained < 1 or of_rest < 1:
        return np.zeros_like(explained)
    with np.errstate(divide="ignore", invalid="ignore"):
        ratio = (explained / of_explained) / (np.maximum(rest, 0.0) / of_rest)
    return np.where(explained > 0, ratio, 0.0)


def comoments(data: ExampleData) -> tuple[FloatArray, FloatArray, float]:
    """Return Σ (a - mean a)² of each feature a and Σ (a - mean a)(y - mean y), shape (d,), and Σ (y - mean y)².

    An earlier round computes the means; clients then send the sums of products of deviations from them.
    """
    total = max(1, len(data.y))
    apart = data.x - sums_by_client(data, data.x).sum(axis=0) / total
    apart_y = data.y - sums_by_client(data, data.y[:, None]).sum() / total
    return np.einsum("nd,nd->d", apart, apart), apart_y @ apart, float(apart_y @ apart_y)


def correlations(x: FloatArray) -> FloatArray:
    """Return the correlation of each pair of features over the examples that have both, shape (d, d).

    It needs only sums over pairs of columns, which add up over clients. It is NaN for a constant feature.

    Args:
        x: all clients' examples, shape (N, d); NaN for a missing value.
    """
    there = ~np.isnan(x)
    mask = there.astype(np.float64)
    counts = np.maximum(mask.T @ mask, 1.0)
    mean = np.where(there, x, 0.0).sum(axis=0) / np.maximum(mask.sum(axis=0), 1.0)
    apart = np.where(there, x - mean, 0.0)
    sums = apart.T @ mask  # sums of a pair's first feature, over the examples that have both
    squares = (apart**2).T @ mask - sums**2 / counts
    products = apart.T @ apart - sums * sums.T / counts
    constant = squares <= np.finfo(np.float64).eps ** 2 * counts * mean[:, None] ** 2 * counts
    with np.errstate(invalid="ignore", divide="ignore"):
        result = products / np.sqrt(squares * squares.T)
    return np.where(constant | constant.T, np.nan, np.clip(result, -1.0, 1.0))


@dataclass(frozen=True)
class Pooled:
    """The moments of one feature over all clients.

    Attributes:
        count: the number of values.
        mean: the mean of all values; NaN without any.
        deviation: their standard deviation, with 1/n.
        between: the share of the variance that lies between clients' means, from 0 to 1; 0 if it is constant.
    """

    count: int
    mean: float
    deviation: float
    between: float


def pooled(of: ExampleData) -> Pooled:
    """Return the moments of examples with a single feature, from each client's count, mean and squares."""
    moments = client_moments(of)
    everyone = merged(moments)
    count, total = int(everyone.count[0]), float(everyone.squares[0, 0])
    within = float(moments.squares.sum())
    varies = count > 0 and total > 0 and not constant_features(everyone)[0]
    return Pooled(
        count=count,
        mean=float(everyone.mean[0, 0]) if count else float("nan"),
        deviation=float(everyone.deviation[0, 0]),
        between=min(1.0, max(0.0, 1 - within / total)) if varies else 0.0,
    )


def client_class_bin_counts(data: ExampleData, bins: Bins) -> NDArray[np.int64]:
    """Return the number of each client's examples of each class in each bin, shape (k, d, b, c)."""
    width, classes = bins.edges.shape[1] + 1, len(data.target.classes)
    clients, features = len(data), data.x.shape[1]
    row = (data.client_of[:, None] * features + np.arange(features)) * width + bins.numbers(data.x)
    cell = row * classes + data.y[:, None]
    counts = np.bincount(cell.ravel(), minlength=clients * features * width * classes)
    return counts.reshape(clients, features, width, classes)


def chi_squared(counts: NDArray[np.int64]) -> FloatArray:
    """Return Pearson's χ², shape (d,), of each feature's table of bins by classes, shape (d, b, c)."""
    total = np.maximum(counts.sum(axis=(1, 2), keepdims=True), 1)
    expected = counts.sum(axis=2, keepdims=True) * counts.sum(axis=1, keepdims=True) / total
    result: FloatArray = ((counts - expected) ** 2 / np.where(expected > 0, expected, 1.0)).sum(axis=(1, 2))
    return result
