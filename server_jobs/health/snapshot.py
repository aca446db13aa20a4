"""Reads the input of the health checks from the files of ingest and rounds; read-only."""

from __future__ import annotations

import fcntl
import math
import os
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Literal, TypeAlias

from msgspec.structs import replace

from fedping.model_store import ModelStore, open_store, store_at
from fedping.model_store.version import Outcome
from fedping.protocol.errors import FedpingError, as_sentence
from fedping.protocol.landing import Landing, landed_at, open_landing
from fedping.protocol.location import Place, base_name
from fedping.protocol.privacy import frame_of
from fedping.protocol.storage import Stamp
from fedping.protocol.study import Declared, Line, Study
from fedping.server_jobs.health.checks import PACED, check_line, merge_lines, unreadable_study
from fedping.server_jobs.health.facts import (
    CheckInput,
    HeldVersion,
    Ingest,
    Landed,
    LineSnapshot,
    PrivateFacts,
    Uploads,
)
from fedping.server_jobs.health.findings import Health
from fedping.server_jobs.health.round_metrics import LineRounds, line_rounds
from fedping.server_jobs.ingest.backlog import backlog, period_of, unlanded, waiting_since
from fedping.server_jobs.ingest.compactor_counts import newcomers, uploaded
from fedping.server_jobs.ingest.counters import of_studies, recently, requests_of, totals
from fedping.server_jobs.ingest.quarantine import failing_in_words
from fedping.server_jobs.ingest.settings import INGEST_LOCK, IngestSettings
from fedping.server_jobs.privacy.budget import spent_by
from fedping.server_jobs.privacy.card import guarantee_in_words
from fedping.server_jobs.round_status import Failing, last_attempt

LANDS_AFTER_MS = 60_000
"""Maximum delay in milliseconds between the time in a landed file's name and its appearance in the folder."""

ASK_EVERY, ASK_SHARE = 1.0, 20.0
"""Minimum time between two reads of a line's folders: in seconds, and as a multiple of the duration of a read."""

Judgement: TypeAlias = tuple[Declared, Health]
"""The declared state of a study, and its health."""


class StudyMonitor:
    """Checks the studies of a store. Facts that can't change are read only once. Thread-safe.

    Args:
        places: settings with the locations of store, landing folder and journal; the other settings are ignored.
        clock: seconds since 1970.
    """

    def __init__(self, places: IngestSettings, clock: Callable[[], float] = time.time) -> None:
        self._places, self._clock = places, clock
        self._landing = open_landing(places.landing)
        self._store = store_at(places.store)
        self._lock = threading.Lock()
        self._lines: dict[tuple[str, str], _SeenLine] = {}
        self._studies: dict[str, tuple[tuple[Stamp | None, int], Study]] = {}
        self._beside: dict[tuple[str, str], _SeenBeside] = {}

    def ingest(self) -> Ingest:
        """Return the current state of ingest."""
        return ingest_snapshot(self._places)

    def studies(self) -> list[str]:
        """Return the names of the studies; raises :class:`StoreError` if there is no store."""
        return open_store(self._places.store).studies.names()

    def all(self, ingest: Ingest, names: Sequence[str] = ()) -> dict[str, Judgement]:
        """Return the health of these studies, or of all. An unreadable study has the verdict ``problem``.

        Raises:
            StoreError: the store doesn't exist.
        """
        judgements: dict[str, Judgement] = {}
        for name in names or self.studies():
            try:
                judgements[name] = self.study(name, ingest)
            except FedpingError as error:
                judgements[name] = Declared(), unreadable_study(str(error))
        return judgements

    def private(self) -> frozenset[str]:
        """Return the names of private studies, and of studies never read successfully, which may be private.

        Raises:
            StoreError: the store doesn't exist.
        """
        with self._lock:
            return frozenset(name for name in self.studies() if self._is_private(name))

    def budgets(self) -> list[tuple[str, str, PrivateFacts]]:
        """Return study, line and guarantee of each private line that has been checked."""
        with self._lock:
            kept = [(study, line, seen.private) for (study, line), seen in self._lines.items()]
        return [(study, line, private) for study, line, private in kept if private is not None]

    def rounds(self) -> list[LineRounds]:
        """Return facts about the rounds of all lines that have been checked."""
        with self._lock:
            return [
                line_rounds(self._landing, self._store, study, seen.line, seen.newest)
                for (study, _), seen in self._lines.items()
            ]

    def _is_private(self, name: str) -> bool:
        try:
            return self._read(name).is_private
        except FedpingError:  # still valid: a study cannot become private
            known = self._studies.get(name)
            return known is None or known[1].is_private

    def study(self, name: str, ingest: Ingest) -> Judgement:
        """Return the declared state of a study, and its health over all its lines.

        Raises:
            StoreError: the study doesn't exist, or can't be read.
        """
        with self._lock:
            the_study = self._read(name)
            facts = [self._facts(the_study, line, ingest) for line in the_study.lines or (None,)]
        return facts[0].declared, merge_lines(facts[0].declared, [(one.line.name, check_line(one)) for one in facts])

    def line(self, study: str, line: str, ingest: Ingest) -> CheckInput:
        """Return a line's input for the checks.

        Raises:
            StoreError: the study doesn't exist, or can't be read.
            InvalidSettings: the study doesn't have this line.
        """
        with self._lock:
            the_study = self._read(study)
            return self._facts(the_study, the_study.line(line), ingest)

    def _read(self, name: str) -> Study:
        """Return a study. Its file is read only if changed, because a study with many weights is large."""
        seen = self._store.studies.stamp(name), self._store.studies.settings_entry(name)
        known = self._studies.get(name)
        if known is None or known[0] != seen:
            known = self._studies[name] = seen, self._store.study(name)
        return known[1]

    def _facts(self, study: Study, line: Line | None, ingest: Ingest) -> CheckInput:
        now = self._clock()
        declared, troubles = self._declared(study.name)
        known = LineSnapshot(name="", min_clients=0)
        if line is not None:
            key = (study.name, line.name)
            seen = self._lines.get(key)
            if seen is None or seen.of is not study:  # its settings have changed
                seen = self._lines[key] = _SeenLine(self._landing, study, line)
            known = seen.facts(self._store, int(now * 1e9))
        known = replace(known, troubles=(*troubles, *known.troubles))
        facts = CheckInput(
            study=study.name,
            declared=declared,
            arms=study.arms,
            line=known,
            ingest=ingest,
            now=now,
            settings=self._studies[study.name][0][1],
            discreet=study.is_private or any(self._is_private(name) for name in self._store.studies.names()),
        )
        if not facts.free or (when := facts.recent_ms) is None:
            return facts
        beside = self._beside.setdefault((study.name, known.name), _SeenBeside(self._landing, study.name))
        return replace(facts, beside=beside.between(*when, now_ms=int(now * 1000)))

    def _declared(self, study: str) -> tuple[Declared, tuple[str, ...]]:
        try:
            return self._store.studies.declared(study), ()
        except FedpingError as error:
            return Declared(), (str(error),)


class _SeenBeside:
    """Cache for the number of pings of arms without a line that landed during a line's last rounds."""

    def __init__(self, landing: Landing, study: str) -> None:
        self._landed = LandedBeside(landing, study)
        self._last: tuple[tuple[int, int], int] | None = None

    def between(self, after_ms: int, until_ms: int, now_ms: int) -> int:
        """Return the number of pings that landed after ``after_ms`` and up to ``until_ms``, both in Unix ms."""
        interval = after_ms, until_ms
        if self._last is None or self._last[0] != interval:
            pings = self._landed.between(*interval)
            if now_ms - until_ms < LANDS_AFTER_MS:  # a file with an earlier moment in its name may still appear
                return pings
            self._last = interval, pings
        return self._last[1]


class _SeenLine:
    """Cache of a line's data: its newest versions, and the footers of landed files."""

    def __init__(self, landing: Landing, of: Study, line: Line) -> None:
        self.of, self._study, self._line = of, of.name, line
        self._most_examples = of.limits.examples if of.limits is not None else None
        self._landing = landing
        self._landed = LandedPings(landing, of.name, line.name)
        self._numbers: list[int] = []
        self._outcomes: dict[tuple[int, Stamp | None], Outcome | str] = {}
        self._asked_of: tuple[tuple[int, Stamp | None], ...] | None = None
        self._ask_again = 0.0
        self._trouble: str | None = None
        self._held: HeldVersion | None = None
        self._held_trouble: str | None = None
        self._failing: Failing | None = None
        self._private_of: tuple[tuple[int, Stamp | None], ...] | None = None
        self.private: PrivateFacts | None = None
        self._private_trouble: str | None = None

    @property
    def line(self) -> Line:
        """The line."""
        return self._line

    @property
    def newest(self) -> Outcome | None:
        """The newest version; None if it cannot be read."""
        last = next(reversed(self._outcomes.values()), None)
        return last if isinstance(last, Outcome) else None

    def facts(self, store: ModelStore, now_ns: int) -> LineSnapshot:
        """Return the line's current facts."""
        numbers = self._newest_numbers(store)
        keys = [(number, store.versions.stamp(self._study, self._line.name, number)) for number in numbers]
        self._outcomes = {key: self._outcomes.get(key) or self._outcome(store, key[0]) for key in keys}
        outcomes = self._outcomes.values()
        trouble = self._store_trouble(store, tuple(keys))
        unreadable = [one for one in outcomes if isinstance(one, str)]
        private = self._private_now(store, tuple(keys)) if self._line.privacy is not None else None
        return LineSnapshot(
            name=self._line.name,
            min_clients=self._line.pipeline.min_clients,
            most_examples=self._most_examples,
            longest=60 * self._line.length.most if self._line.length is not None else 0.0,
            outcomes=tuple(one for one in outcomes if isinstance(one, Outcome)),
            landed=self._landed.of(numbers[-1], now_ns) if numbers else None,
            troubles=tuple(
                dict.fromkeys(filter(None, [trouble, *unreadable, self._held_trouble, self._private_trouble]))
            ),
            held=self._held,
            failing=self._failing,
            privacy=private,
            stage=self._line.guard.stage if self._line.guard is not None else None,
        )

    def _store_trouble(self, store: ModelStore, keys: tuple[tuple[int, Stamp | None], ...]) -> str | None:
        """Return the reason why the next version isn't published. It is rarely updated: an update lists folders.

        A held version and failing rounds are updated at the same time.
        """
        before = time.monotonic()
        if keys != self._asked_of or before >= self._ask_again:
            self._asked_of, self._trouble = keys, store.lines.trouble(self._study, self._line.name)
            self._held, self._held_trouble = self._held_now(store)
            newest = self.newest
            attempt = last_attempt(self._landing, store.where, self._study, self._line.name)
            self._failing = attempt.failing_since(newest.created if newest is not None else "")
            self._ask_again = time.monotonic() + max(ASK_EVERY, ASK_SHARE * (time.monotonic() - before))
        return self._trouble

    def _private_now(self, store: ModelStore, keys: tuple[tuple[int, Stamp | None], ...]) -> PrivateFacts | None:
        """Return the facts of a private line, computed once for its newest version."""
        if keys != self._private_of:
            self._private_of, self.private, self._private_trouble = keys, None, None
            try:
                self.private = private_facts(store, self.of, self._line)
            except FedpingError as error:
                self._private_trouble = str(error)
        if self.private is not None and self.private.shared:
            waiting = store.helper_request(self._study, self._line.name).told(keys[-1][0]) if keys else None
            self.private = replace(self.private, waiting=waiting)
        return self.private

    def _held_now(self, store: ModelStore) -> tuple[HeldVersion | None, str | None]:
        """Return the held version, if any, and the reason if it can't be read."""
        if self._trouble is not None:  # the newest version is the last, held or not
            return None, None
        try:
            version = store.held.held_version(self._study, self._line.name)
            guard = version.lineage.guard if version else None
            if version is None or guard is None:
                return None, None
            stage = version.staged and (
                store.held.stage(self._study, self._line.name, version.iteration) or version.staged
            )
        except FedpingError as error:
            return None, str(error)
        return HeldVersion(iteration=version.iteration, alarms=guard.alarms, stage=stage), None

    def _newest_numbers(self, store: ModelStore) -> list[int]:
        """Return the numbers of the newest versions, ascending; a continued line has gaps."""
        known = self._numbers[-1] if self._numbers else -1
        newest = store.lines.newest_from(self._study, self._line.name, known)
        if newest != known or known < 0:
            there = store.iterations(self._study, self._line.name)
            self._numbers = [number for number in there if number <= newest][-PACED - 1 :]
        return self._numbers

    def _outcome(self, store: ModelStore, number: int) -> Outcome | str:
        try:
            return store.versions.outcome(self._study, self._line.name, number)
        except FedpingError as error:
            return str(error)


def ingest_snapshot(places: IngestSettings) -> Ingest:
    """Return the current state of ingest, from its lock, journal and counters."""
    journal = str(places.journal)
    try:
        if not places.journal.is_dir():
            return Ingest(state="absent", journal=journal)
        waiting, sums, new = backlog(places.journal), totals(places.counters), newcomers(places.counters)
        studies, uploads = of_studies(places.counters), uploaded(places.counters)
        recent, requests = recently(places.counters, time.time()), requests_of(places.counters, time.time())
        period, began = period_of(places.counters) or (None, 0.0)
        failing = failing_in_words(places.compaction_failing)
        troubles = [*([failing] if failing else []), *unlanded(places)]
        since = waiting_since(places.journal, began) if waiting.pings else None
    except OSError:
        return Ingest(state="unknown", journal=journal)
    return Ingest(
        journal=journal,
        state=_state(places.journal / INGEST_LOCK),
        pending=waiting.pings,
        segments=waiting.segments,
        waiting_since=since,
        period=period,
        accepted=sums["accepted"],
        landed=sums["landed"],
        rejected={key.partition(".")[2]: n for key, n in sums.items() if n and key.startswith("rejected.")},
        troubles=tuple(map(as_sentence, troubles)),
        newcomers={study: dict(hours) for study, hours in new.items()},
        studies=dict(studies),
        recent=recent,
        requests={name: n for name, n in requests.items() if n},
        uploads=tuple(
            Uploads(study=study, line=line, encoding=encoding, updates=number, update_bytes=size)
            for (study, line, encoding), (number, size) in uploads.items()
        ),
    )


def _state(lock: Path) -> Literal["running", "stopped", "unknown"]:
    """Return whether an ingest runs, by its lock. The check holds the lock briefly; a starting ingest waits longer."""
    try:
        file = os.open(lock, os.O_RDONLY)
    except FileNotFoundError:
        return "stopped"
    except OSError:
        return "unknown"
    try:
        fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return "running"
    except OSError:
        return "unknown"
    finally:
        os.close(file)
    return "stopped"


@dataclass
class _Listed:
    version: int
    seen: int
    landed: Landed


class LandedPings:
    """Counts the landed pings of a line's newest version. Each file's footer is read once."""

    def __init__(self, landing: Landing, study: str, line: str) -> None:
        self._landing, self._study, self._line = landing, study, line
        self._rows: dict[Place, int | None] = {}
        self._last: _Listed | None = None

    def of(self, version: int, now_ns: int) -> Landed:
        """Return the landed pings of a version; cached while its folder is unchanged."""
        seen = self._landing.changed(self._study, self._line, version, now_ns)
        last = self._last
        if last is not None and seen is not None and (last.version, last.seen) == (version, seen):
            return last.landed
        files = self._landing.files(self._study, self._line, version)
        self._rows = {file: self._rows[file] if file in self._rows else _rows(self._landing, file) for file in files}
        landed = self._summed(version)
        self._last = None if seen is None else _Listed(version, seen, landed)
        return landed

    def _summed(self, version: int) -> Landed:
        counted = [rows for rows in self._rows.values() if rows is not None]
        return Landed(
            version=version,
            pings=sum(counted),
            files=len(counted),
            newest_ms=max((stamp for file in self._rows if (stamp := landed_at(file)) is not None), default=None),
            unreadable=tuple(base_name(file) for file, rows in self._rows.items() if rows is None),
        )


class LandedBeside:
    """Counts the landed pings of a study's arms without a line."""

    def __init__(self, landing: Landing, study: str) -> None:
        self._landing, self._study = landing, study
        self._rows: dict[Place, int] = {}

    def between(self, after_ms: int, until_ms: int) -> int:
        """Return the number of pings that landed after ``after_ms`` and up to ``until_ms``, both in Unix ms."""
        there = [
            file
            for file in chain.from_iterable(self._landing.files_by_iteration(self._study, None).values())
            if after_ms < (landed_at(file) or 0) <= until_ms
        ]
        self._rows = {
            file: self._rows[file] if file in self._rows else _rows(self._landing, file) or 0 for file in there
        }
        return sum(self._rows.values())


def _rows(landing: Landing, file: Place) -> int | None:
    """Return the number of pings in a file; None if it isn't a complete Parquet file."""
    try:
        return int(landing.open(file).footer.num_rows)
    except (FedpingError, OSError):
        return None


def private_facts(store: ModelStore, study: Study, line: Line) -> PrivateFacts:
    """Return the facts of a private line.

    Raises:
        FedpingError: a version cannot be read.
    """
    assert line.privacy is not None
    central, spent = line.privacy.central, spent_by(store, study, line)
    noise = 0.0
    if central is not None and central.noise_multiplier is not None:
        frame = frame_of(line.privacy, line.spec)
        noise = central.noise_multiplier * frame.sensitivity / frame.metric
        noise *= 1.0 if line.privacy.shared is None else math.sqrt(2)  # both servers add it
    return PrivateFacts(
        guarantee=guarantee_in_words(line.privacy),
        epsilon=spent.epsilon,
        delta=central.delta if central else None,
        most=spent.most,
        releases=spent.releases,
        rounds=central.rounds if central else None,
        rounds_left=spent.rounds_left,
        noise=noise,
        loss=line.privacy.loss,
        local=line.privacy.local is not None,
        shared=line.privacy.shared is not None,
    )
