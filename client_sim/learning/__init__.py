"""Learning on a user's device, with any model: the models, and how a client's update comes out of them.

A client's own data lie in a :class:`ClientData`, which hands out rectangular batches of many clients; a :class:`Model`
gives each of them a loss and a gradient at once.
"""

from __future__ import annotations

from client_sim.learning.batch import Batch, ClientData, Examples
from client_sim.learning.model import Model

__all__ = ["Batch", "ClientData", "Examples", "Model"]
