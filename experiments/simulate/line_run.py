"""One model line of a running experiment: its versions over simulated time, and its rounds after ticks."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from fedping.experiments.privacy.mechanisms import SeededNoise
from fedping.experiments.simulate.settings import Experiment, in_minutes
from fedping.model_store.decisions import discard, release, rollback
from fedping.model_store.store import ModelStore
from fedping.model_store.version import Version
from fedping.protocol import __version__
from fedping.protocol.draws import FloatArray, bits, child_keys, root_key
from fedping.protocol.errors import VersionHeld
from fedping.protocol.notation import milliseconds_of, time_at
from fedping.protocol.study import Study
from fedping.server_jobs.privacy.budget import rounds_left, spent
from fedping.server_jobs.privacy.keys import KEY_BYTES
from fedping.server_jobs.round import (
    Engine,
    Provenance,
    RoundOptions,
    RoundResult,
    best_version,
    run_round,
    stop_if_over,
    validation_losses,
)

_COINS = 0xC014
_NOISE = 0x4015


class LineRun:
    """A stored line and its rounds during a simulation.

    Attributes:
        name: the line's name.
        weights: the weights of every version, by its number, as clients get them.
    """

    def __init__(
        self, experiment: Experiment, study: Study, name: str, store: ModelStore, landing: Path, engine: Engine
    ) -> None:
        self.name = name
        self._experiment, self._study = experiment, study
        self._store, self._landing, self._engine = store, landing, engine
        phase = experiment.optimization
        stopping = phase.early_stopping
        others = stopping if stopping and study.arm(stopping.arm).line == name else None
        self._stopping = study.line(name).early_stopping or others
        self._length = in_minutes(phase.length, experiment.tick_ms)
        self._versions: list[Version] = []
        self.weights: dict[int, FloatArray] = {}
        self._read()
        self._stop_as_before()
        self._finish()

    @property
    def rounds(self) -> int:
        """The number of rounds that led to a version, either the round's own or one that the line's guard published."""
        return sum(version.lineage.origin == "round" or by_guard(version) for version in self._versions)

    @property
    def next_tick(self) -> int:
        """The first tick in which the newest version is available."""
        return self._tick_of(self._versions[-1])

    @property
    def done(self) -> bool:
        """Whether the line's optimization has ended."""
        return self._frozen or self._exhausted or self.rounds >= self._experiment.optimization.iterations

    @property
    def _frozen(self) -> bool:
        newest = self._versions[-1]
        return newest.lineage.origin == "rollback" and not by_guard(newest)

    @property
    def _exhausted(self) -> bool:
        """Whether the line is private and has spent its privacy budget."""
        privacy = self._study.line(self.name).privacy
        return privacy is not None and rounds_left(privacy, spent(self._store, self._versions[-1]).releases) == 0

    def newest(self, tick: int) -> NDArray[np.int64]:
        """Return the newest version at the beginning of every tick up to this one, shape (tick + 1,)."""
        since = np.array([self._tick_of(version) for version in self._versions])
        return np.searchsorted(since, np.arange(tick + 1), side="right") - 1

    def after(self, tick: int) -> None:
        """Run a round if the iteration ends with this tick, and freeze the line if that was its last.

        Raises:
            VersionHeld: the line's guard holds the version, and the experiment's setting for this case is to end.
        """
        if self.done or self.next_tick > tick:
            return
        result = run_round(
            self._store,
            self._landing,
            self._study.name,
            self.name,
            self._engine,
            RoundOptions(
                clock=lambda: self._moment(tick + 1),
                code_version=__version__,
                length=self._length,
                early_stopping=self._stopping,
                privacy_key=coins_key(self._experiment.seed) if self._study.is_private else None,
                noise=self._noise if self._study.is_private else None,
            ),
        )
        if result.status == "held":
            self._decide(result, self._moment(tick + 1))
        if result.status in ("published", "stopped", "rolled_back", "held"):
            self._read()
            self._finish()

    @property
    def _noise(self) -> SeededNoise:
        """The noise of the next round, which is the same if the round is repeated."""
        lines = [line.name for line in self._study.lines]
        place = [_NOISE, lines.index(self.name), self._versions[-1].iteration]
        return SeededNoise(np.random.SeedSequence(self._experiment.seed, spawn_key=place))

    def _decide(self, result: RoundResult, moment: str) -> None:
        """Release or discard a held version, or end the simulation, as set in the experiment."""
        match self._experiment.held:
            case "release":
                release(self._store, self._study.name, self.name, created=moment)
            case "discard":
                discard(self._store, self._study.name, self.name, created=moment, code_version=__version__)
            case "end":
                raise VersionHeld(
                    f"the simulation ends because the guard of line '{self.name}' holds version "
                    f'{result.iteration + 1} back: {"; ".join(result.alarms)}. Set held = "release" or '
                    '"discard" in the experiment to continue, and begin in a new folder'
                )

    def _stop_as_before(self) -> None:
        """Stop training if the run was killed between the decision to stop and its effect."""
        if self._stopping and not self._frozen:
            head, moment = self._versions[-1], self._moment(self.next_tick)
            provenance = Provenance(created=moment, code_version=__version__, settings=head.lineage.settings)
            stop_if_over(self._store, self._landing, head, self._stopping, provenance)
            self._read()

    def _finish(self) -> None:
        """Publish the best version again, if validation chooses it and the line has reached its last iteration."""
        if not self._stopping or self._frozen or not self.done:
            return
        head = self._versions[-1].iteration
        losses = validation_losses(self._store, self._study.name, self.name, head, self._stopping)
        best = best_version(losses, self._stopping)
        if best is not None:
            moment = self._moment(self.next_tick)
            rollback(self._store, self._study.name, self.name, best, created=moment, code_version=__version__)
            self._read()

    def _read(self) -> None:
        """Read the versions published since the last call."""
        known = self._versions[-1].iteration if self._versions else -1
        for number in self._store.iterations(self._study.name, self.name):
            if number > known:
                self._take(self._store.version(self._study.name, self.name, number))

    def _take(self, version: Version) -> None:
        self._versions.append(version)
        self.weights[version.iteration] = np.array(version.model)

    def _tick_of(self, version: Version) -> int:
        return (milliseconds_of(version.created) - self._experiment.start_ms) // self._experiment.tick_ms

    def _moment(self, tick: int) -> str:
        return time_at(self._experiment.start_ms + tick * self._experiment.tick_ms)


def coins_key(seed: int) -> bytes:
    """Return the key for the coins of an experiment's private lines. It follows from the seed and isn't stored."""
    return bits(child_keys(root_key(seed), _COINS), KEY_BYTES // 8).astype("<u8").tobytes()


def by_guard(version: Version) -> bool:
    """Return whether a version results from a line's guard: an automatic rollback, or a discarded version."""
    guard = version.lineage.guard
    return guard is not None and guard.decision in ("rolled_back", "discarded")
