"""Hostile clients: their selection, their examples and their updates, as pure functions of a round's updates.

`settings` has every attack with its source paper and the attacker's knowledge. `plot` corrupts the examples and the
updates of hostile clients in a round of a laboratory or a fleet.
"""

from __future__ import annotations

from fedping.client_sim.attacks.plot import Known, Plot, hostile_among, hostile_updates, in_drawn_order
from fedping.client_sim.attacks.settings import Attack, Hostile

__all__ = ["Attack", "Hostile", "Known", "Plot", "hostile_among", "hostile_updates", "in_drawn_order"]
