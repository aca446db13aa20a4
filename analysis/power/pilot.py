"""The distribution of a metric: from a landed pilot, a file, a statement, or without any knowledge."""

from __future__ import annotations

import csv
import tomllib
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np

from fedping.analysis.statistics.power import Distribution
from fedping.analysis.study.metrics import Metric
from fedping.analysis.study.tally import StudyTally
from fedping.protocol.errors import FedpingError, InvalidSettings

Unit = Literal["client", "ping"]

MOST_VALUES = 256
"""Distinct values that a simulation draws from; means over a client's pings may have many more (see `coarsened`)."""

_MOST = 1e150
"""The most that a stated value or count can be, so that no product of two overflows."""

_EVEN = 256
"""Number of values in the stand-in for a distribution without ties; with so many, ties have no effect."""


@dataclass(frozen=True, eq=False)
class Pilot:
    """What is known of a metric before the study.

    Attributes:
        distribution: the distribution of users without the change.
        metric: its name.
        source: where it comes from, in words.
        unit: what one value belongs to.
        observed: how many values it is based on; None if it was only stated.
        alike: for pings of a landed pilot, the ratio of the variance of a mean over pings to that of as many
            independent pings (the design effect).
        has_scale: whether the values have a meaning; if none were given, only their order has.
    """

    distribution: Distribution
    metric: str
    source: str
    unit: Unit = "client"
    observed: int | None = None
    alike: float | None = None
    has_scale: bool = True


def landed_pilot(tally: StudyTally, study: str, arm: str, metric: Metric, unit: Unit) -> Pilot:
    """Return the pilot of a metric from an arm of a counted study.

    Raises:
        FedpingError: the arm does not have two different values.
    """
    found = tally.arms[arm].metrics[metric.name]
    counts = found.clients if unit == "client" else found.pings
    if len(counts.values) < 2:
        raise FedpingError(
            f"arm '{arm}' of study '{study}' has {counts.n:,} values of {metric.name} by {unit}, of which no two "
            "differ, so that no change of it can be planned; name another --arm or --metric, or widen the window"
        )
    plain = counts.variance / counts.n
    return Pilot(
        Distribution.of(counts).coarsened(MOST_VALUES),
        metric.name,
        f"arm '{arm}' of study '{study}', by {unit}",
        unit,
        counts.n,
        found.sums.squared_error / plain if unit == "ping" else None,
    )


def pilot_from_file(path: Path, metric: str, unit: Unit) -> Pilot:
    """Read a distribution: a CSV of value,count, with or without a heading, or TOML with ``values`` and ``counts``.

    Raises:
        InvalidSettings: the file does not exist or has another format.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise InvalidSettings(f"cannot read the distribution file {path}: {error.strerror}; check the path") from error
    except UnicodeDecodeError as error:
        raise InvalidSettings(f"the distribution file {path} is not UTF-8 text; save it as UTF-8") from error
    rows = _toml_rows(text, path) if path.suffix == ".toml" else _csv_rows(text)
    return _stated(rows, f"the file {path}", metric, unit)


def pilot_from_text(text: str, metric: str, unit: Unit) -> Pilot:
    """Read a distribution from "0:120,1:60,2:20"; raises :class:`InvalidSettings`."""
    rows = [part.split(":") for part in text.split(",") if part.strip()]
    return _stated(rows, "--counts", metric, unit)


def no_pilot(metric: str, unit: Unit) -> Pilot:
    """Return the cautious case: all values are different, and only their order counts."""
    even = Distribution(np.arange(float(_EVEN)), np.full(_EVEN, 1 / _EVEN))
    return Pilot(even, metric, "no distribution", unit, has_scale=False)


def _csv_rows(text: str) -> list[list[str]]:
    rows = [row for row in csv.reader(text.splitlines()) if row and not row[0].lstrip().startswith("#")]
    return rows[1:] if rows and [cell.strip().lower() for cell in rows[0]] == ["value", "count"] else rows


def _toml_rows(text: str, path: Path) -> list[list[Any]]:
    try:
        said = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise InvalidSettings(f"the distribution file {path} is not valid TOML: {error}") from error
    values, counts = said.get("values"), said.get("counts")
    if not isinstance(values, list) or not isinstance(counts, list) or len(values) != len(counts):
        raise InvalidSettings(
            f"the distribution file {path} has to give values = [...] and counts = [...] of the same length"
        )
    return [list(pair) for pair in zip(values, counts, strict=True)]


def _stated(rows: Iterable[list[Any]], source: str, metric: str, unit: Unit) -> Pilot:
    found: dict[float, float] = {}
    for row in rows:
        value, count = _number_pair(row, source)
        found[value] = found.get(value, 0.0) + count
    values = sorted(value for value, count in found.items() if count > 0)
    if len(values) < 2:
        raise InvalidSettings(f"{source} gives no two different values, so that no change of them can be planned")
    weights = np.array([found[value] for value in values])
    distribution = Distribution(np.array(values), weights / weights.sum())
    return Pilot(distribution.coarsened(MOST_VALUES), metric, source, unit)


def _number_pair(row: list[Any], source: str) -> tuple[float, float]:
    try:
        value, count = (float(cell) for cell in row)
    except (TypeError, ValueError) as error:
        said = ",".join(map(str, row))
        raise InvalidSettings(f"'{said}' in {source} is no value with its count, such as 3,120 or 3:120") from error
    if not (abs(value) <= _MOST and 0 <= count <= _MOST):
        raise InvalidSettings(
            f"the value {value:g} with the count {count:g} in {source} cannot be: values lie within {_MOST:g} of 0, "
            "and counts from 0 on up to it"
        )
    return value, count
