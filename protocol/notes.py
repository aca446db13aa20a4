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
        text: the note's text, of one or more lines and at most 1,000 characters.
        date: the time that the note is about, ISO 8601 in UTC; empty if it is pinned to a version.
        version: the version that the note is about; None if it is pinned to a date.
        line: the line of the version, or the only line that a note on a date is about; empty for all lines.
        arm: the only arm that the note is about; empty for all arms.
        by: the author.
        written: time of writing, ISO 8601 in UTC.
        edited_by: the last editor; empty if the note was never changed.
        edited: time of the last change, ISO 8601 in UTC; empty if the note was never changed.
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
    """All notes of a study, as of one change.

    Attributes:
        number: the number of the change; the document with the largest number is current.
        next_id: the number of the next note.
        notes: in the order in which they were written.
        recent: marks of the last changes, newest last, so that a slow writer can find its own change.
    """

    number: Annotated[int, Meta(ge=0)] = 0
    next_id: Annotated[int, Meta(ge=1)] = 1
    notes: Annotated[tuple[Note, ...], Meta(max_length=MOST_NOTES)] = ()
    recent: tuple[str, ...] = ()
