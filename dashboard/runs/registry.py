"""The runs in a folder: list, queue, stop, resume and delete them.

Like the queue of jobs, a book has no state in memory.
"""

from __future__ import annotations

import os
import re
import shutil
import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path

import msgspec

from fedping.dashboard.answers import NotThere, WrongState
from fedping.dashboard.jobs import WAITING, Job, Queue, read_job
from fedping.experiments.run_folder import write_document, write_whole_bytes
from fedping.experiments.run_process import ENDED
from fedping.protocol.local_files import is_settled

DESCRIPTION, NOTE = "experiment.toml", "run.json"


class UnknownRun(NotThere):
    """The folder has no run with this id."""


class Note(msgspec.Struct, frozen=True):
    """The record of a run, written when it is described."""

    title: str
    described: datetime


@dataclass(frozen=True, kw_only=True)
class Run(Job):
    """A run of an experiment.

    Attributes:
        title: the run's displayed name.
        described: when it was described, in UTC.
        message: the last error message of a failed run, or how a lost run was ended; else None.
    """

    title: str
    described: datetime
    message: str | None = None

    @property
    def out(self) -> Path:
        """The folder given to ``fedping simulate --out``."""
        return self.folder / "out"

    @property
    def description(self) -> Path:
        """The file given to ``fedping simulate``."""
        return self.folder / DESCRIPTION

    @property
    def can_resume(self) -> bool:
        """Whether the same command would complete the run."""
        return self.state in ("failed", "stopped", "lost")


_over: dict[Path, tuple[int, Run]] = {}
"""Cache of runs that are over, with their folders' times of modification; any later event would change the time."""


def read_run(folder: Path) -> Run:
    """Return the run of a folder.

    Raises:
        UnknownRun: there is no run, or a later version of fedping has written it.
    """
    try:
        changed = folder.stat().st_mtime_ns
    except OSError:
        _over.pop(folder, None)
        changed = 0
    known = _over.get(folder)
    if known is not None and known[0] == changed:
        return known[1]
    run = _read_now(folder)
    if run.is_over and is_settled(changed):
        _over[folder] = (changed, run)
    return run


def _read_now(folder: Path) -> Run:
    none = f"the run '{folder.name}' does not exist; it may have been deleted"
    note, fields = read_job(folder, NOTE, Note, UnknownRun, none)
    run = Run(**fields, title=note.title, described=note.described)
    return replace(run, message=_message(run))


def _message(run: Run) -> str | None:
    if run.state == "failed":
        return run.last_line() or f"it ended with exit code {run.code} and without a message"
    if run.state == "lost":
        how = "by another program, or the machine went down" if run.code is None else f"by signal {-run.code}"
        return f"it was ended {how}; press Go on to continue from its finished part"
    return None


PATIENCE = 20.0
"""Seconds after which a run that ignores the request to stop is killed."""

_ID = re.compile(r"[0-9]{8}-[0-9]{6}-[a-z0-9-]{1,60}")


class RunBook:
    """The runs in a folder, and the operations on them.

    Args:
        folder: the folder of the runs; created when first needed.
        at_most: maximum number of runs at a time; the others wait for their turn.
        patience: see :data:`PATIENCE`.
    """

    def __init__(self, folder: Path, at_most: int = 1, patience: float = PATIENCE) -> None:
        self.folder, self.at_most = folder, at_most
        self._queue = Queue(
            folder, at_most, patience, ("fedping.dashboard.runs.next", str(folder), str(at_most), str(patience))
        )

    def runs(self) -> list[Run]:
        """Return all runs, newest first."""
        names = os.listdir(self.folder) if self.folder.is_dir() else []
        known = _read([self.folder / name for name in filter(_ID.fullmatch, names)])
        return sorted(known, key=lambda run: run.described, reverse=True)

    def run(self, id: str) -> Run:
        """Return a run by its id.

        Raises:
            UnknownRun: the folder has no run with this id.
        """
        if not _ID.fullmatch(id):
            raise UnknownRun(f"the run '{id[:80]}' does not exist; choose one from the list")
        return read_run(self.folder / id)

    def start(self, description: bytes, title: str, beside: Mapping[str, bytes] | None = None) -> Run:
        """Save an experiment as a new run, and queue it; it starts at once if few enough runs are running.

        Args:
            description: the file for ``fedping simulate``, not checked here.
            title: the run's displayed name.
            beside: files to put into the same folder, such as the study's, by name.
        """
        self.folder.mkdir(parents=True, exist_ok=True)
        described = datetime.now(UTC)
        with self._queue.alone():
            folder = self._new_folder(title, described)
            for name, content in {**(beside or {}), DESCRIPTION: description}.items():
                write_whole_bytes(folder / name, content)
            self._queue.put(folder)
            write_document(folder / NOTE, Note(_printed(title) or "untitled", described))
        self.start_waiting()
        return self.run(folder.name)

    def stop(self, id: str) -> None:
        """Ask a run to stop, which takes a moment; a waiting run leaves the queue.

        Raises:
            UnknownRun: the folder has no run with this id.
            WrongState: the run is over.
        """
        with self._locked(id) as run:
            if run.is_over:
                raise WrongState(f"'{run.title}' is {run.state}; you can stop only running and waiting runs")
            self._queue.stop(run)

    def resume(self, id: str) -> None:
        """Queue a run again; the same command then completes the unfinished part.

        Raises:
            UnknownRun: the folder has no run with this id.
            WrongState: the run is waiting, running or finished.
        """
        with self._locked(id) as run:
            if not run.can_resume:
                raise WrongState(f"'{run.title}' is {run.state}, so it can't continue")
            self._queue.put(run.folder)
        self.start_waiting()

    def delete(self, id: str) -> None:
        """Delete a run with all its results.

        Raises:
            UnknownRun: the folder has no run with this id.
            WrongState: the run is running.
        """
        with self._locked(id) as run:
            if run.state == "running":
                raise WrongState(f"'{run.title}' is running; stop it before you delete it")
            gone = self.folder / f".deleted-{run.id}"
            run.folder.rename(gone)  # atomically, so that no process sees half of it
        shutil.rmtree(gone, ignore_errors=True)

    def start_waiting(self) -> None:
        """Start waiting runs, the longest waiting first, until as many run as allowed."""
        self._queue.start_waiting(self._unfinished, self._start)

    def _unfinished(self) -> list[Run]:
        """Return waiting and possibly running runs, without reading the finished ones."""
        names = filter(_ID.fullmatch, os.listdir(self.folder))
        folders = [self.folder / name for name in names]
        return _read([one for one in folders if (one / WAITING).exists() or not (one / ENDED).exists()])

    def _start(self, run: Run) -> None:
        command = [sys.executable, "-m", "fedping", "simulate", str(run.description), "--out", str(run.out)]
        self._queue.start(run, command)

    def _new_folder(self, title: str, described: datetime) -> Path:
        slug = re.sub(r"[^a-z0-9]+", "-", title.lower()).strip("-")[:40].strip("-") or "run"
        name = f"{described:%Y%m%d-%H%M%S}-{slug}"
        number = 1
        while True:
            folder = self.folder / (name if number == 1 else f"{name}-{number}")
            try:
                folder.mkdir()
                return folder
            except FileExistsError:
                number += 1

    @contextmanager
    def _locked(self, id: str) -> Iterator[Run]:
        """Yield a run while holding the lock of the folder; update the folder's time afterwards."""
        self.run(id)  # so that no lock is created for a missing run
        with self._queue.alone():
            yield self.run(id)
            os.utime(self.folder)


def _read(folders: Iterable[Path]) -> list[Run]:
    known = []
    for folder in folders:
        try:
            known.append(read_run(folder))
        except UnknownRun:  # it is just being created or deleted
            continue
    return known


def _printed(title: str) -> str:
    """Return a title on one line, without invisible characters, some of which would reverse the text after them."""
    return "".join(sign for sign in " ".join(title.split()) if sign.isprintable())
