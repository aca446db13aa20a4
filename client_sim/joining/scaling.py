"""Scales that belong to no table: means and deviations over all institutions' rows, from a study of its own.

Its model is k-means of one cluster, whose centroid moves to the mean of an institution's rows in one local step of rate
1. A round at rate 1, weighted by examples, publishes the mean over everybody's rows. An institution's rows have each
number and its square there, so that one round tells the means and, from the mean squares, the deviations. What each
institution sends, and the operator sees, are its own means.
"""

from __future__ import annotations

import json

import numpy as np

from fedping.client_sim.joining.columns import AgreedColumns, Feature
from fedping.client_sim.learning.batch import FloatArray
from fedping.client_sim.learning.models import k_means
from fedping.protocol.errors import FedpingError, InvalidSettings
from fedping.protocol.spec import ModelSpec

LEAST_SHARE = 1e-4
"""Of a mean square that is deviation: of less, the single precision of updates leaves too few digits."""


def check_spec(spec: ModelSpec, columns: AgreedColumns) -> None:
    """Raise :class:`InvalidSettings` unless a spec is that of a study of the scales of columns."""
    if spec.model != k_means.NAME or spec.settings.get("clusters") != 1 or spec.m != columns.width:
        raise InvalidSettings(
            f"model spec '{spec.name}' is not one of scales, which is k-means of one cluster and {columns.width} "
            "weights, two for each number of the file of columns; name the study that it was made for"
        )


def scaled(columns: AgreedColumns, means: FloatArray) -> AgreedColumns:
    """Return columns with means and deviations in the place of what scaled them before.

    Args:
        columns: by which the institutions read their tables, with ``moments``.
        means: of each number, then of each square, in the units of these columns, shape (2 d,).

    Raises:
        FedpingError: a column has one value in all tables, or is too far from 0 for its deviation to be told.
    """
    mean, square = np.split(means, 2)
    variance = square - mean**2
    found = iter(zip(columns.numbers, mean.tolist(), square.tolist(), variance.tolist(), strict=True))
    return AgreedColumns(
        features=tuple(
            feature if feature.categories is not None else _scaled(*next(found)) for feature in columns.features
        ),
        label=columns.label,
        classes=columns.classes,
    )


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
    for feature in columns.features:
        lines += ["", "[[features]]", f"name = {_text(feature.name)}"]
        if feature.categories is not None:
            lines.append(f"categories = {_texts(feature.categories)}")
        else:
            lines += [f"mean = {feature.mean!r}", f"deviation = {feature.deviation!r}"]
    return "\n".join(lines).lstrip("\n") + "\n"


def _text(text: str) -> str:
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")  # which TOML wants to be escaped


def _texts(texts: tuple[str, ...]) -> str:
    return f"[{', '.join(map(_text, texts))}]"
