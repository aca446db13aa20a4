"""The pictures of the thesis' experiments (Hartmann 2018), from finished runs.

The accuracies that the author published are constants here: validation accuracy by model version, seed 10, from the
outputs of https://github.com/florian/federated-learning, simulations/frecency.ipynb, July 2018.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING

from fedping.analysis.figures import LIGHT, titled
from fedping.analysis.figures.canvas import TEXT_SIZE, grid_across, panels
from fedping.experiments.laboratory.summary import Band
from fedping.experiments.papers.scripts.curves import (
    POSITIVE,
    SHARE,
    Corner,
    Curve,
    Style,
    curves,
    draw_band,
    legend,
    megabytes_posted,
    noted,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


RPROP_NUMERIC = (
    *(0.7518, 0.7566, 0.8106, 0.8262, 0.8896, 0.889, 0.882, 0.9658, 0.9842, 0.9984, 0.9988, 0.9990, 0.999, 0.9998),
    *(0.999, 1.0, 1.0),
)
"""Accuracies of versions 0 to 16, followed by 1.0 up to the last version, 47."""

RPROP_ANALYTIC = (
    *(0.7518, 0.7542, 0.7612, 0.8112, 0.806, 0.800, 0.797, 0.8684, 0.866, 0.867, 0.868, 0.867, 0.8742, 0.910, 0.905),
    *(0.9358, 0.939, 0.9456, 0.9526, 0.9568, 0.955, 0.951, 0.952, 0.9578, 0.957, 0.9622, 0.863, 1.0, 0.927, 1.0),
)
"""Accuracies of versions 0 to 29, then 1.0. The client weighs by violation, without the chosen page's own term."""

GRADIENT_DESCENT_ANALYTIC = (0.7518, 0.579, 0.828, 0.9532, 0.9544, 0.963, 0.9782, 0.973, 0.975, 0.979, 0.9806)
"""Accuracies of versions 0 to 10, at a rate of 30, with the same client; later ones are from 0.974 to 0.981."""

VERSIONS = 48

_THEIRS = "theirs, one seed"

_STRUCTURES = ("inputs fixed, rank 62", "outputs fixed, rank 8", "mask, a tenth", "both factors, rank 8")

_ENCODINGS = ("dense", "EDEN, 1 bit", "steps 2", "levels, 1 bit, rotated", "mask, a tenth", "mask, a fiftieth")
"""The drawn variants of a network's encodings; the others lie on these lines and are only in the tables."""
LESS_NOISE = ("bound 0.1, ε = 100", "bound 0.1, ε = 30")
"""Variants that aren't drawn, because they lie on the line of the bound without noise; the table has them."""


def draw_published(results: Path) -> Figure:
    """Draw the validation accuracy on the published users, next to the accuracy that the author published."""
    figure, (axes,) = panels(LIGHT)
    found = curves(results / "hartmann_2018_published", "validation", "top_choice")
    drawn = _draw(
        axes, {name: found[name] for name in ("RProp, numeric", "RProp, analytic", "RProp, analytic, margin 1")}
    )
    for values, place in ((RPROP_NUMERIC, 0), (RPROP_ANALYTIC, 1)):
        label = f"{_THEIRS}: RProp, {'numeric' if place == 0 else 'analytic'}"
        axes.plot(to_the_end(values), ":", color=LIGHT.of_arm(place), linewidth=1.6, label=label)
    _finish(axes, "", "iteration", "searches with the wanted page on top")
    _level(axes)
    return titled(noted(figure, drawn), "Validation accuracy, users as published", theme=LIGHT)


def draw_frecency(results: Path) -> Figure:
    """Draw the validation accuracy on users as the thesis' text describes them."""
    figure, (axes,) = panels(LIGHT)
    found = _variants(curves(results / "hartmann_2018_frecency", "validation", "top_choice"))
    for place, (name, curve) in enumerate(found.items()):
        dashes = "--" if name.endswith("analytic") else "-"
        draw_band(axes, curve.rounds, curve.bands, name, Style(place // 2, SHARE, dashes=dashes))
    _finish(axes, "", "iteration", "searches with the wanted page on top")
    _level(axes)
    drawn = [band for curve in found.values() for band in curve.bands]
    return titled(noted(figure, drawn), "Validation accuracy, users as thesis 7.3 describes them", theme=LIGHT)


def _level(axes: Axes) -> None:
    axes.axhline(0.99, color=LIGHT.soft, linewidth=0.8, linestyle="--")
    axes.set_ylim(top=1.004)


def draw_noise(results: Path) -> Figure:
    """Draw the validation accuracy for users who choose with noise; the dashed lines are the true weights'."""
    figure, axes = panels(LIGHT, 2, width=11.0)
    found = curves(results / "hartmann_2018_noise", "validation", "top_choice")
    drawn: list[Band] = []
    for one, variance in zip(axes, ("30", "30,000"), strict=True):
        end = f", variance {variance}"
        own = {name.removesuffix(end): curve for name, curve in found.items() if name.endswith(end)}
        truth = own.pop("true weights").bands[0].mean
        drawn += _draw(one, own)
        assert truth is not None
        one.axhline(truth, color=LIGHT.ink, linewidth=1.0, linestyle="--", label="true weights")
        corner: Corner = "lower right" if variance == "30" else "upper right"
        _finish(one, f"noise of variance {variance}", "iteration", "searches with the wanted page on top", corner)
    axes[1].set_ylabel("")
    return titled(noted(figure, drawn), "Validation accuracy with noisy choices", theme=LIGHT)


def draw_signs(results: Path) -> Figure:
    """Draw the validation accuracy of RProp on dense updates and on signs."""
    figure, (axes,) = panels(LIGHT)
    drawn = _draw(axes, _variants(curves(results / "hartmann_2018_signs", "validation", "top_choice")))
    axes.set_ylim(0.82, 1.0)
    _finish(axes, "", "iteration", "searches with the wanted page on top")
    return titled(noted(figure, drawn), "RProp on updates and on their signs", theme=LIGHT)


def draw_sampling(results: Path) -> Figure:
    """Draw the loss by round for each sampling method, with both optimizers."""
    figure, axes = panels(LIGHT, 2, width=11.0)
    found = curves(results / "hartmann_2018_sampling", "validation", "loss")
    drawn: list[Band] = []
    for one, optimizer in zip(axes, ("gradient descent", "RProp"), strict=True):
        start = f"{optimizer}, "
        own = {name.removeprefix(start): curve for name, curve in found.items() if name.startswith(start)}
        drawn += _draw(one, own, POSITIVE)
        _finish(one, optimizer, "round", "validation loss", "lower left")
    axes[0].set_ylim(bottom=0)
    axes[1].set_ylabel("")
    return titled(noted(figure, drawn), "20 of 2,000 users a round, by the way of sampling", theme=LIGHT)


def draw_early_stopping(results: Path) -> Figure:
    """Draw the loss on training, validation and test examples by round, for runs without early stopping."""
    figure, (axes,) = panels(LIGHT)
    folder = results / "hartmann_2018_early_stopping"
    loss = {split: curves(folder, split, "loss")["never stopped"] for split in ("train", "validation", "test")}
    drawn = _draw(axes, loss, POSITIVE)
    best = min(range(len(loss["validation"].rounds)), key=lambda at: loss["validation"].bands[at].mean or 0.0)
    axes.axvline(loss["validation"].rounds[best], color=LIGHT.soft, linewidth=1.0, linestyle="--", label="best version")
    _finish(axes, "", "round", "cross-entropy", "upper center", columns=2)
    return titled(noted(figure, drawn), "A network of 100 hidden units on 1,000 credits", theme=LIGHT)


def draw_private_rounds(results: Path) -> Figure:
    """Draw the test accuracy of private training of several lengths, by round on a logarithmic axis from round 5."""
    figure, (axes,) = panels(LIGHT)
    found = curves(results / "hartmann_2018_private_rounds", "test", "accuracy")
    schedules = {name: curve for name, curve in found.items() if not name.endswith((" 25 rounds", " 100 rounds"))}
    drawn: list[Band] = []
    for place, (name, curve) in enumerate(schedules.items()):
        draw_band(axes, curve.rounds[1:], curve.bands[1:], name, Style(place, SHARE))
        drawn += curve.bands
    axes.set(xscale="log", ylim=(0.73, 0.95))
    axes.set_xticks([5, 10, 25, 50, 100, 200, 400], ["5", "10", "25", "50", "100", "200", "400"], minor=False)
    axes.minorticks_off()
    _finish(axes, "", "round", "test accuracy")
    return titled(noted(figure, drawn), "A spam filter of 3,680 users with one e-mail each", theme=LIGHT)


def draw_regularisers(results: Path) -> Figure:
    """Draw the test loss of a model that overfits, with and without private training."""
    figure, (axes,) = panels(LIGHT)
    found = curves(results / "hartmann_2018_private_regularisers", "test", "loss")
    lines = {name: curve for name, curve in found.items() if name not in LESS_NOISE}
    drawn = _draw(axes, lines, POSITIVE)
    axes.set_ylim(0.2, 1.25)
    _finish(axes, "", "round", "test loss, nats", "upper left", columns=2)
    return titled(noted(figure, drawn), "230 users with one e-mail each, and no penalty on the weights", theme=LIGHT)


def draw_figure_13(results: Path) -> Figure:
    """Draw the validation accuracy with masks, for equal numbers sent per round and for always 200 users."""
    figure, axes = panels(LIGHT, 2, width=11.0)
    found = curves(results / "hartmann_2018_figure_13", "validation", "top_choice")
    whole = "200 users, all weights"
    drawn: list[Band] = []
    for one, title, names in (
        (axes[0], "as many numbers a round", (whole, "1,000 users, a fifth", "2,000 users, a tenth")),
        (axes[1], "200 users always", (whole, "200 users, a fifth", "200 users, a tenth")),
    ):
        drawn += _draw(one, {name: found[name] for name in names})
        one.set_ylim(0.88, 1.0)
        _finish(one, title, "iteration", "searches with the wanted page on top")
    axes[1].set_ylabel("")
    return titled(noted(figure, drawn), "Masks, and the number of users asked (as figure 13)", theme=LIGHT)


def draw_personalization(results: Path) -> Figure:
    """Draw the accuracy of the shared model and of users' own models, with a personal model and with a vector."""
    figure, axes = panels(LIGHT, 2, width=11.0)
    folder = results / "hartmann_2018_personalization"
    drawn: list[Band] = []
    for one, title, of in (
        (axes[0], "as figure 14: fine-tuning", "transfer"),
        (axes[1], "as figure 15: a vector", "vector"),
    ):
        for split, dashes in (("central", "--"), ("personal", "-")):
            found = curves(folder, split, "top_choice")
            for place, name in enumerate((of, f"{of}, slow drift")):
                own = found[name]
                label = "fast drift" if place == 0 else "slow drift"
                draw_band(one, own.rounds, own.bands, f"{split}, {label}", Style(place, SHARE, dashes=dashes))
                drawn += own.bands
        for iteration, said in ((12, "personal"), (19, "drift")):
            one.axvline(iteration, color=LIGHT.soft, linewidth=0.8, linestyle=":")
            one.text(iteration, 0.861, f" {said}", color=LIGHT.soft, fontsize=9)
        one.set_ylim(0.86, 0.97)
        _finish(one, title, "iteration", "searches with the wanted page on top", "upper left")
    axes[1].set_ylabel("")
    return titled(noted(figure, drawn), "The shared model and the users' own", theme=LIGHT)


def draw_compression(results: Path) -> Figure:
    """Draw the accuracy of a network over the rounds, and over the bytes that its clients posted."""
    return _by_rounds_and_bytes(
        results / "hartmann_2018_compression", _ENCODINGS, (0.5, 0.9), "Encodings of 10,345 weights"
    )


def draw_million(results: Path) -> Figure:
    """Draw the accuracy of a large network over the rounds, and over the bytes that its clients posted."""
    names = [name for name in _ENCODINGS if name != "mask, a tenth"]
    return _by_rounds_and_bytes(results / "hartmann_2018_million", names, (0.6, 0.9), "Encodings of 1,000,120 weights")


def draw_structured(results: Path) -> Figure:
    """Draw the accuracy of networks trained within the sent structure, and of networks whose unsent rest is dropped."""
    figure, axes = panels(LIGHT, 2, width=11.0)
    found = curves(results / "hartmann_2018_structured", "test", "accuracy")
    drawn: list[Band] = []
    for one, end, title in (
        (axes[0], "", "sketched: the rest is left out"),
        (axes[1], ", structured", "structured: trained within the subspace that is sent"),
    ):
        names = ["dense", *(name + end for name in _STRUCTURES)]
        drawn += _draw(one, {name: found[name] for name in names})
        one.set_ylim(0.4, 0.95)
        _finish(one, title, "round", "accuracy")
    axes[1].set_ylabel("")
    return titled(noted(figure, drawn), "A tenth of 79,510 weights, sent in eight ways", theme=LIGHT)


def _by_rounds_and_bytes(folder: Path, names: Sequence[str], within: tuple[float, float], title: str) -> Figure:
    figure, axes = panels(LIGHT, 2, width=11.0)
    found, megabytes = curves(folder, "test", "accuracy"), megabytes_posted(folder)
    drawn = _draw(axes[0], {name: found[name] for name in names})
    for place, name in enumerate(names):
        own = found[name]
        draw_band(
            axes[1],
            [megabytes[name][number - 1] for number in own.rounds[1:]],
            own.bands[1:],
            name,
            Style(place, SHARE),
        )
    for one in axes:
        one.set_ylim(*within)
    axes[1].set_xscale("log")
    axes[1].xaxis.set_major_formatter("{x:g}")
    axes[1].tick_params(which="minor", color=LIGHT.faint)
    _finish(axes[0], "by round", "round", "accuracy")
    _finish(axes[1], "by the bytes that all clients had posted", "MB, as they travel", "")
    axes[1].get_legend().remove()  # type: ignore[union-attr]  # the same names
    return titled(noted(figure, drawn), title, theme=LIGHT)


def _variants(found: Mapping[str, Curve]) -> dict[str, Curve]:
    return {name: curve for name, curve in found.items() if not name.startswith("start")}


def _draw(axes: Axes, found: Mapping[str, Curve], within: tuple[float, float] = SHARE) -> list[Band]:
    """Draw curves, and return their bands."""
    drawn: list[Band] = []
    for place, (name, curve) in enumerate(found.items()):
        dashes = (0, (3, 3)) if "margin" in name else None  # it hides another line
        draw_band(axes, curve.rounds, curve.bands, name, Style(place, within, dashes=dashes))
        drawn += curve.bands
    return drawn


def _finish(axes: Axes, title: str, across: str, up: str, corner: Corner = "lower right", columns: int = 1) -> None:
    axes.set(title=title, xlabel=across, ylabel=up)
    axes.title.set_fontsize(TEXT_SIZE)
    axes.margins(x=0.02)
    grid_across(axes, LIGHT)
    legend(axes, corner, columns)


def to_the_end(values: tuple[float, ...]) -> list[float]:
    """Return the accuracies of all versions, with the last value repeated to the end."""
    return [*values, *[values[-1]] * (VERSIONS - len(values))]


PICTURES: Mapping[str, Callable[[Path], Figure]] = MappingProxyType(
    {
        "hartmann_2018_published": draw_published,
        "hartmann_2018_frecency": draw_frecency,
        "hartmann_2018_noise": draw_noise,
        "hartmann_2018_signs": draw_signs,
        "hartmann_2018_sampling": draw_sampling,
        "hartmann_2018_early_stopping": draw_early_stopping,
        "hartmann_2018_figure_13": draw_figure_13,
        "hartmann_2018_personalization": draw_personalization,
        "hartmann_2018_compression": draw_compression,
        "hartmann_2018_million": draw_million,
        "hartmann_2018_structured": draw_structured,
        "hartmann_2018_private_rounds": draw_private_rounds,
        "hartmann_2018_private_regularisers": draw_regularisers,
    }
)
"""The function that draws each picture, by the name of its file."""
