"""Statistics of repetitions: a mean with a band around it, and how two variants differ with the same seeds."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import numpy as np
from msgspec import Struct

from fedping.experiments.laboratory.results.folder import Outcome

CONFIDENCE = 0.95


class Band(Struct, frozen=True):
    """The mean over ``seeds`` repetitions, and half the width of its 95 % t interval.

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


def paired_by_seed(
    ours: Iterable[Outcome], theirs: Iterable[Outcome], split: str, metric: str
) -> list[tuple[float, float]]:
    """Return pairs of a metric of both, one per seed: the means over the folds in which both have it."""
    return paired(ours, theirs, lambda one: one.final.get(split, {}).get(metric))


def paired(
    ours: Iterable[Outcome], theirs: Iterable[Outcome], value: Callable[[Outcome], float | None]
) -> list[tuple[float, float]]:
    """Return pairs of a value of both, one per seed: the means over the folds in which both have it."""
    others = {(other.seed, other.fold): other for other in theirs}
    by_seed: dict[int, list[tuple[float, float]]] = {}
    for one in ours:
        other = others.get((one.seed, one.fold))
        x, y = (None if each is None else value(each) for each in (one, other))
        if x is not None and y is not None:
            by_seed.setdefault(one.seed, []).append((x, y))
    return [(_mean([x for x, _ in some]), _mean([y for _, y in some])) for some in by_seed.values()]


def difference(pairs: list[tuple[float, float]]) -> Band:
    """Return the mean of b - a over the pairs (a, b), with its 95 % t interval."""
    return band([b - a for a, b in pairs])


def significant_pairs(apart: Band) -> bool:
    """Whether the interval of a difference excludes 0; never for a single pair, which has no interval."""
    return apart.half is not None and apart.mean is not None and abs(apart.mean) > apart.half


def _mean(values: list[float]) -> float:
    return sum(values) / len(values)
