"""Pictures that describe clients' data: sizes and targets, distributions by client, and correlations."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np

from fedping.analysis.figures.canvas import LIGHT, TEXT_SIZE, WIDTH, Theme, as_it_is, group_thousands, panels
from fedping.client_sim.learning.batch import FloatArray
from fedping.experiments.laboratory.describing import Description, Distribution
from fedping.protocol.notation import with_minus

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_NAMED = 40
"""Maximum number of clients with named bars; more clients are ranked without names."""

_LOOSE = 15
"""Maximum number of clients for wide rows."""

_LINES = 8
"""Maximum number of clients with a line each; for more clients, a band shows the middle 80 %."""

_COLUMNS = 3
_LONGEST = 26
"""Maximum characters of a name in a picture."""

_LABELLED = 45
"""Maximum number of features for names along a matrix."""

_SMALL = TEXT_SIZE - 2


def figures() -> dict[str, Callable[[Description], Figure]]:
    """Return the function for each picture, by the name of its file."""
    return {"sizes": draw_sizes, "distributions": draw_distributions, "correlations": draw_correlations}


def draw_sizes(of: Description, *, theme: Theme = LIGHT) -> Figure:
    """Draw each client's number of examples and its targets (Fritsch 2018, figure 1); largest clients first."""
    order = np.argsort(-of.sizes, kind="stable")
    named = len(order) <= _NAMED
    height = 1.3 + (0.24 if len(order) <= _LOOSE else 0.18) * len(order) if named else 3.6
    size = TEXT_SIZE - (1 if len(order) <= _LOOSE else 3)
    figure, (left, right) = panels(theme, 2, height=max(2.6, height), one_scale=named)
    if named:
        left.barh(range(len(order)), of.sizes[order], color=theme.arms[0], height=0.7)
        left.set_yticks(range(len(order)), [_short(of.names[at]) for at in order], fontsize=size)
        left.invert_yaxis()
        left.tick_params(axis="y", length=0)
        left.set_xlabel("examples")
        left.locator_params(axis="x", nbins=5)
    else:
        left.step(np.arange(1, len(order) + 1), of.sizes[order], where="mid", color=theme.arms[0], linewidth=1.8)
        left.set_xlabel("clients by their size, the largest first")
        left.set_ylabel("examples")
        if of.sizes.max() > 20 * max(1, int(np.median(of.sizes))):
            left.set_yscale("symlog", linthresh=1)
        left.set_ylim(bottom=0)
        group_thousands(left)
    targets = of.targets[order]
    if len(of.classes) > 2 and named:
        _classes(right, targets, of, theme)
    elif named:
        _dots(right, targets, of, theme)
    else:
        _spread(right, targets, of, theme)
    return figure


def _value(of: Description, targets: FloatArray) -> tuple[FloatArray, str]:
    """Return one number per client that summarises its targets, and a label for it."""
    if not of.classes:
        return targets[:, 0], f"mean of {_short(of.target)}"
    if len(of.classes) == 2:
        return 100 * targets[:, 1], f"% of a client's examples with {_short(of.target)} = {_short(of.classes[1])}"
    return (targets > 0).sum(axis=1).astype(np.float64), f"classes of {_short(of.target)} that a client has"


def _dots(axes: Axes, targets: FloatArray, of: Description, theme: Theme) -> None:
    values, words = _value(of, targets)
    overall = float(np.average(_value(of, of.targets)[0][of.sizes > 0], weights=of.sizes[of.sizes > 0]))
    axes.axvline(overall, color=theme.soft, linewidth=1.2, linestyle=(0, (4, 3)), zorder=0)
    axes.plot(values, range(len(values)), "o", color=theme.arms[1], markersize=6)
    if of.classes:
        axes.set_xlim(left=0)
    axes.annotate(
        with_minus(f"all: {overall:.3g}"),
        (overall, 1),
        xycoords=("data", "axes fraction"),
        xytext=(0, 3),
        textcoords="offset points",
        ha="center",
        fontsize=_SMALL,
        color=theme.soft,
    )
    axes.grid(axis="y", linewidth=0.8, color=theme.faint)
    axes.tick_params(axis="y", length=0)
    axes.locator_params(axis="x", nbins=6)
    axes.set_xlabel(words)


def _spread(axes: Axes, targets: FloatArray, of: Description, theme: Theme) -> None:
    values, words = _value(of, targets)
    values = values[np.isfinite(values)]
    counts = 2 < len(of.classes) <= _NAMED
    bins = (np.arange(values.max() + 1) + 0.5).tolist() if counts else 20
    axes.hist(values, bins=bins, color=theme.arms[1], edgecolor=theme.paper, linewidth=0.6)
    axes.set_xlabel(words)
    axes.set_ylabel("clients")
    axes.locator_params(axis="y", integer=True)


def _classes(axes: Axes, targets: FloatArray, of: Description, theme: Theme) -> None:
    image = axes.imshow(100 * targets, aspect="auto", cmap="Blues", vmin=0, interpolation="nearest")
    if len(of.classes) <= _NAMED:
        names = [_short(name, 12) for name in of.classes]
        longest = max(map(len, names))
        axes.set_xticks(range(len(names)), names, rotation=90 if longest > 3 else 0, fontsize=TEXT_SIZE - 1)
    axes.tick_params(length=0)
    axes.spines[["bottom", "left"]].set_visible(False)
    axes.set_xlabel(_short(of.target))
    _bar(axes, image, "% of a client's examples", theme)


def _bar(axes: Axes, image: object, words: str, theme: Theme) -> None:
    figure = axes.get_figure(root=True)
    assert figure is not None
    bar = figure.colorbar(image, ax=axes, pad=0.02)  # type: ignore[arg-type]
    bar.outline.set_visible(False)
    bar.ax.tick_params(color=theme.faint, labelcolor=theme.ink, labelsize=TEXT_SIZE - 1)
    bar.set_label(words, color=theme.ink, fontsize=TEXT_SIZE - 1)


def draw_distributions(of: Description, *, theme: Theme = LIGHT) -> Figure:
    """Draw the share of values in each bin: of all clients as bars, and by client (Fritsch 2018, figure 2)."""
    from matplotlib.figure import Figure

    count = len(of.distributions)
    columns = min(_COLUMNS, max(1, count))
    rows = max(1, -(-count // columns))
    figure = Figure(figsize=(WIDTH, 0.75 + 1.75 * rows), layout="constrained", facecolor=theme.paper)
    _padded(figure)
    grid = figure.subplots(rows, columns, squeeze=False)
    for place, axes in enumerate(grid.ravel()):
        if place >= count:
            axes.set_visible(False)
            continue
        axes.set_facecolor(theme.paper)
        axes.spines[["top", "right", "left"]].set_visible(False)
        axes.spines["bottom"].set_color(theme.faint)
        axes.tick_params(color=theme.faint, labelcolor=theme.ink, labelsize=_SMALL)
        _distribution(axes, of.distributions[place], of, theme)
    handles = grid[0][0].get_legend_handles_labels() if count else ([], [])
    figure.legend(
        *handles,
        loc="outside lower center",
        ncols=4,
        fontsize=TEXT_SIZE - 1,
        frameon=False,
        labelcolor=theme.ink,
    )
    return figure


def _distribution(axes: Axes, one: Distribution, of: Description, theme: Theme) -> None:
    all_counts = one.counts.sum(axis=0)
    share = 100 * all_counts / max(1, int(all_counts.sum()))
    sizes = one.counts.sum(axis=1)
    some = np.flatnonzero(sizes > 0)
    each = 100 * one.counts[some] / sizes[some, None]
    if len(of.names) <= _LINES:
        axes.stairs(share, one.edges, fill=True, color=theme.faint, label="all clients", zorder=1)
        for place, client in enumerate(some.tolist()):
            axes.plot(
                (one.edges[1:] + one.edges[:-1]) / 2,
                each[place],
                marker="o" if one.whole else "",
                markersize=3.5,
                color=theme.of_arm(client),
                linestyle=theme.dashes_of_arm(client),
                linewidth=1.4,
                label=_short(of.names[client]),
                zorder=3,
            )
    else:
        low, high = np.quantile(each, [0.1, 0.9], axis=0)
        axes.stairs(
            high,
            one.edges,
            baseline=low,
            fill=True,
            color=theme.arms[0],
            alpha=0.3,
            linewidth=0,
            label="10 % to 90 % quantile of the clients' shares",
            zorder=2,
        )
        axes.stairs(share, one.edges, color=theme.ink, linewidth=1.5, label="all clients", zorder=3)
    axes.set_title(_short(one.name), loc="left", fontsize=TEXT_SIZE, color=theme.ink)
    if one.missing:
        total = one.missing + int(all_counts.sum())
        axes.set_title(f"{100 * one.missing / total:.0f} % missing", loc="right", fontsize=_SMALL, color=theme.soft)
    axes.set_ylim(bottom=0)
    axes.locator_params(axis="x", nbins=5, integer=one.whole)
    axes.locator_params(axis="y", nbins=3)
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:g} %")


def draw_correlations(of: Description, *, theme: Theme = LIGHT) -> Figure:
    """Draw the correlations of all pairs of features (Fritsch 2018, figure 3); constant ones stay empty."""
    count = len(of.features)
    side = min(10.0, max(3.4, 0.19 * count + 1.8))
    figure, (axes,) = panels(theme, 1, width=side + 1.6, height=side + 0.3)
    _padded(figure)
    image = axes.imshow(of.correlation, cmap="RdBu_r", vmin=-1, vmax=1, interpolation="nearest")
    axes.spines[["bottom", "left"]].set_visible(False)
    if count <= _LABELLED:
        names = [_short(name) for name in of.features]
        axes.set_xticks(range(count), names, rotation=90, fontsize=_SMALL)
        axes.set_yticks(range(count), names, fontsize=_SMALL)
    else:
        axes.set_xlabel(f"{count} features, in their order")
    axes.tick_params(length=0)
    _bar(axes, image, "correlation", theme)
    return figure


def _padded(figure: Figure) -> None:
    """Leave some room around the panels."""
    figure.get_layout_engine().set(h_pad=0.08, w_pad=0.06)  # type: ignore[union-attr, call-arg]


def _short(name: str, most: int = _LONGEST) -> str:
    return as_it_is(name if len(name) <= most else f"{name[: most - 1]}…")
