"""Reads landed files for Spark: the same files as rounds list, with the same verification."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from fedping.protocol.arrow import landed_schema
from fedping.protocol.errors import FedpingError
from fedping.protocol.landed_file import open_pings, printable
from fedping.protocol.location import Place
from fedping.protocol.outcomes import Outcome
from fedping.protocol.ping import DocumentType, outcomes_of_study, type_of_study

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession


PARTITIONS_A_CORE = 4
"""Partitions per core in the shuffle by client: small enough for a task's memory, large enough for few tasks."""

_TYPES = {
    "int8": "tinyint",
    "int32": "int",
    "int64": "bigint",
    "float": "float",
    "double": "double",
    "bool": "boolean",
    "dictionary<values=string, indices=int32, ordered=0>": "string",
}
"""Names of types in Spark by their names in Arrow."""


def spark_types(document: DocumentType, columns: Sequence[str]) -> dict[str, str]:
    """Return columns of a type's landed pings with their types in Spark."""
    schema = landed_schema(document)
    return {name: _TYPES[str(schema.field(name).type)] for name in columns}


_GLOB = re.compile(r"[][{}*?\\]")
"""Pattern for characters of a path that Spark would interpret as wildcards."""


class Reading:
    """Reads landed files for Spark: the same files as rounds list, with the same verification.

    Files of a folder are verified here and then read by the JVM, which is faster. For a bucket the JVM would need a
    connector and a key, so Python workers read it. In a worker, an unreadable file ends its task without an exception,
    because Spark would retry the task and wrap the exception in a Java stack trace.
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
        """Return columns of landed files; :meth:`checked` raises after an action if a file was unreadable.

        Raises:
            FedpingError: a file of a folder cannot be read, or isn't a file of landed pings.
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
        """Raise the error of an unreadable file, after a block's actions or in place of Spark's own error."""
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
    """Make Spark list many files in this process, without a task for each; restore the session's setting at the end."""
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


_Declared: TypeAlias = tuple[Any, str, tuple[Outcome, ...], bool]
"""The columns of a type of ping, in a form that can be sent to a worker."""


def _declared(document: DocumentType) -> _Declared:
    return document.name, document.study, document.outcomes, document.is_outcome


def _document(name: Any, study: str, outcomes: tuple[Outcome, ...], later: bool) -> DocumentType:
    if later and (document := outcomes_of_study(study, outcomes)) is not None:
        return document
    return type_of_study(name, study, outcomes)


def _reads(
    columns: Sequence[str], declared: _Declared, failed: Callable[[list[tuple[str, FedpingError]]], None]
) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """Return a Spark worker's function from paths of landed files to rows; ``failed`` gets unreadable files."""

    def read(named: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in named:
            for file in batch.column("file").to_pylist():
                try:
                    landed = open_pings(file, _document(*declared), columns)
                    there = set(landed.footer.schema.names)
                    for rows in landed.batches([name for name in columns if name in there]):
                        yield _for_spark(rows, columns)
                except FedpingError as error:
                    failed([(file, error)])
                    return

    return read


def _for_spark(rows: pa.RecordBatch, columns: Sequence[str]) -> pa.RecordBatch:
    """Return columns in types that Spark accepts; a missing column is null."""
    import pyarrow as pa

    def plain(column: pa.Array) -> pa.Array:
        if pa.types.is_dictionary(column.type):
            return column.cast(column.type.value_type)
        if pa.types.is_fixed_size_binary(column.type):
            return column.cast(pa.binary())
        return column.cast(pa.timestamp("us", "UTC")) if pa.types.is_timestamp(column.type) else column

    there = {name: plain(rows.column(name)) for name in rows.schema.names}
    return pa.RecordBatch.from_pydict({name: there.get(name, pa.nulls(len(rows))) for name in columns})
