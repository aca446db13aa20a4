"""The loss by arm over the iterations (as the thesis' figure 18), from the lineage that every version carries.

The loss of version n is measured on the pings that train version n + 1, before they do (thesis 3.4).
"""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from model_store.store import ModelStore

if TYPE_CHECKING:
    from matplotlib.axes import Axes

PALETTE = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9")
"""Okabe and Ito's colours, which people with any common colour vision tell apart."""


@dataclass(frozen=True)
class ArmCurve:
    """One arm over the iterations: which version was current, and the means over the pings of that time.

    All four have the same length; iterations without a selection are left out.
    """

    iterations: tuple[int, ...]
    loss: tuple[float, ...]
    rank_selected: tuple[float, ...]
    pings: tuple[int, ...]


def arm_curves(store: ModelStore, study: str, line: str) -> dict[str, ArmCurve]:
    """Return the curve of every arm that follows a line, in the study's order of arms.

    Raises:
        StoreError: there is no such study or line, or a version cannot be read.
    """
    rows: dict[str, list[tuple[int, float, float, int]]] = {
        arm.name: [] for arm in store.study(study).arms if arm.line == line
    }
    for number in store.iterations(study, line)[1:]:
        version = store.version(study, line, number)
        for name, summary in version.lineage.arms.items():
            if name in rows and summary.loss is not None:
                rank = math.nan if summary.rank_selected is None else summary.rank_selected
                rows[name].append((number - 1, summary.loss, rank, summary.pings))
    return {name: ArmCurve(*map(tuple, zip(*points, strict=True))) for name, points in rows.items() if points}


def draw_loss(curves: Mapping[str, ArmCurve], title: str, path: Path) -> Path:
    """Draw the loss of every arm into a file, whose suffix (.png, .svg, .pdf) says the format, and return its path.

    Only the raw line is drawn: with few pings an iteration it is noisy, and that is worth seeing. Each line is named
    at its end. The file appears whole or not at all.
    """
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt
    from matplotlib.ticker import MaxNLocator

    figure, axes = plt.subplots(figsize=(8, 4.5), layout="constrained")
    for colour, (name, curve) in zip(PALETTE, curves.items(), strict=False):
        axes.plot(curve.iterations, curve.loss, color=colour, linewidth=2, marker="o", markersize=3, label=name)
    _name_the_ends(axes, curves)
    axes.set(xlabel="iteration (model version)", ylabel="mean loss of a search")
    axes.set_title(title, loc="left", fontsize=12, fontweight="bold")
    axes.set_ylim(bottom=0)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(axis="y", color="#dddddd", linewidth=0.8)
    hidden = path.with_name(f".{path.name}.tmp")
    try:
        figure.savefig(hidden, dpi=150, format=path.suffix.removeprefix("."))
        os.replace(hidden, path)
    finally:
        hidden.unlink(missing_ok=True)
        plt.close(figure)
    return path


def _name_the_ends(axes: Axes, curves: Mapping[str, ArmCurve]) -> None:
    """Write each arm's name right of its last point, moved apart where two ends would overlap."""
    ends = sorted(
        (curve.loss[-1], name, colour, curve.iterations[-1])
        for colour, (name, curve) in zip(PALETTE, curves.items(), strict=False)
    )
    least_gap = 0.055 * max(max(curve.loss) for curve in curves.values()) if curves else 0.0
    height = float("-inf")
    for loss, name, colour, last in ends:
        height = max(loss, height + least_gap)
        axes.annotate(
            name, (last, height), xytext=(8, 0), textcoords="offset points", color=colour, va="center", fontsize=10
        )
