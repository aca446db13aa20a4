"""The table of an experiment's final results for a paper, in LaTeX.

Differences are tested in pairs of seeds, by the paired t test. A table of several variants has the p-values of their
differences from the best one, adjusted by Holm's method.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path

from fedping.experiments.laboratory.comparing import chosen
from fedping.experiments.laboratory.latex import banded, escaped, mean_of, p_cell, scaled, table
from fedping.experiments.laboratory.summary import (
    Band,
    Summary,
    VariantSummary,
    difference,
    p_value,
    paired_by_seed,
    read_summary,
    shown_as,
)
from fedping.protocol.errors import FedpingError


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
    words = [f"{escaped(summary.name)}: {escaped(summary.split)} examples, {mean_of(seeds)}."]
    elsewhere = "" if summary.chosen_on == summary.split else f" on the {escaped(summary.chosen_on)} examples"
    if tested:
        words.append(
            f"Bold: the best {escaped(shown_as(summary.metric))}{elsewhere}. $p$: paired $t$ test of the difference "
            "from it over the seeds, adjusted by Holm's method."
        )
    return table(heads, [rows, beside], " ".join(words), summary.name, summary.digest)


def adjusted_p_values(out: Path, summary: Summary) -> dict[str, float | None]:
    """Return the p-value of each variant's difference from the best, in pairs of seeds, adjusted by Holm's method.

    A difference that cannot be tested has None. The result is empty without a best variant or with a single seed.
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


def _tested(p_values: Mapping[str, float | None], name: str) -> str | None:
    """Return the cell with a row's p-value; None if the table has none."""
    p = p_values.get(name)
    return None if not p_values else "" if p is None else p_cell(p)


def _row(name: str, row: VariantSummary, summary: Summary, p: str | None) -> list[str]:
    cells = [escaped(name)]
    for metric in summary.shown:
        cell = banded(row.metrics.get(summary.split, {}).get(metric), 4)
        is_best = name == summary.best and metric == summary.metric and len(summary.variants) > 1
        cells.append(rf"\textbf{{\boldmath {cell}}}" if is_best and cell else cell)
    cells += [banded(row.rounds, 0, alone=True), scaled(row.update_bytes, 1e6)]
    cells += _cells_of_time(name, row, summary)
    if p is not None:
        cells.append(p)
    return cells


def _heads_of_time(summary: Summary) -> list[str]:
    """Return the column heads for simulated hours and for the cost of the target, as in the terminal's table."""
    hours = ["hours"] if summary.timed else []
    if summary.target is None:
        return hours
    reached = f"to {escaped(shown_as(summary.metric))} {summary.target:g}"
    return [*hours, *(f"{unit} {reached}" for unit in ("rounds", *hours))]


def _cells_of_time(name: str, row: VariantSummary, summary: Summary) -> list[str]:
    hours, to_target = (
        each if isinstance(each, Band) else Band(None, None, 0) for each in (row.simulated_hours, row.hours_to_target)
    )
    cells = [scaled(hours, 1)] if summary.timed else []
    if summary.target is None:
        return cells
    reached = [row.to_target, *([to_target] if summary.timed else [])]
    return cells + [_reached(band, len(summary.seeds)) if name in summary.variants else "" for band in reached]


def _reached(band: Band, seeds: int) -> str:
    if band.mean is None:
        return "never"
    return scaled(band, 1) + ("" if band.seeds == seeds else f" ({band.seeds} of {seeds})")
