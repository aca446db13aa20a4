"""The compactor, which turns rolled segments of one document type into one Parquet file per partition.

Segments are removed afterwards. A pass may die at any point and is then repeated. Each file names its source segments
in its footer, so that the second pass skips, in each partition, the pings that the first pass landed.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from fedping.protocol.landed_file import printable
from fedping.protocol.landing import open_landing, write_landed
from fedping.protocol.local_files import sync_folder
from fedping.protocol.log import tell
from fedping.protocol.object_store import StorageAway
from fedping.protocol.ping import DOCUMENT_TYPES
from fedping.server_jobs.ingest.backlog import inherited, stem_of
from fedping.server_jobs.ingest.compactor_counts import Newcomers, UploadCounts
from fedping.server_jobs.ingest.counters import Counters
from fedping.server_jobs.ingest.duplicates import RecentDocuments, document_ids, first_of_each, keys_of, recently_landed
from fedping.server_jobs.ingest.partitions import (
    LINE,
    SEGMENT,
    STUDY,
    Layouts,
    Newest,
    Part,
    Source,
    close_abandoned,
    landed_columns,
    landed_segments,
    outcome_parts,
    parts_of,
    read_source,
    segment_note,
    uuid_bytes,
)
from fedping.server_jobs.ingest.quarantine import Piece, count, keep
from fedping.server_jobs.ingest.segments import CLOSED, created_ms, document_in, journal_in, no_segments, segments
from fedping.server_jobs.ingest.settings import LOGGED, MIB, IngestSettings

if TYPE_CHECKING:
    from fedping.server_jobs.ingest.quarantine import FailureNote


PASS_BYTES = 128 * MIB
"""Maximum bytes of the journal that one pass reads. It bounds the pass's memory and the size of files."""


class Compactor:
    """Moves pings from a journal to a landing folder. At most one compactor at a time works on a journal."""

    def __init__(self, settings: IngestSettings, counters: Counters) -> None:
        self._settings = settings
        self._counters = counters
        self._uploads = UploadCounts(settings.counters)
        self._newcomers = Newcomers(settings.counters)
        # Segments whose pings a pass may have landed in part: those of an earlier process, and of a pass that failed.
        self._suspects = {path.name for path in segments(settings.journal, CLOSED)}
        self._told: set[Path] = set()
        self._newest = Newest()
        self._recent: RecentDocuments | None = None
        self._layouts = Layouts(settings.store)

    def has_work(self) -> bool:
        """Return whether a segment has been rolled."""
        return bool(self._ready())

    def run_once(self) -> bool:
        """Compact closed segments, up to :data:`PASS_BYTES`; return whether there were any.

        Raises:
            OSError: a file can't be read or written. No ping is lost; the next call tries again.
            StorageAway: a bucket doesn't respond. No ping is lost; the next call tries again.
        """
        self._tell_of_others()
        self._known()
        if close_abandoned(self._settings.journal, self._set_aside_torn):
            self._suspects.update(path.name for path in segments(self._settings.journal, CLOSED))
        chosen = _first_bytes(_of_one_type(self._ready()), PASS_BYTES)
        if chosen:
            began = time.perf_counter()
            try:
                self._pass(chosen)
            except BaseException:
                self._suspects.update(path.name for path in chosen)
                self._counters.add("failed_passes", 1)
                raise
            self._counters.add("compaction_microseconds", int(1e6 * (time.perf_counter() - began)))
        return bool(chosen)

    def _known(self) -> RecentDocuments:
        """Return the most recently landed documents. They are read once, before the first landing."""
        if self._recent is None:
            self._recent = recently_landed(self._settings.landing)
        return self._recent

    def _tell_of_others(self) -> None:
        """Log entries in the journal that have a segment's name but aren't segments; once for each."""
        for path in no_segments(self._settings.journal):
            if path not in self._told:
                self._told.add(path)
                tell(
                    f"{printable(path)} is not a journal segment: it is not a file, or its name is not UTF-8. It is "
                    "ignored; move it out of the journal",
                    "warning",
                    before=LOGGED,
                )

    def _ready(self) -> list[Path]:
        """Return the closed segments, suspects first: of two equal pings, the possibly landed one must count.

        Segments of an unknown type, written by a newer version of ingest, are kept for an ingest that knows it.
        """
        known = (path for path in segments(self._settings.journal, CLOSED) if document_in(path) in DOCUMENT_TYPES)
        return sorted(known, key=lambda path: path.name not in self._suspects)

    def _pass(self, chosen: Sequence[Path]) -> None:
        sources = [read_source(path, index) for index, path in enumerate(chosen)]
        for source in sources:
            keep(self._settings.quarantine, source.pieces)
        tables = [source.records for source in sources if source.records is not None]
        records = pa.concat_tables(tables, promote_options="default").combine_chunks() if tables else None
        landed = 0 if records is None else self._land(records, chosen)
        self._count(sources, landed)
        for path in chosen:
            path.unlink(missing_ok=True)
        sync_folder(self._settings.journal)
        self._suspects.difference_update(path.name for path in chosen)

    def _land(self, records: pa.Table, chosen: Sequence[Path]) -> int:
        """Write the records' partitions; return the number of landed rows, including those of an earlier attempt."""
        ids = uuid_bytes(records.column("document_id"))
        documents = keys_of(ids, records.column(STUDY))
        first = first_of_each(documents) & ~self._known().holds(documents)
        origin = records.column(SEGMENT).to_numpy()
        note = segment_note(path.name for path in chosen)
        document = DOCUMENT_TYPES[document_in(chosen[0])]
        now_ms = max(int(time.time() * 1000), *(created_ms(path) for path in chosen))
        landing = self._settings.landing
        parts = outcome_parts(records, landing) if document.is_outcome else parts_of(records, landing, self._newest)
        for part in parts:
            done = self._landed_before(part, chosen, origin[part.rows], ids[part.rows])
            rows = part.rows[first[part.rows] & ~done]
            if len(rows):
                study, line = (records.column(name)[int(rows[0])].as_py() for name in (STUDY, LINE))
                table = landed_columns(records.take(pa.array(rows)), self._layouts.document(study, document))
                write_landed(part.folder, table, now_ms, note, shards=self._layouts.shards(study))
                self._counters.add("files", 1)
                if not document.is_outcome:
                    self._uploads.add(study, line, table)
                self._newcomers.add(study, uuid_bytes(records.column("client_id").take(pa.array(rows))), now_ms)
        self._known().add(documents[first])
        return int(first.sum())

    def _landed_before(
        self, part: Part, chosen: Sequence[Path], origin: NDArray[np.int32], ids: NDArray[np.uint8]
    ) -> NDArray[np.bool_]:
        """Return a mask of the rows that an earlier attempt landed; ``origin`` has each row's index in ``chosen``.

        If a file of the partition names a segment, it contains all the segment's pings of the partition's version. In
        the shared folder of old versions, the file may cover other versions, so the ids decide.
        """
        suspects = [index for index, path in enumerate(chosen) if path.name in self._suspects]
        if not suspects:
            return np.zeros(len(origin), np.bool_)
        # A file's time is not before that of any of its segments, so older files need not be checked.
        named = landed_segments(part.folder, min(created_ms(chosen[index]) for index in suspects))
        done: NDArray[np.bool_] = np.isin(origin, [index for index in suspects if chosen[index].name in named])
        if part.is_shared and done.any():
            landed = {i.tobytes() for file in set().union(*named.values()) for i in document_ids(file)}
            done &= np.fromiter((i.tobytes() in landed for i in ids), np.bool_, len(ids))
        return done

    def _set_aside_torn(self, pieces: Iterable[Piece]) -> None:
        keep(self._settings.quarantine, pieces)
        count(self._counters, pieces)

    def _count(self, sources: Sequence[Source], landed: int) -> None:
        """Count a pass. Its segments are removed only afterwards (:func:`.backlog.missing` relies on this)."""
        others = inherited(self._settings)
        rows = sum(source.records.num_rows for source in sources if source.records is not None)
        self._counters.add("landed", landed)
        self._counters.add("duplicates", rows - landed)
        for source in sources:
            count(self._counters, source.pieces)
        self._counters.add("inherited", sum(s.rows for s in sources if stem_of(s.segment) in others))
        self._counters.add("passes", 1)
        self._uploads.write()
        self._newcomers.write()


def _of_one_type(paths: Sequence[Path]) -> list[Path]:
    """Return the paths that have the first path's journal, and thus the same columns."""
    return [path for path in paths if journal_in(path) == journal_in(paths[0])]


def _first_bytes(paths: Sequence[Path], most: int) -> list[Path]:
    """Return the first paths, at least one, whose files have at most ``most`` bytes in total."""
    chosen: list[Path] = []
    size = 0
    for path in paths:
        size += path.stat().st_size
        if chosen and size > most:
            break
        chosen.append(path)
    return chosen


def clear_unfinished(settings: IngestSettings, older_than_s: float = 3600.0) -> None:
    """Remove hidden files of dead writers after an hour; newer files may still be written."""
    for path in (*open_landing(settings.landing).unfinished_files(), *settings.journal.glob(".*.new")):
        with contextlib.suppress(FileNotFoundError):  # another host that shares the landing folder may clear it too
            if time.time() - path.stat().st_mtime > older_than_s:
                path.unlink()


LAST_ATTEMPTS = 3
"""Number of attempts to land the last pings in a folder. For a bucket there is one attempt, because its requests are
already retried."""


def attempt(compactor: Compactor, note: FailureNote) -> bool | None:
    """Run one pass; return whether it compacted any segments. On failure, log and note it, and return None."""
    try:
        compacted = compactor.run_once()
    except (OSError, StorageAway) as error:
        tell(f"compaction failed and is retried: {error}", before=LOGGED)
        note.failed(str(error))
        return None
    except Exception as error:  # this process ends; the message may quote a ping, so it is not noted
        note.failed(f"{type(error).__name__}, see ingest's log")
        raise
    note.succeeded()
    return compacted


def compact_the_rest(compactor: Compactor, note: FailureNote, attempts: int = LAST_ATTEMPTS) -> bool:
    """Compact all closed segments; return False after ``attempts`` failed passes."""
    failures = 0
    while failures < attempts:
        match attempt(compactor, note):
            case False:
                return True
            case None:
                failures += 1
    return False
