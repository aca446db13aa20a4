"""The engines that compute a round's partials: two implementations of one Protocol, with the same bits."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from typing import Protocol

from fedping.protocol.errors import InvalidSettings
from fedping.server_jobs.round.aggregate import ShardPartial
from fedping.server_jobs.round.plan import Work, tasks_for
from fedping.server_jobs.round.shard import shard_groups, shard_partials

ENGINES = ("spark", "numpy")


class Engine(Protocol):
    """Computes shard partials, in this process or on Spark. No resources are started before the first call."""

    def partials(self, work: Work) -> Iterable[ShardPartial]:
        """Return the partials of all shards, in any order (see `fedping.server_jobs.round.shard`).

        Raises:
            UnreadableFile: a file is damaged, doesn't contain landed pings, or was replaced after it was listed.
        """
        ...

    def close(self) -> None:
        """Stop the started resources, if any. A later call of :meth:`partials` starts them again."""
        ...


class NumpyEngine:
    """Computes the partials in this process: for simulations, recomputation and small studies.

    It uses ``threads`` threads, in which NumPy and pyarrow work in parallel.
    """

    def __init__(self, threads: int = 1) -> None:
        self._threads = threads

    def partials(self, work: Work) -> Iterator[ShardPartial]:
        """See :class:`Engine`."""

        def run(shards: Sequence[int]) -> Iterator[ShardPartial]:
            return shard_partials(work.paths, shards, work.rules, work.late, work.digests)

        tasks = [some for task in tasks_for(work, self._threads) for some in shard_groups(task, work.rules.m)]
        if self._threads == 1:
            for shards in tasks:
                yield from run(shards)
            return
        with ThreadPoolExecutor(self._threads) as pool:
            ahead: deque[Future[list[ShardPartial]]] = deque()
            try:
                for shards in tasks:  # as many wait as run, because partials take memory
                    ahead.append(pool.submit(lambda shards: list(run(shards)), shards))
                    if len(ahead) > self._threads:
                        yield from ahead.popleft().result()
                while ahead:
                    yield from ahead.popleft().result()
            finally:
                for task in ahead:
                    task.cancel()

    def close(self) -> None:
        """Do nothing, because no resources outlive a call."""


@contextmanager
def engine_named(name: str, master: str | None = None) -> Iterator[Engine]:
    """Yield an engine and close it afterwards. Heavy imports and processes wait until its first use.

    Args:
        name: one of :data:`ENGINES`.
        master: Spark's master URL; None for the setting in the environment, or else this machine.

    Raises:
        InvalidSettings: the engine is unknown, or a master is given for an engine other than Spark.
    """
    engine = _made(name, master)
    try:
        yield engine
    finally:
        engine.close()


def _made(name: str, master: str | None) -> Engine:
    if name == "spark":
        return _spark(master)
    if name != "numpy":
        raise InvalidSettings(f"unknown engine '{name}'; choose one of {' and '.join(ENGINES)}")
    if master is not None:
        raise InvalidSettings("the numpy engine runs in this process and has no master; remove --master")
    return NumpyEngine()


def _spark(master: str | None) -> Engine:
    from fedping.server_jobs.round.spark_engine import SparkEngine
    from fedping.server_jobs.spark.session import spark_session
    from fedping.server_jobs.spark.settings import SparkSettings

    return SparkEngine(lambda: spark_session(SparkSettings(master=master)))
