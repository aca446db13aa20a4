"""Error of a round's mean relative to all clients' mean, by the number of participants and their updates' size.

This is the closed form for the simulation of thesis 4.5. Clients' updates h have the mean μ and the variances s²,
summed over the weights; an unbiased encoding that draws independently for each client returns h~ with E|h~ - h|² =
error x |h|². Sampling and encoding then add up:

    variance of the mean = (s² + error x (s² + |μ|²)) / n         of n clients, drawn with replacement.

Without replacement the first s² is smaller, and 0 if every client takes part; the encoding's error doesn't change.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True)
class Spread:
    """Spread of clients' updates around their mean.

    Attributes:
        mean_square: |μ|², the square of their mean.
        variance: s², the mean of |h - μ|².
    """

    mean_square: float
    variance: float

    @property
    def square(self) -> float:
        """The mean of |h|²."""
        return self.variance + self.mean_square


def spread_of(updates: NDArray[np.floating[Any]]) -> Spread:
    """Return the spread of all clients' updates, shape (clients, m)."""
    mean = updates.mean(axis=0, dtype=np.float64)
    return Spread(float(mean @ mean), float(((updates - mean) ** 2).sum(axis=1).mean()))


def error_of_mask(keep: float) -> float:
    """Return the error, the same for every update, of a random mask that keeps a share of the weights, in (0, 1]."""
    return 1 / keep - 1


def variance_of_mean(spread: Spread, clients: int, error: float = 0.0, drawn_from: int | None = None) -> float:
    """Return E|mean of the decoded updates - μ|².

    Args:
        spread: spread of all clients' updates.
        clients: number of participants.
        error: error of the encoding, E|h~ - h|² / |h|².
        drawn_from: number of clients from which participants are drawn without replacement; None for draws with
            replacement, or from very many clients.
    """
    sampling = spread.variance
    if drawn_from is not None:
        sampling *= (drawn_from - clients) / max(1, drawn_from - 1)
    return (sampling + error * spread.square) / clients


def times_variance(spread: Spread, error: float, share: float = 1.0) -> float:
    """Return the variance of a mean of encoded updates, drawn with replacement, relative to whole updates.

    Args:
        spread: spread of all clients' updates, which are not all equal.
        error: error of the encoding.
        share: an update's share of a whole update's bytes, to compare means of equal bytes; 1 for means of equally many
            clients.
    """
    return share * variance_of_mean(spread, 1, error) / spread.variance


def keep_for(spread: Spread, clients: int, variance: float) -> float | None:
    """Return the smallest share of kept weights with which the mean has at most this variance.

    It minimises the bytes of one client; the bytes of all clients together only grow with a stronger mask. None if
    even whole updates have a larger variance.
    """
    if variance_of_mean(spread, clients) > variance:
        return None
    return spread.square / (clients * variance + spread.mean_square)
