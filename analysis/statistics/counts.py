"""Value counts: the sorted distinct values of a metric in one arm, and how often each occurred.

They say all that a rank test needs to know, however many pings there were, and they add up: the counts of two files,
days or shards are merged into the counts of both.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class ValueCounts:
    """One arm's values of a metric.

    Attributes:
        values: the distinct values, ascending and finite, shape (k,).
        counts: how often each occurred, at least 1, shape (k,).
    """

    values: Floats
    counts: Integers

    def __post_init__(self) -> None:
        ascending = bool((np.diff(self.values) > 0).all()) and bool(np.isfinite(self.values).all())
        if self.values.shape != self.counts.shape or not ascending or (self.counts < 1).any():
            raise ValueError("value counts need finite, ascending, distinct values with a positive count each")

    @classmethod
    def of(cls, data: ArrayLike) -> ValueCounts:
        """Count the values of raw data, shape (n,)."""
        values, counts = np.unique(np.asarray(data, dtype=np.float64), return_counts=True)
        return cls(values, counts.astype(np.int64))

    @classmethod
    def summed(cls, values: ArrayLike, counts: ArrayLike) -> ValueCounts:
        """Make value counts of values in any order, which may repeat; their counts are added, and zeros dropped."""
        distinct, where = np.unique(np.asarray(values, dtype=np.float64), return_inverse=True)
        total = np.zeros(len(distinct), dtype=np.int64)
        np.add.at(total, where, np.asarray(counts, dtype=np.int64))
        return cls(distinct[total > 0], total[total > 0])

    def merged(self, other: ValueCounts) -> ValueCounts:
        """Return the counts of both: those of the data of one followed by the data of the other."""
        return self.summed(np.concatenate([self.values, other.values]), np.concatenate([self.counts, other.counts]))

    @property
    def n(self) -> int:
        """How many observations there are."""
        return int(self.counts.sum())

    @property
    def mean(self) -> float:
        """The mean; NaN of nothing."""
        return math.fsum((self.values * self.counts).tolist()) / self.n if len(self.values) else math.nan

    @property
    def variance(self) -> float:
        """The unbiased variance; NaN of fewer than two observations."""
        if self.n < 2:
            return math.nan
        return math.fsum((self.counts * (self.values - self.mean) ** 2).tolist()) / (self.n - 1)

    def quantile(self, q: float) -> float:
        """Return the smallest value that at least a share q of the observations does not exceed."""
        reached = np.searchsorted(np.cumsum(self.counts), math.ceil(q * self.n), side="left")
        return float(self.values[min(int(reached), len(self.values) - 1)])

    def to_mapping(self) -> Mapping[float, int]:
        """Return the counts by value."""
        return dict(zip(self.values.tolist(), self.counts.tolist(), strict=True))


def aligned(a: ValueCounts, b: ValueCounts) -> tuple[Floats, Integers, Integers]:
    """Return the distinct values of both arms, and each arm's counts of them (0 where it has none), shape (k,) each."""
    values = np.union1d(a.values, b.values)
    counts = np.zeros((2, len(values)), dtype=np.int64)
    counts[0, np.searchsorted(values, a.values)] = a.counts
    counts[1, np.searchsorted(values, b.values)] = b.counts
    return values, counts[0], counts[1]


def refuse_empty(*arms: ValueCounts) -> None:
    """Raise ValueError if an arm has no observation: there is nothing to compare then."""
    if any(len(arm.values) == 0 for arm in arms):
        raise ValueError("an arm has no observation; there is nothing to compare")
