"""Hypothesis strategies and simulations for value counts."""

import numpy as np
from hypothesis import strategies as st

from fedping.analysis.statistics import ValueCounts

VALUES = st.lists(st.integers(-5, 12), min_size=1, max_size=60)
"""Strategy for raw data with many ties."""

TYPED = np.array([0.05, 0.17, 0.22, 0.2, 0.15, 0.1, 0.06, 0.03, 0.015, 0.005])
"""Probabilities of the values 0, 1, 2, … of an invented count metric."""


def counts_of(data: list[int] | np.ndarray) -> ValueCounts:
    return ValueCounts.of(np.asarray(data))


def drawn(rng: np.random.Generator, n: int, probabilities: np.ndarray = TYPED) -> ValueCounts:
    """Return the value counts of n independent draws."""
    counts = rng.multinomial(n, probabilities)
    return ValueCounts.summed(np.arange(len(counts)), counts)


def most_alarms(studies: int, level: float) -> int:
    """Return the number of false alarms that a correct test exceeds with a probability below 1e-4."""
    from scipy.stats import binom

    return int(binom.isf(1e-4, studies, level))
