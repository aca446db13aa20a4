"""How good a model is, from absolute counts that clients could send; the AUC alone from the scores themselves.

Every client yields a row of numbers that may be added up (a :class:`Tally`): the cells of its confusion matrix, its
squared errors. The metrics are a function of such a row, so the same function computes the metrics of the whole fleet
(from the sum of the rows) and those of each client (from its own row). The AUC is the exception: it depends on the
order of all scores, which the laboratory has at hand, so it is exact here; no sum of bounded size would do.
"""

from __future__ import annotations

from fedping.experiments.laboratory.evaluation.tallies import (
    HIGHER_IS_BETTER,
    Classification,
    Clustering,
    Metrics,
    Ranking,
    Regression,
    Tally,
    better,
    bounds,
    higher_is_better,
)

__all__ = [
    "HIGHER_IS_BETTER",
    "Classification",
    "Clustering",
    "Metrics",
    "Ranking",
    "Regression",
    "Tally",
    "better",
    "bounds",
    "higher_is_better",
]
