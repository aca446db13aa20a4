"""The journal of one type of pings, and those of all types.

The first request into a batch leads it: while the previous batch is being flushed others join, then the leader writes
them all as one frame, flushes, and releases them. Pings are on disk when :meth:`Journal.append` returns.

An open file that was removed can be written and flushed as if nothing had happened. So before a commit is answered its
segment is checked under its name; if it is not there, its whole contents are written again to another segment.

With one journal per type, segments can be read as columns, all at once, and a type that nobody sends costs nothing.
"""

from __future__ import annotations

import errno
import math
import threading
import time
from pathlib import Path

from fedping.protocol.documents import DOCUMENT_TYPES, DocumentType
from fedping.protocol.log import tell
from fedping.server_jobs.ingest.counters import Counters
from fedping.server_jobs.ingest.journal.segment import SegmentWriter
from fedping.server_jobs.ingest.settings import LOGGED

FULL = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})


TELL_EVERY = 60.0
"""Seconds between two lines of the log on pings that could not be written."""


class NotStored(Exception):
    """The pings are not on disk. ``full`` says that the disk is full."""

    def __init__(self, cause: str, full: bool) -> None:
        super().__init__(cause)
        self.full = full


class _Batch:
    __slots__ = ("cause", "full", "led", "parts", "released", "rows", "stored")

    def __init__(self) -> None:
        self.parts: list[bytes] = []
        self.rows = 0
        self.led = False
        self.stored = False
        # In words: the exception itself would keep the stack frame that holds this batch, with every part of it.
        self.cause = ""
        self.full = False
        # Held until the batch is on disk. Each waiting request acquires and releases it, which is the cheapest way to
        # release many; an Event would create a lock for each of them.
        self.released = threading.Lock()
        self.released.acquire()


class Journal:
    """The journal of one process and one document type, in a folder that others write to as well."""

    def __init__(self, folder: Path, roll_bytes: int, counters: Counters, document: str) -> None:
        self._folder = folder
        self._roll_bytes = roll_bytes
        self._counters = counters
        self._document = document
        self._gate = threading.Lock()
        self._disk = threading.Lock()
        self._gathering = _Batch()
        self._segment: SegmentWriter | None = None
        self._told = -math.inf
        self._lost = False  # whether the segment is known to be missing, and could not be written again

    def append(self, lines: bytes, rows: int) -> None:
        """Return once the JSON lines of ``rows`` pings are on disk; raises :class:`NotStored` if they are not."""
        with self._gate:
            batch = self._gathering
            batch.parts.append(lines)
            batch.rows += rows
            leads = not batch.led
            batch.led = True
        if leads:
            self._commit(batch)
        else:
            batch.released.acquire()
            batch.released.release()
        if not batch.stored:
            raise NotStored(batch.cause, batch.full)

    def roll(self, older_than: float = 0.0) -> None:
        """Roll the segment now if it exists and is at least ``older_than`` seconds old.

        Raises:
            OSError: it was removed and cannot be written again; it is kept, and the next call tries again.
        """
        with self._disk:
            if self._segment is not None and time.monotonic() - self._segment.began >= older_than:
                self._roll()

    def keep(self) -> None:
        """Write the segment again if somebody removed it since the last commit; a failure is logged and retried."""
        with self._disk:
            try:
                self._put_in_place()
            except OSError as error:
                self._tell_lost(error)

    def _commit(self, batch: _Batch) -> None:
        with self._disk:
            with self._gate:
                self._gathering = _Batch()
            try:
                self._store(batch)
                batch.stored = True
            except OSError as error:
                batch.cause, batch.full = str(error), error.errno in FULL
                self._tell_refused(error)
                self._abandon(error)
            finally:
                batch.released.release()

    def _store(self, batch: _Batch) -> None:
        began = time.perf_counter()
        if self._lost:
            self._put_in_place()
        if self._segment is None:
            self._segment = SegmentWriter(self._folder, int(time.time() * 1000), self._document)
        written = self._segment.append(b"".join(batch.parts), batch.rows)
        if not self._segment.seems_in_place():
            self._put_in_place()
        self._count(batch.rows, written, time.perf_counter() - began)
        if self._segment.size >= self._roll_bytes:
            self._roll()

    def _put_in_place(self) -> None:
        """Write the segment again, to another file, if it is not where others look for it."""
        if self._segment is not None and not self._segment.is_in_place():
            gone, self._segment = self._segment.path, self._segment.saved()
            self._counters.add("rescued", 1)
            tell(
                f"the journal segment {gone} was removed or moved while it was being written; the {self._segment.size} "
                f"bytes in it were written again to {self._segment.path}: leave the journal folder to ingest",
                "warning",
                before=LOGGED,
            )
        self._lost = False

    def _tell_lost(self, error: OSError) -> None:
        if self._segment is not None and not self._lost:
            tell(
                f"the journal segment {self._segment.path} was removed or moved while it was being written, and cannot "
                f"be written again ({error}); no ping is accepted until it can: mend the journal folder, and do not "
                "stop ingest before, for nothing else holds these pings",
                before=LOGGED,
            )
        self._lost = self._segment is not None

    def _tell_refused(self, error: OSError) -> None:
        """Log, once a minute, why pings are refused."""
        if time.monotonic() - self._told < TELL_EVERY:
            return
        self._told = time.monotonic()
        what = "is full; free some space" if error.errno in FULL else "cannot be written; see to it"
        tell(
            f"the disk of the journal {self._folder} {what} ({error.strerror}). Pings are refused until then, and "
            "clients send them again",
            before=LOGGED,
        )

    def _count(self, rows: int, written: int, seconds: float) -> None:
        """Count a commit. Only the leader, who holds the disk, does so, so that no count is lost."""
        self._counters.add("accepted", rows)
        self._counters.add("commits", 1)
        self._counters.add("journal_bytes", written)
        self._counters.add("commit_microseconds", int(seconds * 1e6))

    def _roll(self) -> None:
        while self._segment is not None and not self._segment.roll():
            self._put_in_place()
        self._segment = None

    def _abandon(self, error: OSError) -> None:
        """Switch to another segment after a failed append, unless nobody else could then find this one's pings."""
        if self._segment is None:
            return
        cut = self._segment.cut()
        if not self._segment.is_in_place():
            self._tell_lost(error)
        elif not cut:
            self._segment.leave()
            self._segment = None
        elif self._segment.roll():
            self._segment = None


class Journals:
    """A :class:`Journal` for each document type, all in one folder."""

    def __init__(self, folder: Path, roll_bytes: int, counters: Counters) -> None:
        self._journals = {name: Journal(folder, roll_bytes, counters, name) for name in DOCUMENT_TYPES}

    def of(self, document: DocumentType) -> Journal:
        """Return the journal of a document type."""
        return self._journals[document.name]

    def keep(self) -> None:
        """Write again every segment that somebody removed."""
        for journal in self._journals.values():
            journal.keep()

    def roll(self) -> None:
        """Roll every segment."""
        for journal in self._journals.values():
            journal.roll()
