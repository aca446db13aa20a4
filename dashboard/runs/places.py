"""All runs of a folder: those of the book, and those that the command line has put there."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Literal, TypeAlias

from fedping.dashboard.runs.registry import RunBook
from fedping.dashboard.runs.run import Run, UnknownRun
from fedping.experiments.run_folder import NOTE, is_study

State: TypeAlias = Literal["waiting", "running", "finished", "failed", "stopped", "lost", "unfinished"]
"""As for a run of the book; ``unfinished`` is one of the command line without results, which may be running or not."""

Kind: TypeAlias = Literal["laboratory", "study"]


@dataclass(frozen=True)
class Place:
    """A run and its location.

    Attributes:
        id: the name of its folder.
        title: its name for people.
        out: the folder that ``fedping simulate`` writes into.
        state: see :data:`State`.
        run: the run in the book; None if the command line made it.
    """

    id: str
    title: str
    out: Path
    state: State
    run: Run | None

    @property
    def over(self) -> bool:
        """Whether nothing more will happen by itself."""
        return self.state not in ("waiting", "running", "unfinished")

    @property
    def kind(self) -> Kind:
        """What is run, according to its note, or to its description before it has one."""
        if (self.out / NOTE).is_file():
            return "study" if is_study(self.out) else "laboratory"
        return "study" if self.run is not None and _names_a_study(self.run.description) else "laboratory"

    @property
    def folder(self) -> Path:
        """The folder with everything of it."""
        return self.run.folder if self.run else self.out

    @property
    def begun(self) -> datetime | None:
        """When it was last started, if known."""
        return self.run.started if self.run else None


def place(runs: Path, id: str) -> Place:
    """Return the run with that id in a folder of runs.

    Raises:
        UnknownRun: there is none.
    """
    try:
        return _of_book(RunBook(runs).run(id))
    except UnknownRun:
        found = _of_command_line(runs / id) if _may_be_a_folder(id) else None
        if found is None:
            raise
        return found


def _may_be_a_folder(id: str) -> bool:
    """Return whether a name that somebody sent can be that of a folder of runs, and of nothing else."""
    return "/" not in id and "\0" not in id and not id.startswith(".") and len(os.fsencode(id)) <= _LONGEST


_LONGEST = 255
"""Bytes in a file's name; the system refuses to look for a longer one."""


def places(runs: Path) -> list[Place]:
    """Return all runs of a folder: those of the book, newest first, then the command line's by name."""
    return [*map(_of_book, RunBook(runs).runs()), *_by_command_line(runs)]


def _of_book(run: Run) -> Place:
    return Place(run.id, run.title, run.out, run.state, run)


def _by_command_line(runs: Path) -> Iterator[Place]:
    for folder in sorted(runs.glob("[!.]*/") if runs.is_dir() else ()):
        if (found := _of_command_line(folder)) is not None:
            yield found


def _of_command_line(folder: Path) -> Place | None:
    if not (folder / NOTE).is_file() or ":" in folder.name:
        return None
    state: State = "finished" if (folder / "summary.json").is_file() else "unfinished"
    return Place(folder.name, folder.name, folder, state, None)


def _names_a_study(description: Path) -> bool:
    try:
        return any(line.startswith("study") for line in description.read_text(encoding="utf-8").splitlines())
    except (OSError, UnicodeDecodeError):
        return False
