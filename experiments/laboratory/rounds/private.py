"""Private rounds in memory: clients' vectors, their sum, its noise and the step as a product's private line has them.

The noise is drawn from the run's seed, so that a run can be repeated; nothing that is made so may be published.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from fedping.client_sim.privacy import Chance, Contributor
from fedping.experiments.laboratory.participation import with_a_turn
from fedping.experiments.laboratory.preparing import Problem
from fedping.experiments.laboratory.resuming import Arrays
from fedping.experiments.laboratory.rounds.memory import MemoryRounds
from fedping.experiments.laboratory.rounds.traffic import fetched_bytes, posted_bytes
from fedping.experiments.laboratory.rounds.updates import RoundReport, Seen, Updates
from fedping.experiments.privacy.noise import SeededNoise
from fedping.protocol.encodings.private import vector_payloads
from fedping.protocol.privacy import LocalGaussian, Privacy, local_sigma
from fedping.protocol.study import Study
from fedping.protocol.update import Payloads
from fedping.server_jobs.privacy.budget import epsilon_after
from fedping.server_jobs.privacy.gaussian import epsilon_of
from fedping.server_jobs.round import PrivateArrayRound

_CLIENTS, _SERVER = 1, 2
"""Whose draws a seed is for."""


class PrivateRounds(MemoryRounds):
    """The rounds of a private line, the only one of its study.

    A client whose turn it is sends, until it has sent to ``contributions`` versions, as it would see to itself. It does
    not know whether the operator's coin counts it, so it counts all of them. Losses and numbers of clients that are
    reported are exact: what a researcher sees here is no part of what is released. Top choices are not told.

    Args:
        study: its arm follows the line; the noise multiplier is known.
        problem: has the clients.
    """

    def __init__(self, study: Study, problem: Problem) -> None:
        line = study.lines[0]
        assert line.privacy is not None
        super().__init__(line, problem.ids, problem.seed)
        self._study, self._privacy, self._problem = study, line.privacy, problem
        self._contributor = Contributor(line.privacy, line.spec)
        self._times = np.zeros(len(problem.train), np.int64)
        self._most = np.inf if line.privacy.contributions is None else line.privacy.contributions
        self._coin = line.privacy.central is not None and line.privacy.central.sampling < 1

    @property
    def spent(self) -> dict[str, float]:
        """What the rounds so far cost a client at most, by guarantee: ε for the δ of each."""
        releases = self._number
        if self._privacy.contributions is not None:
            releases = min(releases, self._privacy.contributions)
        found = {}
        central, _ = epsilon_after(self._privacy, releases)
        if central is not None:
            found["epsilon"] = central
        if self._privacy.local is not None:
            found["local_epsilon"] = _local_epsilon(self._privacy, self._contributor, releases)
        return found

    def snapshot(self) -> Arrays:
        """See :meth:`MemoryRounds.snapshot`; and how often each client has contributed."""
        return super().snapshot() | {"times": self._times}

    def restore(self, saved: Arrays) -> None:
        """Continue from what :meth:`snapshot` returned."""
        super().restore(saved)
        self._times = saved["times"]

    def _run(self, sent: Iterable[Updates]) -> RoundReport:
        seen, vectors = Seen(self._line.pipeline), PrivateArrayRound(self._study, self._line)
        version_bytes = fetched_bytes(self._line.spec.document_names, self._weights)
        may = self._times < self._most
        if self._coin:
            self._times[with_a_turn(self._problem, self._privacy, self._number - 1, np.flatnonzero(may))] += 1
        for each in sent:
            block = _part(each, may[each.clients] & (each.examples > 0))
            if not self._coin:
                self._times[block.clients] += 1
            made = self._vectors(block)
            seen.see(block, posted_bytes(replace(block, updates=Payloads("private", vector_payloads(made)))))
            vectors.add(made)
        noise = SeededNoise(np.random.SeedSequence((self._seed, _SERVER, self._number)))
        found = vectors.stepped(self._exact, self._state, self._key, noise)
        if found is not None:
            self._go_to(*found)
        return seen.report(found is not None, version_bytes)

    def _vectors(self, block: Updates) -> NDArray[np.int64]:
        """Return what the clients of a block send, shape (k, m + 3), with the noise of those that add their own."""
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
    """A client's chance in one round, which can be drawn again; Gaussians all at once, in far less time."""

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
