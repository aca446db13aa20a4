"""An institution's part of a sum of institutions: the sum over its rows in whole numbers, with a share of the noise.

The noisy numbers are added up before any other computation, because only the noise of several institutions together
protects a row. So a version has one gradient, the sum of the rows' clipped gradients, and an update has no bound.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedping.client_sim.joining.protected import ProtectedRows
from fedping.client_sim.learning.batch import Examples, FloatArray, Floats
from fedping.client_sim.learning.model import Model
from fedping.client_sim.learning.models.layer import Penalised
from fedping.protocol.draws import FloatArray as Draws
from fedping.protocol.privacy import METRICS, Frame, frame_of
from fedping.protocol.study import PublicLine

MOST_OF_PENALTY = 2.0**48
"""Maximum value of a penalty in a vector, so that sums of 10,000 institutions stay within 64 bits."""


class SummedRows(ProtectedRows):
    """A :class:`ProtectedRows` that keeps its last gradient as the vector of a private line (`Frame`).

    Its metrics are the number of rows, or persons, in place of that of clients, and the sum of their losses.

    Args:
        model: the model, without its own guard of rows.
        line: the line.
        z: noise multiplier of the institution's share.
        persons: person of each row, numbered from 0, if persons are protected instead of rows.
        heaviest: the largest weight of a row; such rows have weight 1 in the sum, and all others less.

    Attributes:
        frame: the layout of the vector.
    """

    def __init__(
        self,
        model: Model[Any],
        line: PublicLine,
        z: float,
        persons: NDArray[np.intp] | None = None,
        heaviest: float = 1.0,
    ) -> None:
        assert line.privacy is not None
        self._high = line.privacy.loss[1]
        super().__init__(model, z, steps=False, persons=persons, largest_loss=self._high, largest_weight=heaviest)
        self.frame: Frame = frame_of(line.privacy, line.spec)
        self._vector: NDArray[np.int64] | None = None

    def losses_and_gradients(self, weights: FloatArray, batch: Examples) -> tuple[FloatArray, Floats]:
        """See :class:`ProtectedRows`."""
        losses, gradients = super().losses_and_gradients(weights, batch)
        frame, units = self.frame, round(self._units(batch))
        m = len(frame.group)
        vector = np.zeros(m + len(METRICS), np.int64)
        vector[:m], vector[m + 1] = -self._noisy[:m], self._noisy[m]
        vector[m], vector[m + 1] = units * frame.metric, vector[m + 1] + units * (frame.metric // 2)
        if isinstance(self._whole, Penalised):
            penalty, uphill = self._whole.penalty(np.asarray(weights, np.float64).reshape(-1), batch)
            step = units * np.asarray(uphill, np.float64).reshape(-1) / (frame.units * self._largest_weight)
            vector[:m] -= np.rint(np.clip(np.nan_to_num(step), -MOST_OF_PENALTY, MOST_OF_PENALTY)).astype(np.int64)
            share = float(
                np.nan_to_num(np.sum(penalty) / self._high, nan=1.0)
            )  # the penalty as a share of the largest loss that can be reported
            vector[m + 1] += round(units * frame.metric * min(share, 1.0))
        self._vector = vector
        return losses, gradients

    def vectors(self, updates: NDArray[np.floating], losses: Draws, tops: Draws, chances: Iterable[Any]) -> Any:
        """Return the vector of the last training, shape (1, m + 3); ``updates`` and the other arguments are ignored."""
        assert self._vector is not None, "a ping was made without a gradient"
        return self._vector[None].copy()
