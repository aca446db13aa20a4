"""The loop: pings land tick by tick, a round follows each iteration, and finally the last version is evaluated.

All state is that of the real path: the versions in the store and the files in the landing folder. Both contain
simulated time (``created``, file names), and every tick can be made again from the seed. So a run that was killed at
any point continues from the newest version, makes the unfinished ticks again over their own files, and ends with the
same bits as an uninterrupted one.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import msgspec
import numpy as np
from numpy.typing import NDArray

from fedping.client_sim.learning.checking import check_clients
from fedping.experiments.run_folder import claim, write_document
from fedping.experiments.simulate.line_run import LineRun
from fedping.experiments.simulate.people import People
from fedping.experiments.simulate.private_summary import PrivateSummary, private_summary
from fedping.experiments.simulate.private_ticks import PrivateTickMaker
from fedping.experiments.simulate.progress import PhaseName, Progress, ProgressNote
from fedping.experiments.simulate.settings import Experiment
from fedping.experiments.simulate.summary import Summary, summarised
from fedping.experiments.simulate.ticks import Models, Part, TickMaker
from fedping.model_store.store import open_store
from fedping.protocol import __version__
from fedping.protocol.clock import time_at
from fedping.protocol.digest import canonical_json
from fedping.protocol.errors import FedpingError
from fedping.protocol.landing import all_landed, landed_at, partition, remove_landed, study_of, write_landed
from fedping.protocol.study import Declared, Study, public_study
from fedping.server_jobs.optimize import first_versions
from fedping.server_jobs.privacy.budget import needs_accounting, stored_with_noise, with_noise
from fedping.server_jobs.round import NumpyEngine, delete_pings

WAITED_ENOUGH = 10_000
"""Ticks without a new version after which a simulation gives up."""


Watch = Callable[[Progress], None]


def _noted(experiment: Experiment, study: Study) -> tuple[bytes, bytes]:
    """Return what a run's folder says of it, and how earlier versions wrote that down."""
    settings = canonical_json(experiment), canonical_json(study)
    return msgspec.json.format(b'{"experiment":%b,"study":%b}' % settings), b"\n".join(settings)


class Simulation:
    """One experiment in one folder: ``<out>/store``, ``<out>/landing``, ``<out>/experiment.json``.

    Args:
        experiment: what to simulate.
        study: its study.
        out: a new folder, or that of a run of the same experiment, which is then continued.
        threads: the number of parallel threads; the result does not depend on it.
        watch: is told of the progress.

    Raises:
        InvalidSettings: the folder holds something else, or another experiment; or a line asks for what simulated
            users cannot do.
        FedpingError: no noise keeps the guarantee of a private line.
    """

    def __init__(
        self, experiment: Experiment, study: Study, out: Path, threads: int = 2, watch: Watch = lambda _: None
    ) -> None:
        check_clients(public_study(study), keeps_state=False)
        said, as_before = _noted(experiment, study)
        study = _with_noise(study, out / "store")
        self.experiment, self.study, self.out = experiment, study, out
        self.landing = out / "landing"
        self._threads = threads
        self._watch = watch
        self._progress = ProgressNote(out)
        self._pings = 0
        claim(out, said, as_before=as_before)
        self.store = open_store(out / "store", create=True)
        self.landing.mkdir(parents=True, exist_ok=True)
        created = time_at(experiment.start_ms)
        self.store.create_study(study, first_versions(study, created=created, code_version=__version__))
        declared = self.store.declared(study.name)
        if not (declared.simulated and declared.state == "ended"):  # one that is over is looked at again, and stays so
            self.store.declare(study.name, Declared(since=created, simulated=True))

    def run(self) -> Summary | PrivateSummary:
        """Run what has not been run yet, and return the summary, which is also written to ``<out>/summary.json``.

        Raises:
            FedpingError: no round gets enough clients, or a file cannot be used.
        """
        self._tell("enrolling", 0, 1)
        people = People(self.experiment, self.study)
        engine = NumpyEngine(self._threads)
        names = [line.name for line in self.study.lines]
        lines = [LineRun(self.experiment, self.study, name, self.store, self.landing, engine) for name in names]
        with ThreadPoolExecutor(self._threads) as pool:
            if self.study.is_private:
                tick = self._optimize_private(people, pool, lines)
            else:
                maker = TickMaker(self.experiment, self.study, people, pool)
                tick = self._optimize(people, maker, lines)
                self._evaluate(people, maker, lines, tick)
        self._tell("summary", 0, 1)
        summary: Summary | PrivateSummary
        if self.study.is_private:
            summary = private_summary(self.experiment, self.study, self.store)
        else:
            hostile = people.ids[people.hostile]
            summary = summarised(self.experiment, self.study, self.store, self.landing, tick, hostile)
        write_document(self.out / "summary.json", summary)
        over = time_at(self.experiment.start_ms + tick * self.experiment.tick_ms)
        self.store.declare(self.study.name, Declared(state="ended", since=over, simulated=True))
        self._progress.remove()
        return summary

    def _optimize(self, people: People, maker: TickMaker, lines: list[LineRun]) -> int:
        """Run iterations until every line is done; return the tick after the last one."""
        phase = self.experiment.optimization
        if not all(line.done for line in lines):
            means = people.activity.means(phase.searches_per_day, phase.activity_shape)
            tick = _tick_to_go_on_with(lines)
            self._forget_after(tick)
        while not all(line.done for line in lines):
            self._land(tick, self._made(tick, means, maker, lines))
            self._after(tick, lines)
            tick += 1
        return max(line.next_tick for line in lines)

    def _optimize_private(self, people: People, pool: ThreadPoolExecutor, lines: list[LineRun]) -> int:
        """Do so with a private study, whose pings are all gone in the end; its clients remember earlier ticks."""
        maker = PrivateTickMaker(self.experiment, self.study, people, pool, self.out / "clients")
        phase = self.experiment.optimization
        if not all(line.done for line in lines):
            means = people.activity.means(phase.searches_per_day, phase.activity_shape)
            first = _tick_to_go_on_with(lines)
            self._forget_after(first)
            tick = maker.first_needed(first)
            maker.go_on_from(tick)
        while not all(line.done for line in lines):
            parts = self._made(tick, means, maker, lines)
            if tick >= first:  # else they have arrived, but for those that are still on their way
                self._land(tick, parts)
                self._after(tick, lines)
                if not all(line.done for line in lines):
                    maker.forget_before(maker.first_needed(_tick_to_go_on_with(lines)))
            tick += 1
        for line in self.study.lines:
            delete_pings(self.landing, self.study.name, line.name, upto=None)
        maker.forget()
        return max(line.next_tick for line in lines)

    def _after(self, tick: int, lines: list[LineRun]) -> None:
        """Let each line have its round, if it is time for one."""
        for line in lines:
            line.after(tick)
        self._tell("optimization", min(line.rounds for line in lines), self.experiment.optimization.iterations)
        _refuse_to_wait_for_ever(tick + 1 - max(line.next_tick for line in lines))

    def _evaluate(self, people: People, maker: TickMaker, lines: list[LineRun], first: int) -> None:
        phase = self.experiment.evaluation
        if phase is None:
            return
        begin = max(first, self._landed_ticks() - 1)  # the last tick with files may lack some
        if begin >= first + phase.ticks:
            return
        means = people.activity.means(phase.searches_per_day, phase.activity_shape)
        for tick in range(begin, first + phase.ticks):
            self._land(tick, self._made(tick, means, maker, lines))
            self._tell("evaluation", tick - first + 1, phase.ticks)

    def _made(
        self, tick: int, means: NDArray[np.float32], maker: TickMaker | PrivateTickMaker, lines: list[LineRun]
    ) -> list[Part]:
        """Return the pings of a tick."""
        models = {line.name: Models(line.newest(tick), line.weights) for line in lines}
        iteration = max(int(each.newest[-1]) for each in models.values())
        return maker.parts(tick, iteration, means, models)

    def _land(self, tick: int, parts: list[Part]) -> None:
        landed_ms = self.experiment.start_ms + (tick + 1) * self.experiment.tick_ms
        for part in parts:
            folder = partition(self.landing, self.study.name, part.line, part.version)
            write_landed(folder, part.table, landed_ms, token=token(tick), shards=self.study.shards)
            self._pings += part.table.num_rows

    def _landed_ticks(self) -> int:
        """Return how many ticks have left files; the last of them may lack some."""
        stamps = [landed_at(file) or 0 for file in self._files()]
        return max(0, (max(stamps, default=0) - self.experiment.start_ms) // self.experiment.tick_ms)

    def _forget_after(self, tick: int) -> None:
        """Remove files of ticks that are about to be made again, so that no round sees them too early."""
        for file in self._files():
            if (landed_at(file) or 0) > self.experiment.start_ms + tick * self.experiment.tick_ms:
                remove_landed(file)

    def _files(self) -> list[Path]:
        return [file for file in all_landed(self.landing) if study_of(file) == self.study.name]

    def _tell(self, phase: PhaseName, done: int, total: int) -> None:
        now = Progress(phase, done, total, None if self.study.is_private else self._pings)
        self._progress.write(now)
        self._watch(now)


def simulate(
    experiment: Experiment, study: Study, out: Path, threads: int = 2, watch: Watch = lambda _: None
) -> Summary | PrivateSummary:
    """Run an experiment in a folder, or the rest of it; see :class:`Simulation`."""
    return Simulation(experiment, study, out, threads, watch).run()


def _tick_to_go_on_with(lines: list[LineRun]) -> int:
    """Return the first tick that any line is waiting for."""
    return min(line.next_tick for line in lines if not line.done)


def _with_noise(study: Study, store: Path) -> Study:
    """Return a study with the noise that keeps the guarantees of its private lines; as the store has it, if it does."""
    if not needs_accounting(study):
        return study
    stored = stored_with_noise(open_store(store), study) if store.is_dir() else None
    return with_noise(study) if stored is None else stored


def token(tick: int) -> str:
    """Return the second half of the names of a tick's files, as long as a random one."""
    return f"{tick:012x}"


def _refuse_to_wait_for_ever(ticks: int) -> None:
    if ticks > WAITED_ENOUGH:
        raise FedpingError(
            f"no version was published in {WAITED_ENOUGH:,} ticks, for too few clients sent an update; raise clients "
            "in the experiment, or lower min_clients in the study"
        )
