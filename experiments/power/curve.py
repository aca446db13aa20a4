"""All the runs of a plan in one folder, and their curve; a killed command continues where it was."""

from __future__ import annotations

import fcntl
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
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
from fedping.experiments.power.plan import TrainingPlan
from fedping.experiments.power.run import finished, rounds_so_far, train
from fedping.experiments.power.validation import Validation
from fedping.experiments.power.workers import train_side_by_side
from fedping.experiments.run_folder import write_document, write_whole_bytes
from fedping.protocol.digest import canonical_json
from fedping.protocol.errors import FedpingError, InvalidSettings
from fedping.protocol.extensions import with_recorded_code
from fedping.protocol.formats import NewerFormat, with_format, without_format

_OURS = {".lock", ".training.json.tmp"}
"""Files that a command killed at its very beginning may have left."""


@dataclass(frozen=True)
class TrainingProgress:
    """Progress: the rounds and runs that are done, out of those of all runs."""

    rounds: int
    all_rounds: int
    runs: int
    all_runs: int


Watch = Callable[[TrainingProgress], None]


def training_curve(
    plan: TrainingPlan, out: Path, *, within: float, processes: int = 1, watch: Watch = lambda _: None
) -> TrainingCurve:
    """Make the missing runs of a plan, and return the curve, also in ``curve.json``, ``.svg``, ``runs.csv``.

    Args:
        plan: what to simulate. More cohorts and repetitions may be added to a folder later.
        out: a new folder, or that of a plan of the same experiment.
        within: how far above the best loss is close enough, in percent of it.
        processes: the number of parallel runs; the result does not depend on it.
        watch: is told of the progress.

    Raises:
        InvalidSettings: the folder holds something else.
        FedpingError: another process is at work there, or a run cannot go on.
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
    largest_first = sorted(everything, key=lambda run: -run[0])  # so that no process ends up alone with the longest
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
    """Return a plan with the digests of code that the folder's note has of the same code."""
    try:
        _, study, _ = without_format((out / "training.json").read_bytes(), "training.json").split(b"\n")
        return replace(plan, study=with_recorded_code(plan.study, msgspec.json.decode(study)))
    except (OSError, ValueError, NewerFormat):
        return plan


def _claim(plan: TrainingPlan, out: Path) -> None:
    """Claim the folder for this plan, or check that it is this plan's; its cohorts and repetitions may differ."""
    note = out / "training.json"
    said = canonical_json(plan.experiment) + b"\n" + canonical_json(plan.study) + b"\n%d" % plan.validation_searches
    if note.is_file():
        if without_format(note.read_bytes(), f"the file {note}") != said:
            raise InvalidSettings(
                f"{out} holds trainings of another experiment, or of this one with other settings; give another --out, "
                "or the settings that it was begun with"
            )
        return
    if out.exists() and (not out.is_dir() or any(file.name not in _OURS for file in out.iterdir())):
        raise InvalidSettings(f"{out} exists and holds no trainings; give another --out")
    out.mkdir(parents=True, exist_ok=True)
    write_whole_bytes(note, with_format(said))


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
