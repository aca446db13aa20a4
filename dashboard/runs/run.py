"""One run, as its folder tells of it."""

from __future__ import annotations

import time
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Literal, TypeAlias, TypeVar

import msgspec

from experiments.run_process import ENDED, PROCESS, STDERR, STOP, Ended, Process, is_alive
from protocol.errors import FedpingError

T = TypeVar("T")

State: TypeAlias = Literal["waiting", "running", "finished", "failed", "stopped", "lost"]

DESCRIPTION, NOTE, WAITING = "experiment.toml", "run.json", "waiting"

_TAIL = 4096
"""Bytes of the end of what a run said that are looked at."""


class UnknownRun(FedpingError):
    """There is no run of that id."""


class Note(msgspec.Struct, frozen=True):
    """What is written down of a run when it is described."""

    title: str
    described: datetime


@dataclass(frozen=True)
class Run:
    """One run.

    Attributes:
        id: its folder's name.
        title: by which people know it.
        folder: everything of it.
        state: ``waiting`` for its turn, ``running``, ``finished``, ``failed`` by itself, ``stopped`` by somebody, or
            ``lost``: it was killed from outside, or the machine ended.
        stopping: it is running, and somebody wants it to stop.
        described: when it was described, in UTC.
        started: when it was started the last time; None before it is.
        ended: when it ended; None before it has, and if nobody was there to see.
        message: the last sentence that it said as an error, if it failed; how it was ended, if it was lost.
    """

    id: str
    title: str
    folder: Path
    state: State
    stopping: bool
    described: datetime
    started: datetime | None
    ended: datetime | None
    message: str | None

    @property
    def out(self) -> Path:
        """What ``fedping simulate --out`` is given."""
        return self.folder / "out"

    @property
    def description(self) -> Path:
        """The file that ``fedping simulate`` is given."""
        return self.folder / DESCRIPTION

    @property
    def is_over(self) -> bool:
        """Whether no process is at it, and none will be by itself."""
        return self.state not in ("waiting", "running")

    @property
    def can_go_on(self) -> bool:
        """Whether the same command would do the rest of it."""
        return self.state in ("failed", "stopped", "lost")


_over: dict[Path, tuple[int, Run]] = {}
"""Runs that are over, and when their folder was changed last: nothing can happen to them without changing it again."""

_GRAIN_NS = 1_000_000_000
"""Two changes that are further apart than this have different times."""


def read_run(folder: Path) -> Run:
    """Return the run of a folder.

    Raises:
        UnknownRun: it is none.
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
    if run.is_over and time.time_ns() - changed > _GRAIN_NS:
        _over[folder] = (changed, run)
    return run


def _read_now(folder: Path) -> Run:
    try:
        note = msgspec.json.decode((folder / NOTE).read_bytes(), type=Note)
    except (FileNotFoundError, NotADirectoryError, msgspec.DecodeError) as error:
        raise UnknownRun(f"there is no run '{folder.name}'; it may have been deleted") from error
    alive = is_alive(folder)  # first: whoever starts it takes the lock before anything else
    process = _read(folder / PROCESS, Process)
    waiting = not alive and (folder / WAITING).exists()
    ended = None if alive or waiting else _read(folder / ENDED, Ended)
    stop = (folder / STOP).exists()
    state = _state(alive, waiting, ended, stop)
    return Run(
        id=folder.name,
        title=note.title,
        folder=folder,
        state=state,
        stopping=alive and stop,
        described=note.described,
        started=process.started if process else None,
        ended=ended.ended if ended else None,
        message=_message(state, folder, ended),
    )


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


def _message(state: State, folder: Path, ended: Ended | None) -> str | None:
    if state == "failed":
        return _last_line(folder / STDERR) or f"it ended with exit code {ended.code if ended else 1} and said nothing"
    if state == "lost":
        how = f"by signal {-ended.code}" if ended else "from outside, or the machine went down"
        return f"it was ended {how}; go on with it, and what is finished is kept"
    return None


def _last_line(file: Path) -> str | None:
    """Return the last sentence of an error, without the command's name in front."""
    try:
        with open(file, "rb") as source:
            source.seek(max(0, source.seek(0, 2) - _TAIL))
            lines = source.read().decode(errors="replace").strip().splitlines()
    except FileNotFoundError:
        return None
    return lines[-1].strip().removeprefix("fedping: ").removeprefix("Error: ") if lines else None


def _read(file: Path, kind: type[T]) -> T | None:
    try:
        return msgspec.json.decode(file.read_bytes(), type=kind)
    except FileNotFoundError:
        return None
