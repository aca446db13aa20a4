"""Starting ingest: everything that can be wrong is found, and told in one sentence, before anything runs."""

from __future__ import annotations

import math
import multiprocessing
import os
import resource
import shutil
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

from fedping.model_store import open_store
from fedping.protocol.errors import InvalidSettings
from fedping.protocol.landing import open_landing
from fedping.protocol.local_files import make_folder
from fedping.protocol.log import tell
from fedping.server_jobs.ingest.admission.catalogue import Catalogue
from fedping.server_jobs.ingest.journal.backlog import note_inherited, note_period
from fedping.server_jobs.ingest.processes.process_lock import Lock
from fedping.server_jobs.ingest.recent import MORE_DESCRIPTORS
from fedping.server_jobs.ingest.settings import CONNECTIONS, LOGGED, IngestSettings
from fedping.server_jobs.listener import CannotStart, check_port

INGEST_LOCK = ".ingest.lock"
DESCRIPTORS = CONNECTIONS + 256
"""Files that a worker may have open: its connections, and those of its journal, store and threads."""

LOCK_PATIENCE = 5.0
"""Seconds to wait for the processes of an ingest that was killed a moment ago to be gone."""


def prepare(settings: IngestSettings) -> Lock:
    """Check everything that ingest needs and return the lock that this ingest holds from now on.

    Raises:
        InvalidSettings: a number is out of its range.
        StoreError: the store is missing or damaged.
        FedpingError: none of its studies can be served.
        CannotStart: a folder cannot be written, the port is taken, or the journal has another ingest.
    """
    _check_numbers(settings)
    _raise_descriptors()
    for name, sentence in _unusable(settings).items():
        tell(f"starts without a study: {sentence}", before=LOGGED, study=name)
    if isinstance(settings.landing, Path):
        _check_writable(settings.landing, "landing")
    _check_writable(settings.journal, "journal")
    lock = _take_lock(settings.journal)  # first, for whoever still holds it may hold the port too
    check_port(settings.host, settings.port)
    shutil.rmtree(settings.counters, ignore_errors=True)
    note_inherited(settings)
    note_period(settings)
    return lock


def _unusable(settings: IngestSettings) -> dict[str, str]:
    """Return why studies cannot be served that cannot, by name; raises as :func:`prepare`.

    And see to it that pings can land, if that is in a bucket.
    """
    if isinstance(settings.store, Path) and isinstance(settings.landing, Path):
        return _looked_at(settings)
    # What talks to an object store has threads, and this process is one that forks: a child that ends again asks.
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
    """Raise the limit of open files to what a worker promises to hold; warn if the hard limit is below that."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != resource.RLIM_INFINITY and soft < DESCRIPTORS and soft != hard:
        most = DESCRIPTORS if hard == resource.RLIM_INFINITY else min(hard, DESCRIPTORS)
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))
    if hard != resource.RLIM_INFINITY and hard < DESCRIPTORS:
        tell(
            f"warning: a process may open {hard:,} files, and a worker needs {DESCRIPTORS:,} for its {CONNECTIONS:,} "
            f"connections; {MORE_DESCRIPTORS}, or clients will find no connection",
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
            f"another ingest is running with the journal {journal}; stop it, or give this one its own with --journal"
        )
    return lock
