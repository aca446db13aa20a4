"""Figures of a report: a metric over the rounds with its band, and the final models side by side."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from fedping.analysis.figures.canvas import (
    HEIGHT,
    TEXT_SIZE,
    Dashes,
    LineEnd,
    Theme,
    as_it_is,
    grid_across,
    label_ends,
    panels,
)
from fedping.client_sim.learning.batch import FloatArray
from fedping.experiments.laboratory.summary import VariantSummary, band, shown_as
from fedping.experiments.laboratory.tallies import bounds

if TYPE_CHECKING:
    from matplotlib.figure import Figure


START = "start"
"""Prefix of the names of the start models among the baselines."""

_BASELINES: tuple[Dashes, ...] = ((0, (4, 3)), (0, (1, 2)), (0, (8, 3, 2, 3)), (0, (1, 5)))


@dataclass(frozen=True)
class Curve:
    """One variant: numbers of rounds, the mean over its repetitions, and half its 95 % t interval (0 without one).

    If given, the picture's axis is the ``megabytes`` posted or the simulated ``hours`` passed by each round.
    """

    name: str
    rounds: FloatArray
    mean: FloatArray
    half: FloatArray
    megabytes: FloatArray | None = None
    hours: FloatArray | None = None

    @property
    def at(self) -> FloatArray:
        """The positions of the values on the axis."""
        if self.hours is not None:
            return self.hours
        return self.rounds if self.megabytes is None else self.megabytes


def curve(metrics: pa.Table, name: str, split: str, metric: str) -> Curve | None:
    """Return a variant's curve from the table of all metrics; None if it was not measured.

    Folds of one seed count as one repetition, by their mean. A repetition that stopped early leaves the band there.
    """
    chosen = metrics.filter(
        (pc.field("variant") == name) & (pc.field("split") == split) & (pc.field("metric") == metric)
    )
    values = chosen.group_by(["round", "seed"]).aggregate([("value", "mean")]).sort_by("round")
    if values.num_rows == 0:
        return None
    rounds, value = values["round"].to_numpy(), values["value_mean"].to_numpy()
    starts = np.flatnonzero(np.diff(rounds, prepend=-1))
    bands = [band(part.tolist()) for part in np.split(value, starts[1:])]
    return Curve(
        name,
        rounds[starts].astype(np.float64),
        np.array([np.nan if each.mean is None else each.mean for each in bands]),
        np.array([each.half or 0.0 for each in bands]),
    )


APART = 1.1
"""Minimum ratio of two variants' bytes per round for a picture over bytes to be drawn."""


def over_bytes(curves: Sequence[Curve], metrics: pa.Table) -> list[Curve]:
    """Return curves over the posted megabytes, the mean over repetitions, without the start, where nothing is posted.

    The result is empty if all variants post about as many bytes a round, or if the bytes were not measured.
    """
    drawn = []
    for each in curves:
        posted = curve(metrics, each.name, "train", "posted_bytes")
        if posted is None or not posted.mean.all():
            return []
        so_far = np.append(0.0, np.cumsum(posted.mean)) / 1e6
        some = (each.rounds > 0) & (each.rounds < len(so_far))
        at = each.rounds[some]
        drawn.append(Curve(each.name, at, each.mean[some], each.half[some], so_far[at.astype(np.intp)]))
    rates = [each.megabytes[-1] / each.rounds[-1] for each in drawn if each.megabytes is not None and len(each.rounds)]
    if len(rates) < len(drawn) or not rates or max(rates) < APART * min(rates):
        return []
    return drawn


def over_hours(curves: Sequence[Curve], metrics: pa.Table) -> list[Curve]:
    """Return the curves of variants with a clock over simulated hours, the mean over repetitions; the start is at 0."""
    drawn = []
    for each in curves:
        passed = curve(metrics, each.name, "train", "simulated_hours")
        if passed is not None:
            hours = np.append(0.0, passed.mean)
            some = each.rounds < len(hours)
            at = each.rounds[some]
            drawn.append(Curve(each.name, at, each.mean[some], each.half[some], hours=hours[at.astype(np.intp)]))
    return drawn


def draw_curves(
    curves: Sequence[Curve], baselines: dict[str, float], places: dict[str, int], metric: str, *, theme: Theme
) -> Figure:
    """Return the picture: a line and a band per variant, a dashed line per baseline; bands end where the metric does.

    Args:
        curves: the variants' curves.
        baselines: the metric of each baseline. A baseline that would flatten the rest, such as the start, is drawn at
            the edge.
        places: the position of each variant among all, which determines its colour in every picture.
        metric: the drawn metric.
        theme: the colours.
    """
    figure, [axes] = panels(theme)
    least, most = bounds(metric)
    grid_across(axes, theme)
    ends = []
    opacity = min(0.15, 0.36 / max(1, len(curves)))  # so that many overlapping bands do not hide the lines
    for each in curves:
        colour = theme.of_arm(places[each.name])
        dashes = theme.dashes_of_arm(places[each.name])
        axes.fill_between(each.at, *_band(each, least, most), color=colour, alpha=opacity, lw=0)
        axes.plot(each.at, each.mean, color=colour, linestyle=dashes, linewidth=1.8)
        ends.append(LineEnd(each.at[-1], float(each.mean[-1]), as_it_is(each.name), colour, dashes))
    last = max((float(each.at[-1]) for each in curves), default=0.0)
    of_bytes = any(each.megabytes is not None for each in curves)
    levels = {name: value for name, value in baselines.items() if not name.startswith(START)}
    low, high = _limits(curves, levels, least, most)
    for place, (name, value) in enumerate(baselines.items()):
        dashes = _BASELINES[place % len(_BASELINES)]
        if low <= value <= high:
            axes.axhline(value, color=theme.soft, linestyle=dashes, linewidth=1.0)
        label = as_it_is(name) + _beyond(value, low, high)
        ends.append(LineEnd(last, min(max(value, low), high), label, theme.soft, dashes))
    of_hours = any(each.hours is not None for each in curves)
    axes.set_xlabel("MB posted by all clients" if of_bytes else "simulated hours" if of_hours else "round")
    axes.set_ylabel(shown_as(metric))
    if of_bytes:  # logarithmic, because variants' bytes may differ by powers of ten
        axes.set_xscale("log")
        axes.xaxis.set_major_formatter("{x:g}")
        axes.tick_params(which="minor", color=theme.faint)
        axes.set_xlim(min(float(each.at[0]) for each in curves), last * 1.001)
    else:
        axes.set_xlim(0, last * 1.001 or 1)
    axes.set_ylim(low, high)
    label_ends(axes, [end._replace(x=last) for end in ends if np.isfinite(end.y)])
    return figure


def _beyond(value: float, low: float, high: float) -> str:
    """Return the remark in a label on a value outside the picture."""
    return "" if low <= value <= high else f" {value:.4g} {'↓' if value < low else '↑'}"


def _band(one: Curve, least: float, most: float) -> tuple[FloatArray, FloatArray]:
    """Return the ends of a curve's band within the bounds of its metric, which a t interval ignores."""
    return np.maximum(one.mean - one.half, least), np.minimum(one.mean + one.half, most)


def _limits(curves: Sequence[Curve], baselines: dict[str, float], least: float, most: float) -> tuple[float, float]:
    """Return limits that contain the values of all rounds but the first tenth, which would flatten the rest.

    At least one of the values must be finite.
    """
    late = [each.rounds >= each.rounds[-1] / 10 for each in curves]
    bands = [_band(each, least, most) for each in curves]
    low = [value for (lows, _), some in zip(bands, late, strict=True) for value in lows[some]]
    high = [value for (_, highs), some in zip(bands, late, strict=True) for value in highs[some]]
    return _with_margin(
        float(np.nanmin([*low, *baselines.values()])), float(np.nanmax([*high, *baselines.values()])), least, most
    )


def _with_margin(low: float, high: float, least: float, most: float) -> tuple[float, float]:
    """Return limits with a margin around two values; beyond a metric's bound, only half a line's width."""
    margin = 0.06 * (high - low) or 0.5
    return max(low - margin, least - margin / 6), min(high + margin, most + margin / 6)


def draw_finals(
    variants: Mapping[str, VariantSummary],
    baselines: Mapping[str, VariantSummary],
    split: str,
    metric: str,
    places: dict[str, int],
    *,
    theme: Theme,
) -> Figure:
    """Return the picture: variants in order from the top, then the baselines, in grey.

    Where colours repeat, a variant's interval has its curve's dashes, and its mean is hollow. Intervals end where the
    metric does. The arguments are the same as for :func:`draw_curves`.
    """
    rows = [
        (name, row, theme.of_arm(places[name]), theme.dashes_of_arm(places[name])) for name, row in variants.items()
    ]
    rows += [(name, row, theme.soft, "solid") for name, row in baselines.items()]
    least, most = bounds(metric)
    ends: list[float] = []
    figure, [axes] = panels(theme, height=max(HEIGHT / 2, 0.9 + 0.32 * len(rows)))
    axes.grid(axis="x", linewidth=0.8, color=theme.faint)
    for height, (_, row, colour, dashes) in enumerate(rows):
        finals = row.metrics.get(split, {}).get(metric)
        if finals is None or finals.mean is None:
            continue
        half = finals.half or 0.0
        low, high = max(finals.mean - half, least), min(finals.mean + half, most)
        axes.plot([low, high], [height, height], color=colour, linestyle=dashes, linewidth=1.8)
        inside = colour if dashes == "solid" else theme.paper
        axes.plot(finals.mean, height, "o", color=colour, markerfacecolor=inside, markersize=6)
        ends += [low, high]
    if ends:
        axes.set_xlim(_with_margin(min(ends), max(ends), least, most))
    axes.set_yticks(range(len(rows)), [as_it_is(name) for name, *_ in rows], fontsize=TEXT_SIZE)
    axes.set_ylim(len(rows) - 0.5, -0.5)
    axes.set_xlabel(shown_as(metric))
    return figure
