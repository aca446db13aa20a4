"""The meaning of a feature weight: the property of an item that adds the weight once to its score."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from msgspec import Struct

from fedping.protocol.features import (
    FEATURES,
    Bucket,
    Category,
    Counts,
    Cross,
    Equal,
    Feature,
    Flag,
    Hashed,
    Number,
    Product,
    Spline,
    width,
)
from fedping.protocol.spec import ModelSpec

DIGITS = 4
"""Significant digits of the numbers in descriptions."""


class Unit(Struct, frozen=True, kw_only=True):
    """The meaning of a shown weight.

    Attributes:
        feature: the feature's name; ``place`` for an offset of a place, ``hidden`` for a weight of the hidden layer.
        kind: the feature's kind, or ``place`` or ``hidden`` as above.
        gains: the property of an item that adds the weight once to its score.
    """

    feature: str
    kind: str
    gains: str


class FeatureUnits(Struct, frozen=True, kw_only=True):
    """The meanings of a line's shown weights, in order, and the loss, which determines how scores count."""

    loss: str
    units: tuple[Unit, ...]


def units_of(spec: ModelSpec, positions: Sequence[int]) -> FeatureUnits | None:
    """Return the meanings of the weights at some positions; None for a model without features."""
    if spec.model != FEATURES:
        return None
    by_name = {feature.name: feature for feature in spec.features}
    return FeatureUnits(loss=spec.loss, units=tuple(_unit(spec, by_name, position) for position in positions))


def _unit(spec: ModelSpec, by_name: dict[str, Feature], position: int) -> Unit:
    layout = spec.layout
    for span in layout.spans:
        if span.at <= position < span.at + span.width:
            feature, at = span.feature, position - span.at
            kind = str(feature.__struct_config__.tag)
            return Unit(feature=feature.name, kind=kind, gains=_gains(feature, by_name, at))
    if layout.places <= position < layout.places + layout.offsets:
        return Unit(feature="place", kind="place", gains=f"place {position - layout.places + 2}, not the top")
    return Unit(feature="hidden", kind="hidden", gains="a value of the hidden layer")


def _gains(feature: Feature, by_name: dict[str, Feature], at: int) -> str:
    if isinstance(feature, Cross):
        one, other = (by_name[name] for name in feature.of)
        row, column = divmod(at, width(other, by_name))
        return f"{_gains(one, by_name, row)}; and {_gains(other, by_name, column)}"
    own = list(_own(feature)) if not isinstance(feature, Hashed) else []
    if isinstance(feature, Hashed):
        if at < feature.buckets:
            return f"a {feature.key} in bucket {at} of {feature.buckets:,}"
    elif at < len(own):
        return own[at]
    field = f"{feature.query} or {feature.item}" if isinstance(feature, Equal | Product) else feature.key
    return f"no {field}"


def _own(feature: Feature) -> Iterator[str]:
    """Yield descriptions of a feature's weights, without the weight for missing values."""
    match feature:
        case Number():
            yield f"{feature.key}: {_step(feature.center, feature.spread, feature.log)}"
        case Flag():
            yield f"{feature.key}: true"
        case Category(values=values, other=other):
            yield from (f"{feature.key}: {value}" for value in values)
            if other:
                yield f"{feature.key}: another text"
        case Bucket(cutoffs=cutoffs):
            yield from (f"{feature.key}: up to {_short(end)}" for end in cutoffs)
            yield f"{feature.key}: more than {_short(cutoffs[-1])}"
        case Spline(knots=knots):
            yield from (f"{feature.key}: {_short(knot)}" for knot in knots)
        case Counts(values=values):
            yield from (f"{feature.key}.{value}: {_step(0.0, feature.spread, feature.log)}" for value in values)
        case Equal():
            yield f"{feature.item} equal to the query's {feature.query}"
        case Product():
            times = f"{feature.item} times the query's {feature.query}"
            yield f"{times}: {_step(feature.center, feature.spread, False)}"


def _step(center: float, spread: float, log: bool) -> str:
    """Return, in words, the change of a field that adds its weight once: from ``center`` by ``spread``."""
    low, high = (math.expm1(each) if log else each for each in (center, center + spread))
    return f"{_short(high)} instead of {_short(low)}"


def _short(value: float) -> str:
    return f"{value:,.{DIGITS}g}" if abs(value) < 1e6 else f"{value:.{DIGITS}g}"
