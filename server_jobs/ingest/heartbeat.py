"""The heartbeat: named checks of ingest's dependencies, and the pages that report them (Dockerflow).

To add a check, write a function and register it in :data:`CHECKS`. Its sentence may name folders and quote system
errors, so only the operations port shows it. The public heartbeat lists only the names of failed checks.
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

import msgspec
from flask import Blueprint, Response

from fedping.model_store import ModelStore, open_store
from fedping.model_store.store import lost
from fedping.protocol import __version__
from fedping.protocol.errors import FedpingError
from fedping.protocol.landing import open_landing
from fedping.protocol.location import Place
from fedping.protocol.ping import DOCUMENT_TYPES
from fedping.server_jobs.health.checks import failures_in_words
from fedping.server_jobs.ingest.admission import StudyRules
from fedping.server_jobs.ingest.backlog import backlog, balance_trouble
from fedping.server_jobs.ingest.counters import failing_requests, requests_of
from fedping.server_jobs.ingest.quarantine import failing_in_words
from fedping.server_jobs.ingest.segments import CLOSED, OPEN, created_ms, document_in, segments
from fedping.server_jobs.ingest.services import ServiceState
from fedping.server_jobs.ingest.settings import COMPACTOR_LOCK, MIB
from fedping.server_jobs.processes import is_held
from fedping.server_jobs.round_status import last_attempt

LATE_PERIODS = 5
"""Maximum wait of a segment before the heartbeat fails, as a multiple of ``--compact-every``."""

LATE_AT_LEAST = 60.0
"""Lower limit in seconds of the wait by :data:`LATE_PERIODS`, so that the heartbeat doesn't fail on a busy machine."""

NEARLY_FULL_BYTES = 1024 * MIB
NEARLY_FULL_PARTS = 20
"""A disk is nearly full if its free space is below :data:`NEARLY_FULL_BYTES` and below this fraction (1 in …) of its
size."""

PATIENCE = 10.0
"""Maximum duration of all checks together, in seconds. Each takes milliseconds, unless a disk or a network hangs."""

LONGEST_REST = 10.0
"""Maximum seconds for which a result is reused, even if the checks took long."""

_HANGS = (
    f"the checks have not returned for {PATIENCE:g} s; a disk, a network file system or an object store hangs: check "
    "them"
)


def health(watched: ServiceState) -> dict[str, str | None]:
    """Return the result of each check: a sentence about its failure, or None if it passed."""
    return {name: _answer(check, watched) for name, check in CHECKS.items()}


def _answer(check: Callable[[ServiceState], str | None], watched: ServiceState) -> str | None:
    """Return the result of a check. An error that prevents the check is a failure, too."""
    try:
        return check(watched)
    except (FedpingError, OSError) as error:
        return str(error)


def _journal_trouble(watched: ServiceState) -> str | None:
    return _folder_trouble(watched.settings.journal, "journal")


def _landing_trouble(watched: ServiceState) -> str | None:
    """Check the landing folder. Of a bucket, only the existence is checked; compaction reports failed writes."""
    landing = open_landing(watched.settings.landing)
    if isinstance(landing.place, Path):
        return _folder_trouble(landing.place, "landing")
    return None if landing.exists() else f"{landing} no longer exists; restart ingest"


def _store_trouble(watched: ServiceState) -> str | None:
    """Check that clients (by latest.json) and the next round can read each line's newest version."""
    open_store(watched.settings.store)
    for study in watched.store.studies.names():
        if watched.catalogue.knows(study):
            _check_lines(watched.settings.store, watched.store, watched.catalogue.rules(study))
    return watched.catalogue.trouble or _behind(watched)


def _behind(watched: ServiceState) -> str | None:
    """Return a sentence if a line's newest version can't be served, or was lost from the store."""
    store, landing = watched.store, open_landing(watched.settings.landing)
    for name, line in _lines(watched):
        noted = landing.read_published(store.where, name, line)
        if trouble := store.lines.trouble(name, line):
            return trouble
        if noted > (newest := store.lines.newest(name, line)):
            return lost(name, line, newest, noted, str(landing))
    return None


def store_notes(watched: ServiceState) -> list[str]:
    """Return a sentence for each file in the store that is ignored without harm."""
    try:
        return [note for name, line in _lines(watched) for note in watched.store.lines.notes(name, line)]
    except (FedpingError, OSError):
        return []  # the heartbeat fails by the check of the store


def _lines(watched: ServiceState) -> list[tuple[str, str]]:
    known = watched.catalogue
    return [(study, line) for study in known.names() for line in known.rules(study).heads]


def _requests_trouble(watched: ServiceState) -> str | None:
    """Check for server errors in recent requests, such as a full disk or a lack of file descriptors."""
    settings, known = watched.settings, watched.catalogue
    private = any(known.rules(name).study.is_private for name in known.names())
    return failing_requests(requests_of(settings.counters, time.time()), settings.journal, private)


def _rounds_trouble(watched: ServiceState) -> str | None:
    """Check the rounds of running studies. Failures count as soon as they are a problem of the study's health."""
    store, landing = watched.store, open_landing(watched.settings.landing)
    for study, line in _lines(watched):
        attempt = last_attempt(landing, store.where, study, line)
        # Each read of a bucket takes long, so the store is only read if the note shows a problem.
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
    """Check the age of segments. Segments of an earlier ingest count from the start of this ingest.

    A closed segment waits from its last ping on; an open segment from its creation on, as its worker may not roll it.
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
    why = f"; {', '.join(sorted(unknown))} is a ping type of a newer fedping: upgrade ingest" if unknown else ""
    return (
        f"{backlog(settings.journal).pings:,} pings ({waiting_bytes / MIB:,.1f} MiB) wait in the journal, some for "
        f"{waited:,.0f} s, although --compact-every is {settings.compact_every:g}{why or '; read the log of ingest'}"
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
    """Check that a folder is writable and that its disk isn't nearly full."""
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
        return f"the disk of the {what} folder {folder} has room for only {disk.f_favail:,} more files; remove some"
    return None


def _check_lines(place: Place, store: ModelStore, rules: StudyRules) -> None:
    """Raise any error that a client with latest.json, or a round, would encounter."""
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
    """Read a line's newest version as clients and rounds do, once per version, because it may be large.

    The store is reopened, so that its cache of the last version ends with this call.
    """
    store = open_store(place)
    store.public.document(study, line, served)
    store.head(study, line)


class Pulse:
    """Results of the checks, shared by threads. At most one thread at a time runs the checks.

    Args:
        watched: the parts to check.
        rest: multiple of the checks' duration for which their results are reused, up to :data:`LONGEST_REST`. It bounds
            the share of time that requests for the public heartbeat can consume.
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
        """Return the results of :func:`health`; the entry ``answers`` reports checks that hang."""
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
        except Exception as error:  # a defect of ours, raised to the caller
            self._defect = error
        finally:
            now = time.monotonic()
            self._stale_at = now + min(self._rest * (now - self._began), LONGEST_REST)
            ended.set()


SHALLOW = "/__lbheartbeat__"


def heartbeat_pages(pulse: Pulse, notes: Callable[[], list[str]] | None = None) -> Blueprint:
    """Return the views. With ``notes``, they show sentences to the operator; otherwise only names of checks."""
    views = Blueprint("dockerflow", __name__)
    commit = os.environ.get("FEDPING_COMMIT", "")

    @views.get(SHALLOW)
    def shallow() -> Response:
        return _json({"status": "ok"})

    @views.get("/__heartbeat__")
    def deep() -> Response:
        checks = pulse()
        results = {name: (trouble if notes else "error") if trouble else "ok" for name, trouble in checks.items()}
        failed = any(checks.values())
        answer: dict[str, object] = {"status": "error" if failed else "ok", "version": __version__, "checks": results}
        if notes:  # not while the store does not answer, because they would wait for it
            answer["notes"] = [] if checks.get("store") or "answers" in checks else notes()
        return _json(answer, 503 if failed else 200)

    @views.get("/__version__")
    def version() -> Response:
        return _json({"source": "fedping", "version": __version__, "commit": commit})

    return views


def _json(value: object, status: int = 200) -> Response:
    return Response(msgspec.json.encode(value), status, content_type="application/json")
