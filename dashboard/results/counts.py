"""The counts of all studies' results, computed one at a time by separate processes, with a folder for each.

    asked.json      the question
    landed.json     the files that had landed when the count began
    stdout          the document, as printed by the command
    stderr          its progress in lines; after an error, the message is last
    ...             and the files of a job

Every requested count is kept, because the number of looks is part of the result. On a schedule, every study with new
pings is counted as an interim look, by its last interim question or its own metrics. Only the newest of these looks are
kept, because no result is corrected for their number.
"""

from __future__ import annotations

import functools
import logging
import re
import shutil
import sys
import threading
import time
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec

from fedping.analysis.study.metrics import window_folders
from fedping.analysis.verdict import Asked, plan_of
from fedping.dashboard.answers import NotThere
from fedping.dashboard.feeds import Change
from fedping.dashboard.jobs import Job, Queue, read_job
from fedping.dashboard.results.landed import Folders, Landed, Since, Watch
from fedping.dashboard.results.question import first_question, key_of, options_of
from fedping.experiments.run_folder import write_document, write_whole_bytes
from fedping.experiments.run_process import ENDED, STDERR, STDOUT, Ended
from fedping.model_store.store import open_store
from fedping.protocol import __version__
from fedping.protocol.errors import FedpingError
from fedping.protocol.formats import without_format
from fedping.protocol.location import Place, absolute
from fedping.protocol.study import Study

ASKED, LANDED = "asked.json", "landed.json"


class UnknownCount(NotThere):
    """The study has no such count."""


@dataclass(frozen=True, kw_only=True)
class Count(Job):
    """A count; the name of its folder is the time of the request (Unix ms) and the question's key.

    Attributes:
        asked: the question.
        said: its current activity, or the error message after a failure; may be empty.
    """

    asked: Asked
    said: str = ""

    @property
    def key(self) -> str:
        """The question's key."""
        return self.id.partition("-")[2]

    @property
    def seconds(self) -> float | None:
        """Duration of the count in seconds; None if it has not ended or if the duration is unknown."""
        return (self.ended - self.started).total_seconds() if self.started and self.ended else None

    @property
    def printed(self) -> bytes:
        """The document as the command printed it, bit for bit; only for a finished count."""
        return (self.folder / STDOUT).read_bytes()

    @property
    def document(self) -> dict[str, Any]:
        """The document (`fedping.analysis.verdict.as_document`)."""
        said = without_format(self.printed, f"the file {self.folder / STDOUT}")
        found: dict[str, Any] = msgspec.json.decode(said)
        return found

    @property
    def landed(self) -> Landed:
        """The landed files at the start of the count; only for a count that has begun."""
        return _landed(self.folder)


def read_count(folder: Path) -> Count:
    """Return the count of a folder.

    Raises:
        UnknownCount: there is no count, or a later version of fedping has written it.
    """
    none = f"the count '{folder.name}' does not exist; count again"
    asked, fields = read_job(folder, ASKED, Asked, UnknownCount, none)
    count = Count(**fields, asked=asked)
    return replace(count, said=count.last_line()) if count.state in ("running", "failed") else count


@functools.lru_cache(maxsize=64)
def _landed(folder: Path) -> Landed:
    """Return the landed files at the time of a count. They are cached: the list never changes, and can be large."""
    file = folder / LANDED
    return msgspec.json.decode(without_format(file.read_bytes(), f"the file {file}"), type=Landed)


PATIENCE = 5.0
"""Seconds after which a count that ignores the request to stop is killed; it has nothing to clean up."""

NICE = 10
"""Added to the niceness of counts, so that ingest on the same machine comes first."""

ENVIRONMENT = {"FEDPING_PROGRESS": "lines"}
"""Environment variables of a count, so that the last line that it prints is its progress."""

_ID = re.compile(r"[0-9]{13}-[0-9a-f]{12}")

Command = Callable[[str, Asked], Sequence[str]]


class Counts:
    """The counts in a folder, ``<folder>/<study>/<count>``.

    Args:
        folder: the folder of the counts; created when first needed.
        store: the model store.
        landing: the landing folder.
        command: returns the command line that answers a question about a study; `fedping analyze` if None. With another
            command, a count does not start the next one at its end.
    """

    def __init__(self, folder: Path, store: Place, landing: Place, command: Command | None = None) -> None:
        self.folder, self.store, self.landing = folder, store, landing
        self.folders = Folders()
        self._command = command or self._analyze
        places = (str(folder.absolute()), absolute(store), absolute(landing))
        then = () if command else ("fedping.dashboard.results.next", *places)
        self._queue = Queue(folder, 1, PATIENCE, then, NICE, ENVIRONMENT)

    def of(self, study: str, key: str | None = None) -> list[Count]:
        """Return the counts of a study, or only those of one question about it, newest first."""
        return list(self._newest_first(study, key))

    def newest(self, study: str, key: str) -> Count | None:
        """Return the newest count of a question, whatever its state."""
        return next(self._newest_first(study, key), None)

    def count(self, study: str, id: str) -> Count:
        """Return one count.

        Raises:
            UnknownCount: there is none of that name.
        """
        if not _ID.fullmatch(id):
            raise UnknownCount(
                f"the count '{id[:80]}' of study '{study}' does not exist; remove it from the address to see the newest"
            )
        return read_count(self.folder / study / id)

    def ask(self, study: Study, asked: Asked) -> Count:
        """Request a count of a question, now or in its turn; return the count that will answer the question.

        A waiting or running count answers it, and so does a finished one if nothing has changed since: a new count
        would have the same result, and would not be another look.
        """
        self.folder.mkdir(parents=True, exist_ok=True)
        with self._queue.alone():
            landed = self._landed(study, asked)
            for before in self.of(study.name, key_of(asked)):
                if not before.is_over or (before.state == "finished" and before.landed == landed):
                    return before
            folder = self._new_folder(study.name, asked)
        self.start_waiting()
        return read_count(folder)

    def stop(self, study: str, id: str) -> None:
        """Ask a running count to stop, or remove a waiting one from the queue; no effect on a finished count.

        Raises:
            UnknownCount: there is none of that name.
        """
        count = self.count(study, id)
        with self._queue.alone():
            if not read_count(count.folder).is_over:
                self._queue.stop(count)

    def forget(self, study: str, key: str, keep: int) -> None:
        """Remove the finished interim looks at a question except the newest ``keep``; other counts stay forever."""
        with self._queue.alone():
            done = [one for one in self.of(study, key) if one.state == "finished" and one.asked.interim]
            for one in done[keep:]:
                shutil.rmtree(one.folder)

    def start_waiting(self) -> None:
        """Start the count that has waited longest, if none is running."""
        self._queue.start_waiting(self._everything, self._start)

    def ahead(self, count: Count) -> int:
        """Return the number of counts ahead of a waiting one."""
        others = (other for other in self._everything() if not other.is_over and other.id != count.id)
        return sum(other.state == "running" or other.id < count.id for other in others)

    def _everything(self) -> Iterator[Count]:
        return (count for study in self._studies() for count in self.of(study))

    def _newest_first(self, study: str, key: str | None) -> Iterator[Count]:
        found = (path.name for path in (self.folder / study).glob("*") if _ID.fullmatch(path.name))
        names = [name for name in found if key is None or name.endswith(key)]
        known = (self._known(study, name) for name in sorted(names, reverse=True))
        return (count for count in known if count is not None)

    def _known(self, study: str, name: str) -> Count | None:
        try:
            return read_count(self.folder / study / name)
        except UnknownCount:  # it is just being created
            return None

    def _studies(self) -> list[str]:
        return sorted(path.name for path in self.folder.glob("*") if path.is_dir() and not path.name.startswith("."))

    def _start(self, count: Count) -> None:
        study = count.folder.parent.name
        try:
            landed = self._landed(open_store(self.store).study(study), count.asked)
            write_document(count.folder / LANDED, landed)
            self._queue.start(count, self._command(study, count.asked))
        except FedpingError as error:  # the store has disappeared since the request
            write_whole_bytes(count.folder / STDERR, str(error).encode())
            write_document(count.folder / ENDED, Ended(error.exit_code, datetime.now(UTC)))

    def _analyze(self, study: str, asked: Asked) -> list[str]:
        places = [f"--store={absolute(self.store)}", f"--landing={absolute(self.landing)}"]
        return [sys.executable, "-m", "fedping", "analyze", study, "--json", *places, *options_of(asked)]

    def _landed(self, study: Study, asked: Asked) -> Landed:
        store = open_store(self.store)
        newest = {line.name: store.iterations(study.name, line.name) for line in study.lines}
        return Landed(
            files=self.folders.files(self.landing, study, asked.window),
            versions={line: numbers[-1] for line, numbers in newest.items() if numbers},
            code=__version__,
        )

    def _new_folder(self, study: str, asked: Asked) -> Path:
        now = time.time_ns() // 1_000_000
        while True:
            folder = self.folder / study / f"{now:013d}-{key_of(asked)}"
            try:
                folder.mkdir(parents=True)
                break
            except FileExistsError:
                now += 1
        self._queue.put(folder)
        write_document(folder / ASKED, asked)
        return folder


KEPT = 24
"""Number of finished interim looks that are kept per question."""

log = logging.getLogger(__name__)


def refresh(counts: Counts) -> Iterator[Count]:
    """Request a count of every study; yield the counts, which are earlier ones where nothing has changed."""
    store = open_store(counts.store)
    for name in store.studies.names():
        study = store.study(name)
        asked = _question(counts, study)
        try:
            plan_of(study, asked)
            window_folders(counts.landing, study, asked.window)
        except FedpingError:  # only one arm, or nothing landed: there is nothing to compare yet
            continue
        yield counts.ask(study, asked)
        counts.forget(name, key_of(asked), KEPT)


def _question(counts: Counts, study: Study) -> Asked:
    looked = (one.asked for one in counts.of(study.name) if one.asked.interim)
    return next(looked, msgspec.structs.replace(first_question(study), interim=True))


def keep_refreshing(counts: Counts, minutes: float, stop: threading.Event) -> None:
    """Call :func:`refresh` now and at this interval in minutes until stopped; errors are only logged."""
    while True:
        try:
            for count in refresh(counts):
                log.debug("scheduled count %s", count.id)
        except (FedpingError, OSError) as error:
            log.warning("results cannot be refreshed: %s", error)
        if stop.wait(60 * minutes):
            return


@dataclass(frozen=True)
class CountFeed:
    """The feed of a question's newest count.

    Attributes:
        study: the study's name.
        key: the question's key.
        shown: the count that the page shows; None if it shows none.
    """

    study: str
    key: str
    shown: str | None
    about: Study = field(compare=False)
    counts: Counts = field(compare=False)
    watch: Watch = field(compare=False)

    def since(self, position: str | None) -> Change | None:
        """See :class:`fedping.dashboard.feeds.Feed`."""
        data = {"whole": True, "newest": self._newest(), "landed_since": self._landed_since()}
        now = f"{zlib.crc32(msgspec.json.encode(data)):08x}"
        return None if now == position else Change(now, data)

    def _newest(self) -> Mapping[str, Any] | None:
        newest = self.counts.newest(self.study, self.key)
        if newest is None:
            return None
        if newest.state == "waiting":
            self.counts.start_waiting()  # the process that should have started it may be gone
        return {
            "id": newest.id,
            "state": newest.state,
            "said": newest.said,
            "started": newest.started.isoformat() if newest.state == "running" and newest.started else None,
            "ahead": self.counts.ahead(newest) if newest.state == "waiting" else 0,
        }

    def _landed_since(self) -> Mapping[str, Any] | None:
        if self.shown is None:
            return None
        since = landed_since(self.watch, self.about, self.counts.count(self.study, self.shown))
        return {"pings": since.pings, "complete": since.complete}


def landed_since(watch: Watch, study: Study, count: Count) -> Since:
    """Return the number of pings in a count's window that have landed since the count began."""
    return watch.since(count.id, study, count.asked.window, lambda: count.landed.files)
