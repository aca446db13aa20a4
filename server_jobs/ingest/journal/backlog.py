"""What the journal still holds, and how to have it emptied: for the operator, the demo and tests."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from pathlib import Path

from server_jobs.ingest.journal.frames import count_rows
from server_jobs.ingest.journal.segment import CLOSED, OPEN, segments

LOOK_EVERY = 0.005


@dataclass(frozen=True)
class Backlog:
    """The pings and segments that are not landed yet."""

    pings: int
    segments: int


def backlog(journal: Path) -> Backlog:
    """Return what the journal holds at this moment, read from its files."""
    paths = [*segments(journal, OPEN), *segments(journal, CLOSED)]
    return Backlog(sum(_rows(path) for path in paths), len(paths))


def _rows(path: Path) -> int:
    """Return a segment's pings; it may be rolled or compacted while we look."""
    for there in (path, path.with_suffix(CLOSED)):
        try:
            with open(there, "rb") as file:
                return count_rows(file)
        except FileNotFoundError:
            continue
    return 0


def request_flush(request: Path) -> None:
    """Ask every worker to roll its segment now."""
    request.touch()
    os.utime(request)


def wait_until_landed(journal: Path, timeout: float) -> bool:
    """Return whether every segment that is here now is gone, which is to say landed, within ``timeout`` seconds."""
    stems = _stems(journal)
    deadline = time.monotonic() + timeout
    while stems & _stems(journal):
        if time.monotonic() > deadline:
            return False
        time.sleep(LOOK_EVERY)
    return True


def _stems(journal: Path) -> set[str]:
    return {name.partition(".")[0] for name in os.listdir(journal) if name.endswith((OPEN, CLOSED)) and name[0] != "."}
