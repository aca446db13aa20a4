"""A number with its confidence interval."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Estimate:
    """A point estimate and the interval that covers the truth with probability ``confidence``."""

    value: float
    low: float
    high: float
    confidence: float

    def excludes(self, null: float) -> bool:
        """Whether the interval rules a value out."""
        return not self.low <= null <= self.high


def refuse_level(confidence: float) -> None:
    """Raise ValueError if a confidence is not strictly between 0 and 1."""
    if not 0 < confidence < 1:
        raise ValueError(f"a confidence lies between 0 and 1, not at {confidence}")
