"""The pictures of the papers' experiments, from finished runs; the thesis's are in ``hartmann_pictures.py``."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING

import click
import msgspec
import numpy as np

from fedping.analysis.figures import LIGHT, save_figure, titled
from fedping.analysis.figures.canvas import TEXT_SIZE, grid_across, panels
from fedping.experiments.laboratory.comparing import chosen
from fedping.experiments.laboratory.summary import Band, Summary, VariantSummary, difference, paired_by_seed
from fedping.experiments.papers.scripts.curves import POSITIVE, SHARE, Curve, Style, curves, draw_band, legend, noted
from fedping.experiments.papers.scripts.gates import draw_gates
from fedping.experiments.papers.scripts.hartmann_pictures import PICTURES as HARTMANN
from fedping.protocol.formats import without_format

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


WAYS = ("each alone", "together, federated", "together, data in one place")
BESIDE_ADAM = ("FA, Adam on the clients, kept", "FA, RMSprop on the clients", "FA, momentum on the clients")
"""Variants that figure 9 leaves out, because they lie too near to others; the tables have them."""
_NOTHING = Band(None, None, 0)


def draw_by_size(results: Path, name: str, title: str) -> Figure:
    """Draw a lender's gain by its number of examples: figures 6 and 7."""
    summary = _summary(results / name)
    models = ("logistic regression", "network")
    figure, axes = panels(LIGHT, 2, width=11.0)
    drawn: list[Band] = []
    for one, model in zip(axes, models, strict=True):
        drawn += _draw_ways(one, summary, [variant for variant in summary.variants if variant.startswith(model)])
        _finish(one, model, "training examples of each lender", "AUC, mean of the lenders")
    axes[1].set_ylabel("")
    legend(axes[0])
    return titled(noted(figure, drawn), title, theme=LIGHT)


def draw_by_ratings(results: Path) -> Figure:
    """Draw users' gain by their number of ratings, for users with many ratings."""
    return _one_panel(
        results / "fritsch_2018_figure_6_movielens",
        "44 users who rated 500 films or more (as figure 6)",
        "training examples of each user",
        "AUC, mean of the users",
    )


def draw_by_hidden_units(results: Path) -> Figure:
    """Draw a lender's gain by the size of the network: figure 8."""
    return _one_panel(
        results / "fritsch_2018_figure_8",
        "Lenders by purpose, by the size of the network (as figure 8)",
        "hidden units",
        "AUC, mean of the lenders",
    )


def draw_algorithms(results: Path) -> Figure:
    """Draw GD, Adam and federated averaging over the rounds: figure 9, and the same for logistic regression."""
    figure, axes = panels(LIGHT, 2, width=11.0)
    network = _federated(results / "fritsch_2018_figure_9", "test", "auc")
    drawn = _draw_curves(axes[0], {name: curve for name, curve in network.items() if name not in BESIDE_ADAM})
    drawn += _draw_curves(axes[1], _federated(results / "fritsch_2018_figure_9_logistic", "test", "auc"))
    for one, title in zip(axes, ("network of 100 hidden units", "logistic regression"), strict=True):
        _finish(one, title, "round", "AUC of all lenders' test examples")
    legend(axes[1], columns=2, of=axes[0])  # the same lines, two of them in the first panel alone
    axes[0].set_ylim(0.35, 0.83)
    axes[1].set_ylabel("")
    title = "Gradient descent, Adam, federated averaging with 50 steps (as figure 9)"
    return titled(noted(figure, drawn), title, theme=LIGHT)


def draw_local_noise(results: Path, name: str, title: str, after: int = 0) -> Figure:
    """Draw the cost of clients' own noise from round ``after`` on, by the norm C of a gradient: figures 10 and 11."""
    figure, (axes,) = panels(LIGHT)
    drawn = _draw_curves(axes, _federated(results / name, "test", "auc"), after)
    _finish(axes, "", "round", "AUC")
    axes.set_ylim(0.5, 1.01)
    legend(axes)
    return titled(noted(figure, drawn), title, theme=LIGHT)


def draw_private(results: Path) -> Figure:
    """Draw the loss of private training over the rounds, next to training without a guarantee."""
    figure, (axes,) = panels(LIGHT)
    drawn: list[Band] = []
    for place, (name, curve) in enumerate(_federated(results / "private", "test", "loss").items()):
        dashes = "--" if name.endswith("not private") else "-"
        draw_band(axes, curve.rounds, curve.bands, name, Style(place, POSITIVE, dashes=dashes))
        drawn += curve.bands
    axes.set(yscale="log")
    _finish(axes, "", "round", "test loss, points")
    axes.set_ylim(0.1, 100)
    legend(axes, "upper right", columns=2)
    return titled(noted(figure, drawn), "15 weights learned from signs, with and without ε = 1", theme=LIGHT)


def draw_digits(results: Path) -> Figure:
    """Draw the accuracy on digits over the rounds, for 5 and for 25 clients: table 4."""
    found = _federated(results / "rodriguez_barroso_2020_table_4", "test", "accuracy")
    figure, axes = panels(LIGHT, 2, width=11.0)
    drawn: list[Band] = []
    for one, clients in zip(axes, ("5 clients", "25 clients"), strict=True):
        end = f", {clients}"
        own = {name.removesuffix(end): curve for name, curve in found.items() if name.endswith(end)}
        drawn += _draw_curves(one, {"centralised": found["centralised"]} | own, after=1, marker="o")
        _finish(one, clients, "round of 5 epochs", "accuracy")
        one.set_xticks(found["centralised"].rounds[1:])
    axes[1].set_ylabel("")
    legend(axes[1])
    return titled(noted(figure, drawn), "5,000 digits of MNIST (table 4 is after ten rounds)", theme=LIGHT)


def draw_k_means(results: Path) -> Figure:
    """Draw the distance to the nearest centroid by round, for centroids averaged by position or clustered again."""
    folder = results / "rodriguez_barroso_2020_k_means"
    figure, axes = panels(LIGHT, 2, width=11.0)
    found, baselines = _federated(folder, "test", "loss"), _summary(folder).baselines
    drawn: list[Band] = []
    for one, clients in zip(axes, ("IID", "two labels each"), strict=True):
        end = f", {clients}"
        own = {name.removesuffix(end): curve for name, curve in found.items() if name.endswith(end)}
        drawn += _draw_curves(one, own, after=1, within=POSITIVE)
        central = baselines[f"centralised (mean{end})"].metrics["test"]["loss"].mean
        assert central is not None
        one.axhline(central, color=LIGHT.ink, linewidth=1.0, linestyle="--", label="all digits in one place")
        _finish(one, f"10 clients, {clients}", "round", "mean squared distance")
        one.set_xticks(range(0, 21, 5))
    axes[1].set_ylabel("")
    legend(axes[1], "upper right")
    return titled(noted(figure, drawn), "Ten clusters of digits", theme=LIGHT)


def draw_drift(results: Path) -> Figure:
    """Draw the gain of clients that keep a state over the rounds; FedProx, equal to FedAvg, is only in the table."""
    found = _federated(results / "karimireddy_2020_digits", "test", "loss")
    figure, (axes,) = panels(LIGHT)
    drawn = _draw_curves(axes, {name: found[name] for name in found if name != "FedProx"}, after=5, within=POSITIVE)
    _finish(axes, "", "round", "test loss")
    axes.set_ylim(0.1, 0.6)
    legend(axes, "upper right")
    return titled(noted(figure, drawn), "Digits, two classes a client: 8 of 40 clients a round", theme=LIGHT)


def draw_clock(results: Path) -> Figure:
    """Draw the loss of rounds and of FedBuff over simulated hours, for widely and slightly different speeds."""
    folder = results / "nguyen_2022_clock"
    found, times = _federated(folder, "test", "loss"), curves(folder, "train", "simulated_hours")
    level = _summary(folder).target or 0.0
    figure, axes = panels(LIGHT, 2, width=11.0)
    drawn: list[Band] = []
    places = {method: place for place, method in enumerate(dict.fromkeys(name.partition(": ")[2] for name in found))}
    for one, speeds in zip(axes, ("much", "little"), strict=True):
        start = f"{speeds}: "
        for name in (each for each in found if each.startswith(start)):
            hours = [0.0, *(band.mean or 0.0 for band in times[name].bands)]
            rounds = [number for number in found[name].rounds if 0 < number < len(hours)]
            bands = [
                band for number, band in zip(found[name].rounds, found[name].bands, strict=True) if number in rounds
            ]
            style = Style(places[name.removeprefix(start)], POSITIVE)
            draw_band(one, [hours[number] for number in rounds], bands, name.removeprefix(start), style)
            drawn += bands
        one.axhline(level, color=LIGHT.soft, linewidth=1.0)
        one.set(xscale="log")
        one.xaxis.set_major_formatter("{x:g}")
        _finish(one, f"speeds that differ {speeds}", "simulated hours", "test loss")
    axes[1].set_ylabel("")
    axes[0].set_ylim(0.1, 1.0)
    legend(axes[1], "upper right", of=axes[0])
    return titled(noted(figure, drawn), "Digits, 30 clients at work: rounds that wait, and FedBuff", theme=LIGHT)


def draw_gossip(results: Path) -> Figure:
    """Draw the loss of nodes' own models over the rounds, and the rounds until a loss by the graph's spectral gap."""
    folder = results / "gossip"
    level = _summary(folder).target or 0.0
    nodes, mean = _federated(folder, "nodes", "loss"), _federated(folder, "test", "loss")
    gaps = _federated(folder, "graph", "spectral_gap")
    figure, (over, by_gap) = panels(LIGHT, 2, width=11.0, one_scale=False)
    drawn = _draw_curves(over, nodes, within=POSITIVE)
    over.axhline(level, color=LIGHT.soft, linewidth=1.0)
    over.set(yscale="log", ylim=(0.15, 2.5))
    over.set_yticks((0.2, 0.4, 1, 2), ("0.2", "0.4", "1", "2"), minor=False)
    over.set_yticks((), minor=True)
    _finish(over, "test loss, mean of the nodes' own models", "round", "")
    legend(over, "upper right", columns=2)
    for place, (name, of_nodes) in enumerate(nodes.items()):
        gap = gaps[name].bands[-1].mean
        if gap is None or name.endswith(("exchanges", "away")):
            continue
        for curve, face in ((mean[name], LIGHT.paper), (of_nodes, LIGHT.of_arm(place))):
            reached = [number for number in curve.first_at_most(level) if number is not None]
            colour = LIGHT.of_arm(place)
            by_gap.plot(gap, np.mean(reached), "o", color=colour, markerfacecolor=face, markersize=7)
        place_of_name = (0, -18) if place in (0, 2) else (0, 9)  # so that no two names overlap
        at = (gap, float(np.mean(reached)))
        by_gap.annotate(name, at, place_of_name, textcoords="offset points", ha="center", fontsize=9, color=LIGHT.ink)
    by_gap.set(xscale="log", ylim=(0, 1.15 * by_gap.get_ylim()[1]))
    by_gap.xaxis.set_major_formatter("{x:g}")
    title = f"rounds to a loss of {level:g} (hollow: of the mean model)"
    _finish(by_gap, title, "spectral gap", "")
    by_gap.margins(x=0.12)
    return titled(noted(figure, drawn), "32 nodes with two labels each average over a graph", theme=LIGHT)


def _summary(folder: Path) -> Summary:
    file = folder / "summary.json"
    return msgspec.json.decode(without_format(file.read_bytes(), f"the file {file}"), type=Summary)


def _federated(folder: Path, split: str, metric: str) -> dict[str, Curve]:
    """Return the curves of the variants, without the baselines."""
    variants = _summary(folder).variants
    return {name: curve for name, curve in curves(folder, split, metric).items() if name in variants}


def _one_panel(folder: Path, title: str, across: str, up: str) -> Figure:
    summary = _summary(folder)
    figure, (axes,) = panels(LIGHT)
    drawn = _draw_ways(axes, summary, list(summary.variants))
    _finish(axes, "", across, up)
    legend(axes)
    return titled(noted(figure, drawn), title, theme=LIGHT)


def _draw_ways(axes: Axes, summary: Summary, variants: Sequence[str]) -> list[Band]:
    """Draw local, federated and centralised models of each variant, side by side, and return their bands."""
    drawn: list[Band] = []
    rows: Iterable[tuple[str, list[VariantSummary]]] = zip(
        WAYS,
        (
            [summary.baselines[f"local ({name})"] for name in variants],
            [summary.variants[name] for name in variants],
            [summary.baselines[f"centralised ({name})"] for name in variants],
        ),
        strict=True,
    )
    for place, (way, summaries) in enumerate(rows):
        bands = [one.metrics["local"].get("auc", _NOTHING) for one in summaries]
        style = Style(place, SHARE, dashes="--" if place == 2 else None, marker="o")
        draw_band(axes, range(len(bands)), bands, way, style)
        drawn += bands
    labels = [name.rpartition(", ")[2].partition(" ")[0] for name in variants]
    axes.set_xticks(range(len(variants)), labels)
    return drawn


def _draw_curves(
    axes: Axes,
    found: Mapping[str, Curve],
    after: int = 0,
    marker: str | None = None,
    within: tuple[float, float] = SHARE,
) -> list[Band]:
    """Draw curves from the round ``after`` on, and return their bands."""
    drawn: list[Band] = []
    for place, (name, curve) in enumerate(found.items()):
        there = [index for index, number in enumerate(curve.rounds) if number >= after]
        bands = [curve.bands[i] for i in there]
        draw_band(axes, [curve.rounds[i] for i in there], bands, name, Style(place, within, marker=marker))
        drawn += bands
    return drawn


def _finish(axes: Axes, title: str, across: str, up: str) -> None:
    axes.set(title=title, xlabel=across, ylabel=up)
    axes.title.set_fontsize(TEXT_SIZE)
    axes.margins(x=0.03)
    grid_across(axes, LIGHT)


def draw_ratings(results: Path) -> Figure:
    """Draw the error of predicted ratings over the rounds, with and without users' own factors: FedRecon's models."""
    figure, axes = panels(LIGHT, 2, width=11.0)
    drawn: list[Band] = []
    for one, split, title in zip(
        axes, ("personal", "central"), ("with their own factors", "with none, as a new user"), strict=True
    ):
        found = _federated(results / "singhal_2021_movielens", split, "rmse")
        alone = found.pop("each alone").bands[-1].mean
        drawn += _draw_curves(one, found, within=POSITIVE)
        if split == "personal" and alone is not None:
            one.axhline(alone, color=LIGHT.ink, linewidth=1.0, linestyle="--", label="each alone, in the end")
        _finish(one, title, "round", "RMSE in stars, mean of the users")
    axes[1].set_ylabel("")
    axes[0].set_ylim(0.8, 1.05)
    legend(axes[1], columns=2, of=axes[0])
    return titled(noted(figure, drawn), "Ratings of films, four factors a film", theme=LIGHT)


def draw_experts(results: Path) -> Figure:
    """Draw users' accuracy by the noise on their updates, with and without a domain expert: figure 3 of FL+DE."""
    folder = results / "peterson_2019_classification"
    summary = _summary(folder)
    titles = {"genres": "genres that 15 users like", "topics": "spam, 11 made topics", "at random": "spam at random"}
    figure, axes = panels(LIGHT, 3, width=13.0, one_scale=False)
    drawn: list[Band] = []
    for one, (data, title) in zip(axes, titles.items(), strict=True):
        for place, method in enumerate(("FL", "FL+DE")):
            start = f"{data}: {method}, sigma "
            found = {int(name.removeprefix(start)): name for name in summary.variants if name.startswith(start)}
            bands = [summary.variants[name].metrics["personal"]["accuracy"] for name in found.values()]
            draw_band(one, range(len(found)), bands, method, Style(place, SHARE, marker="o"))
            one.set_xticks(range(len(found)), [str(noise) for noise in found])
            drawn += bands
        _finish(one, title, "noise σ, in units of the clip", "accuracy, mean of the users")
    for one in axes[1:]:
        one.set_ylabel("")
    legend(axes[0], "lower left")
    return titled(noted(figure, drawn), "Clients with and without their own expert (as figure 3)", theme=LIGHT)


def draw_methods(results: Path) -> Figure:
    """Draw clients' gain from each method over a single shared model, by their number of examples."""
    folder = results / "personal_methods"
    one_for_all = "one model for all"
    found: dict[str, dict[str, list[str]]] = {}  # by data and examples, in the file's order
    for variant in _summary(folder).variants:
        where, _, method = variant.partition(": ")
        data, _, examples = where.partition(", ")
        if method != one_for_all:
            found.setdefault(data, {}).setdefault(examples, []).append(method)
    figure, axes = panels(LIGHT, len(found), width=11.0, height=4.6)
    drawn: list[Band] = []
    for one, (data, sizes) in zip(axes, found.items(), strict=True):
        for place, (examples, methods) in enumerate(sizes.items()):
            shared = chosen(f"{folder}:{data}, {examples}: {one_for_all}").outcomes.values()
            own = [chosen(f"{folder}:{data}, {examples}: {method}").outcomes.values() for method in methods]
            bands = [difference(paired_by_seed(shared, each, "personal", "accuracy")) for each in own]
            one.errorbar(
                [np.nan if band.mean is None else band.mean for band in bands],
                [row + 0.24 * (place - (len(sizes) - 1) / 2) for row in range(len(methods))],
                xerr=[band.half or 0.0 for band in bands],
                fmt="os^Dv"[place % 5],
                color=LIGHT.of_arm(place),
                markersize=5,
                linewidth=1.6,
                label=f"{examples} examples",
            )
            one.set_yticks(range(len(methods)), methods)
            one.set_ylim(len(methods) - 0.5, -0.5)
            drawn += bands
        one.axvline(0, color=LIGHT.ink, linewidth=1.0)
        one.set(title=data, xlabel="accuracy minus the accuracy of one model for all")
        one.title.set_fontsize(TEXT_SIZE)
        one.grid(axis="x", linewidth=0.8, color=LIGHT.faint)
    legend(axes[-1], "center left")
    text = f"Points: mean differences over {max(band.seeds for band in drawn)} seeds. Lines: their 95 % t intervals."
    figure.supxlabel(text, x=0.99, ha="right", fontsize=8.5, color=LIGHT.soft)
    return titled(figure, "Methods that personalize, by the examples that a client has", theme=LIGHT)


PICTURES: Mapping[str, Callable[[Path], Figure]] = MappingProxyType(
    {
        "fritsch_2018_figure_6": lambda results: draw_by_size(
            results, "fritsch_2018_figure_6", "Lenders by purpose, by their number of examples (as figure 6)"
        ),
        "fritsch_2018_figure_6_movielens": draw_by_ratings,
        "fritsch_2018_figure_7": lambda results: draw_by_size(
            results, "fritsch_2018_figure_7", "Lenders at random, by their number of examples (as figure 7)"
        ),
        "fritsch_2018_figure_8": draw_by_hidden_units,
        "fritsch_2018_figure_9": draw_algorithms,
        "fritsch_2018_figure_10": lambda results: draw_local_noise(
            results, "fritsch_2018_figure_10", "Clients that add noise of σ = 0.5, by C (as figure 10)"
        ),
        "fritsch_2018_figure_11": lambda results: draw_local_noise(
            results,
            "fritsch_2018_figure_11",
            "A network of 100 hidden units with clients' noise of σ = 0.5, by C (as figure 11)",
            after=5,  # a network's start is random
        ),
        "karimireddy_2020_digits": draw_drift,
        "gossip": draw_gossip,
        "nguyen_2022_clock": draw_clock,
        "personal_methods": draw_methods,
        "peterson_2019_classification": draw_experts,
        "peterson_2019_regression": draw_gates,
        "private": draw_private,
        "rodriguez_barroso_2020_table_4": draw_digits,
        "rodriguez_barroso_2020_k_means": draw_k_means,
        "singhal_2021_movielens": draw_ratings,
    }
)
"""The function that draws each picture, by the name of its file."""


@click.command()
@click.argument("results", type=click.Path(exists=True, file_okay=False, path_type=Path))
@click.option("--figures", required=True, type=click.Path(path_type=Path), help="Folder to draw the pictures into.")
@click.option("--kind", type=click.Choice(["svg", "png"]), default="svg", show_default=True)
def main(results: Path, figures: Path, kind: str) -> None:
    """Draw the pictures of the finished experiments in RESULTS, one folder per experiment, named as its file.

    A picture of several experiments is drawn once all of them are finished.
    """
    figures.mkdir(parents=True, exist_ok=True)
    for name, draw in {**PICTURES, **HARTMANN}.items():
        if not (results / name / "summary.json").is_file():
            continue
        try:
            click.echo(save_figure(draw(results), figures / f"{name}.{kind}"))
        except FileNotFoundError as error:
            click.echo(f"{name}: not drawn, because {error.filename} is missing", err=True)


if __name__ == "__main__":
    main()
