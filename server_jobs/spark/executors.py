"""Watches the executors of a session while a job runs, because Spark itself waits for new ones forever."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from fedping.server_jobs.shutdown import TemporaryFailure
from fedping.server_jobs.spark import failures
from fedping.server_jobs.spark.arguments import is_local

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

LOOK_SECONDS = 2
LOST_SECONDS = 60
"""How long all executors may be gone before their job is given up; a replacement takes a few seconds."""


class Executors:
    """The known state of one session's executors.

    A restarted cluster master does not know earlier applications. Their executors are ended and no others started, but
    the driver is told nothing: its job waits forever.
    """

    def __init__(self, session: SparkSession) -> None:
        context = session.sparkContext
        self.master = str(context.master)
        self.job = failures.ROUND
        self._scala = context._jsc.sc()
        self._elsewhere = not is_local(self.master)
        # Spark then releases idle executors, and requests new ones when there is work again.
        self._come_and_go = context.getConf().get("spark.dynamicAllocation.enabled", "false") == "true"
        self._gone_since: float | None = None
        self._ever = False
        self._given_up = False

    def all_left(self) -> bool:
        """Return whether there were executors and are none now; raises whatever a call to the JVM may raise."""
        return self._elsewhere and not self._come_and_go and self._count() == 0 and self._ever

    def none_came(self) -> bool:
        """Whether there has been no executor as of the last check; makes no call, so it never waits."""
        return self._elsewhere and not self._ever

    def failure(self) -> TemporaryFailure | None:
        """Return the reason why the jobs were given up, if they were."""
        return failures.executors_lost(self.master, LOST_SECONDS, self.job) if self._given_up else None

    @contextmanager
    def watched(self) -> Iterator[None]:
        """Within this context, give up all jobs once executors were there and have been gone for long."""
        if not self._elsewhere:
            yield
            return
        if self._come_and_go:
            self._ever = False
        over = threading.Event()
        threading.Thread(target=self._watch, args=(over,), name="spark-executors", daemon=True).start()
        try:
            yield
        finally:
            over.set()  # do not wait for the thread: it may be calling a JVM that no longer answers

    def _watch(self, over: threading.Event) -> None:
        from py4j.protocol import Py4JError  # type: ignore[import-untyped]

        while not over.wait(LOOK_SECONDS):
            try:
                self._look()
            except (Py4JError, OSError, AttributeError):  # the JVM is gone, as whoever waits for the job will see
                return

    def _look(self) -> None:
        if self._count() or not self._ever:
            self._gone_since = None
            return
        self._gone_since = self._gone_since or time.monotonic()
        if time.monotonic() - self._gone_since >= LOST_SECONDS:
            self._given_up = True
            self._scala.cancelAllJobs()

    def _count(self) -> int:
        count = len(self._scala.statusTracker().getExecutorInfos()) - 1  # the driver is one of them
        self._ever = self._ever or count > 0
        return count
