"""The figures of a report: effects with their intervals, the loss over the iterations, pings over time."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from itertools import groupby
from typing import TYPE_CHECKING

import numpy as np

from analysis.curves import ArmCurve
from analysis.report.svg import ARM_COLOURS, FAINT, INK, PAPER, page_style, to_svg
from analysis.statistics import Estimate
from analysis.verdict import Comparison, Verdict
from analysis.verdict.words import interval_text

if TYPE_CHECKING:
    from matplotlib.axes import Axes

SMOOTHED = 5
"""The thick line of a curve is the mean of this many last iterations, as in the thesis' figure 19."""

DAILY_AFTER_HOURS = 24 * 21
"""Pings over a longer time are drawn by the day."""


def effects_svg(verdict: Verdict) -> str:
    """Draw the difference of means of every comparison with its interval, a panel a metric."""
    return _whiskers(verdict, "effects", "Differences of means, by client", _difference, null=0.0, digits=3)


def _difference(one: Comparison) -> Estimate:
    return one.sequence or one.clients.difference


def superiority_svg(verdict: Verdict) -> str:
    """Draw the probability of superiority of every comparison with its interval, a panel a metric."""
    return _whiskers(
        verdict, "superiority", "Probability of superiority", lambda one: one.clients.superiority, null=0.5, digits=4
    )


def _whiskers(
    verdict: Verdict, key: str, title: str, estimate: Callable[[Comparison], Estimate], *, null: float, digits: int
) -> str:
    with page_style():
        from matplotlib import pyplot as plt

        plan = verdict.plan
        size = (4.4 * len(plan.metrics) + 1.6, 0.55 * len(plan.pairs) + 1.45)
        figure, panels = plt.subplots(
            1, len(plan.metrics), figsize=size, sharey=True, squeeze=False, layout="constrained"
        )
        panels_of = groupby(verdict.comparisons, key=lambda one: one.metric)
        for axes, (metric, group) in zip(panels[0], panels_of, strict=True):
            _whisker_panel(axes, list(group), estimate, null, digits)
            axes.set_title(metric.title)
        said = "; ".join(
            f"{one.metric.title}, {one.pair[0]} against {one.pair[1]}: {interval_text(estimate(one), digits)}"
            for one in verdict.comparisons
        )
        return to_svg(figure, key, title, said)


def _whisker_panel(
    axes: Axes, comparisons: Sequence[Comparison], estimate: Callable[[Comparison], Estimate], null: float, digits: int
) -> None:
    axes.axvline(null, color=FAINT, linewidth=1.5, zorder=0)
    for row, one in enumerate(comparisons):
        found, sure = estimate(one), one.finding != "inconclusive"
        axes.plot([found.low, found.high], [row, row], color=INK, linewidth=2, solid_capstyle="butt")
        axes.plot(
            found.value, row, "o", markersize=9, color=INK, markerfacecolor=INK if sure else PAPER, markeredgewidth=1.8
        )
        axes.annotate(
            f"{found.value:.{digits}f}" if null else f"{found.value:+.{digits}f}",
            (found.value, row),
            xytext=(0, 9),
            textcoords="offset points",
            ha="center",
            fontsize=9,
        )
    axes.set_yticks(range(len(comparisons)), [f"{one.pair[0]} - {one.pair[1]}" for one in comparisons])
    axes.set_ylim(len(comparisons) - 0.5, -0.75)
    axes.margins(x=0.12)
    axes.spines["left"].set_visible(False)
    axes.tick_params(axis="y", length=0)
    axes.locator_params(axis="x", nbins=6)
    less_is_better = comparisons[0].metric.better == "less"
    axes.set_xlabel("← better\u2003\u2003worse →" if less_is_better else "← worse\u2003\u2003better →")


def loss_svg(curves: Mapping[str, ArmCurve], key: str, title: str) -> str:
    """Draw the loss of every arm of a line over the iterations: as measured, thin, and smoothed, thick."""
    with page_style():
        from matplotlib import pyplot as plt
        from matplotlib.ticker import MaxNLocator

        figure, axes = plt.subplots(figsize=(9, 3.8), layout="constrained")
        ends = []
        for colour, (name, curve) in zip(ARM_COLOURS, curves.items(), strict=False):
            smooth = _smoothed(curve.loss)
            axes.plot(curve.iterations, curve.loss, color=colour, linewidth=0.8, alpha=0.45)
            axes.plot(curve.iterations, smooth, color=colour, linewidth=2.2)
            ends.append((float(curve.iterations[-1]), smooth[-1], name, colour))
        axes.set(xlabel="iteration (model version)", ylabel="mean loss")
        axes.set_ylim(bottom=0)
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        _label_ends(axes, ends)
        said = "; ".join(f"{n}: from {c.loss[0]:.3g} to {c.loss[-1]:.3g}" for n, c in curves.items())
        return to_svg(figure, key, title, said)


def traffic_svg(verdict: Verdict) -> str:
    """Draw the pings of every arm over time, by the hour, or by the day if they span more than three weeks."""
    with page_style():
        from matplotlib import pyplot as plt
        from matplotlib.dates import AutoDateLocator, ConciseDateFormatter, date2num

        figure, axes = plt.subplots(figsize=(9, 3.2), layout="constrained")
        hours = [hour for arm in verdict.tally.arms.values() for hour in arm.by_hour]
        step = 24 if max(hours) - min(hours) > DAILY_AFTER_HOURS else 1
        starts = range(min(hours) // step, max(hours) // step + 1)
        times = [date2num(datetime.fromtimestamp(3600 * step * start, UTC)) for start in starts]  # type: ignore[no-untyped-call]
        ends = []
        for colour, (name, arm) in zip(ARM_COLOURS, verdict.tally.arms.items(), strict=False):
            heights = np.zeros(len(starts))
            for hour, pings in arm.by_hour.items():
                heights[hour // step - starts[0]] += pings
            axes.plot(times, heights, color=colour, linewidth=1.8, marker="o" if len(times) < 3 else "")
            ends.append((times[-1], float(heights[-1]), name, colour))
        axes.set_ylabel(f"pings {'a day' if step == 24 else 'an hour'}")
        axes.set_ylim(bottom=0)
        axes.yaxis.set_major_formatter("{x:,.0f}")
        locator = AutoDateLocator(minticks=3, maxticks=8)  # type: ignore[no-untyped-call]
        axes.xaxis.set_major_locator(locator)
        axes.xaxis.set_major_formatter(ConciseDateFormatter(locator))  # type: ignore[no-untyped-call]
        _label_ends(axes, ends)
        said = "; ".join(f"{name}: {arm.pings:,} pings" for name, arm in verdict.tally.arms.items())
        return to_svg(figure, "traffic", "Pings over time (UTC)", said)


def _label_ends(axes: Axes, ends: Sequence[tuple[float, float, str, str]]) -> None:
    """Write each line's name right of its last point, moved apart where two would overlap."""
    axes.grid(axis="y", linewidth=0.8)
    axes.set_axisbelow(True)
    gap = 0.075 * axes.get_ylim()[1]
    height = float("-inf")
    for x, y, name, colour in sorted(ends, key=lambda end: end[1]):
        height = max(y, height + gap)
        axes.annotate(
            name,
            (x, height),
            xytext=(8, 0),
            textcoords="offset points",
            color=colour,
            va="center",
            fontweight="bold",
            annotation_clip=False,
        )


def _smoothed(values: Sequence[float]) -> list[float]:
    return [float(np.mean(values[max(0, i + 1 - SMOOTHED) : i + 1])) for i in range(len(values))]
