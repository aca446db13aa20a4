"""Components of a worker process that requests use."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field

from fedping.model_store import ModelStore, open_store
from fedping.server_jobs.ingest.admission import Catalogue
from fedping.server_jobs.ingest.answers import PAGE, Rejection
from fedping.server_jobs.ingest.body import Budget, Memory
from fedping.server_jobs.ingest.counters import Counters, RejectionLog, StudyCounters
from fedping.server_jobs.ingest.journal import Journals
from fedping.server_jobs.ingest.latencies import Latencies
from fedping.server_jobs.ingest.prefixes import PrefixLimits
from fedping.server_jobs.ingest.settings import IngestSettings


@dataclass(frozen=True, kw_only=True)
class ServiceState:
    """Components that report ingest's state. ``began`` is the start of this process, in seconds since 1970."""

    settings: IngestSettings
    store: ModelStore
    catalogue: Catalogue
    began: float = field(default_factory=time.time)


@dataclass(frozen=True, kw_only=True)
class Services(ServiceState):
    """Components that a request may need."""

    journals: Journals
    counters: Counters
    of_studies: StudyCounters
    latencies: Latencies
    rejections: RejectionLog
    memory: Memory
    prefixes: PrefixLimits | None = None

    def refuse(self, study: str, rejection: Rejection) -> None:
        """Count a rejection and record its reason for the operator. Names of unknown studies aren't recorded."""
        name = self.catalogue.name_of(study)
        self.count_refused(name, rejection.reason, 1)
        self.rejections.add(name, rejection)

    def refuse_page(self, rejection: Rejection) -> None:
        """Count a rejected request for a page, and record its reason for the operator."""
        self.count_refused("", PAGE, 1)
        self.rejections.add("", rejection)

    def count_refused(self, study: str, reason: str, amount: int) -> None:
        """Count rejected requests or lines; ``study`` is the name of an existing study, or empty."""
        self.counters.add(f"rejected.{reason}", amount)
        if study:
            self.of_studies.reject(study, reason, amount)
        elif reason != PAGE:  # any client may request missing pages, any number of times
            self.of_studies.reject_stray(reason, amount)

    def count_batch(self, study: str, accepted: int, rejected: Mapping[str, int]) -> None:
        """Count a batch's accepted pings, which are on disk, and its rejected lines by reason."""
        for reason, amount in rejected.items():
            self.counters.add(f"rejected.{reason}", amount)
        self.of_studies.take_batch(study, accepted, rejected)

    def flush(self) -> None:
        """Write the counts and rejections that are kept in memory."""
        self.rejections.flush()
        self.of_studies.flush()


def services_for(settings: IngestSettings, name: str) -> Services:
    """Return the components of a worker; ``name`` distinguishes its files from other workers' files.

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


PATIENCE = 3.0
"""Maximum seconds that a large request waits for memory."""


PREFIX_BURST = 30.0
"""Burst of a network after a pause, in seconds of its rate."""


def _prefixes(settings: IngestSettings) -> PrefixLimits | None:
    if settings.prefix_rate is None:
        return None
    rate = settings.prefix_rate / settings.workers  # connections are spread evenly over the workers
    return PrefixLimits(rate, PREFIX_BURST * rate, settings.trusted_proxies)
