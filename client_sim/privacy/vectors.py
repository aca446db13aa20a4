"""The vector that a client of a private line sends, with noise of its own if the line asks for it."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

from fedping.client_sim.privacy.exact_random import Chance
from fedping.protocol.privacy import (
    SIGN,
    Frame,
    LocalGaussian,
    OneSign,
    Privacy,
    farthest,
    frame_of,
    local_sigma,
    vectors_of,
)
from fedping.protocol.spec import ModelSpec


class Contributor:
    """Makes the vectors of a line.

    Args:
        privacy: as published with the line.
        spec: the line's.

    Attributes:
        frame: how they are made.
    """

    def __init__(self, privacy: Privacy, spec: ModelSpec) -> None:
        self.frame: Frame = frame_of(privacy, spec)
        self._privacy, self._sigma = privacy, local_sigma(privacy, self.frame)
        self._kept = np.flatnonzero(self.frame.group >= 0)

    def vectors(
        self,
        updates: NDArray[np.floating],
        losses: NDArray[np.float64],
        tops: NDArray[np.float64],
        chances: Iterable[Chance],
    ) -> NDArray[np.int64]:
        """Return what k clients send, shape (k, m + 3).

        Args:
            updates: theirs, shape (k, m).
            losses: theirs, shape (k,).
            tops: 1 where what was chosen was on top, else 0, shape (k,).
            chances: each client's own; there may be more.
        """
        made = vectors_of(self.frame, updates, losses, tops, self._privacy.loss)
        local = self._privacy.local
        if local is None:
            return made
        m = len(self.frame.group)
        made[:, m + 1 :] = 0  # noise of one's own covers the weights alone, so nothing else is told
        for vector, chance in zip(made, chances, strict=False):
            match local:
                case OneSign():
                    vector[:m] = self._one_sign(vector[:m], local.epsilon, chance)
                case LocalGaussian():
                    vector[self._kept] = self._noisy(vector[self._kept], chance)
        return made

    def _one_sign(self, signs: NDArray[np.int64], epsilon: float, chance: Chance) -> NDArray[np.int64]:
        """Return one weight's sign, or its opposite by randomised response (Warner 1965), and zeros."""
        place = int(self._kept[chance.below(len(self._kept))])
        up = chance.coin() if signs[place] == 0 else bool(signs[place] > 0)
        sent = np.zeros_like(signs)
        sent[place] = SIGN if up == chance.is_true(epsilon) else -SIGN
        return sent

    def _noisy(self, weights: NDArray[np.int64], chance: Chance) -> NDArray[np.int64]:
        most = farthest(self.frame, self._sigma)
        noisy: NDArray[np.int64] = weights + chance.discrete_gaussians(self._sigma, len(weights))
        return noisy.clip(-most, most)
