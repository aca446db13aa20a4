"""Runs spread over Spark's executors, a run a task; each leaves in its folder what it would leave here.

A run whose executor is lost is tried again on another, where it goes on from its checkpoint.
"""

from __future__ import annotations

import dataclasses
import pickle
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from functools import partial
from pathlib import Path

from msgspec.structs import replace

from fedping.experiments.laboratory.choices import named_in_modules
from fedping.experiments.laboratory.one_run import run_unit
from fedping.experiments.laboratory.pool import Finished, Progress, Watch, one_thread
from fedping.experiments.laboratory.results import Outcome
from fedping.experiments.laboratory.results.progress import read_progress, rounds_of
from fedping.experiments.laboratory.settings import Setup
from fedping.experiments.laboratory.units import Unit
from fedping.experiments.on_executors import forget_locks, one_at_a_time
from fedping.protocol.errors import FedpingError, InvalidSettings
from fedping.server_jobs.spark.failures import Job
from fedping.server_jobs.spark.session_pool import SessionPool
from fedping.server_jobs.spark.spreading import spread

RUNS = Job("the runs", "those that are finished stay; run the same command again to go on")

_LOOK_SECONDS = 0.5


def check_can_be_spread(variants: Mapping[str, Setup]) -> None:
    """Raise :class:`InvalidSettings` if a variant needs what an executor has not."""
    for name, setup in variants.items():
        if setup.where == "http":
            raise InvalidSettings(
                f"variant '{name}' runs its rounds over HTTP, by servers on this machine, so that its runs cannot be "
                "spread over executors; set where to 'memory' or 'files', or leave --engine spark out"
            )
        if setup.engine == "spark":
            raise InvalidSettings(
                f"variant '{name}' has its rounds computed by a Spark session of its own, which no executor can "
                "start; set its engine to 'numpy', which comes to the same bits, or leave --engine spark out"
            )


def run_units_on_spark(
    units: Sequence[Unit], out: Path, sessions: SessionPool, watch: Watch, finished: Finished
) -> None:
    """Run all units on the executors, as many at a time as they have cores, and report each as it ends.

    Args:
        units: the runs.
        out: the experiment's folder, which all executors see.
        sessions: where the executors are.
        watch: is told of the progress.
        finished: is told of each run that has ended.

    Raises:
        FedpingError: a run has failed, or Spark.
    """
    work = partial(_run, [pickle.dumps(_from_anywhere(unit)) for unit in units], out.resolve())
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
    """Return a unit whose files are found from the folder in which an executor works."""
    setup, here = unit.setup, Path.cwd()
    setup = replace(setup, data=setup.data.at(here), gossip=setup.gossip.at(here) if setup.gossip else None)
    return dataclasses.replace(unit, setup=setup)


def _run(units: Sequence[bytes], out: Path, number: int) -> Outcome:
    """Run a unit on an executor, which knows the extensions that its settings name only by now."""
    unit: Unit = pickle.loads(units[number])
    with one_at_a_time(out, number), one_thread():
        return run_unit(unit, out)


@contextmanager
def _looked_at(left: set[Unit], out: Path, watch: Watch) -> Iterator[None]:
    """Within this context, report the rounds of the runs that are left, as their files tell of them."""
    over = threading.Event()
    known: dict[Unit, int] = {}

    def look() -> None:
        while not over.wait(_LOOK_SECONDS):
            for unit in list(left):
                told = None
                with suppress(OSError, FedpingError):  # being written, or of a run that has just ended
                    told = read_progress(unit.folder(out).path)
                if told and unit in left and (rounds := rounds_of(told.rows)) != known.get(unit):
                    known[unit] = rounds
                    watch(Progress(unit, rounds))

    looking = threading.Thread(target=look, name="runs-on-spark", daemon=True)
    looking.start()
    try:
        yield
    finally:
        over.set()
        looking.join()
