"""The loop of a simulated study: pings land tick by tick, a round follows each iteration, then the evaluation.

The work is done block by block (`blocks.py`) in this process or by Spark's executors; the resulting files are the same.

All state is the same as in production: the versions in the store and the files in the landing folder. Both contain
simulated time (``created``, file names), and every tick can be made again from the seed. So a run that was killed at
any point continues from the newest version, makes the unfinished ticks again over their own files, and ends with the
same bits as an uninterrupted one.

The progress of a running simulation is a small file with the latest state; it is removed when the summary is written.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Literal, TypeAlias

import msgspec
from msgspec import Struct

from fedping.client_sim.learning.checking import check_clients
from fedping.experiments.run_folder import (
    begun_study,
    claim,
    environments_in,
    read_whole,
    write_document,
    write_environment,
)
from fedping.experiments.run_process import forget_locks
from fedping.experiments.simulate.blocks import Here, OnSpark, Scene, Workers, blocks_of, land
from fedping.experiments.simulate.line_run import LineRun
from fedping.experiments.simulate.people import Anybody, People
from fedping.experiments.simulate.private_ticks import PrivateTickMaker
from fedping.experiments.simulate.settings import Experiment, Phase
from fedping.experiments.simulate.summary import PrivateSummary, Summary, private_summary, summarised
from fedping.experiments.simulate.ticks import Models
from fedping.model_store.store import open_store
from fedping.protocol import __version__
from fedping.protocol.digest import canonical_json
from fedping.protocol.errors import FedpingError, InvalidSettings
from fedping.protocol.extensions import with_recorded_code
from fedping.protocol.formats import NewerFormat, with_format, without_format
from fedping.protocol.landing import landed_at, open_landing, study_of
from fedping.protocol.location import Place
from fedping.protocol.notation import time_at
from fedping.protocol.study import Declared, Study, public_study
from fedping.server_jobs.optimize import first_versions
from fedping.server_jobs.privacy.budget import needs_accounting, stored_with_noise, with_noise
from fedping.server_jobs.round import Engine, NumpyEngine, SparkEngine, delete_pings

PROGRESS = "progress.json"

PACE = 0.2
"""Seconds between two writes of the progress in one phase."""

PhaseName: TypeAlias = Literal["enrolling", "optimization", "evaluation", "summary"]


class Progress(Struct, frozen=True):
    """The progress of a run, reported after every tick.

    ``done`` of ``total`` ticks or iterations of the phase have ended, and this process has made ``pings`` pings (None
    for a private study, where pings are not counted).
    """

    phase: PhaseName
    done: int
    total: int
    pings: int | None


class ProgressNote:
    """Writes ``<out>/progress.json`` at the beginning and the end of a phase, and regularly in between."""

    def __init__(self, out: Path) -> None:
        self._file = out / PROGRESS
        self._phase: PhaseName | None = None
        self._next = 0.0

    def write(self, now: Progress) -> None:
        """Write the progress, unless it was just written."""
        if now.phase == self._phase and now.done < now.total and time.monotonic() < self._next:
            return
        self._file.write_bytes(with_format(msgspec.json.encode(now)))
        self._phase, self._next = now.phase, time.monotonic() + PACE

    def remove(self) -> None:
        """Remove the file; the summary replaces it."""
        self._file.unlink(missing_ok=True)


def read_study_progress(out: Path) -> Progress | None:
    """Return the progress of the simulation in a folder, or its last state if it was killed.

    None before and after the simulation, while the file is being written, or if a later version of fedping wrote it.
    """
    try:
        text = without_format((out / PROGRESS).read_bytes(), PROGRESS)
        return msgspec.json.decode(text, type=Progress)
    except (FileNotFoundError, msgspec.DecodeError, NewerFormat):
        return None


WAITED_ENOUGH = 10_000
"""Maximum number of ticks without a new version before a simulation gives up."""

WAVE = "wave.json"
"""Name of the file that records the evaluation's ticks that are being landed together."""

_NEVER = 2**62


class _Wave(msgspec.Struct, frozen=True):
    """The first of the ticks that are being landed together."""

    tick: int


Watch = Callable[[Progress], None]


def _noted(experiment: Experiment, study: Study) -> tuple[bytes, bytes]:
    """Return the settings as recorded in a run's folder, in the present form and in an earlier version's."""
    settings = canonical_json(experiment), canonical_json(study)
    return msgspec.json.format(b'{"experiment":%b,"study":%b}' % settings), b"\n".join(settings)


class Simulation:
    """One experiment in one folder: ``<out>/store``, ``<out>/landing``, ``<out>/experiment.json``.

    Args:
        experiment: the experiment to simulate.
        study: its study.
        out: a new folder, or the folder of a run of the same experiment, which is then continued.
        threads: the number of parallel threads; the result does not depend on it.
        watch: called with the progress.
        spark: the Spark engine whose executors do the work; all have to see the folder. None for this process. The
            result does not depend on it.

    Raises:
        InvalidSettings: the folder has other contents or another experiment; or simulated users can't do what a line
            needs; or the study is private, which executors can't simulate.
        FedpingError: no noise keeps the guarantee of a private line.
    """

    def __init__(
        self,
        experiment: Experiment,
        study: Study,
        out: Path,
        threads: int = 2,
        watch: Watch = lambda _: None,
        spark: SparkEngine | None = None,
    ) -> None:
        if spark is not None and study.is_private:
            raise InvalidSettings(
                f"study '{study.name}' is private, and its clients keep their contributions from tick to tick, so "
                "they cannot be spread over executors. Remove --engine spark"
            )
        check_clients(public_study(study), keeps_state=False)
        study = with_recorded_code(study, begun_study(out))
        settings, as_before = _noted(experiment, study)
        study = _with_noise(study, out / "store")
        self.experiment, self.study, self.out = experiment, study, out
        self.landing = out / "landing"
        self._threads, self._spark = threads, spark
        self._watch = watch
        self._progress = ProgressNote(out)
        self._pings = 0
        claim(out, settings, as_before=as_before)
        self.store = open_store(out / "store", create=True)
        self.landing.mkdir(parents=True, exist_ok=True)
        created = time_at(experiment.start_ms)
        self.store.create_study(study, first_versions(study, created=created, code_version=__version__))
        declared = self.store.studies.declared(study.name)
        if not (declared.simulated and declared.state == "ended"):  # a finished run stays finished
            self.store.studies.declare(study.name, Declared(since=created, simulated=True))

    def run(self) -> Summary | PrivateSummary:
        """Run or continue the experiment, and return its summary, which is also in ``<out>/summary.json``.

        Raises:
            FedpingError: no round gets enough clients, or a file cannot be used.
        """
        if not (self.out / "summary.json").is_file():  # else everything is computed
            write_environment(self.out, environments_in(self.out))
        self._tell("enrolling", 0, 1)
        many = self._spark is not None and self.experiment.attack is None
        people = Anybody(self.experiment, self.study) if many else People(self.experiment, self.study)
        engine: Engine = self._spark or NumpyEngine(self._threads)
        names = [line.name for line in self.study.lines]
        lines = [LineRun(self.experiment, self.study, name, self.store, self.landing, engine) for name in names]
        with ThreadPoolExecutor(self._threads) as pool:
            if self.study.is_private:
                assert isinstance(people, People)
                tick = self._optimize_private(people, pool, lines)
            else:
                workers = self._workers(people, pool)
                tick = self._optimize(workers, people.count, lines)
                self._evaluate(workers, people.count, lines, tick)
        self._tell("summary", 0, 1)
        summary: Summary | PrivateSummary
        if self.study.is_private:
            summary = private_summary(self.experiment, self.study, self.store)
        else:
            hostile = people.ids_of(people.who_is_hostile.clients)
            summary = summarised(self.experiment, self.study, self.store, self.landing, tick, hostile)
        write_document(self.out / "summary.json", summary)
        over = time_at(self.experiment.start_ms + tick * self.experiment.tick_ms)
        self.store.studies.declare(self.study.name, Declared(state="ended", since=over, simulated=True))
        forget_locks(self.out)
        self._progress.remove()
        return summary

    def _workers(self, people: Anybody, pool: ThreadPoolExecutor) -> Workers:
        """Return the object that makes the pings and lands them."""
        if self._spark is None:
            return Here(self.experiment, self.study, people, self.landing, pool)
        hostile, sessions = people.who_is_hostile, self._spark.sessions
        return OnSpark(self.experiment, self.study, hostile, self.out, self.landing, sessions)

    def _optimize(self, workers: Workers, clients: int, lines: list[LineRun]) -> int:
        """Run iterations until every line is done; return the tick after the last one."""
        if not all(line.done for line in lines):
            tick = _tick_to_go_on_with(lines)
            self._forget_after(tick)
        while not all(line.done for line in lines):
            scene = _scene(tick, self.experiment.optimization, lines)
            for pings in workers.land(blocks_of(self.experiment, [tick], clients), scene):
                self._pings += pings
                self._tell_of_rounds(lines)
            self._after(tick, lines)
            tick += 1
        return max(line.next_tick for line in lines)

    def _optimize_private(self, people: People, pool: ThreadPoolExecutor, lines: list[LineRun]) -> int:
        """Run the iterations of a private study, then delete all its pings; return the tick after the last one."""
        maker = PrivateTickMaker(self.experiment, self.study, people, pool, self.out / "clients")
        phase = self.experiment.optimization
        if not all(line.done for line in lines):
            means = people.activity.means(phase.searches_per_day, phase.activity_shape)
            first = _tick_to_go_on_with(lines)
            self._forget_after(first)
            tick = maker.first_needed(first)
            maker.go_on_from(tick)
        while not all(line.done for line in lines):
            scene = _scene(tick, phase, lines)
            parts = maker.parts(tick, scene.iteration, means, scene.models)
            if tick >= first:  # earlier ticks have landed; only their pings on the way are made again
                land(self.landing, self.experiment, self.study, parts, tick)
                self._after(tick, lines)
                if not all(line.done for line in lines):
                    maker.forget_before(maker.first_needed(_tick_to_go_on_with(lines)))
            tick += 1
        for line in self.study.lines:
            delete_pings(self.landing, self.study.name, line.name, upto=None)
        maker.forget()
        return max(line.next_tick for line in lines)

    def _after(self, tick: int, lines: list[LineRun]) -> None:
        """Run the round of each line that is due after a tick."""
        for line in lines:
            line.after(tick)
        self._tell_of_rounds(lines)
        _refuse_to_wait_for_ever(tick + 1 - max(line.next_tick for line in lines))

    def _tell_of_rounds(self, lines: list[LineRun]) -> None:
        self._tell("optimization", min(line.rounds for line in lines), self.experiment.optimization.iterations)

    def _evaluate(self, workers: Workers, clients: int, lines: list[LineRun], first: int) -> None:
        phase = self.experiment.evaluation
        if phase is None:
            return
        note = self.out / WAVE
        # The last tick with files may lack some, and so may all ticks that were landed together with it.
        begin = max(first, min(self._landed_ticks() - 1, (read_whole(note, _Wave) or _Wave(_NEVER)).tick))
        end = first + phase.ticks
        if begin >= end:
            return
        self._forget_after(begin)
        for tick in range(begin, end, workers.ticks_at_once):
            ticks = range(tick, min(tick + workers.ticks_at_once, end))
            if len(ticks) > 1:
                write_document(note, _Wave(tick))
            blocks = blocks_of(self.experiment, ticks, clients)
            for done, pings in enumerate(workers.land(blocks, _scene(ticks[-1], phase, lines)), 1):
                self._pings += pings
                self._tell("evaluation", tick - first + done * len(ticks) // len(blocks), phase.ticks)
        note.unlink(missing_ok=True)

    def _landed_ticks(self) -> int:
        """Return the number of ticks with files; the last tick may lack some."""
        stamps = [landed_at(file) or 0 for file in self._files()]
        return max(0, (max(stamps, default=0) - self.experiment.start_ms) // self.experiment.tick_ms)

    def _forget_after(self, tick: int) -> None:
        """Remove the files of ticks from this one on: they will be made again, and no round may read them before."""
        for file in self._files():
            if (landed_at(file) or 0) > self.experiment.start_ms + tick * self.experiment.tick_ms:
                open_landing(self.landing).remove(file)

    def _files(self) -> list[Place]:
        return [file for file in open_landing(self.landing).all_files() if study_of(file) == self.study.name]

    def _tell(self, phase: PhaseName, done: int, total: int) -> None:
        now = Progress(phase, done, total, None if self.study.is_private else self._pings)
        self._progress.write(now)
        self._watch(now)


def simulate(
    experiment: Experiment,
    study: Study,
    out: Path,
    threads: int = 2,
    watch: Watch = lambda _: None,
    spark: SparkEngine | None = None,
) -> Summary | PrivateSummary:
    """Run or continue an experiment in a folder; see :class:`Simulation`."""
    return Simulation(experiment, study, out, threads, watch, spark).run()


def _scene(tick: int, phase: Phase, lines: list[LineRun]) -> Scene:
    """Return the clients' environment in a tick, or in earlier ticks since the last version."""
    models = {line.name: Models(line.newest(tick), line.weights) for line in lines}
    return Scene(phase, max(int(each.newest[-1]) for each in models.values()), models)


def _tick_to_go_on_with(lines: list[LineRun]) -> int:
    """Return the first tick that an unfinished line needs."""
    return min(line.next_tick for line in lines if not line.done)


def _with_noise(study: Study, store: Path) -> Study:
    """Return the study with the noise that its private lines need, as stored or else newly derived."""
    if not needs_accounting(study):
        return study
    stored = stored_with_noise(open_store(store), study) if store.is_dir() else None
    return with_noise(study) if stored is None else stored


def _refuse_to_wait_for_ever(ticks: int) -> None:
    if ticks > WAITED_ENOUGH:
        raise FedpingError(
            f"a new version was not published in {WAITED_ENOUGH:,} ticks because too few clients sent an update. "
            "Raise clients in the experiment, or lower min_clients in the study"
        )
