"""A lower bound of a protection's ε, proven by answers with and without a row."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np

from fedping.client_sim.data.table import Table
from fedping.client_sim.joining.answering import Noise, answer
from fedping.client_sim.learning.batch import FloatArray
from fedping.client_sim.learning.models.layer import Penalised
from fedping.experiments.privacy.auditing import Proven, by_gaussian_dp
from fedping.experiments.privacy.rows.victim import Target
from fedping.protocol.draws import root_key

LONG = 1e3
"""Norm of the canary's features, far beyond the rows', so that its contribution has the maximum norm."""

QUIET = 1e-3
"""Noise multiplier of the answers from which the attacker learns the canary's direction."""


SURE = 0.9999
"""Confidence of an alarm; one in 10,000 audits of a true claim raises a false alarm."""


class Canary(NamedTuple):
    """Lower bounds of ε from answers with and without a canary.

    Attributes:
        proven: the lower bound of ε, with 95 % confidence.
        sure: the lower bound of ε with the confidence of an alarm.
        runs: number of answers with the canary, and the same number without it.
    """

    proven: Proven
    sure: float
    runs: int


FEWEST = 20
"""Minimum number of runs, even if they exceed the time limit."""


@dataclass(frozen=True)
class Claim:
    """The claim, and the limits of its test.

    Attributes:
        multiplier: noise multiplier of each sum.
        delta: δ of the claim.
        runs: maximum number of answers with the canary, and the same number without it.
        seconds: time limit for answers.
    """

    multiplier: float
    delta: float
    runs: int
    seconds: float = math.inf


def proven(target: Target, table: Table, claim: Claim) -> Canary:
    """Return lower bounds of one answer's ε, by Gaussian differential privacy.

    The attacker knows all rows except one, the canary, but also the direction in which the canary pulls the model. It
    scores an answer by its movement in that direction.

    Args:
        target: the model and the training.
        table: the rows.
        claim: the claim about the answer.
    """
    ends = time.monotonic() + claim.seconds
    random = target.random()
    direction = random.standard_normal(target.features)
    canary = LONG * direction / np.linalg.norm(direction)
    with_it = replace(table, x=np.vstack([table.x, canary]), y=np.append(table.y, table.y[:1]))
    whole: Any = target.kind
    model: Any = replace(whole, l2=0.0) if isinstance(target.kind, Penalised) else target.model

    def total(rows: Table, noise: Noise) -> FloatArray:
        given = answer(model, target.training, rows, model.start, root_key(0).reshape(1), noise)
        return len(rows.y) * given.update

    quiet = Noise(QUIET, random.bytes)
    way = total(with_it, quiet) - total(table, quiet)
    noise = Noise(claim.multiplier, random.bytes)
    scores: list[tuple[float, float]] = []
    while len(scores) < claim.runs and (len(scores) < FEWEST or time.monotonic() < ends):
        scores.append((float(total(with_it, noise) @ way), float(total(table, noise) @ way)))
    inside, outside = zip(*scores, strict=True)
    sure = by_gaussian_dp(inside, outside, claim.delta, SURE)
    return Canary(by_gaussian_dp(inside, outside, claim.delta), sure.epsilon, len(scores))
