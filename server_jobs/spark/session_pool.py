"""A lazily opened Spark session, which is reopened after it dies.

Its executors are watched during a job, because Spark waits forever for new executors.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from typing import TYPE_CHECKING

from fedping.protocol.errors import FedpingError
from fedping.server_jobs.shutdown import DeadlineReached, TemporaryFailure
from fedping.server_jobs.spark import failures
from fedping.server_jobs.spark.settings import is_local

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


class SessionPool:
    """The Spark session of a process that runs one job after another.

    A job that fails or is interrupted ends its session, so that neither remains of the job nor the cause of its
    failure affect the next job.

    Args:
        open_session: context manager of a session. It is called again after :meth:`close`, after a failure, and when
            the session is dead or has lost its executors.
    """

    def __init__(self, open_session: Callable[[], AbstractContextManager[SparkSession]]) -> None:
        self._open_session = open_session
        self._session: SparkSession | None = None
        self._executors: Executors | None = None
        self._opened = ExitStack()

    @contextmanager
    def working(self, job: failures.Job = failures.ROUND) -> Iterator[SparkSession]:
        """Yield a working session for one job.

        Raises:
            TemporaryFailure: Spark can't run the job now.
            FedpingError: the executors can't run fedping's code. Errors of the job are passed on unchanged.
        """
        session, executors = self._living()
        executors.job = job
        try:
            with executors.watched():
                yield session
        except GeneratorExit:  # the caller failed; Spark has no work
            raise
        except BaseException as error:
            sentence = None
            if isinstance(error, DeadlineReached) and executors.none_came():
                error.waited_for = failures.NO_EXECUTOR.format(master=executors.master)
            elif isinstance(error, Exception) and not isinstance(error, FedpingError):
                sentence = executors.failure() or failures.failure_sentence(error, executors.master, job)
            self._cut_off(error)
            if sentence is None:
                raise
            raise sentence from error

    def close(self) -> None:
        """Stop the session, even if it is dead."""
        self._session = self._executors = None
        self._opened.close()

    def _cut_off(self, error: BaseException) -> None:
        """Stop the session because of an error, so that it doesn't wait long for unfinished work."""
        self._session = self._executors = None
        opened = self._opened.pop_all()
        with suppress(type(error)):  # the caller raises it
            opened.__exit__(type(error), error, error.__traceback__)

    def _living(self) -> tuple[SparkSession, Executors]:
        if self._session is None or self._executors is None or not _is_usable(self._session, self._executors):
            self.close()  # also ends a session that an interruption left half open
            session = self._opened.enter_context(self._open_session())
            self._session, self._executors = session, Executors(session)
        return self._session, self._executors


def _is_usable(session: SparkSession, executors: Executors) -> bool:
    from py4j.protocol import Py4JError  # type: ignore[import-untyped]

    try:  # calls to the JVM
        return not session.sparkContext._jsc.sc().isStopped() and not executors.all_left()
    except (Py4JError, OSError, AttributeError):  # no JVM answers, or the context has been stopped
        return False


LOOK_SECONDS = 2
LOST_SECONDS = 60
"""Seconds without executors after which a job is cancelled. A replacement takes a few seconds."""


class Executors:
    """The state of one session's executors.

    A restarted cluster master doesn't know earlier applications. Their executors end and no others start, but the
    driver isn't informed, so its job waits forever.
    """

    def __init__(self, session: SparkSession) -> None:
        context = session.sparkContext
        self.master = str(context.master)
        self.job = failures.ROUND
        self._scala = context._jsc.sc()
        self._is_remote = not is_local(self.master)
        # Spark then releases idle executors, and requests new ones when there is work again.
        self._come_and_go = context.getConf().get("spark.dynamicAllocation.enabled", "false") == "true"
        self._gone_since: float | None = None
        self._ever = False
        self._given_up = False

    def all_left(self) -> bool:
        """Return whether all executors have ended; raise errors of calls to the JVM."""
        return self._is_remote and not self._come_and_go and self._count() == 0 and self._ever

    def none_came(self) -> bool:
        """Return whether there was no executor up to the last check, without a call to the JVM, which might wait."""
        return self._is_remote and not self._ever

    def failure(self) -> TemporaryFailure | None:
        """Return the error if the jobs were cancelled, else None."""
        return failures.executors_lost(self.master, LOST_SECONDS, self.job) if self._given_up else None

    @contextmanager
    def watched(self) -> Iterator[None]:
        """Cancel all jobs within this context once all executors have been gone for :data:`LOST_SECONDS`."""
        if not self._is_remote:
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
        from py4j.protocol import Py4JError

        while not over.wait(LOOK_SECONDS):
            try:
                self._look()
            except (Py4JError, OSError, AttributeError):  # the JVM is gone; the job reports that
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
