"""The results of an experiment with a private study: what its rounds have released and spent, and nothing else.

Its pings are gone, and nothing exact was written down. What is told here follows from the lineages of its versions, as
it does in a real private study.
"""

from __future__ import annotations

from msgspec import Struct

from fedping.analysis.private import PrivateResult, private_result
from fedping.experiments.simulate.settings import Experiment
from fedping.model_store.store import ModelStore
from fedping.protocol.study import Study
from fedping.server_jobs.privacy.budget import SIMULATED, LineSpent, spent_by


class PrivateLineFigures(Struct, frozen=True, kw_only=True):
    """One line: its newest version, what its rounds have spent, and whether the guarantee allows no further one."""

    version: int
    spent: LineSpent
    exhausted: bool


class PrivateSummary(Struct, frozen=True, kw_only=True):
    """A whole experiment with a private study; ``results`` have the noise and its errors in them."""

    study: str
    seed: int
    clients: int
    lines: dict[str, PrivateLineFigures]
    results: PrivateResult
    caution: str = SIMULATED


def private_summary(experiment: Experiment, study: Study, store: ModelStore) -> PrivateSummary:
    """Return the summary of a finished run."""
    lines = {}
    for line in study.lines:
        spent = spent_by(store, study, line)
        head = store.head(study.name, line.name)
        lines[line.name] = PrivateLineFigures(version=head.iteration, spent=spent, exhausted=spent.rounds_left == 0)
    return PrivateSummary(
        study=study.name,
        seed=experiment.seed,
        clients=experiment.clients,
        lines=lines,
        results=private_result(store, study),
    )
