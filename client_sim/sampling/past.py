"""The past of a run's clients, for samplings that depend on it: losses, and the rounds of each client."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedping.client_sim.learning.batch import Clients, FloatArray

NEVER = -1
"""The last round of a client that has never taken part."""


@dataclass(frozen=True)
class Past:
    """A sampling's inputs when it draws the clients of a round.

    Arrays have one number for each client that may be drawn, in the order of the positions to return.

    Attributes:
        round: the number of the round to draw for, from 0.
        seed: the run's seed.
        sizes: the clients' numbers of examples, shape (clients,).
        groups: the clients' natural keys, shape (clients,); None without any.
        losses: each client's last loss, over all its examples at the weights that it last fetched for a training, shape
            (clients,); NaN if it has not taken part.
        times: number of rounds that each client has taken part in, shape (clients,).
        last: number of the last of these rounds, shape (clients,); :data:`NEVER` (-1) without any.
        losses_of: returns the losses of some clients, shape (k,), at the newest weights, which those clients fetch.
        now: simulated seconds since the run began; NaN without a clock.
        seconds: simulated seconds that each client's last answer took, shape (clients,); NaN without any.
        utilities: each client's utility of its data when it last took part, shape (clients,); NaN if it is not recorded
            (:func:`fedping.client_sim.sampling.oort.data_utilities`).
        gains: the sum of utilities over the answers of each earlier round, shape (round,) or empty.
    """

    round: int
    seed: int
    sizes: NDArray[np.int64]
    groups: NDArray[Any] | None
    losses: FloatArray
    times: NDArray[np.int64]
    last: NDArray[np.int64]
    losses_of: Callable[[Clients], FloatArray]
    now: float = math.nan
    seconds: FloatArray = field(default_factory=lambda: np.empty(0))
    utilities: FloatArray = field(default_factory=lambda: np.empty(0))
    gains: FloatArray = field(default_factory=lambda: np.empty(0))

    def __post_init__(self) -> None:
        for name in ("seconds", "utilities"):
            if len(getattr(self, name)) < len(self.sizes):
                object.__setattr__(self, name, np.full(len(self.sizes), np.nan))


class Participation:
    """Record of the clients' last losses and of the rounds that they took part in; part of a run's checkpoints.

    Args:
        clients: number of all clients.
    """

    def __init__(self, clients: int) -> None:
        self.losses = np.full(clients, np.nan)
        self.times = np.zeros(clients, np.int64)
        self.last = np.full(clients, NEVER, np.int64)
        self.seconds = np.full(clients, np.nan)
        self.utilities = np.full(clients, np.nan)
        self.gains = np.zeros(0)

    def add(
        self,
        round_: int,
        clients: Clients,
        losses: FloatArray,
        seconds: FloatArray | None = None,
        utilities: FloatArray | None = None,
    ) -> None:
        """Record the answers of clients in a round; a repeated client counts once.

        Args:
            round_: number of the round, from 0.
            clients: positions among all clients, shape (k,).
            losses: the losses that the clients have sent, shape (k,).
            seconds: simulated seconds that their answers took, shape (k,); None without a clock.
            utilities: the utilities of their data, shape (k,); None if the sampling doesn't use them.
        """
        there = clients < len(self.losses)  # other clients were invented by an attack
        known = clients[there]
        self.losses[known] = losses[there]
        if seconds is not None:
            self.seconds[known] = seconds[there]
        if utilities is not None:
            self.utilities[known] = utilities[there]
            self.gains = np.append(self.gains, np.zeros(max(round_ + 1 - len(self.gains), 0)))
            self.gains[round_] += utilities[there].sum()
        self.times[known] += self.last[known] != round_
        self.last[known] = round_

    def snapshot(self) -> Mapping[str, NDArray[Any]]:
        """Return the record, by name."""
        return {name: getattr(self, name).copy() for name in _RECORDS}

    def restore(self, saved: Mapping[str, NDArray[Any]]) -> None:
        """Replace the record by the result of :meth:`snapshot`; snapshots of earlier versions have fewer parts."""
        for name in _RECORDS:
            if name in saved:
                setattr(self, name, saved[name].copy())


_RECORDS = ("losses", "times", "last", "seconds", "utilities", "gains")
