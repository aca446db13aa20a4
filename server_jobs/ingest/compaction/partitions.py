"""Where pings are compacted to and from: the segments to read, and the landing folder's partitions."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import msgspec
import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from fedping.protocol.documents import DOCUMENT_TYPES, DocumentType
from fedping.protocol.landed_file import UnreadableFile, open_landed
from fedping.protocol.landing import APART, OLDER, landed_at, landed_files, partition
from fedping.protocol.location import Place, base_name
from fedping.protocol.ping import NO_VERSION
from fedping.server_jobs.ingest.compaction.columns import LINE, SEGMENT, STUDY, read_records
from fedping.server_jobs.ingest.compaction.quarantine import Piece, pieces_of
from fedping.server_jobs.ingest.journal.frames import Damage, Frame, payloads, scan
from fedping.server_jobs.ingest.journal.segment import CLOSED, OPEN, document_in, is_abandoned, segments

SEGMENTS_KEY = b"fedping.segments"
"""Footer key of a landed file: the names of the journal segments that its pings came from."""


@dataclass(frozen=True)
class Part:
    """The records of one partition, as row numbers of their table."""

    folder: Place
    rows: NDArray[np.int64]

    @property
    def is_shared(self) -> bool:
        """Whether the partition holds pings of several versions."""
        return base_name(self.folder) == f"iteration={OLDER}"


class Newest:
    """The newest version of each line among the pings so far; never newer than the published one.

    It comes from admitted pings and not from the store, so that pings land whether or not the store can be read, nor
    from the landing folder, where anything may lie. The window is counted from here, so it reaches further back than
    from the published version: what a round may still ask for always has its own folder.
    """

    def __init__(self) -> None:
        self._versions: dict[tuple[str, str | None], int] = {}

    def seen(self, study: str, line: str | None, version: int) -> int:
        """Record a version and return the newest so far."""
        newest = self._versions[study, line] = max(version, self._versions.get((study, line), NO_VERSION))
        return newest


def parts_of(records: pa.Table, landing: Place, newest: Newest) -> Iterator[Part]:
    """Yield the partitions of records; together they hold every row once.

    There are at most :data:`fedping.protocol.landing.APART` + 3 per line, whatever versions its pings claim.
    """
    studies, lines = (records.column(name).combine_chunks().dictionary_encode() for name in (STUDY, LINE))
    versions = records.column("model_version").to_numpy().astype(np.int64)
    of_line = np.stack([_codes(studies), _codes(lines)], axis=1)
    for (study, line), where in _groups(of_line):
        names = studies.dictionary[int(study)].as_py(), None if line < 0 else lines.dictionary[int(line)].as_py()
        mine = versions[where]
        oldest = newest.seen(*names, int(mine.max())) - APART
        folders = np.where((mine >= oldest) | (mine == NO_VERSION), mine, OLDER)
        for (folder,), rows in _groups(folders[:, None]):
            yield Part(partition(landing, *names, int(folder)), where[rows])


def _groups(keys: NDArray[np.int64]) -> Iterator[tuple[NDArray[np.int64], NDArray[np.int64]]]:
    """Yield every distinct row of keys, shape (k, n), and its positions, in order."""
    if not len(keys):
        return
    distinct, inverse = np.unique(keys, axis=0, return_inverse=True)
    order = np.argsort(inverse.ravel(), kind="stable")
    bounds = np.searchsorted(inverse.ravel()[order], np.arange(len(distinct) + 1))
    for key, low, high in zip(distinct, bounds[:-1], bounds[1:], strict=True):
        yield key, order[low:high]


def _codes(column: pa.DictionaryArray) -> NDArray[np.int64]:
    codes: NDArray[np.int64] = column.indices.fill_null(-1).to_numpy(zero_copy_only=False).astype(np.int64)
    return codes


def segment_note(names: Iterable[str]) -> dict[bytes, bytes]:
    """Return the footer entry that names source segments."""
    return {SEGMENTS_KEY: msgspec.json.encode(sorted(names))}


def landed_segments(folder: Place, since_ms: int) -> dict[str, set[Place]]:
    """Return the segments named in the footers of a partition's files that were landed at or after ``since_ms``.

    Each comes with the files that name it.
    """
    names: dict[str, set[Place]] = {}
    for file in landed_files(folder):
        stamp = landed_at(file)
        if stamp is not None and stamp >= since_ms:
            for name in _segments_named(file):
                names.setdefault(name, set()).add(file)
    return names


def _segments_named(file: Place) -> list[str]:
    try:
        metadata = open_landed(file).footer.metadata or {}
        return msgspec.json.decode(metadata.get(SEGMENTS_KEY, b"[]"), type=list[str])
    except (UnreadableFile, msgspec.MsgspecError, UnicodeDecodeError, OSError):
        return []  # A foreign or damaged file: not one of ours, and the round will report it.


@dataclass(frozen=True)
class Source:
    """The contents of one segment: its records, and the pieces that cannot be read."""

    segment: Path
    records: pa.Table | None
    pieces: tuple[Piece, ...]

    @property
    def rows(self) -> int:
        """The number of its pings, including those that cannot be read."""
        return (0 if self.records is None else self.records.num_rows) + sum(piece.damage.rows for piece in self.pieces)


def close_abandoned(journal: Path, set_aside: Callable[[Iterable[Piece]], None]) -> int:
    """Close the segments whose writers died, and return how many there were.

    An unfinished write, whose pings nobody was told are stored, is given to ``set_aside`` and cut off. Any other damage
    stays where it is, for whoever reads the closed segment.
    """
    abandoned = [path for path in segments(journal, OPEN) if is_abandoned(path)]
    for path in abandoned:
        _cut_torn_tail(path, set_aside)
        os.rename(path, path.with_suffix(CLOSED))
    return len(abandoned)


def _cut_torn_tail(path: Path, set_aside: Callable[[Iterable[Piece]], None]) -> None:
    data = path.read_bytes()
    torn = [piece for piece in scan(data, unfinished=True).damaged if piece.cause == "torn"]
    if torn:
        set_aside(pieces_of(path, data, torn))
        with open(path, "r+b") as file:
            file.truncate(torn[0].start)
            os.fsync(file.fileno())


def read_source(segment: Path, index: int) -> Source:
    """Return the records of a closed segment, each marked with ``index``."""
    data = segment.read_bytes()
    contents = scan(data)
    tables, unreadable = _tables(data, contents.frames, DOCUMENT_TYPES[document_in(segment)])
    records = pa.concat_tables(tables) if tables else None
    if records is not None:
        records = records.append_column(SEGMENT, pa.array(np.full(records.num_rows, index, np.int32)))
    return Source(segment, records, pieces_of(segment, data, (*contents.damaged, *unreadable)))


def _tables(data: bytes, frames: tuple[Frame, ...], document: DocumentType) -> tuple[list[pa.Table], list[Damage]]:
    """Parse all frames at once, or, if that fails, one by one, so that a bad frame costs nothing but itself."""
    if not frames:
        return [], []
    try:
        return [_checked(b"".join(payloads(data, frames)), sum(frame.rows for frame in frames), document)], []
    except (pa.ArrowException, ValueError):
        return _frame_by_frame(data, frames, document)


def _frame_by_frame(
    data: bytes, frames: tuple[Frame, ...], document: DocumentType
) -> tuple[list[pa.Table], list[Damage]]:
    tables, unreadable = [], []
    for frame in frames:
        try:
            tables.append(_checked(data[frame.start : frame.end], frame.rows, document))
        except (pa.ArrowException, ValueError):
            unreadable.append(Damage(frame.start, frame.end, frame.rows, "records"))
    return tables, unreadable


def _checked(lines: bytes, rows: int, document: DocumentType) -> pa.Table:
    """Return the records in lines, exactly ``rows`` of them; raises ValueError if there are more or fewer."""
    records = read_records(lines, document)
    if records.num_rows != rows:
        raise ValueError(f"there are {records.num_rows} records, and {rows} were written")
    return records
