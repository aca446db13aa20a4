"""The engines that compute the partials of a round: one Protocol, two engines, the same bits."""

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
    """Computes shard partials, in this process or on Spark. Nothing is started before the first call."""

    def partials(self, work: Work) -> Iterable[ShardPartial]:
        """Return the partials of all shards, in any order (see `fedping.server_jobs.round.shard`).

        Raises:
            UnreadableFile: a file is damaged, not of landed pings, or no longer the one that was listed.
        """
        ...

    def close(self) -> None:
        """Stop what was started, if anything; a later call of :meth:`partials` starts it again."""
        ...


class NumpyEngine:
    """Computes the partials in this process: for simulations, recomputation and small studies.

    In ``threads`` threads; NumPy and pyarrow work side by side in them.
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
                for shards in tasks:  # no more of them ahead than are at work, for their partials take memory
                    ahead.append(pool.submit(lambda shards: list(run(shards)), shards))
                    if len(ahead) > self._threads:
                        yield from ahead.popleft().result()
                while ahead:
                    yield from ahead.popleft().result()
            finally:
                for task in ahead:
                    task.cancel()

    def close(self) -> None:
        """Nothing outlives a call."""


@contextmanager
def engine_named(name: str, master: str | None = None) -> Iterator[Engine]:
    """Yield an engine and close it; nothing heavy is imported or started before it has something to do.

    Args:
        name: one of :data:`ENGINES`.
        master: Spark's master URL; None for the environment's setting, or this machine.

    Raises:
        InvalidSettings: the engine is unknown, or a master is given for an engine without one.
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
