"""Runs a plan in one folder, in parallel processes, and computes the power curve; continues after a kill.

A worker process ends with the process that started it, so no run continues unseen when the same command is started
again.
"""

from __future__ import annotations

import fcntl
import multiprocessing
import os
import shutil
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from multiprocessing import resource_tracker
from multiprocessing.connection import Connection, wait
from multiprocessing.context import SpawnProcess
from pathlib import Path

import msgspec
import numpy as np

from fedping.analysis.cohorts import (
    TrainingCurve,
    TrainingPoint,
    TrainingRun,
    headline,
    runs_as_csv,
    smallest_enough,
)
from fedping.experiments.power.plan import TrainingPlan, Validation
from fedping.experiments.run_folder import read_whole, write_document, write_whole_bytes
from fedping.experiments.simulate import simulate
from fedping.experiments.simulate.run import Progress
from fedping.model_store.store import open_store
from fedping.protocol.digest import canonical_json
from fedping.protocol.errors import FedpingError, InvalidSettings
from fedping.protocol.extensions import with_recorded_code
from fedping.protocol.formats import NewerFormat, with_format, without_format

LOOKS_EVERY = 0.25
"""Seconds between two checks of the runs' progress."""

_TOLD = 3
"""Exit code of a worker that has reported an error itself."""


@dataclass(frozen=True)
class _Worker:
    cohort: int
    repetition: int
    process: SpawnProcess
    told: Connection


def train_side_by_side(
    plan: TrainingPlan, out: Path, runs: list[tuple[int, int]], processes: int, look: Callable[[], None]
) -> None:
    """Do runs (cohort, repetition) in the given order, several at a time; call ``look`` regularly.

    Raises:
        FedpingError: a run failed or was killed. All other runs are stopped, and can be continued.
    """
    waiting, working = list(runs), list[_Worker]()
    try:
        while waiting or working:
            while waiting and len(working) < processes:
                with _ctrl_c_later():
                    working.append(_started(plan, out, *waiting.pop(0)))
            wait([one.process.sentinel for one in working], LOOKS_EVERY)
            for one in [one for one in working if not one.process.is_alive()]:
                working.remove(one)
                _refuse_failure(one)
            look()
    finally:
        for one in working:
            one.process.kill()
            one.process.join()


def _started(plan: TrainingPlan, out: Path, cohort: int, repetition: int) -> _Worker:
    context = multiprocessing.get_context("spawn")
    reported, tell = context.Pipe(duplex=False)
    process = context.Process(target=_work, args=(plan, out, cohort, repetition, tell), daemon=True)
    process.start()
    tell.close()
    return _Worker(cohort, repetition, process, reported)


def _work(plan: TrainingPlan, out: Path, cohort: int, repetition: int, tell: Connection) -> None:
    threading.Thread(target=_end_with_parent, daemon=True).start()
    try:
        train(plan, out, cohort, repetition)
    except FedpingError as error:
        tell.send(str(error))
        os._exit(_TOLD)


@contextmanager
def _ctrl_c_later() -> Iterator[None]:
    """Defer Ctrl-C to the end of the context, and shield processes started in it, because their parent ends them.

    New processes inherit the blocked signal. Blocking alone is not enough for this process: its other threads receive
    the signal, and an interrupted start leaves a process that prints an error.
    """
    resource_tracker.ensure_running()  # otherwise, the tracker starts with the first process and unblocks the signal
    interrupted: list[int] = []
    in_main = threading.current_thread() is threading.main_thread()
    handler = signal.signal(signal.SIGINT, lambda number, _: interrupted.append(number)) if in_main else None
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        if in_main:
            signal.signal(signal.SIGINT, handler)
    if interrupted:
        raise KeyboardInterrupt


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)


def _refuse_failure(worker: _Worker) -> None:
    code = worker.process.exitcode
    if code == 0:
        return
    where = f"cohort {worker.cohort:,}, repetition {worker.repetition}"
    if code == _TOLD and worker.told.poll():
        raise FedpingError(worker.told.recv())
    if code is not None and code < 0:
        raise FedpingError(
            f"the run of {where} was killed by signal {-code}, perhaps for lack of memory. The same command continues "
            "from there, with fewer --processes if necessary"
        )
    raise RuntimeError(f"the run of {where} ended with exit code {code}; its traceback is above")


RESULT = "result.json"


def run_folder(out: Path, cohort: int, repetition: int) -> Path:
    """Return the folder of one run."""
    return out / f"cohort={cohort}" / f"repetition={repetition}"


def finished(out: Path, cohort: int, repetition: int) -> TrainingRun | None:
    """Return the result of a run, or None if it has not ended."""
    return read_whole(run_folder(out, cohort, repetition) / RESULT, TrainingRun)


def rounds_so_far(plan: TrainingPlan, out: Path, cohort: int, repetition: int) -> int:
    """Return the number of versions that a run has published after version 0."""
    versions = run_folder(out, cohort, repetition) / "store" / plan.study.name / plan.study.lines[0].name / "versions"
    return max(0, sum(1 for _ in versions.glob("*.json")) - 1)


def train(
    plan: TrainingPlan, out: Path, cohort: int, repetition: int, watch: Callable[[Progress], None] = lambda _: None
) -> TrainingRun:
    """Do or continue one run, store its result in its folder, and return it.

    Without ``keep_pings``, the landed pings are removed, since the result does not need them.
    """
    folder = run_folder(out, cohort, repetition)
    result = finished(out, cohort, repetition)
    if result is None:
        if not (folder / "experiment.json").is_file():
            shutil.rmtree(folder, ignore_errors=True)  # killed before it was claimed
        simulate(plan.run(cohort, repetition), plan.study, folder, 1, watch)
        result = _result(plan, folder, cohort, repetition)
        write_document(folder / RESULT, result)
    if not plan.keep_pings:
        shutil.rmtree(folder / "landing", ignore_errors=True)
    return result


def _result(plan: TrainingPlan, folder: Path, cohort: int, repetition: int) -> TrainingRun:
    store, study, line = open_store(folder / "store"), plan.study.name, plan.study.lines[0].name
    versions = [store.version(study, line, number) for number in store.iterations(study, line)]
    aggregates = [one.lineage.aggregate for one in versions if one.lineage.origin == "round" and one.lineage.aggregate]
    experiment = plan.run(cohort, repetition)
    return TrainingRun(
        cohort=cohort,
        repetition=repetition,
        seed=experiment.seed,
        clients=experiment.clients,
        rounds=len(aggregates),
        clients_a_round=sum(one.clients for one in aggregates) / len(aggregates),
        pings=sum(one.pings for one in aggregates),
        version=versions[-1].iteration,
        loss=Validation(plan).loss(versions[-1].model),
    )


_OURS = {".lock", ".training.json.tmp"}
"""Files that a command killed at its very beginning may have left."""


@dataclass(frozen=True)
class TrainingProgress:
    """The progress of a plan: finished rounds and runs, and the totals over all runs."""

    rounds: int
    all_rounds: int
    runs: int
    all_runs: int


Watch = Callable[[TrainingProgress], None]


def training_curve(
    plan: TrainingPlan, out: Path, *, within: float, processes: int = 1, watch: Watch = lambda _: None
) -> TrainingCurve:
    """Do the missing runs of a plan, return the curve, and write ``curve.json``, ``curve.svg`` and ``runs.csv``.

    Args:
        plan: the simulations. More cohorts and repetitions may be added to a folder later.
        out: a new folder, or the folder of a plan of the same experiment.
        within: accepted excess over the best loss, in percent.
        processes: the number of parallel runs; the result does not depend on it.
        watch: called with the progress.

    Raises:
        InvalidSettings: the folder has other contents.
        FedpingError: another process is working in the folder, or a run can't continue.
    """
    plan = _as_begun(plan, out)
    everything = [(cohort, number + 1) for cohort in plan.cohorts for number in range(plan.repetitions)]
    _claim(plan, out)
    with _alone(out):
        _make_all(plan, out, everything, processes, watch)
        runs = [run for cohort, number in everything if (run := finished(out, cohort, number))]
        curve = _curve(plan, runs, within)
        write_document(out / "curve.json", curve)
        write_whole_bytes(out / "runs.csv", runs_as_csv(curve.runs).encode())
        save_curve(curve, out / "curve.svg")
    return curve


def save_curve(curve: TrainingCurve, path: Path) -> Path:
    """Draw a curve with a title into a file in the format of its suffix (.svg, .png, .pdf); return its path."""
    from fedping.analysis.cohorts import draw_training
    from fedping.analysis.figures import LIGHT, save_figure, titled

    return save_figure(titled(draw_training(curve), f"{curve.study}: final loss by cohort size", theme=LIGHT), path)


def _make_all(plan: TrainingPlan, out: Path, everything: list[tuple[int, int]], processes: int, watch: Watch) -> None:
    each = plan.experiment.optimization.iterations

    def look() -> None:
        ended = {run for run in everything if finished(out, *run)}
        rounds = sum(each if run in ended else min(each, rounds_so_far(plan, out, *run)) for run in everything)
        watch(TrainingProgress(rounds, each * len(everything), len(ended), len(everything)))

    look()
    largest_first = sorted(everything, key=lambda run: -run[0])  # so that no long run is left over at the end
    if processes > 1 and len(everything) > 1:
        waiting = [run for run in largest_first if finished(out, *run) is None]
        train_side_by_side(plan, out, waiting, processes, look)
    for cohort, number in largest_first:
        train(plan, out, cohort, number, lambda _: look())
    look()


def _curve(plan: TrainingPlan, runs: list[TrainingRun], within: float) -> TrainingCurve:
    points = tuple(_point(plan, cohort, [run for run in runs if run.cohort == cohort]) for cohort in plan.cohorts)
    line = plan.study.lines[0]
    start_loss = Validation(plan).loss(line.spec.start)
    enough = smallest_enough(points, within, start_loss)
    return TrainingCurve(
        study=plan.study.name,
        line=line.name,
        iterations=plan.experiment.optimization.iterations,
        validation_searches=plan.validation_searches,
        start_loss=start_loss,
        within=within,
        enough=enough.cohort if enough else None,
        headline=headline(points, within, start_loss),
        points=points,
        runs=tuple(runs),
    )


def _point(plan: TrainingPlan, cohort: int, runs: list[TrainingRun]) -> TrainingPoint:
    losses, clients = [run.loss for run in runs], plan.clients(cohort)
    return TrainingPoint(
        cohort=cohort,
        clients_a_round=float(np.mean([run.clients_a_round for run in runs])),
        enrolled=round(clients * plan.enrolled_share),
        searches_a_day=clients * plan.training_share * plan.experiment.optimization.searches_per_day,
        runs=len(runs),
        loss=float(np.mean(losses)),
        low=min(losses),
        high=max(losses),
    )


def _as_begun(plan: TrainingPlan, out: Path) -> TrainingPlan:
    """Return the plan with the folder's recorded digests for the same code."""
    try:
        _, study, _ = without_format((out / "training.json").read_bytes(), "training.json").split(b"\n")
        return replace(plan, study=with_recorded_code(plan.study, msgspec.json.decode(study)))
    except (OSError, ValueError, NewerFormat):
        return plan


def _claim(plan: TrainingPlan, out: Path) -> None:
    """Claim the folder for this plan, or check that it is this plan's; only cohorts and repetitions may differ."""
    note = out / "training.json"
    settings = canonical_json(plan.experiment) + b"\n" + canonical_json(plan.study) + b"\n%d" % plan.validation_searches
    if note.is_file():
        if without_format(note.read_bytes(), f"the file {note}") != settings:
            raise InvalidSettings(
                f"{out} holds trainings of another experiment, or of this one with other settings; give another --out, "
                "or the settings that it was begun with"
            )
        return
    if out.exists() and (not out.is_dir() or any(file.name not in _OURS for file in out.iterdir())):
        raise InvalidSettings(f"{out} exists and holds no trainings; give another --out")
    out.mkdir(parents=True, exist_ok=True)
    write_whole_bytes(note, with_format(settings))


@contextmanager
def _alone(out: Path) -> Iterator[None]:
    """Lock the folder for this process; the system releases it whenever the process ends."""
    with open(out / ".lock", "w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise FedpingError(
                f"another 'fedping power train' is at work in {out}; wait for it to end, or give another --out"
            ) from error
        yield
