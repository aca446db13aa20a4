"""`fedping describe`: pictures of the clients' data of a laboratory experiment, computed from sums alone."""

from __future__ import annotations

from pathlib import Path

import click

from fedping.options import LocalPath
from fedping.protocol.errors import InvalidSettings


@click.command()
@click.argument("experiment", type=LocalPath())
@click.option(
    "--out",
    type=LocalPath(),
    help="The folder of the pictures.  [default: simulated/<name of the experiment's file>-data]",
)
@click.option("--variant", help="The variant whose data are described; the first if left out.")
@click.option("--seed", type=click.IntRange(0), help="The seed of the partition; the experiment's first if left out.")
@click.option(
    "--feature",
    "features",
    multiple=True,
    help="A feature to draw; repeatable. Those that differ most between clients if left out.",
)
@click.option(
    "--set",
    "changes",
    multiple=True,
    metavar="KEY=VALUE",
    help="Change a setting of the experiment, as in --set partition.clients=20; repeatable.",
)
def describe(
    experiment: Path,
    out: Path | None,
    variant: str | None,
    seed: int | None,
    features: tuple[str, ...],
    changes: tuple[str, ...],
) -> None:
    """Draw what the clients' data of the laboratory experiment in the file EXPERIMENT look like, from sums alone.

    The pictures, each as .png and .svg, are the clients' sizes and targets, the distributions of features by client,
    and the features' correlations. Clients report counts and sums, as in 'description.json', and no example. They are
    of all examples, before these are split and prepared. Modules next to EXPERIMENT can run code, as in 'fedping
    simulate'.
    """
    from fedping.analysis.figures import save_figure
    from fedping.experiments.laboratory import describing
    from fedping.experiments.laboratory.describing_figures import figures
    from fedping.experiments.laboratory.settings import experiment_from_toml
    from fedping.experiments.run_folder import write_whole_bytes
    from fedping.laboratory import let_import_from

    let_import_from(experiment.parent)
    settings = experiment_from_toml(experiment, changes)
    name = variant if variant is not None else next(iter(settings.variants))
    if name not in settings.variants:
        raise InvalidSettings(f"--variant {name[:80]}: it does not exist. Choose {', '.join(settings.variants)}")
    data, notes = describing.examples_of(settings.variants[name], settings.seeds[0] if seed is None else seed)
    description = describing.describe(data, features)
    folder = out or Path("simulated") / f"{experiment.stem}-data"
    folder.mkdir(parents=True, exist_ok=True)
    for picture, draw in figures().items():
        drawn = draw(description)
        for kind in ("png", "svg"):
            save_figure(drawn, folder / f"{picture}.{kind}")
    write_whole_bytes(folder / "description.json", description.to_json())
    sizes = description.sizes
    click.echo(
        f"{len(sizes):,} clients with {int(sizes.min()):,} to {int(sizes.max()):,} examples, {int(sizes.sum()):,} in "
        f"all; {len(data.features):,} features"
    )
    differing = sorted(description.distributions, key=lambda each: -each.between)[:3]
    if len(sizes) > 1 and differing:
        named = ", ".join(f"{each.name} {100 * each.between:.1f} %" for each in differing)
        click.echo(f"of a feature's variance, between clients' means: {named}")
    for note in notes:
        click.echo(f"note: {note}")
    if description.left_out and not features:
        left = f"{description.left_out:,} more features are not among the correlations"
        click.echo(f"note: {left}; name some by --feature")
    click.echo(f"pictures and their numbers are in {folder}: {', '.join(figures())}")
