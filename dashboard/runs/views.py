"""The Experiments page: the list of runs, the form and the text that describe one, and the operations on a run."""

from __future__ import annotations

from flask import Blueprint, Response, redirect, render_template, request, url_for
from werkzeug.wrappers import Response as AnyResponse

from fedping.dashboard.runs.describing import describing
from fedping.dashboard.runs.labels import forget, label, labelled
from fedping.dashboard.runs.listing import RunsFeed, chosen_rows, looked_at, metric_columns, row
from fedping.dashboard.runs.places import place
from fedping.dashboard.runs.registry import RunBook
from fedping.dashboard.settings import Services


def blueprint(services: Services) -> Blueprint:
    """Return the page; from here on, waiting runs are started."""
    views = Blueprint("runs", __name__, url_prefix="/runs", template_folder="templates", static_folder="static")
    book = RunBook(services.settings.runs, services.settings.runs_at_once)
    book.start_waiting()
    _list(views, services, book)
    describing(views, book, services.settings.data)
    _actions(views, book)
    return views


def _list(views: Blueprint, services: Services, book: RunBook) -> None:
    @views.get("/")
    def index() -> str:
        rows = [row(book.folder, where) for where in looked_at(book)]
        asked = {name: request.args.get(name, "") for name in ("q", "tag", "sort", "backwards")}
        shown = chosen_rows(rows, asked["q"], asked["tag"], asked["sort"], bool(asked["backwards"]))
        return render_template(
            "runs/list.html",
            rows=shown,
            all=len(rows),
            columns=metric_columns(rows),
            tags=sorted({tag for each in rows for tag in each["tags"]}),
            asked=asked,
            at_most=book.at_most,
        )

    @views.get("/feed")
    def feed() -> Response:
        return services.streams.answer(RunsFeed(services.settings.runs, services.settings.runs_at_once))

    @views.get("/<id>/row")
    def one_row(id: str) -> str:
        shown = row(book.folder, place(book.folder, id))
        columns = request.args.get("columns", "")
        return render_template("runs/row.html", run=shown, columns=[each for each in columns.split(",") if each])

    @views.post("/<id>/labels")
    def labels(id: str) -> AnyResponse:
        label(
            book.folder, place(book.folder, id).id, labelled(request.form.get("tags", ""), request.form.get("note", ""))
        )
        return redirect(f"/runs/{id}/")


def _actions(views: Blueprint, book: RunBook) -> None:
    @views.post("/<id>/stop")
    def stop(id: str) -> AnyResponse:
        book.stop(id)
        return _done(id)

    @views.post("/<id>/go-on")
    def go_on(id: str) -> AnyResponse:
        book.go_on(id)
        return _done(id)

    @views.get("/<id>/delete")
    def ask_to_delete(id: str) -> str:
        return render_template("runs/delete.html", run=row(book.folder, place(book.folder, book.run(id).id)))

    @views.post("/<id>/delete")
    def delete(id: str) -> AnyResponse:
        book.delete(id)
        forget(book.folder, id)
        return redirect(url_for("runs.index"))


def _done(id: str) -> AnyResponse:
    """Answer a script with nothing, and a form with the page that it was sent from."""
    if request.is_json:
        return Response(status=204)
    return redirect(url_for("runs.index") if "list" in request.form else f"/runs/{id}/")
