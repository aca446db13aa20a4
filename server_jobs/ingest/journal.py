"""The journal, which stores accepted pings on disk before their requests are answered.

Requests are written in groups. The first request of a group is its leader. While the previous group is flushed,
others join. Then the leader writes all pings as one frame, flushes, and releases the others. Pings are on disk when
:meth:`Journal.append` returns.

Writes to a removed open file succeed silently. So, before a commit is answered, its segment is looked up by name. If
the segment is missing, its whole contents are written to another segment.

Each document type has its own journal, so that segments can be read as columns, and an unused type costs nothing.
Types whose columns differ by study have one journal per study.
"""

from __future__ import annotations

import asyncio
import errno
import math
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TypeAlias

from fedping.protocol.log import tell
from fedping.protocol.ping import DocumentType
from fedping.server_jobs.ingest.counters import Counters
from fedping.server_jobs.ingest.segments import SegmentWriter
from fedping.server_jobs.ingest.settings import LOGGED

FULL = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})


TELL_EVERY = 60.0
"""Minimum seconds between two log lines about pings that couldn't be written."""


class NotStored(Exception):
    """The pings couldn't be written to disk. ``full`` says whether the disk is full."""

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
    """The journal of one process and document type, in a folder shared with other processes."""

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
        """Return once the JSON lines of ``rows`` pings are on disk; raise :class:`NotStored` on failure."""
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
            OSError: the segment was removed and can't be written again. Its contents are kept; the next call tries
                again.
        """
        with self._disk:
            if self._segment is not None and time.monotonic() - self._segment.began >= older_than:
                self._roll()

    def keep(self) -> None:
        """Write the segment again if it was removed since the last commit. A failure is logged and retried."""
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
        """Write the segment again, to another file, if its file was removed or moved."""
        if self._segment is not None and not self._segment.is_in_place():
            gone, self._segment = self._segment.path, self._segment.saved()
            self._counters.add("rescued", 1)
            tell(
                f"the journal segment {gone} was removed or moved while it was being written; its "
                f"{self._segment.size} bytes were written again to {self._segment.path}: let only ingest use the "
                "journal folder",
                "warning",
                before=LOGGED,
            )
        self._lost = False

    def _tell_lost(self, error: OSError) -> None:
        if self._segment is not None and not self._lost:
            tell(
                f"the journal segment {self._segment.path} was removed or moved while it was being written, and "
                f"cannot be written again ({error}); pings are rejected until it can. Repair the journal folder "
                "before you stop ingest, because only its memory holds these pings",
                before=LOGGED,
            )
        self._lost = self._segment is not None

    def _tell_refused(self, error: OSError) -> None:
        """Log the reason for rejected pings, at most once a minute."""
        if time.monotonic() - self._told < TELL_EVERY:
            return
        self._told = time.monotonic()
        what = "is full; free some space" if error.errno in FULL else "cannot be written; repair it"
        tell(
            f"the disk of the journal {self._folder} {what} ({error.strerror}). Pings are rejected until then, and "
            "clients resend them",
            before=LOGGED,
        )

    def _count(self, rows: int, written: int, seconds: float) -> None:
        """Count a commit. Only the group's leader does so, so that concurrent counts aren't lost."""
        self._counters.add("accepted", rows)
        self._counters.add("commits", 1)
        self._counters.add("journal_bytes", written)
        self._counters.add("commit_microseconds", int(seconds * 1e6))

    def _roll(self) -> None:
        while self._segment is not None and not self._segment.roll():
            self._put_in_place()
        self._segment = None

    def _abandon(self, error: OSError) -> None:
        """Switch to another segment after a failed append, unless the compactor couldn't find this segment's pings."""
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
    """The :class:`Journal` objects of all document types, in one folder. Each is created when first needed."""

    def __init__(self, folder: Path, roll_bytes: int, counters: Counters) -> None:
        self._folder, self._roll_bytes, self._counters = folder, roll_bytes, counters
        self._journals: dict[str, Journal] = {}
        self._making = threading.Lock()

    def of(self, document: DocumentType) -> Journal:
        """Return the journal of a document type."""
        name = document.journal
        if (found := self._journals.get(name)) is not None:
            return found
        with self._making:
            if name not in self._journals:
                self._journals[name] = Journal(self._folder, self._roll_bytes, self._counters, name)
            return self._journals[name]

    def keep(self) -> None:
        """Rewrite all removed segments."""
        for journal in list(self._journals.values()):
            journal.keep()

    def roll(self) -> None:
        """Roll every segment."""
        for journal in list(self._journals.values()):
            journal.roll()


_Failure: TypeAlias = tuple[str, bool] | None
"""The arguments of a :class:`NotStored`, whose traceback would keep the pings in memory."""


class Commits:
    """Appends to a :class:`Journal` in a separate thread, for an event loop that must not wait for a disk.

    Call it from one event loop only.
    """

    def __init__(self, journal: Journal) -> None:
        self._journal = journal
        self._disk = ThreadPoolExecutor(1, "commits")
        self._parts: list[bytes] = []
        self._rows = 0
        self._waiting: list[asyncio.Future[_Failure]] = []
        self._is_flushing = False

    async def append(self, lines: bytes, rows: int) -> None:
        """Return once the JSON lines of ``rows`` pings are on disk; raise :class:`NotStored` on failure."""
        loop = asyncio.get_running_loop()
        stored: asyncio.Future[_Failure] = loop.create_future()
        self._parts.append(lines)
        self._rows += rows
        self._waiting.append(stored)
        if not self._is_flushing:
            self._flush(loop)
        if failure := await stored:
            raise NotStored(*failure)

    def _flush(self, loop: asyncio.AbstractEventLoop) -> None:
        """Start to write the collected lines."""
        self._is_flushing = True
        parts, rows, waiting = self._parts, self._rows, self._waiting
        self._parts, self._rows, self._waiting = [], 0, []
        self._disk.submit(self._write, loop, parts, rows, waiting)

    def _write(
        self, loop: asyncio.AbstractEventLoop, parts: list[bytes], rows: int, waiting: list[asyncio.Future[_Failure]]
    ) -> None:
        failure: _Failure = None
        try:
            self._journal.append(b"".join(parts), rows)
        except NotStored as error:
            failure = str(error), error.full
        except Exception as error:  # a defect of ours: the waiting callers get it as a failure
            failure = type(error).__name__, False
        loop.call_soon_threadsafe(self._tell, loop, waiting, failure)

    def _tell(
        self, loop: asyncio.AbstractEventLoop, waiting: list[asyncio.Future[_Failure]], failure: _Failure
    ) -> None:
        self._is_flushing = False
        if self._waiting:
            self._flush(loop)
        for stored in waiting:
            if not stored.done():  # it is done if the request was given up at a stop
                stored.set_result(failure)
