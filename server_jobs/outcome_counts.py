"""Counts of landed later outcomes by column, with the number of clients and anomalies."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from msgspec import Struct
from numpy.typing import NDArray

from fedping.protocol.landed_file import open_pings
from fedping.protocol.landing import Landing, id_bytes, open_landing
from fedping.protocol.location import Place
from fedping.protocol.outcomes import Outcome
from fedping.protocol.ping import DocumentType
from fedping.protocol.study import Study
from fedping.server_jobs.ingest.duplicates import first_of_each

_COLUMNS = ["document_id", "client_id", "received_at", "study_variation", "choice"]
_HOUR_MS = 3_600_000


class OutcomeCounts(Struct, frozen=True, kw_only=True):
    """The landed outcomes of one column.

    Attributes:
        column: name of the column.
        outcomes: distinct documents.
        clients: distinct clients with an outcome.
        arms: outcomes by arm.
        repeated: additional rows with a document id that had landed before.
        without_choice: outcomes whose choice hasn't landed, or was pruned; None if outcomes don't name their choice.
        received_late: outcomes that ingest received later than ``within`` after their choice, by ingest's clock; None
            if outcomes don't name their choice.
    """

    column: str
    outcomes: int
    clients: int
    arms: dict[str, int]
    repeated: int
    without_choice: int | None = None
    received_late: int | None = None


def count_outcomes(place: Place, study: Study) -> tuple[OutcomeCounts, ...]:
    """Return the counts of each declared later outcome, in the order of the study.

    Memory grows with the number of outcomes, about 80 bytes each, but not with the number of choices.

    Raises:
        FedpingError: the landing folder doesn't exist, or a file is damaged.
    """
    landing = open_landing(place)
    landing.check()
    if (document := study.later_outcomes) is None:
        return ()
    names = [outcome.name for outcome in document.outcomes]
    rows = _read(landing.outcome_files(study.name), document, [*_COLUMNS, *names])
    first = first_of_each(id_bytes(_one(rows.column("document_id")))) if len(rows) else np.zeros(0, np.bool_)
    chosen_ms = _choices(landing, study, _one(rows.column("choice"))) if len(rows) else np.zeros(0, np.int64)
    return tuple(_counts(outcome, rows, first, chosen_ms) for outcome in document.outcomes)


def _counts(outcome: Outcome, rows: pa.Table, first: NDArray[np.bool_], chosen_ms: NDArray[np.int64]) -> OutcomeCounts:
    is_there = np.asarray(rows.column(outcome.name).is_valid())
    mine = is_there & first
    some = rows.filter(pa.array(mine))
    arms = pc.value_counts(some.column("study_variation").cast(pa.string())).to_pylist()
    late = some.column("received_at").cast(pa.int64()).to_numpy() - chosen_ms[mine]
    without = chosen_ms[mine] < 0
    return OutcomeCounts(
        column=outcome.name,
        outcomes=int(mine.sum()),
        clients=pc.count_distinct(some.column("client_id")).as_py(),
        arms={each["values"]: each["counts"] for each in sorted(arms, key=lambda each: str(each["values"]))},
        repeated=int((is_there & ~first).sum()),
        without_choice=int(without.sum()) if outcome.linked else None,
        received_late=int((~without & (late > (outcome.hours or 0) * _HOUR_MS)).sum()) if outcome.linked else None,
    )


def _read(files: Sequence[Place], document: DocumentType, columns: Sequence[str]) -> pa.Table:
    """Return some columns of all files; null where a file lacks a column."""
    from fedping.protocol.arrow import landed_schema

    schema = pa.schema([landed_schema(document).field(name) for name in columns])
    tables = [schema.empty_table()]
    for file in files:
        landed = open_pings(file, document, columns)
        there = set(landed.footer.schema.to_arrow_schema().names)
        for batch in landed.batches([name for name in columns if name in there]):
            made = {f.name: batch.column(f.name) if f.name in there else pa.nulls(len(batch), f.type) for f in schema}
            tables.append(pa.table(made, schema=schema))
    return pa.concat_tables(tables).unify_dictionaries().combine_chunks()


def _choices(landing: Landing, study: Study, wanted: pa.Array) -> NDArray[np.int64]:
    """Return the times when ingest received the wanted choices, in Unix ms, shape (k,); -1 if not landed."""
    found = np.full(len(wanted), -1, np.int64)
    asked = pc.unique(wanted.drop_null())
    if not len(asked):
        return found
    times = np.full(len(asked), -1, np.int64)
    lines = [*(line.name for line in study.lines), None]
    by_line = (landing.files_by_iteration(study.name, line).values() for line in lines)
    for file in chain.from_iterable(chain.from_iterable(by_line)):
        for batch in open_pings(file, study.document, _COLUMNS[:3]).batches(["document_id", "received_at"]):
            where = pc.index_in(batch.column(0), value_set=asked)
            hit = np.asarray(where.is_valid())
            if hit.any():
                times[where.drop_null().to_numpy()] = batch.column(1).cast(pa.int64()).to_numpy()[hit]
    places = pc.index_in(wanted, value_set=asked)
    known = np.asarray(wanted.is_valid())
    found[known] = times[places.filter(pa.array(known)).to_numpy()]
    return found


def _one(column: pa.ChunkedArray) -> pa.Array:
    combined = column.combine_chunks()
    return combined.chunk(0) if isinstance(combined, pa.ChunkedArray) else combined
