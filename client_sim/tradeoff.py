"""Error of a round's mean against all clients' mean, by the number of participants and their updates' size.

The closed form for the simulation of thesis 4.5. Clients' updates h have the mean μ and the variances s², summed over
the weights; an encoding that is unbiased and draws for each client by itself returns h~ with E|h~ - h|² = error x |h|².
Sampling and encoding then add up:

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
    """How clients' updates lie about their mean.

    Attributes:
        mean_square: |μ|², of their mean.
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
    """Return the error of a random mask that keeps a share of the weights, in (0, 1]: the same for every update."""
    return 1 / keep - 1


def variance_of_mean(spread: Spread, clients: int, error: float = 0.0, drawn_from: int | None = None) -> float:
    """Return E|mean of the decoded updates - μ|².

    Args:
        spread: of all clients.
        clients: number of participants.
        error: of the encoding, E|h~ - h|² / |h|².
        drawn_from: number of clients that they are drawn from without replacement; None for draws with replacement, or
            from very many.
    """
    sampling = spread.variance
    if drawn_from is not None:
        sampling *= (drawn_from - clients) / max(1, drawn_from - 1)
    return (sampling + error * spread.square) / clients


def times_variance(spread: Spread, error: float, share: float = 1.0) -> float:
    """Return the ratio of the variance of n encoded updates of this share to n whole ones, with replacement.

    Args:
        spread: of all clients, not all alike.
        error: of the encoding.
        share: of the bytes of a whole update, for as many bytes in all; 1 for as many clients.
    """
    return share * variance_of_mean(spread, 1, error) / spread.variance


def keep_for(spread: Spread, clients: int, variance: float) -> float | None:
    """Return the smallest share of the weights to keep for which the mean varies by at most this much.

    The bytes of all clients together have no best share, since a stronger mask only raises them; this is the best share
    for one client's bytes. None if even whole updates vary by more.
    """
    if variance_of_mean(spread, clients) > variance:
        return None
    return spread.square / (clients * variance + spread.mean_square)
