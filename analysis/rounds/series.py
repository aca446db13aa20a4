"""A metric of every arm over the iterations (figures 18, 19, 23, 24)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import numpy as np

from fedping.analysis.curves import ArmCurve
from fedping.analysis.rounds.inputs import arm_places, examples_of, round_pings, still_landed
from fedping.model_store.store import ModelStore
from fedping.protocol.location import Place

if TYPE_CHECKING:
    from numpy.typing import NDArray


@dataclass(frozen=True)
class Series:
    """One arm's means of a metric and their iterations, shape (n,) each, without iterations that have no selection."""

    iterations: tuple[int, ...]
    values: tuple[float, ...]


def series_of(curves: Mapping[str, ArmCurve], what: Literal["loss", "rank_selected"]) -> dict[str, Series]:
    """Return the loss or the selected rank of every arm from its curve (`analysis.curves`), read from the lineage.

    Arms without any value are left out.
    """
    found = {}
    for name, curve in curves.items():
        points = [(i, v) for i, v in zip(curve.iterations, getattr(curve, what), strict=True) if not np.isnan(v)]
        if points:
            found[name] = Series(*map(tuple, zip(*points, strict=True)))
    return found


def metric_series(store: ModelStore, landing: Place, study: str, line: str, column: str) -> dict[str, Series]:
    """Return the mean of a landed column over the pings with an example (a selection), by arm and iteration.

    For columns that the lineage does not hold, such as ``num_chars_typed``: the files that each round read are read
    again, one iteration at a time. Arms without any selection are left out.

    Raises:
        StoreError: there is no such study or line, or a version cannot be read.
        FedpingError: the study's pings have no such column, or a file that a round read is gone or damaged.
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
    """Return the mean of each arm's values, NaN without any; a position of -1 belongs to no arm."""
    known = places >= 0
    counts = np.bincount(places[known], minlength=arms)
    sums = np.bincount(places[known], weights=values[known], minlength=arms)
    return np.asarray(np.divide(sums, counts, out=np.full(arms, np.nan), where=counts > 0))
