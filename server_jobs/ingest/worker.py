"""A worker process: its start, its core and memory, and its thread for periodic tasks."""

from __future__ import annotations

import contextlib
import ctypes
import errno
import gc
import math
import os
import re
import resource
import socket
import sys
import threading
import time
from collections.abc import Callable
from multiprocessing.util import Finalize
from pathlib import Path
from typing import TypeAlias

from fedping.protocol.log import tell
from fedping.server_jobs.ingest.application import Edge, Front
from fedping.server_jobs.ingest.counters import MORE_DESCRIPTORS
from fedping.server_jobs.ingest.resources import register
from fedping.server_jobs.ingest.services import Services, services_for
from fedping.server_jobs.ingest.settings import LOGGED, MIB, IngestSettings
from fedping.server_jobs.ingest.slow_clients import Unread
from fedping.server_jobs.ingest.submit import print_defect
from fedping.server_jobs.processes import exit_with_parent, take_slot

_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD, _M_ARENA_MAX = -1, -3, -8

ARENAS, KEPT = 2, 8 * MIB
"""Number of heaps of the C library, and free bytes that each keeps at its end: approximately the size of a worker's
usual batches. If this memory were returned to the system after each batch and requested again, each ping would cost 2
µs more."""


MakeApplication: TypeAlias = Callable[[Services], Front]


def front(services: Services) -> Front:
    """Return the application that a worker serves."""
    return Front(Edge(services))


def start_worker(settings: IngestSettings, parent: int, make: MakeApplication = front) -> Front:
    """Make this process a worker and return its application. Call it before any thread is started."""
    exit_with_parent(parent)
    register(settings.counters, "worker")
    slot = take_slot(settings.journal)
    pin_to_core(slot)
    give_memory_back()
    services = services_for(settings, worker_name(settings, slot))
    application = make(services)
    calm_collector()
    sys.setswitchinterval(0.001)  # maximum wait of the loop for a thread busy with a batch
    Ticker(services).start()
    # Not `atexit`, because a multiprocessing process does not run its functions at exit.
    Finalize(None, services.flush, exitpriority=0)
    return application


def worker_name(settings: IngestSettings, slot: int) -> str:
    """Return the name for a worker's files in the landing folder, which several hosts may share."""
    landing = settings.landing
    if isinstance(landing, Path) and settings.journal.absolute().is_relative_to(landing.absolute()):
        return f"worker-{slot}"
    return f"{re.sub('[^A-Za-z0-9-]+', '-', socket.gethostname()) or 'host'}-worker-{slot}"


def give_memory_back() -> None:
    """Make the C library map large blocks individually, so that freed blocks are returned to the system at once.

    Otherwise, after the first large body, the library would treat such blocks as usual, and keep freed memory in one
    heap per thread, each as large as the largest body so far.
    """
    with contextlib.suppress(OSError, AttributeError):
        tune = ctypes.CDLL(None).mallopt
        tune(_M_MMAP_THRESHOLD, MIB)
        tune(_M_TRIM_THRESHOLD, KEPT)
        tune(_M_ARENA_MAX, ARENAS)


def calm_collector() -> None:
    """Make the garbage collector run rarely and inspect only new objects, because pings have no reference cycles."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 20, 50)


def pin_to_core(slot: int) -> None:
    """Restrict this process, and all threads it starts later, to one core.

    Threads of one interpreter can't run Python code in parallel; on several cores they would compete for its lock.
    """
    if hasattr(os, "sched_setaffinity"):
        cores = sorted(os.sched_getaffinity(0))
        os.sched_setaffinity(0, {cores[slot % len(cores)]})


TICK = 0.02
FLUSH_EVERY = 1.0
TELL_EVERY = 60.0


class Ticker(threading.Thread):
    """Runs periodic tasks: rolling the journal by age or for a flush, refreshing the catalogue, and others.

    All workers roll at the same wall-clock times, so that their segments are compacted into one file.
    """

    def __init__(self, services: Services) -> None:
        super().__init__(name="ticker", daemon=True)
        self._services = services
        self._period = self._current_period()
        self._flush_seen = self._flush_stamp()
        self._refreshed = self._flushed = time.monotonic()
        self._probed = self._told = -math.inf
        self._unread = Unread(services.settings.limits.body_seconds, services.settings.limits.body_rate)

    def run(self) -> None:
        """Run the periodic tasks until the process ends."""
        while True:
            time.sleep(TICK)
            try:
                self.tick()
            except Exception:  # the next tick must follow after any error, because it rolls segments
                print_defect()

    def tick(self) -> None:
        """Run the due tasks."""
        if time.monotonic() - self._probed >= FLUSH_EVERY and not self._has_descriptors():
            return  # all other tasks need a descriptor
        self._services.journals.keep()
        period, stamp = self._current_period(), self._flush_stamp()
        if (period, stamp) != (self._period, self._flush_seen):
            self._period, self._flush_seen = period, stamp
            self._services.journals.roll()
        if time.monotonic() - self._flushed >= FLUSH_EVERY:
            self._services.flush()
            self._flushed = time.monotonic()
        if time.monotonic() - self._refreshed >= self._services.catalogue.every:
            self._services.catalogue.keep_up()
            self._refreshed = self._flushed = time.monotonic()
        self._unread.look(time.monotonic())

    def _has_descriptors(self) -> bool:
        """Return whether a file can be opened. A failure is counted for the heartbeat, and logged once a minute."""
        try:
            os.close(os.open(os.devnull, os.O_RDONLY))
        except OSError as error:
            if error.errno not in (errno.EMFILE, errno.ENFILE):
                raise
            self._services.counters.add("no_descriptors", 1)
            if time.monotonic() - self._told >= TELL_EVERY:
                self._told = time.monotonic()
                tell(
                    f"this worker has no file descriptors left ({error.strerror}; its limit is "
                    f"{resource.getrlimit(resource.RLIMIT_NOFILE)[0]:,}), so connections wait or fail; "
                    f"{MORE_DESCRIPTORS} and restart ingest",
                    before=LOGGED,
                )
            time.sleep(FLUSH_EVERY - TICK)
            return False
        self._probed = time.monotonic()
        return True

    def _current_period(self) -> int:
        return int(time.time() / self._services.settings.compact_every)

    def _flush_stamp(self) -> int:
        with contextlib.suppress(OSError):
            return self._services.settings.flush_request.stat().st_mtime_ns
        return 0
