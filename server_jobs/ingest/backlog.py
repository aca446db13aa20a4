"""Accepted pings that haven't landed: contents of the journal, balance of accepted and landed pings, and flushing.

Ingest never loses a segment, but an operator or a clean-up script may remove one. Each process counts its pings, so
missing pings show as a difference. The balance never reports a loss that didn't happen. But it may overlook missing
pings: because pings are written during the check, or are counted twice after the compactor was killed at the wrong
moment.
"""

from __future__ import annotations

import contextlib
import json
import os
import threading
import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from fedping.protocol.errors import FedpingError, TemporaryFailure
from fedping.protocol.local_files import FILE_MODE, for_the_group, make_folder
from fedping.protocol.own_login import login_in_address
from fedping.protocol.trust import USUAL, Trust
from fedping.server_jobs.ingest.counters import totals
from fedping.server_jobs.ingest.segments import CLOSED, OPEN, count_rows, created_ms, scan, segments
from fedping.server_jobs.ingest.settings import IngestSettings
from fedping.server_jobs.shutdown import TimedOut

LOOK_EVERY = 0.005


@dataclass(frozen=True)
class Backlog:
    """Numbers of pings and segments that haven't landed, and the age of the oldest segment in seconds."""

    pings: int
    segments: int
    oldest_seconds: float = 0.0


def backlog(journal: Path) -> Backlog:
    """Return the numbers of pings and segments in the journal, read from its files."""
    paths = [*segments(journal, OPEN), *segments(journal, CLOSED)]
    rows = {path: segment_rows(path) for path in paths}
    ages = [time.time() - created_ms(path) / 1000 for path in paths if rows[path]]
    return Backlog(sum(rows.values()), len(paths), max(ages, default=0.0))


def recovered(journal: Path) -> Backlog:
    """Return the backlog that an earlier ingest left; to be called before this ingest writes.

    Unlike :func:`backlog`, it leaves out an incomplete write at the end of an open segment: the process was killed,
    and these pings were never accepted.
    """
    left = backlog(journal)
    torn = sum(segment_rows(path) - scan(path.read_bytes(), unfinished=True).rows for path in segments(journal, OPEN))
    return Backlog(left.pings - torn, left.segments, left.oldest_seconds)


def segment_rows(path: Path) -> int:
    """Return the number of pings in a segment, which may be rolled or compacted at the same time."""
    for there in (path, path.with_suffix(CLOSED)):
        try:
            with open(there, "rb") as file:
                status = os.fstat(file.fileno())
                return _rows(there, status.st_ino, status.st_size, status.st_mtime_ns)
        except FileNotFoundError:
            continue
    return 0


@lru_cache(maxsize=4096)
def _rows(path: Path, _inode: int, _size: int, _changed: int) -> int:
    """Return the number of pings in a segment. The unused arguments are part of the cache key."""
    with open(path, "rb") as file:
        return count_rows(file)


def request_flush(request: Path) -> None:
    """Ask every worker to roll its segment now."""
    request.touch(FILE_MODE)
    os.utime(request)


def wait_until_landed(journal: Path, timeout: float, complete: Callable[[], bool] = lambda: True) -> bool:
    """Wait up to ``timeout`` seconds; return whether all current segments have landed and ``complete`` holds."""
    stems = _stems(journal)
    deadline = time.monotonic() + timeout
    while stems & _stems(journal) or not complete():
        if time.monotonic() > deadline:
            return False
        time.sleep(LOOK_EVERY)
    return True


def stem_of(segment: Path) -> str:
    """Return the part of a segment's name that doesn't change when the segment is rolled."""
    return segment.name.partition(".")[0]


def _stems(journal: Path) -> set[str]:
    return {stem_of(path) for suffix in (OPEN, CLOSED) for path in segments(journal, suffix)}


_INHERITED = "inherited"


def note_inherited(settings: IngestSettings) -> None:
    """Record the segments that exist before ingest starts. An earlier ingest accepted their pings."""
    stems = {stem_of(path) for suffix in (OPEN, CLOSED) for path in segments(settings.journal, suffix)}
    make_folder(settings.counters)
    with open(settings.counters / _INHERITED, "w", opener=for_the_group) as file:
        file.write("\n".join(sorted(stems)))


def inherited(settings: IngestSettings) -> frozenset[str]:
    """Return the stems of the segments that existed before ingest started."""
    try:
        return _stems_in(settings.counters / _INHERITED, (settings.counters / _INHERITED).stat().st_mtime_ns)
    except FileNotFoundError:
        return frozenset()


@lru_cache(maxsize=4)
def _stems_in(file: Path, _changed: int) -> frozenset[str]:
    return frozenset(file.read_text().splitlines())


_PERIOD = "period"


def note_period(settings: IngestSettings) -> None:
    """Record the compaction interval for programs that monitor the journal. The file's time is the start of ingest."""
    with open(settings.counters / _PERIOD, "w", opener=for_the_group) as file:
        file.write(f"{settings.compact_every!r}")


def period_of(counters: Path) -> tuple[float, float] | None:
    """Return the compaction interval in seconds, and ingest's start in seconds since 1970; None if not recorded."""
    try:
        with open(counters / _PERIOD) as file:
            return float(file.read()), os.fstat(file.fileno()).st_mtime
    except (OSError, ValueError):
        return None


def waiting_since(journal: Path, began: float) -> float | None:
    """Return the time since which the oldest segment has waited, in seconds since 1970; None without segments.

    A closed segment waits from its last ping on; an open segment from its creation on, because its worker may no
    longer roll it. For segments of an earlier ingest, the time is ``began``, the start of the current ingest.
    """
    since: list[float] = []
    for path in [*segments(journal, OPEN), *segments(journal, CLOSED)]:
        with contextlib.suppress(FileNotFoundError):  # it has just landed
            since.append(max(began, created_ms(path) / 1000 if path.suffix == OPEN else path.stat().st_mtime))
    return min(since, default=None)


def settled(sums: Mapping[str, int]) -> int:
    """Return the number of pings accepted since the start that have landed or are otherwise accounted for."""
    return sums["landed"] + sums["duplicates"] + sums["quarantined_pings"] - sums["inherited"]


def missing(settings: IngestSettings) -> int:
    """Return a lower bound on the number of pings that were accepted since the start and are missing."""
    # Missing pings stay missing, but the compactor's counts may be read during a change: hence two checks.
    return min(_look(settings), _look(settings)) if _look(settings) else 0


def _look(settings: IngestSettings) -> int:
    # In this order, a ping that is accepted or lands meanwhile is counted at least once.
    accepted = totals(settings.counters)["accepted"]
    if accepted <= settled(totals(settings.counters)):
        return 0
    pending = _pending(settings.journal, inherited(settings))
    return max(0, accepted - pending - settled(totals(settings.counters)))


def _pending(journal: Path, others: Collection[str]) -> int:
    found = {stem_of(path): path for suffix in (OPEN, CLOSED) for path in segments(journal, suffix)}
    return sum(segment_rows(path) for stem, path in found.items() if stem not in others)


def balance_trouble(settings: IngestSettings) -> str | None:
    """Return a sentence if accepted pings are missing, else None."""
    count = missing(settings)
    if not count:
        return None
    return (
        f"{count} accepted pings are neither in Parquet nor in the journal {settings.journal}: segments were removed "
        "or moved. Put them back, and let only ingest use that folder"
    )


def unlanded(settings: IngestSettings) -> list[str]:
    """Return a sentence for each reason why accepted pings are neither landed nor in the journal."""
    sums = totals(settings.counters)
    sentences = [trouble] if (trouble := balance_trouble(settings)) else []
    if sums["quarantined"]:
        sentences.append(
            f"{sums['quarantined']} damaged pieces of the journal, with about {sums['quarantined_pings']} accepted "
            f"pings, have not landed and are kept in {settings.quarantine}"
        )
    return sentences


def ending(settings: IngestSettings, emptied: bool) -> str:
    """Return ingest's final sentence; ``emptied`` says whether the journal is empty."""
    if not emptied:
        pings = backlog(settings.journal).pings
        waiting = (
            f"Stopped before all pings were in {settings.landing}: {pings} pings are in the journal; start ingest "
            "again to land them"
        )
        return ". ".join([waiting if pings else "Stopped early; no pings were waiting", *unlanded(settings)]) + "."
    sentences = unlanded(settings)
    if sentences:
        return f"Stopped; not all accepted pings are in Parquet: {'. '.join(sentences)}."
    torn = totals(settings.counters)["torn"]
    unfinished = f" {torn} unfinished writes, whose pings were never accepted, are in {settings.quarantine}."
    return "Stopped; all accepted pings are in Parquet." + (unfinished if torn else "")


_MOST_BYTES = 65_536
"""Maximum bytes of a response; ingest's responses have a few hundred."""

_PATIENCE = 10.0
"""Timeout for the transfer in seconds, in addition to the time for landing."""


def flush(operations: str, seconds: float, trust: Trust = USUAL) -> None:
    """Ask ingest's operations port to land all pings accepted so far, and wait until they are in Parquet.

    Args:
        operations: the address of ingest's operations port, such as http://127.0.0.1:8082.
        seconds: maximum time for landing.
        trust: the trusted certificate authorities, for an https address.

    Raises:
        TemporaryFailure: ingest doesn't respond, or too many flushes are in progress.
        TimedOut: pings have not landed within the time.
        FedpingError: the address is not an operations port.
    """
    url = f"{operations.rstrip('/')}/__flush__"
    status, answer = _answer(url, operations, seconds, trust)
    if status == 504:
        raise TimedOut(f"ingest at {operations} has not landed its pings within {seconds:g} s. See its log.")
    if status == 503:
        raise TemporaryFailure(f"ingest at {operations} already runs too many flushes. Run the command again later.")
    if status != 200 or not isinstance(answer, dict) or answer.get("flushed") is not True:
        raise FedpingError(
            f"{url} is not ingest's operations port (answer {status}). Pass the address that ingest prints when it "
            "starts."
        )


def _answer(url: str, operations: str, seconds: float, trust: Trust) -> tuple[int, Any]:
    """Post to an address; return the status and JSON of the response, None without JSON."""
    import requests

    deadline = time.monotonic() + seconds + _PATIENCE
    late = TemporaryFailure(
        f"ingest doesn't answer at {url}. Check that it is running, and that this is its operations port."
    )
    outcome: list[tuple[int, Any] | FedpingError] = []

    def ask() -> None:
        try:
            with requests.post(
                url,
                params={"timeout": seconds},
                timeout=seconds + _PATIENCE,
                allow_redirects=False,
                stream=True,
                auth=login_in_address,
                verify=trust.verify,
            ) as response:
                body = response.raw.read(_MOST_BYTES)
            try:
                outcome.append((response.status_code, json.loads(body)))
            except ValueError:
                outcome.append((response.status_code, None))
        except requests.exceptions.SSLError:
            outcome.append(_untrusted(operations))
        except ValueError:  # an invalid address; errors of requests are ValueErrors, too
            outcome.append(_no_address(operations))
        except Exception:  # any error of requests, urllib3 and sockets
            outcome.append(late)

    # A server that sends single bytes never exceeds the timeout of a socket.
    asking = threading.Thread(target=ask, daemon=True)
    asking.start()
    asking.join(max(0.0, deadline - time.monotonic()))
    answer = outcome[0] if outcome else late
    if isinstance(answer, FedpingError):
        raise answer
    return answer


def _untrusted(operations: str) -> FedpingError:
    return FedpingError(
        f"the certificate of {operations} is not trusted. If you have a private certificate authority, pass its PEM "
        "file with --ca."
    )


def _no_address(operations: str) -> FedpingError:
    return FedpingError(
        f"'{operations[:200]}' isn't an address. Pass the address of ingest's operations port, such as "
        "http://127.0.0.1:8082."
    )
