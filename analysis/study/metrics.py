"""The metrics of a study: which column, over which interactions, and the words that a verdict says it in.

All are over the interactions that ended with a selection: without one there is no rank, the loss is 0 by definition,
and what was typed did not find anything.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from protocol.errors import InvalidSettings

Direction = Literal["less", "more"]


@dataclass(frozen=True)
class Metric:
    """A number of a landed ping that arms are compared by.

    Attributes:
        name: the column in Parquet.
        title: what it is called in a table.
        less: what users do whose values are smaller, as in "users of treatment ... than users of control".
        more: what users do whose values are larger.
        better: which of the two is better for users.
        digits: to how many significant digits values are kept. It bounds the number of distinct values (to 9 · 10^(d-1)
            a decade), and so the memory of whoever holds their counts, while integers below 10^d stay exact.
    """

    name: str
    title: str
    less: str
    more: str
    better: Direction = "less"
    digits: int = 6


METRICS = (
    Metric("num_chars_typed", "characters typed", "typed fewer characters", "typed more characters"),
    Metric("rank_selected", "selected rank", "selected nearer to the top", "selected further from the top"),
    # Of a continuous metric every ping could be a value of its own; its fifth digit is noise.
    Metric("loss", "loss", "had a lower loss", "had a higher loss", digits=4),
)


def metric_named(name: str) -> Metric:
    """Return a metric; raises :class:`InvalidSettings` naming those that there are."""
    for metric in METRICS:
        if metric.name == name:
            return metric
    raise InvalidSettings(f"there is no metric '{name}'; there are {', '.join(m.name for m in METRICS)}")
