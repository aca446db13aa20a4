"""Opens the rounds of a run at the place that its settings name: memory, files, HTTP, or no server at all."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from fedping.client_sim.learning import ClientStates
from fedping.experiments.laboratory.attacking import invented_and_real
from fedping.experiments.laboratory.preparing import Problem
from fedping.experiments.laboratory.rounds.co_op import CoOpRounds
from fedping.experiments.laboratory.rounds.gossip import GossipRounds
from fedping.experiments.laboratory.rounds.inside import between
from fedping.experiments.laboratory.rounds.memory import MemoryChannel
from fedping.experiments.laboratory.rounds.server import Channel, Rounds, ServerRounds
from fedping.experiments.laboratory.rounds.several import several_rounds
from fedping.experiments.laboratory.rounds.study import study_of
from fedping.experiments.laboratory.settings import Setup
from fedping.protocol.study import Study
from fedping.protocol.upload import receiving
from fedping.server_jobs.round import refuse_senders


@contextmanager
def open_rounds(setup: Setup, problem: Problem, folder: Path, states: ClientStates | None = None) -> Iterator[Rounds]:
    """Yield the rounds of a run, and at the end stop all processes that they started.

    Args:
        setup: the settings.
        problem: has the line and the clients' ids.
        folder: an empty folder, which gets ``store`` and ``landing`` unless the rounds are in memory.
        states: the store of clients' states, for compiled rounds where clients train; in memory if None.

    Raises:
        FedpingError: ingest or Spark does not start, or the server end of an upload link is missing.
    """
    if setup.co_op:
        yield CoOpRounds(setup, problem)
        return
    if setup.gossip:
        yield GossipRounds(setup, problem)
        return
    if setup.hierarchy or setup.clusters:
        yield several_rounds(setup, problem)
        return
    if setup.engine == "jax" and not between(setup):
        from fedping.experiments.laboratory.rounds.compiled import CompiledRounds

        yield CompiledRounds(setup, problem, states)
        return
    most = setup.limits.examples if setup.limits else None
    study = study_of(problem.line, most)
    receiving(problem.line)  # raises before the first round
    with _channel(setup, study, problem, folder) as channel:
        yield ServerRounds(channel)


def groups_of(problem: Problem, clients: int) -> NDArray[np.int64]:
    """Return the number of each client's natural key, in ascending order of the keys; -1 for clients without one."""
    found = np.full(clients, -1)
    keys = getattr(problem.train, "natural_keys", None)
    if keys is not None:
        found[: len(keys)] = np.unique(keys, return_inverse=True)[1]
    return found


@contextmanager
def _channel(setup: Setup, study: Study, problem: Problem, folder: Path) -> Iterator[Channel]:
    if setup.privacy is not None:
        from fedping.experiments.laboratory.rounds.private import PrivateChannel

        yield PrivateChannel(study, problem)
        return
    ids = invented_and_real(problem, setup.attack)
    if setup.where == "memory":
        most = study.limits.examples if study.limits else None
        groups = groups_of(problem, len(ids))
        yield MemoryChannel(study.lines[0], ids, problem.seed, most_examples=most, groups=groups)
        return
    refuse_senders(study.lines[0])
    from fedping.experiments.laboratory.rounds.landed import FileChannel, new_line, over_http
    from fedping.server_jobs.round import engine_named

    with engine_named(setup.engine) as engine:
        line = new_line(study, folder, engine)
        if setup.where == "files":
            yield FileChannel(line, ids)
            return
        from fedping.experiments.server_process import ingest_process

        with (
            ingest_process(folder / "store", line.landing, folder / "ingest.log") as ingest,
            over_http(line, ids, ingest) as channel,
        ):
            yield channel
