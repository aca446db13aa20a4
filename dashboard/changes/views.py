"""The page of changes: those made with the dashboard, and the entries of the studies' histories, newest first."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator
from heapq import merge
from itertools import islice
from typing import Any

import msgspec
from flask import Blueprint, Response, render_template, request

from fedping.dashboard.answers import as_file, as_json, unknown_study
from fedping.dashboard.changes.log import Change, ChangeLog
from fedping.dashboard.settings import Services
from fedping.model_store import open_store
from fedping.model_store.documents import MissingStore
from fedping.model_store.history import Entry
from fedping.protocol.errors import FedpingError, InvalidSettings
from fedping.protocol.location import Place
from fedping.protocol.spec import Name

ON_A_PAGE = 100
MOST_ROWS = 10_000
"""Maximum number of rows in a downloaded file."""

COLUMNS = ("at", "by", "role", "action", "what", "about", "before", "after", "outcome", "reason")


def blueprint(services: Services) -> Blueprint:
    """Return the views of the page of changes."""
    views = Blueprint("changes", __name__, url_prefix="/changes", template_folder="templates")
    settings = services.settings

    def found(most: int) -> tuple[list[Change], list[str]]:
        study, before = request.args.get("study", ""), request.args.get("before", "")
        log = ChangeLog(settings.changes_folder)
        rows, troubles = changes_in(log, settings.store, study=study, before=before, most=most)
        if study and not (rows or before):
            _check_known(settings.store, study)
        return rows, troubles

    @views.get("/")
    def index() -> str:
        rows, troubles = found(ON_A_PAGE + 1)
        older = rows[ON_A_PAGE - 1].id if len(rows) > ON_A_PAGE else ""
        study = request.args.get("study", "")
        return render_template("changes/index.html", rows=rows[:ON_A_PAGE], troubles=troubles, older=older, study=study)

    @views.get("/changes.json")
    def document() -> Response:
        rows, troubles = found(MOST_ROWS)
        return as_json({"changes": [as_row(each) for each in rows], "unreadable": troubles})

    @views.get("/changes.csv")
    def table() -> Response:
        return as_file(as_csv([as_row(each) for each in found(MOST_ROWS)[0]]), "text/csv", "changes.csv")

    return views


def _check_known(store: Place, study: str) -> None:
    """Raise :class:`NotThere` if the store has no such study; do nothing if the store can't be read."""
    try:
        names = open_store(store).studies.names()
    except FedpingError:
        return
    if study not in names:
        raise unknown_study(study, names)


def changes_in(
    log: ChangeLog, store: Place, *, study: str = "", before: str = "", most: int
) -> tuple[list[Change], list[str]]:
    """Return changes, newest first, and an error message for each study history that can't be read.

    Args:
        log: the changes made by the dashboard.
        store: the store whose studies' histories are added; it may not exist.
        study: only changes about this study; empty for all.
        before: only changes older than the one with this id, which need not exist; empty for all.
        most: maximum number of changes.
    """
    entries, troubles = _histories(store, study)
    both: Iterator[Change] = merge(log.newest_first(study), entries, key=lambda one: one.id, reverse=True)
    if before:
        both = _following(both, before)
    return list(islice(both, most)), troubles


def _following(changes: Iterator[Change], id: str) -> Iterator[Change]:
    """Yield the changes that are older than the one with this id, which need not exist."""
    for each in changes:
        if each.id < id:
            yield each
        if each.id <= id:
            break
    yield from changes


def _histories(store: Place, study: str) -> tuple[list[Change], list[str]]:
    """Return the entries of the studies' histories, newest first, and an error message for each unreadable history.

    Both lists are empty if no store exists.
    """
    found: list[Change] = []
    troubles = []
    try:
        opened = open_store(store)
        names = [study] if study else opened.studies.names()
    except MissingStore:
        return [], []
    except FedpingError as error:
        return [], [str(error)]
    for name in names:
        try:
            msgspec.convert(name, Name)
            found += [_of_history(name, entry) for entry in opened.studies.history(name)]
        except msgspec.ValidationError as error:
            raise InvalidSettings(f"'{name[:80]}' is not a study's name; remove it from the address") from error
        except FedpingError as error:
            troubles.append(str(error))
    return sorted(found, key=lambda one: one.id, reverse=True), troubles


_KINDS = {
    "running": "resume a study",
    "paused": "pause a study",
    "ended": "end a study",
    "changed": "change a study's settings",
    "pruned": "remove old pings",
    "forgotten": "remove a client's pings",
}


def _of_history(study: str, entry: Entry) -> Change:
    said = "; ".join(entry.told) or (entry.kind if entry.kind in ("running", "paused", "ended") else "")
    return Change(
        id=f"{entry.at}-{study}-{entry.number}",
        at=entry.at,
        by=entry.by,
        role="command line",
        action=f"study.{entry.kind}",
        what=_KINDS[entry.kind],
        about=study,
        after=f"{said}{' because: ' if said else 'because: '}{entry.because}" if entry.because else said,
        outcome="done",
    )


def as_row(change: Change) -> dict[str, str]:
    """Return a change as a row: its values by column."""
    return {name: getattr(change, name) for name in COLUMNS}


def as_csv(rows: list[dict[str, str]]) -> str:
    """Return rows as CSV (RFC 4180); texts that a spreadsheet would evaluate get a leading apostrophe."""
    text = io.StringIO()
    writer = csv.DictWriter(text, fieldnames=COLUMNS)
    writer.writeheader()
    writer.writerows({name: harmless(value) for name, value in row.items()} for row in rows)
    return text.getvalue()


def harmless(value: Any) -> Any:
    """Return a value, with a leading apostrophe if a spreadsheet would take it for a formula."""
    return f"'{value}" if isinstance(value, str) and value[:1] in ("=", "+", "-", "@", "\t", "\r") else value
