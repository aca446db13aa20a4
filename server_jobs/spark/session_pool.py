"""One session at a time, opened when a job needs it, and anew where it is found dead."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from typing import TYPE_CHECKING

from fedping.protocol.errors import FedpingError
from fedping.server_jobs.shutdown import DeadlineReached
from fedping.server_jobs.spark import failures
from fedping.server_jobs.spark.executors import Executors

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


class LivingSession:
    """Holds the session of those who run one job after another.

    A job that fails or is cut off takes its session with it: what is left of the job there is nobody's any more, and
    the next job is to find neither it nor what it failed of.

    Args:
        open_session: makes a session and ends it on leaving; called again after :meth:`close`, after a failure, and
            when the session is found dead or without the executors that it had.
    """

    def __init__(self, open_session: Callable[[], AbstractContextManager[SparkSession]]) -> None:
        self._open_session = open_session
        self._session: SparkSession | None = None
        self._executors: Executors | None = None
        self._opened = ExitStack()

    @contextmanager
    def working(self, job: failures.Job = failures.ROUND) -> Iterator[SparkSession]:
        """Yield a session that lives, for one job.

        Raises:
            TemporaryFailure: Spark cannot do it now.
            FedpingError: the executors cannot run our code; or what the job itself raises.
        """
        session, executors = self._living()
        executors.job = job
        try:
            with executors.watched():
                yield session
        except GeneratorExit:  # whoever asked has failed: nothing is going on in Spark
            raise
        except DeadlineReached as error:
            if executors.none_came():
                error.waited_for = failures.NO_EXECUTOR.format(master=executors.master)
            self._cut_off(error)
            raise
        except FedpingError as error:
            self._cut_off(error)
            raise
        except Exception as error:
            told = executors.failure() or failures.told(error, executors.master, job)
            self._cut_off(error)
            if told is None:
                raise
            raise told from error
        except BaseException as error:
            self._cut_off(error)
            raise

    def close(self) -> None:
        """Stop the session, dead or alive."""
        self._session = self._executors = None
        self._opened.close()

    def _cut_off(self, error: BaseException) -> None:
        """Stop the session, and tell it of the error: then it does not wait for long for what is still going on."""
        self._session = self._executors = None
        opened = self._opened.pop_all()
        with suppress(type(error)):  # it goes on to whoever asked for the job
            opened.__exit__(type(error), error, error.__traceback__)

    def _living(self) -> tuple[SparkSession, Executors]:
        if self._session is None or self._executors is None or not _is_usable(self._session, self._executors):
            self.close()  # and with it whatever an interruption has left half open
            session = self._opened.enter_context(self._open_session())
            self._session, self._executors = session, Executors(session)
        return self._session, self._executors


def _is_usable(session: SparkSession, executors: Executors) -> bool:
    from py4j.protocol import Py4JError  # type: ignore[import-untyped]

    try:  # questions that go to the JVM and back
        return not session.sparkContext._jsc.sc().isStopped() and not executors.all_left()
    except (Py4JError, OSError, AttributeError):  # no JVM answers, or the context has been stopped
        return False
