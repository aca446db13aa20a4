"""The feeds of the Live pages: a line's new versions and present state, and an overview of all studies."""

from __future__ import annotations

import threading
import time
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Generic, TypeVar

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from fedping.dashboard.answers import sentence_of
from fedping.dashboard.feeds import Change
from fedping.dashboard.live.history import KnownLine, LineHistory
from fedping.dashboard.live.rows import Row
from fedping.dashboard.live.units import units_of
from fedping.dashboard.settings import DashboardSettings
from fedping.model_store import ModelStore, open_store
from fedping.protocol.errors import FedpingError
from fedping.protocol.landing import open_landing
from fedping.protocol.notation import utc_now
from fedping.protocol.study import Declared
from fedping.server_jobs.health.checks import check_line
from fedping.server_jobs.health.facts import CheckInput, HeldVersion, Ingest, Landed, PrivateFacts, Uploads
from fedping.server_jobs.health.findings import VERDICTS, Health, as_document, format_duration
from fedping.server_jobs.health.snapshot import StudyMonitor, ingest_snapshot
from fedping.server_jobs.ingest.settings import IngestSettings
from fedping.server_jobs.optimize.transformation import link_name
from fedping.server_jobs.participants import Evaluation, ParticipantList, evaluations, list_participants, lists_clients

T = TypeVar("T")

EVERY = 1.0
"""Minimum seconds between two calls of a cached function."""

SHARE = 20
"""Wait before the next call, as a multiple of the last call's duration: calls take at most 1/20 of the time."""


class Paced(Generic[T]):
    """Cache of the result of ``look``, refreshed less often if ``look`` takes long."""

    def __init__(self, look: Callable[[], T], clock: Callable[[], float] = time.monotonic) -> None:
        self._look, self._clock = look, clock
        self._lock = threading.Lock()
        self._found: list[T] = []
        self._next = 0.0

    def __call__(self) -> T:
        """Return the cached result, refreshed if it is due."""
        with self._lock:
            before = self._clock()
            if not self._found or before >= self._next:
                self._found = [self._look()]
                after = self._clock()
                self._next = after + max(EVERY, SHARE * (after - before))
            return self._found[0]


class Now(Struct, frozen=True, kw_only=True):
    """The data about a line that can change without a new version.

    ``hint`` is the next step, if any; ``held`` is a version that waits for a decision; ``privacy`` is None unless the
    line is private. The number of pings changes with every client that sends one. So ``landed`` omits it for a private
    line, and ``ingest`` omits it in a ``discreet`` store, which has a private study.
    """

    newest: int
    landed: Landed
    ingest: Ingest
    declared: Declared
    health: dict[str, Any]
    hint: str
    held: HeldVersion | None = None
    privacy: PrivateFacts | None = None
    discreet: bool = False


def now_of(newest: int, facts: CheckInput) -> Now:
    """Return the present state of a line; ``newest`` is used only if ``facts`` don't state the newest version."""
    landed = facts.line.landed or Landed(version=newest, pings=0, files=0, newest_ms=None)
    health = check_line(facts)
    return Now(
        newest=landed.version,
        landed=replace(landed, pings=0, files=0, newest_ms=None) if facts.line.privacy is not None else landed,
        ingest=_discreet(facts.ingest, facts)
        if facts.discreet
        else replace(facts.ingest, uploads=_own(facts), recent={}, requests={}),
        declared=facts.declared,
        health=as_document(health),
        hint=_hint(landed, facts, health),
        held=facts.line.held,
        privacy=facts.line.privacy,
        discreet=facts.discreet,
    )


def _discreet(ingest: Ingest, facts: CheckInput) -> Ingest:
    """Return the part of ingest's state that may be shown: nothing that a ping of a private study would change."""
    own = facts.ingest.studies.get(facts.study) if facts.line.privacy is None else None
    return Ingest(
        state=ingest.state,
        period=ingest.period,
        rejected=own.rejected if own else {},
        troubles=ingest.troubles,
        studies={facts.study: own} if own else {},
    )


def _own(facts: CheckInput) -> tuple[Uploads, ...]:
    """Return the uploads of the line, by encoding."""
    own = facts.study, facts.line.name
    return tuple(one for one in facts.ingest.uploads if (one.study, one.line) == own)


def _hint(landed: Landed, facts: CheckInput, health: Health) -> str:
    """Return the next step, or what the line waits for; empty if a finding already reports it."""
    if health.staged:
        return health.staged[0].sentence
    if facts.declared.state != "running" or facts.declared.simulated or facts.ingest.state != "running":
        return ""
    if facts.exhausted:
        return ""
    if any(one.name in ("landing", "rounds") for one in health.findings):
        return ""
    if landed.pings:
        return (
            f"Only version 0 exists. The next one needs a round: run 'fedping round {facts.study}', or schedule rounds."
            if landed.version == 0
            else ""
        )
    if facts.ingest.pending:
        return f"No pings of version {landed.version} have landed yet; {_lands(facts.ingest.period)}."
    return f"No pings of version {landed.version} have arrived yet; clients send them after they have fetched it."


def _lands(period: float | None) -> str:
    return "accepted pings land soon" if period is None else f"accepted pings land within {format_duration(period)}"


def places(settings: DashboardSettings) -> IngestSettings:
    """Return ingest settings with the locations of store, landing folder and journal; the others are unknown here."""
    return IngestSettings(store=settings.store, landing=settings.landing, journal=settings.journal)


def rejection_logs(settings: DashboardSettings) -> Path:
    """Return the folder where ingest's processes log rejections and their reasons."""
    return places(settings).rejected


class LineSummary(Struct, frozen=True, kw_only=True):
    """A line and its newest version; all fields but the name are None for a line without versions."""

    name: str
    newest: int | None = None
    created: str | None = None
    clients: int | None = None


class StudySummary(Struct, frozen=True, kw_only=True):
    """A study with its lines and health; an unreadable study has no lines, and its health states the reason."""

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
    summaries = [
        StudySummary(name=name, declared=declared, health=health, lines=_lines(store, name))
        for name, (declared, health) in judged.items()
    ]
    return sorted(summaries, key=lambda one: VERDICTS.index(one.health.verdict))


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
    aggregate = newest.lineage.aggregate
    clients = None if aggregate is None else aggregate.clients
    if newest.lineage.privacy is not None:
        arms = store.study(study).arms
        clients = sum(newest.lineage.arms[arm.name].pings for arm in arms if arm.line == line and arm.submits)
    return LineSummary(name=line, newest=newest.iteration, created=newest.created, clients=clients)


class Outage:
    """The time since which something can't be read; thread-safe."""

    def __init__(self, clock: Callable[[], str] = utc_now) -> None:
        self._clock = clock
        self._since: str | None = None

    def begun(self) -> str:
        """Return when the outage began, ISO 8601 in UTC; without an outage, one begins now."""
        since = self._since = self._since or self._clock()
        return since

    def over(self) -> None:
        """End the outage after a successful reading."""
        self._since = None


def outage(error: FedpingError | OSError, since: Outage, position: str | None) -> Change | None:
    """Return a change that reports an unreadable store and since when; None if the page has it already."""
    sentence = sentence_of(error)
    begun, told = since.begun(), f"!{_short(sentence)}"
    return None if position == told else Change(told, {"trouble": sentence, "since": begun})


@dataclass(frozen=True)
class StudiesFeed:
    """The feed of the page of all studies; see :class:`fedping.dashboard.feeds.Feed`."""

    studies: Callable[[], list[StudySummary]] = field(repr=False)
    _outage: Outage = field(default_factory=Outage, compare=False, repr=False)

    def since(self, position: str | None) -> Change | None:
        """Return a change without data if the studies have changed; the page then requests them."""
        try:
            now = f"{zlib.crc32(msgspec.json.encode(self.studies())):08x}"
        except (FedpingError, OSError) as error:
            return outage(error, self._outage, position)
        self._outage.over()
        return None if now == position else Change(now, {})


SAMPLED = ".s"
"""Suffix of a position if the page's versions were selected by their numbers alone."""

EVALUATIONS = 20
"""Maximum evaluations on held-out rows that a page shows, of the newest versions."""


@dataclass(frozen=True)
class KeptLine:
    """The cached data of a line: its rows, the facts for its health, and its participants."""

    history: LineHistory
    facts: Callable[[], CheckInput]
    taking_part: Callable[[], TakingPart]
    outage: Outage = field(default_factory=Outage)


class TakingPart(Struct, frozen=True, kw_only=True):
    """A line's participants, None if they can't be listed, and its newest evaluations on held-out rows."""

    roll: ParticipantList | None = None
    evaluations: tuple[Evaluation, ...] = ()


class Lines:
    """Cache of the lines that pages show, each read once for all pages."""

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
        the_study, landing = open_store(self.settings.store).study(study), open_landing(self.settings.landing)
        if not lists_clients(the_study):
            return TakingPart()
        newest = evaluations(landing, the_study, line)[-EVALUATIONS:]
        return TakingPart(roll=list_participants(landing, the_study, line), evaluations=tuple(newest))


@dataclass(frozen=True)
class LineFeed:
    """The feed of a study's line; see :class:`fedping.dashboard.feeds.Feed`.

    A position is ``<version>.<its mark>.<shown weights>.<present state>``: the page has the rows up to this version. It
    is valid as long as the version and the selection of weights stay the same.
    """

    study: str
    line: str
    lines: Lines = field(repr=False)  # also compared, because studies of two runs may have the same name

    def since(self, position: str | None) -> Change | None:
        """Return new rows and, if it changed, the present state; everything if the position is not valid.

        An unreadable store is reported too, once, because a page stays open while its operator repairs it.
        """
        kept = self.lines.of(self.study, self.line)
        try:
            change = kept.history.look(lambda known: self._change(known, position))
        except (FedpingError, OSError) as error:
            found = outage(error, kept.outage, position)
            return found and Change(found.position, {"whole": False, "rows": [], **found.data})
        kept.outage.over()
        return change

    def _change(self, known: KnownLine, position: str | None) -> Change | None:
        through, told = _understood(known, position)
        history = self.lines.of(self.study, self.line).history
        page = known.page(-1 if through is None else through, history.deadline())
        now = self._now(known)
        moment = _short(msgspec.json.encode(now).decode())
        if through is not None and not page.rows and page.through == through and moment == told:
            known.read_on(history.deadline())
            return None
        whole = {"whole": True, "line": described(known)} if through is None else {"whole": False}
        rows = {"rows": page.rows, "left_out": page.left_out, "complete": page.through >= known.newest}
        data = {**whole, **rows, "now": now}
        return Change(f"{_place(known, page.through)}.{moment}", data)

    def _now(self, known: KnownLine) -> Now:
        facts = self.lines.of(self.study, self.line).facts()
        return now_of(known.newest, with_unreadable(facts, known.unreadable))


def described(known: KnownLine) -> dict[str, Any]:
    """Return the data that all versions of a line have in common."""
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
        "features": units_of(line.spec, known.shown.positions),
        "optimizer": link_name(line.pipeline.optimizer),
        "links": known.links.described,
        "min_clients": line.pipeline.min_clients,
        "longest": 60 * line.length.most if line.length is not None else None,
        "vote": line.pipeline.weighting,
        "private": line.privacy is not None,
        "most": known.most,
        "thorough": known.is_thorough,
    }


def with_unreadable(facts: CheckInput, found: Mapping[int, str]) -> CheckInput:
    """Return the facts plus the unreadable older versions that were found for a page of all versions."""
    told = dict.fromkeys([*facts.line.troubles, *found.values()])
    return replace(facts, line=replace(facts.line, troubles=tuple(told)))


def whole_history(lines: Lines, study: str, line: str) -> dict[str, Any]:
    """Return all data that pages get about a line, without a limit on the reading time.

    Raises:
        StoreError: there is no such store or study, or the line cannot be read.
    """

    def everything(known: KnownLine) -> dict[str, Any]:
        rows = known.all_rows()
        unreadable = [{"version": n, "error": text} for n, text in sorted(known.unreadable.items())]
        return {**described(known), "rows": rows, "unreadable": unreadable}

    return lines.of(study, line).history.look(everything)


class Part(Struct, frozen=True, kw_only=True):
    """Versions selected from a range: their rows and the omitted runs of versions, up to version ``through``."""

    rows: tuple[Row, ...]
    left_out: tuple[tuple[int, int], ...]
    through: int


def part_of_history(lines: Lines, study: str, line: str, first: int, last: int) -> Part:
    """Return versions selected from ``first`` to ``last``, as many as a page draws; only the first if reading is slow.

    Raises:
        StoreError: there is no such store or study, or the line cannot be read.
    """
    history = lines.of(study, line).history
    page = history.look(lambda known: known.part(first, last, history.deadline()))
    return Part(rows=page.rows, left_out=page.left_out, through=page.through)


def _understood(known: KnownLine, position: str | None) -> tuple[int | None, str]:
    """Return the last version that the page has rows of (None if it needs all), and the state that it knows."""
    place, _, moment = (position or "").rpartition(".")
    number = place.partition(".")[0]
    if not (number.isascii() and number.isdigit() and len(number) < 10):
        return None, ""
    at = _place(known, int(number))
    if not known.is_thorough and place.startswith(f"{at.removesuffix(SAMPLED)}.t-"):
        return int(number), moment  # from a server that had read everything, which this one has not yet
    return (int(number), moment) if at == place else (None, "")


def _place(known: KnownLine, through: int) -> str:
    """Return a position's part about rows: version, mark, shown weights, and how versions were selected."""
    shown = _short(f"{known.shown.names} {known.shown.chosen_at}")
    at = f"{through}.{known.mark(through) or 'unread'}.{shown}"
    if not known.is_thorough:
        return f"{at}{SAMPLED}"
    damaged = [number for number in known.unreadable if number <= through]
    return f"{at}.t-{_short(f'{sorted(damaged)}')}"


def _short(text: str) -> str:
    return f"{zlib.crc32(text.encode()):08x}"
