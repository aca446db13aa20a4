"""Smooth lines, as the thesis draws losses and early stopping uses them."""

from __future__ import annotations

import math
from collections.abc import Sequence

SMOOTHED = 5
"""How many iterations a smooth line is the mean of (thesis 7.5, figure 19)."""


def smoothed(values: Sequence[float], over: int = SMOOTHED) -> list[float]:
    """Return the mean of the last ``over`` values at every place, of fewer at the beginning.

    NaN values are left out; the mean of only NaN values is NaN.
    """
    return [_mean(values[max(0, i + 1 - over) : i + 1]) for i in range(len(values))]


def _mean(values: Sequence[float]) -> float:
    known = [value for value in values if not math.isnan(value)]
    return sum(known) / len(known) if known else math.nan
