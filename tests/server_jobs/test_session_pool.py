"""The Spark session of a process with many jobs: reused while alive, replaced once dead; without a real JVM."""

from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import pytest
from py4j.protocol import Py4JNetworkError  # type: ignore[import-untyped]

from fedping.server_jobs.shutdown import DeadlineReached
from fedping.server_jobs.spark.session_pool import SessionPool


class Scala:
    """The part of a session's JVM context that the pool uses."""

    def __init__(self) -> None:
        self.stopped = False
        self.dead = False
        self.executors = 1

    def isStopped(self) -> bool:  # noqa: N802 - as Spark calls it
        if self.dead:
            raise Py4JNetworkError("Answer from Java side is empty")
        return self.stopped

    def statusTracker(self) -> Any:  # noqa: N802 - as Spark calls it
        return SimpleNamespace(getExecutorInfos=lambda: [None] * (1 + self.executors))


class Sessions:
    """Opens sessions of a master, and records them."""

    def __init__(self, master: str) -> None:
        self.master = master
        self.opened: list[Scala] = []

    @contextmanager
    def __call__(self) -> Iterator[Any]:
        scala = Scala()
        self.opened.append(scala)
        context = SimpleNamespace(
            master=self.master, _jsc=SimpleNamespace(sc=lambda: scala), getConf=lambda: {"spark.app.name": "x"}
        )
        yield SimpleNamespace(sparkContext=context)


def jobs(pool: SessionPool, number: int) -> None:
    for _ in range(number):
        with pool.working():
            pass


@pytest.mark.parametrize("fault", ["dead", "stopped"])
def test_a_living_session_is_kept_and_a_dead_one_replaced(fault: str) -> None:
    sessions = Sessions("local[2]")
    pool = SessionPool(sessions)
    jobs(pool, 3)
    assert len(sessions.opened) == 1
    setattr(sessions.opened[0], fault, True)
    jobs(pool, 2)
    assert len(sessions.opened) == 2


@pytest.mark.parametrize("executors", [0, 1])
def test_a_time_limit_says_what_was_waited_for_if_no_executor_came(executors: int) -> None:
    sessions = Sessions("spark://master:7077")
    pool = SessionPool(sessions)

    def work() -> None:
        with pool.working():
            sessions.opened[0].executors = executors
            pool._executors._count()  # type: ignore[union-attr]
            raise DeadlineReached

    with pytest.raises(DeadlineReached) as reached:
        work()
    said = "no executor started: check that spark://master:7077 has live workers" in reached.value.waited_for
    assert said == (executors == 0)
