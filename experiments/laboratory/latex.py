"""Parts of tables for a paper, in LaTeX with the package ``booktabs``: texts, cells, and the table around them."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from pathlib import Path

from fedping.experiments.laboratory.summary import Band
from fedping.experiments.run_folder import write_whole_bytes
from fedping.protocol.errors import FedpingError

_SPECIAL = {
    "\\": r"\textbackslash{}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
    **{sign: f"\\{sign}" for sign in "&%$#_{}"},
}
_SIGNS = re.compile("|".join(map(re.escape, _SPECIAL)))
_LEAST_P = 0.001


def escaped(text: str) -> str:
    """Return a text escaped for LaTeX."""
    return _SIGNS.sub(lambda found: _SPECIAL[found[0]], " ".join(text.split()))


def write_latex(table: str, to: Path) -> None:
    """Write a table to a file.

    Raises:
        FedpingError: the file cannot be written.
    """
    try:
        write_whole_bytes(to, table.encode())
    except OSError as error:
        raise FedpingError(f"cannot write {to}: {error.strerror}. Give another file") from error


def mean_of(seeds: int) -> str:
    """Return the explanation of a number with an interval, for a caption."""
    return "one seed" if seeds == 1 else rf"mean over {seeds} seeds $\pm$ half the 95\,\% $t$ interval"


def scaled(band: Band, unit: float) -> str:
    """Return the cell of a mean in multiples of a unit."""
    return "" if band.mean is None else f"${band.mean / unit:,.4g}$".replace(",", "{,}")


def banded(band: Band | None, digits: int, *, signed: bool = False, alone: bool = False) -> str:
    """Return the cell of a mean, with half the width of its interval unless ``alone``; empty without a mean."""
    if band is None or band.mean is None:
        return ""
    mean = number(band.mean, digits, signed=signed)
    return mean if band.half is None or alone else rf"{mean[:-1]} \pm {number(band.half, digits)[1:]}"


def number(value: float, digits: int, *, signed: bool = False) -> str:
    """Return the cell of a number with ``digits`` digits after the point."""
    return f"${value:{'+' if signed else ''},.{digits}f}$".replace(",", "{,}")


def p_cell(p: float) -> str:
    """Return the cell of a p-value."""
    return f"$<{_LEAST_P}$" if p < _LEAST_P else f"${p:.3f}$"


def table(heads: Sequence[str], groups: Sequence[Sequence[Sequence[str]]], caption: str, name: str, digest: str) -> str:
    """Return a table with groups of rows under heads, with the digest of its experiment in a comment."""
    label = re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-") or "results"
    return "\n".join(
        [
            r"% \usepackage{booktabs} in the preamble" + (f"; experiment {digest}" if digest else ""),
            r"\begin{table}",
            r"  \centering",
            rf"  \caption{{{caption}}}",
            rf"  \label{{tab:{label}}}",
            rf"  \begin{{tabular}}{{l{'r' * (len(heads) - 1)}}}",
            r"    \toprule",
            *_lines([heads]),
            *(line for rows in groups if rows for line in (r"    \midrule", *_lines(rows))),
            r"    \bottomrule",
            r"  \end{tabular}",
            r"\end{table}",
            "",
        ]
    )


def _lines(rows: Sequence[Sequence[str]]) -> Iterator[str]:
    for row in rows:
        yield rf"    {' & '.join(row)} \\"
