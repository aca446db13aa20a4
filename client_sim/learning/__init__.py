"""Learning on a user's device, with any model: the models, and how a client's update comes out of them.

A client's own data lie in a :class:`ClientData`, which hands out rectangular batches of many clients; a :class:`Model`
gives each of them a loss and a gradient at once; :func:`cohort_updates` makes of them what is sent.
"""

from __future__ import annotations

from client_sim.learning.batch import Batch, ClientData, Examples
from client_sim.learning.cohort import Diverged, cohort_updates
from client_sim.learning.fleet_updates import UpdateBlock, updates_of_fleet
from client_sim.learning.model import Model
from client_sim.learning.registry import LEARNERS, learner_for, model_spec

__all__ = [
    "LEARNERS",
    "Batch",
    "ClientData",
    "Diverged",
    "Examples",
    "Model",
    "UpdateBlock",
    "cohort_updates",
    "learner_for",
    "model_spec",
    "updates_of_fleet",
]
