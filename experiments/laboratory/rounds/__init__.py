"""The rounds of a run: with a server in memory, over files or over HTTP, or without a server.

server.py   a round of a server, over a channel     memory.py, private.py, landed.py   the channels
co_op.py    arrivals instead of rounds              gossip.py                          nodes without a server
several.py  edges below a cloud, and clusters
"""

from __future__ import annotations

from fedping.experiments.laboratory.rounds.places import open_rounds
from fedping.experiments.laboratory.rounds.server import RoundReport, Rounds, ServerRounds
from fedping.experiments.laboratory.rounds.study import LINE, study_of
from fedping.experiments.laboratory.rounds.updates import Updates

__all__ = ["LINE", "RoundReport", "Rounds", "ServerRounds", "Updates", "open_rounds", "study_of"]
