"""Rounds over landed Parquet files: the round of `server_jobs.round`, its store and engines, as an operator runs it.

Time is simulated, half an hour per round, so that the same run leaves the same files.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from fedping.client_sim.learning.batch import FloatArray
from fedping.experiments.laboratory.rounds.study import ARM, LINE, STUDY
from fedping.experiments.laboratory.rounds.traffic import fetched_bytes, posted_bytes
from fedping.experiments.laboratory.rounds.updates import Carrier, RoundReport, Seen, Updates, diverged
from fedping.model_store.store import ModelStore, open_store
from fedping.model_store.version import Version
from fedping.protocol import __version__
from fedping.protocol.landed_table import ModelPings, landed_model_updates
from fedping.protocol.landing import SHARDS, landed_files, partition, write_landed
from fedping.protocol.model import UnfitModel
from fedping.protocol.study import Study
from fedping.server_jobs.optimize import first_versions
from fedping.server_jobs.round import Engine, RoundOptions, run_round

START_MS = 1_529_452_800_000
"""The start of round 0: 2018-06-20."""

ROUND_MS = 30 * 60_000


def landing_of(folder: Path) -> Path:
    """Return the landing folder of a run, created if necessary."""
    (folder / "landing").mkdir(parents=True, exist_ok=True)
    return folder / "landing"


def store_with(study: Study, folder: Path) -> ModelStore:
    """Return a new store in a run's folder, with the study and version 0."""
    store = open_store(folder / "store", create=True)
    store.create_study(study, first_versions(study, created=_iso(START_MS), code_version=__version__))
    return store


class LandedRounds:
    """The rounds of one line, with pings that land as files; see :class:`fedping.experiments.laboratory.rounds.Rounds`.

    A round with too few clients discards their pings, so that every round is independent, as in memory.
    """

    def __init__(self, store: ModelStore, landing: Path, study: Study, engine: Engine, carrier: Carrier) -> None:
        self._store, self._landing, self._study = store, landing, study
        self._engine, self._carrier = engine, carrier
        self._now = START_MS
        self._head = store.head(STUDY, LINE)
        self._weights = carrier.fetch(self._head)

    @property
    def weights(self) -> FloatArray:
        """See :attr:`Rounds.weights`."""
        return self._weights

    def run(self, sent: Iterable[Updates]) -> RoundReport:
        """See :meth:`Rounds.run`."""
        seen, version = Seen(self._study.lines[0].pipeline), self._head.iteration
        version_bytes = self._carrier.fetched_bytes
        self._now += ROUND_MS
        for number, block in enumerate(sent):
            seen.see(block, self._carrier.send(block, version - block.age, number, self._now))
        self._carrier.all_sent()
        try:
            result = run_round(
                self._store,
                self._landing,
                STUDY,
                LINE,
                self._engine,
                RoundOptions(clock=lambda: _iso(self._now), code_version=__version__),
            )
        except UnfitModel as error:
            raise diverged(error.reason) from error
        if stepped := result.status == "published":
            self._head = self._store.head(STUDY, LINE)
            self._weights = self._carrier.fetch(self._head)
        else:
            for file in landed_files(partition(self._landing, STUDY, LINE, version)):
                file.unlink()
        return seen.report(stepped, version_bytes)


class FileCarrier:
    """Writes pings as landed files of so many shards, one per block, without a network; see :class:`Carrier`."""

    def __init__(self, landing: Path, ids: NDArray[np.uint8], shards: int = SHARDS) -> None:
        self._landing, self._ids, self._shards = landing, ids, shards
        self.fetched_bytes = 0

    def send(self, block: Updates, version: int, number: int, landed_ms: int) -> int:
        """See :meth:`Carrier.send`."""
        table = landed_model_updates(pings_of(block, self._ids[block.clients], version, landed_ms), landed_ms)
        folder = partition(self._landing, STUDY, LINE, version)
        token = f"{landed_ms // ROUND_MS:08d}-{number:06d}"
        write_landed(folder, table, landed_ms, token=token, shards=self._shards)
        return posted_bytes(block)

    def all_sent(self) -> None:
        """See :meth:`Carrier.all_sent`."""

    def fetch(self, newest: Version) -> FloatArray:
        """See :meth:`Carrier.fetch`."""
        weights = np.array(newest.model)
        self.fetched_bytes = fetched_bytes(newest.names, weights)
        return weights


def pings_of(block: Updates, ids: NDArray[np.uint8], version: int, landed_ms: int) -> ModelPings:
    """Return a block as pings; ``ids`` are those of its clients, shape (k, 16)."""
    return ModelPings(
        document_ids=document_ids(ids, block.repeats, landed_ms),
        client_ids=ids,
        arm=ARM,
        version=version,
        updates=block.updates,
        losses=block.losses,
        examples=block.examples,
    )


def document_ids(ids: NDArray[np.uint8], repeats: NDArray[np.int64], received_ms: int) -> NDArray[np.uint8]:
    """Return an id for each ping, shape (k, 16): its client's id, mixed with the round and its repeats."""
    number = (np.int64(received_ms // ROUND_MS) << 24) + repeats
    return np.ascontiguousarray(ids) ^ np.pad(number.astype("<i8").view(np.uint8).reshape(-1, 8), ((0, 0), (8, 0)))


def _iso(milliseconds: int) -> str:
    return datetime.fromtimestamp(milliseconds / 1000, UTC).isoformat(timespec="milliseconds")
