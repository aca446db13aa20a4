"""Timing of single rounds of a laboratory experiment in memory, with the same code as `fedping simulate`."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from fedping.client_sim.data import Iid
from fedping.client_sim.learning import ClientData, learner_for
from fedping.experiments.laboratory.cohort import Cohorts
from fedping.experiments.laboratory.preparing import Problem
from fedping.experiments.laboratory.rounds.memory import MemoryChannel
from fedping.experiments.laboratory.rounds.private import PrivateChannel
from fedping.experiments.laboratory.rounds.server import ServerRounds
from fedping.experiments.laboratory.rounds.study import study_of
from fedping.experiments.laboratory.settings import Setup
from fedping.experiments.laboratory.settings.data import Data
from fedping.experiments.laboratory.settings.setup import Evaluation
from fedping.experiments.laboratory.tallies import Regression
from fedping.protocol.pipeline import Pipeline
from fedping.protocol.privacy import Privacy
from fedping.protocol.spec import ModelSpec
from fedping.protocol.training import Training


class TimedRounds:
    """Timed rounds in which all clients train, without evaluations.

    Args:
        spec: the model.
        data: the data of all clients.
        training: settings of the clients' training.
        server: settings of the server.
        privacy: settings of private rounds, with the noise multiplier.
        seed: seed of private rounds' noise.
    """

    def __init__(
        self,
        spec: ModelSpec,
        data: ClientData[Any],
        training: Training,
        server: Pipeline,
        privacy: Privacy | None = None,
        seed: int = 1,
    ) -> None:
        setup, problem = _given(spec, data, training, server, seed, privacy=privacy, rounds=1)
        line = problem.line
        channel = PrivateChannel(study_of(line), problem) if privacy else MemoryChannel(line, problem.ids)
        self.rounds = ServerRounds(channel)
        self._cohorts = Cohorts(setup, problem)
        self._number = 0

    def seconds(self, clock: Callable[[], float] = time.perf_counter) -> float:
        """Run one round and return its duration."""
        begin = clock()
        self.rounds.run(self._cohorts.sent(self._number, [self.rounds.weights]))
        self._number += 1
        return clock() - begin


class CompiledTimed:
    """Timed rounds, compiled by JAX, in which all clients train, without evaluations.

    Args:
        spec: the model.
        data: the data of all clients.
        training: settings of the clients' training.
        server: settings of the server.
        at_once: number of rounds per call.
    """

    def __init__(
        self, spec: ModelSpec, data: ClientData[Any], training: Training, server: Pipeline, at_once: int
    ) -> None:
        from fedping.experiments.laboratory.rounds.compiled import CompiledRounds

        evaluation = Evaluation(every=at_once)
        setup, problem = _given(spec, data, training, server, 1, rounds=10**6, engine="jax", evaluation=evaluation)
        self.rounds, self._at_once = CompiledRounds(setup, problem), at_once

    def seconds(self, clock: Callable[[], float] = time.perf_counter) -> float:
        """Run a call, and return the mean duration of its rounds."""
        begin = clock()
        for _ in range(self._at_once):
            self.rounds.run([])
        return (clock() - begin) / self._at_once


def _given(
    spec: ModelSpec, data: ClientData[Any], training: Training, server: Pipeline, seed: int, **more: Any
) -> tuple[Setup, Problem]:
    """Return the settings of rounds in which all clients train, with ``more`` settings, and the problem to train on."""
    setup = Setup(
        model={"name": spec.model},
        data=Data(name="given"),
        partition=Iid(clients=len(data)),
        training=training,
        pipeline=server,
        **more,
    )
    line = setup.line(spec)
    return setup, Problem(line, learner_for(spec, training), data, data, data, Regression(), seed=seed)
