"""Computes the values of many items from columns of fields, to the same bit as :mod:`.reference` for each item.

An item has few values other than 0, even with many weights. So an item has S slots, each with a value and the position
of its weight. Positions ascend within a feature; a slot with value 0 adds nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from fedping.client_sim.features import numbers, reference
from fedping.protocol.features import (
    LARGEST_VALUE,
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
    of_query,
    width,
)
from fedping.protocol.spec import ModelSpec

FloatArray: TypeAlias = NDArray[np.float64]
Column: TypeAlias = Sequence[Any] | NDArray[Any]
Columns: TypeAlias = Mapping[str, Column]
"""Columns of values by field; a field without a column is missing in all rows."""


class Slots(NamedTuple):
    """Positions and values of P items, each of shape (S, P)."""

    at: NDArray[np.intp]
    value: FloatArray


def encode(
    spec: ModelSpec, items: Columns, queries: Columns, item_of: NDArray[np.intp], query_of: NDArray[np.intp]
) -> Slots:
    """Return the values of P pairs of an item and a query.

    Args:
        spec: the spec.
        items: the fields of all items.
        queries: the fields of all queries.
        item_of: the item of each pair, shape (P,).
        query_of: the query of each pair, shape (P,).
    """
    by_name = {feature.name: feature for feature in spec.features}
    of_feature: dict[str, Slots] = {}

    def found(feature: Feature) -> Slots:
        if feature.name not in of_feature:
            of_feature[feature.name] = made(feature)
        return of_feature[feature.name]

    def made(feature: Feature) -> Slots:
        match feature:
            case Cross():
                one, other = (by_name[name] for name in feature.of)
                return _crossed(found(one), found(other), width(other, {}))
            case Equal() | Product():
                q, x = _taken(queries.get(feature.query), query_of), _taken(items.get(feature.item), item_of)
                return _of_both(feature, q, x, len(item_of))
        columns, rows = (queries, query_of) if of_query(feature) else (items, item_of)
        column = columns.get(feature.key)
        if column is None:
            return _with_missing(feature, _nothing(1, len(rows)), np.zeros(len(rows), np.bool_))
        slots = _of_field(feature, column)
        return Slots(slots.at[:, rows], slots.value[:, rows])

    every = [(span, found(span.feature)) for span in spec.layout.spans]
    return Slots(
        np.concatenate([span.at + slots.at for span, slots in every]),
        np.concatenate([slots.value for _, slots in every]),
    )


def _taken(column: Column | None, rows: NDArray[np.intp]) -> Column | None:
    if column is None or isinstance(column, np.ndarray):
        return None if column is None else column[rows]
    return [column[row] for row in rows.tolist()]


def _nothing(slots: int, count: int) -> Slots:
    return Slots(np.zeros((slots, count), np.intp), np.zeros((slots, count)))


def _with_missing(feature: Any, slots: Slots, there: NDArray[np.bool_]) -> Slots:
    """Return slots in which a missing value is 0 or, if the feature has one, takes the weight of missing values."""
    slots.value[:, ~there] = 0.0
    if feature.missing:
        slots.at[0, ~there] = width(feature, {}) - 1
        slots.value[0, ~there] = 1.0
    return slots


def _crossed(one: Slots, other: Slots, columns: int) -> Slots:
    at = one.at[:, None] * columns + other.at[None]
    value = numbers.single(one.value[:, None] * other.value[None])
    shape = (len(one.at) * len(other.at), at.shape[-1])
    return Slots(at.reshape(shape), value.reshape(shape))


def _of_field(feature: Any, column: Column) -> Slots:
    slots = _nothing(1, len(column))
    match feature:
        case Flag():
            flags = [reference.flag(x) for x in _listed(column)]
            slots.value[0] = [bool(x) for x in flags]
            return _with_missing(feature, slots, _there(flags))
        case Category() | Hashed():
            texts = [reference.text(x) for x in _listed(column)]
            place = _places(feature, texts)
            slots.at[0], slots.value[0] = np.maximum(place, 0), place >= 0
            return _with_missing(feature, slots, _there(texts))
        case Counts():
            return _counts(feature, column)
    x, there = numbers_of(column)
    match feature:
        case Number():
            x = _within(x, feature.low, feature.high)
            if feature.log:
                x = numbers.log1p(x)
            slots.value[0] = _scaled(x, feature.center, feature.spread)
        case Bucket():
            slots.at[0] = np.searchsorted(feature.cutoffs, x, side="left")
            slots.value[0] = 1.0
        case Spline():
            slots = _spline(np.array(feature.knots), x)
    return _with_missing(feature, slots, there)


def _there(column: Sequence[Any]) -> NDArray[np.bool_]:
    return np.array([x is not None for x in column], np.bool_)


def _listed(column: Column) -> Sequence[Any]:
    return column.tolist() if isinstance(column, np.ndarray) else column


def _places(feature: Category | Hashed, texts: Sequence[str | None]) -> NDArray[np.intp]:
    """Return the position of each text among the feature's values; -1 for other texts."""
    if isinstance(feature, Hashed):
        known = {x: reference.hashed(feature.name, x, feature.buckets) for x in {*texts} if x is not None}
        rest = -1
    else:
        known = {value: position for position, value in enumerate(feature.values)}
        rest = len(feature.values) if feature.other else -1
    return np.array([-1 if x is None else known.get(x, rest) for x in texts], np.intp)


def _counts(feature: Counts, column: Column) -> Slots:
    rows = _listed(column)
    slots = _nothing(len(feature.values), len(rows))
    slots.at[:] = np.arange(len(feature.values))[:, None]
    for position, text in enumerate(feature.values):
        x, there = numbers_of([row.get(text) if isinstance(row, Mapping) else None for row in rows])
        if feature.log:
            x = numbers.log1p(np.maximum(x, 0.0))
        slots.value[position] = np.where(there, _scaled(x, 0.0, feature.spread), 0.0)
    return _with_missing(feature, slots, np.array([isinstance(row, Mapping) for row in rows], np.bool_))


def _spline(knots: FloatArray, x: FloatArray) -> Slots:
    after = np.clip(np.searchsorted(knots, x, side="right"), 1, len(knots) - 1)
    t = (x - knots[after - 1]) / (knots[after] - knots[after - 1])
    t = np.where(x <= knots[0], 0.0, np.where(x >= knots[-1], 1.0, t))
    return Slots(np.stack([after - 1, after]), numbers.single(np.stack([1.0 - t, t])))


def _of_both(feature: Equal | Product, q: Column | None, x: Column | None, count: int) -> Slots:
    slots = _nothing(1, count)
    if q is None or x is None:
        return _with_missing(feature, slots, np.zeros(count, np.bool_))
    if isinstance(feature, Product):
        (one, q_there), (other, x_there) = numbers_of(q), numbers_of(x)
        with np.errstate(over="ignore"):
            product = _within(one * other, feature.low, feature.high)
            slots.value[0] = _scaled(product, feature.center, feature.spread)
        return _with_missing(feature, slots, q_there & x_there)
    pairs = [reference.is_equal(a, b) for a, b in zip(_listed(q), _listed(x), strict=True)]
    slots.value[0] = [bool(pair) for pair in pairs]
    return _with_missing(feature, slots, _there(pairs))


def numbers_of(column: Column) -> tuple[FloatArray, NDArray[np.bool_]]:
    """Return a column's numbers, with 0 for other values, and whether each value is a number."""
    if isinstance(column, np.ndarray) and column.dtype.kind in "iuf":
        x = column.astype(np.float64)
        there = np.isfinite(x)
    elif {type(each) for each in column} <= {float, type(None)}:
        x = np.array(column, np.float64)  # None becomes NaN
        there = np.isfinite(x)
    else:
        found = [reference.number(each) for each in _listed(column)]
        there = _there(found)
        x = np.array([each or 0.0 for each in found])
    return np.where(there, x, 0.0), there


def _within(x: FloatArray, low: float | None, high: float | None) -> FloatArray:
    if low is not None:
        x = np.where(x < low, low, x)
    return x if high is None else np.where(x > high, high, x)


def _scaled(x: FloatArray, center: float, spread: float) -> FloatArray:
    with np.errstate(over="ignore"):
        return numbers.single(_within((x - center) / spread, -LARGEST_VALUE, LARGEST_VALUE))
