"""Distribution of tasks over executors. Each result is available as soon as its task ends.

Results must be small; larger results are stored in files. They arrive through a Spark accumulator, Spark's only
channel that reports each task when it ends, not when all tasks have ended. Spark adds the result of a task once, even
after several attempts.
"""

from __future__ import annotations

import pickle
import threading
import traceback
from collections.abc import Callable, Generator, Iterable
from contextlib import suppress
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar, cast

from fedping.protocol.errors import FedpingError
from fedping.server_jobs.spark.failures import Job
from fedping.server_jobs.spark.session_pool import SessionPool
from fedping.server_jobs.spark.shipping import send_own

if TYPE_CHECKING:
    from pyspark import SparkContext

T = TypeVar("T")

Result: TypeAlias = tuple[int, bytes]
"""A task's number, and its outcome as bytes for :func:`_opened`."""


def spread(
    sessions: SessionPool, work: Callable[[int], T], count: int, job: Job, modules: Iterable[str] = ()
) -> Generator[tuple[int, T], None, None]:
    """Run ``count`` tasks on the executors; when a task ends, yield its number, from 0, and its outcome.

    A task is repeated on another executor if its executor is lost, so it must be idempotent. A task's error is raised
    as if the task had run in this process, and the other tasks are cancelled.

    Args:
        sessions: the session of the executors.
        work: function from a task's number to its outcome. It is sent to the executors, with the extensions that this
            process has imported.
        count: number of tasks.
        job: name of the whole job.
        modules: user's modules that ``work`` imports.

    Raises:
        TemporaryFailure: Spark can't run the tasks now.
        FedpingError: the executors can't run fedping's code.
    """
    if not count:
        return
    with sessions.working(job) as session:
        context = session.sparkContext
        take_up = send_own(context, modules)

        def outcome_of(number: int) -> Result:
            return number, _outcome(work, take_up, number)

        results: SimpleQueue[list[Result] | BaseException | None] = SimpleQueue()
        thread = threading.Thread(
            target=_act, args=(context, outcome_of, count, results), name="spark-spreading", daemon=True
        )
        thread.start()
        try:
            while (result := results.get()) is not None:
                if isinstance(result, BaseException):
                    raise result
                for number, outcome in result:
                    yield number, cast("T", _opened(outcome))
        except BaseException:  # the caller needs neither the other results nor Spark's log of the end
            with suppress(Exception):
                context.setLogLevel("OFF")
                context.cancelAllJobs()
            raise


def _act(
    context: SparkContext,
    outcome_of: Callable[[int], Result],
    count: int,
    results: SimpleQueue[list[Result] | BaseException | None],
) -> None:
    """Run the job; put its results into the queue, followed by None or its error."""
    from pyspark.accumulators import AccumulatorParam

    class Collected(AccumulatorParam[list[Result]]):
        """A list that stays empty on the driver, because results go to the queue at once."""

        def zero(self, value: list[Result]) -> list[Result]:
            return []

        def addInPlace(self, value1: list[Result], value2: list[Result]) -> list[Result]:  # noqa: N802
            results.put(value2)
            return value1

        def __reduce__(self) -> tuple[Any, ...]:
            return _list_accumulator, ()

    try:
        accumulator = context.accumulator([], Collected())

        def run(numbers: Iterable[int]) -> None:
            for number in numbers:
                accumulator.add([outcome_of(number)])

        context.parallelize(range(count), count).foreachPartition(run)
        results.put(None)
    except BaseException as error:
        results.put(error)


def _list_accumulator() -> Any:
    """Return an accumulator parameter that concatenates lists, for executors."""
    from pyspark.accumulators import AccumulatorParam

    class Lists(AccumulatorParam[list[Result]]):
        def zero(self, value: list[Result]) -> list[Result]:
            return []

        def addInPlace(self, value1: list[Result], value2: list[Result]) -> list[Result]:  # noqa: N802
            return value1 + value2

    return Lists()


def _outcome(work: Callable[[int], Any], take_up: Callable[[], None], number: int) -> bytes:
    """Return the outcome of a task, or its error.

    Errors are returned as outcomes, because Spark would repeat the task without success, and report a Java stack trace.
    """
    try:
        take_up()
        return pickle.dumps((work(number), None))
    except Exception as error:
        if not isinstance(error, FedpingError):  # a defect, or a full disk: its traceback helps
            error.add_note("on the executor:\n" + traceback.format_exc())
        return _error(error)


def _error(error: Exception) -> bytes:
    """Return an error for :func:`_opened`, or only its text if it can't be pickled."""
    try:
        data = pickle.dumps((None, error))
        pickle.loads(data)
    except Exception:
        return pickle.dumps((None, RuntimeError(f"{type(error).__name__}: {error}")))
    return data


def _opened(outcome: bytes) -> Any:
    value, error = pickle.loads(outcome)
    if error is not None:
        raise error
    return value
