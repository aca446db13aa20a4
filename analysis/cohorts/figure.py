"""The final loss against the cohort size, as a figure."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from analysis.cohorts.curve import TrainingCurve
from analysis.curves import PALETTE

if TYPE_CHECKING:
    from matplotlib.axes import Axes

INK, FAINT = PALETTE[0], "#777777"


def draw_training(curve: TrainingCurve, path: Path) -> Path:
    """Draw the mean final loss over the cohort size into a file, whose suffix (.svg, .png, .pdf) says the format.

    A band goes from the lowest repetition to the highest, a dot is a repetition, and a ring is the cohort that is
    enough. The file appears whole or not at all.
    """
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    with matplotlib.rc_context({"svg.fonttype": "none", "svg.hashsalt": "fedping", "font.family": "sans-serif"}):
        figure, axes = plt.subplots(figsize=(8, 4.5), layout="constrained")
        figure.get_layout_engine().set(w_pad=0.12, h_pad=0.12)  # type: ignore[union-attr, call-arg]
        _draw(axes, curve)
        hidden = path.with_name(f".{path.name}.tmp")
        try:
            kind = path.suffix.removeprefix(".")
            figure.savefig(hidden, dpi=150, format=kind, metadata={"Date": None} if kind == "svg" else None)
            os.replace(hidden, path)
        finally:
            hidden.unlink(missing_ok=True)
            plt.close(figure)
    return path


def _draw(axes: Axes, curve: TrainingCurve) -> None:
    points = curve.points
    cohorts = [point.cohort for point in points]
    axes.fill_between(
        cohorts, [point.low for point in points], [point.high for point in points], color=INK, alpha=0.15, linewidth=0
    )
    axes.plot([run.cohort for run in curve.runs], [run.loss for run in curve.runs], "o", color=INK, alpha=0.35, ms=4)
    axes.plot(cohorts, [point.loss for point in points], color=INK, linewidth=2)
    _mark_enough(axes, curve)
    near = min(point.loss for point in points) * (1 + curve.within / 100)
    _rule(axes, near, f"{curve.within:g} % above the best: {near:.4g}")
    axes.margins(x=0.08, y=0.14)
    _show_start(axes, curve.start_loss)
    axes.set_xscale("log")
    axes.set_xticks(cohorts, [f"{cohort:,}" for cohort in cohorts])
    axes.minorticks_off()
    axes.set(xlabel="clients a round", ylabel=f"loss after {curve.iterations} iterations")
    axes.set_title(f"{curve.study}: final loss by cohort size", loc="left", fontsize=12, fontweight="bold")
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(axis="y", color="#dddddd", linewidth=0.8)
    axes.set_axisbelow(True)


def _mark_enough(axes: Axes, curve: TrainingCurve) -> None:
    enough = next(point for point in curve.points if point.cohort == curve.enough)
    axes.plot(enough.cohort, enough.loss, "o", ms=11, markerfacecolor="none", markeredgecolor=INK, markeredgewidth=2)
    axes.annotate(
        f"{enough.cohort:,} are enough",
        (enough.cohort, enough.loss),
        xytext=(0, -12),
        textcoords="offset points",
        ha="center",
        va="top",
        color=INK,
        fontweight="bold",
    )


def _show_start(axes: Axes, start_loss: float) -> None:
    """Rule version 0's loss where it is near the curve; where it is far above, say it, lest the curve look flat."""
    low, high = axes.get_ylim()
    if low <= start_loss <= high + (high - low):
        _rule(axes, start_loss, f"version 0: {start_loss:.4g}")
        return
    axes.set_title(f"version 0: {start_loss:.4g}", loc="right", fontsize=10, color=FAINT)


def _rule(axes: Axes, height: float, text: str) -> None:
    axes.axhline(height, color=FAINT, linewidth=1, linestyle="--")
    axes.annotate(
        text,
        (1, height),
        xycoords=("axes fraction", "data"),
        xytext=(-2, 3),
        textcoords="offset points",
        ha="right",
        va="bottom",
        color=FAINT,
        fontsize=9,
        bbox={"facecolor": "white", "edgecolor": "none", "pad": 1},
    )
