"""Noise on a mean update of institutions that protect each row of their tables, as `fedping join` does."""

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
"""Maximum number of clients with an update, and minimum mean number of their rows, to be considered institutions with
tables."""

IF_PROTECTED = f"if each is an institution that protects its rows with epsilon {EPSILON:g} over {VERSIONS} versions"
"""Assumption behind the noise, as part of a sentence. Pings don't say whether rows are protected."""


def noise_on_mean(line: Line, rows: Sequence[int]) -> float | None:
    """Return the noise on each number of a mean update, if each client protects its rows.

    It is the noise that institutions add by default (:mod:`fedping.protocol.row_privacy`). The line's clipping isn't
    taken into account.

    Args:
        line: the line.
        rows: the claimed number of rows of each client with an update.

    Returns:
        The standard deviation; None without clients, or if rows aren't protected by noise on gradients.
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
    """Return :func:`noise_on_mean` for a round, given only the total numbers of clients and examples.

    Returns:
        The standard deviation if all clients have equally many examples; None as for :func:`noise_on_mean`, or if
        there are too many clients, or too few examples, for institutions.
    """
    if not 0 < clients <= MOST_INSTITUTIONS or examples < FEWEST_ROWS * clients:
        return None
    return noise_on_mean(line, [round(examples / clients)] * clients)
