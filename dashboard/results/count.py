"""One count of a study: a folder with the question, what had landed, and what `fedping analyze` said.

asked.json      the question
landed.json     what had landed when the counting began
waiting         there while it waits for its turn
stdout          the document, as the command printed it
stderr          what it did, a line each; after an error, its sentence last
...             and the files of `experiments.run_process`
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any, Literal, TypeAlias, TypeVar

import msgspec

from analysis.verdict import Asked
from dashboard.results.landed import Landed
from experiments.run_process import ENDED, PROCESS, STDERR, STDOUT, STOP, Ended, Process, is_alive
from model_store import StoreError

T = TypeVar("T")

State: TypeAlias = Literal["waiting", "counting", "done", "failed", "stopped", "lost"]

ASKED, LANDED, WAITING = "asked.json", "landed.json", "waiting"

_TAIL = 4096


class UnknownCount(StoreError):
    """There is no such count of a study."""


@dataclass(frozen=True)
class Count:
    """One count.

    Attributes:
        folder: everything of it; its name is when it was asked for (milliseconds since 1970), and the question's key.
        asked: the question.
        state: ``waiting`` for its turn, ``counting``, ``done``, ``failed`` by itself, ``stopped`` by somebody, or
            ``lost``: it was ended from outside.
        started: when the counting began; None before.
        ended: when it ended; None before, and if nobody was there to see.
        said: what it does at this moment, or the sentence that it failed with; empty where there is nothing to say.
    """

    folder: Path
    asked: Asked
    state: State
    started: datetime | None
    ended: datetime | None
    said: str

    @property
    def id(self) -> str:
        """Its name among the counts of the study."""
        return self.folder.name

    @property
    def key(self) -> str:
        """The question's key."""
        return self.id.partition("-")[2]

    @property
    def is_over(self) -> bool:
        """Whether it will not change any more."""
        return self.state not in ("waiting", "counting")

    @property
    def seconds(self) -> float | None:
        """How long it took; None if it has not ended, or nobody knows."""
        return (self.ended - self.started).total_seconds() if self.started and self.ended else None

    @property
    def printed(self) -> bytes:
        """The document as the command printed it, bit for bit; of a count that is done."""
        return (self.folder / STDOUT).read_bytes()

    @property
    def document(self) -> dict[str, Any]:
        """The document (`analysis.verdict.as_document`)."""
        found: dict[str, Any] = msgspec.json.decode(self.printed)
        return found

    @property
    def landed(self) -> Landed:
        """What had landed when the counting began; of a count that has begun."""
        return _landed(self.folder)


def read_count(folder: Path) -> Count:
    """Return the count of a folder.

    Raises:
        UnknownCount: it is none.
    """
    asked = _read(folder / ASKED, Asked)
    if asked is None:
        raise UnknownCount(f"there is no count '{folder.name}'; count again")
    alive = is_alive(folder)  # first: whoever starts it takes the lock before anything else
    process = _read(folder / PROCESS, Process)
    waiting = not alive and (folder / WAITING).exists()
    ended = None if alive or waiting else _read(folder / ENDED, Ended)
    state = _state(folder, alive, waiting, ended)
    return Count(
        folder,
        asked,
        state,
        process.started if process else None,
        ended.ended if ended else None,
        _said(folder, state),
    )


@functools.lru_cache(maxsize=64)
def _landed(folder: Path) -> Landed:
    """Return what had landed; it never changes, and is some megabytes for a study of months."""
    return msgspec.json.decode((folder / LANDED).read_bytes(), type=Landed)


def _state(folder: Path, alive: bool, waiting: bool, ended: Ended | None) -> State:
    if alive:
        return "counting"
    if waiting:
        return "waiting"
    if ended is not None and ended.code == 0:
        return "done"
    if (folder / STOP).exists():
        return "stopped"
    return "lost" if ended is None or ended.code < 0 else "failed"


def _said(folder: Path, state: State) -> str:
    if state not in ("counting", "failed"):
        return ""
    try:
        with open(folder / STDERR, "rb") as source:
            source.seek(max(0, source.seek(0, 2) - _TAIL))
            lines = source.read().decode(errors="replace").strip().splitlines()
    except FileNotFoundError:
        return ""
    return lines[-1].strip().removeprefix("fedping: ").removeprefix("Error: ") if lines else ""


def _read(file: Path, kind: type[T]) -> T | None:
    try:
        return msgspec.json.decode(file.read_bytes(), type=kind)
    except (FileNotFoundError, NotADirectoryError, msgspec.DecodeError):
        return None
