"""Spreads pieces of work over the executors, and hears of each as it ends.

What comes back of a piece is small: the rest it leaves in files. It comes by way of a Spark accumulator, the only one
of Spark's ways that tells the driver of a task when it ends and not when all have ended; Spark adds what a task has
said once, however often it was tried.
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
from fedping.server_jobs.spark.session_pool import LivingSession
from fedping.server_jobs.spark.user_modules import send_own

if TYPE_CHECKING:
    from pyspark import SparkContext

T = TypeVar("T")

Said: TypeAlias = tuple[int, bytes]
"""What a piece of work came to: its number, and its outcome as bytes for :func:`_opened` alone."""


def spread(
    sessions: LivingSession, work: Callable[[int], T], count: int, job: Job, modules: Iterable[str] = ()
) -> Generator[tuple[int, T], None, None]:
    """Do ``count`` pieces of work on the executors; yield the number of each, from 0, and its outcome as it ends.

    A piece is begun anew on another executor when its own is lost, so it must be one that may be done twice. When one
    raises an error, that is raised here as it would be had it been done here, and the others are given up.

    Args:
        sessions: where the executors are.
        work: from a piece's number to its outcome. It is sent to the executors, with the extensions that this process
            has met.
        count: how many pieces there are.
        job: what all of it is called.
        modules: modules of the user's own that it imports.

    Raises:
        TemporaryFailure: Spark cannot do it now.
        FedpingError: the executors cannot run our code.
    """
    if not count:
        return
    with sessions.working(job) as session:
        context = session.sparkContext
        take_up = send_own(context, modules)

        def done(number: int) -> Said:
            return number, _done(work, take_up, number)

        heard: SimpleQueue[list[Said] | BaseException | None] = SimpleQueue()
        acting = threading.Thread(target=_act, args=(context, done, count, heard), name="spark-spreading", daemon=True)
        acting.start()
        try:
            while (said := heard.get()) is not None:
                if isinstance(said, BaseException):
                    raise said
                for number, outcome in said:
                    yield number, cast("T", _opened(outcome))
        except BaseException:  # nobody waits for the rest, nor for what Spark says of its end
            with suppress(Exception):
                context.setLogLevel("OFF")
                context.cancelAllJobs()
            raise


def _act(
    context: SparkContext,
    done: Callable[[int], Said],
    count: int,
    heard: SimpleQueue[list[Said] | BaseException | None],
) -> None:
    """Run the job to its end, whatever that is, and say so last."""
    from pyspark.accumulators import AccumulatorParam

    class Heard(AccumulatorParam[list[Said]]):
        """A list that is empty on the driver, as what comes is passed on at once."""

        def zero(self, value: list[Said]) -> list[Said]:
            return []

        def addInPlace(self, value1: list[Said], value2: list[Said]) -> list[Said]:  # noqa: N802
            heard.put(value2)
            return value1

        def __reduce__(self) -> tuple[Any, ...]:
            return _saying, ()

    try:
        saying = context.accumulator([], Heard())

        def run(numbers: Iterable[int]) -> None:
            for number in numbers:
                saying.add([done(number)])

        context.parallelize(range(count), count).foreachPartition(run)
        heard.put(None)
    except BaseException as error:
        heard.put(error)


def _saying() -> Any:
    """Return what adds up lists, on an executor."""
    from pyspark.accumulators import AccumulatorParam

    class Saying(AccumulatorParam[list[Said]]):
        def zero(self, value: list[Said]) -> list[Said]:
            return []

        def addInPlace(self, value1: list[Said], value2: list[Said]) -> list[Said]:  # noqa: N802
            return value1 + value2

    return Saying()


def _done(work: Callable[[int], Any], take_up: Callable[[], None], number: int) -> bytes:
    """Return the outcome of a piece of work, or the error that it ended with.

    An error is an outcome, because Spark would try the same again in vain, and tell of it by a Java stack trace.
    """
    try:
        take_up()
        return pickle.dumps((work(number), None))
    except Exception as error:
        if not isinstance(error, FedpingError):  # a defect, or a disk that is full: its traceback is of use
            error.add_note("on the executor:\n" + traceback.format_exc())
        return _error(error)


def _error(error: Exception) -> bytes:
    """Return an error for :func:`_opened`; what it says, if it cannot travel as it is."""
    try:
        said = pickle.dumps((None, error))
        pickle.loads(said)
    except Exception:
        return pickle.dumps((None, RuntimeError(f"{type(error).__name__}: {error}")))
    return said


def _opened(outcome: bytes) -> Any:
    found, error = pickle.loads(outcome)
    if error is not None:
        raise error
    return found
