"""The ε that runs with and without a row prove: a lower bound of what protection lets through."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from fedping.client_sim.data.table import Table
from fedping.client_sim.joining.answering import Noise, answer
from fedping.client_sim.learning.batch import FloatArray
from fedping.client_sim.learning.models.layer import Penalised
from fedping.experiments.privacy.auditing import Proven, by_gaussian_dp
from fedping.experiments.privacy.rows.victim import Target
from fedping.protocol.draws import root_key

LONG = 1e3
"""Length of the canary's features: far beyond those of rows, so that its part has the largest norm there is."""

QUIET = 1e-3
"""Noise multiplier by which the attacker learns where the canary pulls the model."""


def proven(target: Target, table: Table, multiplier: float, delta: float, runs: int) -> Proven:
    """Return the ε that one answer must have at least, by Gaussian differential privacy with 95 % confidence.

    The attacker knows all rows but one, the canary, and which way that pulls the model, and scores an answer by how far
    it went that way.

    Args:
        target: the model and the training.
        table: the rows.
        multiplier: noise multiplier of each sum.
        delta: δ of the claim.
        runs: answers with the canary, and as many without it.
    """
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
    noise = Noise(multiplier, random.bytes)
    scores = [[float(total(rows, noise) @ way) for _ in range(runs)] for rows in (with_it, table)]
    return by_gaussian_dp(scores[0], scores[1], delta)
