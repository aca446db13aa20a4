"""Draws the pictures of the thesis' experiments (Hartmann 2018), and prints the figures of its tables.

The spread of samples (thesis 3.2) is the distance of the sampled users' mean update from all users' mean update.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple

import click
import numpy as np
from msgspec.structs import replace
from numpy.typing import NDArray

from fedping.analysis.figures import save_figure
from fedping.client_sim.data.seeds import generator
from fedping.client_sim.learning import updates_of_fleet
from fedping.client_sim.learning.batch import FloatArray
from fedping.client_sim.sampling import Cluster, Sampling, Stratified, Uniform, sampler_for
from fedping.client_sim.tradeoff import error_of_mask, keep_for, spread_of, times_variance, variance_of_mean
from fedping.experiments.laboratory.preparing import Problem, prepare
from fedping.experiments.laboratory.settings import Setup, experiment_from_toml
from fedping.experiments.papers.scripts.curves import curves
from fedping.experiments.papers.scripts.hartmann_pictures import PICTURES

SEARCHES = ((1, 2), (10, 10), (100, 100))
LEVELS = (
    ("hartmann_2018_published", "validation", "top_choice", 0.99),
    ("hartmann_2018_frecency", "validation", "top_choice", 0.99),
    ("hartmann_2018_private_rounds", "test", "accuracy", 0.92),
)
"""Tuples of an experiment, its examples, a metric, and the level that the metric has to pass."""
FIGURE_13 = Path(__file__).parents[1] / "hartmann_2018_figure_13.toml"
SAMPLING = Path(__file__).parents[1] / "hartmann_2018_sampling.toml"

CLIENTS = 20
"""Number of users in a sample, but a cluster is sampled whole, and a region has more users."""

VILLAGES = 100


class Spread(NamedTuple):
    """The spread of samples' mean updates around the mean update of all users.

    Attributes:
        clients: the average number of a sample's clients.
        variance: the mean squared distance, summed over the weights.
        of_simple: this variance divided by that of a simple sample of as many clients, drawn without replacement.
        signs_wrong: the share of weights whose sign differs from that of the mean of all users.
    """

    clients: float
    variance: float
    of_simple: float
    signs_wrong: float


SCHEMES: Mapping[str, tuple[Sampling, str]] = MappingProxyType(
    {
        "simple": (Uniform(clients=CLIENTS), "region"),
        "stratified by region": (Stratified(clients=CLIENTS), "region"),
        "one of 5 regions": (Cluster(clusters=1), "region"),
        "one of 100 villages": (Cluster(clusters=1), "village"),
    }
)
"""The samplings by name, with their groups. The users of a village are from random regions."""


def update_spreads(setup: Setup, seed: int, draws: int, searches: tuple[int, int] = (1, 2)) -> dict[str, Spread]:
    """Return the spread of each scheme's updates at the start weights, over a number of samples.

    Args:
        setup: a setup with synthetic users in groups.
        seed: seed of all draws.
        draws: number of samples.
        searches: minimum and maximum number of searches of a user.
    """
    problem = prepare(_with_searches(setup, searches), seed, None)
    updates = start_updates(setup, problem)
    groups = {"region": problem.train.natural_keys, "village": _villages(len(problem.train), seed)}  # type: ignore[attr-defined]
    return {name: _spread(updates, sampling, groups[of], seed, draws) for name, (sampling, of) in SCHEMES.items()}


def _with_searches(setup: Setup, searches: tuple[int, int]) -> Setup:
    groups = tuple(
        replace(group, population=replace(group.population, searches=searches)) for group in setup.data.groups
    )
    return replace(setup, data=replace(setup.data, groups=groups, judges=1))


def start_updates(setup: Setup, problem: Problem) -> FloatArray:
    """Return every user's update of the start weights, shape (users, m)."""
    clients = np.arange(len(problem.train))
    updates = np.empty((len(clients), problem.spec.m))
    start = problem.spec.start_array
    for block in updates_of_fleet(problem.model, setup.training, start, problem.train, clients, problem.keys(0)):
        updates[block.at] = block.updates
    return updates


def _villages(users: int, seed: int) -> NDArray[np.intp]:
    return generator(seed, "villages").permutation(users) % VILLAGES


def _spread(updates: FloatArray, sampling: Sampling, groups: NDArray[np.intp], seed: int, draws: int) -> Spread:
    sampler = sampler_for(sampling, np.ones(len(updates), np.int64), seed, groups)
    samples = [sampler.draw(number) for number in range(draws)]
    means = np.array([updates[sample].mean(axis=0) for sample in samples])
    full = updates.mean(axis=0)
    variance = float(((means - full) ** 2).sum(axis=1).mean())
    simple = float(updates.var(axis=0, ddof=1).sum() * np.mean([1 / len(one) - 1 / len(updates) for one in samples]))
    return Spread(
        clients=float(np.mean([len(sample) for sample in samples])),
        variance=variance,
        of_simple=variance / simple,
        signs_wrong=float((np.sign(means) != np.sign(full)).mean()),
    )


@click.command()
@click.argument("results", type=click.Path(exists=True, file_okay=False, path_type=Path))
@click.option("--figures", type=click.Path(path_type=Path), help="Folder to draw the pictures into.")
@click.option("--kind", type=click.Choice(["svg", "png"]), default="svg", show_default=True)
@click.option("--spreads", is_flag=True, help="Measure the variation of sampled updates (thesis 3.2); takes a minute.")
@click.option("--tradeoff", is_flag=True, help="Print the variation of figure 13's rounds, in closed form (4.5).")
def main(results: Path, figures: Path | None, kind: str, spreads: bool, tradeoff: bool) -> None:
    """Draw pictures of the finished experiments in RESULTS, and say when each passed a level."""
    done = [name for name in PICTURES if (results / name / "metrics.parquet").is_file()]
    for name in done:
        if figures is not None:
            figures.mkdir(parents=True, exist_ok=True)
            click.echo(save_figure(PICTURES[name](results), figures / f"{name}.{kind}"))
    for name, split, metric, level in LEVELS:
        if (results / name / "metrics.parquet").is_file():
            _say_first(results / name, split, metric, level)
    if spreads:
        _say_spreads()
    if tradeoff:
        _say_tradeoff()


def _say_first(folder: Path, split: str, metric: str, level: float) -> None:
    for variant, curve in curves(folder, split, metric).items():
        of_mean = curve.mean_first_above(level)
        click.echo(
            f"{folder.name}: {variant}: above {level:g} first in iterations {curve.first_above(level)}, by seed; "
            + (f"their mean in {of_mean}" if of_mean is not None else "their mean never")
        )


def _say_spreads() -> None:
    setup = experiment_from_toml(SAMPLING).variants["RProp, simple"]
    for searches in SEARCHES:
        for name, spread in update_spreads(setup, seed=1, draws=2000, searches=searches).items():
            figures = " ".join(f"{key} {value:.4g}" for key, value in spread._asdict().items())
            click.echo(f"{searches[0]} to {searches[1]} searches a user: {name}: {figures}")


def _say_tradeoff() -> None:
    variants = experiment_from_toml(FIGURE_13).variants
    setup = next(iter(variants.values()))
    spread = spread_of(start_updates(setup, prepare(setup, 1, None)))
    whole = variance_of_mean(spread, 200, 0.0, setup.data.users)
    click.echo(f"variance of users {spread.variance:.4g}, square of their mean {spread.mean_square:.4g}")
    for clients, keep in ((200, 1.0), (1000, 0.2), (2000, 0.1), (200, 0.2), (200, 0.1)):
        error = error_of_mask(keep)
        times = variance_of_mean(spread, clients, error, setup.data.users) / whole
        again = times_variance(spread, error, 200 / clients)
        click.echo(f"{clients:,} users, {keep:g} of the weights: {times:.3f} times the variance of 200 users and all")
        click.echo(f"  the same with users drawn with replacement: {again:.3f}")
    least = keep_for(spread, 2000, variance_of_mean(spread, 200))
    click.echo(f"2,000 users have the variance of 200 and all weights with {least:.3f} of the weights")


if __name__ == "__main__":
    main()
