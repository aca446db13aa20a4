"""Reads and draws curves of finished runs: the mean over seeds as a line with its 95 % band.

The t interval of a mean ignores the metric's bounds: an accuracy near 1 gets an interval beyond 1. The drawn band
ends at the bound; the tables give the whole interval.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from typing import TYPE_CHECKING, Literal, NamedTuple, TypeAlias

from fedping.analysis.figures import LIGHT
from fedping.analysis.figures.canvas import Dashes
from fedping.experiments.laboratory.summary import Band, band
from fedping.protocol.errors import FedpingError

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


@dataclass(frozen=True)
class Curve:
    """A metric of one variant by round; ``of_seeds`` has each seed's values at the same rounds."""

    rounds: list[int]
    bands: list[Band]
    of_seeds: list[list[float]]

    def first_above(self, level: float) -> list[int | None]:
        """Return each seed's first round with the metric above a level; None if it never is."""
        pairs = [zip(self.rounds, values, strict=True) for values in self.of_seeds]
        return [next((number for number, value in each if value > level), None) for each in pairs]

    def first_at_most(self, level: float) -> list[int | None]:
        """Return each seed's first round with the metric at or below a level; None if it never is."""
        pairs = [zip(self.rounds, values, strict=True) for values in self.of_seeds]
        return [next((number for number, value in each if value <= level), None) for each in pairs]

    def mean_first_above(self, level: float) -> int | None:
        """Return the first round with the mean over the seeds above a level; None if it never is."""
        means = (band.mean for band in self.bands)
        return next((number for number, mean in zip(self.rounds, means, strict=True) if (mean or 0.0) > level), None)


def curves(folder: Path, split: str, metric: str) -> dict[str, Curve]:
    """Return the curve of each variant and baseline of an experiment, in the file's order.

    Raises:
        FedpingError: the folder has no results.
    """
    import pyarrow.parquet as pq

    if not (folder / "metrics.parquet").is_file():
        raise FedpingError(f"{folder} has no results; run 'fedping simulate' with --out {folder} first")
    table = pq.read_table(folder / "metrics.parquet", filters=[("split", "=", split), ("metric", "=", metric)])
    found: dict[str, dict[int, dict[int, float]]] = {}
    for row in table.to_pylist():
        found.setdefault(row["variant"], {}).setdefault(row["seed"], {})[row["round"]] = row["value"]
    return {variant: _curve(list(of_seed.values())) for variant, of_seed in found.items()}


def _curve(of_seed: list[dict[int, float]]) -> Curve:
    """Return the curve up to the last round that every seed has."""
    rounds = sorted(set.intersection(*(set(values) for values in of_seed)))
    values = [[one[number] for number in rounds] for one in of_seed]
    return Curve(rounds, [band(list(column)) for column in zip(*values, strict=True)], values)


def megabytes_posted(folder: Path) -> dict[str, list[float]]:
    """Return each variant's megabytes posted by all its clients after each round, the mean over the seeds.

    Raises:
        FedpingError: the folder has no results.
    """
    return {
        variant: list(accumulate((band.mean or 0.0) / 1e6 for band in each.bands))
        for variant, each in curves(folder, "train", "posted_bytes").items()
    }


Corner: TypeAlias = Literal["lower left", "lower right", "upper left", "upper right", "upper center", "center left"]

SHARE = (0.0, 1.0)
"""The range of an accuracy or an AUC."""

POSITIVE = (0.0, float("inf"))
"""The range of a loss or a distance."""


class Style(NamedTuple):
    """The style of a line with its band.

    Attributes:
        place: the line's position among all lines, which determines its colour.
        within: the metric's bounds.
        dashes: the line's dashes; None for those of the place.
        marker: the markers' shape; None for no markers.
    """

    place: int
    within: tuple[float, float] = SHARE
    dashes: Dashes | None = None
    marker: str | None = None


def draw_band(axes: Axes, x: Sequence[float], bands: Sequence[Band], label: str, style: Style) -> None:
    """Draw a line of means with the band around it."""
    least, most = style.within
    means = [float("nan") if band.mean is None else band.mean for band in bands]
    halves = [band.half or 0.0 for band in bands]
    low = [max(mean - half, least) for mean, half in zip(means, halves, strict=True)]
    high = [min(mean + half, most) for mean, half in zip(means, halves, strict=True)]
    colour = LIGHT.of_arm(style.place)
    axes.fill_between(x, low, high, color=colour, alpha=0.12, linewidth=0)
    dashes = LIGHT.dashes_of_arm(style.place) if style.dashes is None else style.dashes
    axes.plot(x, means, linestyle=dashes, color=colour, linewidth=1.8, marker=style.marker, markersize=4, label=label)


def legend(axes: Axes, corner: Corner = "lower right", columns: int = 1, of: Axes | None = None) -> None:
    """Draw a legend of a panel's lines, or of the lines ``of`` another panel, in a corner, on an opaque ground."""
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
    """Add a line below a figure that explains its bands and their number of seeds; return the figure."""
    seeds = sorted({band.seeds for band in bands if band.half is not None})
    if seeds:
        of = f"{seeds[0]}" if len(seeds) == 1 else f"{seeds[0]} to {seeds[-1]}"
        text = f"Lines: means over {of} seeds. Bands: the 95 % t interval of that mean."
        figure.supxlabel(text, x=0.99, ha="right", fontsize=8.5, color=LIGHT.soft)
    return figure
