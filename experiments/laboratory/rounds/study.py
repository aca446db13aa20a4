"""The study of a run, as an operator would create it for real users, with one arm and one line."""

from __future__ import annotations

import numpy as np

from fedping.client_sim.learning.batch import Clients
from fedping.client_sim.privacy import has_turn
from fedping.experiments.laboratory.preparing import Problem
from fedping.experiments.laboratory.settings.setup import LINE
from fedping.protocol.limits import Limits
from fedping.protocol.privacy import Privacy
from fedping.protocol.study import Arm, Line, Study

__all__ = ["ARM", "LINE", "STUDY", "study_of", "with_a_turn"]

STUDY, ARM = "laboratory", "federated"


def study_of(line: Line, most_examples: int | None = None) -> Study:
    """Return the study that an operator would create to train a line on real clients.

    Args:
        line: the line, named :data:`LINE`.
        most_examples: maximum number of examples that a ping counts for; None for no limit.
    """
    personal = getattr(line.training, "personal", None) is not None
    return Study(
        name=STUDY,
        pings="model-update" if line.privacy is None else "private-update",
        arms=(Arm(name=ARM, share=1.0, line=line.name, applies=True, submits=True, personal=personal),),
        lines=(line,),
        limits=None if most_examples is None else Limits(examples=most_examples),
    )


def with_a_turn(problem: Problem, privacy: Privacy, version: int, clients: Clients) -> Clients:
    """Return the ``clients`` whose own random draw selects ``version`` for a contribution."""
    share = privacy.turns
    if share == 1:
        return clients
    selected = [has_turn(STUDY, secret, LINE, version, share) for secret in problem.secrets(clients)]
    return clients[np.array(selected, np.bool_)]
