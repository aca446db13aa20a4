"""CO-OP (Wang 2017): instead of rounds, a global model is mixed with each client's own model when it arrives.

The global model has an age a, the number of models merged so far, and each client has the age of its last global model,
a_k. A client that has trained its own model is outdated if a - a_k > upper, and starts again from the global model; it
is overactive if a - a_k < lower, and continues training; otherwise the models are mixed,

    w ← (1 - α) w + α w_k,   α = (a - a_k + 1)^(-1/2),   a ← a + 1,

and the client continues from the mixture, with a_k = a. The first a is ``lower``, so that one client can be the first.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Literal

import numpy as np

from fedping.client_sim.data.seeds import generator
from fedping.client_sim.learning import Kept, MemoryStates, UpdateBlock, algorithm_for, bare, updates_of_fleet
from fedping.client_sim.learning.batch import FloatArray
from fedping.experiments.laboratory.preparing import Problem
from fedping.experiments.laboratory.resuming import Part
from fedping.experiments.laboratory.rounds.server import RoundReport, diverged
from fedping.experiments.laboratory.rounds.updates import Updates
from fedping.experiments.laboratory.settings import Setup
from fedping.experiments.laboratory.settings.setup import CoOp
from fedping.protocol.draws import child_keys
from fedping.protocol.errors import InvalidSettings
from fedping.protocol.model import out_of_range

Fate = Literal["outdated", "overactive", "merged"]


def merge_outcome(settings: CoOp, behind: int) -> Fate:
    """Return the action for the model of a client that is a - a_k = ``behind`` ages behind the global one."""
    if behind > settings.upper:
        return "outdated"
    return "overactive" if behind < settings.lower else "merged"


def mixed(weights: FloatArray, own: FloatArray, behind: int) -> FloatArray:
    """Return the global model mixed with the model of a client that is ``behind`` ages behind, shape (m,)."""
    alpha = 1.0 / math.sqrt(behind + 1.0)
    return (1.0 - alpha) * weights + alpha * own


class CoOpRounds:
    """The arrivals of a run's clients. A round is as many arrivals as there are clients.

    The next client to arrive is drawn in proportion to the clients' speeds. A client's random draws depend on its key
    in the round and the number of its arrivals in the round.
    """

    def __init__(self, setup: Setup, problem: Problem) -> None:
        assert setup.co_op is not None
        self._settings, self._training, self._problem = setup.co_op, setup.training, problem
        clients = len(problem.train)
        if setup.co_op.lower >= clients:
            raise InvalidSettings(
                f"[co_op] has lower = {setup.co_op.lower}, and of {clients} clients each is soon less than {clients} "
                "ages behind, so that clients would never merge. Set it lower"
            )
        speeds = np.resize(np.array(setup.co_op.speeds), clients)
        self._chances = speeds / speeds.sum()
        self._weights: FloatArray = problem.spec.start_array
        self._local = np.tile(self._weights, (clients, 1))
        self._age, self._ages = setup.co_op.lower, np.zeros(clients, np.int64)
        self._states = MemoryStates(algorithm_for(setup.training).init_state(bare(problem.model)))
        self._number = 0

    @property
    def weights(self) -> FloatArray:
        """See :attr:`Rounds.weights`."""
        return self._weights

    @property
    def checkpoint(self) -> Part | None:
        """None, because a killed run of CO-OP starts again."""
        return None

    def start_weights(self, versions: Sequence[FloatArray]) -> Sequence[FloatArray]:
        """Return the versions unchanged."""
        return versions

    def measured(self) -> Mapping[str, Mapping[str, float]]:
        """Return no metrics."""
        return {}

    def run(self, sent: Iterable[Updates]) -> RoundReport:
        """See :meth:`Rounds.run`; ``sent`` is not used, because clients train here, one by one.

        The report is about the merged models; its loss is the loss of all clients that arrived, at their own models.
        """
        clients = len(self._local)
        arriving = generator(self._problem.seed, "arrivals", self._number).choice(clients, clients, p=self._chances)
        train, keys = self._problem.train_in(self._number, self._local), self._problem.keys(self._number)
        times = np.zeros(clients, np.uint64)
        merging: list[int] = []
        loss = examples = 0.0
        for client in arriving.tolist():
            one = np.array([client])
            key = child_keys(keys[one], times[one])
            times[client] += np.uint64(1)
            block: UpdateBlock
            [block] = updates_of_fleet(
                self._problem.model, self._training, self._local[client], train, one, key, kept=Kept(self._states, one)
            )
            self._local[client] += block.updates[0]
            loss += float(block.losses[0]) * int(train.sizes[client])
            examples += int(train.sizes[client])
            if self._arrived(client):
                merging.append(client)
        self._number += 1
        return RoundReport(
            clients=len({*merging}),
            pings=len(merging),
            loss=loss / examples if examples else math.nan,
            stepped=bool(merging),
            update_bytes=4 * len(self._weights) * len(merging),
        )

    def _arrived(self, client: int) -> bool:
        """Let a client arrive with its trained model; return whether it was merged."""
        behind = self._age - int(self._ages[client])
        fate = merge_outcome(self._settings, behind)
        if fate == "overactive":
            return False
        if fate == "merged":
            weights = mixed(self._weights, self._local[client], behind)
            if beyond := out_of_range(weights, self._problem.spec):
                raise diverged(beyond)
            self._weights = weights
            self._age += 1
        self._local[client] = self._weights
        self._ages[client] = self._age
        return fate == "merged"
