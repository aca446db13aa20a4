"""Additional inputs for comparing means: later outcomes, one cap per metric, and sums over clients.

`fedping.analysis.statistics.lift` defines the sums: for ratios of totals, and for the adjustment by the time before.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from fedping.analysis.statistics import ClientSums, ClientTotals, ValueCounts, cap_of
from fedping.analysis.study.columns import counted_values, on_grid
from fedping.analysis.study.later import LaterOutcomes, later_outcomes
from fedping.analysis.study.metrics import Means, Metric, Ratio, Window
from fedping.analysis.study.tally import Counts, MetricTally, StudyTally
from fedping.protocol.errors import InvalidSettings
from fedping.protocol.location import Place
from fedping.protocol.study import Study

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession


@dataclass(frozen=True)
class ClientRows:
    """The clients of a study on Spark.

    Attributes:
        session: the Spark session.
        place: the landing folder.
        study: the study.
        window: the window of the pings.
        clients: a row per client: client, arm (null if several), n, s0, ..., and first and last for later outcomes.
        before: a row per client with a counted ping of the time before: client, bn, b0, ...; None without such pings.
    """

    session: SparkSession
    place: Place
    study: Study
    window: Window
    clients: DataFrame
    before: DataFrame | None


def needed_for(metrics: Sequence[Metric], ratios: Sequence[Ratio]) -> tuple[list[Metric], list[Metric]]:
    """Return all metrics needed for some metrics and ratios: first those of pings, then those of later outcomes."""
    sides = (side for ratio in ratios for side in (ratio.top, ratio.by) if side is not None)
    needed = list(dict.fromkeys((*metrics, *sides)))
    return [one for one in needed if one.later is None], [one for one in needed if one.later is not None]


def with_means(
    tally: StudyTally, rows: ClientRows, asked: Sequence[Metric], means: Means, *, first_values: bool
) -> StudyTally:
    """Return the counts with later outcomes, caps, and the sums for ratios and adjustments.

    Args:
        tally: the counts of the metrics of pings.
        rows: the clients.
        asked: the metrics to compare.
        means: the settings of the comparison.
        first_values: whether interim looks need each client's first value, which for a later outcome is its only value.

    Raises:
        InvalidSettings: a cap would be 0.
    """
    of_pings, later = needed_for(asked, means.ratios)
    outcomes, totals = None, None
    try:
        if later:
            outcomes = later_outcomes(rows.session, rows.place, rows.study, rows.clients, later, rows.window)
            totals = outcomes.rows().persist()
            tally = _with_later(tally, outcomes, totals, first_values)
        if means.cap is not None:
            tally = replace(tally, caps=caps_of(asked, tally, means.cap))
        own = rows.clients.where("n > 0 and arm is not null")
        found = _by_arm(own, rows.before, _of_pings(of_pings, asked, means, tally))
        if totals is not None:
            found |= _by_arm(totals, rows.before, _of_later(later, asked, means, tally))
    finally:
        for frame in (totals, None if outcomes is None else outcomes.outcomes):
            if frame is not None:
                frame.unpersist()
    return _with_totals(tally, found, means)


def _with_later(tally: StudyTally, outcomes: LaterOutcomes, totals: DataFrame, first_values: bool) -> StudyTally:
    from pyspark.sql import functions as F  # noqa: N812

    frames = [
        counted_values(f"t{j}", totals.select("arm", on_grid(F.col(f"t{j}"), metric.digits).alias("value")))
        for j, metric in enumerate(outcomes.metrics)
    ]
    union = frames[0]
    for other in frames[1:]:
        union = union.unionAll(other)
    counts, names = Counts(union.toArrow()), list(tally.arms)
    none = ValueCounts.of([])
    arms = {}
    for number, name in enumerate(names):
        values = {metric.name: counts.of(f"t{j}", number) for j, metric in enumerate(outcomes.metrics)}
        added = {
            metric: MetricTally(none, each, ClientSums(each.n, 0, 0.0, 0.0, 0.0, 0.0), each if first_values else None)
            for metric, each in values.items()
        }
        arms[name] = replace(tally.arms[name], metrics={**tally.arms[name].metrics, **added})
    return replace(tally, arms=arms, later=outcomes.counts(names))


def caps_of(metrics: Sequence[Metric], tally: StudyTally, share: float) -> dict[str, float]:
    """Return each metric's cap, which replaces larger values; shares have no cap, since their values are 0 or 1.

    Raises:
        InvalidSettings: a cap would be 0.
    """
    caps = {}
    for metric in metrics:
        counts = ValueCounts.of([])
        for arm in tally.arms.values():
            counts = counts.merged(arm.metrics[metric.name].clients)
        if metric.is_share or not counts.n:
            continue
        cap = cap_of(counts, share)
        if cap == 0 and counts.values[-1] > 0:
            above = int(counts.counts[counts.values > 0].sum())
            raise InvalidSettings(
                f"--cap {share:g} would cap '{metric.name}' at 0, as only {above:,} of {counts.n:,} clients have more; "
                f"give a share above {_below_1(1 - above / counts.n)}"
            )
        caps[metric.name] = cap
    return caps


def _below_1(share: float) -> str:
    """Return a share below 1 as text, rounded up to four digits or to as many digits as keep it below 1."""
    for digits in range(4, 16):
        if (up := math.ceil(share * 10**digits * (1 - 1e-15)) / 10**digits) < 1:
            return f"{up:.{digits}g}"
    return str(share)


class _Totals(NamedTuple):
    """Named sums to compute: y, d, x, e of `fedping.analysis.statistics.lift`, and the value subtracted from y."""

    name: str
    columns: tuple[Column, Column, Column, Column]
    centre: float = 0.0


def _of_pings(metrics: Sequence[Metric], asked: Sequence[Metric], means: Means, tally: StudyTally) -> list[_Totals]:
    from pyspark.sql import functions as F  # noqa: N812

    at = {metric.name: i for i, metric in enumerate(metrics)}
    n, before = F.col("n").cast("double"), F.coalesce(F.col("bn"), F.lit(0.0))
    there = (before > 0).cast("double")
    found = []
    for metric in asked if means.adjust else ():
        if metric.name not in at:
            continue
        cap, centre = tally.caps.get(metric.name), _centre(tally, metric)
        y = _least(F.col(f"s{at[metric.name]}") / n, cap) - centre
        x = F.when(before > 0, _least(F.col(f"b{at[metric.name]}") / before, cap) - centre).otherwise(0.0)
        found.append(_Totals(metric.name, (y, F.lit(1.0), x, there), centre))
    for ratio in means.ratios:
        if ratio.top.name not in at:
            continue
        sides = [None if side is None else at[side.name] for side in (ratio.top, ratio.by)]
        (y, d), (x, e) = (
            [count if i is None else F.coalesce(F.col(f"{letter}{i}"), F.lit(0.0)) for i in sides]
            for letter, count in (("s", n), ("b", before))
        )
        found.append(_Totals(ratio.name, (y, d, x, e)))
    return found


def _of_later(metrics: Sequence[Metric], asked: Sequence[Metric], means: Means, tally: StudyTally) -> list[_Totals]:
    from pyspark.sql import functions as F  # noqa: N812

    at = {metric.name: i for i, metric in enumerate(metrics)}
    there = (F.coalesce(F.col("bn"), F.lit(0.0)) > 0).cast("double")
    found = []
    for metric in asked if means.adjust else ():
        if metric.name in at:
            cap, i = tally.caps.get(metric.name), at[metric.name]
            y, x = _least(F.col(f"t{i}"), cap), F.when(there > 0, _least(F.col(f"x{i}"), cap)).otherwise(0.0)
            found.append(_Totals(metric.name, (y, F.lit(1.0), x, there)))
    for ratio in means.ratios:
        if ratio.top.name in at and ratio.by is not None:
            top, by = at[ratio.top.name], at[ratio.by.name]
            found.append(_Totals(ratio.name, (F.col(f"t{top}"), F.col(f"t{by}"), F.col(f"x{top}"), F.col(f"x{by}"))))
    return found


def _least(value: Column, cap: float | None) -> Column:
    from pyspark.sql import functions as F  # noqa: N812

    return value if cap is None else F.when(value > cap, F.lit(cap)).otherwise(value)  # null stays null


def _centre(tally: StudyTally, metric: Metric) -> float:
    return next(iter(tally.arms.values())).metrics[metric.name].sums.centre


_PRODUCTS = [(i, j) for i in range(4) for j in range(i, 4)]


def _by_arm(
    clients: DataFrame, before: DataFrame | None, wanted: Sequence[_Totals]
) -> dict[tuple[str, int], ClientTotals]:
    """Return the sums by their name and by the number of the arm, over clients whose y is not null."""
    from pyspark.sql import functions as F  # noqa: N812

    if not wanted:
        return {}
    if before is None:
        missing = ["bn", *(name.replace("s", "b") for name in clients.columns if name[0] == "s" and name[1:].isdigit())]
        rows = clients.withColumns({name: F.lit(None).cast("double") for name in missing})
    else:
        rows = clients.join(before, "client", "left")
    named = {f"{letter}_{k}": one.columns[i] for k, one in enumerate(wanted) for i, letter in enumerate("ydxe")}
    rows = rows.select("arm", *(column.alias(name) for name, column in named.items()))
    columns = []
    for k in range(len(wanted)):
        there = F.col(f"y_{k}").isNotNull()
        each = [F.when(there, F.col(f"{letter}_{k}")) for letter in "ydxe"]
        columns += [F.count(each[0]).alias(f"n_{k}"), F.count_if(each[0] != 0).alias(f"o_{k}")]
        columns += [F.sum(one).alias(f"s{i}_{k}") for i, one in enumerate(each)]
        columns += [F.sum(each[i] * each[j]).alias(f"p{i}{j}_{k}") for i, j in _PRODUCTS]
    found = {}
    for row in rows.groupBy("arm").agg(*columns).toArrow().to_pylist():
        for k, one in enumerate(wanted):
            products = np.zeros((4, 4))
            for i, j in _PRODUCTS:
                products[i, j] = products[j, i] = row[f"p{i}{j}_{k}"] or 0.0
            sums = np.array([row[f"s{i}_{k}"] or 0.0 for i in range(4)])
            totals = ClientTotals(row[f"n_{k}"], row[f"o_{k}"], sums, products, one.centre)
            found[one.name, row["arm"]] = totals
    return found


def _with_totals(tally: StudyTally, found: Mapping[tuple[str, int], ClientTotals], means: Means) -> StudyTally:
    none = ClientTotals(0, 0, np.zeros(4), np.zeros((4, 4)))
    arms = {}
    for number, (name, arm) in enumerate(tally.arms.items()):
        metrics = {metric: replace(each, totals=found.get((metric, number))) for metric, each in arm.metrics.items()}
        ratios = {ratio.name: found.get((ratio.name, number), none) for ratio in means.ratios}
        arms[name] = replace(arm, metrics=metrics, ratios=ratios)
    return replace(tally, arms=arms, adjusts=means.adjust)


def only(tally: StudyTally, metrics: Sequence[Metric]) -> StudyTally:
    """Return the counts of only some metrics, in the given order."""
    arms = {
        name: replace(arm, metrics={metric.name: arm.metrics[metric.name] for metric in metrics})
        for name, arm in tally.arms.items()
    }
    return replace(tally, arms=arms)
