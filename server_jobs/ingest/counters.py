"""Ingest's counters for the operator, counts of recent requests for health checks, and a log of rejections.

Each process counts in small memory-mapped files, and readers sum these files. Counters restart from zero when ingest
starts. No file contains request contents or senders.

Health checks use recent requests, so that old failures no longer count and new failures count at once. Server errors
are counted by minute in a mapped file of fixed size, which can be written even if the disk is full or no file can be
opened. A second file has each study's accepted and rejected pings: by minute, and the newest in blocks of
:data:`BLOCK`.

A flood of rejections must not fill the disk. So lines are collected in memory, a limited number is written every
second, and the log file is rotated once. The number of omitted lines is written too; the counters include all
rejections.
"""

from __future__ import annotations

import mmap
import os
import secrets
import threading
import time
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Mapping
from pathlib import Path

import msgspec
from msgspec import Struct

from fedping.protocol.local_files import for_the_group, make_folder
from fedping.protocol.notation import utc_now
from fedping.server_jobs.ingest.answers import REASONS, Rejection

PROCESSES = ("worker", "server", "compactor", "other")
"""Ingest's processes. All other processes, such as that of the operations port, count as ``other``."""

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
"""All counters. Rejections are counted by reason; in a batch, each rejected line counts. ``died`` counts unexpected
ends of processes."""

_INDEX = {name: index for index, name in enumerate(NAMES)}
_SUFFIX = ".counters"


class Counters:
    """The counters of one process.

    Raises:
        OSError: the counters' file can't be created in ``folder``.
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
    """Return all counters, summed over all processes, including dead processes."""
    return dict(zip(NAMES, summed_numbers(folder, _SUFFIX, len(NAMES)), strict=True))


def mapped_numbers(folder: Path, suffix: str, number: int) -> memoryview[int]:
    """Create a file of this process with ``number`` zeros, and return it as memory-mapped integers.

    Raises:
        OSError: the file can't be created.
    """
    make_folder(folder)
    path = folder / f"{os.getpid()}-{secrets.token_hex(4)}{suffix}"
    # Written, not only sized: filling a hole through the map on a full disk would kill the process.
    with open(path, "wb", opener=for_the_group) as file:
        file.write(bytes(8 * number))
    with open(path, "r+b") as counts:
        return memoryview(mmap.mmap(counts.fileno(), 8 * number)).cast("Q")


def summed_numbers(folder: Path, suffix: str, number: int) -> list[int]:
    """Return the numbers in all files with a suffix, summed over all processes, including dead processes."""
    sums = [0] * number
    for path in folder.glob(f"*{suffix}"):
        data = path.read_bytes()
        if len(data) == 8 * number:
            sums = [one + more for one, more in zip(sums, memoryview(data).cast("Q"), strict=True)]
    return sums


def write_counts(path: Path, counts: object) -> None:
    """Write counts to a JSON file atomically. On a full disk they are dropped, because nothing depends on them."""
    unfinished = path.with_suffix(".new")
    try:
        with open(unfinished, "wb", opener=for_the_group) as file:
            file.write(msgspec.json.encode(counts))
        os.replace(unfinished, path)
    except OSError:
        return


_OF_STUDIES = ".studies"


class OfStudy(Struct, frozen=True, kw_only=True):
    """Counts of one study: accepted pings, and rejected requests and lines by reason."""

    accepted: int = 0
    rejected: dict[str, int] = {}


class StudyCounters:
    """Counts of one process by study, only for existing studies, so that they can be written every second."""

    def __init__(self, folder: Path) -> None:
        make_folder(folder)
        self._path = folder / f"{os.getpid()}-{secrets.token_hex(4)}{_OF_STUDIES}"
        self._recents = Recents()
        self._accepted: Counter[str] = Counter()
        self._rejected: dict[str, Counter[str]] = defaultdict(Counter)
        self._lock = threading.Lock()
        self._changed = False

    def accept(self, study: str, pings: int) -> None:
        """Count accepted pings that are on disk."""
        with self._lock:
            self._accepted[study] += pings
            self._recents.add(study, "", pings)
            self._changed = True

    def reject(self, study: str, reason: str, amount: int) -> None:
        """Count rejected requests or lines."""
        with self._lock:
            self._rejected[study][reason] += amount
            self._recents.add(study, reason, amount)
            self._changed = True

    def take_batch(self, study: str, accepted: int, rejected: Mapping[str, int]) -> None:
        """Count a batch's accepted pings, which are on disk, and its rejected lines by reason."""
        counts = {"": accepted, **rejected} if accepted else rejected
        if not counts:
            return
        with self._lock:
            self._accepted[study] += accepted
            self._rejected[study].update(rejected)
            self._recents.add_batch(study, counts)
            self._changed = True

    def reject_stray(self, reason: str, amount: int) -> None:
        """Count rejected requests for unknown studies."""
        with self._lock:
            self._recents.add("", reason, amount)
            self._changed = True

    def flush(self) -> None:
        """Write the counts to the process's file."""
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
        write_counts(self._path.with_suffix(RECENT_SUFFIX), msgspec.Raw(recent))


def of_studies(folder: Path) -> Mapping[str, OfStudy]:
    """Return the counts of each study since ingest started, summed over all processes; at most a second old."""
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
    """One process's log of rejections: ``<name>.jsonl``, renamed ``<name>.1.jsonl`` beyond :data:`FILE_BYTES`."""

    def __init__(self, folder: Path, name: str) -> None:
        self._path = folder / f"{name}.jsonl"
        self._older = folder / f"{name}.1.jsonl"
        self._lines: list[bytes] = []
        self._left_out = 0
        self._lock = threading.Lock()

    def add(self, study: str, rejection: Rejection) -> None:
        """Record a rejection; ``study`` is the name of an existing study, or empty."""
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
        """Record the number of omitted rejections."""
        with self._lock:
            self._left_out += number

    def flush(self) -> None:
        """Write the recorded lines. On a full disk they are dropped, because nothing depends on them."""
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


BLOCK = 25
"""Number of pings and rejections of a complete block."""

NEWEST = 100
"""Number of newest pings and rejections that are checked separately, so that a series of rejections shows at once."""

WINDOW_MINUTES, NEWEST_MINUTES = 15, 24 * 60
"""Maximum age, in minutes, of the window's counts, and of the newest blocks."""

REQUESTS_MINUTES = 2
"""Number of minutes for the check of failing requests: the current minute and the one before."""

POSTPONED = frozenset({"too_many_pings", "busy", "version_unseen", "study_unreadable"})
"""Reasons that ask a client to retry the same ping."""

OURS = frozenset({"disk_full", "not_stored", "internal"})
"""Rejection reasons that are server errors; see :func:`failing_requests`."""

RECENT_SUFFIX, REQUESTS_SUFFIX = ".recent", ".requests"
FIELDS = ("answered", "failed", "rejected.disk_full", "rejected.not_stored", "no_descriptors")
SLOTS = REQUESTS_MINUTES + 1
WIDTH = 1 + len(FIELDS)


class Came(Struct, frozen=True, kw_only=True):
    """Numbers of accepted pings, and of rejected pings, requests and lines by reason."""

    accepted: int = 0
    rejected: dict[str, int] = {}


class Recently(Struct, frozen=True, kw_only=True):
    """A study's counts in the last :data:`WINDOW_MINUTES`, and of approximately the :data:`NEWEST` last pings."""

    window: Came = Came()
    newest: Came = Came()


class _Block(Struct):
    """Counts of a period that begins at ``at`` (seconds since 1970)."""

    at: float
    accepted: int = 0
    rejected: dict[str, int] = {}

    def add(self, reason: str, amount: int) -> None:
        if reason:
            self.rejected[reason] = self.rejected.get(reason, 0) + amount
        else:
            self.accepted += amount

    @property
    def total(self) -> int:
        return self.accepted + sum(self.rejected.values())


class _Blocks(Struct):
    minutes: list[_Block] = []
    newest: list[_Block] = []


class Recents:
    """Recent counts of one process; not thread-safe."""

    def __init__(self, clock: Callable[[], float] = time.time) -> None:
        self._clock = clock
        self._of: dict[str, tuple[deque[_Block], deque[_Block]]] = {}

    def add(self, study: str, reason: str, amount: int) -> None:
        """Count a study's pings as rejected for a reason, or accepted (""); ``study`` is "" for an unknown study."""
        self.add_batch(study, {reason: amount})

    def add_batch(self, study: str, amounts: Mapping[str, int]) -> None:
        """Count the pings and rejections of one batch, by reason as in :meth:`add`.

        They are counted in one block, because they arrived at the same time.
        """
        now = self._clock()
        if study not in self._of:
            self._of[study] = deque(maxlen=WINDOW_MINUTES + 1), deque(maxlen=NEWEST // BLOCK + 1)
        minutes, newest = self._of[study]
        if not minutes or minutes[-1].at // 60 != now // 60:
            minutes.append(_Block(now))
        if not newest or newest[-1].total >= BLOCK:
            newest.append(_Block(now))
        for reason, amount in amounts.items():
            minutes[-1].add(reason, amount)
            newest[-1].add(reason, amount)

    def encoded(self) -> bytes:
        """Return the counts as JSON, as read by :func:`recently`."""
        return msgspec.json.encode({study: _Blocks(list(a), list(b)) for study, (a, b) in self._of.items()})


def recently(folder: Path, now: float) -> dict[str, Recently]:
    """Return recent counts by study, summed over all processes. The name "" has rejections for unknown studies.

    ``now`` is in seconds since 1970.
    """
    minutes: dict[str, list[_Block]] = {}
    newest: dict[str, list[_Block]] = {}
    for path in folder.glob(f"*{RECENT_SUFFIX}"):
        for study, blocks in msgspec.json.decode(path.read_bytes(), type=dict[str, _Blocks]).items():
            minutes.setdefault(study, []).extend(one for one in blocks.minutes if one.at > now - 60 * WINDOW_MINUTES)
            newest.setdefault(study, []).extend(one for one in blocks.newest if one.at > now - 60 * NEWEST_MINUTES)
    return {
        study: Recently(window=_sum(minutes.get(study, [])), newest=_sum(_last(newest.get(study, []))))
        for study in sorted({*minutes, *newest})
    }


def _last(blocks: list[_Block]) -> list[_Block]:
    """Return approximately the :data:`NEWEST` last counts; a larger block, such as a batch, counts in part."""
    found: list[_Block] = []
    room = NEWEST
    for block in sorted(blocks, key=lambda one: one.at, reverse=True):
        share = min(1.0, room / max(1, block.total))
        parts = {reason: round(share * n) for reason, n in block.rejected.items()}
        found.append(_Block(block.at, round(share * block.accepted), parts))
        room -= block.total
        if room <= 0:
            break
    return found


def _sum(blocks: list[_Block]) -> Came:
    rejected: Counter[str] = Counter()
    for block in blocks:
        rejected.update(block.rejected)
    return Came(accepted=sum(block.accepted for block in blocks), rejected=dict(rejected))


def count_request(numbers: memoryview[int], field: str, amount: int, now: float) -> None:
    """Add to this minute's slot in a mapped file of :data:`SLOTS` times :data:`WIDTH` numbers."""
    minute = int(now // 60)
    start = minute % SLOTS * WIDTH
    if numbers[start] != minute:
        for index in range(1, WIDTH):
            numbers[start + index] = 0
        numbers[start] = minute
    numbers[start + 1 + FIELDS.index(field)] += amount


def requests_of(folder: Path, now: float) -> Mapping[str, int]:
    """Return the counts :data:`FIELDS` of the last :data:`REQUESTS_MINUTES`, summed over all processes."""
    sums: Counter[str] = Counter(dict.fromkeys(FIELDS, 0))
    for path in folder.glob(f"*{REQUESTS_SUFFIX}"):
        data = path.read_bytes()
        if len(data) != 8 * SLOTS * WIDTH:
            continue
        numbers = memoryview(data).cast("Q")
        for start in range(0, SLOTS * WIDTH, WIDTH):
            if int(now // 60) - numbers[start] < REQUESTS_MINUTES:
                for index, field in enumerate(FIELDS):
                    sums[field] += numbers[start + 1 + index]
    return sums


MORE_DESCRIPTORS = "raise the limit of open files ('LimitNOFILE=' of the systemd unit, or 'ulimit -n')"

FEWEST_FAILED, MANY_FAILED = 5, 0.25
"""Minimum number and share of failing requests. Fewer failures, such as those of one defective request, are ignored."""


def failing_requests(counts: Mapping[str, int], journal: Path, private: bool = False) -> str | None:
    """Return a sentence about server errors in requests and their remedy; None without errors.

    ``counts`` is the result of :func:`requests_of`. If a study is ``private``, the sentence contains no numbers.
    """
    failed, answered = counts.get("failed", 0), counts.get("answered", 0)
    share = f"{failed:,} of {answered:,} requests of the last {REQUESTS_MINUTES} minutes failed"
    if private:
        share = "requests fail"
    if counts.get("no_descriptors"):
        return (
            f"ingest has no file descriptors left, so connections wait or fail ({share}); {MORE_DESCRIPTORS} and "
            "restart ingest"
        )
    if counts.get("rejected.disk_full"):
        return (
            f"the disk of the journal {journal} is full, and pings are rejected with 507 ({share}); free some space. "
            "Clients keep these pings and resend them"
        )
    if failed >= FEWEST_FAILED and failed > MANY_FAILED * answered:
        why = f"; the journal {journal} cannot be written" if counts.get("rejected.not_stored") else ""
        return f"{share}{why}; read ingest's messages on stderr"
    return None
