"""Intervals: effects, with a panel per metric, and subsamples' errors over the iterations (figures 25 to 27)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Literal

import numpy as np

from fedping.analysis.figures.canvas import (
    LIGHT,
    WIDTH,
    LineEnd,
    Theme,
    count_iterations,
    grid_across,
    group_thousands,
    label_ends,
    panels,
)
from fedping.analysis.private import Estimated, LineRounds
from fedping.analysis.rounds.subsamples import SubsampleQuality
from fedping.analysis.statistics import Estimate
from fedping.analysis.verdict import Comparison
from fedping.analysis.verdict.parts import PartEffects
from fedping.analysis.verdict.words import finding_sign, percent_text
from fedping.protocol.notation import with_minus

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from numpy.typing import NDArray


def draw_differences(comparisons: Sequence[Comparison], *, theme: Theme = LIGHT) -> Figure:
    """Draw every comparison's difference of means with its interval, at an interim look the one valid at all looks.

    Only at an interim look, where this interval decides, does a filled or hollow dot show the finding.
    """
    return _whiskers(comparisons, difference_of, null=0.0, digits=3, theme=theme)


def draw_superiority(comparisons: Sequence[Comparison], *, theme: Theme = LIGHT) -> Figure:
    """Draw how often a client of the first arm has the larger value, for every comparison with its interval.

    This interval decides, and dots show the finding, unless this is an interim look.
    """
    return _whiskers(comparisons, superiority_of, null=0.5, digits=4, theme=theme)


def difference_of(one: Comparison) -> Estimate:
    """Return the difference of means by client; at an interim look the one valid at all looks, which decides."""
    return one.sequence or one.clients.difference


def superiority_of(one: Comparison) -> Estimate:
    """Return the probability of superiority, with the interval that decides unless this is an interim look."""
    return one.clients.superiority if one.sequence else one.deciding


def _whiskers(
    comparisons: Sequence[Comparison],
    estimate: Callable[[Comparison], Estimate],
    *,
    null: float,
    digits: int,
    theme: Theme,
) -> Figure:
    by_metric: dict[str, list[Comparison]] = {}
    for one in comparisons:
        by_metric.setdefault(one.metric.name, []).append(one)
    rows = max(map(len, by_metric.values()))
    figure, axes = panels(theme, len(by_metric), width=4.4 * len(by_metric) + 1.6, height=0.55 * rows + 1.45)
    for panel, group in zip(axes, by_metric.values(), strict=True):
        _whisker_panel(panel, group, estimate, null, digits, theme)
    return figure


def _whisker_panel(
    axes: Axes,
    comparisons: Sequence[Comparison],
    estimate: Callable[[Comparison], Estimate],
    null: float,
    digits: int,
    theme: Theme,
) -> None:
    axes.axvline(null, color=theme.faint, linewidth=1.5, zorder=0)
    for row, one in enumerate(comparisons):
        sure = one.finding != "inconclusive" if one.null == null else None
        _whisker(axes, row, estimate(one), sure, theme)
        value = round(estimate(one).value, digits) + 0.0  # adding 0 turns -0.0 into 0.0
        said = f"{value:.{digits}f}" if null else f"{value:+.{digits}f}{percent_text(estimate(one).value, one.base)}"
        axes.annotate(
            with_minus(f"{said}  {finding_sign(one)}" if sure else said),
            (value, row),
            xytext=(0, 9),
            textcoords="offset points",
            ha="center",
            fontsize=9,
            color=theme.ink,
        )
    metric = comparisons[0].metric
    axes.set_title(metric.title, loc="left", fontsize=11, fontweight="bold", color=theme.ink)
    axes.set_yticks(range(len(comparisons)), [f"{one.pair[0]} - {one.pair[1]}" for one in comparisons])
    axes.set_ylim(len(comparisons) - 0.5, -0.75)
    axes.margins(x=0.12)
    axes.spines["left"].set_visible(False)
    axes.tick_params(axis="y", length=0)
    axes.locator_params(axis="x", nbins=6)
    sides = {"less": ("better", "worse"), "more": ("worse", "better"), None: ("less", "more")}[metric.better]
    axes.set_xlabel(f"← {sides[0]}\u2003\u2003{sides[1]} →")


def _whisker(axes: Axes, row: int, found: Estimate, sure: bool | None, theme: Theme) -> None:
    """Draw an estimate with its interval: a filled dot if a difference is shown, hollow if not, a tick for None."""
    if np.isfinite([found.low, found.high]).all():
        axes.plot([found.low, found.high], [row, row], color=theme.ink, linewidth=2, solid_capstyle="butt")
    fill, shape = theme.ink if sure else theme.paper, "|" if sure is None else "o"
    axes.plot(found.value, row, shape, markersize=9, color=theme.ink, markerfacecolor=fill, markeredgewidth=1.8)


def draw_effects_over_time(effects: Sequence[PartEffects], *, theme: Theme = LIGHT) -> Figure:
    """Draw the difference of a metric's means with its interval in every part of the time, a panel per pair of arms."""
    from matplotlib import dates

    known = [one for one in effects if one.effects]
    figure, axes = panels(theme, len(known), width=max(WIDTH, 3.4 * len(known) + 1.6), height=2.9)
    for panel, one in zip(axes, known, strict=True):
        panel.axhline(0, color=theme.faint, linewidth=1.5, zorder=0)
        at = [effect.number / 24 for effect in one.effects]  # days since 1970, as Matplotlib counts them
        low, value, high = (
            np.array([getattr(effect.difference, name) for effect in one.effects]) for name in ("low", "value", "high")
        )
        bars = [np.where(np.isfinite(high), side, 0) for side in (value - low, high - value)]
        panel.errorbar(at, value, yerr=bars, fmt="o-", color=theme.ink, markersize=4, linewidth=1, elinewidth=1.6)
        panel.set_title(f"{one.pair[0]} - {one.pair[1]}", loc="left", fontsize=10, color=theme.ink)
        locator = dates.AutoDateLocator(minticks=2, maxticks=5)  # type: ignore[no-untyped-call]
        panel.xaxis.set_major_locator(locator)
        panel.xaxis.set_major_formatter(dates.ConciseDateFormatter(locator))  # type: ignore[no-untyped-call]
        grid_across(panel, theme)
    axes[0].set_ylabel(known[0].metric.title)
    return figure


def draw_private_rounds(
    rounds: LineRounds, metric: Literal["loss", "top_choice"], label: str, *, theme: Theme = LIGHT
) -> Figure:
    """Draw what each round of a private line said of its arms' metric, with intervals; there is at least one.

    A line has a gap where a round told nothing of an arm.
    """
    figure, (axes,) = panels(theme)
    ends = []
    for place, (name, results) in enumerate(rounds.arms.items()):
        found: list[Estimated | None] = [getattr(each, metric) for each in results]
        known = [(x, each) for x, each in zip(rounds.iterations, found, strict=True) if each is not None]
        if not known:
            continue
        colour = theme.of_arm(place)
        values = [np.nan if each is None else each.value for each in found]
        x, estimates = np.array([x for x, _ in known]) + 0.06 * place, [each for _, each in known]  # beside each other
        axes.vlines(x, [e.low for e in estimates], [e.high for e in estimates], colors=colour, linewidth=1.2, alpha=0.5)
        axes.plot(np.array(rounds.iterations) + 0.06 * place, values, "o-", color=colour, markersize=4, linewidth=1.4)
        ends.append(LineEnd(x[-1], estimates[-1].value, name, colour, theme.dashes_of_arm(place)))
    axes.set_ylabel(label)
    count_iterations(axes)
    grid_across(axes, theme)
    label_ends(axes, ends)
    return figure


def draw_update_quality(quality: SubsampleQuality, *, theme: Theme = LIGHT) -> Figure:
    """Draw the distance of subsamples' mean updates from that of all pings: mean and standard deviation (figure 25)."""
    return _dots_and_bars(quality, quality.update, "L1 distance of the mean updates,\nloss by unit of weight", theme)


def draw_sign_quality(quality: SubsampleQuality, *, theme: Theme = LIGHT) -> Figure:
    """Draw the distance of the signs of the mean updates: mean and standard deviation (figure 26)."""
    return _dots_and_bars(quality, quality.signs, "L1 distance of the signs\n(2 for each opposite sign)", theme)


def draw_loss_quality(quality: SubsampleQuality, *, theme: Theme = LIGHT) -> Figure:
    """Draw the difference of the mean losses: mean and standard deviation (figure 27)."""
    return _dots_and_bars(quality, quality.loss, "absolute difference\nof the mean loss, points", theme)


def _dots_and_bars(quality: SubsampleQuality, errors: NDArray[np.float64], label: str, theme: Theme) -> Figure:
    """Draw a dot with a bar of one standard deviation on either side for each iteration; there is at least one.

    A dot is hollow if the subsample is more than half of the pings and close to them for that reason alone.
    """
    figure, (axes,) = panels(theme)
    means = errors.mean(axis=1)
    spreads = errors.std(axis=1, ddof=1) if errors.shape[1] > 1 else np.zeros(len(means))
    colour = theme.of_arm(0)
    axes.errorbar(quality.iterations, means, yerr=spreads, fmt="none", ecolor=colour, elinewidth=1.1, alpha=0.55)
    large = 2 * quality.size > np.array(quality.pings)
    for hollow, fill in ((False, colour), (True, theme.paper)):
        here = np.flatnonzero(large == hollow)
        x, said = np.array(quality.iterations)[here], "drawn from less than twice as many pings" if hollow else None
        axes.plot(
            x, means[here], "o", markersize=4.5, color=colour, markerfacecolor=fill, label=said, clip_on=False, zorder=3
        )
    if large.any():
        axes.legend(
            loc="lower right",
            bbox_to_anchor=(1, 1),
            borderaxespad=0,
            frameon=False,
            labelcolor=theme.soft,
            fontsize=9,
            handletextpad=0.2,
        )
    axes.set_ylabel(label)
    axes.set_ylim(bottom=0)
    count_iterations(axes)
    group_thousands(axes)
    grid_across(axes, theme)
    return figure
