"""The array types of the ranking models, and two lookups that they share.

There are millions of visits, but only a few kinds of visits and intervals of age. So values that depend on the weights
are computed once per (interval, kind) in a small table, and each visit only looks up a row.
"""

from __future__ import annotations

from typing import Any, TypeAlias, TypeVar

import numpy as np
from numpy.typing import NDArray

FloatArray: TypeAlias = NDArray[np.float64]
IntArray: TypeAlias = NDArray[np.integer[Any]]
BoolArray: TypeAlias = NDArray[np.bool_]
Rows: TypeAlias = slice | NDArray[np.intp]
"""Rows of a table: a slice if they are contiguous (no copy is made), otherwise their indices."""

Float = TypeVar("Float", np.float32, np.float64)

_INT32 = np.iinfo(np.int32)


def sum_rows(table: NDArray[Float], codes: NDArray[np.intp]) -> NDArray[Float]:
    """Return each page's sum of table rows, one row per visit.

    The sum runs in the order of the visits and in the table's own precision, because the browser's float32 sum depends
    on both.

    Args:
        table: shape (R, K).
        codes: a row of the table per visit, shape (P, V), V at least 1.

    Returns:
        Shape (P, K), of the table's dtype.
    """
    by_visit = np.ascontiguousarray(codes.T)
    total: NDArray[Float] = np.take(table, by_visit[0], axis=0)
    looked_up = np.empty_like(total)
    for row in by_visit[1:]:
        np.take(table, row, axis=0, out=looked_up, mode="clip")
        total += looked_up
    return total


def whole_thresholds(cutoffs: FloatArray) -> NDArray[np.int32]:
    """Return the cutoffs as whole days for whole ages: age <= cutoff exactly where age <= floor(cutoff)."""
    return np.clip(np.floor(cutoffs), _INT32.min, _INT32.max).astype(np.int32)


def intervals(ages: IntArray, thresholds: IntArray) -> NDArray[np.intp]:
    """Return the number of ascending thresholds below each age; an age equal to a threshold is not beyond it.

    It equals ``np.searchsorted(thresholds, ages)``, but is several times as fast for a dozen thresholds.
    """
    beyond = np.zeros(ages.shape, dtype=np.uint8 if len(thresholds) < 256 else np.uint32)
    for threshold in thresholds:
        beyond += ages > threshold
    return beyond.astype(np.intp)
