"""`fedping simulate`: a whole study, or a laboratory experiment, on this machine and by the same round code."""

from __future__ import annotations

import tomllib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import click

from fedping.commands.laboratory import LaboratoryOptions, jobs_option, replace_option, run_laboratory, set_option
from fedping.commands.spreading import spark_for, spread_master_option, spread_option
from fedping.options import LocalPath, json_option
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
    help="A new folder for the store, the landed pings and the summary; or that of a run to continue.  "
    "[default: simulated/<name of the experiment's file>]",
)
@click.option("--clients", type=click.IntRange(1), help="Instead of the experiment's own number.")
@click.option(
    "--iterations", type=click.IntRange(0), help="Of the optimization, instead of the experiment's own number."
)
@click.option("--evaluation-ticks", type=click.IntRange(0), help="Instead of the experiment's own number.")
@click.option("--seed", type=click.IntRange(0), help="Instead of the experiment's own.")
@click.option("--threads", type=click.IntRange(1), help="Of a study; the result does not depend on it.  [default: 2]")
@spread_option
@spread_master_option
@jobs_option
@set_option
@replace_option
@json_option
def simulate(
    experiment: Path,
    out: Path | None,
    clients: int | None,
    iterations: int | None,
    evaluation_ticks: int | None,
    seed: int | None,
    threads: int | None,
    engine_name: str,
    master: str | None,
    jobs: int | None,
    changes: tuple[str, ...],
    replace: bool,
    as_json: bool,
) -> None:
    """Run what the file EXPERIMENT describes: a study if it names one, a laboratory experiment if it has a [model].

    A study runs through optimization and evaluation, and leaves what the real path leaves: versions in <out>/store,
    landed pings in <out>/landing, but none of a private study. A laboratory experiment trains any model with any of the
    algorithms, compares variants with each other and with baselines, and leaves its metrics and weights. If it is
    killed at any moment, the same command continues where it was. The same seed gives the same bits.

    With --engine spark, executors simulate the clients of a study, or do the runs of a laboratory experiment; all of
    them must see the folder --out.
    """
    of_study = {
        "--clients": clients,
        "--iterations": iterations,
        "--evaluation-ticks": evaluation_ticks,
        "--seed": seed,
        "--threads": threads,
    }
    if _is_of_the_laboratory(experiment):
        _refuse(
            of_study, f"{experiment} is a laboratory experiment; change its settings by --set, as in --set rounds=10"
        )
        folder = out or Path("simulated") / experiment.stem
        with spark_for(engine_name, master, "simulate") as spark:
            options = LaboratoryOptions(jobs=jobs, changes=changes, replace=replace, as_json=as_json)
            run_laboratory(experiment, folder, options, spark)
        return
    _refuse(
        {"--jobs": jobs, "--set": changes or None, "--replace": replace or None},
        f"{experiment} is the experiment of a study",
    )
    from fedping.experiments.simulate import experiment_from_toml
    from fedping.experiments.simulate import simulate as run
    from fedping.server_jobs.privacy.budget import needs_accounting

    settings, study = experiment_from_toml(experiment)
    settings = _changed(settings, clients, iterations, evaluation_ticks, seed)
    folder = out or Path("simulated") / experiment.stem
    if needs_accounting(study) and not (folder / "store").exists():
        click.echo("fedping: working out how much noise keeps the guarantee, which may take some seconds", err=True)
    if engine_name == "spark" and threads is not None:
        raise click.UsageError("--threads does not apply: with --engine spark, the master says how many there are")
    with spark_for(engine_name, master, "simulate") as spark, _progress() as watch:
        summary = run(settings, study, folder, threads or 2, watch, spark)
    if as_json:
        import msgspec

        from fedping.protocol.formats import with_format

        click.echo(with_format(msgspec.json.encode(summary)).decode())
        return
    from fedping.experiments.simulate import PrivateSummary

    if isinstance(summary, PrivateSummary):
        _print_private(summary, folder)
    else:
        _print(summary, folder)


def _is_of_the_laboratory(path: Path) -> bool:
    """Return whether a file is a laboratory experiment's: it has a [model] or a [line], and no study.

    A file that can't be read is none; its reader reports the error.

    Raises:
        InvalidSettings: it has none of these.
    """
    try:
        raw = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return False
    if raw.keys().isdisjoint({"model", "line", "study"}):
        raise InvalidSettings(
            f"the file {path} describes nothing to simulate: it has neither a [model] or [line], as laboratory "
            'experiments have, nor study = "...", the study file that an experiment is about'
        )
    return "study" not in raw


def _refuse(options: Mapping[str, object], why: str) -> None:
    given = [name for name, value in options.items() if value is not None]
    if given:
        raise click.UsageError(f"{given[0]} does not apply: {why}")


def _changed(
    settings: Experiment, clients: int | None, iterations: int | None, evaluation_ticks: int | None, seed: int | None
) -> Experiment:
    """Return the experiment with what the options change."""
    from msgspec.structs import replace

    if clients is not None:
        settings = replace(settings, clients=clients)
    if seed is not None:
        settings = replace(settings, seed=seed)
    if iterations is not None:
        settings = replace(settings, optimization=replace(settings.optimization, iterations=iterations))
    if evaluation_ticks is not None:
        if settings.evaluation is None:
            raise InvalidSettings("the experiment has no [evaluation] whose --evaluation-ticks could change; add one")
        settings = replace(settings, evaluation=replace(settings.evaluation, ticks=evaluation_ticks))
    return settings


@contextmanager
def _progress() -> Iterator[Watch]:
    """Show a bar on a terminal; elsewhere nothing, for the summary tells."""
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
    console.print(f"everything is in {folder}; all figures are in {folder / 'summary.json'}", highlight=False)


def _print_private(summary: PrivateSummary, folder: Path) -> None:
    from fedping.analysis.private import in_words

    click.echo(f"{summary.study}: {summary.clients:,} clients. {summary.caution}\n")
    click.echo(in_words(summary.results))
    click.echo()
    for name, line in summary.lines.items():
        ended = " The line ended there." if line.exhausted else ""
        click.echo(f"line {name}: version {line.version}. {line.spent.sentence}{ended}")
    click.echo(f"everything is in {folder}; all figures are in {folder / 'summary.json'}")


def _compared(line: LineFigures) -> str:
    """Return how the loss of what was trained went beside that of the controls, in words."""
    if not line.controls:
        return "its loss has no control to be compared with, for every arm that follows it applies it"
    raw, smooth = line.below_all_controls_from, line.below_all_controls_from_smoothed
    if raw is None and smooth is None:
        return "the loss of the trained arms was not below that of every control to the end"
    below = "the loss of the trained arms was below that of every control"
    if raw is None:
        return f"smoothed over five versions, {below} from version {smooth} onwards; unsmoothed, not to the end"
    smoothed = "not to the end" if smooth is None else f"from version {smooth} onwards"
    return f"{below} from version {raw} onwards (smoothed over five versions: {smoothed})"


def _print_phase(console: Console, name: str, phase: PhaseFigures) -> None:
    from rich import box
    from rich.table import Table

    title = f"{name}: {phase.pings:,} pings of {phase.clients:,} clients"
    title += f", {phase.hostile_pings:,} pings of hostile ones" if phase.hostile_pings else ""
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
