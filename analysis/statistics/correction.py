"""Corrections for many tests: each keeps the chance of any false alarm among all of them below the level.

They work on decimal logarithms, because the p-values of large studies are smaller than a double can be.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Literal, TypeAlias

Correction: TypeAlias = Literal["bonferroni", "holm"]


def bonferroni(log10_p: Sequence[float]) -> list[float]:
    """Return log10 of each p-value times the number of tests, at most 0 (p = 1)."""
    return [min(0.0, one + math.log10(len(log10_p))) for one in log10_p]


def holm(log10_p: Sequence[float]) -> list[float]:
    """Return log10 of Holm's step-down adjusted p-values: never larger than Bonferroni's, with the same guarantee."""
    adjusted, reached = [0.0] * len(log10_p), -math.inf
    for step, i in enumerate(sorted(range(len(log10_p)), key=log10_p.__getitem__)):
        reached = max(reached, min(0.0, log10_p[i] + math.log10(len(log10_p) - step)))
        adjusted[i] = reached
    return adjusted


CORRECTIONS: Mapping[Correction, Callable[[Sequence[float]], list[float]]] = MappingProxyType(
    {"bonferroni": bonferroni, "holm": holm}
)
