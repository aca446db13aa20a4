"""A worker process: its parts, its core, its tie to the server."""

from __future__ import annotations

import contextlib
import ctypes
import gc
import os
import re
import socket
import sys
from collections.abc import Callable
from multiprocessing.util import Finalize
from pathlib import Path
from typing import TypeAlias

from fedping.model_store import open_store
from fedping.server_jobs.ingest.admission.body import Memory
from fedping.server_jobs.ingest.admission.budget import Budget
from fedping.server_jobs.ingest.admission.catalogue import Catalogue
from fedping.server_jobs.ingest.admission.prefixes import PrefixLimits
from fedping.server_jobs.ingest.counters import Counters, RejectionLog, StudyCounters
from fedping.server_jobs.ingest.edge.application import Edge
from fedping.server_jobs.ingest.edge.asgi import Front
from fedping.server_jobs.ingest.edge.services import Services
from fedping.server_jobs.ingest.journal.journal import Journals
from fedping.server_jobs.ingest.latencies import Latencies
from fedping.server_jobs.ingest.processes.process_lock import exit_with_parent, take_slot
from fedping.server_jobs.ingest.processes.ticker import Keeper
from fedping.server_jobs.ingest.settings import MIB, IngestSettings

_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD, _M_ARENA_MAX = -1, -3, -8

ARENAS, KEPT = 2, 8 * MIB
"""Heaps of the C library, and the free bytes that each keeps at its end: about the usual batches of a worker together.
If they went back to the system after every batch, to be requested again, each ping would cost 2 µs more."""

PATIENCE = 3.0
"""Seconds that a large request waits for room."""

PREFIX_BURST = 30.0
"""For how many seconds' worth of its rate a network may send at once after a rest."""

MakeApplication: TypeAlias = Callable[[Services], Front]


def front(services: Services) -> Front:
    """Return the application that a worker serves."""
    return Front(Edge(services))


def services_for(settings: IngestSettings, name: str) -> Services:
    """Return the parts of a worker; ``name`` distinguishes its files from those of others.

    Raises:
        StoreError: the store cannot be read.
    """
    limits = settings.limits
    store = open_store(settings.store)
    counters = Counters(settings.counters)
    return Services(
        settings=settings,
        store=store,
        catalogue=Catalogue(store, ticket_keys=settings.ticket_keys),
        journals=Journals(settings.journal, settings.roll_bytes, counters),
        counters=counters,
        of_studies=StudyCounters(settings.counters),
        latencies=Latencies(settings.counters),
        rejections=RejectionLog(settings.rejected, name),
        memory=Memory(
            Budget(limits.receiving_bytes, 0.0, 0),
            Budget(limits.working_bytes, PATIENCE, settings.threads),
        ),
        prefixes=_prefixes(settings),
    )


def _prefixes(settings: IngestSettings) -> PrefixLimits | None:
    if settings.prefix_rate is None:
        return None
    rate = settings.prefix_rate / settings.workers  # connections are spread evenly over the workers
    return PrefixLimits(rate, PREFIX_BURST * rate, settings.trusted_proxies)


def start_worker(settings: IngestSettings, parent: int, make: MakeApplication = front) -> Front:
    """Make this process a worker and return its application. Call it before any thread is started."""
    exit_with_parent(parent)
    slot = take_slot(settings.journal)
    pin_to_core(slot)
    give_memory_back()
    services = services_for(settings, worker_name(settings, slot))
    application = make(services)
    calm_collector()
    sys.setswitchinterval(0.001)  # how long the loop waits for each thread that is busy with a batch
    Keeper(services).start()
    # Not `atexit`, because a multiprocessing process does not run its functions at exit.
    Finalize(None, services.flush, exitpriority=0)
    return application


def worker_name(settings: IngestSettings, slot: int) -> str:
    """Return the name of a worker's files in the landing folder, which hosts with their own journals may share."""
    landing = settings.landing
    if isinstance(landing, Path) and settings.journal.absolute().is_relative_to(landing.absolute()):
        return f"worker-{slot}"
    return f"{re.sub('[^A-Za-z0-9-]+', '-', socket.gethostname()) or 'host'}-worker-{slot}"


def give_memory_back() -> None:
    """Make the C library map large blocks individually, so that they go back to the system as soon as they are freed.

    Otherwise it learns from the first large body that such blocks are usual, and from then on keeps what many threads
    have freed in as many heaps, each as large as the largest body seen.
    """
    with contextlib.suppress(OSError, AttributeError):
        tune = ctypes.CDLL(None).mallopt
        tune(_M_MMAP_THRESHOLD, MIB)
        tune(_M_TRIM_THRESHOLD, KEPT)
        tune(_M_ARENA_MAX, ARENAS)


def calm_collector() -> None:
    """Make the garbage collector look only at new objects, and rarely: pings have no cycles."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 20, 50)


def pin_to_core(slot: int) -> None:
    """Keep this process, and every thread it starts from now on, on one core.

    Threads of one interpreter cannot run Python side by side anyway; on several cores they fight for its lock.
    """
    if hasattr(os, "sched_setaffinity"):
        cores = sorted(os.sched_getaffinity(0))
        os.sched_setaffinity(0, {cores[slot % len(cores)]})
