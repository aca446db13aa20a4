"""Scales that belong to no table: means, deviations and weights of classes over all rows, from a study of its own.

Its model is k-means of one cluster, whose centroid moves to the mean of an institution's rows in one local step of rate
1. A round at rate 1, weighted by examples, publishes the mean over everybody's rows. An institution's rows have each
number and its square there, so that one round tells the means and, from the mean squares, the deviations. What each
institution sends, and the operator sees, are its own means. A row is in one class, so that a column for each class,
which is 1 in its rows, has the class's share as its mean: counts of classes, and with them weights, in the same way.
"""

from __future__ import annotations

import json

import numpy as np

from fedping.client_sim.joining.columns import AgreedColumns, Feature
from fedping.client_sim.learning.batch import FloatArray
from fedping.client_sim.learning.models import k_means
from fedping.protocol.errors import FedpingError, InvalidSettings
from fedping.protocol.spec import ModelSpec

LEAST_OF_A_CLASS = 1e-6
"""Of all rows; a share that is less is none, up to the single precision of updates."""

LEAST_SHARE = 1e-4
"""Of a mean square that is deviation: of less, the single precision of updates leaves too few digits."""


def check_spec(spec: ModelSpec, columns: AgreedColumns) -> None:
    """Raise :class:`InvalidSettings` unless a spec is that of a study of the scales of columns."""
    if spec.model != k_means.NAME or spec.settings.get("clusters") != 1 or spec.m != columns.width:
        raise InvalidSettings(
            f"model spec '{spec.name}' is not one of scales, which is k-means of one cluster and {columns.width} "
            "weights, two for each number of the file of columns if it has 'moments', and one for each class if it has "
            "'counts'; name the study that it was made for"
        )


def scaled(columns: AgreedColumns, means: FloatArray) -> AgreedColumns:
    """Return columns with means and deviations in the place of what scaled them before, and with weights of classes.

    Args:
        columns: by which the institutions read their tables, with ``moments``, ``counts`` or both.
        means: of each number, then of each square, in the units of these columns, and of whether a row is of each
            class, shape (2 d + c,).

    Raises:
        FedpingError: a column has one value in all tables, or is too far from 0 for its deviation to be told.
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
    """Return the weight of each class, by which all classes that are there have as much together: 1 / (C share)."""
    some = shares > LEAST_OF_A_CLASS
    return tuple(np.where(some, 1.0 / (max(1, some.sum()) * np.where(some, shares, 1.0)), 0.0).tolist())


def _scaled_features(columns: AgreedColumns, means: FloatArray) -> tuple[Feature, ...]:
    mean, square = np.split(means, 2)
    variance = square - mean**2
    found = iter(zip(columns.numbers, mean.tolist(), square.tolist(), variance.tolist(), strict=True))
    return tuple(feature if feature.categories is not None else _scaled(*next(found)) for feature in columns.features)


def _scaled(feature: Feature, mean: float, square: float, variance: float) -> Feature:
    if not variance > LEAST_SHARE * square:
        around = feature.mean + feature.deviation * mean
        raise FedpingError(
            f"the column '{feature.name}' hardly varies around {around:.6g}, as far as one round can tell; leave it "
            f"out, or give it mean = {around:.6g} in the file of columns, and ask again with another study"
        )
    return Feature(
        name=feature.name,
        mean=feature.mean + feature.deviation * mean,
        deviation=feature.deviation * variance**0.5,
    )


def as_toml(columns: AgreedColumns) -> str:
    """Return columns as the TOML file that :func:`fedping.client_sim.joining.columns.read_columns` reads."""
    lines = []
    if columns.label is not None:
        lines.append(f"label = {_text(columns.label)}")
    if columns.classes is not None:
        lines.append(f"classes = {_texts(columns.classes)}")
    if columns.class_weights is not None:
        lines.append(f"class_weights = {list(columns.class_weights)}")
    for feature in columns.features:
        lines += ["", "[[features]]", f"name = {_text(feature.name)}"]
        if feature.categories is not None:
            lines.append(f"categories = {_texts(feature.categories)}")
        elif (feature.mean, feature.deviation) != (0.0, 1.0):
            lines += [f"mean = {feature.mean!r}", f"deviation = {feature.deviation!r}"]
    return "\n".join(lines).lstrip("\n") + "\n"


def _text(text: str) -> str:
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")  # which TOML wants to be escaped


def _texts(texts: tuple[str, ...]) -> str:
    return f"[{', '.join(map(_text, texts))}]"
