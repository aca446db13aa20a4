"""One model line of a running experiment: its versions by simulated time, and the steps after each tick."""

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
    """A line as stored, and the rounds still to come.

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
        """The number of rounds that have led to a version: their own, or one that the line's guard has put there."""
        return sum(version.lineage.origin == "round" or by_guard(version) for version in self._versions)

    @property
    def next_tick(self) -> int:
        """The first tick with the newest version available."""
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
        """Whether the line is private, and has spent what its guarantee allows."""
        privacy = self._study.line(self.name).privacy
        return privacy is not None and rounds_left(privacy, spent(self._store, self._versions[-1]).releases) == 0

    def newest(self, tick: int) -> NDArray[np.int64]:
        """Return the newest version at the beginning of every tick up to this one, shape (tick + 1,)."""
        since = np.array([self._tick_of(version) for version in self._versions])
        return np.searchsorted(since, np.arange(tick + 1), side="right") - 1

    def after(self, tick: int) -> None:
        """Run a round if the iteration ends with this tick, and freeze the line if that was its last.

        Raises:
            VersionHeld: the line's guard holds the version back, and the experiment says to end then.
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
        """The noise of the next round: the same whenever that is made again."""
        lines = [line.name for line in self._study.lines]
        place = [_NOISE, lines.index(self.name), self._versions[-1].iteration]
        return SeededNoise(np.random.SeedSequence(self._experiment.seed, spawn_key=place))

    def _decide(self, result: RoundResult, moment: str) -> None:
        """Do with the version that is held what the experiment says."""
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
        """Stop training if a round was killed just after it had found the end."""
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
        """Take the versions that have been published since."""
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
    """Return the key of the coins of an experiment's private lines; it is not stored, as it follows from the seed."""
    return bits(child_keys(root_key(seed), _COINS), KEY_BYTES // 8).astype("<u8").tobytes()


def by_guard(version: Version) -> bool:
    """Return whether a line's guard has led to a version: it rolled the line back, or what it held was discarded."""
    guard = version.lineage.guard
    return guard is not None and guard.decision in ("rolled_back", "discarded")
