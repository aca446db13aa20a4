"""A whole study in one process: users who behave, the landed files and versions of the real path, the same round."""

from experiments.simulate.run import Simulation, simulate
from experiments.simulate.settings import Experiment, experiment_from_toml
from experiments.simulate.summary import Summary

__all__ = ["Experiment", "Simulation", "Summary", "experiment_from_toml", "simulate"]
