"""A sweep: variants that are all the points of a grid, with the grid's axes by their full names."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod

from fedping.dashboard.watching.comparing import ABSENT, Flat, differing
from fedping.experiments.laboratory.summary import Summary
from fedping.experiments.laboratory.tallies import higher_is_better

LEAST = 3
"""The fewest variants of a sweep; two are a comparison."""

SHADES = 8
"""Colour steps for the values of the metric."""


@dataclass(frozen=True)
class Axis:
    """A setting by its dotted name, and its values in axis order: by size if they are numbers."""

    setting: str
    values: tuple[str, ...]


@dataclass(frozen=True)
class Point:
    """A variant on the grid: its value on each axis, the mean of the metric, and its quality, from 0 to SHADES."""

    name: str
    at: tuple[str, ...]
    mean: float | None
    shade: int | None


@dataclass(frozen=True)
class Sweep:
    """The axes, and the points known so far, the best first."""

    axes: tuple[Axis, ...]
    points: tuple[Point, ...]

    @property
    def cells(self) -> Mapping[tuple[str, ...], Point]:
        """The points by their values on the axes."""
        return {point.at: point for point in self.points}

    def lines(self, width: float, height: float) -> list[tuple[Point, str]]:
        """Return each point as a line through the axes, then the metric, for parallel coordinates; the best last.

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
    """Return the axes of the variants' grid; empty if they are not a grid."""
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
    found = {name: row.metrics.get(summary.split, {}).get(summary.metric) for name, row in summary.variants.items()}
    means = {name: band.mean if band else None for name, band in found.items()}
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
