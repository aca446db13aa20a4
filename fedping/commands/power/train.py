"""`fedping power train`: how many users train a model, by simulation of the same study with several cohort sizes."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from fedping.options import LocalPath, json_option
from fedping.protocol.errors import InvalidSettings

if TYPE_CHECKING:
    from fedping.experiments.power.curve import TrainingProgress, Watch

FIGURES = (".svg", ".png", ".pdf")


@click.command()
@click.argument("experiment", type=LocalPath())
@click.option("--cohorts", default="50,100,200,400,800", show_default=True, help="Clients a round gets, on average.")
@click.option(
    "--seeds", type=click.IntRange(1), default=3, show_default=True, help="Runs per cohort, each with other users."
)
@click.option(
    "--out",
    type=LocalPath(),
    help="A new folder for the runs and the curve; or that of earlier ones, to continue or add to.  "
    "[default: power/<name of the experiment's file>]",
)
@click.option("--iterations", type=click.IntRange(1), help="Of the training, instead of the experiment's own number.")
@click.option("--line", help="Which model line is trained, if the study has several.")
@click.option(
    "--validation-searches",
    type=click.IntRange(100, 10_000_000),
    default=20_000,
    show_default=True,
    help="Searches of users who never train, over which the final loss is the mean.",
)
@click.option(
    "--within",
    type=click.FloatRange(0, 1000),
    default=5.0,
    show_default=True,
    help="How far above the best loss still counts as enough, in percent of it.",
)
@click.option(
    "--processes",
    type=click.IntRange(1),
    help="Runs at a time; the result does not depend on it.  [default: as many as there are cores]",
)
@click.option("--figure", type=LocalPath(dir_okay=False), help="Draw the curve here too: .svg, .png or .pdf.")
@click.option("--keep-pings", is_flag=True, help="Keep the landed pings of finished runs.")
@json_option
def train(experiment: Path, as_json: bool, **options: Any) -> None:
    """Compute how many users TRAIN a model: the final loss of the study of EXPERIMENT by the cohort size.

    A cohort is the clients whose usable pings a round gets, on average over the iterations. Every cohort is simulated
    with several seeds, each run in a folder of its own. If it is killed, the same command continues where it was.
    """
    import msgspec

    from fedping.experiments.power import save_curve, training_curve, training_plan
    from fedping.experiments.simulate import experiment_from_toml

    given = TrainOptions(**options)
    if given.figure and given.figure.suffix not in FIGURES:
        raise InvalidSettings(f"no figure can be drawn into {given.figure}; its name has to end in .svg, .png or .pdf")
    settings, study = experiment_from_toml(experiment)
    plan = training_plan(
        settings,
        study,
        _cohorts(given.cohorts),
        given.seeds,
        line=given.line,
        iterations=given.iterations,
        validation_searches=given.validation_searches,
        keep_pings=given.keep_pings,
    )
    folder, processes = given.out or Path("power") / experiment.stem, given.processes or os.cpu_count() or 1
    with _progress() as watch:
        curve = training_curve(plan, folder, within=given.within, processes=processes, watch=watch)
    if given.figure:
        given.figure.parent.mkdir(parents=True, exist_ok=True)
        save_curve(curve, given.figure)
    if as_json:
        click.echo(msgspec.json.encode(curve).decode())
        return
    from fedping.analysis.cohorts import print_training
    from fedping.terminal import console

    print_training(curve, console())
    click.echo(f"\ncurve.json, runs.csv and curve.svg are in {folder}")


@dataclass(frozen=True, kw_only=True)
class TrainOptions:
    """The options of the command by their names in Python."""

    cohorts: str
    seeds: int
    out: Path | None
    iterations: int | None
    line: str | None
    validation_searches: int
    within: float
    processes: int | None
    figure: Path | None
    keep_pings: bool


def _cohorts(given: str) -> list[int]:
    try:
        return [int(part) for part in given.split(",") if part.strip()]
    except ValueError as error:
        raise InvalidSettings(f"'{given}' is no list of cohorts; write --cohorts 50,100,200,400") from error


@contextmanager
def _progress() -> Iterator[Watch]:
    """Show a bar on a terminal; elsewhere nothing, because the table has it all."""
    from fedping.terminal import bars

    with bars("training: {task.fields[runs]}", "rounds") as bar:
        task = bar.add_task("training", total=None, runs="enrolling")

        def watch(now: TrainingProgress) -> None:
            bar.update(task, completed=now.rounds, total=now.all_rounds, runs=f"{now.runs} of {now.all_runs} runs")

        yield watch
