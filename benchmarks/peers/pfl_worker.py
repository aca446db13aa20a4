"""The work with pfl-research: a PyTorch model, its simulated backend and federated averaging."""

# ruff: noqa: D101, D102
# mypy: ignore-errors
from __future__ import annotations

import sys
from itertools import pairwise
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

import numpy as np
import torch
import work
from pfl.aggregate.simulate import SimulatedBackend
from pfl.aggregate.weighting import WeightByDatapoints, WeightByUser
from pfl.algorithm.base import NNAlgorithmParams
from pfl.algorithm.federated_averaging import FederatedAveraging
from pfl.callback.base import TrainingProcessCallback
from pfl.data.federated_dataset import FederatedDataset
from pfl.data.pytorch import PyTorchTensorDataset
from pfl.data.sampling import get_user_sampler
from pfl.hyperparam import NNEvalHyperParams, NNTrainHyperParams
from pfl.metrics import Metrics
from pfl.model.pytorch import PyTorchModel
from pfl.privacy.gaussian_mechanism import GaussianMechanism
from pfl.privacy.privacy_mechanism import CentrallyAppliedPrivacyMechanism

task = work.task_from_arguments()
now = work.clock_of(task)
torch.set_num_threads(1)  # with two, these small products take up to twenty times as long
torch.manual_seed(task.seed)
np.random.seed(task.seed)


# --- what a user writes
class Learner(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weights = torch.nn.ParameterList(
            torch.tensor(w, dtype=torch.float32) for w in work.start_weights(task.model)
        )

    def loss(self, x: torch.Tensor, y: torch.Tensor, **_: object) -> torch.Tensor:
        w = self.weights
        if task.model == "logistic":
            return torch.nn.functional.binary_cross_entropy_with_logits(x @ w[0] + w[1], y.float())
        if task.model == "network":
            return torch.nn.functional.cross_entropy(torch.relu(x @ w[0] + w[1]) @ w[2] + w[3], y)
        scores = x @ w[0]
        over = torch.relu(scores + work.MARGIN - scores.gather(1, y[:, None]))
        return (over.sum() - work.MARGIN * len(y)) / len(y)  # the hinge of the chosen item itself is always the margin

    def metrics(self, x: torch.Tensor, y: torch.Tensor, **_: object) -> dict[str, object]:
        return {}


all_x, all_y = work.load_data(task.data)
all_x = torch.tensor(np.array(all_x), dtype=torch.float32)
all_y = torch.tensor(np.array(all_y))
data = FederatedDataset(
    lambda user: PyTorchTensorDataset((all_x[user], all_y[user]), user_id=str(user)),
    get_user_sampler("minimize_reuse", range(task.clients)),
)
learner = Learner()
model = PyTorchModel(learner, torch.optim.SGD, torch.optim.SGD(learner.parameters(), lr=1.0))
# --- to here (and the call of run below)


class Clock(TrainingProcessCallback):
    def __init__(self) -> None:
        self.ends: list[float] = []

    def after_central_iteration(self, aggregate_metrics: Metrics, model: object, *, central_iteration: int) -> tuple:
        self.ends.append(now())
        return False, Metrics()


clock = Clock()
postprocessors = [WeightByDatapoints()]
if task.clip:
    mechanism = GaussianMechanism(task.clip, task.noise_multiplier)
    postprocessors = [WeightByUser(), CentrallyAppliedPrivacyMechanism(mechanism)]
FederatedAveraging().run(
    backend=SimulatedBackend(data, data, postprocessors=postprocessors),
    model=model,
    algorithm_params=NNAlgorithmParams(
        central_num_iterations=task.rounds,
        evaluation_frequency=task.rounds + 1,
        train_cohort_size=task.clients,
        val_cohort_size=0,
    ),
    model_train_params=NNTrainHyperParams(local_num_epochs=1, local_learning_rate=work.RATE, local_batch_size=None),
    model_eval_params=NNEvalHyperParams(local_batch_size=None),
    callbacks=[clock],
)
work.keep_weights(task, [w.detach().numpy() for w in learner.weights])
digest, norm = work.digest_of_weights([w.detach().numpy() for w in learner.weights])
work.report(work.Measured([b - a for a, b in pairwise(clock.ends)], 0.0, digest, norm))
