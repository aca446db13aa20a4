"""How the papers' pictures draw a mean over seeds: a line, its 95 % band within what the metric can be, and a note.

The t interval of a mean knows nothing of bounds: of accuracies near 1 it reaches beyond. No such value can be, so the
band ends there; the tables give the whole interval.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Literal, TypeAlias

from fedping.analysis.figures import LIGHT
from fedping.analysis.figures.canvas import Dashes
from fedping.experiments.laboratory.results.paired import Band

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Corner: TypeAlias = Literal["lower left", "lower right", "upper left", "upper right", "upper center", "center left"]

SHARE = (0.0, 1.0)
"""What an accuracy or an AUC can be."""

POSITIVE = (0.0, float("inf"))
"""What a loss or a distance can be."""


def draw_band(
    axes: Axes,
    x: Sequence[float],
    bands: Sequence[Band],
    label: str,
    place: int,
    within: tuple[float, float],
    *,
    dashes: Dashes | None = None,
    marker: str | None = None,
) -> None:
    """Draw a line of means and the band about it, in the colour and, unless told, the dashes of its place."""
    least, most = within
    means = [float("nan") if band.mean is None else band.mean for band in bands]
    halves = [band.half or 0.0 for band in bands]
    low = [max(mean - half, least) for mean, half in zip(means, halves, strict=True)]
    high = [min(mean + half, most) for mean, half in zip(means, halves, strict=True)]
    colour = LIGHT.of_arm(place)
    axes.fill_between(x, low, high, color=colour, alpha=0.12, linewidth=0)
    style = LIGHT.dashes_of_arm(place) if dashes is None else dashes
    axes.plot(x, means, linestyle=style, color=colour, linewidth=1.8, marker=marker, markersize=4, label=label)


def legend(axes: Axes, corner: Corner = "lower right", columns: int = 1, of: Axes | None = None) -> None:
    """Name a panel's lines, or those ``of`` another, in a corner, on paper that hides what would cross the names."""
    axes.legend(
        *(of or axes).get_legend_handles_labels(),
        loc=corner,
        ncols=columns,
        fontsize=9,
        labelcolor=LIGHT.ink,
        facecolor=LIGHT.paper,
        edgecolor="none",
        framealpha=0.85,
        borderaxespad=0.8,
    )


def noted(figure: Figure, bands: Iterable[Band]) -> Figure:
    """Say below a figure what its bands are, and return it; they are of as many seeds as the bands say."""
    seeds = sorted({band.seeds for band in bands if band.half is not None})
    if seeds:
        of = f"{seeds[0]}" if len(seeds) == 1 else f"{seeds[0]} to {seeds[-1]}"
        text = f"Lines: means over {of} seeds. Bands: the 95 % t interval of that mean."
        figure.supxlabel(text, x=0.99, ha="right", fontsize=8.5, color=LIGHT.soft)
    return figure
