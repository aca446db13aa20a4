"""An institution's answers to weights, with or without protection and without a server; for attacks and tests."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from fedping.client_sim.data.example_data import of_one
from fedping.client_sim.data.table import Table
from fedping.client_sim.joining.consent import full_batch
from fedping.client_sim.joining.protected import ProtectedRows
from fedping.client_sim.joining.protection import unguarded
from fedping.client_sim.learning.batch import FloatArray
from fedping.client_sim.learning.model import Model
from fedping.client_sim.learning.updates import cohort_updates
from fedping.protocol.discrete_gaussian import Bits
from fedping.protocol.draws import Keys
from fedping.protocol.row_privacy import steps_on_rows
from fedping.protocol.training import LocalSteps, Training


class Answer(NamedTuple):
    """The content of a ping: an update, shape (m,), and a loss."""

    update: FloatArray
    loss: float


class Noise(NamedTuple):
    """The noise multiplier of each sum, and the random bytes of the noise."""

    multiplier: float
    bits: Bits


def answer(
    model: Model[Any], training: Training, rows: Table, weights: FloatArray, key: Keys, noise: Noise | None = None
) -> Answer:
    """Return the answer of an institution with these rows to weights, as computed by `fedping join`.

    Args:
        model: the line's model.
        training: the line's training.
        rows: the table.
        weights: weights that a server may choose, shape (m,).
        key: random key for the draws of an unprotected training, shape (1,).
        noise: None without protection.
    """
    batch = of_one(rows).batch(np.zeros(1, np.intp))
    if noise is None:
        done = cohort_updates(model, training, weights, batch, key)
    else:
        steps = steps_on_rows(training)
        protected = ProtectedRows(unguarded(model), noise.multiplier, steps=isinstance(training, LocalSteps))
        protected.begin(noise.bits, steps)
        done = cohort_updates(protected, full_batch(training), weights, batch, key)
    return Answer(np.asarray(done.updates[0], np.float64), float(done.losses[0]))
