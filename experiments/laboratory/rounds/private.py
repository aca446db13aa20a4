"""Private rounds in memory: clients' vectors, their sum, its noise and the step, as on a product's private line.

The noise is drawn from the run's seed, so that a run can be repeated; its results must not be published.
"""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from fedping.client_sim.privacy import Chance, Contributor
from fedping.experiments.laboratory.preparing import Problem
from fedping.experiments.laboratory.resuming import Arrays
from fedping.experiments.laboratory.rounds.memory import MemoryChannel
from fedping.experiments.laboratory.rounds.server import Delivered
from fedping.experiments.laboratory.rounds.study import with_a_turn
from fedping.experiments.laboratory.rounds.updates import Updates, fetched_bytes, posted_bytes
from fedping.experiments.privacy.mechanisms import SeededNoise
from fedping.protocol.encodings.private import vector_payloads
from fedping.protocol.privacy import LocalGaussian, Privacy, local_sigma
from fedping.protocol.study import Study
from fedping.protocol.update import Payloads
from fedping.server_jobs.privacy.budget import epsilon_after
from fedping.server_jobs.privacy.gaussian import epsilon_of
from fedping.server_jobs.round import PrivateArrayRound

_CLIENTS, _SERVER = 1, 2
"""Indices of a seed's children: for the draws of clients, and of the server."""


class PrivateChannel(MemoryChannel):
    """The rounds of a private line, the only one of its study.

    A selected client sends until it has sent to ``contributions`` versions. A client doesn't know whether the operator
    samples it, so it counts every version that selected it. Reported losses and numbers of clients are exact: they are
    for the researcher, and not part of the private release. Top choices are not sent.

    Args:
        study: the study, with an arm that follows the line, and a noise multiplier.
        problem: the problem with the clients.
    """

    def __init__(self, study: Study, problem: Problem) -> None:
        line = study.lines[0]
        assert line.privacy is not None
        super().__init__(line, problem.ids, problem.seed)
        self._study, self._privacy, self._problem = study, line.privacy, problem
        self._contributor = Contributor(line.privacy, line.spec)
        self._times = np.zeros(len(problem.train), np.int64)
        self._most = np.inf if line.privacy.contributions is None else line.privacy.contributions
        self._may_send = np.ones(len(problem.train), np.bool_)
        self._sum: PrivateArrayRound
        self._coin = line.privacy.central is not None and line.privacy.central.sampling < 1

    @property
    def spent(self) -> dict[str, float]:
        """The maximum ε that the rounds so far cost a client, by guarantee, at the guarantee's δ."""
        releases = self._number
        if self._privacy.contributions is not None:
            releases = min(releases, self._privacy.contributions)
        spent_by_guarantee = {}
        central, _ = epsilon_after(self._privacy, releases)
        if central is not None:
            spent_by_guarantee["epsilon"] = central
        if self._privacy.local is not None:
            spent_by_guarantee["local_epsilon"] = _local_epsilon(self._privacy, self._contributor, releases)
        return spent_by_guarantee

    def snapshot(self) -> Arrays:
        """Return the state to resume from, with the number of contributions of each client."""
        return super().snapshot() | {"times": self._times}

    def restore(self, saved: Arrays) -> None:
        """Resume from a snapshot."""
        super().restore(saved)
        self._times = saved["times"]

    def begin(self) -> int:
        """See :meth:`Channel.begin`."""
        self._number += 1
        self._sum = PrivateArrayRound(self._study, self._line)
        self._may_send = self._times < self._most
        if self._coin:
            clients = np.flatnonzero(self._may_send)
            self._times[with_a_turn(self._problem, self._privacy, self._number - 1, clients)] += 1
        return fetched_bytes(self._line.spec.document_names, self._weights)

    def send(self, block: Updates) -> Delivered:
        """Add the vectors of the clients that may send and have examples; the others send nothing."""
        admitted = _part(block, self._may_send[block.clients] & (block.examples > 0))
        if not self._coin:
            self._times[admitted.clients] += 1
        vectors = self._vectors(admitted)
        self._sum.add(vectors)
        return Delivered(
            admitted, posted_bytes(replace(admitted, updates=Payloads("private", vector_payloads(vectors))))
        )

    def step(self, clients: int) -> bool:
        """See :meth:`Channel.step`."""
        noise = SeededNoise(np.random.SeedSequence((self._seed, _SERVER, self._number)))
        with self._named_round():
            step = self._sum.stepped(self._exact, self._state, self._key, noise)
            if step is not None:
                self._publish(*step)
        return step is not None

    def _vectors(self, block: Updates) -> NDArray[np.int64]:
        """Return the payloads of a block's clients, shape (k, m + 3), with the noise of clients that add their own."""
        assert isinstance(block.updates, np.ndarray)
        chances = (_Seeded((self._seed, _CLIENTS, self._number, client)) for client in block.clients.tolist())
        return self._contributor.vectors(block.updates, block.losses, np.zeros(len(block.clients)), chances)


def _part(block: Updates, kept: NDArray[np.bool_]) -> Updates:
    """Return the updates of a block that a mask of shape (k,) keeps."""
    assert isinstance(block.updates, np.ndarray)
    return Updates(
        clients=block.clients[kept],
        repeats=block.repeats[kept],
        pings=block.pings[kept],
        updates=block.updates[kept],
        losses=block.losses[kept],
        examples=block.examples[kept],
    )


class _Seeded(Chance):
    """A client's reproducible randomness in one round; it draws all Gaussians at once, which is much faster."""

    def __init__(self, seed: tuple[int, ...]) -> None:
        self._rng = np.random.default_rng(seed)
        super().__init__(self._rng.bytes)

    def discrete_gaussians(self, sigma: int, d: int) -> NDArray[np.int64]:
        """See :meth:`Chance.discrete_gaussians`."""
        return SeededNoise(self._rng).integers(sigma, d)


def _local_epsilon(privacy: Privacy, contributor: Contributor, releases: int) -> float:
    assert privacy.local is not None
    if not isinstance(privacy.local, LocalGaussian):
        return releases * privacy.local.epsilon
    one = 2 * contributor.frame.bound / local_sigma(privacy, contributor.frame)
    return epsilon_of(math.sqrt(releases) * one, privacy.local.delta)
