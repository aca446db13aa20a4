"""`fedping power`: the number of users that a study needs to show an effect or to train a model (thesis 7.4)."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeVar

import click

from fedping.commands.analyze import ITERATION, TIMES, analysis_session, milliseconds
from fedping.options import LocalPath, json_option, landing_option, store_option
from fedping.protocol.errors import InvalidSettings
from fedping.terminal import status

if TYPE_CHECKING:
    from fedping.analysis.power import Change, Design, Pilot
    from fedping.analysis.study import Window
    from fedping.experiments.power.curve import TrainingProgress, Watch
    from fedping.protocol.location import Place
    from fedping.protocol.study import Study


@click.group()
def power() -> None:
    """Plan the number of users that a study needs to show an effect, or to train a model."""


_Command = TypeVar("_Command", bound=Callable[..., Any])


def _pilot_options(command: _Command) -> _Command:
    """Add the options that name the source of the metric's distribution."""
    options = (
        click.option("--arm", help="Arm of the landed pilot without the change."),
        click.option(
            "--metric",
            default="num_chars_typed",
            show_default=True,
            help="Metric of the pilot; without a pilot, only a label.",
        ),
        click.option(
            "--unit",
            type=click.Choice(["client", "ping"]),
            default="client",
            show_default=True,
            help="Unit of analysis; the verdict of 'fedping analyze' counts clients.",
        ),
        click.option("--from-iteration", type=ITERATION, help="First model version of the pilot whose pings count."),
        click.option("--to-iteration", type=ITERATION, help="Last model version of the pilot whose pings count."),
        click.option("--since", type=TIMES, help="Only pings of the pilot received from this time on (UTC)."),
        click.option("--until", type=TIMES, help="Only pings of the pilot received before this time (UTC)."),
        click.option("--master", help="Spark's master URL, to count the pilot; else local[*]."),
        click.option("--values", type=LocalPath(), help="File of a distribution: CSV of value,count, or TOML."),
        click.option("--counts", help="The distribution as value:count, such as 0:120,1:60,2:20; counts or shares."),
    )
    for option in reversed(options):
        command = option(command)
    return command


@click.command()
@click.argument("study", required=False)
@_pilot_options
@click.option("--change", help="The effect as a change of the mean, such as -0.15, or in percent of it, such as -3%.")
@click.option(
    "--superiority", type=float, help="The effect as the probability that a user with the change has the larger value."
)
@click.option(
    "--users",
    type=click.IntRange(1),
    help="Number of users enrolled in all arms (or pings), to compute the power or the smallest effect.",
)
@click.option("--table", help="Numbers of enrolled users for the table of power, such as 10000,20000,50000.")
@click.option(
    "--power",
    "wanted",
    type=float,
    default=0.8,
    show_default=True,
    help=("Power: the probability of detecting the effect."),
)
@click.option(
    "--alpha", type=float, default=0.05, show_default=True, help=("Probability of any false alarm among all tests.")
)
@click.option("--tests", type=click.IntRange(1), default=1, show_default=True, help="Number of tests that share alpha.")
@click.option(
    "--shares", default="50/50", show_default=True, help="Shares of the arms; the first is compared with the second."
)
@click.option(
    "--exposed", type=float, default=1.0, show_default=True, help="Share of the enrolled users that are compared."
)
@click.option("--simulations", type=click.IntRange(100, 1_000_000), default=4000, show_default=True)
@click.option("--seed", type=click.IntRange(0), default=1, show_default=True, help="Seed of the simulation.")
@store_option
@landing_option
@json_option
def effect(store_path: Place, landing: Place, as_json: bool, **options: Any) -> None:
    """Compute the number of users that show an effect with the Mann-Whitney test, by formula and by simulation.

    With --users instead of an effect: the smallest effect that they show. With both: the power. The values of users
    without the change are from the landed pilot STUDY, --values or --counts.
    """
    import msgspec

    from fedping.analysis.power import answer

    given = EffectOptions(**options)
    change, table = _change(given.change, given.superiority), _numbers(given.table, ",", "--table")
    if change is None and given.users is None:
        raise InvalidSettings("give the effect with --change or --superiority, or the number of users with --users")
    with status("reading the pilot") as set_status:
        pilot = _pilot(given, store_path, landing, set_status)
        report = answer(pilot, given.design, change, given.users, [int(number) for number in table], set_status)
    if as_json:
        click.echo(msgspec.json.encode(report).decode())
        return
    from fedping.analysis.power.report import print_power
    from fedping.terminal import console

    print_power(report, console())


@dataclass(frozen=True, kw_only=True)
class EffectOptions:
    """The options of the command by their names in Python."""

    study: str | None
    arm: str | None
    metric: str
    unit: Literal["client", "ping"]
    from_iteration: int | None
    to_iteration: int | None
    since: datetime | None
    until: datetime | None
    master: str | None
    values: Path | None
    counts: str | None
    change: str | None
    superiority: float | None
    users: int | None
    table: str | None
    wanted: float
    alpha: float
    tests: int
    shares: str
    exposed: float
    simulations: int
    seed: int

    @property
    def design(self) -> Design:
        """The settings of the test that are fixed in advance."""
        from fedping.analysis.power import Design

        return Design(
            shares=tuple(_numbers(self.shares, "/", "--shares")),
            exposed=self.exposed,
            alpha=self.alpha,
            tests=self.tests,
            power=self.wanted,
            studies=self.simulations,
            seed=self.seed,
        )

    @property
    def window(self) -> Window:
        """The pings of the pilot that count."""
        from fedping.analysis.study import Window

        return Window(self.from_iteration, self.to_iteration, milliseconds(self.since), milliseconds(self.until))


def _pilot(given: EffectOptions, store_path: Place, landing: Place, set_status: Callable[[str], None]) -> Pilot:
    from fedping.analysis.power import no_pilot, pilot_from_file, pilot_from_text

    if sum(source is not None for source in (given.study, given.values, given.counts)) > 1:
        raise InvalidSettings("give only one source of the distribution: a STUDY, --values or --counts")
    if given.values is not None:
        return pilot_from_file(given.values, given.metric, given.unit)
    if given.counts is not None:
        return pilot_from_text(given.counts, given.metric, given.unit)
    if given.study is None:
        return no_pilot(given.metric, given.unit)
    from fedping.model_store.store import open_store

    return _landed(open_store(store_path).study(given.study), given, landing, set_status)


def _landed(study: Study, given: EffectOptions, landing: Place, set_status: Callable[[str], None]) -> Pilot:
    from fedping.analysis.power import landed_pilot
    from fedping.analysis.study import count_study, metric_named
    from fedping.analysis.study.metrics import window_folders

    metric = metric_named(given.metric, study)
    if given.arm is None:
        raise InvalidSettings(
            f"--arm must name the arm of study '{study.name}' without the change: one of "
            f"{', '.join(one.name for one in study.arms)}"
        )
    arm = study.arm(given.arm).name
    window_folders(landing, study, given.window)  # reports missing pings before seconds go into starting Spark
    set_status("starting Spark")
    with analysis_session("fedping-power", given.master) as session:
        set_status("counting the pilot's pings")
        tally = count_study(session, landing, study, (metric,), given.window)
    return landed_pilot(tally, study.name, arm, metric, given.unit)


def _change(change: str | None, superiority: float | None) -> Change | None:
    from fedping.analysis.power import MeanChange, Superiority

    if change is not None and superiority is not None:
        raise InvalidSettings("use either --change or --superiority, not both")
    if change is not None:
        return MeanChange.parse(change)
    return None if superiority is None else Superiority(superiority)


def _numbers(given: str | None, separator: str, option: str) -> list[float]:
    try:
        numbers = [float(part) for part in (given or "").split(separator) if part.strip()]
    except ValueError as error:
        raise InvalidSettings(
            f"{option} '{given}' is not a list of numbers; see 'fedping power effect --help'"
        ) from error
    if any(not 0 < number < float("inf") for number in numbers):
        raise InvalidSettings(f"{option} '{given}' must have only numbers above 0; correct it")
    return numbers


FIGURES = (".svg", ".png", ".pdf")


@click.command()
@click.argument("experiment", type=LocalPath())
@click.option(
    "--cohorts",
    default="50,100,200,400,800",
    show_default=True,
    help=("Mean numbers of clients in a round, such as 50,100,200."),
)
@click.option(
    "--seeds",
    type=click.IntRange(1),
    default=3,
    show_default=True,
    help=("Number of runs per cohort, each with different users."),
)
@click.option(
    "--out",
    type=LocalPath(),
    help="A new folder for the runs and the curve, or an earlier one to continue or extend.  [default: power/<name "
    "of the experiment's file>]",
)
@click.option(
    "--iterations", type=click.IntRange(1), help=("Number of training iterations, instead of the experiment's.")
)
@click.option("--line", help="The model line to train, if the study has several.")
@click.option(
    "--validation-searches",
    type=click.IntRange(100, 10_000_000),
    default=20_000,
    show_default=True,
    help="Number of searches, by users who never train, for the mean final loss.",
)
@click.option(
    "--within",
    type=click.FloatRange(0, 1000),
    default=5.0,
    show_default=True,
    help="Largest acceptable difference from the best loss, in percent.",
)
@click.option(
    "--processes",
    type=click.IntRange(1),
    help="Number of runs at a time; the result does not depend on it.  [default: the number of cores]",
)
@click.option(
    "--figure", type=LocalPath(dir_okay=False), help=("Also draw the curve to this file: .svg, .png or .pdf.")
)
@click.option("--keep-pings", is_flag=True, help="Keep the landed pings of finished runs.")
@json_option
def train(experiment: Path, as_json: bool, **options: Any) -> None:
    """Compute the number of users that train a model: the final loss of EXPERIMENT's study by cohort size.

    A cohort is the mean number of clients with a usable ping in a round. Every cohort is simulated with several seeds,
    each run in its own folder. After a kill, the same command continues.
    """
    import msgspec

    from fedping.experiments.power import save_curve, training_curve, training_plan
    from fedping.experiments.simulate import experiment_from_toml

    given = TrainOptions(**options)
    if given.figure and given.figure.suffix not in FIGURES:
        raise InvalidSettings(f"--figure {given.figure}: the name must end in .svg, .png or .pdf")
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
        raise InvalidSettings(
            f"--cohorts '{given}' is not a list of numbers; write --cohorts 50,100,200,400"
        ) from error


@contextmanager
def _progress() -> Iterator[Watch]:
    """Show a bar on a terminal; without one, only the table is printed."""
    from fedping.terminal import bars

    with bars("training: {task.fields[runs]}", "rounds") as bar:
        task = bar.add_task("training", total=None, runs="enrolling")

        def watch(now: TrainingProgress) -> None:
            bar.update(task, completed=now.rounds, total=now.all_rounds, runs=f"{now.runs} of {now.all_runs} runs")

        yield watch


for _command in (effect, train):
    power.add_command(_command)
