"""Oort (Lai et al. 2021): clients by the utility of their data and their speed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from fedping.client_sim.data.seeds import generator
from fedping.client_sim.learning.batch import NO_EXAMPLE, Clients, Examples, FloatArray
from fedping.client_sim.learning.model import Model
from fedping.client_sim.sampling.past import Participation, Past
from fedping.client_sim.sampling.samplers import NEITHER, FullUpdate, Oort, evenly
from fedping.protocol.pipeline import Weighting

_AT_ONCE = 4096
"""Number of examples whose losses are computed at a time."""


def data_utilities(model: Model[Any], weights: FloatArray, batch: Any) -> FloatArray:
    """Return the utility of the data of k clients, sqrt(|B| Σ loss²) over the examples of each, shape (k,).

    It is |B| times the root of the mean of the squared losses. A model's own penalty is a part of each loss.

    Args:
        model: the model.
        weights: the fetched weights, shape (m,).
        batch: all examples of the clients; |B| is the number of those whose weight is not 0.

    Source: Lai et al. 2021, 4.2.
    """
    there = batch.weight != 0
    if isinstance(batch, Examples):
        losses = np.zeros(there.shape)
        client, position = np.nonzero(there)
        for low in range(0, len(client), _AT_ONCE):
            some = client[low : low + _AT_ONCE], position[low : low + _AT_ONCE]
            each = Examples(batch.x[some][:, None], batch.y[some][:, None], batch.weight[some][:, None])
            losses[some] = model.losses(weights, each)
    else:
        columns = np.arange(there.shape[1])
        parts = [np.where(there[:, [at]], at, NO_EXAMPLE) for at in columns]
        losses = np.stack([model.losses(weights, batch.only(part)) for part in parts], axis=1) * there
    utilities: FloatArray = np.sqrt(there.sum(axis=1) * (losses**2).sum(axis=1))
    return utilities


def preferred_seconds(settings: Oort, gains: FloatArray) -> float:
    """Return the preferred duration of an answer after rounds with these gains, shape (rounds,); infinite if not set.

    After every window of rounds but the first, the duration grows by a step if the window gained less than the previous
    window.
    """
    if settings.seconds is None:
        return np.inf
    windows = len(gains) // settings.window
    sums = gains[: windows * settings.window].reshape(windows, settings.window).sum(axis=1)
    return settings.seconds * float(1 + np.count_nonzero(sums[1:] < sums[:-1]))


def scores(settings: Oort, past: Past, known: Clients) -> FloatArray:
    """Return the scores of clients that have taken part, by data, time away and speed, shape (k,).

    Args:
        settings: see :class:`Oort`.
        past: the clients' past before the round.
        known: positions of these clients, shape (k,).
    """
    utilities = past.utilities[known]
    bound = np.quantile(utilities, settings.clip, method="inverted_cdf")
    clipped = np.minimum(utilities, bound)
    scaled = (clipped - clipped.min()) / max(np.ptp(clipped), np.finfo(float).tiny)
    away = np.sqrt(0.1 * np.log(past.round + 1) / (past.last[known] + 1))
    preferred = preferred_seconds(settings, past.gains)
    seconds = np.nan_to_num(past.seconds[known], nan=0.0)
    slow = seconds > preferred
    penalty = np.where(slow, preferred / np.where(slow, seconds, 1.0), 1.0) ** settings.alpha
    found: FloatArray = (scaled + away) * penalty
    return found


@dataclass(frozen=True)
class OortSampler:
    """See :class:`fedping.client_sim.sampling.Oort`. Clients without examples are never drawn."""

    sizes: NDArray[np.int64]
    settings: Oort
    seed: int
    name: str = "oort"
    remedy: ClassVar[str] = "raise 'least' or lower 'cut_off'"

    @property
    def clients(self) -> int:
        """The number of clients of a round."""
        return self.settings.clients

    def draw(self, round_number: int) -> Clients:
        """Return the clients of a round when no client has taken part yet."""
        nothing = Participation(len(self.sizes))
        return self.draw_after(
            Past(
                round=round_number,
                seed=self.seed,
                sizes=self.sizes,
                groups=None,
                losses=nothing.losses,
                times=nothing.times,
                last=nothing.last,
                losses_of=lambda some: np.zeros(len(some)),
            )
        )

    def draw_after(self, past: Past) -> Clients:
        """Return the clients of a round: a share of new clients to explore, and known clients by their scores."""
        random, settings = generator(self.seed, "sample", past.round), self.settings
        may = self.sizes > 0
        known = np.flatnonzero(may & ~np.isnan(past.utilities))
        new = np.flatnonzero(may & np.isnan(past.utilities))
        share = max(settings.least, settings.exploration * settings.decay**past.round)
        explored = int(share * settings.clients + random.random())  # rounded at random, without bias
        explored = min(len(new), max(explored, settings.clients - len(known)))
        drawn = [random.choice(new, explored, replace=False)]
        if wanted := settings.clients - explored:
            each = scores(settings, past, known)
            last = np.sort(each)[len(each) - wanted]
            able = np.flatnonzero(each >= settings.cut_off * last)
            # The smallest exponential variables with these rates are a draw in proportion to them, without replacement.
            arrivals = random.exponential(size=len(able)) / np.maximum(each[able], 1e-12)
            drawn.append(known[able[np.argsort(arrivals)[:wanted]]])
        return np.sort(np.concatenate(drawn))

    def estimates(self, weighting: Weighting) -> frozenset[FullUpdate]:
        """Return the full updates that are estimated without bias: none unless every round has all clients."""
        return evenly(self.sizes, weighting, everyone=True) if self.clients == len(self.sizes) else NEITHER
