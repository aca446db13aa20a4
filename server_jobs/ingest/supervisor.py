"""Ingest's main process, which checks all settings, and starts and stops workers, compactor and listeners.

Mistakes in settings are reported in one sentence before any process is started.
"""

from __future__ import annotations

import contextlib
import math
import multiprocessing
import os
import resource
import shutil
import signal
import sys
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from multiprocessing.connection import wait
from multiprocessing.context import ForkProcess
from pathlib import Path
from types import FrameType, MappingProxyType

from fedping.model_store import open_store
from fedping.protocol.errors import InvalidSettings
from fedping.protocol.landing import open_landing
from fedping.protocol.local_files import make_folder
from fedping.protocol.log import tell, tell_defect
from fedping.protocol.storage import open_storage
from fedping.server_jobs.ingest.admission import Catalogue
from fedping.server_jobs.ingest.backlog import note_inherited, note_period
from fedping.server_jobs.ingest.counters import MORE_DESCRIPTORS, PROCESSES, Counters
from fedping.server_jobs.ingest.resources import register
from fedping.server_jobs.ingest.settings import (
    COMPACTOR_LOCK,
    CONNECTION_BYTES,
    CONNECTIONS,
    INGEST_LOCK,
    LOGGED,
    IngestSettings,
)
from fedping.server_jobs.ingest.worker import MakeApplication, front, start_worker
from fedping.server_jobs.listener import CannotStart, check_port
from fedping.server_jobs.processes import Lock, StopEvent, exit_with_parent
from fedping.server_jobs.shutdown import describe_exit

DESCRIPTORS = CONNECTIONS + 256
"""Maximum open files of a worker: for its connections, journal, store and threads."""

LOCK_PATIENCE = 5.0
"""Maximum seconds to wait until the processes of a killed ingest have ended."""


def prepare(settings: IngestSettings) -> Lock:
    """Check everything that ingest needs, and return the lock that this ingest holds.

    Raises:
        InvalidSettings: a number is out of range.
        StoreError: the store is missing or damaged.
        FedpingError: none of the store's studies can be served.
        CannotStart: a folder can't be written, the port is in use, or another ingest uses the journal.
    """
    _check_numbers(settings)
    _raise_descriptors()
    for name, sentence in _unusable(settings).items():
        tell(f"starts without a study: {sentence}", before=LOGGED, study=name)
    if isinstance(settings.landing, Path):
        _check_writable(settings.landing, "landing")
    _check_writable(settings.journal, "journal")
    lock = _take_lock(settings.journal)  # first, because its holder may hold the port too
    check_port(settings.host, settings.port)
    shutil.rmtree(settings.counters, ignore_errors=True)
    note_inherited(settings)
    note_period(settings)
    register(settings.counters, "supervisor")
    return lock


def _unusable(settings: IngestSettings) -> dict[str, str]:
    """Return a sentence for each study that can't be served, by name; raise like :func:`prepare`.

    This also prepares a landing folder in a bucket.
    """
    if isinstance(settings.store, Path) and isinstance(settings.landing, Path):
        return _looked_at(settings)
    # A client of an object store has threads, and this process forks: so a short-lived child reads the store.
    with ProcessPoolExecutor(1, multiprocessing.get_context("fork")) as child:
        return child.submit(_looked_at, settings).result()


def _looked_at(settings: IngestSettings) -> dict[str, str]:
    if not isinstance(settings.landing, Path):
        open_landing(settings.landing).mark()
    return Catalogue(open_store(settings.store), ticket_keys=settings.ticket_keys).unusable


def _check_numbers(settings: IngestSettings) -> None:
    if settings.workers < 1:
        raise InvalidSettings(f"--workers {settings.workers}: ingest needs at least one worker; give 1 or more")
    if not (math.isfinite(settings.compact_every) and settings.compact_every >= 0.05):
        raise InvalidSettings("--compact-every is the age of a journal segment in seconds; give 0.05 or more")
    if settings.roll_bytes < 1:
        raise InvalidSettings("the size at which a journal segment is rolled must be positive; give 1 MiB or more")


def _raise_descriptors() -> None:
    """Raise the limit of open files to the number that a worker needs; warn if the hard limit is lower."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != resource.RLIM_INFINITY and soft < DESCRIPTORS and soft != hard:
        most = DESCRIPTORS if hard == resource.RLIM_INFINITY else min(hard, DESCRIPTORS)
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))
    if hard != resource.RLIM_INFINITY and hard < DESCRIPTORS:
        tell(
            f"warning: a process may open {hard:,} files, and a worker needs {DESCRIPTORS:,} for its {CONNECTIONS:,} "
            f"connections; {MORE_DESCRIPTORS}, or clients will fail to connect",
            "warning",
            before=LOGGED,
        )


def _check_writable(folder: Path, what: str) -> None:
    probe = folder / f".probe-{os.getpid()}"
    try:
        make_folder(folder)
        probe.write_bytes(b"x")
        probe.unlink(missing_ok=True)  # another host that shares the folder may have had the same name
    except OSError as error:
        reason = "it is a file" if isinstance(error, FileExistsError | NotADirectoryError) else error.strerror
        raise CannotStart(
            f"the {what} folder {folder} cannot be written ({reason}); correct its permissions, or give another with "
            f"--{what}"
        ) from error


def _take_lock(journal: Path) -> Lock:
    lock = Lock(journal / INGEST_LOCK)
    if not lock.take(LOCK_PATIENCE):
        raise CannotStart(
            f"another ingest is running with the journal {journal}; stop it, or use another journal with --journal"
        )
    return lock


KILL_AFTER = 10
"""Maximum seconds for a stopping worker to finish its responses."""


def run_server(settings: IngestSettings, parent: int, make: MakeApplication = front) -> None:
    """Serve until SIGTERM, then finish the requests in progress and end."""
    exit_with_parent(parent)
    os.setpgrp()
    from fedping.server_jobs.forking_server import ServerSettings, http_server

    listener = ServerSettings(
        host=settings.host,
        port=settings.port,
        workers=settings.workers,
        connections=CONNECTIONS,
        connection_bytes=CONNECTION_BYTES,
        kill_after=KILL_AFTER,
    )
    server = http_server("fedping.ingest", listener, partial(tell_death, settings, "worker"))
    server.serve(target_loader=partial(start_worker, settings, os.getpid(), make), wrap_loader=False)


COMPACT_EVERY = 0.02
"""Seconds between two checks of the journal for rolled segments."""

GATHER = 0.05
"""Seconds to wait after a worker has rolled its segment. The other workers roll at the same time, and their pings
share one file."""

PAUSE_AFTER_FAILURE = 1.0


def run_compactor(settings: IngestSettings, parent: int) -> None:
    """Compact until SIGTERM, then compact the rest and exit; exit code 1 if pings remain in the journal."""
    exit_with_parent(parent)
    os.setpgrp()
    stop = _stop_event(StopEvent.set)
    if not Lock(settings.journal / COMPACTOR_LOCK).take(patience=30.0):
        tell("another compactor is using this journal; stop it", before=LOGGED)
        sys.exit(1)
    # Not above: they import pyarrow, whose threads must not run in the process that forks.
    from fedping.server_jobs.ingest.compactor import (
        LAST_ATTEMPTS,
        Compactor,
        attempt,
        clear_unfinished,
        compact_the_rest,
    )
    from fedping.server_jobs.ingest.quarantine import FailureNote

    clear_unfinished(settings)
    compactor = Compactor(settings, Counters(settings.counters))
    note = FailureNote(settings.compaction_failing)
    try:
        while not stop.is_set:
            if compactor.has_work():
                stop.wait(GATHER)
            compacted = attempt(compactor, note)
            stop.wait(PAUSE_AFTER_FAILURE if compacted is None else 0.0 if compacted else COMPACT_EVERY)
        emptied = compact_the_rest(compactor, note, 1 if open_storage(settings.landing).far else LAST_ATTEMPTS)
    except Exception:  # without the message, which may quote a ping
        tell_defect(LOGGED)
        sys.exit(1)
    sys.exit(0 if emptied else 1)


def _stop_event(on_signal: Callable[[StopEvent], None]) -> StopEvent:
    """Return a stop event. SIGINT and SIGTERM call ``on_signal`` with it."""
    stop = StopEvent()

    def handle(_signal: int, _frame: FrameType | None) -> None:
        on_signal(stop)

    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, handle)
    return stop


def tell_death(settings: IngestSettings, process: str, how: str) -> None:
    """Log and count the unexpected end of a process, which will be restarted."""
    tell(f"the {process} died ({how}) and is being restarted", before=LOGGED)
    with contextlib.suppress(OSError):  # a full disk: it was logged, and the others go on
        Counters(settings.counters).add(f"died.{process if process in PROCESSES else 'other'}", 1)


OPERATIONS = "operator's listener"
"""Name of the operations port's process, in :func:`supervise` and in the log."""

LONGEST_PAUSE = 5.0
QUICK_DEATH = 2.0


class Child:
    """A child process that is restarted when it dies: at first immediately, later after increasing pauses."""

    def __init__(self, run: Callable[[], None], name: str, died: Callable[[str, str], None]) -> None:
        self._run = run
        self._name = name
        self._died = died
        self._pause = 0.0
        self.start()

    def start(self) -> None:
        """Start the process."""
        self._began = time.monotonic()
        self.process = ForkProcess(target=self._run, name=self._name)
        self.process.start()

    def revive(self) -> None:
        """Restart the process if it has died."""
        if self.process.is_alive():
            return
        quick = time.monotonic() - self._began < QUICK_DEATH
        self._pause = min(LONGEST_PAUSE, self._pause * 2 + 0.1) if quick else 0.0
        self._died(self._name, describe_exit(self.process.exitcode))
        time.sleep(self._pause)
        self.start()

    def stop(self, patience: float | None) -> int:
        """Ask the process to end and return its exit code; kill it after ``patience`` seconds (None: never)."""
        if self.process.is_alive():
            self.process.terminate()
        self.process.join(patience)
        if self.process.is_alive():
            self.process.kill()
            self.process.join()
        return self.process.exitcode or 0


def _stop_or_kill(stop: StopEvent) -> None:
    """Request a stop. At the second signal, kill all child processes."""
    if stop.is_set:
        for child in multiprocessing.active_children():
            child.kill()
    stop.set()


def supervise(
    settings: IngestSettings,
    make: MakeApplication = front,
    beside: Mapping[str, Callable[[int], None]] = MappingProxyType({}),
) -> int:
    """Run ingest until SIGINT or SIGTERM; return 0 if all accepted pings have landed, else 1.

    Args:
        settings: ingest's settings.
        make: creates a worker's application.
        beside: further functions to run in separate processes, by name; their argument is the id of the calling
            process.
    """
    stop = _stop_event(_stop_or_kill)
    here = os.getpid()
    died = partial(tell_death, settings)

    def begin(run: Callable[[], None], name: str) -> Child:
        return Child(_in_child(run, settings.counters, name), name, died)

    compactor = begin(lambda: run_compactor(settings, here), "compactor")
    server = begin(lambda: run_server(settings, here, make), "server")
    others = [begin(partial(run, here), name) for name, run in beside.items()]
    children = [compactor, server, *others]
    while not stop.is_set:
        wait([stop.reader, *(child.process.sentinel for child in children)])
        if not stop.is_set:
            for child in children:
                child.revive()
    server.stop(KILL_AFTER + 5.0)
    # The workers are gone, so their segments have no writer: the compactor's last pass takes them all. This may take a
    # while, during which the others still report the progress.
    code = compactor.stop(None)
    for child in others:
        child.stop(KILL_AFTER + 5.0)
    return 0 if code == 0 else 1


def _in_child(run: Callable[[], None], counters: Path, name: str) -> Callable[[], None]:
    def start() -> None:
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, signal.SIG_DFL)
        register(counters, "operations" if name == OPERATIONS else name)
        run()

    return start
