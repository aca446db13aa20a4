"""Blocks, the units of a simulation's work: the pings of some clients in a tick, landed in separate files.

The experiment fixes the clients of a block, so this process and any number of executors land the same files. A block is
made from the seed alone; done twice, it lands the same bytes in the same place. A tick of a small experiment is one
block. Only one block's pings are in memory at a time.
"""

from __future__ import annotations

import math
import pickle
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass
from functools import lru_cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

import numpy as np
from numpy.typing import NDArray

from fedping.experiments.run_process import forget_locks, one_at_a_time
from fedping.experiments.simulate.people import Anybody, Hostile
from fedping.experiments.simulate.settings import Experiment, Phase
from fedping.experiments.simulate.ticks import Models, Part, TickMaker
from fedping.protocol.landing import partition, write_landed
from fedping.protocol.study import Study
from fedping.server_jobs.spark.failures import Job

if TYPE_CHECKING:
    from fedping.server_jobs.spark.session_pool import SessionPool

SEARCHES_A_BLOCK = 2**16
"""Approximate maximum of searches in a block, in the busier phase; they take about 100 MB while they are made."""

CLIENTS_A_BLOCK = 2**20
"""Maximum number of clients in a block."""

KEPT_MEANS = 2**26
"""Maximum number of clients whose activity a process remembers, at 4 bytes."""


@dataclass(frozen=True)
class Block:
    """The work of some clients in a tick; ``number`` is the block's number in the tick, from 0."""

    tick: int
    number: int
    clients: range


@dataclass(frozen=True)
class Scene:
    """The clients' environment: the phase's activity, the study's iteration, and the versions of each line by name."""

    phase: Phase
    iteration: int
    models: Mapping[str, Models]


def blocks_of(experiment: Experiment, ticks: Iterable[int], clients: int) -> list[Block]:
    """Return the blocks of some ticks.

    Args:
        experiment: the simulated experiment.
        ticks: the numbers of the ticks.
        clients: number of clients, including those that an attack invents.
    """
    phases = [phase for phase in (experiment.optimization, experiment.evaluation) if phase is not None]
    searches = clients * max(phase.searches_per_day for phase in phases) * experiment.tick_minutes / 1440
    count = max(1, math.ceil(searches / SEARCHES_A_BLOCK), math.ceil(clients / CLIENTS_A_BLOCK))
    edges = [clients * number // count for number in range(count + 1)]
    return [
        Block(tick, number, range(edges[number], edges[number + 1]))
        for tick in ticks
        for number in range(count)
        if edges[number] < edges[number + 1]
    ]


class Workers(Protocol):
    """Interface of the workers that simulate blocks.

    Attributes:
        ticks_at_once: number of ticks whose blocks are passed together, if ticks do not depend on each other.
    """

    ticks_at_once: int

    def land(self, blocks: Sequence[Block], scene: Scene) -> Iterator[int]:
        """Land all blocks, and yield each block's number of pings when it is done, in any order.

        Raises:
            FedpingError: a block failed; other blocks may have landed.
        """
        ...


class Here:
    """Simulates blocks one after another in this process; the threads of ``pool`` do each block's searches."""

    ticks_at_once = 1

    def __init__(self, experiment: Experiment, study: Study, people: Anybody, landing: Path, pool: Executor) -> None:
        self._experiment, self._study, self._people, self._landing = experiment, study, people, landing
        self._maker = TickMaker(experiment, study, people, pool)
        self._means = lru_cache(maxsize=None)(self._means_of)

    def land(self, blocks: Sequence[Block], scene: Scene) -> Iterator[int]:
        """See :meth:`Workers.land`."""
        return (self.land_one(block, scene) for block in blocks)

    def land_one(self, block: Block, scene: Scene) -> int:
        """Land one block, and return the number of its pings."""
        phase, clients = scene.phase, block.clients
        if self._means.cache_info().currsize * len(clients) >= KEPT_MEANS:
            self._means.cache_clear()
        means = self._means(phase.searches_per_day, phase.activity_shape, clients)
        parts = self._maker.parts(block.tick, scene.iteration, means, scene.models, clients.start)
        return land(self._landing, self._experiment, self._study, parts, block.tick, block.number)

    def _means_of(self, searches_per_day: float, shape: float, clients: range) -> NDArray[np.float32]:
        return self._people.activity.means(searches_per_day, shape, clients)


def land(landing: Path, experiment: Experiment, study: Study, parts: Iterable[Part], tick: int, block: int = 0) -> int:
    """Write the pings of a tick, or of a block of it, at the tick's end; return their number.

    Landing the same pings again replaces the files by equal ones.
    """
    landed_ms = experiment.start_ms + (tick + 1) * experiment.tick_ms
    pings = 0
    for part in parts:
        folder = partition(landing, study.name, part.line, part.version)
        write_landed(folder, part.table, landed_ms, token=token(tick, block), shards=study.shards)
        pings += part.table.num_rows
    return pings


def token(tick: int, block: int = 0) -> str:
    """Return the second half of the names of a block's files, which ingest would draw at random."""
    return f"{block:04x}{tick:08x}"


SIMULATION = Job("the simulation", "landed pings stay. Run the same command again to continue")


class OnSpark:
    """Simulates blocks on Spark's executors, which write pings to the landing folder and return their number.

    Args:
        experiment, study: the simulated experiment and its study.
        hostile: the hostile clients.
        out: the folder of the run, which all executors see.
        landing: the landing folder, within ``out``.
        sessions: the executors' sessions.
    """

    ticks_at_once = 16

    def __init__(
        self,
        experiment: Experiment,
        study: Study,
        hostile: Hostile,
        out: Path,
        landing: Path,
        sessions: SessionPool,
    ) -> None:
        self._said = pickle.dumps((experiment, study, hostile, landing.resolve()))
        self._out, self._sessions = out.resolve(), sessions

    def land(self, blocks: Sequence[Block], scene: Scene) -> Iterator[int]:
        """See :meth:`Workers.land`."""
        from fedping.server_jobs.spark.spreading import spread

        work = partial(_landed, self._said, self._out, tuple(blocks), scene)
        try:
            with closing(spread(self._sessions, work, len(blocks), SIMULATION)) as done:
                for _, pings in done:
                    yield pings
        finally:
            forget_locks(self._out)


def _landed(pickled: bytes, out: Path, blocks: Sequence[Block], scene: Scene, number: int) -> int:
    """Land block ``number`` on an executor, and return the number of its pings."""
    with one_at_a_time(out, number):
        return _worker(pickled).land_one(blocks[number], scene)


@lru_cache(maxsize=1)
def _worker(pickled: bytes) -> Here:
    """Return this executor process's worker, which is reused for all blocks of the same simulation."""
    experiment, study, hostile, landing = pickle.loads(pickled)
    return Here(experiment, study, Anybody(experiment, study, hostile), landing, ThreadPoolExecutor(1))
