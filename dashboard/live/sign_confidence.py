"""How certain a round is of the signs of its mean update (thesis 7.5), from the moments in its version."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from fedping.model_store.version import Aggregate, PrivacyEvent
from fedping.protocol.privacy import METRICS

STANDARD_ERRORS = 2.0
"""From how many standard errors on a sign counts as stable, as where iterations end by their signs."""

FARTHEST = 99.0
"""Limit on the reported distance from 0 in standard errors: for equal updates it is infinite."""


def standard_errors(aggregate: Aggregate) -> NDArray[np.float64]:
    """Return the distance of each weight's mean update from 0, in standard errors and with its sign, shape (m,).

    The standard error is that of a mean of as many independent votes as the aggregate's weight. NaN where all updates
    are 0, and everywhere if there is only one vote, which gives no standard error.
    """
    mean, m2 = np.array(aggregate.mean), np.array(aggregate.m2)
    if aggregate.weight <= 1:
        return np.full(len(mean), np.nan)
    error = np.sqrt(m2 / (aggregate.weight - 1) / aggregate.weight)
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.asarray(np.clip(mean / error, -FARTHEST, FARTHEST))


def above_noise(event: PrivacyEvent, training: Sequence[str]) -> NDArray[np.float64]:
    """Return the distance of each weight's noisy sum from 0, in standard deviations of its noise, shape (m,).

    NaN where nothing was released, of weights that no client can move.
    """
    sums = np.sum([event.released[name][: -len(METRICS)] for name in training], axis=0, dtype=np.float64)
    away = np.where(sums == 0, np.nan, sums / (event.sigma * np.sqrt(len(training))))
    return np.asarray(np.clip(away, -FARTHEST, FARTHEST))


def stable_share(away: NDArray[np.float64], weight: float) -> float:
    """Return the share of weights whose sign is stable, or whose updates are all 0.

    Args:
        away: :func:`standard_errors`.
        weight: the aggregate's weight; up to 1 nothing is stable.
    """
    if weight <= 1:
        return 0.0
    return float(np.mean((np.abs(away) >= STANDARD_ERRORS) | np.isnan(away)))
