"""Variants side by side: curves, final models, differing settings, differences of results; and sweeps over a grid."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

import msgspec

from fedping.dashboard.runs.flat import Flat, flat
from fedping.dashboard.runs.places import Place, place
from fedping.dashboard.watching.curves import Measured, Points, finished, grown
from fedping.dashboard.watching.units import Unit, units_in
from fedping.experiments.laboratory.comparing import Chosen, Comparison, compared
from fedping.experiments.laboratory.report import columns_of
from fedping.experiments.laboratory.results import Outcome
from fedping.experiments.laboratory.settings import experiment_from_toml
from fedping.experiments.laboratory.summary import (
    Band,
    Criteria,
    Standing,
    Summary,
    VariantSummary,
    standing,
    summarised,
    variant_summary,
)
from fedping.experiments.laboratory.tallies import higher_is_better
from fedping.experiments.run_folder import NOTE
from fedping.protocol.errors import FedpingError, InvalidSettings


@dataclass(frozen=True)
class Finals:
    """The summary of the finished runs, and the number of the variants' runs that are finished."""

    summary: Summary
    finished: int
    all: int

    @property
    def columns(self) -> list[tuple[str, str]]:
        """Split and metric of each column."""
        return columns_of(self.summary)

    @property
    def standing(self) -> Standing:
        """The ranking of the variants by the deciding metric."""
        return standing(self.summary)

    @property
    def marks(self) -> dict[tuple[str, str], Standing]:
        """The ranking of the variants in each column."""
        return {column: standing(self.summary, *column) for column in self.columns}


def finals(out: Path) -> Finals | None:
    """Return the results of the finished runs in a folder; None before a run of a variant is finished."""
    units = units_in(out)
    variants: dict[str, list[Outcome]] = {}
    baselines: dict[str, list[Outcome]] = {}
    for unit in units:
        if (outcome := unit.outcome) is not None:
            rows = baselines if unit.note.baseline else variants
            rows.setdefault(unit.note.name, []).append(outcome)
    if not variants:
        return None
    return Finals(
        _summary(variants, baselines),
        finished=sum(map(len, variants.values())),
        all=sum(not unit.note.baseline for unit in units),
    )


def _summary(variants: Mapping[str, Sequence[Outcome]], baselines: Mapping[str, Sequence[Outcome]]) -> Summary:
    first = next(iter(variants.values()))[0]
    seeds = dict.fromkeys(outcome.seed for outcomes in variants.values() for outcome in outcomes)
    return summarised("", "", Criteria(seeds=tuple(seeds), shown=first.shown, split=first.split), variants, baselines)


ABSENT = "–"

OF_BASELINES = ("data", "evaluation", "model", "partition")
"""The tables of settings that a baseline depends on."""


@dataclass(frozen=True)
class Row:
    """A setting, and its value in each of the compared variants."""

    setting: str
    values: tuple[str, ...]


def settings_of(out: Path, order: Sequence[str] = ()) -> dict[str, Flat]:
    """Return the settings of each variant of the experiment in a folder, with the variants of ``order`` first."""
    try:
        note = msgspec.json.decode((out / NOTE).read_bytes())
    except (FileNotFoundError, msgspec.DecodeError, UnicodeDecodeError):
        return {}
    variants = note.get("variants") if isinstance(note, dict) else None
    if not isinstance(variants, dict):
        return {}
    names = dict.fromkeys([*(name for name in order if name in variants), *variants])
    return {name: flat(variants[name]) for name in names}


def settings_of_file(file: Path) -> dict[str, Flat]:
    """Return the settings of each variant that an experiment's file describes."""
    experiment = experiment_from_toml(file)
    return {name: flat(msgspec.to_builtins(setup)) for name, setup in experiment.variants.items()}


def of_baseline(name: str, variants: Mapping[str, Flat]) -> Flat:
    """Return the settings that a baseline depends on, from the variant in its name, else from the first variant."""
    _, paren, rest = name.partition(" (")
    variant = rest.removesuffix(")") if paren else next(iter(variants), "")
    return {key: value for key, value in variants.get(variant, {}).items() if key.split(".")[0] in OF_BASELINES}


def differing(settings: Sequence[Flat]) -> list[Row]:
    """Return the settings that differ between at least two variants."""
    names = _in_order(name for each in settings for name in each)
    rows = [Row(name, tuple(each.get(name, ABSENT) for each in settings)) for name in names]
    return [row for row in rows if len(set(row.values)) > 1]


def common(variants: Mapping[str, Flat]) -> Flat:
    """Return the settings that all variants of an experiment have in common."""
    first, *others = variants.values() if variants else [{}]
    return {key: value for key, value in first.items() if all(other.get(key) == value for other in others)}


def _in_order(names: Iterable[str]) -> list[str]:
    return sorted(dict.fromkeys(names))


MOST = 12
"""Maximum number of variants that a page compares."""


@dataclass(frozen=True)
class One:
    """A chosen variant or baseline, with all its repetitions.

    ``key`` is its name in an address, as "run:variant"; ``label`` is its name on pages.
    """

    key: str
    label: str
    place: Place
    name: str
    units: tuple[Unit, ...]

    @property
    def baseline(self) -> bool:
        """Whether this is a baseline."""
        return self.units[0].note.baseline

    @property
    def chosen(self) -> Chosen:
        """The finished repetitions, in the form that `fedping compare` uses."""
        known = [unit.outcome for unit in self.units]
        return Chosen(self.label, {(one.seed, one.fold): one for one in known if one is not None})

    @property
    def final(self) -> VariantSummary | None:
        """The summary of the results; None before a repetition is finished."""
        outcomes = list(self.chosen.outcomes.values())
        return variant_summary(outcomes) if outcomes else None

    @property
    def settings(self) -> Flat:
        """The settings of the variant, or the settings that the baseline depends on."""
        variants = settings_of(self.place.out)
        return of_baseline(self.name, variants) if self.baseline else variants.get(self.name, {})


@dataclass(frozen=True)
class Pair:
    """The differences of a variant from the first one, or the reason why their runs cannot be paired."""

    one: One
    comparison: Comparison | None
    why_not: str | None


def compared_runs(runs: Path, keys: Sequence[str]) -> list[One]:
    """Return the variants that an address names, each "run:variant", in order.

    Raises:
        UnknownRun: there is no such run.
        InvalidSettings: a run has no such variant, or there are too many.
    """
    keys = list(dict.fromkeys(keys))
    if len(keys) > MOST:
        raise InvalidSettings(f"{len(keys)} variants are too many to compare on one page; choose at most {MOST}")
    ids = list(dict.fromkeys(key.partition(":")[0] for key in keys))
    wheres = [place(runs, id) for id in ids]
    called = {where.id: _called(where, wheres) for where in wheres}
    return [_one(runs, key, called) for key in keys]


def _called(where: Place, all: Sequence[Place]) -> str:
    """Return a label that distinguishes a run: empty for the only run, else its title if unique, else its id."""
    if len(all) == 1:
        return ""
    return where.title if sum(other.title == where.title for other in all) == 1 else where.id


def _one(runs: Path, key: str, called: Mapping[str, str]) -> One:
    id, _, name = key.partition(":")
    where = place(runs, id)
    units = tuple(unit for unit in units_in(where.out) if unit.note.name == name)
    if not units:
        raise InvalidSettings(f"the run '{where.title}' has no variant '{name}'; choose one from its list")
    return One(key, f"{name} ({called[id]})" if called[id] else name, where, name, units)


def pairs(ones: Sequence[One]) -> list[Pair]:
    """Return the differences of each variant from the first one."""
    return [_pair(ones[0], other) for other in ones[1:]]


def _pair(first: One, other: One) -> Pair:
    for one in (first, other):
        if not one.chosen.outcomes:
            return Pair(other, None, f"'{one.label}' has no finished run yet")
    try:
        return Pair(other, compared(first.chosen, other.chosen), None)
    except FedpingError as error:
        return Pair(other, None, str(error))


def best_among(ones: Sequence[One], of: Measured) -> str | None:
    """Return a sentence that names the best variant by a metric; None if fewer than two have a finished run."""
    outcomes = {one.label: list(one.chosen.outcomes.values()) for one in ones}
    known = {label: each for label, each in outcomes.items() if each}
    return standing(_summary(known, {}), of.split, of.metric).sentence if len(known) > 1 else None


def settings_apart(ones: Sequence[One]) -> list[Row]:
    """Return the settings that differ between variants; a baseline without a setting does not count as different."""
    rows = differing([one.settings for one in ones])
    absent = [one.baseline for one in ones]
    return [
        row
        for row in rows
        if len({value for value, may in zip(row.values, absent, strict=True) if not (may and value == ABSENT)}) > 1
    ]


def drawn(ones: Sequence[One], of: Measured) -> list[Mapping[str, Any]]:
    """Return the curves of all repetitions of each variant, and the mean of the final values with half its interval."""
    return [
        {
            "name": one.label,
            "baseline": one.baseline,
            "final": _final(one, of),
            "runs": [
                {"seed": unit.note.seed, "fold": unit.note.fold, "x": points.rounds, "y": points.values}
                for unit in one.units
                for points in [points_of(one.place.out, unit, of)]
            ],
        }
        for one in ones
    ]


def points_of(out: Path, unit: Unit, of: Measured) -> Points:
    """Return the measurements of a run, finished or not."""
    if unit.outcome is not None:
        return finished(out, unit, of)
    growth = grown(unit, of, None)
    return growth.points if growth else Points([], [])


def _final(one: One, of: Measured) -> Mapping[str, Any] | None:
    summary = one.final
    band: Band | None = summary.metrics.get(of.split, {}).get(of.metric) if summary else None
    return None if band is None else {"mean": band.mean, "half": band.half, "seeds": band.seeds}


LEAST = 3
"""Minimum number of variants of a sweep; two variants are a comparison."""

SHADES = 8
"""Number of colour steps for the values of the metric."""


@dataclass(frozen=True)
class Axis:
    """A setting by its dotted name, and its values in the order of the axis: by size if they are numbers."""

    setting: str
    values: tuple[str, ...]


@dataclass(frozen=True)
class Point:
    """A variant on the grid: its value on each axis, the mean of the metric, and its colour step, from 0 to SHADES."""

    name: str
    at: tuple[str, ...]
    mean: float | None
    shade: int | None


@dataclass(frozen=True)
class Sweep:
    """The axes of a sweep, and the points known so far, the best first."""

    axes: tuple[Axis, ...]
    points: tuple[Point, ...]

    @property
    def cells(self) -> Mapping[tuple[str, ...], Point]:
        """The points by their values on the axes."""
        return {point.at: point for point in self.points}

    def lines(self, width: float, height: float) -> list[tuple[Point, str]]:
        """Return each point as a line of parallel coordinates, through the axes and then the metric; the best last.

        The coordinates are those of an SVG polyline in a drawing of that size; axes are evenly spaced.
        """
        known = [point for point in self.points if point.mean is not None]
        means = [point.mean for point in known if point.mean is not None]
        step = width / len(self.axes)
        drawn = []
        for point in reversed(known):
            ys = [
                _share(axis.values.index(value), len(axis.values) - 1)
                for axis, value in zip(self.axes, point.at, strict=True)
            ]
            assert point.mean is not None
            ys.append(_share(point.mean - min(means), max(means) - min(means)))
            drawn.append((point, " ".join(f"{place * step:.1f},{height * (1 - y):.1f}" for place, y in enumerate(ys))))
        return drawn


def _share(part: float, whole: float) -> float:
    return part / whole if whole else 0.5


def axes_of(variants: Mapping[str, Flat]) -> tuple[Axis, ...]:
    """Return the axes of the variants' grid; empty if the variants don't form a grid."""
    rows = differing(list(variants.values()))
    axes = tuple(Axis(row.setting, _ordered(row.values)) for row in rows)
    points = set(zip(*(row.values for row in rows), strict=True))
    whole = len(points) == len(variants) == prod(len(axis.values) for axis in axes)
    absent = any(ABSENT in axis.values for axis in axes)
    return axes if whole and not absent and len(variants) >= LEAST else ()


def sweep_of(variants: Mapping[str, Flat], summary: Summary) -> Sweep | None:
    """Return the sweep of an experiment, as far as it is finished; None if it is not a sweep."""
    axes = axes_of(variants)
    if not axes:
        return None
    values = {name: row.metrics.get(summary.split, {}).get(summary.metric) for name, row in summary.variants.items()}
    means = {name: band.mean if band else None for name, band in values.items()}
    known = [mean for mean in means.values() if mean is not None]
    upwards = higher_is_better(summary.metric)
    points = [
        Point(
            name,
            tuple(variants[name][axis.setting] for axis in axes),
            mean,
            None if mean is None else _shade(mean, min(known), max(known), upwards),
        )
        for name, mean in means.items()
        if name in variants
    ]
    return Sweep(axes, tuple(sorted(points, key=lambda point: _place(point.mean, upwards))))


def _place(mean: float | None, upwards: bool) -> tuple[bool, float]:
    return mean is None, 0.0 if mean is None else (-mean if upwards else mean)


def _shade(mean: float, least: float, most: float, upwards: bool) -> int:
    share = _share(mean - least, most - least)
    return round(SHADES * (share if upwards else 1 - share))


def _ordered(values: Sequence[str]) -> tuple[str, ...]:
    each = list(dict.fromkeys(values))
    try:
        return tuple(sorted(each, key=float))
    except ValueError:
        return tuple(each)
