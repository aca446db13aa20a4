"""Run one unit from its settings into its folder."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import TypeAlias

from fedping.client_sim.learning import algorithm_for, bare
from fedping.client_sim.learning.algorithm import Personalizes
from fedping.client_sim.learning.batch import FloatArray
from fedping.client_sim.upload import first_state
from fedping.experiments.laboratory.attacking import Attacker
from fedping.experiments.laboratory.baselines import run_baseline
from fedping.experiments.laboratory.cohort import Cohorts
from fedping.experiments.laboratory.evaluation import BeforeMerging, OwnModels, by_client
from fedping.experiments.laboratory.notes import of_problem
from fedping.experiments.laboratory.preparing import Problem, prepare
from fedping.experiments.laboratory.results import MetricLog, Outcome, ProgressFile, Row, RunFolder
from fedping.experiments.laboratory.resuming import CHECKPOINT, SENT, Checkpoints, MappedStates, Part
from fedping.experiments.laboratory.rounds import open_rounds
from fedping.experiments.laboratory.rounds.several import SeveralRounds
from fedping.experiments.laboratory.training import Observers, Trained, outcome_of, train
from fedping.experiments.laboratory.units import Unit
from fedping.protocol.errors import InvalidSettings, sentences_with
from fedping.protocol.upload import sending

OnRound: TypeAlias = Callable[[int, Sequence[Row]], None]
"""Called with the number of finished rounds, from 0, and the new measurements since the last call."""


def run_unit(unit: Unit, out: Path, on_round: OnRound = lambda *_: None, threads: int = 1) -> Outcome:
    """Run a unit, unless it is finished, and return its outcome; its folder then holds all results.

    ``threads`` is the number of threads for the clients of a round; the outcome does not depend on it. ``on_round`` is
    not called for baselines.

    Raises:
        FedpingError: the settings do not fit the data or the model, or a package is missing.
    """
    folder = unit.folder(out)
    if (outcome := folder.finished()) is not None:
        return outcome
    with sentences_with(unit.where, kind=InvalidSettings):
        return _run(unit, folder, on_round, threads)


def _run(unit: Unit, folder: RunFolder, on_round: OnRound, threads: int) -> Outcome:
    started = time.monotonic()
    if not (folder.path / CHECKPOINT).is_file():
        folder.begin()
    problem = prepare(unit.setup, unit.seed, unit.fold)
    log = MetricLog(unit.name, unit.seed, unit.fold)
    if unit.baseline is None:
        done = _trained(unit, problem, folder, log, on_round, threads)
    else:
        problem = problem.undivided
        done = run_baseline(unit.baseline, unit.setup, problem, log)
    outcome = outcome_of(done, unit.setup, problem, started)
    if unit.setup.evaluation.local and done.final and not folder.has_clients:
        folder.write_clients(by_client(problem.after(outcome.best_round), done.best))
    folder.finish(outcome, log.table(), done.best, done.weights, done.environments)
    return outcome


def _trained(
    unit: Unit, problem: Problem, folder: RunFolder, log: MetricLog, on_round: OnRound, threads: int
) -> Trained:
    setup = unit.setup
    before = BeforeMerging(problem) if setup.evaluation.trained else None
    attacker = Attacker(setup.attack, setup, problem) if setup.attack else None
    algorithm = algorithm_for(setup.training)
    states = MappedStates(folder.path, algorithm.init_state(bare(problem.model)), len(problem.train))
    personalizes = isinstance(algorithm, Personalizes) and not setup.co_op
    predicts_alone = personalizes or setup.clusters is not None or setup.evaluation.decided_by == "personal"
    own = OwnModels(setup, problem, states) if predicts_alone else None
    sent = MappedStates(folder.path, first_state(sending(problem.line), problem.spec.m), len(problem.train), SENT)
    cohorts = Cohorts(setup, problem, threads, before, attacker, states, sent)
    states.check_size(cohorts.most_training)
    sent.check_size(cohorts.most_training)

    def write_clients(weights: FloatArray, rounds: int) -> None:
        if own and setup.evaluation.local:
            folder.write_clients(by_client(problem.after(rounds), weights, own, rounds))

    with (
        closing(states),
        closing(sent),
        open_rounds(setup, problem, folder.path, states) as rounds,
        ProgressFile(folder.path, log) as progress,
    ):
        several = rounds if isinstance(rounds, SeveralRounds) else None
        if own:
            own.several = several

        def checkpoints(run: Trained) -> Checkpoints:
            assert rounds.checkpoint is not None
            parts: dict[str, Part] = {
                "clients": states,
                "sent": sent,
                "rounds": rounds.checkpoint,
                "log": log,
                "run": run,
            }
            parts |= {"attacker": attacker} if attacker else {}
            parts |= {"past": cohorts.participation} if cohorts.participation else {}
            parts |= {"clock": cohorts.clock} if cohorts.clock else {}
            return Checkpoints(folder.path, parts)

        observers = Observers(
            before=before,
            attacker=attacker,
            own=own,
            clock=cohorts.clock,
            checkpoints=checkpoints if rounds.checkpoint is not None else None,
            on_round=lambda number: on_round(number, progress.write()),
            on_best=write_clients if setup.early_stopping else lambda *_: None,
        )
        run = train(setup, problem, rounds, cohorts.sent, log, observers)
        if not setup.early_stopping and run.final:
            write_clients(run.best, run.watchman.best_round)
        if several:
            folder.write_models(several.models)
    return replace(run, notes=(*of_problem(setup, problem), *cohorts.notes, *getattr(rounds, "notes", ()), *run.notes))
