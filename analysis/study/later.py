"""Counts of later outcomes on Spark, with one value per client: the total in the hours after its first ping.

A client is *ripe* for an outcome once the hours within which the outcome counts have passed since its first ping. Only
ripe clients are compared. Among other clients, earlier purchases would look like more purchases, and values still
change, which invalidates a sequence of looks. A ripe client without an outcome counts as 0. Times are times of receipt,
by the server's clock.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from fedping.analysis.study.columns import dealt_arm, in_window
from fedping.analysis.study.metrics import Metric, Window
from fedping.analysis.study.reading import PARTITIONS_A_CORE, Reading, spark_types
from fedping.analysis.study.tally import HOUR_MS, LaterCounts
from fedping.protocol.enrolment import hash_assignment
from fedping.protocol.landing import open_landing
from fedping.protocol.location import Place
from fedping.protocol.study import Study

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession


@dataclass(frozen=True)
class LaterOutcomes:
    """The landed later outcomes of a study, joined with their clients.

    Attributes:
        outcomes: a row per document: client, arm, received (ms), model_version, w0, ...; ``own`` (the number of the
            client's arm) and ``first`` (ms of the client's first ping in the window) are null without such a client.
        clients: a row per client that belongs to an arm: client, arm, first.
        metrics: the metrics, in the order of w0, ...
        window: the window.
        horizon: time up to which all received pings have landed, in Unix ms.
    """

    outcomes: DataFrame
    clients: DataFrame
    metrics: Sequence[Metric]
    window: Window
    horizon: int

    def rows(self) -> DataFrame:
        """Return a row (client, arm, t0, x0, ...) per client: its total (null unless ripe) and its earlier total."""
        from pyspark.sql import functions as F  # noqa: N812

        columns = []
        for j, metric in enumerate(self.metrics):
            gathered = F.max if metric.any else F.sum
            columns.append(gathered(F.when(self._in_time(metric), F.col(f"w{j}"))).alias(f"t{j}"))
            earlier = self._is_own() & self._before() & (F.col("model_version") <= 0)
            columns.append(gathered(F.when(earlier, F.col(f"w{j}"))).alias(f"x{j}"))
        totals = self.outcomes.groupBy("client").agg(*columns)
        rows = self.clients.join(totals, "client", "left")
        for j, metric in enumerate(self.metrics):
            total = F.coalesce(F.col(f"t{j}"), F.lit(0.0))
            rows = rows.withColumn(f"t{j}", F.when(self._is_ripe(metric), total))
            rows = rows.withColumn(f"x{j}", F.coalesce(F.col(f"x{j}"), F.lit(0.0)))
        return rows

    def counts(self, names: Sequence[str]) -> Mapping[str, LaterCounts]:
        """Return counted and excluded outcomes by metric; ``names`` are the arms' names."""
        from pyspark.sql import functions as F  # noqa: N812

        of_outcomes, of_clients = [], []
        for j, metric in enumerate(self.metrics):
            there = F.col(f"w{j}").isNotNull()
            for name, column in self._fates(metric).items():
                of_outcomes.append(F.count_if(there & column).alias(f"{name}{j}"))
            of_clients.append(F.count_if(self._is_ripe(metric)).alias(f"ripe{j}"))
        [row] = self.outcomes.agg(*of_outcomes).toArrow().to_pylist()
        by_arm = self.clients.groupBy("arm").agg(F.count(F.lit(1)).alias("all"), *of_clients).toArrow().to_pylist()
        arms = {each["arm"]: each for each in by_arm}
        return {
            metric.name: LaterCounts(
                **{name: row[f"{name}{j}"] for name in self._fates(metric)},
                clients={
                    name: (arms[i][f"ripe{j}"], arms[i]["all"]) if i in arms else (0, 0) for i, name in enumerate(names)
                },
            )
            for j, metric in enumerate(self.metrics)
        }

    def _fates(self, metric: Metric) -> dict[str, Column]:
        from pyspark.sql import functions as F  # noqa: N812

        known, own, ripe = F.col("first").isNotNull(), self._is_own(), self._is_ripe(metric)
        inside = known & own & in_window(self.window)
        return {
            "counted": inside & ripe & self._in_time(metric),
            "late": inside & ripe & (F.col("received") >= self._end(metric)),
            "before": known & own & (self._before() | ~in_window(self.window)),
            "unlinked": ~known,
            "other_arm": known & ~own,
            "unripe": inside & ~self._before() & ~ripe,
        }

    def _is_own(self) -> Column:
        from pyspark.sql import functions as F  # noqa: N812

        return F.col("arm").eqNullSafe(F.col("own"))

    def _before(self) -> Column:
        """Return whether an outcome came before the hour of its client's first ping, which may have been delayed."""
        from pyspark.sql import functions as F  # noqa: N812

        return F.col("received") < F.floor(F.col("first") / HOUR_MS) * HOUR_MS

    def _end(self, metric: Metric) -> Column:
        from pyspark.sql import functions as F  # noqa: N812

        return F.col("first") + (metric.later or 0) * HOUR_MS

    def _in_time(self, metric: Metric) -> Column:
        from pyspark.sql import functions as F  # noqa: N812

        timely = ~self._before() & (F.col("received") < self._end(metric))
        return self._is_own() & in_window(self.window) & timely

    def _is_ripe(self, metric: Metric) -> Column:
        return self._end(metric) <= self.horizon


def later_outcomes(
    session: SparkSession,
    place: Place,
    study: Study,
    clients: DataFrame,
    metrics: Sequence[Metric],
    window: Window,
) -> LaterOutcomes:
    """Return the later outcomes of a study's clients.

    Args:
        session: the Spark session.
        place: the landing folder.
        study: the study.
        clients: a row per client: client, arm (null if several), first and last (ms of its pings in the window).
        metrics: metrics of later outcomes.
        window: the window of the pings.

    Raises:
        FedpingError: a file cannot be read.
    """
    from pyspark.sql import functions as F  # noqa: N812

    document = study.later_outcomes
    assert document is not None
    reading = Reading(session, document)
    files = open_landing(place).outcome_files(study.name)
    names = ["document_id", "client_id", "received_at", "model_version", "study_variation"]
    columns = {**spark_types(document, sorted({metric.of for metric in metrics}))}
    columns |= dict(zip(names, ("binary", "binary", "timestamp", "int", "string"), strict=True))
    if files:
        landed = reading.read({place: files}, columns)
    else:
        landed = session.createDataFrame([], ", ".join(f"{name} {kind}" for name, kind in columns.items()))
    number = F.lit(None).cast("int")
    for i, arm in enumerate(study.arms):
        number = F.when(F.col("study_variation") == arm.name, i).otherwise(number)
    if (dealt := hash_assignment(study)) is not None:
        landed = landed.where(number.eqNullSafe(dealt_arm(dealt)))
    rows = landed.select(
        F.xxhash64("client_id").alias("client"),
        F.xxhash64("document_id").alias("document"),
        number.alias("arm"),
        "model_version",
        F.unix_millis("received_at").alias("received"),
        *(_value(metric).alias(f"w{j}") for j, metric in enumerate(metrics)),
    )
    kept = ["arm", "model_version", "received", *(f"w{j}" for j in range(len(metrics)))]
    partitions = PARTITIONS_A_CORE * session.sparkContext.defaultParallelism
    once = (
        rows.repartition(partitions, "client")
        .groupBy("client", "document")
        .agg(*(F.min(name).alias(name) for name in kept))
    )
    everybody = clients.where("arm is not null")
    own = everybody.select("client", F.col("arm").alias("own"), "first")
    joined = once.join(own, "client", "left").persist()
    with reading.checked():
        newest: list[dict[str, Any]] = joined.agg(F.max("received").alias("at")).toArrow().to_pylist()
        newest += everybody.agg(F.max("last").alias("at")).toArrow().to_pylist()
    latest = max((row["at"] for row in newest if row["at"] is not None), default=0)
    horizon = latest // HOUR_MS * HOUR_MS  # pings of the newest hour may not have landed yet
    if window.until is not None and latest >= window.until:
        horizon = window.until
    return LaterOutcomes(joined, everybody.select("client", "arm", "first"), metrics, window, horizon)


def _value(metric: Metric) -> Column:
    """Return the value of an outcome; null if a ping is about another outcome."""
    from pyspark.sql import functions as F  # noqa: N812

    column = F.col(metric.of)
    return (column if metric.equals is None else column == metric.equals).cast("double")
