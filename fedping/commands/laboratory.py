"""`fedping sweep`, `compare`, `export` and `reproduce`: commands for laboratory experiments, with shared options."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from fedping.options import LocalPath, json_option
from fedping.protocol import log
from fedping.protocol.errors import FedpingError
from fedping.protocol.notation import with_minus

if TYPE_CHECKING:
    from msgspec import UnsetType
    from rich.console import Console
    from rich.table import Table

    from fedping.experiments.laboratory.comparing import Comparison
    from fedping.experiments.laboratory.pool import Progress as Now
    from fedping.experiments.laboratory.pool import Watch
    from fedping.experiments.laboratory.settings import Experiment
    from fedping.experiments.laboratory.summary import Band, Standing, Summary, VariantSummary
    from fedping.server_jobs.round import SparkEngine


_WIDE = 120
"""Width of tables without a terminal, in columns."""

_MOST_APART = 10
"""Maximum number of differing figures to print."""

_HEADINGS = {
    "central": "{},\ncentral",
    "personal": "{},\npersonal",
    "personal_worst": "personal,\nworst tenth",
    "gain": "{},\ngain",
    "local": "{},\nmean of clients",
    "local_worst": "{},\nworst tenth",
    "newcomers": "{},\nnewcomers",
    "trained": "{},\nbefore merging",
    "nodes": "{},\nmean of nodes",
    "attack": "attack:\n{}",
    "graph": "spectral\ngap",
}


_Command = TypeVar("_Command", bound=Callable[..., Any])


def laboratory_options(command: _Command) -> _Command:
    """Add the options of :class:`LaboratoryOptions`, except --over, to a command."""
    for option in (
        json_option,
        click.option(
            "--replace",
            is_flag=True,
            help="If the folder holds a laboratory experiment with other settings, code or data: repeat the runs "
            "that have changed.",
        ),
        click.option(
            "--set",
            "changes",
            multiple=True,
            metavar="KEY=VALUE",
            help="Change a setting of a laboratory experiment, as in --set training.rate=0.1; repeatable.",
        ),
        click.option(
            "--jobs",
            type=click.IntRange(1),
            help="Number of runs at a time of a laboratory experiment; the result does not depend on it.  [default: "
            "1; for runs of seconds, the number of cores]",
        ),
        click.option(
            "--master",
            help="Spark's master URL, with --engine spark; without one, what spark-submit says, or local[*].",
        ),
        click.option(
            "--engine",
            "engine_name",
            type=click.Choice(["numpy", "spark"]),
            default="numpy",
            show_default=True,
            help=(
                "Where runs compute: processes of this machine, or Spark executors. The result is the same to the "
                "last bit."
            ),
        ),
    ):
        command = option(command)
    return command


@dataclass(frozen=True, kw_only=True)
class LaboratoryOptions:
    """The options of a laboratory experiment by their names in Python.

    Attributes:
        engine_name: "numpy" for processes on this machine, or "spark".
        master: Spark's master URL; None for the default.
        jobs: number of parallel runs; None for the default.
        changes: settings of --set.
        over: axes of --over.
        replace: whether to run again what has changed.
        as_json: whether to print JSON.
    """

    engine_name: str
    master: str | None
    jobs: int | None
    changes: tuple[str, ...]
    over: tuple[str, ...] = ()
    replace: bool
    as_json: bool


@click.command()
@click.argument("experiment", type=LocalPath())
@click.option(
    "--over",
    multiple=True,
    required=True,
    metavar="KEY=A,B,...",
    help="A setting and its values, as in --over training.rate=0.1,0.3; several run all combinations.",
)
@click.option(
    "--out",
    type=LocalPath(),
    help="A new folder for the results, or the folder of a sweep to continue.  [default: simulated/<file>-sweep]",
)
@laboratory_options
def sweep(experiment: Path, over: tuple[str, ...], out: Path | None, **options: Any) -> None:
    """Run the laboratory experiment in the file EXPERIMENT at every point of a grid over any of its settings.

    Each point is a variant, and the file's own variants run at each point; the output is the same as of 'fedping
    simulate'. After a kill, the same command continues. With --engine spark, executors compute the runs; all of them
    must see the folder --out.
    """
    folder = out or Path("simulated") / f"{experiment.stem}-sweep"
    given = LaboratoryOptions(over=over, **options)
    with spark_for(given.engine_name, given.master, "sweep") as spark:
        run_laboratory(experiment, folder, given, spark)


@contextmanager
def spark_for(engine_name: str, master: str | None, command: str) -> Iterator[SparkEngine | None]:
    """Yield Spark's engine for simulations and close it at the end; yield None if the engine is not "spark".

    SIGINT and SIGTERM end the block in order.

    Raises:
        UsageError: a master is given, but the engine is not "spark".
        FedpingError: Spark is not installed.
    """
    if engine_name != "spark":
        if master is not None:
            raise click.UsageError("--master needs --engine spark; add that, or remove the option")
        yield None
        return
    if find_spec("pyspark") is None:
        raise FedpingError(
            f"fedping {command} --engine spark needs the package pyspark, which is not installed; install it with: "
            'pip install "fedping[spark]", or remove --engine'
        )
    from fedping.server_jobs.round import SparkEngine
    from fedping.server_jobs.shutdown import EndedBySignal, ended_by_signals
    from fedping.server_jobs.spark.session import spark_session
    from fedping.server_jobs.spark.settings import SparkSettings
    from fedping.server_jobs.spark.shipping import SIMULATING

    settings = SparkSettings(master=master, app_name=f"fedping-{command}", packages=SIMULATING)
    engine = SparkEngine(lambda: spark_session(settings))
    try:
        with ended_by_signals(), closing(engine):
            yield engine
    except EndedBySignal as ended:
        log.tell(ended.sentence, "info")
        click.get_current_context().exit(ended.exit_code)


def run_laboratory(file: Path, folder: Path, options: LaboratoryOptions, spark: SparkEngine | None = None) -> None:
    """Run the unfinished part of the laboratory experiment in a file, write its report, and print the summary."""
    import msgspec

    if spark is not None and options.jobs is not None:
        raise click.UsageError("--jobs has no effect with --engine spark, whose master sets the number; remove it")
    from fedping.experiments.laboratory.report import write_report
    from fedping.experiments.laboratory.run import run_experiment
    from fedping.experiments.laboratory.settings import experiment_from_toml
    from fedping.laboratory import let_import_from
    from fedping.protocol.formats import with_format

    let_import_from(file.parent)  # also extensions, which are imported when the file is read
    experiment = experiment_from_toml(file, options.changes, options.over)
    with _bar(experiment) as watch:
        sessions = spark.sessions if spark else None
        summary = run_experiment(experiment, folder, options.jobs, watch, options.replace, sessions)
    write_report(folder, folder / "report.html")
    if options.as_json:
        click.echo(with_format(msgspec.json.encode(summary)).decode())
    else:
        print_summary(summary, folder)
    if summary.all_diverged:
        raise FedpingError(
            f"every run in {folder} diverged, so there is no result to use. Lower the clients' or the server's rate; "
            "the notes say in which round each stopped"
        )


@contextmanager
def _bar(experiment: Experiment) -> Iterator[Watch]:
    """On a terminal, show a progress bar over all rounds, with rounds per second; otherwise, show nothing."""
    from fedping.experiments.laboratory.units import units_of
    from fedping.terminal import bars

    units = units_of(experiment)
    with bars("{task.description}") as bar:
        task = bar.add_task(
            f"{len(units)} runs", total=sum(_work(unit.setup.most_rounds, unit.baseline) for unit in units)
        )
        done: dict[object, int] = {}
        ended = 0

        def watch(now: Now) -> None:
            nonlocal ended
            work = _work(now.unit.setup.most_rounds, now.unit.baseline)
            done[now.unit] = work if now.finished else min(now.rounds, work)
            ended += now.finished
            speed = bar.tasks[0].speed
            pace = f", {speed:,.3g} rounds/s" if speed else ""
            bar.update(task, completed=sum(done.values()), description=f"{ended} of {len(units)} runs{pace}")

        yield watch


def _work(rounds: int, baseline: str | None) -> int:
    """Return the share of a run in the bar, in rounds."""
    return max(1, rounds if baseline is None else rounds // 10)


def print_summary(summary: Summary, folder: Path) -> None:
    """Print the table of variants and baselines, and the paths of report and metrics."""
    from fedping.experiments.laboratory.summary import LEGEND, standing

    console = wide_console()
    stands = standing(summary)
    console.print(_table(summary, stands))
    console.print(stands.sentence, highlight=False, style="bold", markup=False)
    repeated = f"mean ± 95 % t interval over {len(summary.seeds)} seeds" if len(summary.seeds) > 1 else "one seed"
    signs = f"; {LEGEND}" if len(summary.variants) > 1 else ""
    console.print(
        f"{repeated}{signs}; pictures are in {folder / 'report.html'}, all metrics in {folder / 'metrics.parquet'}",
        highlight=False,
    )
    for note in summary.notes:
        console.print(f"note: {note}", highlight=False, style="dim")


def wide_console() -> Console:
    """Return the console for tables; without a terminal, it is wide enough for them."""
    from rich.console import Console

    from fedping.terminal import AS_IT_IS

    console = Console(**AS_IT_IS)
    if not console.is_terminal:
        console.width = max(console.width, _WIDE)
    return console


def _table(summary: Summary, stands: Standing) -> Table:
    from rich import box
    from rich.table import Table

    from fedping.experiments.laboratory.report import columns_beside
    from fedping.experiments.laboratory.summary import SHOWN, shown_as

    table = Table(box=box.SIMPLE_HEAD, title=summary.name, title_justify="left")
    table.add_column("", no_wrap=True)
    columns = [(summary.split, metric) for metric in summary.shown]
    of_clients: tuple[str, ...] = ("local", "local_worst")
    if _has(summary, "personal"):  # includes means over the clients
        of_clients = ("central", "personal", "gain", "personal_worst")
        columns = [column for column in columns if column[0] != "personal"]
    of_clients = (*of_clients, "newcomers", "trained", "nodes")
    columns += [(split, summary.metric) for split in of_clients if _has(summary, split)]
    columns += [each for each in columns_beside(summary) if each[0] != "graph" or each[1] == "spectral_gap"]
    timed = summary.timed
    for heading in [
        *(
            _HEADINGS.get(split, "{}").format(shown_as(metric) if split == "attack" else metric)
            for split, metric in columns
        ),
        "rounds",
        "MB sent",
    ]:
        table.add_column(heading, justify="right", min_width=7)
    if timed:
        table.add_column("simulated\nhours", justify="right", min_width=9)
    if summary.target is not None:
        for unit in ("rounds", "hours") if timed else ("rounds",):
            table.add_column(f"{unit} to\n{summary.metric} {summary.target:g}", justify="right", min_width=7)
    for name, row in summary.variants.items():
        mark = stands.mark(name)
        style = "bold" if mark == SHOWN else None
        sent = _scaled(row.update_bytes, 1e6)
        hours = [_scaled(row.simulated_hours, 1) if row.simulated_hours else ""] if timed else []
        to_target = _to_target(summary, row.to_target, *([row.hours_to_target] if timed else []))
        numbers = (*_cells(row, columns), _scaled(row.rounds, 1), sent, *hours, *to_target)
        table.add_row(f"{mark or ' '} {name}", *numbers, style=style)
    table.add_section()
    for name, row in summary.baselines.items():
        table.add_row("  " + name, *_cells(row, columns), style="dim")
    return table


def _to_target(summary: Summary, *reached: Band | UnsetType) -> list[str]:
    """Return the cells with the cost of reaching the target, if any, and the seeds if not all reach it."""
    return [] if summary.target is None else [_reached(each, len(summary.seeds)) for each in reached]


def _reached(band: Band | UnsetType, seeds: int) -> str:
    if not band:  # another variant has simulated time
        return ""
    if band.mean is None:
        return "never"
    return _scaled(band, 1) + ("" if band.seeds == seeds else f" ({band.seeds} of {seeds} seeds)")


def _has(summary: Summary, split: str) -> bool:
    return any(split in row.metrics for row in summary.variants.values())


def _cells(row: VariantSummary, columns: list[tuple[str, str]]) -> list[str]:
    return [_cell(row.metrics.get(split, {}).get(metric)) for split, metric in columns]


def _cell(band: Band | None) -> str:
    if band is None or band.mean is None:
        return ""
    return with_minus(f"{band.mean:.4f}") + ("" if band.half is None else f" ±{band.half:.3f}")


def _scaled(band: Band, unit: float) -> str:
    return "" if band.mean is None else with_minus(f"{band.mean / unit:,.4g}")


@click.command()
@click.argument("a")
@click.argument("b")
@json_option
@click.option("--latex", type=LocalPath(), help="Also write the table to this file, in LaTeX.")
@click.option("--all", "show_all", is_flag=True, help="Also print the metrics of each class, which --json always has.")
def compare(a: str, b: str, as_json: bool, latex: Path | None, show_all: bool) -> None:
    """Show how B differs from A: folders of `fedping simulate` or `sweep`, or FOLDER:VARIANT if a folder has several.

    Differences are of the final models' metrics, paired by seed, with the 95 % t interval of their mean and the p-value
    of the paired t test. Baselines are variants too: centralised, local, start.
    """
    from fedping.experiments.laboratory.comparing import chosen, compared

    comparison = compared(chosen(a), chosen(b))
    if latex is not None:
        from fedping.experiments.laboratory.latex import write_latex

        write_latex(comparison.to_latex(), latex)
    if as_json:
        import msgspec

        click.echo(msgspec.json.encode(comparison).decode())
        return
    _print_comparison(comparison, show_all)


def _print_comparison(comparison: Comparison, show_all: bool) -> None:
    from rich import box
    from rich.table import Table

    from fedping.experiments.laboratory.summary import NO_QUALITY

    console: Console = wide_console()
    table = Table(box=box.SIMPLE_HEAD, title=f"a: {comparison.a}\nb: {comparison.b}", title_justify="left")
    for heading in ("split", "metric"):
        table.add_column(heading, no_wrap=True)
    for heading in ("a", "b", "b - a", "b - a, %", "p", "better"):
        table.add_column(heading, justify="right", no_wrap=True)
    shown = comparison.differences if show_all else comparison.overall
    for each in shown:
        half = each.difference.half
        digits = ",.0f" if each.split == "bytes" else ".4f"
        apart = f"{each.difference.mean:+{digits}}" + ("" if half is None else f" ±{half:{digits}}")
        percent = "" if each.percent is None else f"{each.percent:+.3g}"
        numbers = (with_minus(number) for number in (f"{each.a:{digits}}", f"{each.b:{digits}}", apart, percent))
        undecided = "estimated" if each.estimated else "" if each.split in NO_QUALITY else "not shown"
        p = "" if each.p is None else f"{each.p:.3g}"
        table.add_row(each.split, each.metric, *numbers, p, each.better or undecided)
    console.print(table)
    count = len(comparison.seeds)
    basis = f"paired by {count} seeds, 95 % t interval" if count > 1 else "one seed, so there is no interval"
    console.print(f"{basis}; one is better in a metric if the interval excludes 0", highlight=False)
    if hidden := len(comparison.differences) - len(shown):
        console.print(f"{hidden} rows of single classes are not shown; add --all to see them", highlight=False)
    for note in comparison.notes or ():
        console.print(note, highlight=False)


@click.command()
@click.argument("folder", type=LocalPath())
@click.option("--tensorboard", type=LocalPath(), help="A folder for event files, for tensorboard --logdir.")
@click.option("--mlflow", type=LocalPath(), help="A new or existing file store of MLflow, such as mlruns.")
@click.option("--latex", type=LocalPath(), help="A file for the table of final results in LaTeX.")
@click.option("--artifact", type=LocalPath(), help="A folder for reviewers, for fedping reproduce.")
def export(
    folder: Path, tensorboard: Path | None, mlflow: Path | None, latex: Path | None, artifact: Path | None
) -> None:
    """Write the results of the laboratory experiment in FOLDER for other tools, a paper or its reviewers.

    In TensorBoard and MLflow every finished run is a run, and every metric a series over the rounds, named by its
    split: test/accuracy. Neither tool needs to be installed. The table has the variants and baselines, the best in
    bold, with the p-values of paired t tests against it. The folder for reviewers has the experiment's file with all
    settings and seeds, its data, the packages' versions, and the expected figures. A repeated command overwrites its
    output.
    """
    from fedping.experiments.laboratory.exporting import write_mlflow, write_tensorboard

    if tensorboard is None and mlflow is None and latex is None and artifact is None:
        raise click.UsageError(
            "the command has no output; give --tensorboard, --mlflow or --artifact with a folder, or --latex with a "
            "file"
        )
    for to, write in ((tensorboard, write_tensorboard), (mlflow, write_mlflow)):
        if to is not None:
            click.echo(f"{write(folder, to)} runs are in {to}")
    if latex is not None:
        from fedping.experiments.laboratory.latex import write_latex
        from fedping.experiments.laboratory.latex_of_experiment import experiment_table

        write_latex(experiment_table(folder), latex)
        click.echo(f"the table is in {latex}")
    if artifact is not None:
        from fedping.experiments.laboratory.artifact import write_artifact

        left = write_artifact(folder, artifact)
        click.echo(f"the folder for reviewers is {artifact}; try it with: fedping reproduce {artifact}")
        for place in left:
            click.echo(f"not copied: {artifact / place}; the README there describes the missing data")


@click.command()
@click.argument("folder", type=LocalPath())
@click.option("--jobs", type=click.IntRange(1), help="Number of runs at a time; the result does not depend on it.")
@json_option
def reproduce(folder: Path, jobs: int | None, as_json: bool) -> None:
    """Repeat the experiment of FOLDER, written by `fedping export --artifact`, and compare every figure.

    It checks the files' digests and writes its results to FOLDER/rerun. After a kill, the same command continues. Exits
    with 1 if a figure differs by more than 1e-6 of its size. Modules in FOLDER can run code: take it from somebody
    whose programs you would run.
    """
    from fedping.experiments.laboratory.artifact import reproduce as run_again
    from fedping.laboratory import let_import_from

    let_import_from(folder)
    found = run_again(folder, jobs)
    if as_json:
        import msgspec

        click.echo(msgspec.json.encode(found).decode())
    else:
        click.echo(
            f"{found.figures - len(found.apart):,} of {found.figures:,} figures of {found.runs:,} runs are reproduced, "
            f"{found.same:,} to the bit; the largest relative difference is {found.largest:.2g}"
        )
        for where, wanted, got in found.apart[:_MOST_APART]:
            click.echo(f"{where}: expected {wanted}, found {got}")
        if found.found:
            click.echo(
                f"{found.found:,} of {found.runs:,} runs were in {folder / 'rerun'} before; if you did not run them, "
                "remove that folder, and run this command again"
            )
        if not found.same_environment:
            click.echo("this machine or its libraries differ from those of the results")
    if found.apart:
        raise click.exceptions.Exit(1)
