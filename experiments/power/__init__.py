"""How many users train a model (thesis 7.4): the same study simulated with cohorts of several sizes."""

from experiments.power.curve import TrainingProgress, training_curve
from experiments.power.plan import TrainingPlan, training_plan

__all__ = ["TrainingPlan", "TrainingProgress", "training_curve", "training_plan"]
