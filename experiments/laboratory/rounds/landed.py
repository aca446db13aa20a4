"""Rounds of `server_jobs.round` on landed Parquet files, written directly or by an ingest, with a model store.

Time is simulated, half an hour per round, so that the same run leaves the same files.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from fedping.client_sim.client import ONE_ATTEMPT, Sending, Settled, after_attempt, version_after
from fedping.client_sim.fleet.pings import batches
from fedping.client_sim.http import HttpTransport
from fedping.client_sim.learning.batch import FloatArray
from fedping.client_sim.transport import Fetched
from fedping.experiments.laboratory.resuming import Part
from fedping.experiments.laboratory.rounds.server import Delivered, diverged
from fedping.experiments.laboratory.rounds.study import ARM, LINE, STUDY
from fedping.experiments.laboratory.rounds.updates import Updates, fetched_bytes, posted_bytes
from fedping.experiments.server_process import RunningIngest
from fedping.model_store.store import ModelStore, open_store
from fedping.model_store.version import Version
from fedping.protocol import __version__
from fedping.protocol.errors import FedpingError
from fedping.protocol.landed_table import ModelPings, landed_model_updates
from fedping.protocol.landing import SHARDS, landed_files, partition, write_landed
from fedping.protocol.model import UnfitModel
from fedping.protocol.ping import MODEL_UPDATE, NO_VERSION
from fedping.protocol.pipeline import Pipeline
from fedping.protocol.study import Study
from fedping.server_jobs.optimize import first_versions
from fedping.server_jobs.round import Engine, RoundOptions, run_round

START_MS = 1_529_452_800_000
"""The start of round 0, 2018-06-20, in Unix ms."""

ROUND_MS = 30 * 60_000

LARGEST_BATCH = 4 * 2**20
"""Maximum bytes in the body of one request, unless a single ping is larger."""


@dataclass(frozen=True)
class LandedLine:
    """The only line of a run's study, with its store and landing folder, and the engine of its rounds."""

    study: Study
    store: ModelStore
    landing: Path
    engine: Engine

    @property
    def head(self) -> Version:
        """The newest version."""
        return self.store.head(STUDY, LINE)

    def pings(self, version: int) -> Path:
        """Return the folder of the pings of a version."""
        folder = partition(self.landing, STUDY, LINE, version)
        assert isinstance(folder, Path)
        return folder

    def step(self, version: int, now_ms: int) -> bool:
        """Run a round; return whether it published a version.

        A round with too few clients discards their pings, so that every round is independent, as in memory.

        Raises:
            Diverged: no client could read the version.
        """
        try:
            result = run_round(
                self.store,
                self.landing,
                STUDY,
                LINE,
                self.engine,
                RoundOptions(clock=lambda: _iso(now_ms), code_version=__version__),
            )
        except UnfitModel as error:
            raise diverged(error.reason) from error
        if result.status == "published":
            return True
        for file in landed_files(self.pings(version)):
            file.unlink()
        return False


def new_line(study: Study, folder: Path, engine: Engine) -> LandedLine:
    """Create a store with version 0 and a landing folder in a run's folder, and return the study's line."""
    store = open_store(folder / "store", create=True)
    store.create_study(study, first_versions(study, created=_iso(START_MS), code_version=__version__))
    landing = folder / "landing"
    landing.mkdir(parents=True, exist_ok=True)
    return LandedLine(study, store, landing, engine)


class FileChannel:
    """Delivers pings as landed files, one per block, without a network; see :class:`Channel`.

    Args:
        line: the line.
        ids: each client's id, shape (clients, 16).
        shards: number of shards of a file.
    """

    def __init__(self, line: LandedLine, ids: NDArray[np.uint8], shards: int = SHARDS) -> None:
        self._line, self._ids, self._shards = line, ids, shards
        self._now, self._blocks = START_MS, 0
        self._head = line.head
        self._fetched_bytes = 0
        self._weights = self._fetch()

    @property
    def weights(self) -> FloatArray:
        """See :attr:`Channel.weights`."""
        return self._weights

    @property
    def pipeline(self) -> Pipeline:
        """See :attr:`Channel.pipeline`."""
        return self._line.study.lines[0].pipeline

    @property
    def checkpoint(self) -> Part | None:
        """None, because the store and the files can't go back to a checkpoint."""
        return None

    @property
    def spent(self) -> Mapping[str, float]:
        """See :attr:`Channel.spent`."""
        return {}

    def begin(self) -> int:
        """See :meth:`Channel.begin`."""
        self._now += ROUND_MS
        self._blocks = 0
        return self._fetched_bytes

    def send(self, block: Updates) -> Delivered:
        """See :meth:`Channel.send`."""
        pings = pings_of(block, self._ids[block.clients], self._head.iteration - block.age, self._now)
        posted = self._post(block, pings)
        self._blocks += 1
        return Delivered(block, posted)

    def step(self, clients: int) -> bool:
        """See :meth:`Channel.step`; the round of the server counts the clients itself."""
        self._land()
        published = self._line.step(self._head.iteration, self._now)
        if published:
            self._head = self._line.head
            self._weights = self._fetch()
        return published

    def _post(self, block: Updates, pings: ModelPings) -> int:
        """Send the pings of a block; return the bytes of their bodies."""
        token = f"{self._now // ROUND_MS:08d}-{self._blocks:06d}"
        table = landed_model_updates(pings, self._now)
        write_landed(self._line.pings(pings.version), table, self._now, token=token, shards=self._shards)
        return posted_bytes(block)

    def _land(self) -> None:
        """Wait until all pings of the round have landed."""

    def _fetch(self) -> FloatArray:
        """Return the newest version as clients get it, shape (m,)."""
        weights = np.array(self._head.model)
        self._fetched_bytes = fetched_bytes(self._head.names, weights)
        return weights


class HttpChannel(FileChannel):
    """Posts pings to an ingest over HTTP and fetches its versions, by a fleet's transport; see :class:`Channel`."""

    def __init__(self, line: LandedLine, ids: NDArray[np.uint8], ingest: RunningIngest, runner: asyncio.Runner) -> None:
        self._ingest, self._runner = ingest, runner
        self._transport = HttpTransport(ingest.address, document=MODEL_UPDATE)
        super().__init__(line, ids)

    def close(self) -> None:
        """Close the connections."""
        self._runner.run(self._transport.close())

    def _post(self, block: Updates, pings: ModelPings) -> int:
        """Post compressed batches.

        Raises:
            FedpingError: ingest does not answer, or rejects a ping.
        """
        posted = 0
        for body in batches(pings, LARGEST_BATCH):
            answer = self._runner.run(self._transport.submit_batch(STUDY, body))
            state = after_attempt(Sending(), answer.outcome, ONE_ATTEMPT)
            if not (isinstance(state, Settled) and state.accepted) or answer.rejected:
                reason = answer.rejected[0][1] if answer.rejected else answer.outcome.reason
                raise FedpingError(f"ingest rejected pings of the laboratory: {reason}. See {self._ingest.log}")
            posted += answer.outcome.posted_bytes
        return posted

    def _land(self) -> None:
        self._ingest.flush()

    def _fetch(self) -> FloatArray:
        """Return the newest version as clients get it.

        Raises:
            FedpingError: ingest does not answer, or serves another version.
        """
        answer = self._runner.run(self._transport.fetch_model(STUDY, LINE, None, None))
        newest = self._head.iteration
        if not isinstance(answer, Fetched) or version_after(NO_VERSION, answer) != newest:
            raise FedpingError(f"ingest does not serve version {newest} of the model. See {self._ingest.log}")
        self._fetched_bytes = answer.fetched_bytes
        return np.array(answer.document.model)


@contextmanager
def over_http(line: LandedLine, ids: NDArray[np.uint8], ingest: RunningIngest) -> Iterator[HttpChannel]:
    """Yield a channel to a running ingest for clients with these ids, shape (clients, 16); close its connections."""
    with asyncio.Runner() as runner:
        channel = HttpChannel(line, ids, ingest, runner)
        try:
            yield channel
        finally:
            channel.close()


def pings_of(block: Updates, ids: NDArray[np.uint8], version: int, landed_ms: int) -> ModelPings:
    """Return a block as pings; ``ids`` are the ids of its clients, shape (k, 16)."""
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
    """Return an id for each ping, shape (k, 16): its client's id, mixed with the time and its number of repeats."""
    number = (np.int64(received_ms // ROUND_MS) << 24) + repeats
    return np.ascontiguousarray(ids) ^ np.pad(number.astype("<i8").view(np.uint8).reshape(-1, 8), ((0, 0), (8, 0)))


def _iso(milliseconds: int) -> str:
    return datetime.fromtimestamp(milliseconds / 1000, UTC).isoformat(timespec="milliseconds")
