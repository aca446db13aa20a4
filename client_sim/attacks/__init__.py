"""Hostile clients: what they learn from, what they send, and who they are, as pure functions of a round's updates.

`settings` has every attack with its source paper and the attacker's knowledge; `examples` corrupts what hostile clients
learn from, `updates` corrupts what they send, and `plot` combines these into one round of a laboratory or a fleet.
"""

from __future__ import annotations

from fedping.client_sim.attacks.plot import Known, Plot, hostile_among, hostile_updates, in_drawn_order
from fedping.client_sim.attacks.settings import Attack, Hostile

__all__ = ["Attack", "Hostile", "Known", "Plot", "hostile_among", "hostile_updates", "in_drawn_order"]
