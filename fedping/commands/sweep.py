"""`fedping sweep`: a laboratory experiment at every point of a grid over its settings."""

from __future__ import annotations

from pathlib import Path

import click

from fedping.commands.laboratory import LaboratoryOptions, jobs_option, replace_option, run_laboratory, set_option
from fedping.commands.spreading import spark_for, spread_master_option, spread_option
from fedping.options import LocalPath, json_option


@click.command()
@click.argument("experiment", type=LocalPath())
@click.option(
    "--over",
    multiple=True,
    required=True,
    metavar="KEY=A,B,...",
    help="An axis of the grid, as in --over training.rate=0.1,0.3; several make all combinations.",
)
@click.option(
    "--out",
    type=LocalPath(),
    help="A new folder for the results; or that of a sweep to continue.  [default: simulated/<file>-sweep]",
)
@spread_option
@spread_master_option
@jobs_option
@set_option
@replace_option
@json_option
def sweep(
    experiment: Path,
    over: tuple[str, ...],
    out: Path | None,
    engine_name: str,
    master: str | None,
    jobs: int | None,
    changes: tuple[str, ...],
    replace: bool,
    as_json: bool,
) -> None:
    """Run the laboratory experiment in the file EXPERIMENT at every point of a grid over any of its settings.

    Each point is a variant, and each of the file's own variants runs at each point; results are those of 'fedping
    simulate'. If it is killed at any moment, the same command continues where it was. With --engine spark, executors do
    the runs; all of them must see the folder --out.
    """
    folder = out or Path("simulated") / f"{experiment.stem}-sweep"
    options = LaboratoryOptions(jobs=jobs, changes=changes, over=over, replace=replace, as_json=as_json)
    with spark_for(engine_name, master, "sweep") as spark:
        run_laboratory(experiment, folder, options, spark)
