"""What repetitions say together: a mean, and a band about it."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from msgspec import Struct

CONFIDENCE = 0.95


class Band(Struct, frozen=True):
    """The mean over ``seeds`` repetitions, and how far the 95 % t interval of that mean reaches to either side.

    ``half`` is null with fewer than two repetitions. Runs whose value is undefined are left out and not counted.
    """

    mean: float | None
    half: float | None
    seeds: int


def band(values: Sequence[float]) -> Band:
    """Return the band of the values of independent repetitions; NaN stands for undefined."""
    known = np.array([value for value in values if not np.isnan(value)], dtype=np.float64)
    n = len(known)
    if n == 0:
        return Band(None, None, 0)
    mean = float(known.mean())
    return Band(mean, t_quantile(n - 1) * float(known.std(ddof=1)) / n**0.5 if n > 1 else None, n)


def t_quantile(degrees: int) -> float:
    """Return the two-sided 95 % quantile of Student's t."""
    from scipy.special import stdtrit

    return float(stdtrit(degrees, 0.5 + CONFIDENCE / 2))
