"""Rolled segments as one table: read, checked, and whatever cannot be read set aside."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa

from protocol.documents import DOCUMENT_TYPES, DocumentType
from server_jobs.ingest.compaction.columns import SEGMENT, read_records
from server_jobs.ingest.journal.frames import Contents, payloads, scan
from server_jobs.ingest.journal.segment import CLOSED, OPEN, document_in, is_abandoned, segments


@dataclass(frozen=True)
class Source:
    """What one segment holds: its records, and the pieces that cannot be read."""

    segment: Path
    records: pa.Table | None
    damaged: tuple[bytes, ...]


def close_abandoned(journal: Path) -> int:
    """Close the segments whose writers died, each cut after its last whole frame; return how many.

    What is cut was being written when its writer died: nobody was told that it is stored.
    """
    abandoned = [path for path in segments(journal, OPEN) if is_abandoned(path)]
    for path in abandoned:
        _cut_torn_tail(path)
        os.rename(path, path.with_suffix(CLOSED))
    return len(abandoned)


def _cut_torn_tail(path: Path) -> None:
    data = path.read_bytes()
    torn = scan(data).torn_at(len(data))
    if torn is not None:
        with open(path, "r+b") as file:
            file.truncate(torn)
            os.fsync(file.fileno())


def read_source(segment: Path, index: int) -> Source:
    """Return the records of a closed segment, each marked with ``index``."""
    data = segment.read_bytes()
    contents = scan(data)
    damaged = [data[start:end] for start, end in contents.damaged]
    tables, unreadable = _tables(data, contents, DOCUMENT_TYPES[document_in(segment)])
    records = pa.concat_tables(tables) if tables else None
    if records is not None:
        records = records.append_column(SEGMENT, pa.array(np.full(records.num_rows, index, np.int32)))
    return Source(segment, records, (*damaged, *unreadable))


def _tables(data: bytes, contents: Contents, document: DocumentType) -> tuple[list[pa.Table], list[bytes]]:
    """Parse all frames at once; if that fails one by one, so that a bad frame costs nothing but itself."""
    if not contents.frames:
        return [], []
    try:
        return [read_records(b"".join(payloads(data, contents.frames)), document)], []
    except (pa.ArrowException, ValueError):
        return _frame_by_frame(data, contents, document)


def _frame_by_frame(data: bytes, contents: Contents, document: DocumentType) -> tuple[list[pa.Table], list[bytes]]:
    tables, unreadable = [], []
    for frame in contents.frames:
        payload = data[frame.start : frame.end]
        try:
            tables.append(read_records(payload, document))
        except (pa.ArrowException, ValueError):
            unreadable.append(payload)
    return tables, unreadable
