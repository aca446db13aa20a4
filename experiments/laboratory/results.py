"""The files of an experiment's output: a folder per run, with its metrics, progress and outcome.

    <out>/experiment.json            the settings, which identify the folder
    <out>/units.json                 all runs in their order, written before the first begins
    <out>/runs/<variant>/<repetition>/   metrics.parquet, best.npy, last.npy (weights), run.json
    <out>/baselines/<baseline>/<repetition>/   the same for the baselines
    <out>/metrics.parquet            all metrics: variant, seed, fold, round, split, metric, value
    <out>/summary.json               means with bands of the final models, and the best variant (summary.py)
    <out>/report.html                the same with pictures (report.py)
    <folder of a run>/progress.jsonl    while it runs: one line about it, then one line per round

A run is finished when its run.json exists, which is written last. Unfinished runs start again.

The line of a round is an array of rows ``[round, split, metric, value]``, in the order of metrics.parquet, with null
for a value that is not finite. A line is written by one call, so a reader finds whole lines and perhaps the beginning
of one, which it leaves for the next time. When the run is finished metrics.parquet has everything, and the file is
removed. A run that was killed continues with a new file, which begins with the earlier measurements in one line; its
first line distinguishes it from the old file.
"""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, NamedTuple, Self, TypeAlias, get_args

import msgspec
import numpy as np
import pyarrow as pa
from msgspec import UNSET, Struct, UnsetType
from msgspec.structs import force_setattr
from numpy.typing import NDArray

from fedping.client_sim.learning.batch import FloatArray
from fedping.experiments.laboratory.resuming import CHECKPOINT, SENT, STATES, CannotGoOn
from fedping.experiments.run_folder import Environment, read_whole, write_document, write_environment, write_whole
from fedping.protocol.formats import with_format, without_format

_CLIENTS = "clients.parquet"

BINNED = (
    "its AUC was computed from 1,024 bins by an earlier fedping, and can be wrong; run it again with --replace before "
    "you compare it"
)
"""Note for a run with an AUC from bins."""

ESTIMATED = (
    "posted and fetched bytes are estimates, from one ping and one version of each call of rounds compiled by JAX, so "
    'neither run is shown to have fewer; compare the bytes of updates, or run both with engine = "numpy"'
)
"""Note for a comparison with estimated bytes."""

SplitMetrics = dict[str, dict[str, float | None]]
"""Values by split, then by metric; null where a metric is undefined."""


class Outcome(Struct, frozen=True, kw_only=True):
    """One finished run of a variant or a baseline.

    Attributes:
        rounds: the number of rounds run; for a centralised or local baseline, iterations of its optimizer.
        best_round: the round of the tested version: the best on the validation examples, or the last without early
            stopping.
        final: the metrics of that version.
        versions: the number of versions that the rounds published; None for a baseline, and if an earlier fedping ran
            it.
        to_target: the number of rounds until the deciding metric reached its target; None if it never did.
        updates: the total number of the clients' updates.
        update_bytes: the encoded size of these updates; dense ones are 4 bytes per weight.
        posted_bytes: the size of the posted bodies of all pings: compressed batches where the rounds run over HTTP,
            else the uncompressed JSON of each ping. None for a baseline, and if an earlier fedping ran it.
        fetched_bytes: the size of the versions that the clients of all rounds have fetched, once a round each; like
            posted_bytes, None if unknown.
        traffic: "estimated" if posted_bytes and fetched_bytes are estimates, as of rounds compiled by JAX: the sizes of
            one ping and one version of each call, times their numbers.
        uplink_bytes: the name of update_bytes in the files of an earlier fedping; never set after reading.
        clients: the number of clients.
        shown: the metrics for a table, the deciding one first.
        split: the split that the run is evaluated on.
        notes: sentences that a reader of the results should know.
        auc: "exact" if there is an AUC computed from the scores themselves. Without this mark, an earlier fedping
            computed the AUC from 1,024 bins of log-odds between -24 and 24. It is wrong if scores have another scale; a
            note says so.
        simulated_hours: the duration of the run by its [clock]; absent without one.
        hours_to_target: the simulated hours until the deciding metric reached its target; None if it never did.
        seconds: the duration; the only figure here that differs between repeated runs.
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
    traffic: Literal["estimated"] | UnsetType = UNSET
    uplink_bytes: int | UnsetType = UNSET
    auc: Literal["exact"] | UnsetType = UNSET
    simulated_hours: float | UnsetType = UNSET
    hours_to_target: float | UnsetType | None = UNSET

    def __post_init__(self) -> None:
        if self.has_binned_auc and BINNED not in self.notes:
            force_setattr(self, "notes", (*self.notes, BINNED))
        if self.uplink_bytes is not UNSET:
            force_setattr(self, "update_bytes", self.uplink_bytes)
            force_setattr(self, "uplink_bytes", UNSET)

    @property
    def has_estimated_traffic(self) -> bool:
        """Whether the posted and fetched bytes are estimates."""
        return self.traffic is not UNSET

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
            DamagedRun: the outcome's file doesn't contain an outcome.
        """
        return read_whole(self.path / "run.json", Outcome)

    @property
    def has_clients(self) -> bool:
        """Whether the metrics of each client exist."""
        return (self.path / _CLIENTS).is_file()

    def write_clients(self, clients: pa.Table) -> None:
        """Write the metrics of each client."""
        write_table(self.path / _CLIENTS, clients)

    def write_models(self, models: FloatArray) -> None:
        """Write the models of a run with several models, shape (models, m)."""
        with open(self.path / "models.npy", "wb") as sink:
            np.save(sink, models)

    def finish(
        self,
        outcome: Outcome,
        metrics: pa.Table,
        best: FloatArray,
        last: FloatArray,
        earlier: Iterable[Environment] = (),
    ) -> None:
        """Write the results of the run: metrics, weights of the best and of the last version, and finally the outcome.

        ``earlier`` are the environments in which the run was computed before it continued in this process. Finally, the
        progress file is removed, because the metrics have the same contents.
        """
        write_table(self.path / "metrics.parquet", metrics)
        for name, weights in (("best", best), ("last", last)):
            with open(self.path / f"{name}.npy", "wb") as sink:
                np.save(sink, weights)
        write_environment(self.path, earlier)
        write_document(self.path / "run.json", outcome)
        kept = (path for name in (STATES, SENT) for path in self.path.glob(f"{name}.*"))
        for path in (self.path / PROGRESS, self.path / CHECKPOINT, *kept):
            path.unlink(missing_ok=True)

    def metrics(self) -> pa.Table:
        """Return the run's metrics."""
        import pyarrow.parquet as pq

        return pq.read_table(self.path / "metrics.parquet", partitioning=None)


def write_table(file: Path, table: pa.Table) -> None:
    """Write a table as Parquet atomically."""
    import pyarrow.parquet as pq

    write_whole(file, lambda hidden: pq.write_table(table, hidden, compression="zstd"))


Split: TypeAlias = Literal[
    "train",
    "validation",
    "test",
    "central",
    "personal",
    "personal_worst",
    "gain",
    "personal_validation",
    "local",
    "local_worst",
    "newcomers",
    "trained",
    "trained_worst",
    "others",
    "nodes",
    "nodes_worst",
    "attack",
    "privacy",
    "graph",
    "models",
]
"""The splits of metrics.

- ``train``: the cohort as it trained. ``validation``, ``test``: all clients' examples together.
- ``central``, ``personal``: means over the clients, each on its own examples: of the shared model, and of each client's
  model for predictions. ``personal_worst``: ``personal`` over the worst tenth. ``gain``: ``personal`` minus
  ``central``. ``personal_validation``: ``personal`` on validation examples.
- ``local``: the mean over the clients, each on its own test examples. ``local_worst``, ``newcomers``: the same over the
  worst tenth, and over the clients that never train.
- ``trained``: the mean over the clients' own models before they are merged, each on all clients' test examples.
  ``trained_worst``: over the worst tenth. ``others``: each on all other clients' test examples.
- ``nodes``, ``nodes_worst``: the mean over the nodes' own models of gossip averaging, each on all clients' test
  examples, and over the worst tenth.
- ``attack``: the success of an attack. ``privacy``: the spent part of a guarantee.
- ``graph``: the nodes' graph, and the distance of their models. ``models``: the number of models of a run, and their
  distance from their mean.
"""

SPLITS: tuple[Split, ...] = tuple(split for split in get_args(Split) if split != "train")
"""The splits on which versions are measured: all except "train"."""

METRICS_SCHEMA = pa.schema(
    [
        ("variant", pa.string()),
        ("seed", pa.int64()),
        ("fold", pa.int16()),
        ("round", pa.int32()),
        ("split", pa.string()),
        ("metric", pa.string()),
        ("value", pa.float64()),
    ]
)
"""``fold`` is null without cross-validation; ``round`` is the number of rounds done, 0 for the start model."""


@dataclass
class MetricLog:
    """Collects the metrics of one run."""

    variant: str
    seed: int
    fold: int | None
    rows: list[tuple[int, str, str, float]] = field(default_factory=list)

    def add(self, round_: int, split: Split, metrics: Mapping[str, float]) -> None:
        """Add the metrics of one split after a round."""
        self.rows.extend((round_, split, name, float(value)) for name, value in metrics.items())

    def snapshot(self) -> dict[str, NDArray[Any]]:
        """Return the rows as arrays, with splits and metrics as indices of their names."""
        names = list(dict.fromkeys((split, metric) for _, split, metric, _ in self.rows))
        number = {name: at for at, name in enumerate(names)}
        return {
            "exact_auc": np.array(True),
            "round": np.array([row[0] for row in self.rows], np.int32),
            "what": np.array([number[row[1], row[2]] for row in self.rows], np.int32),
            "value": np.array([row[3] for row in self.rows], np.float64),
            "names": np.array(names, np.str_).reshape(-1, 2),
        }

    def check(self, saved: Mapping[str, NDArray[Any]]) -> None:
        """Raise :class:`CannotGoOn` if an earlier fedping has measured an AUC, because it used bins."""
        if "exact_auc" not in saved and "auc" in saved["names"][:, 1]:
            raise CannotGoOn("an earlier fedping computed its AUC from bins")

    def restore(self, saved: Mapping[str, NDArray[Any]]) -> None:
        """Restore the rows that :meth:`snapshot` returned."""
        names = [(str(split), str(metric)) for split, metric in saved["names"].tolist()]
        columns = (saved[key].tolist() for key in ("round", "what", "value"))
        self.rows[:] = [(round_, *names[what], value) for round_, what, value in zip(*columns, strict=True)]

    def table(self) -> pa.Table:
        """Return all metrics with :data:`METRICS_SCHEMA`."""
        count = len(self.rows)
        rounds, splits, names, values = zip(*self.rows, strict=True) if count else ((), (), (), ())
        who = [[self.variant] * count, [self.seed] * count, [self.fold] * count]
        arrays = [*who, rounds, splits, names, values]
        columns = [pa.array(column, field.type) for column, field in zip(arrays, METRICS_SCHEMA, strict=True)]
        return pa.table(columns, schema=METRICS_SCHEMA)


UNITS = "units.json"
PROGRESS = "progress.jsonl"

Row: TypeAlias = tuple[int, str, str, float | None]
"""Rounds done, split, metric, value; for the split "train" the round is the version that training started from."""


class UnitNote(Struct, frozen=True, kw_only=True):
    """One run of an experiment: its repetition, its ``folder`` below the experiment's, and its maximum ``rounds``.

    The rounds of a baseline are not known beforehand: null.
    """

    name: str
    baseline: bool
    seed: int
    fold: int | None
    folder: str
    rounds: int | None


class Begun(Struct, frozen=True, kw_only=True):
    """The first line of a progress file: the time at which the file was begun, in seconds since 1970."""

    begun: float


class Told(NamedTuple):
    """Rows read from a progress file, the time at which the file was begun, and the offset of the rows' end."""

    begun: float
    rows: list[Row]
    offset: int


class _Units(Struct, frozen=True):
    units: list[UnitNote]


def write_units(out: Path, units: Sequence[UnitNote]) -> None:
    """Write the list of runs."""
    write_document(out / UNITS, _Units(list(units)))


def read_units(out: Path) -> list[UnitNote] | None:
    """Return the runs in their order, or None if they were not written.

    Raises:
        DamagedRun: the file doesn't contain a list of runs.
    """
    kinds: Any = _Units | list[UnitNote]  # a bare list from before formats were numbered
    document: _Units | list[UnitNote] | None = read_whole(out / UNITS, kinds)
    return document.units if isinstance(document, _Units) else document


class ProgressFile:
    """Appends a log's new rows to a run's progress file; the first write creates the file.

    So a run that fails before it has measured anything leaves no file.
    """

    def __init__(self, folder: Path, log: MetricLog) -> None:
        self._path, self._log = folder / PROGRESS, log
        self._begun = Begun(begun=time.time())
        self._encoder = msgspec.json.Encoder()
        self._written = 0
        self._file: int | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if self._file is not None:
            os.close(self._file)

    def write(self) -> list[Row]:
        """Write the new rows, and return them."""
        if self._file is None:
            hidden = self._path.with_name(f".{PROGRESS}")
            self._file = os.open(hidden, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND, 0o666)
            os.write(self._file, with_format(self._encoder.encode(self._begun)) + b"\n")
            new = self._write_new()
            hidden.replace(self._path)  # with all rows, if it continues a killed run
            return new
        return self._write_new()

    def _write_new(self) -> list[Row]:
        new: list[Row] = list(self._log.rows[self._written :])
        if new:
            os.write(self._file, self._encoder.encode(new) + b"\n")  # type: ignore[arg-type]
            self._written += len(new)
        return new


def read_progress(folder: Path, begun: float | None = None, offset: int = 0, most: int = -1) -> Told | None:
    """Return the progress of the run in a folder after an offset in bytes; None without a file or a whole line.

    If the file isn't the one ``begun`` at that time, return all of it, as if from offset 0. At most ``most`` bytes are
    read, or all if it is negative.

    Raises:
        NewerFormat: a later version of fedping writes it.
    """
    try:
        with open(folder / PROGRESS, "rb") as file:
            first = file.readline()
            if not first.endswith(b"\n"):
                return None
            whose = msgspec.json.decode(without_format(first, f"the file {folder / PROGRESS}"), type=Begun).begun
            if whose == begun and offset >= len(first):
                file.seek(offset)
            start = file.tell()
            text = file.read(most)
    except FileNotFoundError:
        return None
    whole = text[: text.rfind(b"\n") + 1]
    rows = [row for line in whole.splitlines() for row in _rows.decode(line)]
    return Told(whose, rows, start + len(whole))


_rows = msgspec.json.Decoder(list[Row])


def rounds_of(rows: Sequence[Row]) -> int:
    """Return the number of finished rounds, given a run's rows in order."""
    most = 0
    for round_, split, _, _ in reversed(rows):
        if round_ + 1 < most:
            break
        most = max(most, round_ + (split == "train"))
    return most
