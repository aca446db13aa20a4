"""Coverage of the intervals of a verdict's lifts, and probability of false alarms over repeated looks.

``python -m benchmarks.verdicts`` prints the table of docs/analysts.md, with 5,000 simulated studies per case.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable, Mapping
from typing import NamedTuple, TypeAlias

import numpy as np

from fedping.analysis.statistics import (
    ClientTotals,
    Level,
    ValueCounts,
    adjusted,
    level_of_mean,
    level_of_ratio,
    lift,
)
from fedping.analysis.statistics.looks import evidence

Study: TypeAlias = tuple[Level, Level, float]
"""The levels of both arms and their covariance."""


class Case(NamedTuple):
    """A kind of study: the function that draws one with n clients per arm, the true lift, and the true difference."""

    draw: Callable[[np.random.Generator, int], Study]
    lift: float
    difference: float


class Covered(NamedTuple):
    """Among studies with an interval, the shares whose interval covers the truth; and the share without an interval."""

    lift: float
    difference: float
    without: float


def _means(one: Callable[[np.random.Generator, int], np.ndarray], times: float, mean: float) -> Case:
    def draw(rng: np.random.Generator, n: int) -> Study:
        ours, theirs = times * one(rng, n), one(rng, n)
        return level_of_mean(ValueCounts.of(ours)), level_of_mean(ValueCounts.of(theirs)), 0.0

    return Case(draw, times - 1, (times - 1) * mean)


def _sums(rng: np.random.Generator, n: int) -> np.ndarray:
    return (rng.random(n) < 0.05) * rng.lognormal(0, 1.5, n)


def _ratio(rng: np.random.Generator, n: int) -> Study:
    def arm(times: float) -> Level:
        lists = rng.poisson(3, n) + 1
        chosen = rng.binomial(lists, times * rng.beta(2, 6, n))
        return level_of_ratio(ClientTotals.of(chosen, lists))

    return arm(1.0), arm(1.0), 0.0


def _adjusted(rng: np.random.Generator, n: int) -> Study:
    def arm(times: float) -> ClientTotals:
        habit, known = rng.gamma(1, 1, n), rng.random(n) < 0.7
        before = np.where(known, habit * rng.gamma(2, 0.5, n), 0)
        return ClientTotals.of(times * habit * rng.gamma(2, 0.5, n), 1, before, known)

    found = adjusted(arm(1.2), arm(1.0))
    assert found is not None
    return found[:3]


def _adjusted_ratio(rng: np.random.Generator, n: int) -> Study:
    def arm(times: float) -> ClientTotals:
        habit, now, then = rng.beta(2, 6, n), rng.poisson(3, n) + 1, rng.poisson(2, n)
        return ClientTotals.of(rng.binomial(now, np.minimum(1, times * habit)), now, rng.binomial(then, habit), then)

    found = adjusted(arm(1.0), arm(1.0))
    assert found is not None
    return found[:3]


HOURS = 48
"""Hours after a client's first list within which its purchase counts, in the cases of ripe and of all clients."""


def _sped_up(rng: np.random.Generator, n: int, *, ripe: bool) -> Study:
    """Draw a study, read 72 hours after its start, in which purchases come 3 hours sooner but not more often."""

    def arm(sooner: float) -> Level:
        first, delay = rng.uniform(0, 72, n), np.maximum(0.0, rng.gamma(2, 8, n) - sooner)
        bought = (rng.random(n) < 0.3) & (delay + sooner < HOURS)
        seen = bought & (first + delay < 72)
        here = first + HOURS <= 72 if ripe else np.ones(n, bool)
        return level_of_mean(ValueCounts.of(seen[here].astype(float)))

    return arm(3.0), arm(0.0), 0.0


CASES: Mapping[str, Case] = {
    "flags": _means(lambda rng, n: (rng.random(n) < 0.2).astype(float), 1.0, 0.2),
    "counts": _means(lambda rng, n: rng.poisson(0.7, n).astype(float), 1.0, 0.7),
    "gamma": _means(lambda rng, n: rng.gamma(1, 1, n), 1.2, 1.0),
    "sums": _means(_sums, 1.2, 0.05 * float(np.exp(1.5**2 / 2))),
    "ratio": Case(_ratio, 0.0, 0.0),
    "adjusted": Case(_adjusted, 0.2, 0.2),
    "adjusted ratio": Case(_adjusted_ratio, 0.0, 0.0),
    "ripe": Case(lambda rng, n: _sped_up(rng, n, ripe=True), 0.0, 0.0),
}

UNRIPE = Case(lambda rng, n: _sped_up(rng, n, ripe=False), 0.0, 0.0)
"""A comparison that verdicts don't make: all clients, ripe or not."""


def covered(case: Case, n: int, studies: int, seed: int) -> Covered:
    """Return the coverage of 95 % intervals in simulated studies with n clients in each arm."""
    rng = np.random.default_rng([seed, n])
    hits = np.zeros(2)
    known = 0
    for _ in range(studies):
        ours, theirs, covariance = case.draw(rng, n)
        result = lift(ours, theirs, 0.95, covariance)
        if result.reason is None:
            known += 1
            hits += (not result.relative.excludes(case.lift), not result.difference.excludes(case.difference))
    return Covered(*(hits / max(known, 1)).tolist(), 1 - known / studies)


def false_alarms(studies: int, clients: int, seed: int) -> float:
    """Return the share of studies without an effect in which any look, after each client of both arms, shows one."""
    rng = np.random.default_rng(seed)
    wrong, looks = 0, range(1, clients + 1)
    for _ in range(studies):
        values = rng.random((2, clients)) < rng.choice([0.5, 0.1])
        wrong += any(_excludes_0(*(ValueCounts.of(arm[:n].astype(float)) for arm in values)) for n in looks)
    return wrong / studies


def _excludes_0(a: ValueCounts, b: ValueCounts) -> bool:
    """Return whether the 95 % interval for repeated looks excludes 0, without computing its ends."""
    return max(evidence(a, b), evidence(b, a)) >= math.log(2 / 0.05)


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--studies", type=int, default=5000)
    parser.add_argument("--seed", type=int, default=2)
    given = parser.parse_args()
    print("| case | n | lift | difference | no interval |\n|---|---:|---:|---:|---:|")
    for name, case in {**CASES, "all clients, not only ripe": UNRIPE}.items():
        for n in (200, 1000, 5000):
            both = covered(case, n, given.studies, given.seed)
            cells = (f"{100 * share:.1f} %" for share in both)
            print(f"| {name} | {n:,} | {' | '.join(cells)} |", flush=True)
    print(f"\nlooks after each of 120 clients, flags: {100 * false_alarms(400, 120, given.seed):.1f} % false alarms")


if __name__ == "__main__":
    main()
