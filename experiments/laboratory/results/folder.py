"""The folder of one run: whether it is finished, its outcome, and its metrics in long form."""

from __future__ import annotations

import shutil
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
import pyarrow as pa
from msgspec import UNSET, Struct, UnsetType
from msgspec.structs import force_setattr

from fedping.client_sim.learning.batch import FloatArray
from fedping.experiments.environment import Environment, write_environment
from fedping.experiments.laboratory.results.progress import PROGRESS
from fedping.experiments.laboratory.resuming import CHECKPOINT, STATES
from fedping.experiments.run_folder import read_whole, write_document, write_whole

_CLIENTS = "clients.parquet"

BINNED = (
    "its AUC was computed from 1,024 bins by an earlier fedping, and can be wrong; run it again with --replace before "
    "you compare it"
)
"""The note of a run with such an AUC."""

SplitMetrics = dict[str, dict[str, float | None]]
"""By split, then by metric; null where a metric is undefined."""


class Outcome(Struct, frozen=True, kw_only=True):
    """One finished run of a variant or a baseline.

    Attributes:
        rounds: the number of rounds run; for a centralised or local baseline, iterations of its optimizer.
        best_round: the round of the tested version: the best on the validation examples, or the last without early
            stopping.
        final: the metrics of that version.
        versions: how many versions the rounds made; None for a baseline, and if an earlier fedping ran it.
        to_target: after how many rounds the deciding metric reached its target; None if it never did.
        updates: how many updates the clients sent in all.
        update_bytes: the size of those updates as encoded; dense ones are 4 bytes per weight.
        posted_bytes: the size of the bodies in which all pings were posted: compressed batches where the rounds run
            over HTTP, else the JSON of each ping as it is. None for a baseline, and if an earlier fedping ran it.
        fetched_bytes: the size of the versions that the clients of all rounds have fetched, once a round each; as
            posted_bytes, None if that is not known.
        uplink_bytes: the name of update_bytes in the files of an earlier fedping; never there once they are read.
        clients: the number of clients.
        shown: the metrics for a table, the deciding one first.
        split: the split by which the run is judged.
        notes: sentences that a reader of the results should know.
        auc: "exact" if there is an AUC, of the scores themselves. An AUC without this is from 1,024 bins of log-odds
            between -24 and 24, by an earlier fedping, and wrong where scores are of another scale; a note says so.
        seconds: the duration; the only figure here that another run would not repeat.
    """

    variant: str
    seed: int
    fold: int | None
    rounds: int
    best_round: int
    final: SplitMetrics
    updates: int
    update_bytes: int = 0
    clients: int
    shown: tuple[str, ...]
    split: str = "test"
    notes: tuple[str, ...]
    seconds: float
    versions: int | None = None
    to_target: int | None = None
    posted_bytes: int | None = None
    fetched_bytes: int | None = None
    uplink_bytes: int | UnsetType = UNSET
    auc: Literal["exact"] | UnsetType = UNSET

    def __post_init__(self) -> None:
        if self.has_binned_auc and BINNED not in self.notes:
            force_setattr(self, "notes", (*self.notes, BINNED))
        if self.uplink_bytes is not UNSET:
            force_setattr(self, "update_bytes", self.uplink_bytes)
            force_setattr(self, "uplink_bytes", UNSET)

    @property
    def has_binned_auc(self) -> bool:
        """Whether there is an AUC that is not exact."""
        return self.auc is UNSET and any("auc" in metrics for metrics in self.final.values())


@dataclass(frozen=True)
class RunFolder:
    """The folder of one run."""

    path: Path

    def begin(self) -> None:
        """Empty the folder for a run that starts from its first round."""
        shutil.rmtree(self.path, ignore_errors=True)
        self.path.mkdir(parents=True)

    def finished(self) -> Outcome | None:
        """Return the outcome of the run, or None if it is not finished.

        Raises:
            DamagedRun: the outcome's file holds something else.
        """
        return read_whole(self.path / "run.json", Outcome)

    @property
    def has_clients(self) -> bool:
        """Whether the metrics of each client are there."""
        return (self.path / _CLIENTS).is_file()

    def write_clients(self, clients: pa.Table) -> None:
        """Write the metrics of each client."""
        write_table(self.path / _CLIENTS, clients)

    def finish(
        self,
        outcome: Outcome,
        metrics: pa.Table,
        best: FloatArray,
        last: FloatArray,
        earlier: Iterable[Environment] = (),
    ) -> None:
        """Write the results of the run: metrics, weights of the best and of the last version, and finally the outcome.

        ``earlier`` are the environments in which it was computed before it came to this process. The progress file is
        then removed, because the metrics contain the same.
        """
        write_table(self.path / "metrics.parquet", metrics)
        for name, weights in (("best", best), ("last", last)):
            with open(self.path / f"{name}.npy", "wb") as sink:
                np.save(sink, weights)
        write_environment(self.path, earlier)
        write_document(self.path / "run.json", outcome)
        for path in (self.path / PROGRESS, self.path / CHECKPOINT, *self.path.glob(STATES)):
            path.unlink(missing_ok=True)

    def metrics(self) -> pa.Table:
        """Return the run's metrics."""
        import pyarrow.parquet as pq

        return pq.read_table(self.path / "metrics.parquet", partitioning=None)


def write_table(file: Path, table: pa.Table) -> None:
    """Write a table as Parquet atomically."""
    import pyarrow.parquet as pq

    write_whole(file, lambda hidden: pq.write_table(table, hidden, compression="zstd"))
