"""The runs of a folder, started by the dashboard or the command line, with people's tags and notes."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from hashlib import sha256
from pathlib import Path
from typing import Annotated, Literal, TypeAlias

import msgspec
from msgspec import Meta, Struct

from fedping.dashboard.runs.registry import Run, RunBook, UnknownRun
from fedping.experiments.run_folder import NOTE, DamagedRun, is_study, read_whole, write_document
from fedping.model_store.notes import is_odd
from fedping.protocol.errors import InvalidSettings

State: TypeAlias = Literal["waiting", "running", "finished", "failed", "stopped", "lost", "unfinished"]
"""States of a run; ``unfinished`` is a command-line run without results, whether it is running or not."""

Kind: TypeAlias = Literal["laboratory", "study"]


@dataclass(frozen=True)
class Place:
    """A run and its location.

    Attributes:
        id: the name of the run's folder.
        title: the run's displayed name.
        out: the folder that ``fedping simulate`` writes into.
        state: see :data:`State`.
        run: the run in the book; None for a command-line run.
    """

    id: str
    title: str
    out: Path
    state: State
    run: Run | None

    @property
    def over(self) -> bool:
        """Whether the run has ended."""
        return self.state not in ("waiting", "running", "unfinished")

    @property
    def kind(self) -> Kind:
        """The kind of the run, from its note, or from its description if the note does not exist yet."""
        if (self.out / NOTE).is_file():
            return "study" if is_study(self.out) else "laboratory"
        return "study" if self.run is not None and _names_a_study(self.run.description) else "laboratory"

    @property
    def folder(self) -> Path:
        """The folder with all files of the run."""
        return self.run.folder if self.run else self.out

    @property
    def begun(self) -> datetime | None:
        """The time of the run's last start; None if unknown."""
        return self.run.started if self.run else None


def place(runs: Path, id: str) -> Place:
    """Return a run in a folder of runs by its id.

    Raises:
        UnknownRun: the folder has no run with this id.
    """
    try:
        return _of_book(RunBook(runs).run(id))
    except UnknownRun:
        location = _of_command_line(runs / id) if _may_be_a_folder(id) else None
        if location is None:
            raise
        return location


def _may_be_a_folder(id: str) -> bool:
    """Return whether a name from a request is safe as the name of a run's folder."""
    return "/" not in id and "\0" not in id and not id.startswith(".") and len(os.fsencode(id)) <= _LONGEST


_LONGEST = 255
"""Maximum bytes of a file name; the system rejects longer ones."""


def places(runs: Path) -> list[Place]:
    """Return all runs of a folder: those of the book, newest first, then those of the command line by name."""
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


FOLDER = ".labels"
MOST_TAGS = 20

_LONGEST_NAME = 200
"""Maximum bytes of an id that names its labels' file; a longer id is hashed, to leave room for a suffix."""

Tag = Annotated[str, Meta(min_length=1, max_length=40)]


class Labels(Struct, frozen=True):
    """People's labels of a run: short ``tags`` for searching, and a ``note``."""

    tags: Annotated[tuple[Tag, ...], Meta(max_length=MOST_TAGS)] = ()
    note: Annotated[str, Meta(max_length=4000)] = ""


def labels_of(runs: Path, id: str) -> Labels:
    """Return the labels of a run; empty if their file is damaged."""
    try:
        return read_whole(_file(runs, id), Labels) or Labels()
    except DamagedRun:
        return Labels()


def labelled(tags: str, note: str) -> Labels:
    """Return the labels in a form, whose tags are separated by commas.

    Raises:
        InvalidSettings: there are too many tags, or a tag or the note is too long.
    """
    each = [" ".join("".join(sign for sign in tag if sign.isprintable()).split()) for tag in tags.split(",")]
    document = {"tags": list(dict.fromkeys(filter(None, each))), "note": _seen(note).strip()}
    try:
        return msgspec.convert(document, Labels)
    except msgspec.ValidationError as error:
        raise InvalidSettings(
            f"a run has at most {MOST_TAGS} tags of 40 letters each, and a note of 4,000 letters; shorten them"
        ) from error


def _seen(note: str) -> str:
    """Return a note without invisible characters, some of which would reverse the text after them."""
    return "".join(sign for sign in note.replace("\r\n", "\n").replace("\t", " ") if not is_odd(sign))


def write_labels(runs: Path, id: str, labels: Labels) -> None:
    """Save the labels of a run, and update the time of the runs' folder."""
    file = _file(runs, id)
    file.parent.mkdir(exist_ok=True)
    write_document(file, labels)
    os.utime(runs)


def forget(runs: Path, id: str) -> None:
    """Delete the labels of a run that no longer exists."""
    _file(runs, id).unlink(missing_ok=True)


def _file(runs: Path, id: str) -> Path:
    return runs / FOLDER / label_name(id)


def label_name(id: str) -> str:
    """Return the name of the file with the labels of a run."""
    name = id if len(os.fsencode(id)) <= _LONGEST_NAME else sha256(os.fsencode(id)).hexdigest()
    return f"{name}.json"
