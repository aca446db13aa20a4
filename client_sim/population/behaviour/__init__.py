"""Users with behaviour: a user has its own pages, wants one of them, types, looks at the ranked list, and selects.

Typed characters and selected rank follow from the ranking weights. Nothing is stored: a user's data and actions are
drawn again from its key when needed, so that memory depends only on the users who are searching now.
"""

from fedping.client_sim.population.behaviour.searches import Behaved, Seekers, behave
from fedping.client_sim.population.behaviour.users import Activity, Users
from fedping.client_sim.population.settings import ActivitySettings, UserSettings

__all__ = ["Activity", "ActivitySettings", "Behaved", "Seekers", "UserSettings", "Users", "behave"]
