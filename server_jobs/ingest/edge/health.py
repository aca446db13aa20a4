"""What ingest cannot do without: small named checks, each of which says in a sentence what is wrong, or nothing.

To add one, write a function and name it in :data:`CHECKS`. The sentences name folders and quote the system's errors;
they are the operator's, and the public is told the names alone.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
import zlib
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path

from fedping.model_store import ModelStore, open_store
from fedping.model_store.store import lost
from fedping.protocol.documents import DOCUMENT_TYPES
from fedping.protocol.errors import FedpingError
from fedping.protocol.landing import open_landing
from fedping.protocol.location import Place
from fedping.server_jobs.health.checks import failures_in_words
from fedping.server_jobs.ingest.admission.rules import StudyRules
from fedping.server_jobs.ingest.compaction.quarantine import failing_in_words
from fedping.server_jobs.ingest.edge.services import ServiceState
from fedping.server_jobs.ingest.journal.backlog import backlog, balance_trouble
from fedping.server_jobs.ingest.journal.segment import CLOSED, OPEN, created_ms, document_in, segments
from fedping.server_jobs.ingest.processes.process_lock import is_held
from fedping.server_jobs.ingest.recent import failing_requests, requests_of
from fedping.server_jobs.ingest.settings import MIB
from fedping.server_jobs.round_status import last_attempt

COMPACTOR_LOCK = ".compactor.lock"

LATE_PERIODS = 5
"""How many times ``--compact-every`` a segment may wait to be landed before the heartbeat fails."""

LATE_AT_LEAST = 60.0
"""Seconds that a segment may wait in any case: a busy machine is not a broken one."""

NEARLY_FULL_BYTES = 1024 * MIB
NEARLY_FULL_PARTS = 20
"""A disk is nearly full when it has less room than :data:`NEARLY_FULL_BYTES` and less than this part of its size."""

PATIENCE = 10.0
"""Seconds within which all checks have to answer: each takes milliseconds, unless a disk or a network hangs."""

LONGEST_REST = 10.0
"""Seconds for which an answer is told again at most: one that took long, as nothing answered, must not outlive that."""

_HANGS = (
    f"the checks have not come back for {PATIENCE:g} s; a disk, a network file system or an object store hangs: see "
    "what it says"
)


def health(watched: ServiceState) -> dict[str, str | None]:
    """Return what is wrong with each of the parts that ingest cannot do without; None where nothing is."""
    return {name: _answer(check, watched) for name, check in CHECKS.items()}


def _answer(check: Callable[[ServiceState], str | None], watched: ServiceState) -> str | None:
    """Return what a check says; what keeps it from looking is as bad as anything that it may find."""
    try:
        return check(watched)
    except (FedpingError, OSError) as error:
        return str(error)


def _journal_trouble(watched: ServiceState) -> str | None:
    return _folder_trouble(watched.settings.journal, "journal")


def _landing_trouble(watched: ServiceState) -> str | None:
    """Say what keeps pings from landing; that nothing can be written to a bucket, failing compaction tells."""
    landing = watched.settings.landing
    if isinstance(landing, Path):
        return _folder_trouble(landing, "landing")
    return None if open_landing(landing).exists() else f"there is nothing at {landing} any more; start ingest again"


def _store_trouble(watched: ServiceState) -> str | None:
    """Say what keeps a line's newest version from clients, which fetch latest.json, or from the next round."""
    open_store(watched.settings.store)
    for study in watched.store.studies.names():
        if watched.catalogue.knows(study):
            _check_lines(watched.settings.store, watched.store, watched.catalogue.rules(study))
    return watched.catalogue.trouble or _behind(watched)


def _behind(watched: ServiceState) -> str | None:
    """Say why the newest version of some line cannot be served, or none published after it."""
    store, landing = watched.store, watched.settings.landing
    for name, line in _lines(watched):
        noted = open_landing(landing).read_published(store.where, name, line)
        if trouble := store.lines.trouble(name, line):
            return trouble
        if noted > (newest := store.lines.newest(name, line)):
            return lost(name, line, newest, noted, str(landing))
    return None


def store_notes(watched: ServiceState) -> list[str]:
    """Return a sentence for each file in the store that is left out; nothing is served less for it."""
    try:
        return [note for name, line in _lines(watched) for note in watched.store.lines.notes(name, line)]
    except (FedpingError, OSError):
        return []  # the store cannot be looked at, which is what the heartbeat fails for


def _lines(watched: ServiceState) -> list[tuple[str, str]]:
    known = watched.catalogue
    return [(study, line) for study in known.names() for line in known.rules(study).heads]


def _requests_trouble(watched: ServiceState) -> str | None:
    """Say that requests fail by a fault of ours, such as a full disk or no file descriptors."""
    settings, known = watched.settings, watched.catalogue
    private = any(known.rules(name).study.is_private for name in known.names())
    return failing_requests(requests_of(settings.counters, time.time()), settings.journal, private)


def _rounds_trouble(watched: ServiceState) -> str | None:
    """Say that the rounds of a running study's line fail, once that is a problem of its health."""
    store, landing = watched.store, watched.settings.landing
    for study, line in _lines(watched):
        attempt = last_attempt(landing, store.where, study, line)
        # A bucket takes its time for each look, so the store is asked only where the note alone would be a problem.
        if (
            attempt.failing is None
            or not attempt.failing.is_problem
            or store.studies.declared(study).state != "running"
        ):
            continue
        newest = store.versions.outcome(study, line, store.lines.newest(study, line))
        if (failing := attempt.failing_since(newest.created)) is not None:
            return f"line '{line}' of study '{study}': {failures_in_words(failing)}"
    return None


def _balance_trouble(watched: ServiceState) -> str | None:
    return balance_trouble(watched.settings)


def _compactor_trouble(watched: ServiceState) -> str | None:
    if is_held(watched.settings.journal / COMPACTOR_LOCK):
        return None
    return "the compactor is not running; pings are kept in the journal meanwhile"


def _compaction_trouble(watched: ServiceState) -> str | None:
    return failing_in_words(watched.settings.compaction_failing)


def _backlog_trouble(watched: ServiceState) -> str | None:
    """Say when a segment has waited for too long, whatever the reason; what an earlier ingest left gets its time too.

    A closed segment waits since its last ping; an open one is too old when its worker does not roll it any more.
    """
    settings = watched.settings
    since: list[float] = []
    waiting_bytes = 0
    unknown = set[str]()
    for path in [*segments(settings.journal, OPEN), *segments(settings.journal, CLOSED)]:
        with contextlib.suppress(FileNotFoundError):  # it has just been landed
            found = path.stat()
            began = created_ms(path) / 1000 if path.suffix == OPEN else found.st_mtime
            since.append(max(began, watched.began))
            waiting_bytes += found.st_size
            unknown |= {document_in(path)} - DOCUMENT_TYPES.keys()
    waited = time.time() - min(since, default=time.time())
    if waited <= max(LATE_PERIODS * settings.compact_every, LATE_AT_LEAST):
        return None
    why = f"; {', '.join(sorted(unknown))} is a type of ping of a newer fedping: start that" if unknown else ""
    return (
        f"{backlog(settings.journal).pings:,} pings ({waiting_bytes / MIB:,.1f} MiB) wait in the journal, some for "
        f"{waited:,.0f} s where --compact-every is {settings.compact_every:g}{why or '; see what ingest says of it'}"
    )


CHECKS: dict[str, Callable[[ServiceState], str | None]] = {
    "journal": _journal_trouble,
    "landing": _landing_trouble,
    "store": _store_trouble,
    "rounds": _rounds_trouble,
    "requests": _requests_trouble,
    "balance": _balance_trouble,
    "compactor": _compactor_trouble,
    "compaction": _compaction_trouble,
    "backlog": _backlog_trouble,
}


def _folder_trouble(folder: Path, what: str) -> str | None:
    """Say when a folder cannot be written, or its disk is nearly full."""
    probe = folder / f".probe-{os.getpid()}"
    try:
        probe.write_bytes(b"x")
        probe.unlink(missing_ok=True)
        disk = os.statvfs(folder)
    except OSError as error:
        return f"the {what} folder {folder} cannot be written: {error.strerror}; correct its permissions or its disk"
    room, size = disk.f_bavail * disk.f_frsize, disk.f_blocks * disk.f_frsize
    if room < min(NEARLY_FULL_BYTES, size / NEARLY_FULL_PARTS):
        return f"the disk of the {what} folder {folder} is nearly full: {room / MIB:,.0f} MiB are left; free some"
    if disk.f_files and disk.f_favail < disk.f_files / 100:
        return f"the disk of the {what} folder {folder} has room for {disk.f_favail:,} more files only; remove some"
    return None


def _check_lines(place: Place, store: ModelStore, rules: StudyRules) -> None:
    """Raise what a client that fetches latest.json, or a round, would run into."""
    study = rules.study.name
    for name, head in rules.heads.items():
        served = head.latest()
        newest = store.lines.newest(study, name)
        if served < 0 or newest < 0:
            raise FedpingError(store.lines.trouble(study, name) or f"line '{name}' of study '{study}' has no version")
        data = store.versions.stored_bytes(study, name, served) or b""
        _read_newest(place, study, name, served, newest, zlib.crc32(data))


@lru_cache(maxsize=1024)
def _read_newest(place: Place, study: str, line: str, served: int, newest: int, checksum: int) -> None:
    """Read a line's newest version as clients and as rounds do; only once while it stays the same, for it may be large.

    In a store of its own, which remembers the version that it has read last, and is gone with it.
    """
    store = open_store(place)
    store.public.document(study, line, served)
    store.head(study, line)


class Pulse:
    """The answers of the checks, for any number of threads; never more than one works them out.

    Args:
        watched: what is checked.
        rest: for how many times as long as they took they are told again, up to :data:`LONGEST_REST`. Anybody may ask
            in public, and a million requests must not cost more than a share of the time.
    """

    def __init__(self, watched: ServiceState, rest: float = 0.0) -> None:
        self._watched = watched
        self._rest = rest
        self._lock = threading.Lock()
        self._ended = threading.Event()
        self._ended.set()
        self._last: dict[str, str | None] = {}
        self._defect: Exception | None = None
        self._began = 0.0
        self._stale_at = 0.0

    def __call__(self) -> dict[str, str | None]:
        """Return the answers, see :func:`health`; where a check does not come back, that is told as well."""
        if self._last and time.monotonic() < self._stale_at:
            return self._last
        with self._lock:
            first = self._ended.is_set()
            if first:
                self._began, self._ended = time.monotonic(), threading.Event()
                threading.Thread(target=self._work, args=(self._ended,), name="pulse", daemon=True).start()
            ended = self._ended
        waits = first or not (self._last and self._rest)
        if ended.wait(max(0.0, self._began + PATIENCE - time.monotonic()) if waits else 0.0):
            if self._defect is not None:
                raise self._defect
            return self._last
        return self._last if time.monotonic() - self._began < PATIENCE else {**self._last, "answers": _HANGS}

    def _work(self, ended: threading.Event) -> None:
        try:
            self._last, self._defect = health(self._watched), None
        except Exception as error:  # a defect of ours, which whoever asked is told
            self._defect = error
        finally:
            now = time.monotonic()
            self._stale_at = now + min(self._rest * (now - self._began), LONGEST_REST)
            ended.set()
