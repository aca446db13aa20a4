"""The counts made by Spark: a few numbers and value counts by arm, the input of every test and figure."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from fedping.analysis.statistics import ClientSums, ClientTotals, ValueCounts
from fedping.analysis.study.metrics import Metric

if TYPE_CHECKING:
    import pyarrow as pa


HOUR_MS = 3_600_000

IN_STUDY = "time in the study"
"""Name of the segment of parts of the clients' time in the study; declared names can't contain a blank."""

WEEKS = {0: "week 1", 1: "week 2", 2: "weeks 3 and 4", 4: "from week 5 on"}
"""The parts of a client's time in the study, by the number of weeks after its first ping at which they start.

The parts become longer because a personal model learns fastest at first, while ever fewer clients are left to measure.
"""

Ends: TypeAlias = "tuple[tuple[float, float] | None, ...]"
"""Bounds of clients' values by metric (minimum and maximum); None for no bounds."""


@dataclass(frozen=True)
class MetricTally:
    """The counts of a metric in an arm.

    Attributes:
        pings: the values of all pings.
        clients: one value per client, the mean over its pings.
        sums: sums over clients of their numbers of pings, sums of values, and products.
        first: each client's value in its first ping; None unless requested.
        untrimmed: the tally before it was winsorised; None if it was not.
        totals: the sums that an adjustment by the time before needs; None unless requested.

    A later outcome has no values of pings: ``pings`` is empty.
    """

    pings: ValueCounts
    clients: ValueCounts
    sums: ClientSums
    first: ValueCounts | None = None
    untrimmed: MetricTally | None = None
    totals: ClientTotals | None = None

    def winsorised(self, tails: float) -> MetricTally:
        """Return the tally with a share of clients winsorised at either end, so that no client alone sets the mean."""
        if not tails:
            return self
        first = None if self.first is None else self.first.winsorised(tails)
        return replace(self, clients=self.clients.winsorised(tails), first=first, untrimmed=self)


@dataclass(frozen=True)
class ArmTally:
    """The counts of an arm.

    Attributes:
        pings: number of pings, each document once.
        clients: number of clients that sent a ping.
        selections: number of pings with an example: interactions that ended with a selection, or pings of clients that
            had examples to learn from.
        exposed: number of clients that sent a ping with an example; they are compared.
        metrics: the counts of each metric, by name.
        by_hour: pings by the hour (since 1970) in which they were received, ascending.
        exposed_by_hour: the exposed clients by the hour of their first ping with an example in the window, ascending.
        ratios: the sums for each ratio of totals, by name.
    """

    pings: int
    clients: int
    selections: int
    exposed: int
    metrics: Mapping[str, MetricTally]
    by_hour: Mapping[int, int]
    exposed_by_hour: Mapping[int, int]
    ratios: Mapping[str, ClientTotals] = field(default_factory=dict)

    def ends(self, metrics: Sequence[Metric]) -> Ends:
        """Return the bounds of the clients' winsorised values, by metric."""
        each = (self.metrics[metric.name].clients.values for metric in metrics)
        return tuple((float(values[0]), float(values[-1])) if len(values) else None for values in each)


@dataclass(frozen=True)
class ClientMoments:
    """The clients' means of a metric in a part of the pings: their number, mean and unbiased variance."""

    n: int
    mean: float
    variance: float


@dataclass(frozen=True)
class Part:
    """A part of a study's pings: those of certain hours, or of one group of a segment.

    Attributes:
        segment: the segment's name; None for a part of the time, `IN_STUDY` for a part of the clients' own time in the
            study.
        number: for a group, its position in the segment; for a part of the time, its first hour since 1970; for a part
            of the clients' own time, a key of `WEEKS`.
        arms: the moments over the clients in this part, by arm and metric; arms without a client are left out.
    """

    segment: str | None
    number: int
    arms: Mapping[str, Mapping[str, ClientMoments]]


@dataclass(frozen=True)
class Arrivals:
    """The clients who arrived in a part of the time, counted by the values of their first ping with an example.

    Attributes:
        number: the part's first hour since 1970.
        arms: value counts by arm and metric; arms without a new client are left out.
    """

    number: int
    arms: Mapping[str, Mapping[str, ValueCounts]]


@dataclass(frozen=True)
class LaterCounts:
    """The numbers of counted and excluded later outcomes.

    Attributes:
        counted: outcomes that count, each document once.
        late: excluded outcomes that were received more than ``within`` after their client's first ping.
        before: outcomes received before their client's first ping.
        unlinked: outcomes of clients without any ping in the window, or with pings of several arms.
        other_arm: outcomes with another arm than their client's pings.
        unripe: outcomes of clients whose first ping is less than ``within`` ago.
        clients: by arm, the number of ripe clients, and of all clients.
    """

    counted: int
    late: int
    before: int
    unlinked: int
    other_arm: int
    unripe: int
    clients: Mapping[str, tuple[int, int]]


@dataclass(frozen=True)
class StudyTally:
    """The counts of a study; ``duplicates`` and ``mixed`` are excluded from all other counts.

    Attributes:
        arms: the counts of each arm by name, in the study's order.
        duplicates: copies of documents that had landed already.
        mixed: clients whose pings name more than one arm, so that their arm is unknown.
        parts: the parts of the time, then those of each segment, in order; empty unless requested.
        hours: number of hours in a part of the time.
        arrivals: the first values by part of the time, ascending; empty unless parts and first values were requested.
        left_out: numbers of excluded landed pings, by reason; reasons without pings are omitted.
        tails: the share of an arm's clients at either end whose values are winsorised; 0 for no winsorising.
        caps: the cap on values in lifts, by metric; empty unless requested.
        later: the numbers of counted and excluded later outcomes, by metric.
        adjusts: whether the sums for an adjustment by the time before version 1 were counted.
    """

    arms: Mapping[str, ArmTally]
    duplicates: int
    mixed: int
    parts: tuple[Part, ...] = ()
    hours: int = 1
    arrivals: tuple[Arrivals, ...] = ()
    left_out: Mapping[str, int] = field(default_factory=dict)
    tails: float = 0.0
    caps: Mapping[str, float] = field(default_factory=dict)
    later: Mapping[str, LaterCounts] = field(default_factory=dict)
    adjusts: bool = False

    def winsorised(self, tails: float) -> StudyTally:
        """Return the tally with every metric of every arm winsorised by client."""
        arms = {
            name: replace(arm, metrics={metric: each.winsorised(tails) for metric, each in arm.metrics.items()})
            for name, arm in self.arms.items()
        }
        return replace(self, arms=arms, tails=tails)


def gathered(
    arms: Sequence[str],
    metrics: Sequence[Metric],
    values: pa.Table,
    sums: pa.Table,
    centres: Sequence[float],
    *,
    first_values: bool,
) -> StudyTally:
    """Assemble a study's counts from Spark's tables.

    Args:
        arms: the names, in the order of the arms' numbers.
        metrics: the counted metrics.
        values: rows (kind, arm, value, count), see `fedping.analysis.study.count`.
        sums: one row per arm, and one without an arm for the clients with several arms.
        centres: the value, by metric, that was subtracted from each ping's value in ``sums``.
        first_values: whether ``values`` has each client's first value.
    """
    rows = {row["arm"]: row for row in sums.to_pylist()}
    counts = Counts(values)
    tallies = {}
    for number, name in enumerate(arms):
        row = rows.get(number, {})
        tallies[name] = ArmTally(
            pings=row.get("pings", 0),
            clients=row.get("clients", 0),
            selections=row.get("n", 0),
            exposed=row.get("exposed", 0),
            metrics={m.name: _metric(counts, row, i, number, centres[i], first_values) for i, m in enumerate(metrics)},
            by_hour=_by_hour(counts, "hours", number),
            exposed_by_hour=_by_hour(counts, "exposed", number),
        )
    duplicates = sum(row["duplicates"] for row in rows.values())
    return StudyTally(tallies, duplicates=duplicates, mixed=rows.get(None, {}).get("clients", 0))


class Counts:
    """The value counts of all kinds and arms."""

    def __init__(self, table: pa.Table) -> None:
        self._kinds = np.asarray(table.column("kind").to_pylist(), dtype=object)
        self._arms = table.column("arm").to_numpy()
        self._values = table.column("value").to_numpy()
        self._counts = table.column("count").to_numpy()

    def of(self, kind: str, arm: int | None) -> ValueCounts:
        """Return the counts of one kind in an arm, or in all arms if None."""
        here = (self._kinds == kind) & np.isfinite(self._values)
        here &= True if arm is None else self._arms == arm
        return ValueCounts.summed(self._values[here], self._counts[here])


def _by_hour(counts: Counts, kind: str, arm: int) -> dict[int, int]:
    return {int(hour): count for hour, count in counts.of(kind, arm).to_mapping().items()}


FAR = 1e3
"""Ratio of mean to standard deviation from which on the mean is subtracted from values before they are summed.

Of a double's sixteen digits, a sum of squares loses twice as many as this ratio has. Below this number, sums are bit
for bit those of earlier versions.
"""


def centres_of(metrics: Sequence[Metric], values: pa.Table) -> list[float]:
    """Return the number to subtract before summing, by metric: the mean of the pings' values if far from 0, else 0."""
    counts = Counts(values)
    return [_centre(counts.of(f"p{i}", None)) for i in range(len(metrics))]


def _centre(counts: ValueCounts) -> float:
    return counts.mean if counts.n > 1 and abs(counts.mean) > FAR * math.sqrt(counts.variance) else 0.0


def _metric(counts: Counts, row: dict[str, Any], i: int, arm: int, centre: float, first_values: bool) -> MetricTally:
    sums = ClientSums(
        clients=row.get("exposed", 0),
        pings=row.get("n", 0),
        total=row.get(f"s{i}") or 0.0,
        ss=row.get(f"ss{i}") or 0.0,
        sn=row.get(f"sn{i}") or 0.0,
        nn=row.get("nn") or 0.0,
        centre=centre,
    )
    first = counts.of(f"f{i}", arm) if first_values else None
    return MetricTally(counts.of(f"p{i}", arm), counts.of(f"c{i}", arm), sums, first)


def split_columns(
    arms: Sequence[str], metrics: Sequence[Metric], rows: pa.Table, segments: Sequence[str | None]
) -> tuple[Part, ...]:
    """Assemble the parts of a study from Spark's rows.

    Args:
        arms: the names, in the order of the arms' numbers.
        metrics: the counted metrics.
        rows: rows (segment, number, arm, n, m0, v0, ...), see `fedping.analysis.study.count`.
        segments: the names of the segments in the order of their numbers, with None for time.
    """
    parts_by_number: dict[tuple[int, int], dict[str, dict[str, ClientMoments]]] = {}
    for row in rows.to_pylist():
        moments = {
            metric.name: ClientMoments(row["n"], row[f"m{i}"], math.nan if row["n"] < 2 else row[f"v{i}"])
            for i, metric in enumerate(metrics)
        }
        parts_by_number.setdefault((row["segment"], row["number"]), {})[arms[row["arm"]]] = moments
    return tuple(
        Part(segments[segment], number, by_arm) for (segment, number), by_arm in sorted(parts_by_number.items())
    )


def arrivals_of(arms: Sequence[str], metrics: Sequence[Metric], rows: pa.Table) -> tuple[Arrivals, ...]:
    """Assemble the first values by part of the time from rows (metric, number, arm, value, count)."""
    found: dict[int, dict[str, dict[str, tuple[list[float], list[int]]]]] = {}
    for row in rows.to_pylist():
        if row["value"] is None or not math.isfinite(row["value"]):
            continue
        of_arm = found.setdefault(row["number"], {}).setdefault(arms[row["arm"]], {})
        values, counts = of_arm.setdefault(metrics[row["metric"]].name, ([], []))
        values.append(row["value"])
        counts.append(row["count"])
    return tuple(
        Arrivals(
            number,
            {
                arm: {name: ValueCounts.summed(values, counts) for name, (values, counts) in of_arm.items()}
                for arm, of_arm in by_arm.items()
            },
        )
        for number, by_arm in sorted(found.items())
    )
