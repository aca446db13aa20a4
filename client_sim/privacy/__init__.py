"""What a client of a private line does: its vector, noise of its own, an id for one version, and a count of it all.

A client of a line of shares splits its vector in two, for which it needs the offer of the line's helper.

The settings are those that are published with the line (`fedping.protocol.privacy`). The browser's module does the same
(`browser/study/privacy/`), to the same numbers: docs/conformance has them.
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
