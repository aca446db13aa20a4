"""Recent requests, by which ingest's health is judged: old failures no longer count, and new ones do at once.

Each process writes two files. One is mapped into memory and has a fixed size, so that it can be written when the disk
is full or no file can be opened: the requests of each minute that failed by a fault of ours. The other has what was
accepted and refused of each study, without ids: by minute, and in blocks of :data:`BLOCK` for the newest.
"""

from __future__ import annotations

import time
from collections import Counter, deque
from collections.abc import Callable, Mapping
from pathlib import Path

import msgspec
from msgspec import Struct

BLOCK = 25
"""Pings or refusals after which a block is complete."""

NEWEST = 100
"""Number of the newest pings and refusals that are judged by themselves, so that many in a row show at once."""

WINDOW_MINUTES, NEWEST_MINUTES = 15, 24 * 60
"""Age in minutes of what is judged together, and of the newest blocks."""

REQUESTS_MINUTES = 2
"""Minutes over which requests that fail are judged: this one and the last."""

POSTPONED = frozenset({"too_many_pings", "busy", "version_unseen", "study_unreadable"})
"""Reasons for which a client is asked to send the same ping again later."""

OURS = frozenset({"disk_full", "not_stored", "internal"})
"""Reasons that are no fault of what was sent; see :func:`failing_requests`."""

SUFFIX, REQUESTS_SUFFIX = ".recent", ".requests"
FIELDS = ("answered", "failed", "rejected.disk_full", "rejected.not_stored", "no_descriptors")
SLOTS = REQUESTS_MINUTES + 1
WIDTH = 1 + len(FIELDS)


class Came(Struct, frozen=True, kw_only=True):
    """Pings accepted, and refused pings, requests and lines by reason."""

    accepted: int = 0
    rejected: dict[str, int] = {}


class Recently(Struct, frozen=True, kw_only=True):
    """What came for a study in the last :data:`WINDOW_MINUTES`, and about the :data:`NEWEST` that came last."""

    window: Came = Came()
    newest: Came = Came()


class _Block(Struct):
    """What came from a moment (seconds since 1970) on."""

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
    """What one process counts; not safe for threads by itself."""

    def __init__(self, clock: Callable[[], float] = time.time) -> None:
        self._clock = clock
        self._of: dict[str, tuple[deque[_Block], deque[_Block]]] = {}

    def add(self, study: str, reason: str, amount: int) -> None:
        """Count pings of a study as accepted (without a reason) or refused; ``study`` is empty for no study."""
        self.add_batch(study, {reason: amount})

    def add_batch(self, study: str, amounts: Mapping[str, int]) -> None:
        """Count pings and refusals that came together, by reason as :meth:`add` has it.

        They are in one block: in two, those counted last would be the newest, though they came among the others.
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
        """Return all of it for :func:`recently`."""
        return msgspec.json.encode({study: _Blocks(list(a), list(b)) for study, (a, b) in self._of.items()})


def recently(folder: Path, now: float) -> dict[str, Recently]:
    """Return what came lately by study, over all processes; the empty name has what was refused for no study.

    ``now`` is in seconds since 1970.
    """
    minutes: dict[str, list[_Block]] = {}
    newest: dict[str, list[_Block]] = {}
    for path in folder.glob(f"*{SUFFIX}"):
        for study, blocks in msgspec.json.decode(path.read_bytes(), type=dict[str, _Blocks]).items():
            minutes.setdefault(study, []).extend(one for one in blocks.minutes if one.at > now - 60 * WINDOW_MINUTES)
            newest.setdefault(study, []).extend(one for one in blocks.newest if one.at > now - 60 * NEWEST_MINUTES)
    return {
        study: Recently(window=_sum(minutes.get(study, [])), newest=_sum(_last(newest.get(study, []))))
        for study in sorted({*minutes, *newest})
    }


def _last(blocks: list[_Block]) -> list[_Block]:
    """Return about the :data:`NEWEST` of all; of a block with more, such as one large batch, the share that fits."""
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
    """Count in the slot of this minute of a mapped file of :data:`SLOTS` times :data:`WIDTH` numbers."""
    minute = int(now // 60)
    start = minute % SLOTS * WIDTH
    if numbers[start] != minute:
        for index in range(1, WIDTH):
            numbers[start + index] = 0
        numbers[start] = minute
    numbers[start + 1 + FIELDS.index(field)] += amount


def requests_of(folder: Path, now: float) -> Mapping[str, int]:
    """Return :data:`FIELDS` of the last :data:`REQUESTS_MINUTES`, summed over the processes."""
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
"""Number and share of requests that fail, below which a defect in one request is no matter of ingest's health."""


def failing_requests(counts: Mapping[str, int], journal: Path, private: bool = False) -> str | None:
    """Return why requests fail by a fault of ours, and what to do; None if they succeed.

    ``counts`` are those of :func:`requests_of`, without any that is 0; of a private study's ingest no number is given.
    """
    failed, answered = counts.get("failed", 0), counts.get("answered", 0)
    share = f"{failed:,} of {answered:,} requests of the last {REQUESTS_MINUTES} minutes failed"
    if private:
        share = "requests fail"
    if counts.get("no_descriptors"):
        return (
            f"ingest has no file descriptors left, so connections wait or fail ({share}); {MORE_DESCRIPTORS} and start "
            "ingest again"
        )
    if counts.get("rejected.disk_full"):
        return (
            f"the disk of the journal {journal} is full, and pings are refused with 507 ({share}); free some space. "
            "Clients keep these pings and send them again"
        )
    if failed >= FEWEST_FAILED and failed > MANY_FAILED * answered:
        why = f"; the journal {journal} cannot be written" if counts.get("rejected.not_stored") else ""
        return f"{share}{why}; see what ingest says on stderr"
    return None
