"""The feed of a page that shows a line: the rows of new versions, and the present state when it changes."""

from __future__ import annotations

import threading
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from fedping.dashboard.feeds import Change
from fedping.dashboard.live.cache import Paced
from fedping.dashboard.live.history import KnownLine, LineHistory
from fedping.dashboard.live.ingest import places
from fedping.dashboard.live.status import Now, now_of
from fedping.dashboard.settings import DashboardSettings
from fedping.model_store.store import open_store
from fedping.protocol.errors import FedpingError
from fedping.server_jobs.health.facts import CheckInput, Ingest
from fedping.server_jobs.health.snapshot import StudyMonitor, ingest_snapshot
from fedping.server_jobs.optimize.transformation import link_name
from fedping.server_jobs.participants import Evaluation, ParticipantList, evaluations, list_participants, lists_clients

EVALUATIONS = 20
"""Of the newest versions that a page shows."""


@dataclass(frozen=True)
class KeptLine:
    """The cached data of a line: its rows, the facts by which it is judged, and who takes part."""

    history: LineHistory
    facts: Callable[[], CheckInput]
    taking_part: Callable[[], TakingPart]


class TakingPart(Struct, frozen=True, kw_only=True):
    """Who takes part in a line, None where nothing can be listed, and how its newest versions do on held-out rows."""

    roll: ParticipantList | None = None
    evaluations: tuple[Evaluation, ...] = ()


class Lines:
    """The lines that pages show, each read once for all of them."""

    def __init__(self, settings: DashboardSettings) -> None:
        self.settings = settings
        self.watch = StudyMonitor(places(settings))
        self.ingest: Callable[[], Ingest] = Paced(lambda: ingest_snapshot(places(settings)))
        self._lock = threading.Lock()
        self._lines: dict[tuple[str, str], KeptLine] = {}

    def of(self, study: str, line: str) -> KeptLine:
        """Return the cached data of a line."""
        with self._lock:
            key = (study, line)
            if key not in self._lines:
                self._lines[key] = KeptLine(
                    LineHistory(self.settings.store, study, line),
                    lambda: self.watch.line(study, line, self.ingest()),
                    Paced(lambda: self._taking_part(study, line)),
                )
            return self._lines[key]

    def _taking_part(self, study: str, line: str) -> TakingPart:
        found, landing = open_store(self.settings.store).study(study), self.settings.landing
        if not lists_clients(found):
            return TakingPart()
        told = evaluations(landing, found, line)[-EVALUATIONS:]
        return TakingPart(roll=list_participants(landing, found, line), evaluations=tuple(told))


@dataclass(frozen=True)
class LineFeed:
    """A line of a study; see :class:`fedping.dashboard.feeds.Feed`.

    A position is ``<version>.<its mark>.<what is shown>.<the present state>``: the page has the rows up to that
    version, which is valid as long as the version and the choice of weights are the same.
    """

    study: str
    line: str
    lines: Lines = field(compare=False, repr=False)

    def since(self, position: str | None) -> Change | None:
        """Return new rows and, if it changed, the present state; everything if the position does not fit.

        An unreadable store is reported too, once, because a page stays open while its operator repairs it.
        """
        try:
            return self.lines.of(self.study, self.line).history.look(lambda known: self._change(known, position))
        except FedpingError as error:
            told = f"!{_short(str(error))}"
            return None if position == told else Change(told, {"whole": False, "rows": [], "trouble": str(error)})

    def _change(self, known: KnownLine, position: str | None) -> Change | None:
        through, told = _understood(known, position)
        history = self.lines.of(self.study, self.line).history
        page = known.page(-1 if through is None else through, history.deadline())
        now = self._now(known)
        moment = _short(msgspec.json.encode(now).decode())
        if through is not None and not page.rows and page.through == through and moment == told:
            return None
        whole = {"whole": True, "line": described(known)} if through is None else {"whole": False}
        data = {**whole, "rows": page.rows, "complete": page.through >= known.newest, "now": now}
        return Change(f"{_place(known, page.through)}.{moment}", data)

    def _now(self, known: KnownLine) -> Now:
        facts = self.lines.of(self.study, self.line).facts()
        return now_of(known.newest, with_unreadable(facts, known.unreadable))


def described(known: KnownLine) -> dict[str, Any]:
    """Return what all versions of a line have in common."""
    study, line = known.study, known.line
    return {
        "study": study.name,
        "line": line.name,
        "arms": [
            {"name": arm.name, "place": place, "applies": arm.applies, "submits": arm.submits}
            for place, arm in enumerate(study.arms)
            if arm.line == line.name
        ],
        "weights": known.shown,
        "optimizer": link_name(line.pipeline.optimizer),
        "links": known.links.described,
        "min_clients": line.pipeline.min_clients,
        "longest": 60 * line.length.most if line.length is not None else None,
        "vote": line.pipeline.weighting,
        "private": line.privacy is not None,
    }


def with_unreadable(facts: CheckInput, found: Mapping[int, str]) -> CheckInput:
    """Return the facts with the unreadable older versions, which a page that shows all versions has found."""
    told = dict.fromkeys([*facts.line.troubles, *found.values()])
    return replace(facts, line=replace(facts.line, troubles=tuple(told)))


def whole_history(lines: Lines, study: str, line: str) -> dict[str, Any]:
    """Return everything that pages get about a line, however long it takes to read.

    Raises:
        StoreError: there is no such store or study, or the line cannot be read.
    """

    def everything(known: KnownLine) -> dict[str, Any]:
        rows = known.page(-1, lambda: False).rows
        unreadable = [{"version": n, "error": text} for n, text in sorted(known.unreadable.items())]
        return {**described(known), "rows": rows, "unreadable": unreadable}

    return lines.of(study, line).history.look(everything)


def _understood(known: KnownLine, position: str | None) -> tuple[int | None, str]:
    """Return the version up to which a page has the rows (None if it needs all), and the state that it knows."""
    place, _, moment = (position or "").rpartition(".")
    number = place.partition(".")[0]
    if not (number.isascii() and number.isdigit() and len(number) < 10):
        return None, ""
    return (int(number), moment) if _place(known, int(number)) == place else (None, "")


def _place(known: KnownLine, through: int) -> str:
    """Return the part of a position about rows: version, mark, and what they show."""
    damaged = [number for number in known.unreadable if number <= through]
    shown = _short(f"{known.shown.names} {known.shown.chosen_at} {sorted(damaged)}")
    return f"{through}.{known.mark(through) or 'unread'}.{shown}"


def _short(text: str) -> str:
    return f"{zlib.crc32(text.encode()):08x}"
