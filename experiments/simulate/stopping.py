"""Validation by thesis 3.4, from what every version's lineage says about its parent, and early stopping on it."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from experiments.simulate.settings import EarlyStopping
from model_store.version import Version


def validation_losses(versions: Sequence[Version], arm: str) -> list[float]:
    """Return the validation loss of versions 0, 1, …, each told by its child; NaN where the arm made no selection.

    Args:
        versions: a line's versions from 0 on, rounds only.
        arm: whose loss.
    """
    summaries = [version.lineage.arms.get(arm) for version in versions[1:]]
    return [float("nan") if one is None or one.loss is None else one.loss for one in summaries]


def smoothed(losses: Sequence[float], over: int) -> list[float]:
    """Return the mean of the last ``over`` losses at every iteration (fewer at the beginning), as in figure 19."""
    return [float(np.nanmean(losses[max(0, i + 1 - over) : i + 1])) for i in range(len(losses))]


def best_version(losses: Sequence[float], settings: EarlyStopping) -> int:
    """Return the version with the lowest smoothed loss, the earliest of equals."""
    return int(np.nanargmin(smoothed(losses, settings.smooth)))


def should_stop(losses: Sequence[float], settings: EarlyStopping) -> bool:
    """Return whether the best version is ``patience`` iterations old."""
    return bool(losses) and len(losses) - 1 - best_version(losses, settings) >= settings.patience
