"""Fragility: the smallest number of clients whose other values or absence would overturn a finding.

For a test of ranks, clients of either arm are moved beyond all values, starting with those that move the statistic
most. For a difference of means, where a single value moved far enough would overturn anything, clients are removed,
starting with those whose values pull the means furthest apart. The cost is a sort of the distinct values and a
bisection over the number of clients. Compare the fragility index (Walsh et al. 2014).
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from fedping.analysis.statistics.ranks import Floats, Integers, ValueCounts, aligned, mann_whitney


def rank_fragility(a: ValueCounts, b: ValueCounts, log10_level: float) -> int | None:
    """Return the number of clients whose changed values would raise the Mann-Whitney test's p above a level.

    Args:
        a: the values of the first arm.
        b: the values of the second arm.
        log10_level: log10 of the level at which the test rejects.

    Returns:
        The number; None if the test does not reject.
    """
    test = mann_whitney(a, b)
    if test.log10_p > log10_level:
        return None
    if test.twice_u > test.n_a * test.n_b:
        a, b = b, a  # the first arm is the one with smaller values
    values, ours, theirs = aligned(a, b)
    beyond = float(values[-1]) + max(1.0, abs(float(values[-1])))
    below = float(values[0]) - max(1.0, abs(float(values[0])))
    # Growth of U if a client of the first arm is moved above all values, or one of the second arm below all.
    gain_a = b.n - (np.cumsum(theirs) - theirs / 2)
    gain_b = np.cumsum(ours) - ours / 2

    def rejects(moved_a: Integers, moved_b: Integers) -> bool:
        first = ValueCounts.summed(np.append(values, beyond), np.append(ours - moved_a, moved_a.sum()))
        second = ValueCounts.summed(np.append(values, below), np.append(theirs - moved_b, moved_b.sum()))
        now = mann_whitney(first, second)
        return now.twice_u < now.n_a * now.n_b and now.log10_p <= log10_level

    return _fewest(gain_a, ours, gain_b, theirs, rejects)


def mean_fragility(a: ValueCounts, b: ValueCounts, shown: Callable[[ValueCounts, ValueCounts], bool]) -> int | None:
    """Return the number of clients whose removal would make a difference of means unproven.

    Args:
        a: the values of the first arm.
        b: the values of the second arm.
        shown: returns whether the difference is shown with given values of both arms.

    Returns:
        The number, at most all clients of an arm; None if the difference is not shown.
    """
    if not shown(a, b):
        return None
    values, ours, theirs = aligned(a, b)
    side = 1.0 if a.mean > b.mean else -1.0
    gain_a, gain_b = side * (values - a.mean) / a.n, -side * (values - b.mean) / b.n

    def still(removed_a: Integers, removed_b: Integers) -> bool:
        left = ours - removed_a, theirs - removed_b
        if min(int(left[0].sum()), int(left[1].sum())) == 0:
            return False
        return shown(*(ValueCounts.summed(values, counts) for counts in left))

    return _fewest(gain_a, ours, gain_b, theirs, still)


def _fewest(
    gain_a: Floats, ours: Integers, gain_b: Floats, theirs: Integers, holds: Callable[[Integers, Integers], bool]
) -> int:
    """Return the number of clients, taken in descending order of gain, after which a finding no longer holds."""
    order = np.argsort(-np.concatenate([gain_a, gain_b]), kind="stable")
    counts = np.concatenate([ours, theirs])[order]
    before = np.cumsum(counts) - counts

    def chosen(n: int) -> tuple[Integers, Integers]:
        taken = np.empty_like(counts)
        taken[order] = np.clip(n - before, 0, counts)
        return taken[: len(ours)], taken[len(ours) :]

    low, high = 0, int(counts.sum())
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if holds(*chosen(middle)) else (low, middle)
    return high
