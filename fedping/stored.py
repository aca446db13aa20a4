"""Access to a store's versions and to landed pings from a program or a notebook."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from fedping.error_text import python_names
from fedping.model_store.store import ModelStore
from fedping.model_store.store import open_store as open_model_store
from fedping.model_store.version import Version
from fedping.protocol.errors import FedpingError, InvalidSettings
from fedping.protocol.landed_file import BATCH_ROWS, check_columns, closest_document, open_landed, schema_of
from fedping.protocol.landing import NO_LINE, open_landing
from fedping.protocol.location import Place, place_of
from fedping.protocol.study import Study

if TYPE_CHECKING:
    import pyarrow as pa


@dataclass(frozen=True, eq=False)
class StoredVersion:
    """One published version of a line.

    Attributes:
        study: name of the study.
        line: name of the model line.
        iteration: number of the version, from 0.
        parent: the number of the version that it was computed from; None for version 0.
        created: time of the version, in UTC, as ISO 8601.
        digest: SHA-256 of the whole document, recorded in the next version.
        names: the names of the m weights.
        weights: the weights that the optimizer continues from, shape (m,), read-only.
        model: the weights that clients fetch, shape (m,), read-only; integer ones are rounded.
        lineage: origin and inputs of the version, as `fedping store show` prints them: ``origin`` ("created", "round",
            "rollback", "continued"), ``inputs`` (the files of pings), ``counts`` of pings by outcome, ``arms`` with
            their mean loss, ``aggregate`` with the mean update, ...
    """

    study: str
    line: str
    iteration: int
    parent: int | None
    created: str
    digest: str
    names: Sequence[str]
    weights: NDArray[np.float64]
    model: NDArray[np.float64]
    lineage: dict[str, Any]


@dataclass(frozen=True)
class Store:
    """A model store, read-only. Every method raises :class:`fedping.StoreError` for missing or damaged documents."""

    path: Place
    _store: ModelStore

    def studies(self) -> list[str]:
        """Return the names of the studies, sorted."""
        return self._store.studies.names()

    def study(self, name: str) -> Study:
        """Return a study's settings: its arms and its lines."""
        return self._store.study(name)

    def lines(self, study: str) -> list[str]:
        """Return the names of a study's model lines, in its order."""
        return [line.name for line in self._store.study(study).lines]

    def iterations(self, study: str, line: str) -> list[int]:
        """Return the numbers of a line's versions, in their order."""
        self._store.study(study).line(line)
        return self._store.iterations(study, line)

    def version(self, study: str, line: str, iteration: int | None = None) -> StoredVersion:
        """Return a version; the newest if ``iteration`` is None.

        Raises:
            MissingVersion: the line has no version of this number.
        """
        version = self._store.head(study, line) if iteration is None else self._store.version(study, line, iteration)
        # A document omits the names in blocks of weights, which the spec abbreviates.
        return _stored(version, version.names or self._store.study(study).line(line).spec.names)

    def versions(self, study: str, line: str) -> Iterator[StoredVersion]:
        """Yield all versions of a line, in their order; one is in memory at a time."""
        for number in self.iterations(study, line):
            yield self.version(study, line, number)


def open_store(path: str | Path) -> Store:
    """Open a model store for reading, in a folder or at ``s3://``, ``gs://`` or ``az://``.

    Raises:
        StoreError: the store does not exist.
    """
    with python_names(store="'path'"):
        place = place_of(path)
        return Store(place, open_model_store(place))


def _stored(version: Version, names: Sequence[str]) -> StoredVersion:
    return StoredVersion(
        study=version.study,
        line=version.line,
        iteration=version.iteration,
        parent=version.parent,
        created=version.created,
        digest=version.digest,
        names=names,
        weights=_vector(version.weights),
        model=_vector(version.model),
        lineage=msgspec.to_builtins(version.lineage),
    )


def _vector(values: Sequence[float]) -> NDArray[np.float64]:
    vector = np.array(values, dtype=np.float64)
    vector.flags.writeable = False
    return vector


def read_pings(
    landing: str | Place,
    study: str,
    *,
    line: str | None = None,
    iteration: int | None = None,
    columns: Sequence[str] | None = None,
    rows: int = BATCH_ROWS,
) -> Iterator[pa.RecordBatch]:
    """Yield a study's landed pings as Arrow batches, verified against the files' checksums.

    Pings are ordered by line, iteration and time of landing. A client that gets no answer resends its ping: count each
    ``document_id`` of a study once. Columns are those of docs/schema/landed.txt, or of landed-model.txt for a study of
    model updates.

    Args:
        landing: the landing folder, or its address in a bucket.
        study: name of the study.
        line: only the pings of one line; "none" for arms without a line.
        iteration: only the folder of one model version; versions that were over 100 behind share the folder -2.
        columns: the columns to read; None for all.
        rows: maximum rows of a batch; this and the largest row group of a file bound the memory.

    Raises:
        FedpingError: no pings of the study have landed, or they lack a column.
        UnreadableFile: a file is damaged, or is not a file of landed pings.
    """
    if rows < 1:
        raise InvalidSettings(f"rows is {rows}; give at least 1")
    root = place_of(landing)
    folders = open_landing(root).lines(study)
    if not folders or (line is not None and line not in folders):
        where = f"line '{line}' of study '{study}'" if folders else f"study '{study}'"
        raise FedpingError(f"no pings of {where} have landed in {root}; check the names")
    return _batches(_files(root, study, folders if line is None else [line], iteration), columns, rows)


def read_outcomes(
    landing: str | Place, study: str, *, columns: Sequence[str] | None = None, rows: int = BATCH_ROWS
) -> Iterator[pa.RecordBatch]:
    """Yield a study's landed later outcomes as Arrow batches, verified like :func:`read_pings`.

    Outcomes are ordered by day of receipt and time of landing; each row has the value of one declared column. Count
    each ``document_id`` of a study once. A column that was declared while the study ran is null in earlier files.

    Args:
        landing: the landing folder, or its address in a bucket.
        study: name of the study.
        columns: the columns to read; None for all.
        rows: maximum rows of a batch.

    Raises: FedpingError: no later outcomes of the study have landed, or they lack a column. UnreadableFile: a file is
        damaged, or is not a file of landed pings.
    """
    if rows < 1:
        raise InvalidSettings(f"rows is {rows}; give at least 1")
    root = place_of(landing)
    files = open_landing(root).outcome_files(study)
    if not files:
        raise FedpingError(f"no later outcomes of study '{study}' have landed in {root}; check the names")
    return _batches(files, columns, rows)


def _files(landing: Place, study: str, lines: Sequence[str], iteration: int | None) -> list[Place]:
    return [
        path
        for line in lines
        for number, files in open_landing(landing).files_by_iteration(study, None if line == NO_LINE else line).items()
        if iteration in (None, number)
        for path in files
    ]


def _batches(files: Sequence[Place], columns: Sequence[str] | None, rows: int) -> Iterator[pa.RecordBatch]:
    from fedping.protocol.arrow import landed_schema

    for path in files:
        file = open_landed(path)
        schema, document = schema_of(file), closest_document(file)
        check_columns(file, document, landed_schema(document).names)
        wanted = schema.names if columns is None else columns
        absent = [_elsewhere(name, files, path, schema.names) for name in wanted if name not in schema.names]
        there = [name for name in wanted if name in schema.names]
        for batch in file.batches(there, rows=rows):
            yield _with_nulls(batch, absent, wanted) if absent else batch


def _elsewhere(name: str, files: Sequence[Place], path: Place, known: Sequence[str]) -> pa.Field:
    """Return the field of a column that a file lacks, from a newer file of the study; the column was declared later."""
    for other in files:
        if name in (schema := schema_of(open_landed(other))).names:
            return schema.field(name)
    raise FedpingError(f"the pings in {path} have no column '{name}'; they have {', '.join(known)}")


def _with_nulls(batch: pa.RecordBatch, absent: Sequence[pa.Field], wanted: Sequence[str]) -> pa.RecordBatch:
    import pyarrow as pa

    made = {field.name: pa.nulls(len(batch), field.type) for field in absent}
    made |= {name: batch.column(name) for name in batch.schema.names}
    return pa.RecordBatch.from_pydict({name: made[name] for name in wanted})
