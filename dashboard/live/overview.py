"""Every study of a store: its health, and a row for each of its lines."""

from __future__ import annotations

import zlib
from collections.abc import Callable
from dataclasses import dataclass, field

import msgspec
from msgspec import Struct

from fedping.dashboard.feeds import Change
from fedping.dashboard.live.feed import Lines
from fedping.model_store import ModelStore, open_store
from fedping.protocol.errors import FedpingError
from fedping.protocol.study import Declared
from fedping.server_jobs.health.checks import VERDICTS, Health


class LineSummary(Struct, frozen=True, kw_only=True):
    """A line and its newest version; for a line without versions, nothing is known."""

    name: str
    newest: int | None = None
    created: str | None = None
    clients: int | None = None


class StudySummary(Struct, frozen=True, kw_only=True):
    """A study; an unreadable one has no lines, and a judgement that says why."""

    name: str
    declared: Declared
    health: Health
    lines: tuple[LineSummary, ...]


def studies_in(lines: Lines) -> list[StudySummary]:
    """Return the studies of a store, the worst first, then by name.

    Raises:
        StoreError: there is no store.
    """
    judged = lines.watch.all(lines.ingest())
    store = open_store(lines.settings.store)
    found = [
        StudySummary(name=name, declared=declared, health=health, lines=_lines(store, name))
        for name, (declared, health) in judged.items()
    ]
    return sorted(found, key=lambda one: VERDICTS.index(one.health.verdict))


def _lines(store: ModelStore, study: str) -> tuple[LineSummary, ...]:
    try:
        return tuple(_summary(store, study, line.name) for line in store.study(study).lines)
    except FedpingError:
        return ()


def _summary(store: ModelStore, study: str, line: str) -> LineSummary:
    try:
        newest = store.versions.outcome(study, line, store.lines.newest(study, line))
    except FedpingError:
        return LineSummary(name=line)
    made = newest.lineage.aggregate
    clients = None if made is None else made.clients
    if newest.lineage.privacy is not None:
        arms = store.study(study).arms
        clients = sum(newest.lineage.arms[arm.name].pings for arm in arms if arm.line == line and arm.submits)
    return LineSummary(name=line, newest=newest.iteration, created=newest.created, clients=clients)


@dataclass(frozen=True)
class StudiesFeed:
    """Changes on the page of all studies; see :class:`fedping.dashboard.feeds.Feed`."""

    studies: Callable[[], list[StudySummary]] = field(compare=False, repr=False)

    def since(self, position: str | None) -> Change | None:
        """Return a change without data if the studies have changed; the page then requests them."""
        try:
            now = f"{zlib.crc32(msgspec.json.encode(self.studies())):08x}"
        except FedpingError as error:
            now = f"!{zlib.crc32(str(error).encode()):08x}"
        return None if now == position else Change(now, {})
