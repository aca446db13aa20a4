"""The participants of each round, and the keys of clients' random draws; the same in both engines."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from fedping.client_sim.learning.batch import Clients
from fedping.client_sim.learning.updates import draws
from fedping.client_sim.sampling import All, Bernoulli, Sampler, sampler_for
from fedping.experiments.laboratory.preparing import Problem
from fedping.experiments.laboratory.settings import Setup
from fedping.protocol.draws import Keys, child_keys
from fedping.protocol.errors import InvalidSettings


class Participants:
    """The learners of a run, and their selection for each round.

    Attributes:
        learners: positions of the clients that may train, shape (k,).
        groups: the learners' natural keys, shape (k,); None if they have none.
        sampler: selects among the learners.

    Raises:
        InvalidSettings: there are too few clients or groups.
    """

    def __init__(self, setup: Setup, problem: Problem) -> None:
        self._setup, self._problem = setup, problem
        self.learners: Clients = problem.learners
        keys = getattr(problem.train, "natural_keys", None)
        self.groups: NDArray[np.generic] | None = None if keys is None else keys[self.learners]
        sampling = setup.sampling
        if setup.gossip and setup.gossip.failures:
            sampling = Bernoulli(share=1.0 - setup.gossip.failures)
        sizes = problem.train.sizes[self.learners]
        self._sampling = sampling
        self.sampler: Sampler = sampler_for(sampling, sizes, problem.seed, self.groups)

    def of_round(self, number: int) -> Clients:
        """Return the participants of a round, counted from 0, if they do not depend on earlier pings."""
        return self.learners[self.sampler.draw(number)]

    def sampler_among(self, learners: Clients) -> Sampler:
        """Return a sampler for these learners only; it selects all of them if they are too few to sample."""
        if len(learners) == len(self.learners):
            return self.sampler
        sizes, seed = self._problem.train.sizes[learners], self._problem.seed
        try:
            return sampler_for(self._sampling, sizes, seed, self.groups_of(learners))
        except InvalidSettings:
            return sampler_for(All(), sizes, seed)

    def groups_of(self, learners: Clients) -> NDArray[np.generic] | None:
        """Return the natural keys of some learners; None if they have none."""
        return None if self.groups is None else self.groups[np.searchsorted(self.learners, learners)]

    def keys(self, number: int, clients: Clients, repeats: NDArray[np.int64]) -> Keys:
        """Return a key for each ping of a round.

        Args:
            number: the round's number, from 0.
            clients: positions among all clients, shape (k,).
            repeats: the number of earlier pings of the client in the round, shape (k,).
        """
        if draws(self._setup.training, self._problem.model) or self._setup.upload:
            return child_keys(self._problem.keys(number)[clients], repeats)
        return np.zeros(len(clients), np.uint64)  # these keys are not used, and take time
