"""One run, as read from its folder."""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path

import msgspec

from fedping.dashboard.answers import NotThere
from fedping.dashboard.jobs import Job, read_job
from fedping.protocol.local_files import is_settled

DESCRIPTION, NOTE = "experiment.toml", "run.json"


class UnknownRun(NotThere):
    """There is no run with that id."""


class Note(msgspec.Struct, frozen=True):
    """What is recorded about a run when it is described."""

    title: str
    described: datetime


@dataclass(frozen=True, kw_only=True)
class Run(Job):
    """One run.

    Attributes:
        title: its name for people.
        described: when it was described, in UTC.
        message: its last error sentence, if it failed; how it was ended, if it was lost.
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
    def can_go_on(self) -> bool:
        """Whether the same command would do the rest of it."""
        return self.state in ("failed", "stopped", "lost")


_over: dict[Path, tuple[int, Run]] = {}
"""Runs that are over, and when their folder was last changed: nothing can happen to them without another change."""


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
    none = f"there is no run '{folder.name}'; it may have been deleted"
    note, fields = read_job(folder, NOTE, Note, UnknownRun, none)
    run = Run(**fields, title=note.title, described=note.described)
    return replace(run, message=_message(run))


def _message(run: Run) -> str | None:
    if run.state == "failed":
        return run.last_line() or f"it ended with exit code {run.code} and said nothing"
    if run.state == "lost":
        how = "from outside, or the machine went down" if run.code is None else f"by signal {-run.code}"
        return f"it was ended {how}; press Go on to continue, and what is finished is kept"
    return None
