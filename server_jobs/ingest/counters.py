"""What ingest counts, and a sample of what it rejects, for the operator.

Each process counts in a small file of its own, mapped into memory: to count is to change a number there, and to read is
to sum the files. They start from zero with every start of ingest.

Never what was sent, nor by whom. A flood must not fill the disk: lines wait in memory and are written once a second, so
many at most, and the file is rotated once; how many were left out is written too. The counters count them all.
"""

from __future__ import annotations

import mmap
import os
import secrets
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Mapping
from pathlib import Path

import msgspec
from msgspec import Struct

from fedping.protocol.clock import utc_now
from fedping.protocol.local_files import for_the_group, make_folder
from fedping.server_jobs.ingest.admission.rejection import REASONS, Rejection
from fedping.server_jobs.ingest.recent import (
    FIELDS,
    REQUESTS_SUFFIX,
    SLOTS,
    SUFFIX,
    WIDTH,
    Recents,
    count_request,
)

PROCESSES = ("worker", "server", "compactor", "other")
"""Ingest's own processes; the others are those beside it, such as the operator's listener."""

NAMES = (
    "accepted",
    "posted_bytes",
    "fetched_bytes",
    "commits",
    "journal_bytes",
    "commit_microseconds",
    "batches",
    "rescued",
    "inherited",
    "landed",
    "duplicates",
    "quarantined",
    "quarantined_pings",
    "torn",
    "files",
    "passes",
    "failed_passes",
    "answered",
    "failed",
    "no_descriptors",
    "compaction_microseconds",
    *(f"rejected.{reason}" for reason in REASONS),
    *(f"died.{process}" for process in PROCESSES),
)
"""Every counter. Rejections are counted by reason; in a batch, each refused line counts. Deaths are those of processes
that nobody had told to end."""

_INDEX = {name: index for index, name in enumerate(NAMES)}
_SUFFIX = ".counters"


class Counters:
    """The counters of one process.

    Raises:
        OSError: their file cannot be made in ``folder``.
    """

    def __init__(self, folder: Path) -> None:
        self._numbers = mapped_numbers(folder, _SUFFIX, len(NAMES))
        self._requests = mapped_numbers(folder, REQUESTS_SUFFIX, SLOTS * WIDTH)
        self._lock = threading.Lock()

    def add(self, name: str, amount: int) -> None:
        """Add to a counter."""
        with self._lock:
            self._numbers[_INDEX[name]] += amount
            if name in FIELDS:
                count_request(self._requests, name, amount, time.time())


def totals(folder: Path) -> dict[str, int]:
    """Return every counter, summed over the processes, those that died included."""
    return dict(zip(NAMES, summed_numbers(folder, _SUFFIX, len(NAMES)), strict=True))


def mapped_numbers(folder: Path, suffix: str, number: int) -> memoryview[int]:
    """Return so many zeros in a new file of this process: what is changed there is in the file at once.

    Raises:
        OSError: it cannot be made.
    """
    make_folder(folder)
    path = folder / f"{os.getpid()}-{secrets.token_hex(4)}{suffix}"
    # Written, not just sized: a hole that is filled through the map on a full disk would kill the process.
    with open(path, "wb", opener=for_the_group) as file:
        file.write(bytes(8 * number))
    with open(path, "r+b") as counts:
        return memoryview(mmap.mmap(counts.fileno(), 8 * number)).cast("Q")


def summed_numbers(folder: Path, suffix: str, number: int) -> list[int]:
    """Return the numbers of all such files, each summed over the processes, those that died included."""
    sums = [0] * number
    for path in folder.glob(f"*{suffix}"):
        data = path.read_bytes()
        if len(data) == 8 * number:
            sums = [one + more for one, more in zip(sums, memoryview(data).cast("Q"), strict=True)]
    return sums


def write_counts(path: Path, counts: object) -> None:
    """Write counts as JSON for others to see, all at once. A full disk costs the counts: nothing hangs on them."""
    unfinished = path.with_suffix(".new")
    try:
        with open(unfinished, "wb", opener=for_the_group) as file:
            file.write(msgspec.json.encode(counts))
        os.replace(unfinished, path)
    except OSError:
        return


_OF_STUDIES = ".studies"


class OfStudy(Struct, frozen=True, kw_only=True):
    """What came for one study: pings accepted, and requests and lines refused by reason, without what did not occur."""

    accepted: int = 0
    rejected: dict[str, int] = {}


class StudyCounters:
    """What one process counts by study, only of studies that exist: so many that it may be written once a second."""

    def __init__(self, folder: Path) -> None:
        make_folder(folder)
        self._path = folder / f"{os.getpid()}-{secrets.token_hex(4)}{_OF_STUDIES}"
        self._recents = Recents()
        self._accepted: Counter[str] = Counter()
        self._rejected: dict[str, Counter[str]] = defaultdict(Counter)
        self._lock = threading.Lock()
        self._changed = False

    def accept(self, study: str, pings: int) -> None:
        """Count pings that are on disk."""
        with self._lock:
            self._accepted[study] += pings
            self._recents.add(study, "", pings)
            self._changed = True

    def reject(self, study: str, reason: str, amount: int) -> None:
        """Count refused requests or lines."""
        with self._lock:
            self._rejected[study][reason] += amount
            self._recents.add(study, reason, amount)
            self._changed = True

    def take_batch(self, study: str, accepted: int, rejected: Mapping[str, int]) -> None:
        """Count the pings of a batch that are on disk, and its refused lines by reason."""
        came = {"": accepted, **rejected} if accepted else rejected
        if not came:
            return
        with self._lock:
            self._accepted[study] += accepted
            self._rejected[study].update(rejected)
            self._recents.add_batch(study, came)
            self._changed = True

    def reject_stray(self, reason: str, amount: int) -> None:
        """Count refused requests that are for no study of the store."""
        with self._lock:
            self._recents.add("", reason, amount)
            self._changed = True

    def flush(self) -> None:
        """Let others see what has been counted."""
        with self._lock:
            if not self._changed:
                return
            self._changed = False
            counts = {
                study: OfStudy(accepted=self._accepted[study], rejected=dict(self._rejected.get(study, {})))
                for study in {*self._accepted, *self._rejected}
            }
            recent = self._recents.encoded()
        write_counts(self._path, counts)
        write_counts(self._path.with_suffix(SUFFIX), msgspec.Raw(recent))


def of_studies(folder: Path) -> Mapping[str, OfStudy]:
    """Return what came for each study since ingest was started, summed over the processes, a second old at most."""
    accepted: Counter[str] = Counter()
    rejected: dict[str, Counter[str]] = defaultdict(Counter)
    for path in sorted(folder.glob(f"*{_OF_STUDIES}")):
        for study, counts in msgspec.json.decode(path.read_bytes(), type=dict[str, OfStudy]).items():
            accepted[study] += counts.accepted
            rejected[study].update(counts.rejected)
    return {
        study: OfStudy(accepted=accepted[study], rejected=dict(rejected[study]))
        for study in sorted({*accepted, *rejected})
    }


LINES_A_FLUSH = 500
FILE_BYTES = 4 * 1024 * 1024


class RejectionLog:
    """The log of one process: ``<name>.jsonl`` and, once that has :data:`FILE_BYTES`, ``<name>.1.jsonl``."""

    def __init__(self, folder: Path, name: str) -> None:
        self._path = folder / f"{name}.jsonl"
        self._older = folder / f"{name}.1.jsonl"
        self._lines: list[bytes] = []
        self._left_out = 0
        self._lock = threading.Lock()

    def add(self, study: str, rejection: Rejection) -> None:
        """Remember a rejection; ``study`` is the name of a study that exists, or empty."""
        if len(self._lines) >= LINES_A_FLUSH:
            self._left_out += 1
            return
        entry = {
            "format": 1,
            "time": utc_now(),
            "study": study,
            "status": rejection.status,
            "reason": rejection.reason,
            "detail": rejection.detail,
        }
        with self._lock:
            self._lines.append(msgspec.json.encode(entry))

    def leave_out(self, number: int) -> None:
        """Tell of rejections that are not remembered."""
        with self._lock:
            self._left_out += number

    def flush(self) -> None:
        """Write what is remembered. A full disk costs the lines: they are there to help, and nothing hangs on them."""
        with self._lock:
            lines, self._lines = self._lines, []
            left_out, self._left_out = self._left_out, 0
        if left_out:
            lines.append(msgspec.json.encode({"format": 1, "time": utc_now(), "left_out": left_out}))
        if lines:
            try:
                self._write(b"\n".join([*lines, b""]))
            except OSError:
                return

    def _write(self, data: bytes) -> None:
        make_folder(self._path.parent)
        if self._path.exists() and self._path.stat().st_size > FILE_BYTES:
            os.replace(self._path, self._older)
        with open(self._path, "ab", opener=for_the_group) as sink:
            sink.write(data)
