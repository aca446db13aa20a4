"""What the edge works with, made once a worker process."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field

from fedping.model_store import ModelStore
from fedping.server_jobs.ingest.admission.body import Memory
from fedping.server_jobs.ingest.admission.catalogue import Catalogue
from fedping.server_jobs.ingest.admission.prefixes import PrefixLimits
from fedping.server_jobs.ingest.admission.rejection import PAGE, Rejection
from fedping.server_jobs.ingest.counters import Counters, RejectionLog, StudyCounters
from fedping.server_jobs.ingest.journal.journal import Journals
from fedping.server_jobs.ingest.latencies import Latencies
from fedping.server_jobs.ingest.settings import IngestSettings


@dataclass(frozen=True, kw_only=True)
class ServiceState:
    """What tells how ingest fares; ``began`` is when this process started to look (seconds since 1970)."""

    settings: IngestSettings
    store: ModelStore
    catalogue: Catalogue
    began: float = field(default_factory=time.time)


@dataclass(frozen=True, kw_only=True)
class Services(ServiceState):
    """The parts that a request may need."""

    journals: Journals
    counters: Counters
    of_studies: StudyCounters
    latencies: Latencies
    rejections: RejectionLog
    memory: Memory
    prefixes: PrefixLimits | None = None

    def refuse(self, study: str, rejection: Rejection) -> None:
        """Count a rejection, and remember its reason for the operator. Unknown names of studies are not kept."""
        name = self.catalogue.name_of(study)
        self.count_refused(name, rejection.reason, 1)
        self.rejections.add(name, rejection)

    def refuse_page(self, rejection: Rejection) -> None:
        """Count what was asked for and was no ping, and remember its reason for the operator."""
        self.count_refused("", PAGE, 1)
        self.rejections.add("", rejection)

    def count_refused(self, study: str, reason: str, amount: int) -> None:
        """Count refused requests or lines; ``study`` is the name of a study that exists, or empty."""
        self.counters.add(f"rejected.{reason}", amount)
        if study:
            self.of_studies.reject(study, reason, amount)
        elif reason != PAGE:  # which anybody may ask for in vain, as often as he likes
            self.of_studies.reject_stray(reason, amount)

    def count_batch(self, study: str, accepted: int, rejected: Mapping[str, int]) -> None:
        """Count the pings of a batch that are on disk, and its refused lines by reason."""
        for reason, amount in rejected.items():
            self.counters.add(f"rejected.{reason}", amount)
        self.of_studies.take_batch(study, accepted, rejected)

    def flush(self) -> None:
        """Write what is kept in memory for the operator."""
        self.rejections.flush()
        self.of_studies.flush()
