"""The number of users needed to train a model (thesis 7.4), from simulations with cohorts of several sizes."""

from fedping.experiments.power.curve import TrainingProgress, save_curve, training_curve
from fedping.experiments.power.plan import TrainingPlan, training_plan

__all__ = ["TrainingPlan", "TrainingProgress", "save_curve", "training_curve", "training_plan"]
