"""Clients' availability: for each client, consecutive windows of simulated time."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from fedping.client_sim.learning.batch import FloatArray
from fedping.experiments.laboratory.settings.clock import Hours, OnOff
from fedping.protocol.draws import Keys, child_keys, normals, uniforms

HOUR = 3600.0
"""Seconds of an hour."""

_FIRST = 1 << 32
"""Index of the child key for a client's draws for all its windows; smaller indices are for single windows."""


class Windows:
    """Each client's current or next window. Windows depend only on the keys, not on the times of the calls.

    Args:
        settings: the rule for windows; None for clients that are always available.
        keys: a random key for each client, shape (clients,).
    """

    def __init__(self, settings: Hours | OnOff | None, keys: Keys) -> None:
        self._settings, self._keys = settings, keys
        self._number = np.zeros(len(keys), np.int64)
        first = child_keys(keys, _FIRST)
        if settings is None:
            self.begins, self.ends = np.zeros(len(keys)), np.full(len(keys), np.inf)
        elif isinstance(settings, Hours):
            start = (
                settings.start + settings.spread * normals(first, 1)[:, 0]
            ) % 24 - 24  # the window of the day before
            self._start = start * HOUR
            self.begins, self.ends = self._start.copy(), self._start + settings.hours * HOUR
        else:
            on = uniforms(first, 1)[:, 0] < settings.on / (settings.on + settings.off)
            away, there = self._drawn(np.arange(len(keys)), settings)
            self.begins = np.where(on, 0.0, away)
            self.ends = self.begins + there

    def read(self, now: float) -> NDArray[np.bool_]:
        """Return whether each client is available at ``now``, in seconds; times must not decrease from call to call."""
        while len(over := np.flatnonzero(self.ends <= now)):
            self._move(over)
        return self.begins <= now

    def _move(self, over: NDArray[np.intp]) -> None:
        settings = self._settings
        assert settings is not None, "the window of clients that are always available has no end"
        self._number[over] += 1
        if isinstance(settings, Hours):
            self.begins[over] = self._start[over] + 24 * HOUR * self._number[over]
            self.ends[over] = self.begins[over] + settings.hours * HOUR
        else:
            away, there = self._drawn(over, settings)
            self.begins[over] = self.ends[over] + away
            self.ends[over] = self.begins[over] + there

    def _drawn(self, clients: NDArray[np.intp], settings: OnOff) -> tuple[FloatArray, FloatArray]:
        """Return the seconds until each client becomes available, and the seconds that it then stays available."""
        drawn = -np.log1p(-uniforms(child_keys(self._keys[clients], self._number[clients]), 2)) * HOUR
        return drawn[:, 0] * settings.off, drawn[:, 1] * settings.on
