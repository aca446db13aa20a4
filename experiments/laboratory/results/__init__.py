"""The output of an experiment: a folder per run, tables of all of them, and a summary.

    <out>/experiment.json            the settings, which identify the folder
    <out>/units.json                 all runs in their order
    <out>/runs/<variant>/<repetition>/   metrics.parquet, best.npy, last.npy (weights), run.json
    <out>/baselines/<baseline>/<repetition>/   the same for the baselines
    <out>/metrics.parquet            all metrics: variant, seed, fold, round, split, metric, value
    <out>/summary.json               means with bands of the final models, and the best variant
    <out>/report.html                the same with pictures

A run is finished when its run.json exists, which is written last. Unfinished runs start again. While a run lasts, its
metrics are in a file of its folder; see :mod:`fedping.experiments.laboratory.results.progress`.
"""

from __future__ import annotations

from fedping.experiments.laboratory.results.folder import Outcome, RunFolder
from fedping.experiments.laboratory.results.progress import (
    METRICS_SCHEMA,
    MetricLog,
    ProgressFile,
    Row,
    Split,
    UnitNote,
    read_progress,
    read_units,
    write_units,
)
from fedping.experiments.laboratory.results.summary import Summary, VariantSummary, read_summary, summarised

__all__ = [
    "METRICS_SCHEMA",
    "MetricLog",
    "Outcome",
    "ProgressFile",
    "Row",
    "RunFolder",
    "Split",
    "Summary",
    "UnitNote",
    "VariantSummary",
    "read_progress",
    "read_summary",
    "read_units",
    "summarised",
    "write_units",
]
