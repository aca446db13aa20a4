"""The work that all frameworks do: three models, synthetic clients that each take a step, and the mean over them.

A client update is the gradient of the client's mean loss over all its examples at the round's model, times a rate; the
server averages the clients' models, since all have the same number of examples. No framework compresses, clips or
evaluates anything, except that private training (`benchmarks.peers.private`) clips and adds noise. This module imports
only NumPy, since every framework's environment reads it.
"""

from __future__ import annotations

import hashlib
import json
import os
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

RATE = 0.1
SEARCHES, CANDIDATES, MARGIN = 5, 6, 1.0
ROWS, HIDDEN = 50, 100
FEATURES = {"ranking": 22, "logistic": 30, "network": 64}
CLASSES = 10

FloatArray = NDArray[np.float64]
ModelName = Literal["ranking", "logistic", "network"]


@dataclass(frozen=True)
class Task:
    """A measurement to make.

    Attributes:
        model: the model that is trained.
        clients: number of clients that train in each round.
        rounds: number of rounds.
        data: the folder of the clients' data.
        steps: number of a client's steps in a round, each on all its examples.
        way: the way of computing rounds, if a framework has several: one ``round`` per call, a ``scan`` of many rounds
            per call, ``chunk``, which adds up some clients at a time, and for fedping also ``compiled``.
        one_core: whether the framework is confined to one core and CPU time is measured, instead of wall time.
        clip: maximum Euclidean norm of a client's movement in private training; else 0.
        noise_multiplier: in private training, the standard deviation of the noise on the sum, divided by ``clip``.
        seed: seed of the noise.
    """

    model: ModelName
    clients: int
    rounds: int
    data: str
    steps: int = 1
    way: str = "round"
    one_core: bool = False
    clip: float = 0.0
    noise_multiplier: float = 0.0
    seed: int = 1

    @property
    def kept(self) -> Path:
        """The file into which a worker writes the final weights, concatenated in one array."""
        return Path(self.data) / "weights.npy"

    def kept_of_round(self, number: int) -> Path:
        """Return the file for the weights after a round, if the weights of all rounds are compared."""
        return Path(self.data) / f"weights-{number}.npy"


@dataclass(frozen=True)
class Measured:
    """The results of a measurement.

    Attributes:
        seconds: seconds of each round but the first, which warms up.
        peak_mib: peak resident memory of all processes of the framework together.
        digest: digest of the final weights, rounded to 4 digits, to check that the same work was done.
        norm: Euclidean norm of the final weights.
    """

    seconds: list[float]
    peak_mib: float
    digest: str
    norm: float


def make_data(folder: Path, model: ModelName, clients: int, seed: int = 1) -> None:
    """Write the clients' data, x and y, as arrays that can be mapped into memory."""
    rng = np.random.default_rng(seed)
    folder.mkdir(parents=True, exist_ok=True)
    d = FEATURES[model]
    if model == "ranking":
        x = rng.standard_normal((clients, SEARCHES, CANDIDATES, d))
        y = (x @ rng.standard_normal(d) + rng.standard_normal(x.shape[:-1])).argmax(axis=2)
    else:
        x = rng.standard_normal((clients, ROWS, d))
        scores = x @ rng.standard_normal((d, CLASSES if model == "network" else 2))
        y = scores.argmax(axis=2)
    np.save(folder / "x.npy", x)
    np.save(folder / "y.npy", y.astype(np.int64))


def load_data(folder: str) -> tuple[FloatArray, NDArray[np.int64]]:
    """Return all clients' x and y, mapped into memory."""
    return np.load(f"{folder}/x.npy", mmap_mode="r"), np.load(f"{folder}/y.npy", mmap_mode="r")


def start_weights(model: ModelName) -> list[FloatArray]:
    """Return the weights to begin with, as a list of arrays."""
    d = FEATURES[model]
    if model == "ranking":
        return [np.zeros(d)]
    if model == "logistic":
        return [np.zeros(d), np.zeros(1)]
    rng = np.random.default_rng(7)
    first, second = np.sqrt(6 / (d + HIDDEN)), np.sqrt(6 / (HIDDEN + CLASSES))
    return [
        rng.uniform(-first, first, (d, HIDDEN)),
        np.zeros(HIDDEN),
        rng.uniform(-second, second, (HIDDEN, CLASSES)),
        np.zeros(CLASSES),
    ]


def one_client_step(
    model: ModelName, weights: list[FloatArray], x: FloatArray, y: NDArray[np.int64]
) -> list[FloatArray]:
    """Return a client's weights after its step, with NumPy: the code of a user without another library."""
    gradients = gradients_of(model)(weights, x, y)
    return [w - RATE * g for w, g in zip(weights, gradients, strict=True)]


def gradients_of(model: ModelName) -> Callable[[list[FloatArray], FloatArray, NDArray[np.int64]], list[FloatArray]]:
    """Return the gradients of a client's mean loss, as a function of weights, x and y."""
    return {"ranking": _ranking, "logistic": _logistic, "network": _network}[model]


def _ranking(weights: list[FloatArray], x: FloatArray, y: NDArray[np.int64]) -> list[FloatArray]:
    scores = x @ weights[0]
    every = np.arange(len(y))
    over = (scores + MARGIN - scores[every, y][:, None]) > 0
    over[every, y] = False
    pull = over.astype(float)
    pull[every, y] = -over.sum(axis=1)
    return [np.einsum("sc,scd->d", pull, x) / len(y)]


def _logistic(weights: list[FloatArray], x: FloatArray, y: NDArray[np.int64]) -> list[FloatArray]:
    error = 1 / (1 + np.exp(-(x @ weights[0] + weights[1]))) - y
    return [x.T @ error / len(y), np.array([error.mean()])]


def _network(weights: list[FloatArray], x: FloatArray, y: NDArray[np.int64]) -> list[FloatArray]:
    w1, b1, w2, b2 = weights
    hidden = np.maximum(x @ w1 + b1, 0)
    scores = hidden @ w2 + b2
    scores -= scores.max(axis=1, keepdims=True)
    error = np.exp(scores)
    error /= error.sum(axis=1, keepdims=True)
    error[np.arange(len(y)), y] -= 1
    error /= len(y)
    back = (error @ w2.T) * (hidden > 0)
    return [x.T @ back, back.sum(axis=0), hidden.T @ error, error.sum(axis=0)]


def keep_weights(task: Task, weights: list[Any]) -> None:
    """Write the final weights to the file that the benchmark reads."""
    np.save(task.kept, _flat(weights))


def keep_weights_of_round(task: Task, number: int, weights: list[Any]) -> None:
    """Write the weights after a round to the file that the benchmark reads."""
    np.save(task.kept_of_round(number), _flat(weights))


def _flat(weights: list[Any]) -> FloatArray:
    return np.concatenate([np.asarray(w, dtype=np.float64).ravel() for w in weights])


def digest_of_weights(weights: list[Any]) -> tuple[str, float]:
    """Return a short digest of the weights rounded to 4 digits, and their norm."""
    flat = _flat(weights)
    rounded = np.round(flat, 3) + 0.0
    return hashlib.sha256(rounded.tobytes()).hexdigest()[:12], float(np.linalg.norm(flat))


def task_from_arguments() -> Task:
    """Return the task that a worker was started with, as JSON in its first argument."""
    return Task(**json.loads(sys.argv[1]))


def clock_of(task: Task) -> Callable[[], float]:
    """Return the clock of a task; if the task measures one core, confine this process to that core."""
    if not task.one_core:
        return time.perf_counter
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    return time.process_time


def report(measured: Measured) -> None:
    """Print a worker's measurements as the last line of its output."""
    print("MEASURED " + json.dumps(asdict(measured)), flush=True)
