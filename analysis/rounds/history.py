"""The series of a line over its iterations: metrics, pings and the quality of updates (figures 18 to 27)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import numpy as np

from fedping.analysis.curves import ArmCurve, arm_curves
from fedping.analysis.rounds.inputs import arm_places, examples_of, made_by_rounds, round_pings, still_landed
from fedping.analysis.rounds.subsamples import SIZE, SubsampleQuality, subsample_quality
from fedping.model_store.store import ModelStore
from fedping.protocol.errors import FedpingError
from fedping.protocol.location import Place

if TYPE_CHECKING:
    from numpy.typing import NDArray


@dataclass(frozen=True)
class Series:
    """An arm's means of a metric and their iterations, shape (n,) each; iterations without a selection are omitted."""

    iterations: tuple[int, ...]
    values: tuple[float, ...]


def series_of(curves: Mapping[str, ArmCurve], what: Literal["loss", "rank_selected"]) -> dict[str, Series]:
    """Return the loss or the selected rank of every arm from its curve (`analysis.curves`), read from the lineage.

    Arms without any value are left out.
    """
    series = {}
    for name, curve in curves.items():
        points = [(i, v) for i, v in zip(curve.iterations, getattr(curve, what), strict=True) if not np.isnan(v)]
        if points:
            series[name] = Series(*map(tuple, zip(*points, strict=True)))
    return series


def metric_series(store: ModelStore, landing: Place, study: str, line: str, column: str) -> dict[str, Series]:
    """Return the mean of a landed column over the pings with an example (a selection), by arm and iteration.

    This is for columns that the lineage doesn't have, such as ``num_chars_typed``: it reads each round's files again,
    one iteration at a time. Arms without any selection are left out.

    Raises:
        StoreError: there is no such study or line, or a version cannot be read.
        FedpingError: the study's pings lack this column, or a file that a round read is missing or damaged.
    """
    the_study = store.study(study)
    arms = [arm.name for arm in the_study.arms if arm.line == line]
    points: dict[str, list[tuple[int, float]]] = {name: [] for name in arms}
    for version in still_landed(store, study, line):
        pings = round_pings(landing, the_study, version, ["study_variation", *the_study.document.counted_by, column])
        chose = examples_of(pings, the_study) > 0
        values = pings.column(column).to_numpy()[chose]
        for name, mean in zip(arms, _means(values, arm_places(pings, arms)[chose], len(arms)), strict=True):
            if np.isfinite(mean):
                points[name].append((version.iteration - 1, float(mean)))
    return {name: Series(*map(tuple, zip(*found, strict=True))) for name, found in points.items() if found}


def _means(values: NDArray[np.float64], places: NDArray[np.int64], arms: int) -> NDArray[np.float64]:
    """Return the mean of each arm's values, NaN without values; ``places`` are positions of arms, -1 for no arm."""
    known = places >= 0
    counts = np.bincount(places[known], minlength=arms)
    sums = np.bincount(places[known], weights=values[known], minlength=arms)
    return np.asarray(np.divide(sums, counts, out=np.full(arms, np.nan), where=counts > 0))


@dataclass(frozen=True)
class RoundTraffic:
    """The number of pings that each round of a line found.

    Attributes:
        iterations: the current version in each round, shape (n,).
        ended_ms: the time up to which pings had landed (Unix ms), shape (n,).
        arms: the number of pings in each iteration, shape (n,), by the name of the arm; only arms that follow the line,
            in the study's order.
    """

    iterations: tuple[int, ...]
    ended_ms: tuple[int, ...]
    arms: Mapping[str, tuple[int, ...]]

    @property
    def total(self) -> tuple[int, ...]:
        """The pings of all arms together, shape (n,)."""
        return tuple(map(sum, zip(*self.arms.values(), strict=True)))


def round_traffic(store: ModelStore, study: str, line: str) -> RoundTraffic:
    """Count the pings of every iteration of a line from the versions' lineage. A ping sent twice counts once.

    Raises:
        StoreError: there is no such study or line, or a version cannot be read.
    """
    versions = list(made_by_rounds(store, study, line))
    following = [arm.name for arm in store.study(study).arms if arm.line == line]
    summaries = [version.lineage.arms for version in versions]
    return RoundTraffic(
        iterations=tuple(version.iteration - 1 for version in versions),
        ended_ms=tuple(version.lineage.window_end_ms for version in versions),
        arms={name: tuple(arms[name].pings if name in arms else 0 for arms in summaries) for name in following},
    )


@dataclass(frozen=True)
class Missing:
    """The reason why a figure cannot be drawn, as a sentence."""

    reason: str


@dataclass(frozen=True)
class LineHistory:
    """A line over its rounds.

    Attributes:
        line: the line's name.
        curves: loss and selected rank of every arm, by name; empty without a round.
        traffic: the pings of every round.
        typed: characters typed, by arm.
        quality: the errors of estimating all pings by subsamples.
    """

    line: str
    curves: Mapping[str, ArmCurve]
    traffic: RoundTraffic
    typed: Mapping[str, Series] | Missing
    quality: SubsampleQuality | Missing


def line_history(
    store: ModelStore, landing: Place, study: str, line: str, *, size: int = SIZE, seed: int = 0
) -> LineHistory:
    """Read a line's versions, and the files that its rounds read.

    Args:
        store: the model store.
        landing: the landing folder. A missing file is not an error; the data that need it are left out.
        study: the study's name.
        line: the line's name.
        size: pings in a subsample.
        seed: seed of the subsamples' draws.

    Raises:
        StoreError: there is no such study or line, or a version cannot be read.
    """
    return LineHistory(
        line=line,
        curves=arm_curves(store, study, line),
        traffic=round_traffic(store, study, line),
        typed=_typed(store, landing, study, line),
        quality=_quality(store, landing, study, line, size, seed),
    )


def _typed(store: ModelStore, landing: Place, study: str, line: str) -> Mapping[str, Series] | Missing:
    try:
        series = metric_series(store, landing, study, line, "num_chars_typed")
    except FedpingError as error:
        return Missing(str(error))
    return series or Missing(f"No interaction of line '{line}' ended with a selection yet.")


def _quality(
    store: ModelStore, landing: Place, study: str, line: str, size: int, seed: int
) -> SubsampleQuality | Missing:
    try:
        quality = subsample_quality(store, landing, study, line, size=size, seed=seed)
    except FedpingError as error:
        return Missing(str(error))
    if quality.iterations:
        return quality
    most = max(quality.skipped.values(), default=0)
    return Missing(
        f"No iteration of line '{line}' has more than {size:,} usable pings to draw from, the most has {most:,}; "
        "ask for smaller subsamples with --subsample."
    )
