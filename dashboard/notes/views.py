"""The addresses of a study's notes; the Live and Results pages show them and let people write them."""

from __future__ import annotations

import csv
import io
from hashlib import sha256
from typing import Any

import msgspec
from flask import Blueprint, Response, g, request
from msgspec import Struct
from msgspec.structs import asdict, replace

from fedping.dashboard.answers import FRESH, as_file, as_json, unknown_study
from fedping.dashboard.changes.recording import changed
from fedping.dashboard.changes.views import harmless
from fedping.dashboard.settings import Services
from fedping.model_store import ModelStore, open_store
from fedping.model_store.notes import NoteConflict, in_utc
from fedping.protocol.errors import FedpingError, InvalidSettings
from fedping.protocol.notation import milliseconds_of, utc_now
from fedping.protocol.notes import Note
from fedping.protocol.storage import Stamp
from fedping.protocol.study import Study

COLUMNS = ("id", "date", "line", "version", "arm", "text", "by", "written", "edited_by", "edited")

_REMEMBERED = 10_000
"""Maximum number of versions whose times are cached."""


class Written(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A note as sent by a page; for an edit or removal, ``mark`` identifies the state that the page has shown."""

    text: str = ""
    date: str = ""
    version: int | None = None
    line: str = ""
    arm: str = ""
    mark: str = ""


def blueprint(services: Services) -> Blueprint:
    """Return the views of notes."""
    views = Blueprint("notes", __name__, url_prefix="/notes", template_folder="templates")
    root = services.settings.store
    times: dict[tuple[str, str, int], tuple[Stamp | None, int]] = {}

    def study_of(name: str) -> tuple[ModelStore, Study]:
        """Return a study that the store lists, so that a name in an address is never used as a path."""
        store = open_store(root)
        if name not in (names := store.studies.names()):
            raise unknown_study(name, names)
        return store, store.study(name)

    def moment(store: ModelStore, study: str, note: Note) -> int | None:
        """Return the time of a note's date or version in Unix ms; None if the version is no longer known."""
        if note.version is None:
            return milliseconds_of(note.date)
        key = (study, note.line, note.version)
        stamp, (known, at) = store.versions.stamp(*key), times.get(key, (None, 0))
        if stamp is not None and stamp == known:  # in a restored store, the version may be another one
            return at
        try:
            at = milliseconds_of(store.versions.outcome(*key).created)
        except FedpingError:
            return None
        if len(times) >= _REMEMBERED:
            times.clear()
        times[key] = stamp, at
        return at

    def checked(store: ModelStore, study: Study, written: Written) -> Note:
        """Return a note as it would be stored, if its version exists."""
        text = "\n".join(row.rstrip() for row in written.text.replace("\t", " ").splitlines()).strip()
        note = Note(id=1, text=text, date=in_utc(written.date), version=written.version, line=written.line)
        note = replace(note, arm=written.arm, by=g.visitor.name, written=utc_now())
        if note.version is not None and note.line in {line.name for line in study.lines}:
            newest = store.lines.newest(study.name, note.line)
            if not 0 <= note.version <= newest or moment(store, study.name, note) is None:
                raise InvalidSettings(
                    f"line '{note.line}' has no version {note.version}; pin the note to a version up to {newest}, or "
                    "to a date"
                )
        return note

    @views.get("/<study>/notes.json")
    def document(study: str) -> Response:
        store, found = study_of(study)
        state = store.notes.state(study)
        if request.args.get("known") == state:
            return Response(status=204, headers=FRESH)
        notes = store.notes.of(study)
        rows = [{**asdict(each), "at_ms": moment(store, study, each), "mark": mark(each)} for each in notes.notes]
        return as_json({"study": found.name, "number": notes.number, "state": state, "notes": rows})

    @views.get("/<study>/notes.csv")
    def table(study: str) -> Response:
        store, _ = study_of(study)
        return as_file(as_csv([asdict(each) for each in store.notes.of(study).notes]), "text/csv", f"{study}-notes.csv")

    @views.post("/<study>/")
    def add(study: str) -> Response:
        store, found = study_of(study)
        note = store.notes.add(found, checked(store, found, _body()))
        changed(after=in_words(note))
        return as_json({"id": note.id})

    @views.post("/<study>/<int(max=999999999):number>")
    def edit(study: str, number: int) -> Response:
        store, found = study_of(study)
        written = _body()
        before = _seen(store, study, number, written.mark)
        note = checked(store, found, written)
        note = replace(
            note, id=number, by=before.by, written=before.written, edited_by=g.visitor.name, edited=note.written
        )
        store.notes.edit(found, before, note)
        changed(before=in_words(before), after=in_words(note))
        return as_json({"id": number})

    @views.post("/<study>/<int(max=999999999):number>/remove")
    def remove(study: str, number: int) -> Response:
        store, found = study_of(study)
        before = _seen(store, study, number, _body().mark)
        store.notes.remove(found, before)
        changed(before=in_words(before))
        return as_json({"id": number})

    return views


def mark(note: Note) -> str:
    """Return a digest of a note; a page sends it to identify the state that it has shown."""
    return sha256(msgspec.json.encode(note)).hexdigest()[:16]


def in_words(note: Note) -> str:
    """Return a note on one line, for the list of changes."""
    pin = note.date if note.version is None else f"version {note.version}"
    about = ", ".join(each for each in (pin, note.line and f"line {note.line}", note.arm and f"arm {note.arm}") if each)
    return f"note {note.id} at {about}: {note.text}"


def as_csv(rows: list[dict[str, Any]]) -> str:
    """Return notes as CSV (RFC 4180); texts that a spreadsheet would evaluate get a leading apostrophe."""
    text = io.StringIO()
    writer = csv.DictWriter(text, fieldnames=COLUMNS)
    writer.writeheader()
    writer.writerows({name: harmless(row[name]) for name in COLUMNS} for row in rows)
    return text.getvalue()


def _seen(store: ModelStore, study: str, number: int, seen: str) -> Note:
    """Return a note, if it is still in the state ``seen`` that a page has shown.

    Raises:
        NoteConflict: the note was changed or removed since.
    """
    found = next((each for each in store.notes.of(study).notes if each.id == number and mark(each) == seen), None)
    if found is None:
        raise NoteConflict(
            f"note {number} of study '{study}' was changed or removed in the meantime, so your change was not made; "
            "read it and decide again"
        )
    return found


def _body() -> Written:
    try:
        return msgspec.json.decode(request.get_data(), type=Written)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise InvalidSettings(f"the body is not valid for this address: {error}; correct it") from error
