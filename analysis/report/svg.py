"""Matplotlib figures as SVG for a page: text stays text, and colours are the page's, light or dark.

Matplotlib knows no CSS variables, so figures are drawn in stand-in colours, which are replaced in the SVG.
"""

from __future__ import annotations

import io
import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from matplotlib.figure import Figure

INK, FAINT, PAPER = "#010203", "#040506", "#070809"
ARM_COLOURS = ("#0a0b00", "#0a0b01", "#0a0b02", "#0a0b03", "#0a0b04", "#0a0b05")
"""Stand-ins; arm i has CSS variable ``--arm-i``."""

VARIABLES = {INK: "--ink", FAINT: "--faint", PAPER: "--paper"} | {c: f"--arm-{i}" for i, c in enumerate(ARM_COLOURS)}

_STYLE: dict[Any, Any] = {
    "svg.fonttype": "none",
    "svg.hashsalt": "fedping",
    "font.family": "sans-serif",
    "font.size": 10,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.titlelocation": "left",
    "axes.titlesize": 11,
    "axes.titleweight": "bold",
    "figure.facecolor": "none",
    "axes.facecolor": "none",
    **dict.fromkeys(("text.color", "axes.labelcolor", "xtick.labelcolor", "ytick.labelcolor"), INK),
    **dict.fromkeys(("axes.edgecolor", "xtick.color", "ytick.color", "grid.color"), FAINT),
}


@contextmanager
def page_style() -> Iterator[None]:
    """Draw in the page's style inside this block, and without a display."""
    import matplotlib

    matplotlib.use("Agg")
    with matplotlib.rc_context(_STYLE):
        yield


def to_svg(figure: Figure, key: str, title: str, description: str) -> str:
    """Return a figure as an ``<svg>`` element, and close it.

    Args:
        figure: drawn within :func:`page_style`.
        key: makes the element's ids its own among several on a page.
        title: its name for those who do not see it.
        description: what it shows, for the same.
    """
    from matplotlib import pyplot as plt

    text = io.StringIO()
    figure.savefig(text, format="svg", metadata={"Date": None, "Creator": None, "Format": None, "Type": None})
    plt.close(figure)
    body = text.getvalue()
    body = body[body.index("<svg") :]
    body = re.sub(r"<metadata>.*?</metadata>", "", body, flags=re.DOTALL)
    body = re.sub(r'\s(xmlns(:\w+)?|version)="[^"]*"', "", body)
    for colour, variable in VARIABLES.items():
        body = body.replace(colour, f"var({variable})")
    body = re.sub(r"(font: [^;\"]*?px) [^;\"]*", r"\1 inherit", body)
    body = re.sub(r"font: ([^;\"]*?)(\d+(?:\.\d+)?px) inherit", r"font-size: \2; \1", body)
    body = re.sub(r"font-size: (\S+); (\d{3}|bold) ?", r"font-size: \1; font-weight: \2", body)
    body = re.sub(r'\bid="', f'id="{key}-', body)
    body = re.sub(r'(href="|url\()#', rf"\1#{key}-", body)
    return _named(body, key, title, description)


def _named(body: str, key: str, title: str, description: str) -> str:
    from html import escape

    head, _, rest = body.partition(">")
    head = re.sub(r'\s(width|height)="[^"]*"', "", head)
    label = f'<title id="{key}-title">{escape(title)}</title><desc id="{key}-desc">{escape(description)}</desc>'
    return f'{head} role="img" aria-labelledby="{key}-title {key}-desc">{label}{rest}'.strip()
