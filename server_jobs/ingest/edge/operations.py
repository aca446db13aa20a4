"""The operator's own listener: metrics, status, heartbeat with reasons, and flush.

Whoever reaches the listener may ask; on loopback that is who has a program on this machine. A page in a browser of this
machine is none: it comes from another site, or by a name that somebody else has pointed here.
"""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from types import MappingProxyType
from typing import TYPE_CHECKING

import msgspec
from flask import Blueprint, Flask, Response, request

from fedping.protocol.errors import FedpingError
from fedping.server_jobs.health.checks import FINDINGS
from fedping.server_jobs.health.facts import PrivateFacts
from fedping.server_jobs.health.round_metrics import LineRounds, build_family, round_families
from fedping.server_jobs.health.snapshot import Judgement, StudyMonitor, ingest_snapshot
from fedping.server_jobs.ingest.admission.catalogue import Catalogue
from fedping.server_jobs.ingest.compaction.uploads import Uploaded, uploaded
from fedping.server_jobs.ingest.counters import PROCESSES, OfStudy, of_studies, totals
from fedping.server_jobs.ingest.edge import dockerflow
from fedping.server_jobs.ingest.edge.application import tell_errors
from fedping.server_jobs.ingest.edge.health import Pulse, store_notes
from fedping.server_jobs.ingest.edge.services import ServiceState
from fedping.server_jobs.ingest.journal.backlog import (
    Backlog,
    backlog,
    missing,
    request_flush,
    settled,
    wait_until_landed,
)
from fedping.server_jobs.ingest.latencies import Answered, latencies, latency_families
from fedping.server_jobs.ingest.settings import IngestSettings
from fedping.server_jobs.listener import is_addressed, is_cross_site, stay_here

if TYPE_CHECKING:
    from prometheus_client import Metric


COUNTERS = {
    "accepted": ("pings_accepted", "Pings that were answered 200, duplicates included."),
    "posted_bytes": ("posted_bytes", "Bytes of bodies that came below /submit, as they travelled; refused ones too."),
    "fetched_bytes": ("fetched_bytes", "Bytes of bodies that went out below /models."),
    "landed": ("pings_landed", "Pings written to Parquet."),
    "duplicates": ("pings_duplicate", "Pings dropped by the compactor because their document had landed with them."),
    "quarantined": ("journal_quarantined", "Pieces of the journal that could not be read and were set aside."),
    "quarantined_pings": ("pings_quarantined", "Pings in those pieces, as far as that can be told; they do not land."),
    "torn": ("journal_torn", "Writes that a killed process did not finish; nobody was told that they are stored."),
    "rescued": ("journal_rescued", "Segments that were removed while being written, and written again."),
    "batches": ("batches", "Batches taken."),
    "commits": ("journal_commits", "Flushes of the journal to disk; each makes many pings durable."),
    "journal_bytes": ("journal_bytes", "Bytes written to the journal."),
    "files": ("files_landed", "Parquet files written."),
    "passes": ("compactions", "Passes of the compactor."),
    "failed_passes": ("compactions_failed", "Passes of the compactor that failed and are tried again."),
}
COARSE = dict.fromkeys(("accepted", "landed", "duplicates", "batches", "commits", "pings"), 1000) | {
    "journal_bytes": 1_000_000,
    "posted_bytes": 1_000_000,
    "fetched_bytes": 1_000_000,
}
"""What counters are rounded down to where a study is private, whose pings they would tell one by one."""

SECONDS = {
    "commit_microseconds": ("journal_commit_seconds", "Time spent in writing and flushing the journal."),
    "compaction_microseconds": ("compaction_seconds", "Time spent in compaction."),
}


def exposition(
    sums: Mapping[str, int],
    waiting: Backlog,
    missing: int,
    checks: Mapping[str, str | None],
    updates: Mapping[Uploaded, tuple[int, int]],
    unserved: int,
    studies: Mapping[str, Judgement],
    came: Mapping[str, OfStudy],
    private: frozenset[str] = frozenset(),
    budgets: Sequence[tuple[str, str, PrivateFacts]] = (),
    rounds: Sequence[LineRounds] = (),
    answers: Mapping[tuple[str, str], Answered] = MappingProxyType({}),
) -> tuple[bytes, str]:
    """Return the metrics page and its content type; ``checks`` are those of the heartbeat.

    ``updates`` are the numbers of updates that have landed and their bytes, ``unserved`` the studies that cannot be
    served, ``studies`` how each of the others is, ``came`` what was accepted and refused of them. Of the studies in
    ``private`` no number of pings is told, and, as there are any, those of all studies together are rounded down.
    ``budgets`` are what the private lines of studies guarantee and have left, ``rounds`` how rounds of lines went,
    ``answers`` how long answers took by route and class of status.
    """
    if private:
        sums = {name: _coarse(name, number) for name, number in sums.items()}
        waiting = replace(waiting, pings=_coarse("pings", waiting.pings))
        updates = {what: seen for what, seen in updates.items() if what.study not in private}
        came = {study: seen for study, seen in came.items() if study not in private}
    from prometheus_client import CollectorRegistry
    from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest
    from prometheus_client.registry import Collector

    class Sums(Collector):
        def collect(self) -> Iterator[Metric]:
            yield build_family("ingest")
            yield from _families(sums, waiting, missing, checks, updates, unserved)
            yield from _of_studies(studies, came, private)
            yield from _of_budgets(budgets)
            yield from round_families(rounds)
            yield from latency_families(answers, private=bool(private))

    registry = CollectorRegistry()
    registry.register(Sums())
    return generate_latest(registry), CONTENT_TYPE_LATEST


def _families(
    sums: Mapping[str, int],
    waiting: Backlog,
    missing: int,
    checks: Mapping[str, str | None],
    updates: Mapping[Uploaded, tuple[int, int]],
    unserved: int,
) -> Iterator[Metric]:
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

    for key, (name, text) in COUNTERS.items():
        yield CounterMetricFamily(f"fedping_ingest_{name}", text, value=sums[key])
    for key, (name, text) in SECONDS.items():
        yield CounterMetricFamily(f"fedping_ingest_{name}", text, value=sums[key] / 1e6)
    refused = CounterMetricFamily(
        "fedping_ingest_rejected", "Refused requests and lines, by reason.", labels=["reason"]
    )
    for key, count in sums.items():
        if key.startswith("rejected."):
            refused.add_metric([key.partition(".")[2]], count)
    yield refused
    text = "Processes of ingest that died and were started again, by what they were."
    died = CounterMetricFamily("fedping_ingest_processes_died", text, labels=["process"])
    for process in PROCESSES:
        died.add_metric([process], sums[f"died.{process}"])
    yield died
    labels = list(Uploaded._fields)
    landed = CounterMetricFamily("fedping_ingest_updates_landed", "Updates written to Parquet.", labels=labels)
    size = CounterMetricFamily("fedping_ingest_update_bytes", "Bytes of those updates as encoded.", labels=labels)
    for what, (number, bytes_) in updates.items():
        landed.add_metric(what, number)
        size.add_metric(what, bytes_)
    yield landed
    yield size
    yield GaugeMetricFamily("fedping_ingest_pings_pending", "Pings in the journal, not landed yet.", waiting.pings)
    yield GaugeMetricFamily("fedping_ingest_segments_pending", "Segments of the journal.", waiting.segments)
    yield GaugeMetricFamily(
        "fedping_ingest_oldest_pending_seconds",
        "How long the oldest of them waits to land: what a machine that is lost now would take with it.",
        waiting.oldest_seconds,
    )
    yield GaugeMetricFamily(
        "fedping_ingest_pings_missing",
        "Pings that were answered 200 and are nowhere.",
        missing,
    )
    yield GaugeMetricFamily("fedping_ingest_studies_unserved", "Studies that cannot be read or served.", unserved)
    well = GaugeMetricFamily("fedping_ingest_check", "Checks of the heartbeat: 1 is well, 0 is not.", labels=["check"])
    for name, trouble in checks.items():
        well.add_metric([name], 0 if trouble else 1)
    yield well


def _coarse(name: str, number: int) -> int:
    """Return a counter rounded down, so that no ping shows: thousands of them, and millions of bytes."""
    step = COARSE["pings"] if name.startswith("rejected.") else COARSE.get(name, 1)
    return number - number % step


def _of_budgets(budgets: Sequence[tuple[str, str, PrivateFacts]]) -> Iterator[Metric]:
    from prometheus_client.core import GaugeMetricFamily

    labels = ["study", "line"]
    epsilon = GaugeMetricFamily(
        "fedping_study_privacy_epsilon", "What the rounds of a private line have spent.", labels=labels
    )
    left = GaugeMetricFamily(
        "fedping_study_privacy_rounds_left", "How many rounds the guarantee of a line still allows.", labels=labels
    )
    for study, line, private in budgets:
        if private.epsilon is not None:
            epsilon.add_metric([study, line], private.epsilon)
        if private.rounds_left is not None:
            left.add_metric([study, line], private.rounds_left)
    yield epsilon
    yield left


def _of_studies(
    studies: Mapping[str, Judgement], came: Mapping[str, OfStudy], private: frozenset[str]
) -> Iterator[Metric]:
    """Yield how studies are: a number for each study of the store and each name that a finding, or refusal can have."""
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

    states = GaugeMetricFamily("fedping_study_state", "What is declared: 1 of the state.", labels=["study", "state"])
    text = "What is found, as on the dashboard: 0 nothing, 1 a warning, 2 a problem."
    findings = GaugeMetricFamily("fedping_study_finding", text, labels=["study", "finding"])
    over = GaugeMetricFamily("fedping_study_lines_over", "Lines whose training is over.", labels=["study"])
    staged = [
        GaugeMetricFamily(
            f"fedping_study_staged_{name}", f"Of a line with a staged version: {of}", labels=["study", "line"]
        )
        for name, of in (
            ("version", "its number."),
            ("share", "the share of clients that has it."),
            ("clients_heard", "how many of these the last round has heard."),
            ("clients_wanted", "how many have to be heard."),
        )
    ]
    accepted = CounterMetricFamily("fedping_study_accepted", "Pings that were answered 200.", labels=["study"])
    text = "Refused requests and lines, by reason."
    rejected = CounterMetricFamily("fedping_study_rejected", text, labels=["study", "reason"])
    for study, (declared, health) in studies.items():
        own = came.get(study, OfStudy())
        if study not in private:
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
"""Flushes that may wait at a time, so that some threads are always free for what takes no time."""


class Operations(Flask):
    """The application behind the operator's listener."""

    def __init__(self, watched: ServiceState) -> None:
        super().__init__("fedping.operations", static_folder=None)
        self._names = (watched.settings.operations_host, socket.gethostname())
        pulse = Pulse(watched)
        self.register_blueprint(dockerflow.blueprint(pulse, partial(store_notes, watched)))
        self.register_blueprint(blueprint(watched, pulse))
        self.before_request(self._refuse_pages)
        stay_here(self)
        tell_errors(self)

    def _refuse_pages(self) -> Response | None:
        """Refuse a page of another site, and one that calls us by a name of its own (DNS rebinding)."""
        if not is_addressed(request.host, self._names):
            return _refusal("ask by an address, by localhost, or by the name given with --operations-host")
        if is_cross_site(request):
            return _refusal("a page of another site may not ask for this; ask with a program on this machine")
        return None


def blueprint(watched: ServiceState, pulse: Pulse) -> Blueprint:
    """Return the views."""
    views = Blueprint("operations", __name__)
    settings = watched.settings
    watch = StudyMonitor(settings)
    flushing = threading.BoundedSemaphore(MOST_FLUSHES)

    def is_away(checks: Mapping[str, str | None]) -> bool:
        # A bucket is not asked again that has just not answered: a request that waits for it loses all the rest.
        return not watched.store.is_near and bool(checks.get("store") or "answers" in checks)

    def told() -> dict[str, object]:
        counted = frozenset(of_studies(settings.counters))
        return status_of(watched, bool(_private(watch, watched.catalogue, counted, is_away(pulse()))))

    @views.get("/metrics")
    def metrics() -> Response:
        sums, waiting = totals(settings.counters), backlog(settings.journal)
        updates, unserved = uploaded(settings.counters), len(watched.catalogue.unusable)
        checks, came = pulse(), of_studies(settings.counters)
        away = is_away(checks)
        studies = {} if away else _judged(watch, settings)
        private = _private(watch, watched.catalogue, frozenset(came), away)
        budgets = [] if away else watch.budgets()
        text, content_type = exposition(
            sums,
            waiting,
            missing(settings),
            checks,
            updates,
            unserved,
            studies,
            came,
            private,
            budgets,
            [] if away else _rounds(watch),
            latencies(settings.counters),
        )
        return Response(text, content_type=content_type)

    @views.get("/__status__")
    def status() -> Response:
        return _json(told())

    @views.post("/__flush__")
    def flush() -> Response:
        """Land everything that was accepted before this request; answer when it is in Parquet (504: not in time).

        What was removed from the journal before it had landed never is: then the answer is 504 as well.
        """
        if not flushing.acquire(blocking=False):
            return _json({"error": f"{MOST_FLUSHES} flushes are under way, which will land the same; wait"}, 503)
        try:
            accepted = totals(settings.counters)["accepted"]
            request_flush(settings.flush_request)
            landed = wait_until_landed(
                settings.journal, _seconds(), lambda: settled(totals(settings.counters)) >= accepted
            )
        finally:
            flushing.release()
        return _json(told() | {"flushed": landed}, 200 if landed else 504)

    return views


def _judged(watch: StudyMonitor, settings: IngestSettings) -> dict[str, Judgement]:
    """Return how the studies are; none of a store that cannot be read, of which the check ``store`` tells."""
    try:
        return watch.all(ingest_snapshot(settings))
    except (FedpingError, OSError):
        return {}


def _private(watch: StudyMonitor, catalogue: Catalogue, counted: frozenset[str], away: bool) -> frozenset[str]:
    """Return the private studies; if the store cannot be read, those that were known, and of the counted the unknown.

    Numbers that were told exactly must not be rounded down meanwhile: Prometheus takes a counter that falls for one
    that began anew.
    """
    known = catalogue.names()
    private = {name for name in known if catalogue.rules(name).study.is_private}
    if not away:
        with suppress(FedpingError, OSError):
            return frozenset(private | watch.private())
    return frozenset(private | catalogue.unusable.keys() | (counted - {*known}))


def _rounds(watch: StudyMonitor) -> list[LineRounds]:
    """Return how rounds went; nothing of a store that cannot be read."""
    try:
        return watch.rounds()
    except (FedpingError, OSError):
        return []


def status_of(watched: ServiceState, is_private: bool) -> dict[str, object]:
    """Return what was taken and landed since ingest started, and what the journal holds at this moment.

    With ``is_private``, as a study is, numbers of pings are rounded down as in the metrics.
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
    asked = request.args.get("timeout", type=float, default=FLUSH_SECONDS)
    return min(max(asked, 0.0), LONGEST_FLUSH_SECONDS) if asked == asked else FLUSH_SECONDS


def _refusal(sentence: str) -> Response:
    return _json({"error": sentence}, 403)


def _json(value: object, status: int = 200) -> Response:
    return Response(msgspec.json.encode(value), status, content_type="application/json")
