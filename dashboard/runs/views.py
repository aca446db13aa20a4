"""The Experiments page: the list of runs, the form or text that describes a run, and the operations on runs."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from flask import Blueprint, Response, jsonify, redirect, render_template, request, url_for
from markupsafe import Markup, escape
from werkzeug.datastructures import MultiDict
from werkzeug.wrappers import Response as AnyResponse

from fedping.dashboard.answers import as_json, wants_page
from fedping.dashboard.changes.recording import changed
from fedping.dashboard.runs.choosing import ON_A_PAGE, View, condition, view_of
from fedping.dashboard.runs.form.nodes import Node, choices_of, fields_of
from fedping.dashboard.runs.form.schema import KIND, laboratory_form, study_form
from fedping.dashboard.runs.form.values import Arm, Filled, arms_of, filled_form, input_of, settings, tables_of
from fedping.dashboard.runs.form.words import label
from fedping.dashboard.runs.index import COMPARISONS, OWN, SETTINGS, index_of
from fedping.dashboard.runs.judging import Judged, Preset, Problem, judge_all, preset, presets
from fedping.dashboard.runs.listing import MOST_AXES, RunsFeed, listed, look, one_item, points_of, usual_axes
from fedping.dashboard.runs.places import Labels, forget, labelled, labels_of, place, write_labels
from fedping.dashboard.runs.registry import RunBook, UnknownRun
from fedping.dashboard.settings import Services
from fedping.protocol.errors import FedpingError, InvalidSettings, as_sentence
from fedping.protocol.settings_file import NotToml, tables_in, toml_text


def blueprint(services: Services) -> Blueprint:
    """Return the views of the Experiments page, and start waiting runs."""
    views = Blueprint("runs", __name__, url_prefix="/runs", template_folder="templates", static_folder="static")
    book = RunBook(services.settings.runs, services.settings.runs_at_once)
    book.start_waiting()
    _list(views, services, book)
    describing(views, book, services.settings.data)
    _actions(views, book)
    return views


def _list(views: Blueprint, services: Services, book: RunBook) -> None:
    @views.get("/")
    def index() -> str | AnyResponse:
        view = view_of(request.args)
        if _is_untidy(request.args):
            return redirect(view.but(page=view.page, where=(*view.where, *_added(request.args))))
        with index_of(book.folder).request():
            index = look(book)
            page = listed(book.folder, view)
            return render_template(
                "runs/list.html",
                page=page,
                view=view,
                tags=index.tags(),
                conditions=[(each, condition(each)) for each in view.where],
                known=index.columns(),
                at_most=book.at_most,
                own=OWN,
                comparisons=COMPARISONS,
                prefix=SETTINGS,
                on_a_page=ON_A_PAGE,
            )

    @views.get("/rows")
    def rows() -> str:
        view = view_of(request.args)
        with index_of(book.folder).request():
            look(book)
            return render_template("runs/rows.html", page=listed(book.folder, view), view=view)

    @views.get("/drawing")
    def drawing() -> str:
        view = view_of(request.args)
        with index_of(book.folder).request():
            index = look(book)
            axes = [each for each in request.args.getlist("axis") if each] or usual_axes(book.folder, view)
            return render_template("runs/drawing.html", view=view, axes=axes, known=index.columns(), most=MOST_AXES)

    @views.get("/points.json")
    def points() -> Response:
        view = view_of(request.args)
        with index_of(book.folder).request():
            look(book)
            return as_json(points_of(book.folder, view, request.args.getlist("axis")))

    @views.get("/feed")
    def feed() -> Response:
        return services.streams.answer(RunsFeed(book.folder, book.at_most, view_of(request.args)))

    @views.get("/<id>/row")
    def one_row(id: str) -> str:
        columns = [each for each in request.args.get("columns", "").split(",") if each]
        item = one_item(book.folder, place(book.folder, id), columns)
        return render_template("runs/row.html", item=item, columns=columns, view=View())

    @views.post("/<id>/labels")
    def labels(id: str) -> AnyResponse:
        run = place(book.folder, id).id
        before, after = (
            labels_of(book.folder, run),
            labelled(request.form.get("tags", ""), request.form.get("note", "")),
        )
        write_labels(book.folder, run, after)
        changed(before=_labels_in_words(before), after=_labels_in_words(after))
        return redirect(f"/runs/{id}/")


_ADDED = ("add_column", "add_is", "add_value")
"""Fields of the form that adds a condition."""


def _is_untidy(args: MultiDict[str, str]) -> bool:
    """Return whether a form has sent fields that a clean address omits: empty ones, or parts of a condition."""
    return any(name in args for name in _ADDED) or any(not value for value in args.values())


def _added(args: MultiDict[str, str]) -> list[str]:
    column, is_, value = (args.get(name, "").strip() for name in _ADDED)
    return [f"{column} {is_} {value}"] if column and is_ and value else []


def _actions(views: Blueprint, book: RunBook) -> None:
    @views.post("/<id>/stop")
    def stop(id: str) -> AnyResponse:
        state = place(book.folder, id).state
        book.stop(id)
        changed(before=state, after="stopping")
        return _done(id)

    @views.post("/<id>/go-on")
    def go_on(id: str) -> AnyResponse:
        state = place(book.folder, id).state
        book.resume(id)
        changed(before=state, after="continued")
        return _done(id)

    @views.get("/<id>/delete")
    def ask_to_delete(id: str) -> str:
        return render_template("runs/delete.html", run=book.run(id))

    @views.post("/<id>/delete")
    def delete(id: str) -> AnyResponse:
        run = place(book.folder, id)
        book.delete(id)
        forget(book.folder, id)
        changed(before=f"{run.title} ({run.state})", after="deleted")
        return redirect(url_for("runs.index"))


def _labels_in_words(labels: Labels) -> str:
    """Return a run's labels in words, for the list of changes."""
    tags = f"tags: {', '.join(labels.tags)}" if labels.tags else ""
    return "; ".join(each for each in (tags, labels.note and f"note: {labels.note}") if each)


def _done(id: str) -> AnyResponse:
    """Answer a script with an empty response, and a form with a redirect to its page."""
    if request.is_json:
        return Response(status=204)
    return redirect(url_for("runs.index") if "list" in request.form else f"/runs/{id}/")


FIRST = "breast_cancer"
"""The preset in a new form: it takes seconds, and has several variants."""

_CODE = re.compile(r"``([^`]+)``")


def describing(views: Blueprint, book: RunBook, data: Sequence[Path]) -> None:
    """Add the pages; ``data`` are the folders whose files descriptions may name."""
    views.add_app_template_filter(helped, "helped")
    views.add_app_template_filter(has_input, "given")
    views.add_app_template_filter(wrong_in, "wrong_in")

    @views.get("/new")
    def new() -> str | AnyResponse:
        return _form_or_text(_begin(book))

    @views.post("/new")
    def new_from_text() -> str | AnyResponse:
        if "text" in request.form:
            return _form_or_text(Beginning(request.form["text"], request.form.get("title", "")))
        return _form_again()

    @views.get("/text")
    def text() -> str:
        return _text_page(_begin(book))

    @views.post("/text")
    def text_from_form() -> str:
        described, problem = _described(request.form)
        return _text_page(Beginning(described, request.form.get("title", "")), [problem] if problem else [])

    @views.post("/describe")
    def describe() -> Response:
        said = request.get_json()
        if not isinstance(said, dict):
            raise FedpingError("the description is not a JSON object; send the form's fields by name")
        return jsonify(_verdict({str(key): str(value) for key, value in said.items()}, data))

    @views.post("/start")
    def start() -> AnyResponse | tuple[str, int]:
        described, problem = _described(request.form)
        judged: Judged | list[Problem] = [problem] if problem else judge_all(described, data)
        if not isinstance(judged, Judged):
            if not wants_page(request):
                raise InvalidSettings(judged[0].sentence)
            title = request.form.get("title", "")
            again = _text_page(Beginning(described, title), judged) if "text" in request.form else None
            return again or _form_page(_filled(request.form), title, judged), 400
        title = request.form.get("title", "").strip() or judged.name
        run = book.start(described.encode(), title[:200], judged.beside)
        changed(about=run.id, after=f"started: {run.title}")
        return redirect(f"/runs/{run.id}/")


def helped(text: str) -> Markup:
    """Return a docstring as HTML, with quoted parts as code."""
    return Markup(_CODE.sub(r"<code>\1</code>", str(escape(text))))


def has_input(nodes: Sequence[Node], values: Mapping[str, str]) -> bool:
    """Return whether a form sets any of these settings to something other than its default."""
    there = tuple(nodes)
    usual = {field.name: "on" if field.default == "true" else "" for field in fields_of(there)}
    usual |= {choice.name: choice.default for choice in choices_of(there)}
    return any(values.get(name, said) not in ("", said) for name, said in usual.items())


def wrong_in(nodes: Sequence[Node], wrong: Mapping[str, str]) -> bool:
    """Return whether any of these settings has an error."""
    there = tuple(nodes)
    return not wrong.keys().isdisjoint([*(f.name for f in fields_of(there)), *(c.name for c in choices_of(there))])


class Beginning(NamedTuple):
    """The initial contents of a form: a description, its title, and the preset's id if it is a shipped experiment."""

    text: str
    title: str
    preset: str = ""


def _begin(book: RunBook) -> Beginning:
    """Return the description to start with, from the address: a run, a preset, or the default."""
    if "like" in request.args:
        run = book.run(request.args["like"])
        try:
            return Beginning(run.description.read_text(encoding="utf-8"), run.title)
        except (OSError, UnicodeDecodeError) as error:
            raise UnknownRun(
                f"the description of run '{run.id}', {run.description}, can't be read; start from an example"
            ) from error
    chosen = preset(request.args.get("from", FIRST))
    return Beginning(chosen.text, "", chosen.id)


def _form_or_text(begun: Beginning) -> str | AnyResponse:
    """Return the page with a description's form, or with its text if the form cannot show it."""
    try:
        tables = tables_in(begun.text, "this")
    except NotToml:
        return _text_page(begun)
    filled = filled_form(tables)
    if filled.unplaced:
        note = f"The form has no field for {', '.join(filled.unplaced)}, so the description is shown as text."
        return _text_page(begun, note=note)
    return _form_page(filled, begun.title, begun=begun.preset)


def _form_again() -> str:
    """Return the page with the form as filled in, with one more variant or setting if requested."""
    filled = _filled(request.form)
    more, _, number = request.form.get("add", "").partition(".")
    arms = list(filled.arms)
    if more == "arm" and not number:
        arms.append(Arm(""))
    blank = next((place for place in range(len(arms)) if str(place) == number), None)
    return _form_page(Filled(filled.values, arms), request.form.get("title", ""), blank=blank)


def _filled(form: Mapping[str, str]) -> Filled:
    return Filled({key: value for key, value in form.items() if not key.startswith("arm.")}, arms_of(form))


def _described(form: Mapping[str, str]) -> tuple[str, Problem | None]:
    """Return the description in a posted form as text, and the problem if the form cannot be converted."""
    if "text" in form:
        return form["text"].replace("\r\n", "\n"), None
    try:
        return toml_text(tables_of(form, arms_of(form))), None
    except InvalidSettings as error:
        return "", Problem(str(error))


def _verdict(form: Mapping[str, str], data: Sequence[Path]) -> Mapping[str, Any]:
    """Return a description's data for the page's script: the file and its size, or the errors with their places."""
    text, problem = _described(form)
    judged: Judged | list[Problem] = [problem] if problem else judge_all(text, data)
    if isinstance(judged, Judged):
        return {"text": text, "size": _size(judged), "problems": []}
    messages = _of_text(judged) if "text" in form else _of_form(judged, form, arms_of(form))
    return {"text": text, "size": "", "problems": [each._asdict() for each in messages]}


class _Told(NamedTuple):
    """A problem as shown on a page: its sentence, the input that it is about (if any), and the input's label."""

    sentence: str
    input: str | None
    label: str


def _of_form(problems: Sequence[Problem], form: Mapping[str, str], arms: Sequence[Arm]) -> list[_Told]:
    return [_Told(as_sentence(each.sentence), input_of(each, form, arms), _label(each)) for each in problems]


def _label(problem: Problem) -> str:
    shown = label(problem.path) if problem.path else "Its name"
    return f"{problem.variant}, {shown}" if problem.variant is not None else shown


def _of_text(problems: Sequence[Problem]) -> list[_Told]:
    return [_Told(as_sentence(each.sentence), "text", "The file") for each in problems]


def _size(judged: Judged) -> str:
    if judged.kind == "study":
        return f"the study {judged.name} with arms {', '.join(judged.variants)}"
    arms, seeds = len(judged.variants), judged.seeds
    return f"{arms} variant{'s' * (arms > 1)} × {seeds} seed{'s' * (seeds > 1)}"


def _form_page(
    filled: Filled, title: str, problems: Sequence[Problem] = (), blank: int | None = None, begun: str = ""
) -> str:
    form = filled.values
    messages = _of_form(problems, form, filled.arms)
    try:
        text = toml_text(tables_of(form, filled.arms))
    except FedpingError:
        text = ""
    return render_template(
        "runs/new.html",
        cards=study_form() if form.get(KIND) == "study" else laboratory_form(),
        values=form,
        arms=filled.arms,
        blank=blank,
        settings=settings(),
        hints=_hints(),
        title=title,
        text=text,
        problems=messages,
        wrong={each.input: each.sentence for each in messages if each.input},
        presets=_by_kind(),
        begun=begun,
    )


@cache
def _hints() -> Mapping[str, Mapping[str, Any]]:
    """Return the input hints for the value of each setting that a variant can change."""
    return {
        path: {
            "values": [value for value, _ in each.options] or (["true", "false"] if each.widget == "flag" else []),
            "example": each.example or (f"usually {each.default}" if each.default else ""),
        }
        for path, each in settings().items()
    }


def _text_page(begun: Beginning, problems: Sequence[Problem] = (), note: str | None = None) -> str:
    return render_template(
        "runs/text.html",
        text=begun.text,
        title=begun.title,
        problems=_of_text(problems),
        note=note,
        presets=_by_kind(),
        begun=begun.preset,
    )


def _by_kind() -> Mapping[str, list[Preset]]:
    words = {"laboratory": "Laboratory", "study": "Studies"}
    return {shown: [each for each in presets() if each.kind == kind] for kind, shown in words.items()}
