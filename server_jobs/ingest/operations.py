"""The operations port: metrics, status, heartbeat with reasons, and flush, served by a separate process.

Any program that can reach the port may use it; on loopback, these are programs on this machine. Requests of web pages
in a browser are rejected: those from another site, and those by a host name that was pointed at this machine.
"""

from __future__ import annotations

import math
import os
import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, TypeVar

import msgspec
from flask import Blueprint, Flask, Response, request
from werkzeug.serving import ThreadedWSGIServer, WSGIRequestHandler

from fedping.model_store import store_at
from fedping.protocol.errors import FedpingError
from fedping.server_jobs.health.checks import FINDINGS
from fedping.server_jobs.health.facts import PrivateFacts
from fedping.server_jobs.health.round_metrics import LineRounds, build_family, round_families
from fedping.server_jobs.health.snapshot import Judgement, StudyMonitor, ingest_snapshot
from fedping.server_jobs.ingest.admission import Catalogue
from fedping.server_jobs.ingest.application import tell_errors
from fedping.server_jobs.ingest.backlog import (
    Backlog,
    backlog,
    missing,
    request_flush,
    settled,
    wait_until_landed,
)
from fedping.server_jobs.ingest.compactor_counts import Uploaded, uploaded
from fedping.server_jobs.ingest.counters import PROCESSES, OfStudy, of_studies, totals
from fedping.server_jobs.ingest.heartbeat import Pulse, heartbeat_pages, store_notes
from fedping.server_jobs.ingest.latencies import Answered, latencies, latency_families
from fedping.server_jobs.ingest.resources import Resources, resources
from fedping.server_jobs.ingest.services import ServiceState
from fedping.server_jobs.ingest.settings import IngestSettings
from fedping.server_jobs.listener import is_addressed, is_cross_site, listen, stay_here
from fedping.server_jobs.processes import exit_with_parent

if TYPE_CHECKING:
    from prometheus_client import Metric


T = TypeVar("T")

COUNTERS = {
    "accepted": ("pings_accepted", "Pings that were answered 200, duplicates included."),
    "posted_bytes": ("posted_bytes", "Bytes of bodies received below /submit, as sent; rejected ones too."),
    "fetched_bytes": ("fetched_bytes", "Bytes of bodies sent below /models."),
    "landed": ("pings_landed", "Pings written to Parquet."),
    "duplicates": ("pings_duplicate", "Duplicate pings dropped by the compactor."),
    "quarantined": ("journal_quarantined", "Unreadable pieces of the journal, in quarantine."),
    "quarantined_pings": ("pings_quarantined", "Pings in these pieces, as far as known; they do not land."),
    "torn": ("journal_torn", "Unfinished writes of killed processes; their pings were never accepted."),
    "rescued": ("journal_rescued", "Segments that were removed during a write, and written again."),
    "batches": ("batches", "Batches accepted."),
    "commits": ("journal_commits", "Flushes of the journal to disk; each makes many pings durable."),
    "journal_bytes": ("journal_bytes", "Bytes written to the journal."),
    "files": ("files_landed", "Parquet files written."),
    "passes": ("compactions", "Passes of the compactor."),
    "failed_passes": ("compactions_failed", "Passes of the compactor that failed and are retried."),
}
COARSE = dict.fromkeys(("accepted", "landed", "duplicates", "batches", "commits", "pings"), 1000) | {
    "journal_bytes": 1_000_000,
    "posted_bytes": 1_000_000,
    "fetched_bytes": 1_000_000,
}
"""Steps to which counters are rounded down if a study is private. Exact counters would reveal single pings."""

SECONDS = {
    "commit_microseconds": ("journal_commit_seconds", "Time spent in writing and flushing the journal."),
    "compaction_microseconds": ("compaction_seconds", "Time spent in compaction."),
}


@dataclass(frozen=True, kw_only=True)
class Metrics:
    """The contents of the metrics page.

    Attributes:
        sums: all counters.
        waiting: numbers of pings and segments in the journal.
        missing: number of accepted pings that are neither landed nor in the journal.
        checks: the heartbeat's checks, with a sentence for each failed check.
        updates: number and bytes of landed updates, by kind.
        unserved: number of studies that can't be served.
        studies: state and health of the other studies.
        by_study: pings accepted and rejected, by study.
        private: the private studies.
        budgets: guarantee and remaining budget of each private line.
        rounds: outcomes of the rounds of each line.
        answers: response times by route and status class.
        resources: memory of the processes, and the disks.
    """

    sums: Mapping[str, int]
    waiting: Backlog
    missing: int
    checks: Mapping[str, str | None]
    updates: Mapping[Uploaded, tuple[int, int]]
    unserved: int
    studies: Mapping[str, Judgement]
    by_study: Mapping[str, OfStudy]
    private: frozenset[str]
    budgets: Sequence[tuple[str, str, PrivateFacts]]
    rounds: Sequence[LineRounds]
    answers: Mapping[tuple[str, str], Answered]
    resources: Resources

    def coarse(self) -> Metrics:
        """Return these metrics without exact numbers of pings, if a study is private.

        The numbers of private studies are removed, and the sums over all studies are rounded down.
        """
        if not self.private:
            return self
        return replace(
            self,
            sums={name: _coarse(name, number) for name, number in self.sums.items()},
            waiting=replace(self.waiting, pings=_coarse("pings", self.waiting.pings)),
            updates={kind: counts for kind, counts in self.updates.items() if kind.study not in self.private},
            by_study={study: counts for study, counts in self.by_study.items() if study not in self.private},
        )


def exposition(metrics: Metrics) -> tuple[bytes, str]:
    """Return the metrics page and its content type."""
    from prometheus_client import CollectorRegistry
    from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest
    from prometheus_client.registry import Collector

    shown = metrics.coarse()

    class Sums(Collector):
        def collect(self) -> Iterator[Metric]:
            yield build_family("ingest")
            yield from _ingest_families(shown)
            yield from _study_families(shown)
            yield from _budget_families(shown.budgets)
            yield from round_families(shown.rounds)
            yield from latency_families(shown.answers, private=bool(shown.private))

    registry = CollectorRegistry()
    registry.register(Sums())
    return generate_latest(registry), CONTENT_TYPE_LATEST


def _ingest_families(metrics: Metrics) -> Iterator[Metric]:
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

    for key, (name, text) in COUNTERS.items():
        yield CounterMetricFamily(f"fedping_ingest_{name}", text, value=metrics.sums[key])
    for key, (name, text) in SECONDS.items():
        yield CounterMetricFamily(f"fedping_ingest_{name}", text, value=metrics.sums[key] / 1e6)
    refused = CounterMetricFamily(
        "fedping_ingest_rejected", "Rejected requests and lines, by reason.", labels=["reason"]
    )
    for key, count in metrics.sums.items():
        if key.startswith("rejected."):
            refused.add_metric([key.partition(".")[2]], count)
    yield refused
    text = "Processes of ingest that died and were restarted, by kind."
    died = CounterMetricFamily("fedping_ingest_processes_died", text, labels=["process"])
    for process in PROCESSES:
        died.add_metric([process], metrics.sums[f"died.{process}"])
    yield died
    labels = list(Uploaded._fields)
    landed = CounterMetricFamily("fedping_ingest_updates_landed", "Updates written to Parquet.", labels=labels)
    size = CounterMetricFamily("fedping_ingest_update_bytes", "Encoded bytes of these updates.", labels=labels)
    for what, (number, bytes_) in metrics.updates.items():
        landed.add_metric(what, number)
        size.add_metric(what, bytes_)
    yield landed
    yield size
    yield GaugeMetricFamily(
        "fedping_ingest_pings_pending", "Pings in the journal, not landed yet.", metrics.waiting.pings
    )
    yield GaugeMetricFamily("fedping_ingest_segments_pending", "Segments of the journal.", metrics.waiting.segments)
    yield GaugeMetricFamily(
        "fedping_ingest_oldest_pending_seconds",
        "Waiting time of the oldest of these pings; if this machine is lost now, these pings are lost.",
        metrics.waiting.oldest_seconds,
    )
    yield GaugeMetricFamily(
        "fedping_ingest_pings_missing",
        "Accepted pings that are missing.",
        metrics.missing,
    )
    yield GaugeMetricFamily(
        "fedping_ingest_studies_unserved", "Studies that cannot be read or served.", metrics.unserved
    )
    well = GaugeMetricFamily("fedping_ingest_check", "Checks of the heartbeat: 1 passed, 0 failed.", labels=["check"])
    for name, trouble in metrics.checks.items():
        well.add_metric([name], 0 if trouble else 1)
    yield well
    yield from _resource_families(metrics.resources)


def _resource_families(found: Resources) -> Iterator[Metric]:
    from prometheus_client.core import GaugeMetricFamily

    running = GaugeMetricFamily("fedping_ingest_processes", "Running processes of ingest.", labels=["process"])
    text = "Memory of ingest's processes; shared pages count once, in equal parts."
    memory = GaugeMetricFamily("fedping_ingest_memory_bytes", text, labels=["process"])
    for name, number in sorted(found.processes.items()):
        running.add_metric([name], number)
        memory.add_metric([name], found.memory[name])
    text = "Free bytes for ingest on the disk of a folder."
    free = GaugeMetricFamily("fedping_ingest_disk_free_bytes", text, labels=["folder"])
    size = GaugeMetricFamily("fedping_ingest_disk_size_bytes", "Size of the disk of a folder.", labels=["folder"])
    for name, disk in found.disks.items():
        free.add_metric([name], disk.free)
        size.add_metric([name], disk.size)
    yield from (running, memory, free, size)


def _coarse(name: str, number: int) -> int:
    """Return a counter rounded down to thousands of pings or millions of bytes."""
    step = COARSE["pings"] if name.startswith("rejected.") else COARSE.get(name, 1)
    return number - number % step


def _budget_families(budgets: Sequence[tuple[str, str, PrivateFacts]]) -> Iterator[Metric]:
    from prometheus_client.core import GaugeMetricFamily

    labels = ["study", "line"]
    epsilon = GaugeMetricFamily(
        "fedping_study_privacy_epsilon", "Epsilon spent by the rounds of a private line.", labels=labels
    )
    left = GaugeMetricFamily(
        "fedping_study_privacy_rounds_left",
        "Number of rounds that the guarantee of a line still allows.",
        labels=labels,
    )
    for study, line, private in budgets:
        if private.epsilon is not None:
            epsilon.add_metric([study, line], private.epsilon)
        if private.rounds_left is not None:
            left.add_metric([study, line], private.rounds_left)
    yield epsilon
    yield left


def _study_families(metrics: Metrics) -> Iterator[Metric]:
    """Yield the health of studies: a number for each study, and for each finding and rejection reason of a study."""
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

    states = GaugeMetricFamily(
        "fedping_study_state", "Declared state: 1 for the current state.", labels=["study", "state"]
    )
    text = "Health as on the dashboard: 0 healthy, 1 a warning, 2 a problem."
    findings = GaugeMetricFamily("fedping_study_finding", text, labels=["study", "finding"])
    over = GaugeMetricFamily("fedping_study_lines_over", "Lines whose training is over.", labels=["study"])
    staged = [
        GaugeMetricFamily(
            f"fedping_study_staged_{name}", f"For a line with a staged version: {of}", labels=["study", "line"]
        )
        for name, of in (
            ("version", "its number."),
            ("share", "the share of clients that get it."),
            ("clients_heard", "number of these clients that the last round heard from."),
            ("clients_wanted", "number of clients needed on each side."),
        )
    ]
    accepted = CounterMetricFamily("fedping_study_accepted", "Pings that were answered 200.", labels=["study"])
    text = "Rejected requests and lines, by reason."
    rejected = CounterMetricFamily("fedping_study_rejected", text, labels=["study", "reason"])
    for study, (declared, health) in metrics.studies.items():
        own = metrics.by_study.get(study, OfStudy())
        if study not in metrics.private:
            accepted.add_metric([study], own.accepted)
        for reason, number in own.rejected.items():
            rejected.add_metric([study, reason], number)
        for state in STATES:
            states.add_metric([study, state], int(state == declared.state))
        worst = {
            name: max((LEVELS[one.severity] for one in health.findings if one.name == name), default=0)
            for name in FINDINGS
        }
        for name, level in worst.items():
            findings.add_metric([study, name], level)
        over.add_metric([study], len(health.over))
        for one in health.staged:
            for family, value in zip(staged, (one.version, one.share, one.heard, one.wanted), strict=True):
                family.add_metric([study, one.line], value)
    yield states
    yield findings
    yield over
    yield from staged
    yield accepted
    yield rejected


STATES = ("running", "paused", "ended")
LEVELS = {"warning": 1, "problem": 2}
FLUSH_SECONDS = 30.0
LONGEST_FLUSH_SECONDS = 600.0
MOST_FLUSHES = 8
"""Maximum number of waiting flushes. It leaves some threads free for short requests."""


class Operations(Flask):
    """The application of the operations port."""

    def __init__(self, watched: ServiceState) -> None:
        super().__init__("fedping.operations", static_folder=None)
        self._names = (watched.settings.operations_host, socket.gethostname())
        pulse = Pulse(watched)
        self.register_blueprint(heartbeat_pages(pulse, partial(store_notes, watched)))
        self.register_blueprint(operations_pages(watched, pulse))
        self.before_request(self._refuse_pages)
        stay_here(self)
        tell_errors(self)

    def _refuse_pages(self) -> Response | None:
        """Reject pages of other sites, and requests by a foreign host name (DNS rebinding)."""
        if not is_addressed(request.host, self._names):
            return _refusal("use an address, localhost, or the name given with --operations-host")
        if is_cross_site(request):
            return _refusal("pages of other sites have no access; use a program on this machine")
        return None


def _metrics(watched: ServiceState, monitor: StudyMonitor, checks: Mapping[str, str | None]) -> Metrics:
    """Return the current metrics. Those of studies and rounds are empty while the store doesn't respond."""
    settings, away = watched.settings, _is_away(watched, checks)
    by_study = of_studies(settings.counters)
    return Metrics(
        sums=totals(settings.counters),
        waiting=backlog(settings.journal),
        missing=missing(settings),
        checks=checks,
        updates=uploaded(settings.counters),
        unserved=len(watched.catalogue.unusable),
        studies={} if away else _or_empty(lambda: monitor.all(ingest_snapshot(settings)), {}),
        by_study=by_study,
        private=_private(monitor, watched.catalogue, frozenset(by_study), away),
        budgets=[] if away else monitor.budgets(),
        rounds=[] if away else _or_empty(monitor.rounds, []),
        answers=latencies(settings.counters),
        resources=resources(settings, disks="answers" not in checks),
    )


def _is_away(watched: ServiceState, checks: Mapping[str, str | None]) -> bool:
    """Return whether a check has found that a bucket doesn't respond. Another request to it would wait as well."""
    return not watched.store.is_near and bool(checks.get("store") or "answers" in checks)


def _or_empty(read: Callable[[], T], empty: T) -> T:
    """Return the result of ``read``, or ``empty`` if the store can't be read; the check ``store`` reports that."""
    try:
        return read()
    except (FedpingError, OSError):
        return empty


def operations_pages(watched: ServiceState, pulse: Pulse) -> Blueprint:
    """Return the views of metrics, status and flush."""
    views = Blueprint("operations", __name__)
    settings = watched.settings
    monitor = StudyMonitor(settings)
    flushing = threading.BoundedSemaphore(MOST_FLUSHES)

    def current_status() -> dict[str, object]:
        counted = frozenset(of_studies(settings.counters))
        return status_of(watched, bool(_private(monitor, watched.catalogue, counted, _is_away(watched, pulse()))))

    @views.get("/metrics")
    def metrics() -> Response:
        text, content_type = exposition(_metrics(watched, monitor, pulse()))
        return Response(text, content_type=content_type)

    @views.get("/__status__")
    def status() -> Response:
        return _json_response(current_status())

    @views.post("/__flush__")
    def flush() -> Response:
        """Land all pings accepted before this request. Respond when they are in Parquet, or with 504 after the timeout.

        Pings that were removed from the journal never land; the response is then 504, too.
        """
        if not flushing.acquire(blocking=False):
            return _json_response(
                {"error": f"{MOST_FLUSHES} flushes are already running and will land the same pings; wait"}, 503
            )
        try:
            accepted = totals(settings.counters)["accepted"]
            request_flush(settings.flush_request)
            landed = wait_until_landed(
                settings.journal, _seconds(), lambda: settled(totals(settings.counters)) >= accepted
            )
        finally:
            flushing.release()
        return _json_response(current_status() | {"flushed": landed}, 200 if landed else 504)

    return views


def _private(monitor: StudyMonitor, catalogue: Catalogue, counted: frozenset[str], away: bool) -> frozenset[str]:
    """Return the private studies. While the store can't be read, unusable and unknown studies count as private.

    Known studies that aren't private keep exact numbers meanwhile. Rounding could lower a counter, which Prometheus
    would mistake for a restart.
    """
    known = catalogue.names()
    private = {name for name in known if catalogue.rules(name).study.is_private}
    if not away:
        with suppress(FedpingError, OSError):
            return frozenset(private | monitor.private())
    return frozenset(private | catalogue.unusable.keys() | (counted - {*known}))


def status_of(watched: ServiceState, is_private: bool) -> dict[str, object]:
    """Return the numbers of pings accepted and landed since ingest started, and of pings in the journal.

    With ``is_private`` (a study is private), numbers of pings are rounded down as in the metrics.
    """
    sums: Mapping[str, int] = totals(watched.settings.counters)
    waiting = backlog(watched.settings.journal)
    if is_private:
        sums = {name: _coarse(name, number) for name, number in sums.items()}
        waiting = replace(waiting, pings=_coarse("pings", waiting.pings))
    rejected = {name.partition(".")[2]: n for name, n in sums.items() if name.startswith("rejected.") and n}
    return {
        "accepted": sums["accepted"],
        "landed": sums["landed"],
        "duplicates": sums["duplicates"],
        "quarantined": sums["quarantined"],
        "missing": missing(watched.settings),
        "pending": waiting.pings,
        "pending_segments": waiting.segments,
        "rejected": rejected,
    }


def _seconds() -> float:
    timeout = request.args.get("timeout", type=float, default=FLUSH_SECONDS)
    return FLUSH_SECONDS if math.isnan(timeout) else min(max(timeout, 0.0), LONGEST_FLUSH_SECONDS)


def _refusal(sentence: str) -> Response:
    return _json_response({"error": sentence}, 403)


def _json_response(value: object, status: int = 200) -> Response:
    return Response(msgspec.json.encode(value), status, content_type="application/json")


MOST_AT_ONCE = 64
SILENT_SECONDS = 10.0
"""Maximum seconds that a thread waits for the request of a connection."""


class OperatorsListener:
    """Socket of the operations port. This process listens and a child serves, so requests survive the child's death.

    Raises:
        CannotStart: the host isn't an address of this machine, or the port is in use.
    """

    def __init__(self, settings: IngestSettings) -> None:
        self._settings = settings
        self._socket = listen(
            settings.operations_host, settings.operations_port, "--operations-host", "--operations-port"
        )
        self.port: int = self._socket.getsockname()[1]

    @property
    def url(self) -> str:
        """The URL of the operations port."""
        host = self._settings.operations_host
        return f"http://{f'[{host}]' if ':' in host else host}:{self.port}"

    def serve(self, parent: int) -> None:
        """Serve until this process or its ``parent`` ends."""
        exit_with_parent(parent)
        os.setpgrp()
        watched = _watched(self._settings)
        threading.Thread(target=_keep_up, args=(watched.catalogue,), daemon=True).start()
        address = self._socket.getsockname()[0]
        _Server(address, self.port, Operations(watched), _Handler, fd=self._socket.fileno()).serve_forever()


class _Handler(WSGIRequestHandler):
    protocol_version = "HTTP/1.0"  # one request per connection, and so per thread
    timeout = SILENT_SECONDS

    def log(self, type: str, message: str, *args: object) -> None:
        """Log nothing: scrapes arrive every few seconds, and a dropped connection isn't an error."""


class _Server(ThreadedWSGIServer):
    """A server with a bounded number of threads; further connections wait to be accepted."""

    def __init__(self, *args: object, **kwargs: object) -> None:
        super().__init__(*args, **kwargs)  # type: ignore[arg-type]
        self._free = threading.BoundedSemaphore(MOST_AT_ONCE)

    def process_request(self, request, client_address) -> None:  # type: ignore[no-untyped-def]
        self._free.acquire()
        super().process_request(request, client_address)

    def process_request_thread(self, request, client_address) -> None:  # type: ignore[no-untyped-def]
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._free.release()


def _watched(settings: IngestSettings) -> ServiceState:
    """Return the parts to check. The store may be unreadable; the heartbeat reports the reason."""
    store = store_at(settings.store)
    return ServiceState(
        settings=settings, store=store, catalogue=Catalogue(store, patient=True, ticket_keys=settings.ticket_keys)
    )


def _keep_up(catalogue: Catalogue) -> None:
    """Refresh the newest versions as workers do, so that published versions are still known if the store is lost."""
    while True:
        time.sleep(catalogue.every)
        catalogue.refresh()
