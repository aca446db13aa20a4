"""The progress of a running experiment: its runs, and the metrics of each as they come.

    <out>/units.json                    all runs in their order, written before the first begins
    <folder of a run>/progress.jsonl    while it runs: one line about it, then one line per round

The line of a round is an array of rows ``[round, split, metric, value]``, in the order of metrics.parquet, with null
for a value that is not finite. A line is written by one call, so a reader finds whole lines and perhaps the beginning
of one, which it leaves for the next time. When the run is finished metrics.parquet has everything, and the file is
removed. A run that was killed continues with a new file, which begins with the earlier measurements in one line; its
first line distinguishes it from the old file.
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, NamedTuple, Self, TypeAlias, get_args

import msgspec
import numpy as np
import pyarrow as pa
from msgspec import Struct
from numpy.typing import NDArray

from fedping.experiments.laboratory.resuming import CannotGoOn
from fedping.experiments.run_folder import read_whole, write_document
from fedping.protocol.formats import with_format, without_format

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
]
"""What a metric is of: the cohort as it trained; all clients' validation or test examples together; the mean over the
clients, each on its own examples, of the shared model, and of what each predicts with; the latter over the worst tenth
of them, less the former, and on validation examples; the mean over the clients, each on its own test examples, over the
worst tenth of them, and over those that never train; the mean over the clients' own models before they are merged, each
on everybody's test examples, over the worst tenth, and on everybody else's; the mean over the nodes' own models of
gossip averaging, each on everybody's test examples, and over the worst tenth; how far an attack has come; what of a
guarantee is spent; and the nodes' graph, and how far apart their models are."""

SPLITS: tuple[Split, ...] = tuple(split for split in get_args(Split) if split != "train")
"""Those that a version is measured by."""

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
        """Raise :class:`CannotGoOn` if an earlier fedping has measured an AUC, which was of bins."""
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
"""Rounds done, split, metric, value; for the split "train" the round is the version trained from."""


class UnitNote(Struct, frozen=True, kw_only=True):
    """One run of an experiment: its repetition, its ``folder`` below the experiment's, and ``rounds`` at most.

    The rounds of a baseline are not known beforehand: null.
    """

    name: str
    baseline: bool
    seed: int
    fold: int | None
    folder: str
    rounds: int | None


class Begun(Struct, frozen=True, kw_only=True):
    """The first line of a run's file: when it was begun (seconds since 1970)."""

    begun: float


class Told(NamedTuple):
    """The contents of a run's file: who wrote it, the rows after the requested offset, and where they end."""

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
        DamagedRun: the file holds something else.
    """
    kinds: Any = _Units | list[UnitNote]  # a bare list from before formats were numbered
    found: _Units | list[UnitNote] | None = read_whole(out / UNITS, kinds)
    return found.units if isinstance(found, _Units) else found


class ProgressFile:
    """Writes what has been added to a log since the last write; the first write creates the file.

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
    """Return what the run in a folder has written after an offset, in bytes; None without a file, or without a line.

    If the file is not the one that was ``begun`` at that time, all of it is returned, as if from offset 0. At most
    ``most`` bytes are read, or all if it is negative.

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
            said = file.read(most)
    except FileNotFoundError:
        return None
    whole = said[: said.rfind(b"\n") + 1]
    rows = [row for line in whole.splitlines() for row in _rows.decode(line)]
    return Told(whose, rows, start + len(whole))


_rows = msgspec.json.Decoder(list[Row])


def rounds_of(rows: Sequence[Row]) -> int:
    """Return the number of rounds after which the last of some ordered rows was measured."""
    most = 0
    for round_, split, _, _ in reversed(rows):
        if round_ + 1 < most:
            break
        most = max(most, round_ + (split == "train"))
    return most
