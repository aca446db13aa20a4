"""Clients' time for an answer: the seconds to fetch a version, to train, and to send an update."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedping.client_sim.data.seeds import key
from fedping.client_sim.learning.algorithms import algorithm_for, steps_taken
from fedping.client_sim.learning.batch import FloatArray
from fedping.experiments.laboratory.clock.availability import Windows
from fedping.experiments.laboratory.clock.clock import Clock, People
from fedping.experiments.laboratory.preparing import Problem
from fedping.experiments.laboratory.settings import Setup
from fedping.experiments.laboratory.settings.clock import Amount, LogNormal
from fedping.experiments.laboratory.settings.clock import Clock as Settings
from fedping.protocol.draws import Keys, child_keys, normals
from fedping.protocol.errors import InvalidSettings
from fedping.protocol.training import LocalSteps, OneGradient, Training
from fedping.protocol.upload import receiving

BYTES_OF_WEIGHT = 4
"""Bytes per weight of a version, and of an update that no upload link encodes."""

_EXAMPLE, _ANSWER, _DOWNLOAD, _UPLOAD, _AVAILABLE, _WORK = range(6)
"""Indices of a client's child keys: for each of its amounts, its windows, and its answers."""


def clock_of(setup: Setup, problem: Problem) -> Clock | None:
    """Return the clock of a run; None if its settings have none."""
    if setup.clock is None:
        return None
    sizes = problem.train.sizes
    keys = child_keys(key(problem.seed, "clock"), np.arange(len(sizes)))
    _, most = receiving(problem.line).lengths(problem.spec.m)
    seconds = seconds_of_answers(setup.clock, keys, examples_trained(setup.training, sizes), problem.spec.m, most)
    windows = Windows(setup.clock.available, child_keys(keys, _AVAILABLE))
    may_be_invited = np.zeros(len(sizes), np.bool_)
    may_be_invited[problem.learners] = sizes[problem.learners] > 0
    if not may_be_invited.any():
        raise InvalidSettings("[clock]: all clients lack training examples, so none can be invited. Divide more data")
    people = People(seconds, windows, child_keys(keys, _WORK), may_be_invited)
    oldest = setup.pipeline.staleness.most if setup.pipeline.staleness else 0
    return Clock(setup.clock, people, problem.seed, oldest if setup.clock.counts_late else 0)


def examples_trained(training: Training, sizes: NDArray[np.int64]) -> FloatArray:
    """Return the number of examples that clients process for an answer, counted in each epoch, shape (k,).

    For an extension, the number is its steps times its setting ``batch``, or times all examples without one. If an
    extension doesn't declare its steps, each example counts once.
    """
    if isinstance(training, OneGradient):
        return (sizes if training.batch is None else np.minimum(sizes, training.batch)).astype(np.float64)
    settings: Any = training
    if not isinstance(training, LocalSteps):
        settings = getattr(algorithm_for(training), "instance", None)
    if (epochs := getattr(settings, "epochs", None)) is not None:
        return np.asarray(epochs * sizes, np.float64)
    batch = getattr(settings, "batch", None)
    each = (sizes if batch is None else np.minimum(sizes, batch)).astype(np.float64)
    steps = steps_taken(training, sizes)
    found: FloatArray = np.where(np.isnan(steps), sizes, steps * each)
    return found


def amounts(amount: Amount, keys: Keys) -> FloatArray:
    """Return each client's amount, given a key for each, shape (clients,)."""
    if isinstance(amount, LogNormal):
        return amount.median * np.exp(amount.sigma * normals(keys, 1)[:, 0])
    return np.resize(np.asarray(amount, np.float64), len(keys))


def seconds_of_answers(settings: Settings, keys: Keys, examples: FloatArray, m: int, update_bytes: int) -> FloatArray:
    """Return each client's duration of an answer in seconds, shape (clients,).

    Args:
        settings: the amounts.
        keys: a random key for each client, shape (clients,).
        examples: number of examples that each client processes, shape (clients,).
        m: number of weights of a version.
        update_bytes: bytes of an update.
    """
    seconds = amounts(settings.seconds_per_example, child_keys(keys, _EXAMPLE)) * examples
    if settings.seconds_per_answer is not None:
        seconds += amounts(settings.seconds_per_answer, child_keys(keys, _ANSWER))
    if settings.download_rate is not None:
        seconds += BYTES_OF_WEIGHT * m / amounts(settings.download_rate, child_keys(keys, _DOWNLOAD))
    if settings.upload_rate is not None:
        seconds += update_bytes / amounts(settings.upload_rate, child_keys(keys, _UPLOAD))
    return seconds
