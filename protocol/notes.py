"""Notes that people write about a study, each pinned to a date or to a version of a line."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta, Struct

MOST_CHARACTERS = 1000

MOST_NOTES = 1000

LATEST_VERSION = 999_999_999


class Note(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A note about a study, pinned either to a date or to a version of a line.

    Attributes:
        id: its number, unique among all notes of the study.
        text: the words, from one line to 1,000 characters.
        date: the moment it is about, ISO 8601 in UTC; empty if it is pinned to a version.
        version: the version that it is about; None if it is pinned to a date.
        line: the line of the version, or the only line that a date's note is about; empty for all lines.
        arm: the only arm that it is about; empty for all arms.
        by: who wrote it.
        written: when it was written, ISO 8601 in UTC.
        edited_by: who changed it last; empty if no one has.
        edited: when it was changed last, ISO 8601 in UTC; empty if it never was.
    """

    id: Annotated[int, Meta(ge=1)]
    text: Annotated[str, Meta(min_length=1, max_length=MOST_CHARACTERS)]
    date: str = ""
    version: Annotated[int, Meta(ge=0, le=LATEST_VERSION)] | None = None
    line: str = ""
    arm: str = ""
    by: str = ""
    written: str = ""
    edited_by: str = ""
    edited: str = ""


class Notes(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """All notes of a study after one change of them.

    Attributes:
        number: the number of the change; the document with the largest one holds.
        next_id: the number of the next note.
        notes: in the order in which they were written.
        recent: marks of the last changes, newest last, so that a slow writer finds its own.
    """

    number: Annotated[int, Meta(ge=0)] = 0
    next_id: Annotated[int, Meta(ge=1)] = 1
    notes: Annotated[tuple[Note, ...], Meta(max_length=MOST_NOTES)] = ()
    recent: tuple[str, ...] = ()
