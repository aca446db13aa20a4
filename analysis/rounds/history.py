"""The data of all figures over the iterations of one line; missing data are explained in a sentence."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from fedping.analysis.curves import ArmCurve, arm_curves
from fedping.analysis.rounds.series import Series, metric_series
from fedping.analysis.rounds.subsamples import SIZE, SubsampleQuality, subsample_quality
from fedping.analysis.rounds.traffic import RoundTraffic, round_traffic
from fedping.model_store.store import ModelStore
from fedping.protocol.errors import FedpingError
from fedping.protocol.location import Place


@dataclass(frozen=True)
class Missing:
    """Why something cannot be drawn, as a sentence."""

    reason: str


@dataclass(frozen=True)
class LineHistory:
    """One line over its rounds.

    Attributes:
        line: its name.
        curves: loss and selected rank of every arm, by its name; empty without a round.
        traffic: the pings of every round.
        typed: characters typed, by arm.
        quality: how well subsamples estimate all pings.
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
        landing: the landing folder. A file that is gone is not an error; the data that need it are missing.
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
        found = metric_series(store, landing, study, line, "num_chars_typed")
    except FedpingError as error:
        return Missing(str(error))
    return found or Missing(f"No interaction of line '{line}' ended with a selection yet.")


def _quality(
    store: ModelStore, landing: Place, study: str, line: str, size: int, seed: int
) -> SubsampleQuality | Missing:
    try:
        found = subsample_quality(store, landing, study, line, size=size, seed=seed)
    except FedpingError as error:
        return Missing(str(error))
    if found.iterations:
        return found
    most = max(found.skipped.values(), default=0)
    return Missing(
        f"No iteration of line '{line}' has more than {size:,} usable pings to draw from, the most has {most:,}; "
        "ask for smaller subsamples with --subsample."
    )
