"""A laboratory experiment as one file: what to train, on which data, how, how often, and compared with what."""

from __future__ import annotations

from fedping.experiments.laboratory.settings.experiment import Experiment, experiment_from_toml, experiment_of
from fedping.experiments.laboratory.settings.setup import EarlyStopping, Evaluation, Setup

__all__ = [
    "EarlyStopping",
    "Evaluation",
    "Experiment",
    "Setup",
    "experiment_from_toml",
    "experiment_of",
]
