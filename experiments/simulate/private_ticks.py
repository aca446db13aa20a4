"""The pings of a private study, tick by tick: one per client and version, each with a new id, after a delay.

Ticks depend on each other here: clients remember their number of contributions, and some pings are still on their way
when a tick ends. The clients' state is written for every tick from which a run may have to continue, as their own
storage would have it. Pings on their way are made again.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from concurrent.futures import Executor
from itertools import groupby
from pathlib import Path

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from fedping.client_sim.fleet.interactions import Interactions
from fedping.client_sim.fleet.private_pings import PrivatePings
from fedping.client_sim.learning.algorithm import State
from fedping.client_sim.learning.states import ClientNumbers
from fedping.client_sim.privacy import NEVER
from fedping.experiments.run_folder import DamagedRun, write_whole
from fedping.experiments.simulate.people import People
from fedping.experiments.simulate.settings import Experiment
from fedping.experiments.simulate.ticks import Finished, Models, Part, Searchers, TickSearches, document_ids, joined
from fedping.protocol.draws import FloatArray, Keys, child_keys, uniforms
from fedping.protocol.encodings.private import vector_payloads
from fedping.protocol.landed_table import id_column, landed_table, text_column
from fedping.protocol.ping import PRIVATE_UPDATE
from fedping.protocol.study import Study, public_study
from fedping.protocol.update import Payloads

_NOISE, _DELAY = 0x40, 0x41


class Contributions:
    """The clients' state: each client's number of contributions, and the last version that it contributed to.

    A client follows only one line, so this is the :class:`fedping.client_sim.learning.states.ClientStates` of every
    line.
    """

    def __init__(self, clients: int) -> None:
        self._kept = np.repeat(np.array([[NEVER.times], [NEVER.last]], np.int32), clients, axis=1)

    def load(self, clients: ClientNumbers) -> State:
        """Return the state of these clients."""
        times, last = self._kept[:, clients]
        return {"times": times, "last": last}

    def save(self, clients: ClientNumbers, state: State) -> None:
        """Set the state of these clients."""
        self._kept[:, clients] = state["times"], state["last"]

    def write(self, file: Path) -> None:
        """Write all clients' state to a file, atomically."""

        def fill(hidden: Path) -> None:
            with hidden.open("wb") as into:
                np.save(into, self._kept)

        file.parent.mkdir(exist_ok=True)
        write_whole(file, fill)

    def read(self, file: Path) -> None:
        """Read the state from a file.

        Raises:
            DamagedRun: the file does not exist, or has other contents.
        """
        try:
            states = np.load(file)
        except (OSError, ValueError, EOFError):
            states = None
        if states is None or states.shape != self._kept.shape or states.dtype != self._kept.dtype:
            raise DamagedRun(
                f"the contributions of this run's clients are not in {file}, so it can't continue. Delete the folder "
                "of the run, and begin again"
            )
        self._kept = states


class PrivateTickMaker:
    """Makes the private pings tick by tick.

    Args:
        experiment, study, people, pool: as in :class:`fedping.experiments.simulate.ticks.TickMaker`.
        folder: the folder for the clients' state.
    """

    def __init__(self, experiment: Experiment, study: Study, people: People, pool: Executor, folder: Path) -> None:
        self._experiment, self._study, self._people, self._folder = experiment, study, people, folder
        self._searchers = Searchers(experiment, study, people, pool)
        self._kept = Contributions(len(people.ids))
        self._pings = PrivatePings(public_study(study), experiment.seed, lambda _owner, _first: self._kept)
        self._delay = {line.name: line.privacy.delay_minutes for line in study.lines if line.privacy is not None}
        self._longest = math.ceil(max(self._delay.values()) / experiment.tick_minutes)
        self._on_their_way: dict[int, list[tuple[str | None, int, pa.Table]]] = {}

    def first_needed(self, tick: int) -> int:
        """Return the first tick with pings that may still be on their way at the beginning of ``tick``."""
        return max(0, tick - self._longest)

    def go_on_from(self, tick: int) -> None:
        """Restore the clients' state at the beginning of a tick.

        Raises:
            DamagedRun: the state is missing or damaged.
        """
        if tick > 0:
            self._kept.read(self._file(tick))

    def forget_before(self, tick: int) -> None:
        """Remove the clients' states of ticks before this one, because a run no longer continues from them."""
        for file in self._folder.glob("*.npy"):
            if int(file.stem) < tick:
                file.unlink()

    def forget(self) -> None:
        """Remove the folder of the clients' state."""
        if self._folder.is_dir():
            for file in self._folder.iterdir():
                file.unlink()
            self._folder.rmdir()

    def parts(self, tick: int, iteration: int, means: NDArray[np.float32], models: Mapping[str, Models]) -> list[Part]:
        """Return the pings that arrive in a tick; arguments as in :meth:`TickMaker.parts`.

        The clients' state after the tick is written before any of these pings can land.
        """
        searches = self._searchers.searching(tick, means, models)
        searches = searches.at(np.flatnonzero(self._willing(searches)))
        done = self._searchers.finished(searches, tick, iteration, models, lambda one: one)
        for _, group in groupby(done, key=lambda one: (one.arm, one.version)):
            self._send(list(group), tick)
        self._kept.write(self._file(tick + 1))
        return joined(self._on_their_way.pop(tick, []))

    def _file(self, tick: int) -> Path:
        return self._folder / f"{tick}.npy"

    def _willing(self, searches: TickSearches) -> NDArray[np.bool_]:
        """Return whether each search is by a client that may contribute, shape (S,); other searches have no effect."""
        willing = np.zeros(len(searches), np.bool_)
        for position, arm in enumerate(self._study.arms):
            rows = np.flatnonzero(searches.arm == position)
            users, first, whose = np.unique(searches.users[rows], return_index=True, return_inverse=True)
            assert arm.line is not None
            versions = searches.version[rows][first]
            willing[rows] = self._pings.willing(arm.line, users, versions, self._people.roots(users))[whose]
        return willing

    def _send(self, some: list[Finished], tick: int) -> None:
        """Queue the contributions of one arm's and version's clients, each from its earliest search."""
        arm, version = self._study.arms[some[0].arm], some[0].version
        assert arm.line is not None
        users = np.concatenate([one.searches.users for one in some])
        moment = np.concatenate([one.moment for one in some])
        keys = np.concatenate([one.searches.keys for one in some])
        seen = _together([one.behaved.seen for one in some])
        order = np.lexsort((moment, users))
        held, roots = np.full(len(order), version), self._people.roots(users[order])
        chosen = self._pings.choose(arm.line, users[order], held, roots, seen.rank[order] >= 0)
        rows, roots, held = order[chosen], roots[chosen], held[chosen]
        if not len(rows):
            return
        contributed, keys = seen.at(rows), keys[rows]
        updates = None if contributed.update is None else np.asarray(contributed.update)
        tops = (contributed.rank == 0).astype(np.float64)
        vectors = self._pings.vectors(arm.line, updates, contributed.loss, tops, child_keys(keys, _NOISE))
        clients = b"".join(each.bytes for each in self._pings.client_ids(arm, held, roots))
        arrives = self._arrives(arm.line, tick, moment[rows], keys)
        names = tuple(each.name for each in self._study.arms)
        columns = {
            "document_id": id_column(document_ids(keys)),
            "client_id": id_column(np.frombuffer(clients, np.uint8).reshape(-1, 16)),
            "received_at": pa.array(self._experiment.start_ms + arrives),
            "model_version": pa.array(held),
            "study_variation": text_column(np.full(len(rows), some[0].arm), names),
        }
        table = landed_table(PRIVATE_UPDATE, columns, Payloads("private", vector_payloads(vectors)))
        for late, which in _by_tick(arrives // self._experiment.tick_ms):
            self._on_their_way.setdefault(late, []).append((arm.line, version, table.take(which)))

    def _arrives(self, line: str, tick: int, moment: FloatArray, keys: Keys) -> NDArray[np.int64]:
        """Return the pings' times of arrival, in milliseconds since the experiment began, shape (k,)."""
        waits = uniforms(child_keys(keys, _DELAY), 1)[:, 0] * self._delay[line] * 60_000
        return ((tick + moment) * self._experiment.tick_ms + waits).astype(np.int64)


def _by_tick(ticks: NDArray[np.int64]) -> Iterator[tuple[int, NDArray[np.intp]]]:
    for tick in np.unique(ticks).tolist():
        yield tick, np.flatnonzero(ticks == tick)


def _together(some: list[Interactions]) -> Interactions:
    """Return several interactions of one arm joined into one."""
    updates = [one.update for one in some if isinstance(one.update, np.ndarray)]
    return Interactions(
        scores=np.concatenate([one.scores for one in some]),
        shown=np.concatenate([one.shown for one in some]),
        rank=np.concatenate([one.rank for one in some]),
        bookmarked=np.concatenate([one.bookmarked for one in some]),
        loss=np.concatenate([one.loss for one in some]),
        update=np.concatenate(updates) if updates else None,
    )
