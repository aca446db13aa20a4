"""The round on Spark: Spark hands out shards, Python workers read Parquet, the driver merges their partials.

No ping goes through the JVM or from one machine to another: all the pings of a client are in one shard. What comes back
is a partial a shard, so the driver needs the same memory whatever the number of pings. A partial grows with the
weights. Where they are large, or many, they come by way of Spark's shuffle files, in the order of the shards, the large
ones in pieces, so that no JVM holds more than a few pieces at a time, nor the driver more than a partial or two.
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
"""Of a partial that is larger, so much is in one row at most: a JVM copies a row several times on its way."""

FETCHED_BYTES = 2**24
"""Of rows that wait on disk, so much is fetched at a time."""

COLLECTED_BYTES = 16 * partial_bytes(PIECE_BYTES // WEIGHT_BYTES)
"""Partials of so much in all come at once, if none is in pieces: others wait on disk until it is their turn."""


class SparkEngine:
    """Computes the partials on a Spark session, which is opened when the first round has something to read.

    Args:
        open_session: as of :class:`fedping.server_jobs.spark.session_pool.SessionPool`.

    Attributes:
        sessions: holds the session, for whoever has other jobs for it between rounds.
    """

    def __init__(self, open_session: Callable[[], AbstractContextManager[SparkSession]]) -> None:
        self.sessions = SessionPool(open_session)

    def partials(self, work: Work) -> Iterator[ShardPartial]:
        """See :class:`fedping.server_jobs.round.engine.Engine`.

        Raises:
            TemporaryFailure: Spark cannot do it now.
            FedpingError: the executors cannot run our code.
        """
        pieces = pieces_of(work.rules.m)
        found: dict[int, bytes] = {}
        following = range(pieces)
        for place, outcome in self._rows(work, pieces):
            found[place] = outcome
            while found.keys() >= set(following):
                yield _unpacked(b"".join(found.pop(each) for each in following))
                following = range(following.stop, following.stop + pieces)

    def _rows(self, work: Work, pieces: int) -> Iterator[tuple[int, bytes]]:
        """Yield the rows of all tasks: at once where they are small, else a few at a time by their places."""
        with self.sessions.working() as session:
            tasks = tasks_for(work, session.sparkContext.defaultParallelism)
            run = _runner(work, tasks, pieces, send_own(session.sparkContext))
            if pieces == 1 and work.rules.shards * partial_bytes(work.rules.m) <= COLLECTED_BYTES:
                numbers = session.range(0, len(tasks), 1, len(tasks))
                yield from numbers.mapInArrow(_in_batches(run), "place int, outcome binary").collect()
            else:  # tasks leave rows on disk, side by side; then they are fetched one by one, as they are
                rows = session.sparkContext.parallelize(range(len(tasks)), len(tasks)).flatMap(run)
                yield from _partitioned(rows, work.rules, pieces).toLocalIterator()

    def close(self) -> None:
        """Stop the session, dead or alive."""
        self.sessions.close()


def pieces_of(m: int) -> int:
    """Return into how many pieces the partials of m weights are cut."""
    return max(1, -(-m * WEIGHT_BYTES // PIECE_BYTES))


def _partitioned(rows: RDD[tuple[int, bytes]], rules: Rules, pieces: int) -> RDD[tuple[int, bytes]]:
    """Return rows in partitions, which are in the order of their places; each is fetched by a job of its own."""
    places = rules.shards * pieces
    each = max(1, FETCHED_BYTES // min(PIECE_BYTES, partial_bytes(rules.m)))
    return rows.partitionBy(-(-places // each), lambda place: int(place) // each)


def _runner(
    work: Work, tasks: list[tuple[int, ...]], pieces: int, take_up: Callable[[], None]
) -> Callable[[int], Iterator[tuple[int, bytes]]]:
    """Return what a Spark worker runs: from a task's number to rows, so many pieces of the outcome of each shard.

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
    """Return the same for Arrow, a row a batch."""

    def run_batches(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import pyarrow as pa

        for batch in batches:
            for number in batch.column("id").to_pylist():
                for place, outcome in run(number):
                    yield pa.RecordBatch.from_pydict({"place": pa.array([place], pa.int32()), "outcome": [outcome]})

    return run_batches


def _packed(work: Work, shards: tuple[int, ...]) -> Iterator[tuple[int, bytes]]:
    """Yield the partials of a task's shards, each as bytes for :func:`_unpacked` alone.

    In the place of a partial there may be the sentence about what stands in the way, which is the last. It is a result,
    because an exception would be retried and reach the driver inside a Java stack trace.
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
    found: ShardPartial | tuple[type[FedpingError], str] = pickle.loads(outcome)
    if isinstance(found, tuple):
        kind, sentence = found
        raise kind(sentence)
    return found
