"""Open the rounds of a run at the place that its settings name."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from fedping.experiments.laboratory.attacking import invented_and_real
from fedping.experiments.laboratory.preparing import Problem
from fedping.experiments.laboratory.rounds.co_op import CoOpRounds
from fedping.experiments.laboratory.rounds.gossip import GossipRounds
from fedping.experiments.laboratory.rounds.memory import MemoryRounds
from fedping.experiments.laboratory.rounds.study import study_of
from fedping.experiments.laboratory.rounds.updates import Carrier, Rounds
from fedping.experiments.laboratory.settings import Setup
from fedping.protocol.upload import receiving


@contextmanager
def open_rounds(setup: Setup, problem: Problem, folder: Path) -> Iterator[Rounds]:
    """Yield the rounds of a run; whatever they start is stopped in the end.

    Args:
        setup: the settings.
        problem: has the model's spec and the clients' ids.
        folder: an empty one, which gets ``store`` and ``landing`` unless the rounds are in memory.

    Raises:
        FedpingError: ingest or Spark does not start, or the server end of an upload link is missing.
    """
    if setup.co_op:
        yield CoOpRounds(setup, problem)
        return
    if setup.gossip:
        yield GossipRounds(setup, problem)
        return
    most = setup.limits.examples if setup.limits else None
    study = study_of(problem.spec, setup.training, setup.server, setup.upload, setup.privacy, most)
    receiving(study.lines[0])  # now, and not in the first round
    if setup.privacy is not None:
        from fedping.experiments.laboratory.rounds.private import PrivateRounds

        yield PrivateRounds(study, problem)
        return
    if setup.where == "memory":
        ids = invented_and_real(problem, setup.attack)
        yield MemoryRounds(study.lines[0], ids, problem.seed, most_examples=most)
        return
    from fedping.experiments.laboratory.rounds.landed import LandedRounds, landing_of, store_with
    from fedping.server_jobs.round import engine_named

    store = store_with(study, folder)
    with engine_named(setup.engine) as engine, _carrier(setup, folder, problem) as carrier:
        yield LandedRounds(store, landing_of(folder), study, engine, carrier)


@contextmanager
def _carrier(setup: Setup, folder: Path, problem: Problem) -> Iterator[Carrier]:
    from fedping.experiments.laboratory.rounds.landed import FileCarrier, landing_of

    ids = invented_and_real(problem, setup.attack)
    if setup.where == "files":
        yield FileCarrier(landing_of(folder), ids)
        return
    from fedping.experiments.ingest_process import ingest_process
    from fedping.experiments.laboratory.rounds.http import over_http

    with (
        ingest_process(folder / "store", landing_of(folder), folder / "ingest.log") as ingest,
        over_http(ingest, ids) as carrier,
    ):
        yield carrier
