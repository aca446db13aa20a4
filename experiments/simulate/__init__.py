"""A whole study in one process: simulated user behaviour, with the real landed files, versions and rounds.

It shows what happens to users: arms, days, searches, and the results of `fedping analyze`. To compare models and
algorithms on any data, use `fedping.experiments.laboratory`. The command `fedping simulate` runs either, depending on
its file.
"""

from fedping.experiments.simulate.run import Simulation, simulate
from fedping.experiments.simulate.settings import Experiment, experiment_from_toml
from fedping.experiments.simulate.summary import PrivateSummary, Summary

__all__ = ["Experiment", "PrivateSummary", "Simulation", "Summary", "experiment_from_toml", "simulate"]
