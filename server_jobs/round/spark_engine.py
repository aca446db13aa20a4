"""The round on Spark: Spark hands out shards, Python workers read Parquet, the driver merges sixteen partials.

No row goes through the JVM or from one machine to another: all the pings of a client are in one shard. What comes back
is a few numbers a shard, so the driver needs the same memory whatever the number of pings.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack
from typing import TYPE_CHECKING

from protocol.errors import FedpingError
from server_jobs.round.engine import Work, tasks_for
from server_jobs.round.partial import ShardPartial

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import SparkSession


class SparkEngine:
    """Computes the partials on a Spark session, which is opened when the first round has something to read.

    Args:
        open_session: makes a session and ends it on leaving; called again after :meth:`close`, or when the session is
            found dead.
    """

    def __init__(self, open_session: Callable[[], AbstractContextManager[SparkSession]]) -> None:
        self._open_session = open_session
        self._session: SparkSession | None = None
        self._opened = ExitStack()

    def partials(self, work: Work) -> Iterator[ShardPartial]:
        """See :class:`server_jobs.round.engine.Engine`."""
        session = self._living_session()
        tasks = tasks_for(work, session.sparkContext.defaultParallelism)
        numbers = session.range(0, len(tasks), 1, len(tasks))
        for row in numbers.mapInArrow(_runner(work, tasks), "outcome binary").collect():
            yield from _unpacked(row.outcome)

    def close(self) -> None:
        """Stop the session, dead or alive."""
        self._session = None
        self._opened.close()

    def _living_session(self) -> SparkSession:
        if self._session is not None and not _is_alive(self._session):
            self.close()
        if self._session is None:
            self._session = self._opened.enter_context(self._open_session())
        return self._session


def _runner(work: Work, tasks: list[tuple[int, ...]]) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """Return what a Spark worker runs: from task numbers to packed outcomes."""

    def run(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import pyarrow as pa

        for batch in batches:
            for number in batch.column("id").to_pylist():
                yield pa.RecordBatch.from_pydict({"outcome": [_packed(work, tasks[number])]})

    return run


def _packed(work: Work, shards: tuple[int, ...]) -> bytes:
    """Return a task's partials, or the sentence about a file it cannot read, as bytes for :func:`_unpacked` alone.

    The sentence is a result, because an exception would be retried and reach the driver inside a Java stack trace.
    """
    from server_jobs.round.shard import shard_partials

    try:
        return pickle.dumps(list(shard_partials(work.paths, shards, work.rules, work.late)))
    except FedpingError as error:
        return pickle.dumps(str(error))


def _unpacked(outcome: bytes) -> list[ShardPartial]:
    found: list[ShardPartial] | str = pickle.loads(outcome)
    if isinstance(found, str):
        raise FedpingError(found)
    return found


def _is_alive(session: SparkSession) -> bool:
    from py4j.protocol import Py4JError  # type: ignore[import-untyped]

    try:
        return not session.sparkContext._jsc.sc().isStopped()  # a question that goes to the JVM and back
    except (Py4JError, OSError, AttributeError):  # no JVM answers, or the context has been stopped
        return False
