"""Counting a study on Spark: one shuffle by client settles everything about one client.

Pings are brought together by client once. There, copies of a document are dropped and clients are summed up; from both
only counts by value travel to the driver. Ids are compared by 64-bit hashes: among ten million clients the chance that
any two are mistaken for one is 3 in a million, and a document is only compared with those of its client.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from fedping.analysis.study.metrics import Metric, Window, window_folders
from fedping.analysis.study.tally import HOUR_MS, IN_STUDY, WEEKS, Ends, StudyTally, centres_of, gathered, split_columns
from fedping.protocol.arrow import landed_schema
from fedping.protocol.enrolment import Assignment, hash_assignment
from fedping.protocol.errors import FedpingError
from fedping.protocol.landed_file import open_pings, printable
from fedping.protocol.landing import OLDER
from fedping.protocol.location import Place, base_name
from fedping.protocol.metrics import Segment
from fedping.protocol.outcomes import CategoryOutcome, Outcome, outcome_range
from fedping.protocol.ping import DocumentType, type_of_study
from fedping.protocol.study import Study

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import Column, DataFrame, SparkSession


PARTITIONS_A_CORE = 4
"""Partitions of the shuffle by client: enough that one fits in a task's memory, few enough that none is tiny."""

COLUMNS = {
    "document_id": "binary",
    "client_id": "binary",
    "received_at": "timestamp",
    "model_version": "int",
    "study_variation": "string",
    "loss": "double",
}
"""The columns of a landed ping (`fedping.protocol.arrow`) that every analysis reads, with Spark's names of their types.

The columns of metrics and segments are added.
"""

_TYPES = {
    "int8": "tinyint",
    "int32": "int",
    "int64": "bigint",
    "float": "float",
    "double": "double",
    "bool": "boolean",
    "dictionary<values=string, indices=int32, ordered=0>": "string",
}
"""Spark's names of types by Arrow's."""


def count_study(
    session: SparkSession,
    landing: Place,
    study: Study,
    metrics: Sequence[Metric],
    window: Window | None = None,
    *,
    first_values: bool = False,
    parts: bool = False,
) -> StudyTally:
    """Count the landed pings of a study.

    Args:
        session: the Spark session.
        landing: the landing folder.
        study: the study whose arms are counted.
        metrics: what to count for every ping with an example (a selection, for an interaction).
        window: which pings; None for all.
        first_values: whether to count each client's first value too, for interim looks.
        parts: whether to count parts of the time, of the clients' time in the study, and of its segments too.

    Raises:
        FedpingError: nothing landed, or a file cannot be read.
    """
    window = window or Window()
    folders = window_folders(landing, study, window)
    names = [arm.name for arm in study.arms]
    segments = study.segments if parts else ()
    reading = _Reading(session, study.document)
    pings = _pings(reading, study, folders, metrics, segments, window)
    if window.settle or (parts and window != Window()):
        pings = _settled(pings.join(_beginnings(reading, study, landing), "client", "left"), window.settle)
    ordered = first_values or bool(segments)
    every = _documents(pings, session.sparkContext.defaultParallelism, metrics, segments, ordered).persist()
    documents = every.where("left_out is null")
    clients = _clients(documents, metrics, segments, first_values).persist()
    try:
        with reading.checked():
            values = _values(documents, clients, metrics, first_values).toArrow()
        centres = centres_of(metrics, values)
        with reading.checked():
            sums = _sums(clients, centres).toArrow()
            left_out = _left_out(every, study)
        tally = gathered(names, metrics, values, sums, centres, first_values=first_values)
        tally = replace(tally, left_out=left_out)
        tails = 0.0 if study.limits is None else study.limits.tails
        tally = tally.winsorised(tails)
        if not parts:
            return tally
        hours = _hours_a_part([hour for arm in tally.arms.values() for hour in arm.by_hour])
        ends = [tally.arms[name].ends(metrics) for name in names] if tails else []
        with reading.checked():
            rows = _parts(documents, clients, metrics, segments, hours, ends).toArrow()
        named = split_columns(names, metrics, rows, [None, *(segment.name for segment in segments), IN_STUDY])
        return replace(tally, parts=named, hours=hours)
    finally:
        every.unpersist()
        clients.unpersist()


PARTS_OF_TIME = 14
"""The most parts that a study's time is divided into, so that each has pings and their figure is readable."""

_HOURS = (1, 2, 3, 6, 12, 24, 48, 24 * 7, 24 * 14, 24 * 28)


def _hours_a_part(hours: Sequence[int]) -> int:
    """Return the number of hours per part of the time, from the hours in which there were pings."""
    span = max(hours, default=0) - min(hours, default=0) + 1
    return next((each for each in _HOURS if span <= PARTS_OF_TIME * each), -(-span // PARTS_OF_TIME))


def _columns(document: DocumentType, metrics: Sequence[Metric], segments: Sequence[Segment]) -> dict[str, str]:
    """Return the columns read from a ping, with Spark's types."""
    wanted = {
        *document.counted_by,
        *(metric.of for metric in metrics),
        *(segment.column for segment in segments),
    }
    schema = landed_schema(document)
    return {**COLUMNS, **{name: _TYPES[str(schema.field(name).type)] for name in sorted(wanted - COLUMNS.keys())}}


def _pings(
    reading: _Reading,
    study: Study,
    folders: Mapping[Place, Sequence[Place]],
    metrics: Sequence[Metric],
    segments: Sequence[Segment],
    window: Window,
) -> DataFrame:
    """Return a row for each landed ping: client, document, arm (its number), received (ms), selected, v0, ..., g0, ...

    The column ``left_out`` has the name of the reason for which a ping is left out, or null.
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
        landed = landed.where(_in_window(window))
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
    """Return the columns of outcomes at the choice as they count; one that is left out counts as nearest to 0."""
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


_GLOB = re.compile(r"[][{}*?\\]")
"""Characters of a path that Spark would take for a pattern."""


class _Reading:
    """Reads landed files for Spark: the very files that rounds list, and as rounds verify them.

    Files of a folder are verified here and then read by the JVM, which is faster. For a bucket the JVM would need a
    connector and a key, so Python workers read it. There a file that cannot be read ends its task without an exception,
    which Spark would retry and wrap in a Java stack trace.
    """

    def __init__(self, session: SparkSession, document: DocumentType) -> None:
        from pyspark.accumulators import AccumulatorParam

        class Joined(AccumulatorParam[list[tuple[str, FedpingError]]]):
            def zero(self, value: list[tuple[str, FedpingError]]) -> list[tuple[str, FedpingError]]:
                return []

            def addInPlace(  # noqa: N802 - as Spark calls it
                self, value1: list[tuple[str, FedpingError]], value2: list[tuple[str, FedpingError]]
            ) -> list[tuple[str, FedpingError]]:
                return [*value1, *value2]

        self._session, self._document = session, document
        self._errors = session.sparkContext.accumulator([], Joined())
        self._verified: list[tuple[Sequence[Path], Sequence[str]]] = []

    def read(self, folders: Mapping[Place, Sequence[Place]], columns: Mapping[str, str]) -> DataFrame:
        """Return some columns of landed files; :meth:`checked` raises after an action if a file was unreadable.

        Raises:
            FedpingError: a file of a folder cannot be read, or is none of landed pings.
        """
        files = list(chain.from_iterable(folders.values()))
        schema = ", ".join(f"{name} {kind}" for name, kind in columns.items())
        local = [file for file in files if isinstance(file, Path) and printable(file) == str(file)]
        if len(local) == len(files):
            for file in local:
                open_pings(file, self._document, columns).verify(list(columns))
            self._verified.append((local, list(columns)))
            reader = self._session.read.schema(schema).option("parquet.page.verify-checksum.enabled", "true")
            with _listed_here(self._session):
                return reader.parquet(*(_GLOB.sub(r"\\\g<0>", str(file)) for file in local))
        tasks = min(len(files), PARTITIONS_A_CORE * self._session.sparkContext.defaultParallelism)
        named = self._session.createDataFrame([(str(file),) for file in files], "file string").repartition(tasks)
        return named.mapInArrow(_reads(list(columns), _declared(self._document), self._errors.add), schema)

    @contextmanager
    def checked(self) -> Iterator[None]:
        """Raise what a file could not be read for, after the actions of a block or in place of Spark's own error."""
        from py4j.protocol import Py4JJavaError  # type: ignore[import-untyped]
        from pyspark.errors import PySparkException

        try:
            yield
        except (Py4JJavaError, PySparkException):
            for files, columns in self._verified:
                for file in files:
                    landed = open_pings(file, self._document, columns)
                    there = set(landed.footer.schema.names)
                    for _ in landed.batches([name for name in columns if name in there]):
                        pass
            raise
        if errors := sorted(self._errors.value, key=lambda each: each[0].split("/")):
            raise errors[0][1]


@contextmanager
def _listed_here(session: SparkSession) -> Iterator[None]:
    """Have Spark list many files here inside, and not by a job with a task for each; the session's setting returns."""
    setting = "spark.sql.sources.parallelPartitionDiscovery.threshold"
    before = session.conf.get(setting, None)
    session.conf.set(setting, str(2**31 - 1))
    try:
        yield
    finally:
        if before is None:
            session.conf.unset(setting)
        else:
            session.conf.set(setting, before)


_Declared: TypeAlias = tuple[Any, str, tuple[Outcome, ...]]
"""What a type of pings is made of, as it travels to a worker."""


def _declared(document: DocumentType) -> _Declared:
    return document.name, document.study, document.outcomes


def _reads(
    columns: Sequence[str], declared: _Declared, failed: Callable[[list[tuple[str, FedpingError]]], None]
) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """Return what a Spark worker runs: from addresses of landed files to their rows; what it cannot read has failed."""

    def read(named: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in named:
            for file in batch.column("file").to_pylist():
                try:
                    landed = open_pings(file, type_of_study(*declared), columns)
                    there = set(landed.footer.schema.names)
                    for rows in landed.batches([name for name in columns if name in there]):
                        yield _for_spark(rows, columns)
                except FedpingError as error:
                    failed([(file, error)])
                    return

    return read


def _for_spark(rows: pa.RecordBatch, columns: Sequence[str]) -> pa.RecordBatch:
    """Return some columns in the types that Spark takes; one that is not there is null."""
    import pyarrow as pa

    def plain(column: pa.Array) -> pa.Array:
        if pa.types.is_dictionary(column.type):
            return column.cast(column.type.value_type)
        if pa.types.is_fixed_size_binary(column.type):
            return column.cast(pa.binary())
        return column.cast(pa.timestamp("us", "UTC")) if pa.types.is_timestamp(column.type) else column

    there = {name: plain(rows.column(name)) for name in rows.schema.names}
    return pa.RecordBatch.from_pydict({name: there.get(name, pa.nulls(len(rows))) for name in columns})


def _beginnings(reading: _Reading, study: Study, landing: Place) -> DataFrame:
    """Return one row per client: the hour of its first ping of the whole study (``begun``), by our own clock.

    A window reaches only a part of the study, so everything that landed is read, in few columns.
    """
    from pyspark.sql import functions as F  # noqa: N812

    everything = Window()
    folders = window_folders(landing, study, everything)
    pings = _pings(reading, study, folders, (), (), everything).where("left_out is null")
    return pings.groupBy("client").agg(F.floor(F.min("received") / HOUR_MS).cast("int").alias("begun"))


def _settled(pings: DataFrame, days: int) -> DataFrame:
    """Return the pings from a number of days after the hour of their client's first ping on."""
    from pyspark.sql import functions as F  # noqa: N812

    return pings.where(F.col("received") >= (F.col("begun").cast("bigint") + 24 * days) * HOUR_MS) if days else pings


def _reason(study: Study, arm: Column, counted: Column) -> Column:
    """Return why a ping of an arm (its number) is left out, as rounds judge it; null if it is not."""
    from pyspark.sql import functions as F  # noqa: N812

    reason, limits = F.lit(None).cast("string"), study.limits
    if limits is not None and limits.loss is not None:
        reason = F.when(~F.col("loss").between(*limits.loss), "beyond_limits").otherwise(reason)
    if limits is not None and limits.rank is not None:
        reason = F.when(counted > limits.rank, "beyond_limits").otherwise(reason)
    if (dealt := hash_assignment(study)) is not None:
        reason = F.when(~arm.eqNullSafe(_dealt_arm(dealt)), "not_enrolled").otherwise(reason)
    return reason


def _dealt_arm(dealt: Assignment) -> Column:
    """Return the number of the arm that a client's id belongs to, null for none (`fedping.protocol.enrolment`)."""
    from pyspark.sql import functions as F  # noqa: N812

    digits = F.lower(F.hex("client_id"))
    parts = [F.substring(digits, start, length) for start, length in ((1, 8), (9, 4), (13, 4), (17, 4), (21, 12))]
    digest = F.sha2(F.concat(F.lit(f"{dealt.study}\n"), F.concat_ws("-", *parts)), 256)
    number = F.lit(None).cast("int")
    for i, limit in reversed(list(enumerate(dealt.limits))):
        arm = F.lit(dealt.of[i] if dealt.of[i] >= 0 else None).cast("int")
        number = F.when(digest < limit.hex(), arm).otherwise(number)
    return number


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


def _in_window(window: Window) -> Column:
    from pyspark.sql import functions as F  # noqa: N812

    inside = F.lit(True)
    if window.first is not None:
        inside &= F.col("model_version") >= window.first
    return inside if window.last is None else inside & (F.col("model_version") <= window.last)


def _documents(
    pings: DataFrame, cores: int, metrics: Sequence[Metric], segments: Sequence[Segment], ordered: bool
) -> DataFrame:
    """Return one row per document; copies of a document are identical, so any of them will do.

    What is left out never stands for what is not: it is a document apart.
    Milliseconds and document ids take most of the memory and are kept only where a client's pings have to be ordered.
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


def _clients(
    documents: DataFrame, metrics: Sequence[Metric], segments: Sequence[Segment], first_values: bool
) -> DataFrame:
    """Return a row per client: arm (null if several), pings, duplicates, n, since, begun, s0, ..., f0, ..., g0, ...

    ``n`` is the number of its selections, ``since`` the hour of the first of them, ``begun`` that of its first ping of
    the study, s0, f0 sum and first value of the first metric, g0 its group in the first segment.
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
    return documents.groupBy("client").agg(*columns)


def _left_out(every: DataFrame, study: Study) -> dict[str, int]:
    """Return how many landed pings were left out for each reason, copies included."""
    from pyspark.sql import functions as F  # noqa: N812

    if hash_assignment(study) is None and study.limits is None:
        return {}
    rows = every.where("left_out is not null").groupBy("left_out").agg(F.sum("copies").alias("n"))
    return {row["left_out"]: row["n"] for row in sorted(rows.toArrow().to_pylist(), key=lambda row: row["left_out"])}


def _values(documents: DataFrame, clients: DataFrame, metrics: Sequence[Metric], first_values: bool) -> DataFrame:
    """Return rows (kind, arm, value, count); kind p0 is a metric by ping, c0 by client, f0 the clients' first value.

    Kind ``hours`` is all pings by hour, ``exposed`` the exposed clients by the hour of their first selection.
    """
    from pyspark.sql import functions as F  # noqa: N812

    selections, exposed = documents.where("selected"), clients.where("n > 0 and arm is not null")
    frames = [
        _counted("hours", documents.select("arm", F.col("hour").cast("double").alias("value"))),
        _counted("exposed", exposed.select("arm", F.col("since").cast("double").alias("value"))),
    ]
    for i, metric in enumerate(metrics):
        kinds = {f"p{i}": (selections, F.col(f"v{i}")), f"c{i}": (exposed, F.col(f"s{i}") / F.col("n"))}
        if first_values:
            kinds[f"f{i}"] = (exposed, F.col(f"f{i}"))
        for kind, (rows, value) in kinds.items():
            frames.append(_counted(kind, rows.select("arm", _on_grid(value, metric.digits).alias("value"))))
    union = frames[0]
    for other in frames[1:]:
        union = union.unionAll(other)
    return union


def _counted(kind: str, rows: DataFrame) -> DataFrame:
    from pyspark.sql import functions as F  # noqa: N812

    counts = rows.groupBy("arm", "value").agg(F.count(F.lit(1)).alias("count"))
    return counts.select(F.lit(kind).alias("kind"), "arm", "value", "count")


def _on_grid(value: Column, digits: int) -> Column:
    """Return a number rounded to some significant digits, as a double; integers with no more digits are unchanged."""
    from pyspark.sql import functions as F  # noqa: N812

    value = value.cast("double")
    scale = F.pow(F.lit(10.0), F.lit(digits - 1) - F.floor(F.log10(F.abs(value))))
    small = (value == F.rint(value)) & (F.abs(value) < 10.0**digits)
    return F.when(small, value).otherwise(F.rint(value * scale) / scale)


def _sums(clients: DataFrame, centres: Sequence[float]) -> DataFrame:
    """Return one row per arm (null for clients of several) with the sums over its clients.

    ``centres`` are, by metric, what is subtracted from each ping's value.
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
    """Return rows (segment, number, arm, n, m0, v0, ...): moments over the clients in a part of their means in it.

    Segment 0 is time, whose parts are numbered by their first hour; the last is the clients' own time in the study,
    numbered by weeks (`WEEKS`). ``ends`` are, by arm, the values that a client's
    mean in a part counts as at least and at most; none bound nothing.
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
    """Return a client's value of a metric (its number), moved to the nearest end of its arm where it is beyond."""
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
