"""The client of a private line: its vector, its noise, an id for each version, and a record of its contributions.

A client of a two-server line splits its vector in two, which needs the offer of the line's helper.

The settings are published with the line (`fedping.protocol.privacy`). The browser's module (`browser/study/privacy/`)
computes the same numbers; docs/conformance has examples.
"""

from fedping.client_sim.privacy.contributions import NEVER, Contributed, has_turn, rotating_id
from fedping.client_sim.privacy.exact_random import SYSTEM, Chance
from fedping.client_sim.privacy.vectors import Contributor, Sharer, system_seeds

__all__ = [
    "NEVER",
    "SYSTEM",
    "Chance",
    "Contributed",
    "Contributor",
    "Sharer",
    "has_turn",
    "rotating_id",
    "system_seeds",
]
