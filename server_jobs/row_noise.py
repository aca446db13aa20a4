"""The noise on a mean update of institutions that protect each row of their tables, as `fedping join` does."""

from __future__ import annotations

import math
from collections.abc import Sequence

from fedping.protocol.local_optimizers import LocalDescent
from fedping.protocol.row_privacy import (
    EPSILON,
    GRADIENT_MODELS,
    VERSIONS,
    noise_of_mean,
    steps_on_rows,
    why_unprotected,
)
from fedping.protocol.study import Line
from fedping.protocol.training import LocalSteps, OneGradient

MOST_INSTITUTIONS, FEWEST_ROWS = 100, 20
"""Clients with an update at most, and rows of each on average at least, that are taken for institutions with tables."""

IF_PROTECTED = f"if each is an institution that protects its rows with epsilon {EPSILON:g} over {VERSIONS} versions"
"""On what the figure rests: pings don't say whether rows are protected."""


def noise_on_mean(line: Line, rows: Sequence[int]) -> float | None:
    """Return the noise on each number of a mean update, if each client protects its rows.

    It is what :mod:`fedping.protocol.row_privacy` has institutions add unless they choose otherwise. The line's
    clipping is not part of it.

    Args:
        line: the line.
        rows: the number of rows of each client with an update, as they claim.

    Returns:
        The standard deviation; None without clients, or if rows are not protected by noise on gradients.
    """
    training, pipeline = line.training, line.pipeline
    if not rows or line.spec.model not in GRADIENT_MODELS or why_unprotected(training) is not None or line.upload:
        return None
    assert isinstance(training, OneGradient | LocalSteps), "other trainings are not protected"
    if training.sign or (isinstance(training, LocalSteps) and not isinstance(training.optimizer, LocalDescent)):
        return None
    most, steps = pipeline.most_votes or math.inf, steps_on_rows(training)
    votes = [float(min(n, most)) if pipeline.weighting == "examples" else 1.0 for n in rows]
    moved = training.rate * math.sqrt(steps) if isinstance(training, LocalSteps) else 1.0
    return moved * noise_of_mean(rows, votes, VERSIONS, steps)


def noise_of_round(line: Line, clients: int, examples: int) -> float | None:
    """Return the same of a round, of whose clients only the number is known, and how many examples they have in all.

    Returns:
        The standard deviation, as if all had as many examples; None as above, and where clients are too many, or have
        too few examples, to be institutions.
    """
    if not 0 < clients <= MOST_INSTITUTIONS or examples < FEWEST_ROWS * clients:
        return None
    return noise_on_mean(line, [round(examples / clients)] * clients)
