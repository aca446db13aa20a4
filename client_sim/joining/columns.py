"""The columns that institutions agree on before they join: their order, units and scales, and the classes.

A model spec has the numbers of features and classes, but neither names nor units. If each institution numbered its own
classes, or scaled by its own mean, a weight would have a different meaning in each. So the operator hands out one file,
by which all institutions read their tables.

Scales are computed over all tables without sending rows, by a separate study. Its model is k-means with one cluster,
whose centroid moves to the mean of an institution's rows in one local step of rate 1. A round at rate 1, weighted by
examples, publishes the mean over all rows. In this study, rows have each number and its square, so that one round gives
the means and, from the mean squares, the deviations. Each institution sends its own means, and the operator sees them.
A row is in one class. So the mean of a class's column, which is 1 in the rows of the class, is the class's share, and
determines its weight.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import numpy as np
from msgspec import Meta, Struct

from fedping.client_sim.learning.batch import FloatArray
from fedping.client_sim.learning.models import k_means
from fedping.protocol.errors import FedpingError, InvalidSettings, UnfitTable
from fedping.protocol.settings_file import converted, read_toml, toml_text
from fedping.protocol.spec import ModelSpec
from fedping.protocol.weights import Finite, Positive

NonNegativeNumber = Annotated[float, Meta(ge=0, le=1e30)]
Column = Annotated[str, Meta(min_length=1, max_length=1000)]


class Feature(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A feature column: a number minus ``mean``, divided by ``deviation``; or one of ``categories``.

    Each category becomes a feature, in this order, which is 1 in the rows of that category.
    """

    name: Column
    mean: Finite = 0.0
    deviation: Positive = 1.0
    categories: Annotated[tuple[str, ...], Meta(min_length=1, max_length=1000)] | None = None

    def __post_init__(self) -> None:
        if self.categories is not None and (self.mean, self.deviation) != (0.0, 1.0):
            raise UnfitTable(f"the feature '{self.name}' has categories, which have no scale. Remove one of them")
        _refuse_repeated(self.categories or (), f"the feature '{self.name}' has two categories")

    @property
    def width(self) -> int:
        """The number of the model's features that the column becomes."""
        return 1 if self.categories is None else len(self.categories)


class AgreedColumns(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The columns that every institution reads from its table.

    Attributes:
        features: columns in the order of the model's features.
        label: column to predict; None for a model without a label, or if each institution names its own.
        classes: values of the label in the order of the classes' numbers; None if the label is a number.
        class_weights: weight of an example of each class in the training; equal weights if None.
        moments: set for a study of scales, whose features are each number and its square, without categories.
        counts: set for a study of scales, whose features indicate the class of each row; they follow those of
            ``moments``.

    Raises:
        InvalidSettings: a name or a class occurs twice, or classes to count or to weigh are missing.
    """

    features: Annotated[tuple[Feature, ...], Meta(min_length=1)]
    label: Column | None = None
    classes: Annotated[tuple[str, ...], Meta(min_length=2)] | None = None
    moments: bool = False
    counts: bool = False
    class_weights: tuple[NonNegativeNumber, ...] | None = None

    def __post_init__(self) -> None:
        names = tuple(feature.name for feature in self.features)
        _refuse_repeated(names, "there are two features")
        _refuse_repeated(self.classes or (), "there are two classes")
        if self.label in names:
            raise UnfitTable(f"the label '{self.label}' is among the features. Remove it there")
        if self.moments and not self.numbers:
            raise UnfitTable("moments = true is for numbers, but all features have categories. Remove it")
        if self.counts and (self.label is None or self.classes is None):
            raise UnfitTable("counts = true needs 'label' and 'classes'. Add both, or remove it")
        if self.class_weights is not None:
            self._check_weights(self.class_weights)

    def _check_weights(self, weights: tuple[float, ...]) -> None:
        if self.moments or self.counts:
            raise UnfitTable("class_weights cannot be combined with moments or counts. Remove one of them")
        if len(weights) != len(self.classes or ()) or not any(weights):
            raise UnfitTable(
                f"there are {len(weights)} class_weights and {len(self.classes or ())} classes; give each class a "
                "weight, not all of them 0"
            )

    @property
    def numbers(self) -> tuple[Feature, ...]:
        """The feature columns of numbers."""
        return tuple(feature for feature in self.features if feature.categories is None)

    @property
    def for_scales(self) -> bool:
        """Whether the columns are for a study of scales."""
        return self.moments or self.counts

    @property
    def width(self) -> int:
        """The number of the model's features that the columns become."""
        if not self.for_scales:
            return sum(feature.width for feature in self.features)
        classes = len(self.classes or ()) if self.counts else 0
        return classes + (2 * len(self.numbers) if self.moments else 0)


def read_columns(path: Path) -> AgreedColumns:
    """Read a file of agreed columns; raise :class:`InvalidSettings` for any other file."""
    where = "the file of columns"
    return converted(read_toml(path, where.removeprefix("the ")), AgreedColumns, f"{where} {path}: ")


def _refuse_repeated(names: tuple[str, ...], there: str) -> None:
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise UnfitTable(f"{there} '{twice}'; name each once")


LEAST_OF_A_CLASS = 1e-6
"""Minimum share of rows of a class; a smaller one is 0 in the single precision of updates."""

LEAST_SHARE = 1e-4
"""Minimum share of the variance in the mean square; below it, single precision leaves too few digits."""


def check_spec(spec: ModelSpec, columns: AgreedColumns) -> None:
    """Raise :class:`InvalidSettings` unless the spec is for a study of these columns' scales."""
    if spec.model != k_means.NAME or spec.settings.get("clusters") != 1 or spec.m != columns.width:
        raise InvalidSettings(
            f"model spec '{spec.name}' isn't a spec of scales: k-means with one cluster and {columns.width} weights, "
            "two for each number of the file of columns if it has 'moments', and one for each class if it has "
            "'counts'; name the study that belongs to it"
        )


def scaled(columns: AgreedColumns, means: FloatArray) -> AgreedColumns:
    """Return columns with means and deviations instead of their former scales, and with weights of classes.

    Args:
        columns: the columns that the institutions used to read their tables, with ``moments``, ``counts`` or both.
        means: mean of each number, then of each square, in the units of these columns, then of each class's indicator,
            shape (2 d + c,).

    Raises:
        FedpingError: a column has one value in all tables, or is too far from 0 to determine its deviation.
    """
    classes = len(columns.classes or ()) if columns.counts else 0
    moments, shares = means[: len(means) - classes], means[len(means) - classes :]
    return AgreedColumns(
        features=_scaled_features(columns, moments) if columns.moments else columns.features,
        label=columns.label,
        classes=columns.classes,
        class_weights=_weights(shares) if columns.counts else None,
    )


def _weights(shares: FloatArray) -> tuple[float, ...]:
    """Return the weight of each class, so that all classes that occur have the same total weight: 1 / (C share)."""
    some = shares > LEAST_OF_A_CLASS
    return tuple(np.where(some, 1.0 / (max(1, some.sum()) * np.where(some, shares, 1.0)), 0.0).tolist())


def _scaled_features(columns: AgreedColumns, means: FloatArray) -> tuple[Feature, ...]:
    mean, square = np.split(means, 2)
    variance = square - mean**2
    moments = iter(zip(columns.numbers, mean.tolist(), square.tolist(), variance.tolist(), strict=True))
    return tuple(feature if feature.categories is not None else _scaled(*next(moments)) for feature in columns.features)


def _scaled(feature: Feature, mean: float, square: float, variance: float) -> Feature:
    if not variance > LEAST_SHARE * square:
        around = feature.mean + feature.deviation * mean
        raise FedpingError(
            f"the column '{feature.name}' hardly varies around {around:.6g}, as far as one round can show. Remove it, "
            f"or give it mean = {around:.6g} in the file of columns, and ask again with another study"
        )
    return Feature(
        name=feature.name,
        mean=feature.mean + feature.deviation * mean,
        deviation=feature.deviation * variance**0.5,
    )


def as_toml(columns: AgreedColumns) -> str:
    """Return columns as the TOML file that :func:`read_columns` reads."""
    tables: dict[str, Any] = {}
    for name in ("label", "classes", "class_weights"):
        if (value := getattr(columns, name)) is not None:
            tables[name] = value
    return toml_text({**tables, "features": [_table_of(feature) for feature in columns.features]})


def _table_of(feature: Feature) -> dict[str, Any]:
    table: dict[str, Any] = {"name": feature.name}
    if feature.categories is not None:
        return table | {"categories": feature.categories}
    if (feature.mean, feature.deviation) == (0.0, 1.0):
        return table
    return table | {"mean": feature.mean, "deviation": feature.deviation}
