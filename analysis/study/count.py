"""Counts a study on Spark, with a single shuffle by client.

Each client's pings are brought together once. Then copies of a document are dropped and clients are summed up, and only
counts by value are sent to the driver. Ids are compared by 64-bit hashes: among ten million clients, two have the same
hash with a probability of 3 in a million, and a document is compared only with documents of the same client.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from fedping.analysis.study.columns import counted_values, dealt_arm, in_window, on_grid
from fedping.analysis.study.means import ClientRows, needed_for, only, with_means
from fedping.analysis.study.metrics import Means, Metric, NothingLanded, Window, window_folders
from fedping.analysis.study.reading import PARTITIONS_A_CORE, Reading, spark_types
from fedping.analysis.study.tally import (
    HOUR_MS,
    IN_STUDY,
    WEEKS,
    Ends,
    StudyTally,
    arrivals_of,
    centres_of,
    gathered,
    split_columns,
)
from fedping.protocol.enrolment import hash_assignment
from fedping.protocol.landing import OLDER
from fedping.protocol.location import Place, base_name
from fedping.protocol.metrics import Segment
from fedping.protocol.outcomes import CategoryOutcome, outcome_range
from fedping.protocol.ping import DocumentType
from fedping.protocol.study import Study

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession


COLUMNS = {
    "document_id": "binary",
    "client_id": "binary",
    "received_at": "timestamp",
    "model_version": "int",
    "study_variation": "string",
    "loss": "double",
}
"""The columns of a landed ping (`fedping.protocol.arrow`) that every analysis reads, with their types in Spark.

The columns of metrics and segments are added.
"""


BEFORE = Window(first=-1, last=0)
"""Versions with which all arms rank in the same way: the product's own order, and version 0, which starts with it."""


def count_study(
    session: SparkSession,
    landing: Place,
    study: Study,
    metrics: Sequence[Metric],
    window: Window | None = None,
    *,
    first_values: bool = False,
    parts: bool = False,
    means: Means | None = None,
) -> StudyTally:
    """Count the landed pings of a study.

    Args:
        session: the Spark session.
        landing: the landing folder.
        study: the study whose arms are counted.
        metrics: metrics counted for every ping with an example (a selection, for an interaction).
        window: the window of the pings; None for all pings.
        first_values: whether to count also each client's first value, for interim looks.
        parts: whether to count also by parts of the time, by parts of the clients' time in the study, and by its
            segments; later outcomes, which have no time of their own, are not counted by parts.
        means: further ratios of totals to count, and whether to adjust by the time before and to cap.

    Raises:
        FedpingError: nothing landed, or a file cannot be read.
        InvalidSettings: a cap would be 0.
    """
    window, means, asked = window or Window(), means or Means(), metrics
    metrics, later = needed_for(asked, means.ratios)
    folders = window_folders(landing, study, window)
    names = [arm.name for arm in study.arms]
    segments = study.segments if parts else ()
    reading = Reading(session, study.document)
    pings = _pings(reading, study, folders, metrics, segments, window)
    if window.settle or (parts and window != Window()):
        pings = _settled(pings.join(_beginnings(reading, study, landing), "client", "left"), window.settle)
    times = bool(later) or means.adjust
    ordered = first_values or bool(segments) or times
    every = _documents(pings, session.sparkContext.defaultParallelism, metrics, segments, ordered).persist()
    documents = every.where("left_out is null")
    clients = _clients(documents, metrics, segments, first_values, times=times).persist()
    try:
        with reading.checked():
            values = _values(documents, clients, metrics, first_values).toArrow()
        centres = centres_of(metrics, values)
        with reading.checked():
            sums = _sums(clients, centres).toArrow()
            left_out = _left_out(every, study)
        tally = gathered(names, metrics, values, sums, centres, first_values=first_values)
        before = _before(reading, study, landing, metrics, clients) if means.adjust else None
        rows = ClientRows(session, landing, study, window, clients, before)
        with reading.checked():
            tally = with_means(replace(tally, left_out=left_out), rows, asked, means, first_values=first_values)
        tails = 0.0 if study.limits is None else study.limits.tails
        tally = tally.winsorised(tails)
        if not parts:
            return only(tally, asked)
        hours = _hours_a_part([hour for arm in tally.arms.values() for hour in arm.by_hour])
        ends = [tally.arms[name].ends(metrics) for name in names] if tails else []
        with reading.checked():
            found = _parts(documents, clients, metrics, segments, hours, ends).toArrow()
        named = split_columns(names, metrics, found, [None, *(segment.name for segment in segments), IN_STUDY])
        tally = replace(tally, parts=named, hours=hours)
        if first_values:
            with reading.checked():
                arrived = _arrivals(clients, metrics, hours).toArrow()
            tally = replace(tally, arrivals=arrivals_of(names, metrics, arrived))
        return only(tally, asked)
    finally:
        every.unpersist()
        clients.unpersist()


PARTS_OF_TIME = 14
"""Maximum number of parts of a study's time, so that each part has pings and the figure is readable."""

_HOURS = (1, 2, 3, 6, 12, 24, 48, 24 * 7, 24 * 14, 24 * 28)


def _hours_a_part(hours: Sequence[int]) -> int:
    """Return the number of hours in each part of the time, from the hours with pings."""
    span = max(hours, default=0) - min(hours, default=0) + 1
    return next((each for each in _HOURS if span <= PARTS_OF_TIME * each), -(-span // PARTS_OF_TIME))


def _columns(document: DocumentType, metrics: Sequence[Metric], segments: Sequence[Segment]) -> dict[str, str]:
    """Return the columns that are read from a ping, with their types in Spark."""
    wanted = {
        *document.counted_by,
        *(metric.of for metric in metrics),
        *(segment.column for segment in segments),
    }
    return {**COLUMNS, **spark_types(document, sorted(wanted - COLUMNS.keys()))}


def _pings(
    reading: Reading,
    study: Study,
    folders: Mapping[Place, Sequence[Place]],
    metrics: Sequence[Metric],
    segments: Sequence[Segment],
    window: Window,
) -> DataFrame:
    """Return a row for each landed ping: client, document, arm (its number), received (ms), selected, v0, ..., g0, ...

    The column ``left_out`` holds the reason for excluding a ping, or null.
    """
    from pyspark.sql import functions as F  # noqa: N812 - as all of Spark's documentation calls it

    document = study.document
    number = F.lit(None).cast("int")
    for i, arm in enumerate(study.arms):
        number = F.when(F.col("study_variation") == arm.name, i).otherwise(number)
    counted, counting = F.coalesce(*map(F.col, document.counted_by)), document.counted_by[0]
    selected = document.examples(counted).cast("int") > 0
    most = None if study.limits is None else study.limits.examples
    believed = counted if most is None else F.least(counted, F.lit(most))
    loss = F.col("loss")
    if study.limits is not None and study.limits.clip_loss is not None:
        least, greatest = map(F.lit, study.limits.clip_loss)
        loss = F.least(F.greatest(loss, least), greatest)
    counts_as = {counting: believed, "loss": loss, **_reported(document)}
    values = [_value(metric, counts_as.get(metric.of, F.col(metric.of))) for metric in metrics]
    taken = [F.when(selected, value) for value in values]
    landed = reading.read(folders, _columns(document, metrics, segments))
    if any(window.divides(OLDER) and base_name(folder) == f"iteration={OLDER}" for folder in folders):
        landed = landed.where(in_window(window))
    rows = landed.select(
        F.xxhash64("client_id").alias("client"),
        F.xxhash64("document_id").alias("document"),
        number.alias("arm"),
        F.unix_millis("received_at").alias("received"),
        selected.alias("selected"),
        _reason(study, number, counted).alias("left_out"),
        *(value.alias(f"v{i}") for i, value in enumerate(taken)),
        *(_group(segment).alias(f"g{j}") for j, segment in enumerate(segments)),
    )
    rows = rows.where(F.col("arm").isNotNull())
    rows = rows if window.since is None else rows.where(F.col("received") >= window.since)
    return rows if window.until is None else rows.where(F.col("received") < window.until)


def _reported(document: DocumentType) -> dict[str, Column]:
    """Return the columns of outcomes at the choice; a missing outcome counts as the allowed value nearest to 0."""
    from pyspark.sql import functions as F  # noqa: N812

    found = {}
    for outcome in document.outcomes:
        if isinstance(outcome, CategoryOutcome):
            found[outcome.name] = F.coalesce(F.col(outcome.name), F.lit(""))
        else:
            low, high = outcome_range(outcome)
            least = F.lit(min(max(0.0, low), high))
            found[outcome.name] = F.coalesce(F.col(outcome.name).cast("double"), least)
    return found


def _beginnings(reading: Reading, study: Study, landing: Place) -> DataFrame:
    """Return one row per client: the hour of its first ping in the whole study (``begun``), by the server's clock.

    A window covers only a part of the study, so all landed pings are read, in few columns.
    """
    from pyspark.sql import functions as F  # noqa: N812

    everything = Window()
    folders = window_folders(landing, study, everything)
    pings = _pings(reading, study, folders, (), (), everything).where("left_out is null")
    return pings.groupBy("client").agg(F.floor(F.min("received") / HOUR_MS).cast("int").alias("begun"))


def _settled(pings: DataFrame, days: int) -> DataFrame:
    """Return the pings after each client's first ``days`` days, counted from the hour of its first ping."""
    from pyspark.sql import functions as F  # noqa: N812

    return pings.where(F.col("received") >= (F.col("begun").cast("bigint") + 24 * days) * HOUR_MS) if days else pings


def _reason(study: Study, arm: Column, counted: Column) -> Column:
    """Return the reason for excluding a ping of an arm (by number), by the same rules as rounds; null to include it."""
    from pyspark.sql import functions as F  # noqa: N812

    reason, limits = F.lit(None).cast("string"), study.limits
    if limits is not None and limits.loss is not None:
        reason = F.when(~F.col("loss").between(*limits.loss), "beyond_limits").otherwise(reason)
    if limits is not None and limits.rank is not None:
        reason = F.when(counted > limits.rank, "beyond_limits").otherwise(reason)
    if (dealt := hash_assignment(study)) is not None:
        reason = F.when(~arm.eqNullSafe(dealt_arm(dealt)), "not_enrolled").otherwise(reason)
    return reason


def _value(metric: Metric, column: Column) -> Column:
    """Return a metric's value from its column."""
    if metric.at_most is not None:
        return (column <= metric.at_most).cast("int")
    return column if metric.equals is None else (column == metric.equals).cast("int")


def _group(segment: Segment) -> Column:
    """Return the position of a ping's group in the segment."""
    from pyspark.sql import functions as F  # noqa: N812

    column, number = F.col(segment.column), F.lit(len(segment.values))
    for i, value in enumerate(segment.values):
        number = F.when(column == value, i).otherwise(number)
    for cut in segment.cuts:
        number += (column >= cut).cast("int")
    return number


def _documents(
    pings: DataFrame, cores: int, metrics: Sequence[Metric], segments: Sequence[Segment], ordered: bool
) -> DataFrame:
    """Return one row per document; copies of a document are identical, so any of them is taken.

    An excluded document never replaces an included one: it counts as a separate document. Milliseconds and document ids
    take most of the memory, and are kept only if a client's pings have to be ordered.
    """
    from pyspark.sql import functions as F  # noqa: N812

    together = pings.repartition(PARTITIONS_A_CORE * cores, "client")
    kept = ["arm", "selected", *(f"v{i}" for i in range(len(metrics))), *(f"g{j}" for j in range(len(segments)))]
    kept += ["begun"] if "begun" in pings.columns else []
    received = F.min("received")
    columns = [
        F.count(F.lit(1)).alias("copies"),
        F.floor(received / HOUR_MS).cast("int").alias("hour"),
        *(F.min(name).alias(name) for name in kept),
    ]
    rows = together.groupBy("client", "document", "left_out").agg(*columns, *[received.alias("received")] * ordered)
    return rows if ordered else rows.drop("document")


def _before(
    reading: Reading, study: Study, landing: Place, metrics: Sequence[Metric], clients: DataFrame
) -> DataFrame | None:
    """Return a row (client, bn, b0, ...) per client with counted pings before version 1: their number and sums.

    For the given clients, only pings before their first one in the window count: a client that later has no version
    again was treated by then. None if no such ping has landed.
    """
    from pyspark.sql import functions as F  # noqa: N812

    try:
        folders = window_folders(landing, study, BEFORE)
    except NothingLanded:
        return None
    pings = _pings(reading, study, folders, metrics, (), BEFORE).where("left_out is null and selected")
    pings = pings.join(clients.select("client", "first"), "client").where("received < first")
    values = [f"v{i}" for i in range(len(metrics))]
    once = pings.groupBy("client", "document").agg(*(F.min(name).alias(name) for name in values), F.lit(1).alias("one"))
    sums = [F.sum(F.col(f"v{i}").cast("double")).alias(f"b{i}") for i in range(len(metrics))]
    return once.groupBy("client").agg(F.count("one").cast("double").alias("bn"), *sums)


def _clients(
    documents: DataFrame,
    metrics: Sequence[Metric],
    segments: Sequence[Segment],
    first_values: bool,
    *,
    times: bool = False,
) -> DataFrame:
    """Return a row per client: arm (null if several), pings, duplicates, n, since, begun, s0, ..., f0, ..., g0, ...

    ``n`` is the client's number of selections, ``since`` the hour of the first one, ``begun`` the hour of the client's
    first ping in the study; s0 and f0 are the sum and the first value of the first metric, and g0 is the group in the
    first segment. With ``times``, first and last are the times of the first and the last ping.
    """
    from pyspark.sql import functions as F  # noqa: N812

    measured = range(len(metrics))
    columns = [
        F.when(F.min("arm") == F.max("arm"), F.min("arm")).alias("arm"),
        F.count(F.lit(1)).alias("pings"),
        (F.sum("copies") - F.count(F.lit(1))).alias("duplicates"),
        F.count_if("selected").alias("n"),
        F.min(F.when(F.col("selected"), F.col("hour"))).alias("since"),
        F.min("begun" if "begun" in documents.columns else "hour").alias("begun"),
        *(F.sum(F.col(f"v{i}").cast("double")).alias(f"s{i}") for i in measured),
    ]
    # Milliseconds, then some bits of the document, so that two pings of the same millisecond are ordered too.
    order = F.col("received") * 2**20 + F.col("document").bitwiseAND(2**20 - 1)
    if first_values:
        columns += [F.min_by(f"v{i}", F.when(F.col("selected"), order)).alias(f"f{i}") for i in measured]
    columns += [F.min_by(f"g{j}", order).alias(f"g{j}") for j in range(len(segments))]
    columns += [F.min("received").alias("first"), F.max("received").alias("last")] if times else []
    return documents.groupBy("client").agg(*columns)


def _left_out(every: DataFrame, study: Study) -> dict[str, int]:
    """Return the number of excluded landed pings by reason, copies included."""
    from pyspark.sql import functions as F  # noqa: N812

    if hash_assignment(study) is None and study.limits is None:
        return {}
    rows = every.where("left_out is not null").groupBy("left_out").agg(F.sum("copies").alias("n"))
    return {row["left_out"]: row["n"] for row in sorted(rows.toArrow().to_pylist(), key=lambda row: row["left_out"])}


def _values(documents: DataFrame, clients: DataFrame, metrics: Sequence[Metric], first_values: bool) -> DataFrame:
    """Return rows (kind, arm, value, count) that count the values of metrics.

    Kind p0 is the first metric by ping, c0 by client, and f0 the clients' first value. Kind ``hours`` is all pings by
    hour, ``exposed`` the exposed clients by the hour of their first selection.
    """
    from pyspark.sql import functions as F  # noqa: N812

    selections, exposed = documents.where("selected"), clients.where("n > 0 and arm is not null")
    frames = [
        counted_values("hours", documents.select("arm", F.col("hour").cast("double").alias("value"))),
        counted_values("exposed", exposed.select("arm", F.col("since").cast("double").alias("value"))),
    ]
    for i, metric in enumerate(metrics):
        kinds = {f"p{i}": (selections, F.col(f"v{i}")), f"c{i}": (exposed, F.col(f"s{i}") / F.col("n"))}
        if first_values:
            kinds[f"f{i}"] = (exposed, F.col(f"f{i}"))
        for kind, (rows, value) in kinds.items():
            frames.append(counted_values(kind, rows.select("arm", on_grid(value, metric.digits).alias("value"))))
    union = frames[0]
    for other in frames[1:]:
        union = union.unionAll(other)
    return union


def _arrivals(clients: DataFrame, metrics: Sequence[Metric], hours: int) -> DataFrame:
    """Return rows (metric, number, arm, value, count): clients' first values by the part of the time of their arrival.

    ``metric`` is the metric's position, ``number`` the first hour of the part of the time.
    """
    from pyspark.sql import functions as F  # noqa: N812

    exposed = clients.where("n > 0 and arm is not null")
    number = (F.floor(F.col("since") / hours) * hours).cast("int").alias("number")
    frames = []
    for i, metric in enumerate(metrics):
        value = on_grid(F.col(f"f{i}"), metric.digits).alias("value")
        rows = exposed.select("arm", number, value).groupBy("number", "arm", "value")
        counted = rows.agg(F.count(F.lit(1)).alias("count"))
        frames.append(counted.select(F.lit(i).alias("metric"), "number", "arm", "value", "count"))
    union = frames[0]
    for other in frames[1:]:
        union = union.unionAll(other)
    return union


def _sums(clients: DataFrame, centres: Sequence[float]) -> DataFrame:
    """Return one row per arm (null for clients of several arms) with the sums over its clients.

    ``centres`` are the values, by metric, that are subtracted from each ping's value.
    """
    from pyspark.sql import functions as F  # noqa: N812

    n = F.col("n").cast("double")
    columns = [
        F.count(F.lit(1)).alias("clients"),
        F.sum("pings").alias("pings"),
        F.sum("duplicates").alias("duplicates"),
        F.count_if(F.col("n") > 0).alias("exposed"),
        F.sum("n").alias("n"),
        F.sum(n * n).alias("nn"),
    ]
    for i, centre in enumerate(centres):
        s = F.col(f"s{i}") if centre == 0 else F.col(f"s{i}") - centre * n
        columns += [F.sum(s).alias(f"s{i}"), F.sum(s * s).alias(f"ss{i}"), F.sum(s * n).alias(f"sn{i}")]
    return clients.groupBy("arm").agg(*columns)


def _parts(
    documents: DataFrame,
    clients: DataFrame,
    metrics: Sequence[Metric],
    segments: Sequence[Segment],
    hours: int,
    ends: Sequence[Ends],
) -> DataFrame:
    """Return rows (segment, number, arm, n, m0, v0, ...): moments of the clients' means in each part of the pings.

    Segment 0 is time, whose parts are numbered by their first hour; the last is the clients' own time in the study,
    numbered by weeks (`WEEKS`). ``ends`` are, by arm, the bounds to which clients' means in a part are moved; None for
    no bounds.
    """
    from pyspark.sql import functions as F  # noqa: N812

    measured = range(len(metrics))
    beginnings = clients.where("arm is not null").select("client", F.col("begun").alias("first_hour"))
    selections = documents.where("selected").join(beginnings, "client")
    week = F.floor((F.col("hour") - F.col("first_hour")) / (24 * 7))
    part = F.lit(None).cast("int")
    for start in reversed(WEEKS):
        part = F.coalesce(part, F.when(week >= start, start))

    def in_parts(number: Column) -> DataFrame:
        means = [F.avg(F.col(f"v{i}").cast("double")).alias(f"x{i}") for i in measured]
        return selections.groupBy("client", number.alias("number")).agg(F.min("arm").alias("arm"), *means)

    exposed = clients.where("n > 0 and arm is not null")
    means = [(F.col(f"s{i}") / F.col("n")).alias(f"x{i}") for i in measured]
    moments = _moments(in_parts((F.floor(F.col("hour") / hours) * hours).cast("int")), 0, metrics, ends)
    for j in range(len(segments)):
        rows = exposed.select("arm", F.col(f"g{j}").alias("number"), *means)
        moments = moments.unionAll(_moments(rows, j + 1, metrics, ends))
    return moments.unionAll(_moments(in_parts(part), len(segments) + 1, metrics, ends))


def _within(value: str, metric: int, ends: Sequence[Ends]) -> Column:
    """Return a client's value of a metric (given by number), moved to its arm's nearest bound if it is beyond."""
    from pyspark.sql import functions as F  # noqa: N812

    value_column = F.col(value)
    for arm, of_metrics in enumerate(ends):
        if (two := of_metrics[metric]) is not None:
            low, high = map(F.lit, two)
            value_column = F.when(F.col("arm") == arm, F.least(F.greatest(F.col(value), low), high)).otherwise(
                value_column
            )
    return value_column


def _moments(rows: DataFrame, segment: int, metrics: Sequence[Metric], ends: Sequence[Ends]) -> DataFrame:
    from pyspark.sql import functions as F  # noqa: N812

    columns = []
    rows = rows.withColumns({f"x{i}": _within(f"x{i}", i, ends) for i in range(len(metrics))})
    for i in range(len(metrics)):
        columns += [F.avg(f"x{i}").alias(f"m{i}"), F.var_samp(f"x{i}").alias(f"v{i}")]
    moments = rows.groupBy("number", "arm").agg(F.count(F.lit(1)).alias("n"), *columns)
    names = [f"{name}{i}" for i in range(len(metrics)) for name in "mv"]
    return moments.select(F.lit(segment).alias("segment"), "number", "arm", "n", *names)
