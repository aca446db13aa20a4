"""The figures of a study: lines over the iterations, and effects with their intervals (figures 18 to 27)."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Literal

import numpy as np

from fedping.analysis.curves import ArmCurve
from fedping.analysis.figures.canvas import (
    LIGHT,
    WIDTH,
    Dashes,
    LineEnd,
    Theme,
    count_iterations,
    grid_across,
    group_thousands,
    label_ends,
    panels,
    places,
)
from fedping.analysis.private import Estimated, LineRounds
from fedping.analysis.rounds.history import RoundTraffic, Series, series_of
from fedping.analysis.rounds.subsamples import SubsampleQuality
from fedping.analysis.statistics import Estimate
from fedping.analysis.verdict import Comparison
from fedping.analysis.verdict.comparison import PartEffects
from fedping.analysis.verdict.words import finding_sign, percent_text
from fedping.protocol.notation import with_minus
from fedping.protocol.smoothing import SMOOTHED, smoothed

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from numpy.typing import NDArray


def draw_differences(comparisons: Sequence[Comparison], *, theme: Theme = LIGHT) -> Figure:
    """Draw every comparison's difference of means with its interval, which at an interim look is valid at all looks.

    At an interim look this interval decides, and a filled or hollow dot shows the finding.
    """
    return _whiskers(comparisons, difference_of, null=0.0, digits=3, theme=theme)


def draw_superiority(comparisons: Sequence[Comparison], *, theme: Theme = LIGHT) -> Figure:
    """Draw the probability that a client of the first arm has the larger value, with its interval.

    Except at an interim look, this interval decides, and dots show the finding.
    """
    return _whiskers(comparisons, superiority_of, null=0.5, digits=4, theme=theme)


def difference_of(one: Comparison) -> Estimate:
    """Return the difference of means by client, at an interim look with the interval that is valid at all looks."""
    return one.sequence or one.clients.difference


def superiority_of(one: Comparison) -> Estimate:
    """Return the probability of superiority with its interval, which decides except at an interim look."""
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
        label = f"{value:.{digits}f}" if null else f"{value:+.{digits}f}{percent_text(estimate(one).value, one.base)}"
        axes.annotate(
            with_minus(f"{label}  {finding_sign(one)}" if sure else label),
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
    """Draw an estimate with its interval: a filled dot if ``sure``, a hollow dot if not, a tick if ``sure`` is None."""
    if np.isfinite([found.low, found.high]).all():
        axes.plot([found.low, found.high], [row, row], color=theme.ink, linewidth=2, solid_capstyle="butt")
    fill, shape = theme.ink if sure else theme.paper, "|" if sure is None else "o"
    axes.plot(found.value, row, shape, markersize=9, color=theme.ink, markerfacecolor=fill, markeredgewidth=1.8)


def draw_effects_over_time(effects: Sequence[PartEffects], *, theme: Theme = LIGHT) -> Figure:
    """Draw differences of a metric's means with their intervals in every part of the time, a panel per pair of arms."""
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
    """Draw the arms' metric as released by each round of a private line, with intervals; at least one round is needed.

    A line has a gap where a round released nothing about an arm.
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
        x, estimates = np.array([x for x, _ in known]) + 0.06 * place, [each for _, each in known]  # side by side
        axes.vlines(x, [e.low for e in estimates], [e.high for e in estimates], colors=colour, linewidth=1.2, alpha=0.5)
        axes.plot(np.array(rounds.iterations) + 0.06 * place, values, "o-", color=colour, markersize=4, linewidth=1.4)
        ends.append(LineEnd(x[-1], estimates[-1].value, name, colour, theme.dashes_of_arm(place)))
    axes.set_ylabel(label)
    count_iterations(axes)
    grid_across(axes, theme)
    label_ends(axes, ends)
    return figure


def draw_update_quality(quality: SubsampleQuality, *, theme: Theme = LIGHT) -> Figure:
    """Draw the mean distance of subsamples' mean updates from the mean of all pings, with deviations (figure 25)."""
    return _dots_and_bars(quality, quality.update, "L1 distance of the mean updates,\nloss by unit of weight", theme)


def draw_sign_quality(quality: SubsampleQuality, *, theme: Theme = LIGHT) -> Figure:
    """Draw the distance of the signs of the mean updates: mean and standard deviation (figure 26)."""
    return _dots_and_bars(quality, quality.signs, "L1 distance of the signs\n(2 for each opposite sign)", theme)


def draw_loss_quality(quality: SubsampleQuality, *, theme: Theme = LIGHT) -> Figure:
    """Draw the difference of the mean losses: mean and standard deviation (figure 27)."""
    return _dots_and_bars(quality, quality.loss, "absolute difference\nof the mean loss, points", theme)


def _dots_and_bars(quality: SubsampleQuality, errors: NDArray[np.float64], label: str, theme: Theme) -> Figure:
    """Draw a dot per iteration, with a bar of one standard deviation on either side; at least one iteration is needed.

    A hollow dot marks subsamples of more than half of the pings, which are close to all pings for that reason alone.
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


def draw_loss(curves: Mapping[str, ArmCurve], *, arms: Sequence[str] | None = None, theme: Theme = LIGHT) -> Figure:
    """Draw the mean loss of every arm at every iteration (figure 18)."""
    return draw_series(series_of(curves, "loss"), "mean loss, points", over=1, from_zero=True, arms=arms, theme=theme)


def draw_smooth_loss(
    curves: Mapping[str, ArmCurve], *, over: int = SMOOTHED, arms: Sequence[str] | None = None, theme: Theme = LIGHT
) -> Figure:
    """Draw the loss of every arm as the mean of the last ``over`` iterations (figure 19)."""
    series = series_of(curves, "loss")
    return draw_series(series, "mean loss, points", over=over, from_zero=True, arms=arms, theme=theme)


def draw_typed(
    series: Mapping[str, Series], *, over: int = SMOOTHED, arms: Sequence[str] | None = None, theme: Theme = LIGHT
) -> Figure:
    """Draw the characters typed in every arm, as the mean of the last ``over`` iterations (figure 23)."""
    return draw_series(series, "characters typed, mean", over=over, arms=arms, theme=theme)


def draw_rank(
    curves: Mapping[str, ArmCurve], *, over: int = SMOOTHED, arms: Sequence[str] | None = None, theme: Theme = LIGHT
) -> Figure:
    """Draw the selected rank of every arm, 0 at the top, as the mean of the last ``over`` iterations (figure 24)."""
    series = series_of(curves, "rank_selected")
    return draw_series(series, "selected rank, mean (0 is the top)", over=over, arms=arms, theme=theme)


def draw_series(
    series: Mapping[str, Series],
    label: str,
    *,
    over: int = SMOOTHED,
    from_zero: bool = False,
    arms: Sequence[str] | None = None,
    theme: Theme = LIGHT,
) -> Figure:
    """Draw a metric of every arm over the iterations.

    A line has a gap at a missing iteration, such as the last one before a rollback, and restarts after it.

    Args:
        series: by the arm's name; at least one.
        label: the label of the y-axis, with its unit.
        over: number of iterations that each point averages.
        from_zero: whether the y-axis starts at zero.
        arms: the study's arms in order, which determines the colours; None for the arms of ``series``.
        theme: the colours.
    """
    figure, (axes,) = panels(theme)
    ends = []
    for name, place in places(series, arms).items():
        colour, dashes = theme.of_arm(place), theme.dashes_of_arm(place)
        iterations, values = _with_gaps(series[name], over)
        _line(axes, iterations, values, colour, dashes, width=1.4 if over == 1 else 2.2)
        ends.append(LineEnd(iterations[-1], values[-1], name, colour, dashes))
    axes.set_ylabel(label)
    if from_zero:
        axes.set_ylim(bottom=0)
    count_iterations(axes)
    group_thousands(axes)
    grid_across(axes, theme)
    label_ends(axes, ends)
    return figure


def _with_gaps(series: Series, over: int) -> tuple[list[float], list[float]]:
    """Return a series with NaN between iterations that are not consecutive, each part smoothed separately."""
    breaks = [i for i in range(1, len(series.iterations)) if series.iterations[i] - series.iterations[i - 1] > 1]
    x: list[float] = []
    y: list[float] = []
    for start, end in zip([0, *breaks], [*breaks, len(series.iterations)], strict=True):
        if start:
            x.append(series.iterations[start] - 1.0)
            y.append(math.nan)
        x += map(float, series.iterations[start:end])
        y += smoothed(series.values[start:end], over)
    return x, y


def _line(axes: Axes, x: Sequence[float], y: Sequence[float], colour: str, dashes: Dashes, width: float) -> None:
    axes.plot(x, y, color=colour, linewidth=width, linestyle=dashes, solid_joinstyle="round")
    known = [False, *(not math.isnan(value) for value in y), False]
    alone = [i for i in range(len(y)) if known[i + 1] and not known[i] and not known[i + 2]]  # no line reaches them
    if alone:
        axes.plot([x[i] for i in alone], [y[i] for i in alone], color=colour, linestyle="", marker="o")


DAY_MS = 86_400_000

DAILY_AFTER_HOURS = 24 * 21
"""Maximum hours of pings drawn by hour; pings over a longer time are drawn by day."""

MOST_DAYS_NAMED = 10


def draw_round_traffic(traffic: RoundTraffic, *, arms: Sequence[str] | None = None, theme: Theme = LIGHT) -> Figure:
    """Draw the pings of every iteration, by arm and of all arms together; dates mark midnight, UTC (figure 20).

    Args:
        traffic: at least one iteration.
        arms: the study's arms in order, which determines the colours.
        theme: the colours.
    """
    figure, (axes,) = panels(theme)
    x = [float(i) for i in traffic.iterations]
    ends = []
    if len(traffic.arms) > 1:
        ends.append(_traffic_line(axes, x, traffic.total, "all arms", theme.ink, "solid"))
    for name, place in places(traffic.arms, arms).items():
        ends.append(_traffic_line(axes, x, traffic.arms[name], name, theme.of_arm(place), theme.dashes_of_arm(place)))
    axes.set_ylabel("pings in the iteration")
    axes.set_ylim(bottom=0)
    _mark_midnights(axes, traffic, theme)
    count_iterations(axes)
    group_thousands(axes)
    grid_across(axes, theme)
    label_ends(axes, ends)
    return figure


def draw_hours(
    by_hour: Mapping[str, Mapping[int, int]], *, arms: Sequence[str] | None = None, theme: Theme = LIGHT
) -> Figure:
    """Draw the pings of every arm over time, by the hour, or by the day if they span more than three weeks.

    Args:
        by_hour: by the arm's name, pings by the hour since 1970 (`fedping.analysis.study.ArmTally`); at least one ping
            in all.
        arms: the study's arms in order, which determines the colours.
        theme: the colours.
    """
    from matplotlib.dates import AutoDateLocator, ConciseDateFormatter, date2num

    figure, (axes,) = panels(theme, height=3.2)
    hours = [hour for counts in by_hour.values() for hour in counts]
    step = 24 if max(hours) - min(hours) > DAILY_AFTER_HOURS else 1
    starts = range(min(hours) // step, max(hours) // step + 1)
    times = [date2num(datetime.fromtimestamp(3600 * step * start, UTC)) for start in starts]  # type: ignore[no-untyped-call]
    ends = []
    for name, place in places(by_hour, arms).items():
        heights = np.zeros(len(starts))
        for hour, pings in by_hour[name].items():
            heights[hour // step - starts[0]] += pings
        ends.append(_traffic_line(axes, times, heights.tolist(), name, theme.of_arm(place), theme.dashes_of_arm(place)))
    axes.set_ylabel(f"pings {'a day' if step == 24 else 'an hour'}")
    axes.set_ylim(bottom=0)
    axes.set_xlabel("received at (UTC)")
    locator = AutoDateLocator(minticks=3, maxticks=8)  # type: ignore[no-untyped-call]
    axes.xaxis.set_major_locator(locator)
    axes.xaxis.set_major_formatter(ConciseDateFormatter(locator))  # type: ignore[no-untyped-call]
    group_thousands(axes)
    grid_across(axes, theme)
    label_ends(axes, ends)
    return figure


def _traffic_line(
    axes: Axes, x: Sequence[float], y: Sequence[float], name: str, colour: str, dashes: Dashes
) -> LineEnd:
    mark = "o" if len(x) < 3 else ""
    axes.plot(x, y, color=colour, linestyle=dashes, linewidth=1.8, marker=mark)
    return LineEnd(x[-1], float(y[-1]), name, colour)


def _mark_midnights(axes: Axes, traffic: RoundTraffic, theme: Theme) -> None:
    """Draw a faint line at the beginning of each day, with its date at the top."""
    marks = list(_midnights(traffic))
    for place, day in marks if len(marks) <= MOST_DAYS_NAMED else []:
        axes.axvline(place, color=theme.faint, linewidth=1, linestyle=(0, (2, 2)), zorder=0)
        axes.annotate(
            f"{day:%-d %b}",
            (place, 1),
            xycoords=("data", "axes fraction"),
            xytext=(4, -2),
            textcoords="offset points",
            va="top",
            fontsize=8.5,
            color=theme.soft,
        )


def _midnights(traffic: RoundTraffic) -> Iterator[tuple[float, datetime]]:
    """Yield each midnight between the ends of two iterations, with its position among the iterations and the day."""
    ends = np.array(traffic.ended_ms, dtype=np.float64)
    if len(ends) < 2 or (np.diff(ends) <= 0).any():
        return
    for day in range(int(ends[0] // DAY_MS) + 1, int(ends[-1] // DAY_MS) + 1):
        place = float(np.interp(day * DAY_MS, ends, traffic.iterations))
        yield place, datetime.fromtimestamp(day * DAY_MS / 1000, UTC)
