"""A laboratory experiment as one file: the model, the data, the training, the repetitions and the comparisons."""

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
