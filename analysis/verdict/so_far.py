"""The effect so far: the result of an interim look at the end of each part of the time.

Each estimate is over the first values of the clients that had arrived by then, and its interval is valid at all looks.
The last estimate is the interim look itself.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from fedping.analysis.statistics import Estimate, ValueCounts
from fedping.analysis.study.metrics import Metric
from fedping.analysis.study.tally import Arrivals
from fedping.analysis.verdict.comparison import Comparison, sequence_of
from fedping.analysis.verdict.plan import Pair, Plan

MOST_COMPARISONS = 60
"""Maximum number of comparisons with a series, smallest p first, to bound the time for a study with many arms."""

MOST_EXACT = 28
"""Maximum number of exact intervals in all series; one takes 0.2 seconds, any other interval 0.1 milliseconds."""

EXACT_STEPS = 7
"""Number of steps in a series of exact intervals; the last step is the look itself."""


@dataclass(frozen=True)
class Step:
    """The effect so far, at the end of one part of the study's time.

    Attributes:
        hour: the first hour after the part, in hours since 1970.
        n: number of clients so far, in each arm.
        estimate: difference of the means of clients' first values, with an interval that is valid at all looks.
        percent: this difference in percent of the second arm's mean; None if that mean is 0.
    """

    hour: int
    n: tuple[int, int]
    estimate: Estimate
    percent: float | None


@dataclass(frozen=True)
class SoFar:
    """A comparison with its effect so far at the end of each part of the time."""

    metric: Metric
    pair: Pair
    steps: tuple[Step, ...]


def effects_so_far(
    plan: Plan, comparisons: Sequence[Comparison], arrivals: Sequence[Arrivals], hours: int
) -> tuple[SoFar, ...]:
    """Return the series of an interim look's comparisons; empty for any other plan.

    Later outcomes have no series, because their clients ripen at different times.

    Args:
        plan: the plan.
        comparisons: the plan's comparisons.
        arrivals: the clients' first values by part of the time.
        hours: number of hours in a part.
    """
    if not arrivals or not plan.interim:
        return ()
    chosen = sorted((one for one in comparisons if one.metric.later is None), key=lambda one: one.clients.test.log10_p)
    exact, found = 0, {}
    for one in chosen[:MOST_COMPARISONS]:
        every = 1
        if one.metric.bounds is not None or one.metric.wide is not None:
            every = -(-len(arrivals) // EXACT_STEPS)
            exact += -(-len(arrivals) // every)
            if exact > MOST_EXACT:
                continue
        steps = tuple(_steps(plan, one, arrivals, hours, every))
        found[(one.metric.name, one.pair)] = SoFar(one.metric, one.pair, steps)
    ordered = ((one.metric.name, one.pair) for one in comparisons)
    return tuple(found[key] for key in ordered if key in found)


def _steps(plan: Plan, one: Comparison, arrivals: Sequence[Arrivals], hours: int, every: int) -> Iterator[Step]:
    """Yield a step for each part of the time, or for each ``every``-th part, counted from the last."""
    nobody = ValueCounts.of([])
    a, b = nobody, nobody
    for left, part in zip(reversed(range(len(arrivals))), arrivals, strict=True):
        a, b = (
            before.merged(part.arms.get(arm, {}).get(one.metric.name, nobody))
            for before, arm in zip((a, b), one.pair, strict=True)
        )
        if a.n and b.n and left % every == 0:
            estimate, base = sequence_of(one.metric, a, b, plan), b.mean
            percent = 100 * estimate.value / abs(base) if base else None
            yield Step(part.number + hours, (a.n, b.n), estimate, percent)
