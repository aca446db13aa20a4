"""Units of work side by side: processes on this machine's cores, or tasks on Spark's executors.

The number of processes or tasks changes no bit of any result. Every matrix product runs in one thread: divided among
threads, it would be summed in another order. If there are fewer units than cores, blocks of clients are processed side
by side instead. A unit whose executor is lost runs on another, where it resumes from its checkpoint.
"""

from __future__ import annotations

import dataclasses
import multiprocessing
import os
import pickle
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import AbstractContextManager, closing, contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path
from types import ModuleType
from typing import NamedTuple, TypeAlias, cast

from msgspec.structs import replace

from fedping.experiments.laboratory.models import named_in_modules
from fedping.experiments.laboratory.one_run import OnRound, run_unit
from fedping.experiments.laboratory.results import Outcome, Row, read_progress, rounds_of
from fedping.experiments.laboratory.settings import Setup
from fedping.experiments.laboratory.units import Unit
from fedping.experiments.run_process import forget_locks, one_at_a_time
from fedping.protocol.errors import FedpingError, InvalidSettings
from fedping.protocol.extensions import packed, unpack
from fedping.server_jobs.processes import exit_with_parent
from fedping.server_jobs.spark.failures import Job
from fedping.server_jobs.spark.session_pool import SessionPool
from fedping.server_jobs.spark.spreading import spread

_CONTEXT = multiprocessing.get_context("spawn")

Finished: TypeAlias = Callable[[Unit, Outcome], None]


@dataclass(frozen=True)
class Progress:
    """The progress of one run: rounds done, new measurements since the last report, and whether it is finished."""

    unit: Unit
    rounds: int
    measured: Sequence[Row] = ()
    finished: bool = False


Watch: TypeAlias = Callable[[Progress], None]


SHORT = 3.0
"""Seconds of work before parallel processes are started, unless less work than that is left: about the time to start a
process on a busy machine."""


class _TakesLong(Exception):
    """Stops the current run because it takes long; it continues in its own process."""


def run_units(units: Sequence[Unit], out: Path, jobs: int | None, watch: Watch, finished: Finished) -> None:
    """Run all units, ``jobs`` at a time, and report each as it ends; remaining cores work on the clients.

    If ``jobs`` is None, units run one after another while they are short, then as many at a time as there are cores.
    """
    if jobs is None:
        jobs = cores()
        if jobs > 1 and len(units) > 1:
            units = _after_short_ones(units, out, watch, finished)
    threads = threads_for(units, jobs, cores())
    if jobs == 1 or len(units) <= 1:
        for unit in units:
            with one_thread():
                finished(unit, run_unit(unit, out, _tell(watch, unit), threads))
        return
    reported = Future[None]()
    reader, writer = _CONTEXT.Pipe(duplex=False)
    listener = threading.Thread(target=_listen, args=(reader, units, watch, reported), daemon=True)
    listener.start()
    try:
        _run_side_by_side(_Work(units, out, min(jobs, len(units)), threads), writer, reported, finished)
    finally:
        writer.close()
        listener.join()
    reported.result()


def _after_short_ones(units: Sequence[Unit], out: Path, watch: Watch, finished: Finished) -> Sequence[Unit]:
    """Run units until they turn out to take long; return the rest, including the unfinished one."""
    began = time.monotonic()
    for number, unit in enumerate(units):
        if number and (time.monotonic() - began) / number * (len(units) - number) > SHORT:
            return units[number:]

        def told(rounds: int, measured: Sequence[Row], unit: Unit = unit) -> None:
            watch(Progress(unit, rounds, measured))
            if rounds and time.monotonic() - began > SHORT:
                raise _TakesLong

        try:
            with one_thread():
                outcome = run_unit(unit, out, told, cores())
        except _TakesLong:
            return units[number:]
        finished(unit, outcome)
    return ()


def threads_for(units: Sequence[Unit], jobs: int, cores: int) -> int:
    """Return the number of threads for the clients of a run, so that the cores are busy to the end.

    Baselines finish early and are not counted: a variant alone with them has all the cores except at the start.
    """
    trained = sum(unit.baseline is None for unit in units)
    return max(1, cores // max(1, min(jobs, trained)))


def _tell(watch: Watch, unit: Unit) -> OnRound:
    return lambda rounds, measured: watch(Progress(unit, rounds, measured))


class _Work(NamedTuple):
    """Units to run in processes, their folder, and the numbers of processes and of threads in each."""

    units: Sequence[Unit]
    out: Path
    jobs: int
    threads: int


def _run_side_by_side(work: _Work, writer: Connection, heard: Future[None], finished: Finished) -> None:
    units, out, jobs, threads = work
    others = set(multiprocessing.active_children())
    ready = (writer, _CONTEXT.Lock(), os.getpid(), packed().data)
    with ProcessPoolExecutor(jobs, mp_context=_CONTEXT, initializer=_begin, initargs=ready) as pool:
        with _main_left_alone():  # all processes are started here
            waiting: dict[Future[Outcome], Unit] = {
                pool.submit(_run, number, unit, out, threads): unit for number, unit in enumerate(units)
            }
        try:
            while waiting:
                wait([*waiting, cast(Future[Outcome], heard)], return_when=FIRST_COMPLETED)
                if heard.done():
                    heard.result()
                for future in [future for future in waiting if future.done()]:
                    finished(waiting.pop(future), future.result())
        except BaseException as error:
            pool.shutdown(wait=False, cancel_futures=True)
            for worker in set(multiprocessing.active_children()) - others:
                worker.kill()  # the next such command starts its work again
            if isinstance(error, BrokenProcessPool):
                raise FedpingError(
                    "a run was killed from outside, perhaps for want of memory; give the same command again, with "
                    "fewer --jobs"
                ) from error
            raise


@contextmanager
def _main_left_alone() -> Iterator[None]:
    """Start processes without running the main module again, which Python does by default.

    Our processes need nothing from it, and a script that calls us outside ``if __name__ == "__main__"`` would start
    again in each of them.
    """
    main, sys.modules["__main__"] = sys.modules["__main__"], ModuleType("__main__")
    try:
        yield
    finally:
        sys.modules["__main__"] = main


def _listen(reader: Connection, units: Sequence[Unit], watch: Watch, heard: Future[None]) -> None:
    """Pass on the reports of runs until all processes have ended or ``watch`` raises an error."""
    try:
        for number, rounds, measured in _received(reader):
            watch(Progress(units[number], rounds, measured))
        heard.set_result(None)
    except BaseException as error:
        heard.set_exception(error)
    finally:
        reader.close()


def _received(reader: Connection) -> Iterator[tuple[int, int, Sequence[Row]]]:
    while True:
        try:
            yield reader.recv()
        except (EOFError, OSError):  # the end, perhaps inside a killed process's message
            return


_tell_parent: Callable[[int, int, Sequence[Row]], None]


def _begin(writer: Connection, lock: AbstractContextManager[bool], parent: int, extensions: bytes) -> None:
    """Set up a worker process: it reports its rounds through a pipe, and ends when its parent does."""
    global _tell_parent

    def tell(number: int, rounds: int, measured: Sequence[Row]) -> None:
        with lock:
            writer.send((number, rounds, measured))

    _tell_parent = tell
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # the parent reports Ctrl-C
    exit_with_parent(parent)
    unpack(extensions)


def _run(number: int, unit: Unit, out: Path, threads: int) -> Outcome:
    with one_thread():
        return run_unit(unit, out, lambda rounds, measured: _tell_parent(number, rounds, measured), threads)


def cores() -> int:
    """Return the number of cores that this process may use."""
    return len(os.sched_getaffinity(0))


@contextmanager
def one_thread() -> Iterator[None]:
    """Limit the matrix products of this process to one thread."""
    try:
        from threadpoolctl import threadpool_limits  # type: ignore[import-untyped]
    except ImportError as error:
        raise FedpingError(
            'the laboratory needs the package threadpoolctl; install it with: pip install "fedping[laboratory]"'
        ) from error
    with threadpool_limits(limits=1):
        yield


RUNS = Job("the runs", "finished ones stay. Run the same command again to continue")

_LOOK_SECONDS = 0.5


def check_can_be_spread(variants: Mapping[str, Setup]) -> None:
    """Raise :class:`InvalidSettings` if a variant cannot run on Spark's executors."""
    for name, setup in variants.items():
        if setup.where == "http":
            raise InvalidSettings(
                f"variant '{name}' runs its rounds over HTTP, by servers on this machine, so that its runs cannot be "
                "spread over executors; set where to 'memory' or 'files', or remove --engine spark"
            )
        if setup.engine == "spark":
            raise InvalidSettings(
                f"variant '{name}' has its rounds computed by its own Spark session, which executors can't start. Set "
                "its engine to 'numpy', which gives the same bits, or remove --engine spark"
            )


def run_units_on_spark(
    units: Sequence[Unit], out: Path, sessions: SessionPool, watch: Watch, finished: Finished
) -> None:
    """Run all units on the executors, as many at a time as they have cores, and report each at its end.

    Args:
        units: the runs.
        out: the experiment's folder, which all executors see.
        sessions: the executors' sessions.
        watch: called with the progress.
        finished: called with each run that has ended.

    Raises:
        FedpingError: a run or Spark has failed.
    """
    work = partial(_run_on_executor, [pickle.dumps(_from_anywhere(unit)) for unit in units], out.resolve())
    modules = [
        text.partition(":")[0] for unit in units for text in named_in_modules(unit.setup.model).values() if ":" in text
    ]
    left = set(units)
    try:
        with _looked_at(left, out, watch), closing(spread(sessions, work, len(units), RUNS, modules)) as done:
            for number, outcome in done:
                left.discard(units[number])
                finished(units[number], outcome)
    finally:
        forget_locks(out)


def _from_anywhere(unit: Unit) -> Unit:
    """Return a unit whose paths work from an executor's folder."""
    setup, here = unit.setup, Path.cwd()
    setup = replace(setup, data=setup.data.at(here), gossip=setup.gossip.at(here) if setup.gossip else None)
    return dataclasses.replace(unit, setup=setup)


def _run_on_executor(units: Sequence[bytes], out: Path, number: int) -> Outcome:
    """Run a unit on an executor. It is unpickled here, where the extensions in its settings are registered."""
    unit: Unit = pickle.loads(units[number])
    with one_at_a_time(out, number), one_thread():
        return run_unit(unit, out)


@contextmanager
def _looked_at(left: set[Unit], out: Path, watch: Watch) -> Iterator[None]:
    """Report the rounds of the remaining runs while the context is open, as read from their files."""
    over = threading.Event()
    known: dict[Unit, int] = {}

    def look() -> None:
        while not over.wait(_LOOK_SECONDS):
            for unit in list(left):
                progress = None
                with suppress(OSError, FedpingError):  # being written, or of a run that has just ended
                    progress = read_progress(unit.folder(out).path)
                if progress and unit in left and (rounds := rounds_of(progress.rows)) != known.get(unit):
                    known[unit] = rounds
                    watch(Progress(unit, rounds))

    looking = threading.Thread(target=look, name="runs-on-spark", daemon=True)
    looking.start()
    try:
        yield
    finally:
        over.set()
        looking.join()
