"""`fedping simulate`: a whole study or a laboratory experiment on this machine, with the code of real rounds."""

from __future__ import annotations

import tomllib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from fedping.commands.laboratory import LaboratoryOptions, laboratory_options, run_laboratory, spark_for
from fedping.options import LocalPath
from fedping.protocol.errors import InvalidSettings
from fedping.protocol.notation import with_minus

if TYPE_CHECKING:
    from rich.console import Console

    from fedping.experiments.simulate import Experiment, PrivateSummary, Summary
    from fedping.experiments.simulate.run import Progress, Watch
    from fedping.experiments.simulate.summary import LineFigures, PhaseFigures


@click.command()
@click.argument("experiment", type=LocalPath())
@click.option(
    "--out",
    type=LocalPath(),
    help="A new folder for the store, the landed pings and the summary, or the folder of a run to continue.  "
    "[default: simulated/<name of the experiment's file>]",
)
@click.option("--clients", type=click.IntRange(1), help="Number of clients, instead of the experiment's.")
@click.option(
    "--iterations", type=click.IntRange(0), help="Number of training iterations, instead of the experiment's."
)
@click.option(
    "--evaluation-ticks",
    type=click.IntRange(0),
    help=("Number of ticks of the evaluation, instead of the experiment's."),
)
@click.option("--seed", type=click.IntRange(0), help="Seed, instead of the experiment's.")
@click.option(
    "--threads",
    type=click.IntRange(1),
    help=("Number of threads for a study; the result does not depend on it.  [default: 2]"),
)
@laboratory_options
def simulate(experiment: Path, out: Path | None, **options: Any) -> None:
    """Run the experiment in the file EXPERIMENT: of a study if it names one, of the laboratory if it has a [model].

    A study runs through optimization and evaluation, and writes the same data as a real one: versions in <out>/store
    and landed pings in <out>/landing, except pings of a private study. A laboratory experiment trains any model with
    any algorithm, compares variants with each other and with baselines, and writes metrics and weights. After a kill,
    the same command continues. The same seed gives the same bits.

    With --engine spark, executors simulate the clients of a study, or compute the runs of a laboratory experiment; all
    of them must see the folder --out.
    """
    of_study = StudyOptions(**{name: options.pop(name) for name in StudyOptions.names()})
    of_laboratory = LaboratoryOptions(**options)
    folder = out or Path("simulated") / experiment.stem
    if _is_of_laboratory(experiment):
        of_study.refuse_all(
            f"{experiment} is a laboratory experiment; change its settings with --set, as in --set rounds=10"
        )
        with spark_for(of_laboratory.engine_name, of_laboratory.master, "simulate") as spark:
            run_laboratory(experiment, folder, of_laboratory, spark)
        return
    _refuse(
        {
            "--jobs": of_laboratory.jobs,
            "--set": of_laboratory.changes or None,
            "--replace": of_laboratory.replace or None,
        },
        f"{experiment} is the experiment of a study",
    )
    _simulate_study(experiment, folder, of_study, of_laboratory)


@dataclass(frozen=True, kw_only=True)
class StudyOptions:
    """The options that replace settings of a study's experiment, by their names in Python; None without an option."""

    clients: int | None
    iterations: int | None
    evaluation_ticks: int | None
    seed: int | None
    threads: int | None

    @classmethod
    def names(cls) -> list[str]:
        """Return the names of the options in Python."""
        return [field.name for field in fields(cls)]

    def refuse_all(self, reason: str) -> None:
        """Raise :class:`click.UsageError` with a reason if any of the options is given."""
        _refuse({f"--{name.replace('_', '-')}": getattr(self, name) for name in self.names()}, reason)

    def applied_to(self, settings: Experiment) -> Experiment:
        """Return the experiment with the changes of the options.

        Raises:
            InvalidSettings: the ticks of an evaluation are given, but the experiment has none.
        """
        from msgspec.structs import replace

        if self.clients is not None:
            settings = replace(settings, clients=self.clients)
        if self.seed is not None:
            settings = replace(settings, seed=self.seed)
        if self.iterations is not None:
            settings = replace(settings, optimization=replace(settings.optimization, iterations=self.iterations))
        if self.evaluation_ticks is not None:
            if settings.evaluation is None:
                raise InvalidSettings("--evaluation-ticks needs an [evaluation] in the experiment; add one")
            settings = replace(settings, evaluation=replace(settings.evaluation, ticks=self.evaluation_ticks))
        return settings


def _is_of_laboratory(path: Path) -> bool:
    """Return whether a file has a [model] or [line] and no study; False if it can't be read (reported later).

    Raises:
        InvalidSettings: the file has none of these.
    """
    try:
        tables = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return False
    if tables.keys().isdisjoint({"model", "line", "study"}):
        raise InvalidSettings(
            f"the file {path} is not an experiment: add [model] or [line] for a laboratory experiment, or study = "
            '"..." to simulate a study file'
        )
    return "study" not in tables


def _refuse(options: Mapping[str, object], reason: str) -> None:
    given = [name for name, value in options.items() if value is not None]
    if given:
        raise click.UsageError(f"{given[0]} has no effect: {reason}")


def _simulate_study(file: Path, folder: Path, of_study: StudyOptions, given: LaboratoryOptions) -> None:
    from fedping.experiments.simulate import PrivateSummary, experiment_from_toml
    from fedping.experiments.simulate import simulate as run
    from fedping.server_jobs.privacy.budget import needs_accounting

    settings, study = experiment_from_toml(file)
    settings = of_study.applied_to(settings)
    if needs_accounting(study) and not (folder / "store").exists():
        click.echo("fedping: deriving the noise that keeps the guarantee, which may take some seconds", err=True)
    if given.engine_name == "spark" and of_study.threads is not None:
        raise click.UsageError("--threads has no effect with --engine spark, whose master sets the number; remove it")
    with spark_for(given.engine_name, given.master, "simulate") as spark, _progress() as watch:
        summary = run(settings, study, folder, of_study.threads or 2, watch, spark)
    if given.as_json:
        import msgspec

        from fedping.protocol.formats import with_format

        click.echo(with_format(msgspec.json.encode(summary)).decode())
    elif isinstance(summary, PrivateSummary):
        _print_private(summary, folder)
    else:
        _print(summary, folder)


@contextmanager
def _progress() -> Iterator[Watch]:
    """Show a bar on a terminal; without one, only the summary is printed."""
    from fedping.terminal import bars

    with bars("{task.description}", "{task.fields[pings]}") as bar:
        tasks: dict[str, int] = {}

        def watch(now: Progress) -> None:
            pings = "" if now.pings is None else f"{now.pings:,} pings"
            if now.phase not in tasks:
                tasks[now.phase] = bar.add_task(now.phase, total=now.total, pings=pings)
            bar.update(tasks[now.phase], completed=now.done, total=now.total, pings=pings)  # type: ignore[arg-type]

        yield watch


def _print(summary: Summary, folder: Path) -> None:
    from fedping.terminal import console as terminal

    console = terminal()
    console.print(
        f"{summary.study}: {summary.clients:,} clients, {summary.senders:,} of them sent {summary.pings:,} pings",
        highlight=False,
    )
    _print_phase(console, "optimization", summary.optimization)
    if summary.evaluation:
        _print_phase(console, "evaluation", summary.evaluation)
    for name, line in summary.lines.items():
        console.print(
            f"line {name}: {line.rounds} rounds, version {line.frozen_version} "
            f"{'evaluated' if summary.evaluation else 'is the newest'}; {_compared(line)}",
            highlight=False,
        )
    console.print(f"the results are in {folder}; all figures are in {folder / 'summary.json'}", highlight=False)


def _print_private(summary: PrivateSummary, folder: Path) -> None:
    from fedping.analysis.private import in_words

    click.echo(f"{summary.study}: {summary.clients:,} clients. {summary.caution}\n")
    click.echo(in_words(summary.results))
    click.echo()
    for name, line in summary.lines.items():
        ended = " The line ended there." if line.exhausted else ""
        click.echo(f"line {name}: version {line.version}. {line.spent.sentence}{ended}")
    click.echo(f"the results are in {folder}; all figures are in {folder / 'summary.json'}")


def _compared(line: LineFigures) -> str:
    """Return the comparison of the trained arms' loss with the controls' in words."""
    if not line.controls:
        return "its loss has no control to compare with, because every arm that follows the line applies its versions"
    raw, smooth = line.below_all_controls_from, line.below_all_controls_from_smoothed
    if raw is None and smooth is None:
        return "the loss of the trained arms was not below every control's until the end"
    below = "the loss of the trained arms was below every control's"
    if raw is None:
        return f"smoothed over five versions, {below} from version {smooth} on; unsmoothed, not until the end"
    smoothed = "not to the end" if smooth is None else f"from version {smooth} on"
    return f"{below} from version {raw} on (smoothed over five versions: {smoothed})"


def _print_phase(console: Console, name: str, phase: PhaseFigures) -> None:
    from rich import box
    from rich.table import Table

    title = f"{name}: {phase.pings:,} pings of {phase.clients:,} clients"
    title += f", {phase.hostile_pings:,} pings by hostile ones" if phase.hostile_pings else ""
    table = Table(box=box.SIMPLE_HEAD, title=title, title_justify="left")
    table.add_column("arm", no_wrap=True)
    for heading in ("clients", "pings", "selections", "characters", "rank", "loss"):
        table.add_column(heading, justify="right")
    for arm, one in phase.arms.items():
        counts = (f"{number:,}" for number in (one.clients, one.pings, one.selections))
        means = (
            "" if mean is None else with_minus(form.format(mean))
            for mean, form in ((one.characters, "{:.4f}"), (one.rank, "{:.4f}"), (one.loss, "{:,.2f}"))
        )
        table.add_row(arm, *counts, *means)
    console.print(table)
