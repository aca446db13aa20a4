"""The study of a run: what an operator would create for real users, with one arm and one line."""

from __future__ import annotations

import numpy as np

from fedping.client_sim.learning.batch import Clients
from fedping.client_sim.privacy import has_turn
from fedping.experiments.laboratory.preparing import Problem
from fedping.protocol.limits import Limits
from fedping.protocol.links import Upload
from fedping.protocol.pipeline import Pipeline
from fedping.protocol.privacy import Privacy
from fedping.protocol.spec import ModelSpec
from fedping.protocol.study import Arm, Line, Study
from fedping.protocol.training import Training

STUDY, LINE, ARM = "laboratory", "main", "federated"


def study_of(
    spec: ModelSpec,
    training: Training,
    pipeline: Pipeline,
    upload: Upload = (),
    privacy: Privacy | None = None,
    most_examples: int | None = None,
) -> Study:
    """Return the study: what an operator would create to train this model on real clients.

    A ping counts as ``most_examples`` at most; None for no limit.
    """
    own = getattr(training, "personal", None) is not None
    return Study(
        name=STUDY,
        pings="model-update" if privacy is None else "private-update",
        arms=(Arm(name=ARM, share=1.0, line=LINE, applies=True, submits=True, personal=own),),
        lines=(Line(name=LINE, spec=spec, training=training, upload=upload, pipeline=pipeline, privacy=privacy),),
        limits=None if most_examples is None else Limits(examples=most_examples),
    )


def with_a_turn(problem: Problem, privacy: Privacy, version: int, clients: Clients) -> Clients:
    """Return those of some clients that have drawn a version to contribute to."""
    share = privacy.turns
    if share == 1:
        return clients
    selected = [has_turn(STUDY, secret, LINE, version, share) for secret in problem.secrets(clients)]
    return clients[np.array(selected, np.bool_)]
