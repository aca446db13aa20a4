"""The addresses of the Live page."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from functools import partial
from typing import Any, TypeVar, cast, get_args

import msgspec
from flask import Blueprint, Response, redirect, render_template, request, url_for
from msgspec import Struct
from werkzeug.wrappers import Response as AnyResponse

from fedping.dashboard.answers import as_file, as_json, sentence_of
from fedping.dashboard.changes.recording import changed
from fedping.dashboard.live.decisions import Choice, Decision, RollbackRequest, decide, plan, plan_for_held, roll_back
from fedping.dashboard.live.feed import (
    LineFeed,
    Lines,
    Paced,
    StudiesFeed,
    StudySummary,
    part_of_history,
    rejection_logs,
    studies_in,
    whole_history,
)
from fedping.dashboard.live.history import KnownLine
from fedping.dashboard.live.lineage import lineage_of
from fedping.dashboard.live.refused import WORDS, newest_refusals
from fedping.dashboard.live.rows import rows_as_csv
from fedping.dashboard.settings import Services
from fedping.model_store import ModelStore, StoreError, Unreadable, open_store
from fedping.protocol import __version__
from fedping.protocol.errors import FedpingError, InvalidSettings
from fedping.protocol.features import FEATURES
from fedping.protocol.notation import utc_now
from fedping.protocol.spec import Name
from fedping.server_jobs.participants import lists_clients
from fedping.server_jobs.privacy.card import Card, as_document, card_of
from fedping.server_jobs.warm_start import start_version

T = TypeVar("T", bound=Struct)


def blueprint(services: Services) -> Blueprint:
    """Return the views of the Live page."""
    # "-" is not a valid study name, while "static" could be one
    views = Blueprint(
        "live",
        __name__,
        url_prefix="/live",
        template_folder="templates",
        static_folder="static",
        static_url_path="/-",
    )
    lines = Lines(services.settings)
    root = services.settings.store
    studies = partial(studies_in, lines)
    followed = StudiesFeed(Paced(studies))

    @views.get("/")
    def overview() -> AnyResponse | str:
        given = _overview(studies)
        found = given["studies"]
        if len(found) == 1 and len(found[0].lines) == 1:
            return redirect(url_for("live.line", study=found[0].name, line=found[0].lines[0].name))
        return render_template("live/overview.html", **given)

    @views.get("/studies")
    def studies_alone() -> str:
        return render_template("live/studies.html", **_overview(studies))

    @views.get("/changes")
    def studies_changes() -> Response:
        return services.streams.answer(followed)

    @views.get("/<study>/<line>/")
    def line(study: str, line: str) -> str:
        store = open_store(root)
        _known(store, study, line)
        found = store.study(study)
        others = len(store.studies.names()) > 1 or len(found.lines) > 1
        return render_template(
            "live/line.html",
            study=study,
            line=line,
            reasons=WORDS,
            others=others,
            private=found.is_private,
            features=found.line(line).spec.model == FEATURES,
            lists=lists_clients(found),
            about=found,
        )

    @views.get("/<study>/privacy")
    def privacy(study: str) -> str:
        return render_template("live/card.html", card=_card(open_store(root), study))

    @views.get("/<study>/privacy.json")
    def privacy_document(study: str) -> Response:
        return as_json(as_document(_card(open_store(root), study)))

    @views.get("/<study>/<line>/changes")
    def changes(study: str, line: str) -> Response:
        with contextlib.suppress(Unreadable):  # the feed reports it, and since when
            _known(open_store(root), study, line)
        return services.streams.answer(LineFeed(study, line, lines))

    @views.get("/<study>/<line>/history.json")
    def history(study: str, line: str) -> Response:
        _known(open_store(root), study, line)
        return as_json(whole_history(lines, study, line))

    @views.get("/<study>/<line>/part.json")
    def part(study: str, line: str) -> Response:
        _known(open_store(root), study, line)
        first, last = (request.args.get(name, type=int) for name in ("from", "to"))
        if first is None or last is None:
            raise FedpingError("'from' and 'to' must be numbers of versions, as in part.json?from=100&to=400")
        return as_json(part_of_history(lines, study, line, first, last))

    @views.get("/<study>/<line>/history.csv")
    def table(study: str, line: str) -> Response:
        _known(open_store(root), study, line)
        text = lines.of(study, line).history.look(_as_csv)
        return as_file(text, "text/csv", f"{study}-{line}.csv")

    @views.get("/<study>/<line>/versions/<int(max=999999999):number>.json")
    def version(study: str, line: str, number: int) -> Response:
        store = open_store(root)
        _known(store, study, line)
        return as_json(lineage_of(store, study, line, number))

    @views.get("/<study>/<line>/refused.json")
    def refused(study: str, line: str) -> Response:
        store = open_store(root)
        _known(store, study, line)
        if store.study(study).is_private:  # the time of a rejection could reveal the client
            return as_json({"newest": []})
        return as_json({"newest": newest_refusals(rejection_logs(services.settings), study)})

    @views.get("/<study>/<line>/clients.json")
    def clients(study: str, line: str) -> Response:
        store = open_store(root)
        _known(store, study, line)
        return as_json(lines.of(study, line).taking_part())

    @views.get("/<study>/<line>/rollback.json")
    def rollback_plan(study: str, line: str) -> Response:
        store = open_store(root)
        _known(store, study, line)
        try:
            to = int(request.args.get("to", ""))
        except ValueError:
            raise FedpingError("'to' must be the number of a version, as in rollback.json?to=41") from None
        return as_json(plan(store, study, line, to))

    @views.post("/<study>/<line>/rollback")
    def rollback(study: str, line: str) -> Response:
        from fedping.server_jobs.round import noting

        store = open_store(root)
        _known(store, study, line)
        wanted = _body(RollbackRequest)
        with noting(store, services.settings.landing, study, line):
            version = roll_back(store, study, line, wanted, created=utc_now(), code_version=__version__)
        changed(before=_version(version.parent), after=f"{_version(version.iteration)}, repeats version {wanted.to}")
        return as_json({"published": version.iteration, "repeats": wanted.to})

    @views.get("/<study>/<line>/held.json")
    def held_plan(study: str, line: str) -> Response:
        store = open_store(root)
        _known(store, study, line)
        choice = request.args.get("choice", "")
        if choice not in get_args(Choice):
            raise FedpingError("'choice' must be release or discard, as in held.json?choice=release")
        return as_json(plan_for_held(store, study, line, cast(Choice, choice)))

    @views.post("/<study>/<line>/held")
    def held(study: str, line: str) -> Response:
        from fedping.server_jobs.round import noting

        store = open_store(root)
        _known(store, study, line)
        decision = _body(Decision)
        with noting(store, services.settings.landing, study, line):
            version = decide(store, study, line, decision, created=utc_now(), code_version=__version__)
        made = "released" if decision.choice == "release" else "in place of the held one"
        changed(before=_version(version.parent), after=f"{_version(version.iteration)}, {made}")
        return as_json({"published": version.iteration})

    return views


def _version(number: int | None) -> str:
    """Return a version in words, for the list of changes."""
    return f"version {number}"


def _overview(studies: Callable[[], list[StudySummary]]) -> dict[str, Any]:
    """Return the contents of the page of all studies."""
    try:
        return {"studies": studies(), "trouble": ""}
    except (FedpingError, OSError) as error:
        return {"studies": [], "trouble": sentence_of(error)}


def _known(store: ModelStore, study: str, line: str) -> None:
    """Raise :class:`StoreError` if there is no such line; an address may contain anything, such as '..' for a study."""
    try:
        store.study(msgspec.convert(study, Name)).line(line)
    except msgspec.ValidationError as error:
        raise StoreError(f"'{study}' is not a study's name; go back to the start") from error
    except InvalidSettings as error:
        raise StoreError(str(error)) from error


def _card(store: ModelStore, study: str) -> Card:
    """Return the privacy card of a study of the store; an address may contain anything."""
    try:
        found = store.study(msgspec.convert(study, Name))
        return card_of(found, start_version(store, found))
    except msgspec.ValidationError as error:
        raise StoreError(f"'{study}' is not a study's name; go back to the start") from error


def _as_csv(known: KnownLine) -> str:
    arms = [arm.name for arm in known.study.arms if arm.line == known.line.name]
    return rows_as_csv(known.all_rows(), known.shown, arms, known.links.described)


def _body(kind: type[T]) -> T:
    try:
        return msgspec.json.decode(request.get_data(), type=kind)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise InvalidSettings(f"the body is not valid for this address: {error}; correct it") from error
