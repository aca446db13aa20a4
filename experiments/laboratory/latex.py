r"""Tables of results for a paper, in LaTeX with the package ``booktabs``: of a whole experiment, and of two runs.

Differences are tested in pairs of seeds, by the paired t test. A table of several variants has the p-values of their
differences from the best one, adjusted by Holm's method.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from fedping.experiments.laboratory.comparing import Comparison, chosen
from fedping.experiments.laboratory.summary import (
    NO_QUALITY,
    Band,
    Summary,
    VariantSummary,
    difference,
    p_value,
    paired_by_seed,
    read_summary,
    shown_as,
)
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
    """Return a text as LaTeX prints it."""
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


def experiment_table(out: Path) -> str:
    """Return the table of a finished experiment: a row for each variant and baseline, the best in bold.

    Raises:
        FedpingError: the folder has no finished experiment.
    """
    summary = read_summary(out)
    if summary is None:
        raise FedpingError(f"{out} has no finished experiment of the laboratory. Run 'fedping simulate' first")
    tested = adjusted_p_values(out, summary)
    columns = [shown_as(metric) for metric in summary.shown]
    heads = ["", *columns, "rounds", "MB sent", *_heads_of_time(summary), *([r"$p$"] if tested else [])]
    rows = [_row(name, row, summary, _tested(tested, name)) for name, row in summary.variants.items()]
    beside = [_row(name, row, summary, _tested(tested, name)) for name, row in summary.baselines.items()]
    seeds = len(summary.seeds)
    words = [f"{escaped(summary.name)}: {escaped(summary.split)} examples, {_mean_of(seeds)}."]
    elsewhere = "" if summary.chosen_on == summary.split else f" on the {escaped(summary.chosen_on)} examples"
    if tested:
        words.append(
            f"Bold: the best {escaped(shown_as(summary.metric))}{elsewhere}. $p$: paired $t$ test of the difference "
            "from it over the seeds, adjusted by Holm's method."
        )
    return _table(heads, [rows, beside], " ".join(words), summary.name, summary.digest)


def adjusted_p_values(out: Path, summary: Summary) -> dict[str, float | None]:
    """Return the p-value of each variant's difference from the best, in pairs of seeds, adjusted by Holm's method.

    It is None for a difference that cannot be tested. There are none without a best variant or with a single seed.
    """
    from fedping.analysis.statistics import holm

    best = summary.best
    if best is None or len(summary.seeds) < 2 or len(summary.variants) < 2:
        return {}
    runs = {name: chosen(f"{out}:{name}").outcomes for name in summary.variants if name not in summary.untrained}
    found = {
        name: p_value(difference(paired_by_seed(runs[best].values(), its.values(), summary.split, summary.metric)))
        for name, its in runs.items()
        if name != best
    }
    known = {name: p for name, p in found.items() if p is not None}
    logs = holm([math.log10(p) if p > 0 else -math.inf for p in known.values()])
    return {**found, **{name: 10**each for name, each in zip(known, logs, strict=True)}}


def comparison_table(comparison: Comparison) -> str:
    """Return the table of two runs: a row for each metric, with the mean difference, its interval and its p-value.

    Metrics of single classes are left out.
    """
    rows = []
    for each in comparison.overall:
        digits = 0 if each.split == "bytes" else 4
        apart = _band(each.difference, digits, signed=True)
        cells = [f"{each.split} {each.metric}", _number(each.a, digits), _number(each.b, digits), apart]
        p = "" if each.split in NO_QUALITY or not isinstance(each.p, float) else _p(each.p)
        rows.append([escaped(cells[0]), *cells[1:], p])
    words = (
        f"$a$: {escaped(comparison.a)}; $b$: {escaped(comparison.b)}; {_mean_of(len(comparison.seeds))}. $p$: paired "
        "$t$ test over the seeds, not adjusted for the number of metrics."
    )
    words += "".join(f" {escaped(note)}." for note in comparison.notes or ())
    heads = ["", "$a$", "$b$", "$b - a$", "$p$"]
    return _table(heads, [rows], words, f"{comparison.a} {comparison.b}", "")


def _mean_of(seeds: int) -> str:
    return "one seed" if seeds == 1 else rf"mean over {seeds} seeds $\pm$ half the 95\,\% $t$ interval"


def _tested(p_values: Mapping[str, float | None], name: str) -> str | None:
    """Return the cell with a row's p-value; None if the table has none."""
    p = p_values.get(name)
    return None if not p_values else "" if p is None else _p(p)


def _row(name: str, row: VariantSummary, summary: Summary, p: str | None) -> list[str]:
    cells = [escaped(name)]
    for metric in summary.shown:
        cell = _band(row.metrics.get(summary.split, {}).get(metric), 4)
        is_best = name == summary.best and metric == summary.metric and len(summary.variants) > 1
        cells.append(rf"\textbf{{\boldmath {cell}}}" if is_best and cell else cell)
    cells += [_band(row.rounds, 0, alone=True), _scaled(row.update_bytes, 1e6)]
    cells += _cells_of_time(name, row, summary)
    if p is not None:
        cells.append(p)
    return cells


def _heads_of_time(summary: Summary) -> list[str]:
    """Return the heads of the simulated hours and of what the target costs, as the terminal's table has them."""
    hours = ["hours"] if summary.timed else []
    if summary.target is None:
        return hours
    reached = f"to {escaped(shown_as(summary.metric))} {summary.target:g}"
    return [*hours, *(f"{unit} {reached}" for unit in ("rounds", *hours))]


def _cells_of_time(name: str, row: VariantSummary, summary: Summary) -> list[str]:
    hours, to_target = (
        each if isinstance(each, Band) else Band(None, None, 0) for each in (row.simulated_hours, row.hours_to_target)
    )
    cells = [_scaled(hours, 1)] if summary.timed else []
    if summary.target is None:
        return cells
    reached = [row.to_target, *([to_target] if summary.timed else [])]
    return cells + [_reached(band, len(summary.seeds)) if name in summary.variants else "" for band in reached]


def _reached(band: Band, seeds: int) -> str:
    if band.mean is None:
        return "never"
    return _scaled(band, 1) + ("" if band.seeds == seeds else f" ({band.seeds} of {seeds})")


def _scaled(band: Band, unit: float) -> str:
    return "" if band.mean is None else f"${band.mean / unit:,.4g}$".replace(",", "{,}")


def _band(band: Band | None, digits: int, *, signed: bool = False, alone: bool = False) -> str:
    if band is None or band.mean is None:
        return ""
    mean = _number(band.mean, digits, signed=signed)
    return mean if band.half is None or alone else rf"{mean[:-1]} \pm {_number(band.half, digits)[1:]}"


def _number(value: float, digits: int, *, signed: bool = False) -> str:
    return f"${value:{'+' if signed else ''},.{digits}f}$".replace(",", "{,}")


def _p(p: float) -> str:
    return f"$<{_LEAST_P}$" if p < _LEAST_P else f"${p:.3f}$"


def _table(
    heads: Sequence[str], groups: Sequence[Sequence[Sequence[str]]], caption: str, name: str, digest: str
) -> str:
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
