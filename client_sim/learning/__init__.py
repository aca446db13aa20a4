"""Learning on a user's device, with any model: the models, and the computation of clients' updates.

A :class:`ClientData` has clients' own data and hands them out in rectangular batches of many clients. A :class:`Model`
computes the loss and the gradient of all these clients at once, and an :class:`Algorithm` makes updates. Clients'
updates come from :func:`updates_of_fleet`, or :func:`cohort_updates` for a single block.
"""

from __future__ import annotations

from fedping.client_sim.learning.algorithm import NO_STATE, Algorithm, Diverged, State, bare
from fedping.client_sim.learning.algorithms import ALGORITHMS, algorithm_for
from fedping.client_sim.learning.batch import Batch, ClientData, Examples
from fedping.client_sim.learning.choices import ChoiceData, Choices
from fedping.client_sim.learning.model import Model
from fedping.client_sim.learning.models.jax_loss import jax_loss
from fedping.client_sim.learning.models.own_loss import own_loss
from fedping.client_sim.learning.registry import LEARNERS, learner_for, model_spec
from fedping.client_sim.learning.searches import ClientSearches, SearchData
from fedping.client_sim.learning.states import ClientStates, Kept, MemoryStates, StateFile, in_memory
from fedping.client_sim.learning.updates import CohortUpdates, UpdateBlock, cohort_updates, updates_of_fleet

__all__ = [
    "ALGORITHMS",
    "LEARNERS",
    "NO_STATE",
    "Algorithm",
    "Batch",
    "ChoiceData",
    "Choices",
    "ClientData",
    "ClientSearches",
    "ClientStates",
    "CohortUpdates",
    "Diverged",
    "Examples",
    "Kept",
    "MemoryStates",
    "Model",
    "SearchData",
    "State",
    "StateFile",
    "UpdateBlock",
    "algorithm_for",
    "bare",
    "cohort_updates",
    "in_memory",
    "jax_loss",
    "learner_for",
    "model_spec",
    "own_loss",
    "updates_of_fleet",
]
