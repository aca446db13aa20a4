"""The lots by which clients of a private line spread out what they may contribute, drawn as clients of products do."""

from __future__ import annotations

import numpy as np

from fedping.client_sim.learning.batch import Clients
from fedping.client_sim.privacy import has_turn
from fedping.experiments.laboratory.preparing import Problem
from fedping.experiments.laboratory.rounds.study import LINE, STUDY
from fedping.protocol.privacy import Privacy


def with_a_turn(problem: Problem, privacy: Privacy, version: int, clients: Clients) -> Clients:
    """Return those of some clients that have drawn a version to contribute to."""
    share = privacy.turns
    if share == 1:
        return clients
    drawn = [has_turn(STUDY, secret, LINE, version, share) for secret in problem.secrets(clients)]
    return clients[np.array(drawn, np.bool_)]
