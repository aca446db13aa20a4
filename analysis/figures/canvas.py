"""The common parts of all figures: theme colours, an empty canvas, labels at the ends of lines, and output files.

An arm has the same colour in every figure, by its position in the study. The colours are Okabe and Ito's, which people
with any common colour vision can distinguish, darkened for white paper and lightened for black, so that text in them is
readable.

Matplotlib's ``Figure`` is used directly: no window system, no global list of open figures, no global style.

In SVG, text remains text. Within a page it takes the page's font and colours, light or dark.
"""

from __future__ import annotations

import io
import os
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

from fedping.protocol.notation import with_minus

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


Dashes: TypeAlias = str | tuple[float, tuple[float, ...]]


_DASHES: tuple[Dashes, ...] = ("solid", (0, (5, 2)), (0, (1, 1.5)))
"""The first line styles; each later one has a long dash and one more dot."""


@dataclass(frozen=True)
class Theme:
    """The colours of a theme.

    Attributes:
        paper: the background.
        ink: text and everything else that doesn't belong to an arm.
        soft: less important text.
        faint: axes and grids.
        arms: colours of arms by position in the study; further arms repeat them with another line style.
    """

    paper: str
    ink: str
    soft: str
    faint: str
    arms: tuple[str, ...]

    def of_arm(self, place: int) -> str:
        """Return the colour of the arm at a position in its study."""
        return self.arms[place % len(self.arms)]

    def dashes_of_arm(self, place: int) -> Dashes:
        """Return the line style of the arm at a position in its study; a new style starts when the colours repeat."""
        before = place // len(self.arms)
        if before < len(_DASHES):
            return _DASHES[before]
        return (0, (7, 2.5) + (1.5, 2.5) * (before - len(_DASHES) + 1))


LIGHT = Theme(
    paper="#ffffff",
    ink="#1b1f27",
    soft="#555d6b",
    faint="#c9ced6",
    arms=("#0067a3", "#b84e00", "#00795a", "#9e3f78", "#7d5a00", "#2f3238"),
)
DARK = Theme(
    paper="#1a1e25",
    ink="#e8ebf0",
    soft="#a8b0bd",
    faint="#434b58",
    arms=("#5cb3ee", "#f59a52", "#3fcf9f", "#e394c4", "#e6bc4d", "#d5d9e0"),
)
PAGE = Theme(
    paper="#070809",
    ink="#010203",
    soft="#0a0b0c",
    faint="#040506",
    arms=("#0d0e00", "#0d0e01", "#0d0e02", "#0d0e03", "#0d0e04", "#0d0e05"),
)
"""Placeholders for CSS variables, which Matplotlib doesn't support; `to_svg` replaces them."""


def css_variables(theme: Theme) -> str:
    """Return a theme's colours as CSS variables: ``--ink: #1b1f27; ... --arm-0: #0067a3; ...``."""
    return " ".join(f"{name}: {colour};" for name, colour in _named(theme))


def page_variables() -> dict[str, str]:
    """Return the CSS variable for each placeholder, as ``var(--ink)``."""
    return {colour: f"var({name})" for name, colour in _named(PAGE)}


def places(names: Iterable[str], arms: Sequence[str] | None) -> dict[str, int]:
    """Return each arm's position in the study, or its position among the names if the study's arms are not given."""
    names = list(names)
    order = list(arms) if arms is not None else names
    return {name: order.index(name) for name in names}


def _named(theme: Theme) -> list[tuple[str, str]]:
    plain = [(f"--{field.name}", getattr(theme, field.name)) for field in fields(theme) if field.name != "arms"]
    return plain + [(f"--arm-{i}", colour) for i, colour in enumerate(theme.arms)]


WIDTH = 9.0
"""Width of every single-panel figure, in inches."""

HEIGHT = 3.8

TEXT_SIZE = 10.0

_LABEL_GAP = 0.075
"""Minimum distance between two names at the ends of lines, as a share of the axis."""


class LineEnd(NamedTuple):
    """The end of a line: its position, name and look."""

    x: float
    y: float
    name: str
    colour: str
    dashes: Dashes = "solid"


def panels(
    theme: Theme, columns: int = 1, *, width: float = WIDTH, height: float = HEIGHT, one_scale: bool = True
) -> tuple[Figure, list[Axes]]:
    """Return an empty figure with panels side by side, in the theme's colours; ``one_scale`` shares the y-axis."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), layout="constrained", facecolor=theme.paper)
    figure.get_layout_engine().set(wspace=0.08)  # type: ignore[union-attr, call-arg]
    axes_grid = figure.subplots(1, columns, sharey=one_scale, squeeze=False)
    axes: list[Axes] = list(axes_grid[0])
    for one in axes:
        _style(one, theme)
    return figure, axes


def _style(axes: Axes, theme: Theme) -> None:
    axes.set_facecolor(theme.paper)
    axes.spines[["top", "right"]].set_visible(False)
    axes.spines[["bottom", "left"]].set_color(theme.faint)
    axes.tick_params(color=theme.faint, labelcolor=theme.ink, labelsize=TEXT_SIZE)
    for label in (axes.xaxis.label, axes.yaxis.label, axes.title, axes.xaxis.offsetText, axes.yaxis.offsetText):
        label.set_color(theme.ink)
        label.set_fontsize(TEXT_SIZE)
    axes.set_axisbelow(True)


def titled(figure: Figure, title: str, *, theme: Theme) -> Figure:
    """Write a title above a standalone figure, and return the figure."""
    figure.suptitle(title, x=0.01, ha="left", fontsize=12, fontweight="bold", color=theme.ink)
    return figure


def grid_across(axes: Axes, theme: Theme) -> None:
    """Draw faint lines across the panel at the ticks of the y-axis."""
    axes.grid(axis="y", linewidth=0.8, color=theme.faint)


def count_iterations(axes: Axes) -> None:
    """Label the x-axis as iterations, with integer ticks."""
    from matplotlib.ticker import MaxNLocator

    axes.set_xlabel("iteration (model version)")
    axes.xaxis.set_major_locator(MaxNLocator(steps=[1, 2, 5, 10], integer=True))


def group_thousands(axes: Axes) -> None:
    """Write thousands separators (12,000) if the y-axis reaches a thousand; call it after setting the limits."""
    from matplotlib.ticker import FuncFormatter

    if axes.get_ylim()[1] >= 1000:
        axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: with_minus(f"{value:,.10g}")))


def as_it_is(name: str) -> str:
    """Return a name in a form that Matplotlib does not read as a formula, and that is allowed in an SVG."""
    return "".join(each if each.isprintable() else "\N{REPLACEMENT CHARACTER}" for each in name).replace("$", r"\$")


def label_ends(axes: Axes, ends: Sequence[LineEnd]) -> None:
    """Write each line's name right of its last point, moved apart to avoid overlaps; call it after setting the limits.

    Names that don't fit below each other go into a legend below the panel instead.
    """
    if len(ends) > 1 / _LABEL_GAP:
        _legend(axes, ends)
        return
    low, high = axes.get_ylim()
    for end, height in zip(ends, spread([end.y for end in ends], low, high), strict=True):
        axes.annotate(
            end.name,
            (end.x, height),
            xytext=(8, 0),
            textcoords="offset points",
            color=end.colour,
            va="center",
            fontsize=TEXT_SIZE,
            fontweight="bold",
            annotation_clip=False,
        )


def _legend(axes: Axes, ends: Sequence[LineEnd]) -> None:
    from matplotlib.lines import Line2D

    handles = [Line2D([], [], color=end.colour, linewidth=1.8, label=end.name) for end in ends]
    for handle, end in zip(handles, ends, strict=True):
        handle.set_linestyle(end.dashes)  # type: ignore[arg-type]
    columns = max(1, min(6, round(90 / max(len(end.name) + 8 for end in ends))))
    figure = axes.get_figure(root=True)
    assert figure is not None  # axes in use have one
    figure.legend(
        handles=handles,
        loc="outside lower center",
        ncols=columns,
        fontsize=TEXT_SIZE - 1,
        frameon=False,
        handlelength=3.5,
        labelcolor=axes.xaxis.label.get_color(),
    )
    width, height = figure.get_size_inches()
    figure.set_size_inches(width, height + 0.2 * -(-len(ends) // columns))


def spread(heights: Sequence[float], low: float, high: float) -> list[float]:
    """Return heights moved apart by at least a line of text, in the same order, and below ``high`` if they fit."""
    gap = _LABEL_GAP * (high - low)
    order = sorted(range(len(heights)), key=lambda i: heights[i])
    positions = dict.fromkeys(order, 0.0)
    floor = float("-inf")
    for i in order:
        floor = positions[i] = max(heights[i], floor + gap)
    ceiling = max(high, low + gap * (len(heights) - 1))
    for i in reversed(order):
        ceiling = positions[i] = min(positions[i], ceiling)
        ceiling -= gap
    return [positions[i] for i in range(len(heights))]


DOTS_PER_INCH = 150

_SVG = {"svg.fonttype": "none", "svg.hashsalt": "fedping"}


def save_figure(figure: Figure, path: Path) -> Path:
    """Write a figure to a file in the format of its suffix (.png, .svg, .pdf), and return its path.

    The file is written atomically, and the same figure gives the same bytes.

    Raises:
        OSError: the file cannot be written.
    """
    import matplotlib

    hidden = path.with_name(f".{path.name}.tmp")
    kind = path.suffix.removeprefix(".")
    try:
        with matplotlib.rc_context(_SVG):  # type: ignore[arg-type]
            figure.savefig(hidden, dpi=DOTS_PER_INCH, format=kind, metadata={"Date": None} if kind == "svg" else None)
        os.replace(hidden, path)
    finally:
        hidden.unlink(missing_ok=True)
    return path


def to_svg(figure: Figure, key: str, title: str, description: str) -> str:
    """Return a figure as an ``<svg>`` element for a page.

    Args:
        figure: drawn in the theme ``PAGE``.
        key: makes the element's ids unique on a page.
        title: the figure's name for readers who cannot see it.
        description: the figure's content for the same readers.
    """
    body = _svg_text(figure)
    body = body[body.index("<svg") :]
    body = re.sub(r"<metadata>.*?</metadata>", "", body, flags=re.DOTALL)
    body = re.sub(r'\s(xmlns(:\w+)?|version)="[^"]*"', "", body)
    for colour, variable in page_variables().items():
        body = body.replace(colour, variable)
    body = re.sub(r"(font: [^;\"]*?px) [^;\"]*", r"\1 inherit", body)
    body = re.sub(r"font: ([^;\"]*?)(\d+(?:\.\d+)?px) inherit", r"font-size: \2; \1", body)
    body = re.sub(r"font-size: (\S+); (\d{3}|bold) ?", r"font-size: \1; font-weight: \2", body)
    body = re.sub(r'\bid="', f'id="{key}-', body)
    body = re.sub(r'(href="|url\()#', rf"\1#{key}-", body)
    return _described(body, key, title, description)


def _svg_text(figure: Figure) -> str:
    import matplotlib

    text = io.StringIO()
    nothing = dict.fromkeys(("Date", "Creator", "Format", "Type"))
    with matplotlib.rc_context(_SVG):  # type: ignore[arg-type]
        figure.savefig(text, format="svg", transparent=True, metadata=nothing)
    return text.getvalue()


def _described(body: str, key: str, title: str, description: str) -> str:
    head, _, rest = body.partition(">")
    head = re.sub(r'\s(width|height)="[^"]*"', "", head)
    label = f'<title id="{key}-title">{escape(title)}</title><desc id="{key}-desc">{escape(description)}</desc>'
    return f'{head} role="img" aria-labelledby="{key}-title {key}-desc">{label}{rest}'.strip()
