"""Metrics of rounds, from the newest version's lineage and the recorded status of rounds without a version.

The same function writes them for the operations port and for node_exporter's file.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from fedping.model_store import ModelStore
from fedping.model_store.version import Outcome
from fedping.protocol import __version__
from fedping.protocol.errors import FedpingError
from fedping.protocol.landing import Landing
from fedping.protocol.notation import milliseconds_of
from fedping.protocol.study import Line
from fedping.server_jobs.round_status import Attempt, last_attempt

if TYPE_CHECKING:
    from prometheus_client import Metric


@dataclass(frozen=True, slots=True)
class LineRounds:
    """Facts about a line's rounds, for metrics.

    Attributes:
        newest: outcome of the newest version; None if it can't be read.
        private: whether the line is private; numbers of pings and clients are then left out.
    """

    study: str
    line: str
    newest: Outcome | None
    last: Attempt
    private: bool


def line_rounds(landing: Landing, store: ModelStore, study: str, line: Line, newest: Outcome | None) -> LineRounds:
    """Return a line's facts, given the outcome of its newest version."""
    last = last_attempt(landing, store.where, study, line.name)
    return LineRounds(study, line.name, newest, last, line.privacy is not None)


def all_rounds(landing: Landing, store: ModelStore) -> list[LineRounds]:
    """Return the facts about all lines of a store; unreadable studies are left out."""
    rounds = []
    for name in store.studies.names():
        with suppress(FedpingError):
            rounds += [
                line_rounds(landing, store, name, line, _newest(store, name, line.name))
                for line in store.study(name).lines
            ]
    return rounds


def _newest(store: ModelStore, study: str, line: str) -> Outcome | None:
    try:
        return store.versions.outcome(study, line, store.lines.newest(study, line))
    except FedpingError:
        return None


def build_family(part: str) -> Metric:
    """Return the metric with the version of fedping; ``part`` names the program that writes the metrics."""
    from prometheus_client.core import GaugeMetricFamily

    family = GaugeMetricFamily(
        "fedping_build_info", "Always 1, with the version of this fedping.", labels=["version", "commit", "part"]
    )
    family.add_metric([__version__, os.environ.get("FEDPING_COMMIT", ""), part], 1)
    return family


def round_families(lines: Sequence[LineRounds]) -> Iterator[Metric]:
    """Yield the metrics of lines: a fixed number of series per line, and one for each outcome and fate so far."""
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

    def gauge(name: str, text: str, *more: str) -> GaugeMetricFamily:
        return GaugeMetricFamily(f"fedping_{name}", text, labels=["study", "line", *more])

    version = gauge("line_version", "Number of the newest version.")
    created = gauge("line_version_created_timestamp_seconds", "Time at which the newest version was computed.")
    clients = gauge("line_clients", "Clients with an update in the newest version.")
    pings = gauge("line_pings", "Pings of the round that computed the newest version, by outcome.", "fate")
    ended = gauge("round_last_ended_timestamp_seconds", "Time at which the last round ended, with any outcome.")
    succeeded = gauge("round_last_success_timestamp_seconds", "Time at which the last round without failure ended.")
    seconds = gauge("round_last_seconds", "Duration of the last round.")
    size = gauge("round_last_update_bytes", "Encoded bytes of the updates that the last round used.")
    outcome = gauge("round_last_outcome", "Outcome of the last round: 1 for that outcome.", "outcome")
    labels = ["study", "line", "outcome"]
    rounds = CounterMetricFamily("fedping_rounds", "Rounds that ended, by outcome.", labels=labels)
    for one in lines:
        where = [one.study, one.line]
        if one.newest is not None:
            version.add_metric(where, one.newest.iteration)
            created.add_metric(where, _seconds(one.newest.created))
            tally = one.newest.lineage
            if not one.private:
                clients.add_metric(where, tally.aggregate.clients if tally.aggregate is not None else 0)
                for fate, number in tally.counts.items():
                    pings.add_metric([*where, fate], number)
        if one.last.ended:
            ended.add_metric(where, _seconds(one.last.ended))
            seconds.add_metric(where, one.last.seconds)
            outcome.add_metric([*where, one.last.outcome], 1)
            if not one.private:
                size.add_metric(where, one.last.update_bytes)
        if one.last.succeeded:
            succeeded.add_metric(where, _seconds(one.last.succeeded))
        for name, number in one.last.ended_as.items():
            rounds.add_metric([*where, name], number)
    yield from (version, created, clients, pings, ended, succeeded, seconds, size, outcome, rounds)


def _seconds(time: str) -> float:
    return milliseconds_of(time) / 1000


def write_textfile(landing: Landing, store: ModelStore, path: Path) -> None:
    """Atomically write the metrics of a store's rounds to a file that all users can read.

    Raises:
        FedpingError: the file can't be written.
    """
    from prometheus_client import CollectorRegistry, generate_latest
    from prometheus_client.registry import Collector

    lines = all_rounds(landing, store)

    class Rounds(Collector):
        def collect(self) -> Iterator[Metric]:
            yield build_family("rounds")
            yield from round_families(lines)

    registry = CollectorRegistry()
    registry.register(Rounds())
    hidden = path.with_name(f".{path.name}.{secrets.token_hex(6)}.tmp")
    try:
        hidden.write_bytes(generate_latest(registry))
        hidden.chmod(0o644)
        os.replace(hidden, path)
    except OSError as error:
        with suppress(OSError):
            hidden.unlink()
        raise FedpingError(
            f"cannot write the metrics to {path}: {error.strerror}; correct its folder's permissions, or --metrics-file"
        ) from error
