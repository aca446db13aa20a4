"""What a tally is, and which metrics are better when they are higher."""

from __future__ import annotations

from typing import Any, Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray

FloatArray: TypeAlias = NDArray[np.float64]
Metrics: TypeAlias = dict[str, FloatArray]

HIGHER_IS_BETTER = frozenset({"accuracy", "precision", "recall", "f1", "auc", "r2", "top_choice"})
"""Of a metric for one class, such as ``recall_of_3``, the part before ``_of_`` counts; all others are better low."""


class Tally(Protocol):
    """Counts for one kind of prediction."""

    @property
    def headline(self) -> tuple[str, ...]:
        """The metrics that a table shows, the most telling first."""
        ...

    def counts(self, predictions: FloatArray, y: NDArray[Any], there: NDArray[np.bool_]) -> FloatArray:
        """Return each client's counts, shape (k, width); counts of several clients may be added.

        Args:
            predictions: as the model's ``predict`` returns them, shape (k, n) or (k, n, c).
            y: the targets, shape (k, n).
            there: which examples are there, and no padding, shape (k, n). Each counts once, whatever its weight.
        """
        ...

    def metrics(self, counts: FloatArray) -> Metrics:
        """Return the metrics of each row of counts, shape (..., width), by name; what is undefined is NaN."""
        ...


def higher_is_better(metric: str) -> bool:
    """Return whether a higher value of this metric is the better one."""
    return metric.partition("_of_")[0] in HIGHER_IS_BETTER


def better(metric: str, a: float, b: float) -> bool:
    """Return whether ``a`` is strictly better than ``b``; NaN is never better, and anything is better than NaN."""
    if np.isnan(a) or np.isnan(b):
        return bool(np.isnan(b) and not np.isnan(a))
    return a > b if higher_is_better(metric) else a < b


def ratio(part: FloatArray, whole: FloatArray, undefined: float = np.nan) -> FloatArray:
    """Return part / whole, and ``undefined`` where the whole is 0."""
    safe = np.where(whole == 0, 1.0, whole)
    return np.where(whole == 0, undefined, part / safe)
