"""Moving averages of a curve, with which the thesis plots losses and early stopping compares them."""

from __future__ import annotations

import math
from collections.abc import Sequence

SMOOTHED = 5
"""Number of iterations in a moving average (thesis 7.5, figure 19)."""


def smoothed(values: Sequence[float], over: int = SMOOTHED) -> list[float]:
    """Return, for each position, the mean of the last ``over`` values, or of fewer at the beginning.

    NaN values are left out; the mean of only NaN values is NaN.
    """
    return [_mean(values[max(0, i + 1 - over) : i + 1]) for i in range(len(values))]


def _mean(values: Sequence[float]) -> float:
    known = [value for value in values if not math.isnan(value)]
    return sum(known) / len(known) if known else math.nan
