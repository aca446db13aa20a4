"""The loss and the selected rank by arm over the iterations, from the lineage in every version.

The loss of version n is measured on the pings that then train version n + 1 (thesis 3.4).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from fedping.model_store.store import ModelStore


@dataclass(frozen=True)
class ArmCurve:
    """An arm over the iterations: each iteration's version, and means over the pings received in the iteration.

    All four tuples have the same length; iterations without a selection are left out.
    """

    iterations: tuple[int, ...]
    loss: tuple[float, ...]
    rank_selected: tuple[float, ...]
    pings: tuple[int, ...]


def arm_curves(store: ModelStore, study: str, line: str) -> dict[str, ArmCurve]:
    """Return the curve of every arm that follows a line, in the study's order of arms.

    Raises:
        StoreError: there is no such study or line, or a version cannot be read.
    """
    rows: dict[str, list[tuple[int, float, float, int]]] = {
        arm.name: [] for arm in store.study(study).arms if arm.line == line
    }
    for number in store.iterations(study, line)[1:]:
        version = store.version(study, line, number)
        for name, summary in version.lineage.arms.items():
            if name in rows and summary.loss is not None:
                rank = math.nan if summary.rank_selected is None else summary.rank_selected
                rows[name].append((number - 1, summary.loss, rank, summary.pings))
    return {name: ArmCurve(*map(tuple, zip(*points, strict=True))) for name, points in rows.items() if points}
