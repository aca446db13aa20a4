"""How a laboratory experiment is shown on a terminal: a bar while it runs, a table when it is done."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import click

from fedping.protocol.notation import with_minus

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

    from fedping.experiments.laboratory.pool import Progress as Now
    from fedping.experiments.laboratory.pool import Watch
    from fedping.experiments.laboratory.settings import Experiment
    from fedping.experiments.laboratory.summary import Band, Standing, Summary, VariantSummary
    from fedping.server_jobs.round import SparkEngine

jobs_option = click.option(
    "--jobs",
    type=click.IntRange(1),
    help="Runs of a laboratory experiment at a time; the result does not depend on it.  [default: 1, or the cores "
    "where runs take seconds]",
)

replace_option = click.option(
    "--replace",
    is_flag=True,
    help="If the folder holds a laboratory experiment with other settings, code or data: run what has changed again.",
)

set_option = click.option(
    "--set",
    "changes",
    multiple=True,
    metavar="KEY=VALUE",
    help="Change a setting of a laboratory experiment, as in --set training.rate=0.1; repeatable.",
)

_WIDE = 120
"""Columns where there is no terminal to ask, as in a file."""

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


@dataclass(frozen=True, kw_only=True)
class LaboratoryOptions:
    """The options of a laboratory experiment on the command line.

    Attributes:
        jobs: number of parallel runs; None for the default.
        changes: settings of --set.
        over: axes of --over.
        replace: whether to run again what has changed.
        as_json: whether to print JSON.
    """

    jobs: int | None
    changes: tuple[str, ...]
    over: tuple[str, ...] = ()
    replace: bool
    as_json: bool


def run_laboratory(file: Path, folder: Path, options: LaboratoryOptions, spark: SparkEngine | None = None) -> None:
    """Run the unfinished part of the laboratory experiment in a file, write its report, and print the summary."""
    import msgspec

    if spark is not None and options.jobs is not None:
        raise click.UsageError("--jobs does not apply: with --engine spark, the master says how many there are")
    from fedping.experiments.laboratory.report import write_report
    from fedping.experiments.laboratory.run import run_experiment
    from fedping.experiments.laboratory.settings import experiment_from_toml
    from fedping.protocol.formats import with_format

    _let_import_from(file.parent)  # extensions, too, which are met when the file is read
    experiment = experiment_from_toml(file, options.changes, options.over)
    with _bar(experiment) as watch:
        sessions = spark.sessions if spark else None
        summary = run_experiment(experiment, folder, options.jobs, watch, options.replace, sessions)
    write_report(folder, folder / "report.html")
    if options.as_json:
        click.echo(with_format(msgspec.json.encode(summary)).decode())
        return
    print_summary(summary, folder)


def _let_import_from(folder: Path) -> None:
    """Let modules that an experiment names, such as that of an own loss, lie beside its file.

    The folder comes last: a file of somebody's that is named as one of Python's modules, or ours, takes nobody's place.
    Runs in processes of their own get the path from this one.
    """
    if (path := str(folder.resolve())) not in sys.path:
        sys.path.append(path)


@contextmanager
def _bar(experiment: Experiment) -> Iterator[Watch]:
    """Show a bar over all rounds on a terminal; elsewhere nothing, for the summary tells."""
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
            bar.update(task, completed=sum(done.values()), description=f"{ended} of {len(units)} runs")

        yield watch


def _work(rounds: int, baseline: str | None) -> int:
    """Return how much of the bar a run is."""
    return max(1, rounds if baseline is None else rounds // 10)


def print_summary(summary: Summary, folder: Path) -> None:
    """Print the table of variants and baselines, and where everything lies."""
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
    """Return the console to print tables on, wide enough for them where it is no terminal."""
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
    if _has(summary, "personal"):  # means over the clients as well
        of_clients = ("central", "personal", "gain", "personal_worst")
        columns = [column for column in columns if column[0] != "personal"]
    of_clients = (*of_clients, "newcomers", "trained", "nodes")
    columns += [(split, summary.metric) for split in of_clients if _has(summary, split)]
    columns += [each for each in columns_beside(summary) if each[0] != "graph" or each[1] == "spectral_gap"]
    for heading in [
        *(
            _HEADINGS.get(split, "{}").format(shown_as(metric) if split == "attack" else metric)
            for split, metric in columns
        ),
        "rounds",
        "MB sent",
    ]:
        table.add_column(heading, justify="right", min_width=7)
    if summary.target is not None:
        table.add_column(f"rounds to\n{summary.metric} {summary.target:g}", justify="right", min_width=7)
    for name, row in summary.variants.items():
        mark = stands.mark(name)
        style = "bold" if mark == SHOWN else None
        sent = _told(row.update_bytes, 1e6)
        told = (*_cells(row, columns), _told(row.rounds, 1), sent, *_to_target(summary, row))
        table.add_row(f"{mark or ' '} {name}", *told, style=style)
    table.add_section()
    for name, row in summary.baselines.items():
        table.add_row("  " + name, *_cells(row, columns), "", "", style="dim")
    return table


def _to_target(summary: Summary, row: VariantSummary) -> list[str]:
    """Return the cell of the rounds to the target, if there is one: of how many seeds, where not of all."""
    if summary.target is None:
        return []
    reached, seeds = row.to_target, len(summary.seeds)
    if reached.mean is None:
        return ["never"]
    return [_told(reached, 1) + ("" if reached.seeds == seeds else f" ({reached.seeds} of {seeds} seeds)")]


def _has(summary: Summary, split: str) -> bool:
    return any(split in row.metrics for row in summary.variants.values())


def _cells(row: VariantSummary, columns: list[tuple[str, str]]) -> list[str]:
    return [_cell(row.metrics.get(split, {}).get(metric)) for split, metric in columns]


def _cell(band: Band | None) -> str:
    if band is None or band.mean is None:
        return ""
    return with_minus(f"{band.mean:.4f}") + ("" if band.half is None else f" ±{band.half:.3f}")


def _told(band: Band, unit: float) -> str:
    return "" if band.mean is None else with_minus(f"{band.mean / unit:,.4g}")
