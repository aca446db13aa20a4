"""One run: round after round, with evaluations on the validation examples."""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

import msgspec
import numpy as np
from msgspec import UNSET

from fedping.client_sim.learning import Diverged
from fedping.client_sim.learning.batch import FloatArray
from fedping.experiments.environment import Environment, environment_here
from fedping.experiments.laboratory import notes
from fedping.experiments.laboratory.attacking import Attacker
from fedping.experiments.laboratory.evaluate import (
    Measured,
    evaluated_after,
    measure,
    record,
    selection_metric,
    test_metric,
)
from fedping.experiments.laboratory.evaluation import better
from fedping.experiments.laboratory.local_evaluation import BeforeMerging
from fedping.experiments.laboratory.own_models import OwnModels
from fedping.experiments.laboratory.preparing import Problem
from fedping.experiments.laboratory.results import MetricLog, Outcome
from fedping.experiments.laboratory.results.folder import SplitMetrics
from fedping.experiments.laboratory.resuming import Arrays, Checkpoints, as_array, from_array
from fedping.experiments.laboratory.rounds import Rounds, Updates
from fedping.experiments.laboratory.rounds.gossip import GossipRounds
from fedping.experiments.laboratory.rounds.memory import MemoryRounds
from fedping.experiments.laboratory.settings import Setup
from fedping.experiments.laboratory.stopping import Watchman
from fedping.protocol.extensions import ExtensionFailed

OnRound: TypeAlias = Callable[[int], None]
OnBest: TypeAlias = Callable[[FloatArray, int], None]
"""Is told the weights of the best version so far, and after how many rounds it was there."""

Sent: TypeAlias = Callable[[int, Sequence[FloatArray]], Iterable[Updates]]
"""From a round's number, from 0, and the versions that clients may hold, the newest first, to what they send."""


@dataclass
class Trained:
    """The state of a run, and in the end its result."""

    log: MetricLog
    weights: FloatArray
    best: FloatArray
    watchman: Watchman
    start: Measured = field(default_factory=dict)
    final: Measured = field(default_factory=dict)
    rounds: int = 0
    versions: int = 0
    updates: int = 0
    update_bytes: int = 0
    posted_bytes: int = 0
    fetched_bytes: int = 0
    to_target: int | None = None
    notes: tuple[str, ...] = ()
    held: deque[FloatArray] = field(default_factory=deque)
    began: float = field(default_factory=time.monotonic)
    environments: tuple[Environment, ...] = ()

    def snapshot(self) -> Arrays:
        """Return the state without the log; see :class:`fedping.experiments.laboratory.resuming.Part`."""
        counts = {name: getattr(self, name) for name in ("start", "final", *_COUNTS)}
        watched = {name: getattr(self.watchman, name) for name in _WATCHED}
        return {
            "said": as_array(counts | watched | {"seconds": time.monotonic() - self.began, "notes": self.notes}),
            "environments": as_array(msgspec.to_builtins((*self.environments, environment_here()))),
            "weights": self.weights,
            "best": self.best,
            "held": np.array(self.held),
        }

    def restore(self, saved: Arrays) -> None:
        """Continue from there."""
        said = from_array(saved["said"])
        self.began = time.monotonic() - said["seconds"]
        for name in ("start", "final", *_COUNTS):
            setattr(self, name, said.get(name, 0))  # 0 of bytes that an earlier fedping did not count, or not so named
        self.notes = tuple(said.get("notes", ()))
        before = from_array(saved["environments"]) if "environments" in saved else ()  # an earlier fedping has none
        self.environments = tuple(dict.fromkeys(msgspec.convert(before, list[Environment])))
        for name in _WATCHED:
            setattr(self.watchman, name, said[name])
        self.weights, self.best = saved["weights"], saved["best"]
        self.held.clear()
        self.held.extend(saved["held"])


_BYTES = ("update_bytes", "posted_bytes", "fetched_bytes")
"""What is counted of a round's report, and measured of every round."""

_COUNTS = ("rounds", "versions", "updates", *_BYTES, "to_target")
_WATCHED = ("best_round", "best_value", "evaluations_since", "stop")


def train(
    setup: Setup,
    problem: Problem,
    rounds: Rounds,
    sent: Sent,
    log: MetricLog,
    on_round: OnRound = lambda _: None,
    before: BeforeMerging | None = None,
    checkpoints: Callable[[Trained], Checkpoints] | None = None,
    attacker: Attacker | None = None,
    own: OwnModels | None = None,
    on_best: OnBest = lambda *_: None,
) -> Trained:
    """Run the rounds of a setup, until the last or until it stops early, and return the result.

    A round in which too few clients took part makes no version; it counts, and the next one begins with the same. A run
    that diverges ends there, with a note; without early stopping it has no final metrics. ``on_round`` is told how many
    rounds are over, from 0, when all that was measured by then is in the log. ``before`` measures what clients train.
    With ``checkpoints`` a run that was killed goes on. ``attacker`` tells how far an attack has come. ``own`` measures
    what clients predict with; what they keep is that of the best version only as long as ``on_best`` is told of it.
    """
    held = deque([rounds.weights], maxlen=len(setup.lateness.shares) if setup.lateness else 1)
    done = Trained(log, rounds.weights, rounds.weights, Watchman(setup.early_stopping), held=held)
    kept = checkpoints(done) if checkpoints else None

    def figures() -> Measured:
        found: Measured = {}
        if attacker and (of_attack := attacker.measured(done.weights)):
            found["attack"] = of_attack
        if isinstance(rounds, MemoryRounds) and rounds.spent:
            found["privacy"] = rounds.spent
        if isinstance(rounds, GossipRounds):
            found |= {split: dict(metrics) for split, metrics in rounds.measured().items()}
        return found

    def look(beside: Measured) -> Measured:
        found = beside | (own.measure(done.weights, done.rounds) if own else {})
        return _look(setup, problem, done, found, on_best)

    if kept is None or not kept.restored():
        done.start = look(figures())
        done.notes = kept.notes if kept else ()
    on_round(done.rounds)
    while done.rounds < setup.most_rounds and not done.watchman.stop:
        try:
            report = rounds.run(sent(done.rounds, held))
        except ExtensionFailed as error:
            raise ExtensionFailed(f"in round {done.rounds + 1}: {error}") from error
        except Diverged as error:
            done.notes = (*done.notes, f"stopped in round {done.rounds + 1}: {error}")
            done.final = done.final if setup.early_stopping else {}
            break
        travelled = {name: getattr(report, name) for name in _BYTES}
        log.add(done.rounds, "train", {"loss": report.loss, "clients": report.clients} | travelled)
        done.rounds += 1
        done.updates += report.pings
        for name, number in travelled.items():
            setattr(done, name, getattr(done, name) + number)
        done.weights = rounds.weights
        if report.stepped:
            done.versions += 1
            held.appendleft(rounds.weights)
        if evaluated_after(setup, done.rounds):
            look((before.taken() if before else {}) | figures())
        if kept:
            kept.write()
        on_round(done.rounds)
    began, ended = done.start.get(test_metric(setup), {}), done.final.get(test_metric(setup), {})
    done.notes = (
        *done.notes,
        *notes.of_rounds(setup, done.rounds, done.versions),
        # Under attack nobody's rate is to blame.
        *(() if attacker else notes.of_end(deciding_metric(setup, problem), began, ended)),
    )
    return done


def deciding_metric(setup: Setup, problem: Problem) -> str:
    """Return the metric that determines the best variant."""
    return setup.evaluation.metric or problem.tally.headline[0]


def _look(setup: Setup, problem: Problem, done: Trained, beside: Measured, on_best: OnBest) -> Measured:
    """Measure the newest version, and return that with what is known beside it; keep it if it is the best so far."""
    problem = problem.after(done.rounds)
    try:
        measured = measure(problem, done.weights, setup.evaluation.local) | beside
    except ExtensionFailed as error:
        raise ExtensionFailed(f"after round {done.rounds}: {error}") from error
    record(done.log, done.rounds, measured)
    if done.watchman.see(done.rounds, measured.get(selection_metric(setup), {})):
        done.best, done.final = done.weights, measured
        on_best(done.weights, done.rounds)
    if done.to_target is None and setup.evaluation.target is not None:
        metric = deciding_metric(setup, problem)
        judging = measured.get(selection_metric(setup), measured.get(test_metric(setup), {}))
        if metric in judging and not better(metric, setup.evaluation.target, judging[metric]):
            done.to_target = done.rounds
    return measured


def outcome_of(done: Trained, setup: Setup, problem: Problem, started: float) -> Outcome:
    """Return a finished run's outcome; ``started`` is by ``time.monotonic``."""
    return Outcome(
        variant=done.log.variant,
        seed=done.log.seed,
        fold=done.log.fold,
        rounds=done.rounds,
        best_round=done.watchman.best_round,
        final=_without_nan(done.final),
        versions=done.versions,
        to_target=done.to_target,
        updates=done.updates,
        **{name: getattr(done, name) for name in _BYTES},
        clients=len(problem.train),
        shown=tuple(dict.fromkeys((deciding_metric(setup, problem), *problem.tally.headline))),
        split=test_metric(setup),
        notes=done.notes,
        seconds=time.monotonic() - min(started, done.began),
        auc="exact" if problem.tally.by_rank else UNSET,
    )


def _without_nan(measured: Measured) -> SplitMetrics:
    return {
        split: {name: None if math.isnan(value) else value for name, value in metrics.items()}
        for split, metrics in measured.items()
    }
