"""A fleet: thousands of simulated clients that fetch models, search or train, and send pings.

`roster` has the clients' ids, arms and versions. `exchange` fetches models and posts pings, `search_round` and
`learning_round` make the pings of an iteration, and `fleet` runs the iterations. `replay` posts recorded pings. The
state machine of a client is `fedping.client_sim.client`, its network `fedping.client_sim.transport`. The transport over
HTTP, `fedping.client_sim.http`, is not imported here, because its library takes a while.
"""

from __future__ import annotations

from fedping.client_sim.client import Backoff
from fedping.client_sim.fleet.fleet import Fleet, join_study, made_users
from fedping.client_sim.fleet.members import FleetSettings
from fedping.client_sim.fleet.roster import Behaviour
from fedping.client_sim.fleet.summary import ArmSummary, FetchSummary, IterationSummary, PingSummary
from fedping.client_sim.transport import (
    BatchOutcome,
    Delivery,
    Fetched,
    InProcessTransport,
    NotModified,
    Outcome,
    Transport,
    TransportError,
    Unavailable,
)

__all__ = [
    "ArmSummary",
    "Backoff",
    "BatchOutcome",
    "Behaviour",
    "Delivery",
    "FetchSummary",
    "Fetched",
    "Fleet",
    "FleetSettings",
    "InProcessTransport",
    "IterationSummary",
    "NotModified",
    "Outcome",
    "PingSummary",
    "Transport",
    "TransportError",
    "Unavailable",
    "join_study",
    "made_users",
]
