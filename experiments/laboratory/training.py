"""One run: round after round, with evaluations, early stopping (thesis 3.4; Prechelt 1998) and checkpoints."""

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
from fedping.client_sim.learning.batch import FloatArray, TroubleOfNamed
from fedping.experiments.laboratory import notes
from fedping.experiments.laboratory.attacking import Attacker
from fedping.experiments.laboratory.clock import Clock
from fedping.experiments.laboratory.evaluation import (
    BeforeMerging,
    Measured,
    OwnModels,
    evaluated_after,
    measure,
    record,
    selection_metric,
    test_metric,
)
from fedping.experiments.laboratory.preparing import Problem
from fedping.experiments.laboratory.results import MetricLog, Outcome, SplitMetrics
from fedping.experiments.laboratory.resuming import Arrays, Checkpoints, as_array, from_array
from fedping.experiments.laboratory.rounds import RoundReport, Rounds, Updates
from fedping.experiments.laboratory.settings import Setup
from fedping.experiments.laboratory.settings.setup import EarlyStopping
from fedping.experiments.laboratory.tallies import better
from fedping.experiments.run_folder import Environment, environment_here
from fedping.protocol.errors import sentences_with
from fedping.protocol.extensions import ExtensionFailed


@dataclass
class Watchman:
    """Early stopping by the validation metric; without settings, never, and the last version is the best."""

    settings: EarlyStopping | None
    best_round: int = 0
    best_value: float = math.nan
    evaluations_since: int = 0
    stop: bool = False

    def see(self, round_: int, validation: dict[str, float]) -> bool:
        """Record an evaluation; return whether this version is the best so far."""
        if self.settings is None:
            self.best_round = round_
            return True
        value = validation[self.settings.metric]
        if better(self.settings.metric, value, self.best_value):
            self.best_round, self.best_value, self.evaluations_since = round_, value, 0
            return True
        self.evaluations_since += 1
        self.stop = self._had_enough(self.settings, value)
        return False

    def _had_enough(self, settings: EarlyStopping, value: float) -> bool:
        if settings.patience is not None and self.evaluations_since >= settings.patience:
            return True
        return settings.rise is not None and abs(value - self.best_value) > settings.rise * abs(self.best_value)


Sent: TypeAlias = Callable[[int, Sequence[FloatArray]], Iterable[Updates]]
"""Maps a round's number, from 0, and the versions that clients may hold, newest first, to the clients' updates."""


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
    estimated: bool = False
    to_target: int | None = None
    hours: float | None = None
    hours_to_target: float | None = None
    notes: tuple[str, ...] = ()
    held: deque[FloatArray] = field(default_factory=deque)
    began: float = field(default_factory=time.monotonic)
    environments: tuple[Environment, ...] = ()

    def add(self, report: RoundReport, clock: Clock | None = None) -> None:
        """Add a finished round to the counts and to the log."""
        traffic = {name: getattr(report, name) for name in _BYTES}
        timed = clock.measured() if clock else {}
        self.log.add(self.rounds, "train", {"loss": report.loss, "clients": report.clients} | traffic | timed)
        self.hours = clock.hours if clock else None
        self.rounds += 1
        self.updates += report.pings
        self.estimated = self.estimated or report.estimated
        for name, number in traffic.items():
            setattr(self, name, getattr(self, name) + number)

    def snapshot(self) -> Arrays:
        """Return the state without the log; see :class:`fedping.experiments.laboratory.resuming.Part`."""
        counts = {name: getattr(self, name) for name in ("start", "final", *_COUNTS, *_HOURS)}
        watched = {name: getattr(self.watchman, name) for name in _WATCHED}
        return {
            "said": as_array(counts | watched | {"seconds": time.monotonic() - self.began, "notes": self.notes}),
            "environments": as_array(msgspec.to_builtins((*self.environments, environment_here()))),
            "weights": self.weights,
            "best": self.best,
            "held": np.array(self.held),
        }

    def restore(self, saved: Arrays) -> None:
        """Resume from a snapshot."""
        counts = from_array(saved["said"])
        self.began = time.monotonic() - counts["seconds"]
        for name in ("start", "final", *_COUNTS):
            setattr(self, name, counts.get(name, 0))  # an earlier fedping lacks some
        for name in _HOURS:
            setattr(self, name, counts.get(name))
        self.notes = tuple(counts.get("notes", ()))
        before = from_array(saved["environments"]) if "environments" in saved else ()  # an earlier fedping has none
        self.environments = tuple(dict.fromkeys(msgspec.convert(before, list[Environment])))
        for name in _WATCHED:
            setattr(self.watchman, name, counts[name])
        self.weights, self.best = saved["weights"], saved["best"]
        self.held.clear()
        self.held.extend(saved["held"])


_BYTES = ("update_bytes", "posted_bytes", "fetched_bytes")
"""The counts of a round's report that are also metrics of each round."""

_COUNTS = ("rounds", "versions", "updates", *_BYTES, "estimated", "to_target")
_HOURS = ("hours", "hours_to_target")
_WATCHED = ("best_round", "best_value", "evaluations_since", "stop")


@dataclass(frozen=True, kw_only=True)
class Observers:
    """The observers of a run other than the log.

    Attributes:
        before: measures the models that clients train, before they are merged.
        attacker: measures an attack's success.
        own: measures the clients' models for predictions.
        clock: the run's simulated time.
        checkpoints: returns the checkpoints of a run, so that a killed run continues; None to start again.
        on_round: called with the number of finished rounds, from 0, when their metrics are in the log.
        on_best: called with the weights of the best version so far and its number of rounds. The clients' state belongs
            to the best version only during this call.
    """

    before: BeforeMerging | None = None
    attacker: Attacker | None = None
    own: OwnModels | None = None
    clock: Clock | None = None
    checkpoints: Callable[[Trained], Checkpoints] | None = None
    on_round: Callable[[int], None] = lambda _: None
    on_best: Callable[[FloatArray, int], None] = lambda *_: None


def train(
    setup: Setup, problem: Problem, rounds: Rounds, sent: Sent, log: MetricLog, observers: Observers | None = None
) -> Trained:
    """Run the rounds of a setup until the last one, or until early stopping, and return the result.

    A round with too few clients publishes no version; it counts, and the next round starts from the same version. A run
    that diverges ends there, with a note; without early stopping it has no final metrics.
    """
    observers = observers or Observers()
    held = deque([rounds.weights], maxlen=setup.versions_held)
    run = Trained(log, rounds.weights, rounds.weights, Watchman(setup.early_stopping), held=held)
    clock = observers.clock
    run.hours = clock.hours if clock else None
    checkpoints = observers.checkpoints(run) if observers.checkpoints else None
    attacker, before, own = observers.attacker, observers.before, observers.own

    def figures() -> Measured:
        attack = attacker.measured(run.weights) if attacker else {}
        of_rounds = {split: dict(metrics) for split, metrics in rounds.measured().items()}
        return ({"attack": attack} if attack else {}) | of_rounds

    def evaluated(figures: Measured) -> Measured:
        figures = figures | (own.measure(run.weights, run.rounds) if own else {})
        return _evaluated(setup, problem, run, figures, observers.on_best)

    if checkpoints is None or not checkpoints.restored():
        run.start = evaluated(figures())
        run.notes = checkpoints.notes if checkpoints else ()
    observers.on_round(run.rounds)
    while run.rounds < setup.most_rounds and not run.watchman.stop and not (clock and clock.over):
        try:
            before_it = f"in round {run.rounds + 1}: "
            with sentences_with(before_it, kind=ExtensionFailed), sentences_with(before_it, kind=TroubleOfNamed):
                report = rounds.run(sent(run.rounds, rounds.start_weights(held)))
        except Diverged as error:
            run.weights = rounds.weights
            run.notes = (*run.notes, f"stopped in round {run.rounds + 1}: {error}")
            run.final = run.final if setup.early_stopping else {}
            break
        run.add(report, clock)
        run.weights = rounds.weights
        if report.stepped:
            run.versions += 1
            if clock:
                clock.published()
            held.appendleft(rounds.weights)
        if evaluated_after(setup, run.rounds) or (clock and clock.over):
            evaluated((before.taken() if before else {}) | figures())
        if checkpoints:
            checkpoints.write()
        observers.on_round(run.rounds)
    start, final = run.start.get(test_metric(setup), {}), run.final.get(test_metric(setup), {})
    run.notes = (
        *run.notes,
        *notes.of_rounds(setup, run.rounds, run.versions),
        # Under attack, the rates are not to blame.
        *(() if attacker else notes.of_end(deciding_metric(setup, problem), start, final)),
    )
    return run


def deciding_metric(setup: Setup, problem: Problem) -> str:
    """Return the metric that determines the best variant."""
    return setup.evaluation.metric or problem.tally.headline[0]


def _evaluated(
    setup: Setup, problem: Problem, run: Trained, figures: Measured, on_best: Callable[[FloatArray, int], None]
) -> Measured:
    """Return the newest version's metrics together with ``figures``; store the version if it is the best so far."""
    problem = problem.after(run.rounds)
    after_it = f"after round {run.rounds}: "
    with sentences_with(after_it, kind=ExtensionFailed), sentences_with(after_it, kind=TroubleOfNamed):
        measured = measure(problem, run.weights, setup.evaluation.local) | figures
    record(run.log, run.rounds, measured)
    if run.watchman.see(run.rounds, measured.get(selection_metric(setup), {})):
        run.best, run.final = run.weights, measured
        on_best(run.weights, run.rounds)
    if run.to_target is None and setup.evaluation.target is not None:
        metric = deciding_metric(setup, problem)
        decisive = measured.get(selection_metric(setup), measured.get(test_metric(setup), {}))
        if metric in decisive and not better(metric, setup.evaluation.target, decisive[metric]):
            run.to_target, run.hours_to_target = run.rounds, run.hours
    return measured


def outcome_of(run: Trained, setup: Setup, problem: Problem, started: float) -> Outcome:
    """Return the outcome of a finished run; ``started`` is its start by ``time.monotonic``, in seconds."""
    return Outcome(
        variant=run.log.variant,
        seed=run.log.seed,
        fold=run.log.fold,
        rounds=run.rounds,
        best_round=run.watchman.best_round,
        final=_without_nan(run.final),
        versions=run.versions,
        to_target=run.to_target,
        updates=run.updates,
        **{name: getattr(run, name) for name in _BYTES},
        traffic="estimated" if run.estimated else UNSET,
        clients=len(problem.train),
        shown=tuple(dict.fromkeys((deciding_metric(setup, problem), *problem.tally.headline))),
        split=test_metric(setup),
        notes=run.notes,
        seconds=time.monotonic() - min(started, run.began),
        simulated_hours=UNSET if run.hours is None else run.hours,
        hours_to_target=UNSET if run.hours is None else run.hours_to_target,
        auc="exact" if problem.tally.by_rank else UNSET,
    )


def _without_nan(measured: Measured) -> SplitMetrics:
    return {
        split: {name: None if math.isnan(value) else value for name, value in metrics.items()}
        for split, metrics in measured.items()
    }
