"""The notes of a study.

    <study>/notes/<n>.json     all notes after the n-th change

A change creates the next document atomically: of two simultaneous changes one is first, and the other is applied to its
result. The newest document is current; a few older documents stay for readers that have just listed them.
"""

from __future__ import annotations

import secrets
import unicodedata
import zlib
from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, datetime

import msgspec
from msgspec.structs import replace

from fedping.model_store.documents import Documents, StampCache, StoreError, is_whole, sealed, unsealed
from fedping.protocol.errors import FedpingError, InvalidSettings
from fedping.protocol.formats import with_format
from fedping.protocol.notes import MOST_CHARACTERS, MOST_NOTES, Note, Notes
from fedping.protocol.study import Study

KEPT = 8
"""Number of newest documents that are kept."""

_RECENT = 64
"""Number of marks of changes to keep; they show a slow writer whether other writers continued from its change."""

_TRIES = 20

_BLANK = "\u115f\u1160\u2800\u3164\uffa0"
"""Letters and symbols without a visible shape: Hangul's fillers and Braille's empty pattern."""

_EARLIEST, _LATEST = datetime(1971, 1, 1, tzinfo=UTC), datetime(2200, 1, 1, tzinfo=UTC)
"""Limits of a note's date: other dates are typing errors, and years 0 and 9999 don't exist in every time zone."""

_ODD = ("Cc", "Cf", "Cs", "Zl", "Zp")
"""Unicode categories of invisible characters, which may reverse or hide visible text."""

_ALLOWED = "\n\u200c\u200d\u200e\u200f"
"""Invisible characters that are allowed: line breaks, and joiners and marks of Persian, Arabic, Hebrew and emoji."""


class NoteConflict(FedpingError):
    """Another person changed the note in the meantime; nothing was changed."""


class StudyNotes:
    """The notes of a store's studies."""

    def __init__(self, documents: Documents) -> None:
        self._documents = documents
        self._known: StampCache[Notes] = StampCache()

    def newest(self, study: str) -> int:
        """Return the number of the last change of a study's notes; 0 without any change."""
        return max(self._numbers(study), default=0)

    def state(self, study: str) -> str:
        """Return a mark that differs after every change, even after notes were restored from a backup."""
        number = self.newest(study)
        return f"{number}-{zlib.crc32(repr(self._documents.visible_stamp(_key(study, number))).encode()):08x}"

    def of(self, study: str) -> Notes:
        """Return the notes of a study.

        Raises:
            StoreError: the notes can't be read.
        """
        for _ in range(_TRIES):
            number = self.newest(study)
            if number == 0:
                return Notes()
            key = _key(study, number)
            found = self._known.get(key, number) or self._read(key, number)
            if found is not None:
                self._known.put(key, number, found)
                return found
        raise StoreError(f"the notes of study '{study}' change faster than they can be read; try again")

    def add(self, study: Study, note: Note) -> Note:
        """Add a note, and return it with its number.

        Raises:
            InvalidSettings: the note doesn't fit the study, or there are too many.
            StoreError: the notes can't be read.
        """
        check(note, study)
        made = [note]

        def added(now: Notes) -> Notes:
            if len(now.notes) >= MOST_NOTES:
                raise InvalidSettings(f"a study has at most {MOST_NOTES:,} notes; remove some first")
            made[0] = replace(note, id=now.next_id)
            return replace(now, next_id=now.next_id + 1, notes=(*now.notes, made[0]))

        self._change(study.name, added)
        return made[0]

    def edit(self, study: Study, seen: Note, note: Note) -> None:
        """Replace a note that is unchanged since it was read.

        Raises:
            InvalidSettings: the new note doesn't fit the study.
            NoteConflict: the note was changed or removed since then.
            StoreError: the notes can't be read.
        """
        check(note, study)
        self._change(study.name, lambda now: _with(now, study.name, seen, (note,)))

    def remove(self, study: Study, seen: Note) -> None:
        """Remove a note that is unchanged since it was read; raise the errors of :meth:`edit`."""
        self._change(study.name, lambda now: _with(now, study.name, seen, ()))

    def _change(self, study: str, change: Callable[[Notes], Notes]) -> None:
        mark = secrets.token_hex(8)
        for _ in range(_TRIES):
            now = self.of(study)
            after = replace(change(now), number=now.number + 1, recent=(*now.recent, mark)[-_RECENT:])
            key = _key(study, after.number)
            if not self._documents.create(key, sealed(with_format(msgspec.json.encode(after)))):
                continue  # another change was first
            numbers = self._numbers(study)
            if max(numbers, default=0) > after.number and mark not in self.of(study).recent:
                self._documents.delete(key)  # so late that its place had been freed
                continue
            with suppress(FedpingError):  # the change is made; the next one removes what this one leaves
                for old in numbers:
                    if old <= after.number - KEPT:
                        self._documents.delete(_key(study, old))
            return
        raise NoteConflict(f"others change the notes of study '{study}' at the same time; nothing was done: try again")

    def _numbers(self, study: str) -> list[int]:
        return [number for name in self._documents.names(f"{study}/notes") if (number := _number(name))]

    def _read(self, key: str, number: int) -> Notes | None:
        """Return a document of notes; None if it was removed meanwhile."""
        data = self._documents.read(key)
        if data is None:
            return None
        if not is_whole(data):
            raise StoreError(self._documents.damaged(key))
        found = self._documents.decode(self._documents.without_format(unsealed(data), key), Notes, key)
        if found.number != number:
            raise StoreError(self._documents.foreign(key, f"has the notes of change {found.number}"))
        return found


def check(note: Note, study: Study) -> None:
    """Check that a note is valid for a study.

    Raises:
        InvalidSettings: its text is empty or too long, or it isn't pinned to one date or version of the study.
    """
    text = note.text
    if not text.strip() or len(text) > MOST_CHARACTERS:
        raise InvalidSettings(f"a note has 1 to {MOST_CHARACTERS:,} characters; this one has {len(text.strip()):,}")
    odd = next(filter(is_odd, text), None)
    if odd is not None:
        raise InvalidSettings(f"the note has the invisible character U+{ord(odd):04X}; remove it")
    if all(sign in _BLANK or unicodedata.category(sign) in (*_ODD, "Zs", "Mn") for sign in text):
        raise InvalidSettings("the note has no character that can be seen; write some words")
    if bool(note.date) == (note.version is not None):
        raise InvalidSettings("a note is pinned to a date or to a version; give one of them")
    if note.date:
        try:
            moment = datetime.fromisoformat(note.date)
        except ValueError as error:
            raise InvalidSettings(f"'{note.date[:40]}' is not a date. Give one such as 2026-03-01T14:30Z") from error
        if moment.tzinfo is None:
            raise InvalidSettings(f"'{note.date[:40]}' has no time zone; end it with Z for UTC")
        if not _EARLIEST <= moment < _LATEST:
            raise InvalidSettings(
                f"'{note.date[:40]}' is not between {_EARLIEST:%Y} and {_LATEST:%Y}; correct the year"
            )
    lines, arms = {line.name for line in study.lines}, {arm.name for arm in study.arms}
    if note.version is not None and not note.line:
        raise InvalidSettings("a version belongs to a line. Name the line")
    if note.line and note.line not in lines:
        raise InvalidSettings(f"study '{study.name}' has no line '{note.line[:80]}'; it has {', '.join(sorted(lines))}")
    if note.arm and note.arm not in arms:
        raise InvalidSettings(f"study '{study.name}' has no arm '{note.arm[:80]}'; give one of its arms, or none")


def is_odd(sign: str) -> bool:
    """Return whether a character is invisible and not allowed."""
    return unicodedata.category(sign) in _ODD and sign not in _ALLOWED


def in_utc(date: str) -> str:
    """Return a date with a time zone converted to UTC, to the second; other texts are returned unchanged."""
    try:
        moment = datetime.fromisoformat(date)
        return date if moment.tzinfo is None else moment.astimezone(UTC).isoformat(timespec="seconds")
    except (ValueError, OverflowError):
        return date


def _with(now: Notes, study: str, seen: Note, instead: tuple[Note, ...]) -> Notes:
    """Return the notes with one note replaced by others, if it is unchanged since it was read."""
    if seen not in now.notes:
        raise NoteConflict(
            f"note {seen.id} of study '{study}' was changed or removed since you read it. Nothing was done; read it "
            "and decide again"
        )
    place = now.notes.index(seen)
    return replace(now, notes=(*now.notes[:place], *instead, *now.notes[place + 1 :]))


def _key(study: str, number: int) -> str:
    return f"{study}/notes/{number}.json"


def _number(name: str) -> int:
    """Return the number in a document's file name; 0 for a foreign name."""
    digits = name.removesuffix(".json")
    return int(digits) if name.endswith(".json") and digits.isascii() and digits.isdigit() and len(digits) < 10 else 0
