"""The work of `benchmarks.accelerator` with pfl-research: a PyTorch model and its simulated backend."""

# ruff: noqa: D101, D102
# mypy: ignore-errors
from __future__ import annotations

import json
import statistics
import sys
import time
from itertools import pairwise
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))

import numpy as np
import torch
from pfl.aggregate.simulate import SimulatedBackend
from pfl.aggregate.weighting import WeightByDatapoints
from pfl.algorithm.base import NNAlgorithmParams
from pfl.algorithm.federated_averaging import FederatedAveraging
from pfl.callback.base import TrainingProcessCallback
from pfl.data.federated_dataset import FederatedDataset
from pfl.data.pytorch import PyTorchTensorDataset
from pfl.data.sampling import get_user_sampler
from pfl.hyperparam import NNEvalHyperParams, NNTrainHyperParams
from pfl.internal.ops.pytorch_ops import get_default_device
from pfl.metrics import Metrics
from pfl.model.pytorch import PyTorchModel

from benchmarks.accelerator import BATCH, CHANNELS, CLASSES, CLIENTS, COHORT, IMAGES, RATE, SIDE, TEST, images

rounds, seed = int(sys.argv[1]), int(sys.argv[2])
device = get_default_device()
torch.manual_seed(seed)
np.random.seed(seed)


class Learner(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = torch.nn.Sequential(
            torch.nn.Conv2d(CHANNELS, 32, 3),
            torch.nn.ReLU(),
            torch.nn.Conv2d(32, 64, 3),
            torch.nn.ReLU(),
            torch.nn.MaxPool2d(2),
            torch.nn.Flatten(),
            torch.nn.Linear(64 * 14 * 14, 128),
            torch.nn.ReLU(),
            torch.nn.Linear(128, CLASSES),
        )

    def loss(self, x: torch.Tensor, y: torch.Tensor, **_: object) -> torch.Tensor:
        return torch.nn.functional.cross_entropy(self.layers(x), y)

    def metrics(self, x: torch.Tensor, y: torch.Tensor, **_: object) -> dict[str, object]:
        return {}


def tensors(count: int, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    x, y = images(count, seed)
    x = x.reshape(count, SIDE, SIDE, CHANNELS).transpose(0, 3, 1, 2)
    return torch.tensor(np.ascontiguousarray(x), device=device), torch.tensor(y, device=device)


began = time.perf_counter()
x, y = tensors(CLIENTS * IMAGES, seed)
x, y = x.reshape(CLIENTS, IMAGES, CHANNELS, SIDE, SIDE), y.reshape(CLIENTS, IMAGES)
data = FederatedDataset(
    lambda user: PyTorchTensorDataset((x[user], y[user]), user_id=str(user)),
    get_user_sampler("random", range(CLIENTS)),
)
learner = Learner().to(device)
model = PyTorchModel(learner, torch.optim.SGD, torch.optim.SGD(learner.parameters(), lr=1.0))


class Clock(TrainingProcessCallback):
    def __init__(self) -> None:
        self.ends: list[float] = []

    def after_central_iteration(self, aggregate_metrics: Metrics, model: object, *, central_iteration: int) -> tuple:
        if torch.cuda.is_available():
            torch.cuda.synchronize()
        self.ends.append(time.perf_counter())
        return False, Metrics()


clock = Clock()
FederatedAveraging().run(
    backend=SimulatedBackend(data, data, postprocessors=[WeightByDatapoints()]),
    model=model,
    algorithm_params=NNAlgorithmParams(
        central_num_iterations=rounds,
        evaluation_frequency=rounds + 1,
        train_cohort_size=COHORT,
        val_cohort_size=0,
    ),
    model_train_params=NNTrainHyperParams(local_num_epochs=1, local_learning_rate=RATE, local_batch_size=BATCH),
    model_eval_params=NNEvalHyperParams(local_batch_size=None),
    callbacks=[clock],
)
of_rounds = [b - a for a, b in pairwise(clock.ends)]
test_x, test_y = tensors(TEST, seed + 1000)
with torch.no_grad():
    found = float((learner.layers(test_x).argmax(dim=1) == test_y).float().mean())
told = {
    "work": "pfl-research",
    "device": torch.cuda.get_device_name() if torch.cuda.is_available() else "cpu",
    "round_seconds": statistics.median(of_rounds),
    "first_call_seconds": clock.ends[0] - began,
    "whole_seconds": time.perf_counter() - began,
    "rounds": rounds,
    "accuracy": found,
}
print("MEASURED " + json.dumps(told))
