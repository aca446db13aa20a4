"""Jobs: queued commands, each with a folder and a process of its own.

    waiting    exists while the job waits for its turn; contains the time of queueing (nanoseconds since 1970)
    ...        and the files of `fedping.experiments.run_process`

All state is in files, so several processes may share a queue's folder, and may start and end at any time. A job that
ends starts the next one itself, so no server is needed.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any, Literal, TypeAlias, TypeVar

import msgspec

from fedping.dashboard.feeds import last_lines
from fedping.experiments.run_folder import write_whole_bytes
from fedping.experiments.run_process import ENDED, PROCESS, STDERR, STOP, Ended, Process, alone, is_alive, start
from fedping.protocol.errors import FedpingError
from fedping.protocol.formats import NewerFormat, without_format

T = TypeVar("T")

State: TypeAlias = Literal["waiting", "running", "finished", "failed", "stopped", "lost"]

WAITING = "waiting"

_TAIL = 16_384
"""Bytes at the end of a job's output that are searched for its last line."""


@dataclass(frozen=True, kw_only=True)
class Job:
    """A job and its state, as read from its folder.

    Attributes:
        folder: the job's folder, which has all its files.
        state: ``waiting`` for its turn, ``running``, ``finished``, ``failed`` by itself, ``stopped`` by a person, or
            ``lost``: it was killed from outside, or the machine went down.
        stopping: whether the job is running although a stop has been requested.
        started: when it was last started; None before.
        ended: when it ended; None before the end, and if the end was not recorded.
        code: exit code, or the negative number of the signal; None if ``ended`` is None.
    """

    folder: Path
    state: State
    stopping: bool
    started: datetime | None
    ended: datetime | None
    code: int | None

    @property
    def id(self) -> str:
        """The name of the job's folder."""
        return self.folder.name

    @property
    def is_over(self) -> bool:
        """Whether the job is neither running nor waiting."""
        return self.state not in ("waiting", "running")

    @property
    def queued(self) -> int:
        """The time at which the job was queued (nanoseconds since 1970); 0 if unknown."""
        try:
            return int((self.folder / WAITING).read_bytes())
        except (OSError, ValueError):
            return 0

    def last_line(self) -> str:
        """Return the last line of the job's standard error, without the command's name; empty if there is none."""
        lines = [line for line in last_lines(self.folder / STDERR, _TAIL) if line.strip()]
        text = lines[-1].decode(errors="replace").strip() if lines else ""
        return text.removeprefix("fedping: ").removeprefix("Error: ")


def job_fields(folder: Path) -> dict[str, Any]:
    """Return the fields of :class:`Job` from a folder."""
    alive = is_alive(folder)  # first: the starting process takes the lock before anything else
    process = decoded(folder / PROCESS, Process)
    waiting = not alive and (folder / WAITING).exists()
    ended = None if alive or waiting else decoded(folder / ENDED, Ended)
    stop = (folder / STOP).exists()
    return {
        "folder": folder,
        "state": _state(alive, waiting, ended, stop),
        "stopping": alive and stop,
        "started": process.started if process else None,
        "ended": ended.ended if ended else None,
        "code": ended.code if ended else None,
    }


def _state(alive: bool, waiting: bool, ended: Ended | None, stop: bool) -> State:
    if alive:
        return "running"
    if waiting:
        return "waiting"
    if ended is not None and ended.code == 0:
        return "finished"
    if stop:
        return "stopped"
    return "lost" if ended is None or ended.code < 0 else "failed"


def read_job(
    folder: Path, note: str, kind: type[T], unknown: Callable[[str], FedpingError], none: str
) -> tuple[T, dict[str, Any]]:
    """Return the decoded contents of a job's file ``note``, and the fields of the job.

    Raises:
        FedpingError: the result of ``unknown``, called with the message ``none`` if the note does not exist, or with
            another if a later version of fedping has written the job.
    """
    try:
        document = decoded(folder / note, kind)
        if document is None:  # checked first, because the folder may not exist
            raise unknown(none)
        return document, job_fields(folder)
    except NewerFormat as error:
        raise unknown(str(error)) from error


def decoded(file: Path, kind: type[T]) -> T | None:
    """Return the contents of a JSON file; None if it does not exist or is damaged.

    Raises:
        NewerFormat: a later version of fedping has written it.
    """
    try:
        return msgspec.json.decode(without_format(file.read_bytes(), f"the file {file}"), type=kind)
    except (OSError, msgspec.DecodeError, UnicodeDecodeError):
        return None


J = TypeVar("J", bound=Job)

_LOCK = ".lock"


@dataclass(frozen=True)
class Queue:
    """A queue of the jobs in a folder.

    Attributes:
        folder: the folder of the jobs; its lock is held whenever a job is queued, started or stopped.
        at_most: maximum number of jobs that run at a time.
        patience: seconds after which a job that ignores the request to stop is killed.
        then: a module with its arguments, which every job runs at its end to start the next job.
        nice: added to the niceness of the jobs.
        environment: environment variables that are added for the jobs.
    """

    folder: Path
    at_most: int
    patience: float
    then: tuple[str, ...] = ()
    nice: int = 0
    environment: Mapping[str, str] = field(default_factory=dict)

    @contextmanager
    def alone(self) -> Iterator[None]:
        """Hold the lock of the folder, which must exist."""
        with alone(self.folder / _LOCK):
            yield

    def put(self, folder: Path) -> None:
        """Queue the job of a folder."""
        (folder / STOP).unlink(missing_ok=True)
        write_whole_bytes(folder / WAITING, str(time.time_ns()).encode())

    def stop(self, job: Job) -> None:
        """Ask a job to stop, which takes a moment; a waiting job leaves the queue."""
        (job.folder / STOP).touch()
        (job.folder / WAITING).unlink(missing_ok=True)

    def room(self, jobs: Iterable[Job]) -> int:
        """Return the number of further jobs that may run."""
        return max(self.at_most - sum(job.state == "running" for job in jobs), 0)

    def start_waiting(self, jobs: Callable[[], Iterable[J]], begin: Callable[[J], None]) -> None:
        """Start waiting jobs, the longest waiting first, until as many run as allowed."""
        if not self.folder.is_dir():
            return
        with self.alone():
            current = list(jobs())
            waiting = sorted((job for job in current if job.state == "waiting"), key=lambda job: (job.queued, job.id))
            for job in waiting[: self.room(current)]:
                begin(job)
                (job.folder / WAITING).unlink(missing_ok=True)

    def start(self, job: Job, command: Sequence[str]) -> None:
        """Start the process of a job."""
        start(
            job.folder,
            command,
            patience=self.patience,
            then=self.then,
            nice=self.nice,
            environment=self.environment,
        )
