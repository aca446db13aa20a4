"""The metrics of a run as one file, of what has been measured by now."""

from __future__ import annotations

import io
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
from pyarrow import csv

from dashboard.watching.measurements import read_measurements
from dashboard.watching.units import Unit, units_in
from experiments.laboratory.results import METRICS_SCHEMA, MetricLog, read_progress


def metrics(out: Path) -> pa.Table:
    """Return all metrics of the experiment in a folder; of runs that are not finished what they have told.

    Raises:
        DamagedRun: a file of metrics cannot be read.
    """
    whole = out / "metrics.parquet"
    if whole.is_file():
        return read_measurements(whole)
    return pa.concat_tables([METRICS_SCHEMA.empty_table(), *(_of(unit) for unit in units_in(out))])


def _of(unit: Unit) -> pa.Table:
    if unit.outcome is not None:
        return read_measurements(unit.path / "metrics.parquet")
    told = read_progress(unit.path)
    log = MetricLog(unit.note.name, unit.note.seed, unit.note.fold)
    log.rows.extend((*row[:3], float("nan") if row[3] is None else row[3]) for row in (told.rows if told else ()))
    return log.table()


def as_parquet(table: pa.Table) -> bytes:
    """Return a table as a Parquet file."""
    sink = io.BytesIO()
    pq.write_table(table, sink, compression="zstd")
    return sink.getvalue()


def as_csv(table: pa.Table) -> bytes:
    """Return a table as CSV; what is null is empty."""
    sink = io.BytesIO()
    csv.write_csv(table, sink)
    return sink.getvalue()
