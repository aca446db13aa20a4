"""Engine for Spark: Spark distributes shards, Python workers read Parquet, and the driver merges partials.

No ping passes through the JVM or between machines, because all pings of a client are in one shard. Each shard returns
one partial, so the driver's memory doesn't depend on the number of pings. A partial grows with the weights. Large or
many partials pass through Spark's shuffle files in the order of the shards. Large partials are cut into pieces. So a
JVM holds a few pieces at a time, and the driver one or two partials.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING

from fedping.protocol.errors import FedpingError, TemporaryFailure
from fedping.server_jobs.optimize.transformation import BrokenLink
from fedping.server_jobs.round.aggregate import WEIGHT_BYTES, ShardPartial, partial_bytes
from fedping.server_jobs.round.plan import Rules, Work, tasks_for
from fedping.server_jobs.spark.session_pool import SessionPool
from fedping.server_jobs.spark.shipping import send_own

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark import RDD
    from pyspark.sql import SparkSession

PIECE_BYTES = 2**22
"""Maximum bytes of a partial in one row. Larger partials are cut into pieces, because a JVM copies each row several
times."""

FETCHED_BYTES = 2**24
"""Bytes of rows that are fetched from disk at a time."""

COLLECTED_BYTES = 16 * partial_bytes(PIECE_BYTES // WEIGHT_BYTES)
"""Maximum bytes of partials that are collected at once, if none is in pieces. Otherwise, partials are fetched from
disk in order."""


class SparkEngine:
    """Computes the partials on a Spark session, which is opened when a round has pings to read.

    Args:
        open_session: opens a session, as for :class:`fedping.server_jobs.spark.session_pool.SessionPool`.

    Attributes:
        sessions: holds the session, which other jobs may use between rounds.
    """

    def __init__(self, open_session: Callable[[], AbstractContextManager[SparkSession]]) -> None:
        self.sessions = SessionPool(open_session)

    def partials(self, work: Work) -> Iterator[ShardPartial]:
        """See :class:`fedping.server_jobs.round.engine.Engine`.

        Raises:
            TemporaryFailure: Spark can't run the job now.
            FedpingError: the executors can't run fedping's code.
        """
        pieces = pieces_of(work.rules.m)
        waiting: dict[int, bytes] = {}
        following = range(pieces)
        for place, outcome in self._rows(work, pieces):
            waiting[place] = outcome
            while waiting.keys() >= set(following):
                yield _unpacked(b"".join(waiting.pop(each) for each in following))
                following = range(following.stop, following.stop + pieces)

    def _rows(self, work: Work, pieces: int) -> Iterator[tuple[int, bytes]]:
        """Yield the rows of all tasks: small rows at once, others a few at a time in the order of their places."""
        with self.sessions.working() as session:
            tasks = tasks_for(work, session.sparkContext.defaultParallelism)
            run = _runner(work, tasks, pieces, send_own(session.sparkContext))
            if pieces == 1 and work.rules.shards * partial_bytes(work.rules.m) <= COLLECTED_BYTES:
                numbers = session.range(0, len(tasks), 1, len(tasks))
                yield from numbers.mapInArrow(_in_batches(run), "place int, outcome binary").collect()
            else:  # all tasks write their rows to disk; then partitions are fetched one after the other
                rows = session.sparkContext.parallelize(range(len(tasks)), len(tasks)).flatMap(run)
                yield from _partitioned(rows, work.rules, pieces).toLocalIterator()

    def close(self) -> None:
        """Stop the session, even if it is dead."""
        self.sessions.close()


def pieces_of(m: int) -> int:
    """Return the number of pieces of a partial of m weights."""
    return max(1, -(-m * WEIGHT_BYTES // PIECE_BYTES))


def _partitioned(rows: RDD[tuple[int, bytes]], rules: Rules, pieces: int) -> RDD[tuple[int, bytes]]:
    """Return rows in partitions in the order of their places. Each partition is fetched by a separate job."""
    places = rules.shards * pieces
    each = max(1, FETCHED_BYTES // min(PIECE_BYTES, partial_bytes(rules.m)))
    return rows.partitionBy(-(-places // each), lambda place: int(place) // each)


def _runner(
    work: Work, tasks: list[tuple[int, ...]], pieces: int, take_up: Callable[[], None]
) -> Callable[[int], Iterator[tuple[int, bytes]]]:
    """Return the function that a Spark worker runs, from a task's number to rows with its shards' outcomes.

    Piece i of shard s has the place ``s * pieces + i``.
    """

    def run(number: int) -> Iterator[tuple[int, bytes]]:
        take_up()
        for shard, outcome in _packed(work, tasks[number]):
            size = -(-len(outcome) // pieces)
            for i in range(pieces):
                yield shard * pieces + i, outcome[i * size : (i + 1) * size]

    return run


def _in_batches(
    run: Callable[[int], Iterator[tuple[int, bytes]]],
) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """Return a function for Arrow batches that calls ``run``, with one row per batch."""

    def run_batches(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import pyarrow as pa

        for batch in batches:
            for number in batch.column("id").to_pylist():
                for place, outcome in run(number):
                    yield pa.RecordBatch.from_pydict({"place": pa.array([place], pa.int32()), "outcome": [outcome]})

    return run_batches


def _packed(work: Work, shards: tuple[int, ...]) -> Iterator[tuple[int, bytes]]:
    """Yield the partials of a task's shards as bytes for :func:`_unpacked`.

    Instead of the last partial, there may be an error's class and sentence. The error is returned as a result,
    because Spark would retry after an exception, and pass it to the driver inside a Java stack trace.
    """
    from fedping.server_jobs.round.shard import shard_partials

    left = list(shards)
    try:
        for partial in shard_partials(work.paths, shards, work.rules, work.late, work.digests):
            left.remove(partial.shard)
            yield partial.shard, pickle.dumps(partial)
    except FedpingError as error:
        kind = next(kind for kind in (BrokenLink, TemporaryFailure, FedpingError) if isinstance(error, kind))
        yield left[0], pickle.dumps((kind, str(error)))


def _unpacked(outcome: bytes) -> ShardPartial:
    partial: ShardPartial | tuple[type[FedpingError], str] = pickle.loads(outcome)
    if isinstance(partial, tuple):
        kind, sentence = partial
        raise kind(sentence)
    return partial
