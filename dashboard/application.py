"""The Flask application: the pages, each from its folder, behind the guard."""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from dataclasses import replace
from http import HTTPStatus

from flask import Flask, Response, jsonify, redirect, render_template, request, url_for
from flask_wtf.csrf import generate_csrf
from markupsafe import Markup
from werkzeug.exceptions import HTTPException
from werkzeug.wrappers import Response as AnyResponse

from fedping.dashboard import studies
from fedping.dashboard.answers import MOST, NotThere, WrongState, sentence_of, wants_page
from fedping.dashboard.feeds import Streams
from fedping.dashboard.guard import Closed, Refused, guard
from fedping.dashboard.runs.places import Place
from fedping.dashboard.settings import DashboardSettings, Services
from fedping.dashboard.studies import StudiesOfRuns
from fedping.model_store import StoreError, open_store
from fedping.model_store.store import VersionConflict
from fedping.protocol import __version__
from fedping.protocol.errors import FedpingError, as_sentence
from fedping.protocol.notation import with_minus
from fedping.protocol.object_store import StorageAway
from fedping.server_jobs.listener import stay_here

PAGES = ("live", "results", "runs", "watching")
"""The folders with a ``views.py`` each."""

NAVIGATION = {"/live/": "Live", "/results/": "Results", "/runs/": "Experiments", "/compare/": "Compare"}
"""The navigation at the top of every page, with its targets."""


def create_application(settings: DashboardSettings) -> Flask:
    """Return the dashboard.

    Raises:
        OSError: the folder of the runs is not writable.
    """
    services = Services(settings, Streams(settings.viewers))
    application = _application(services, PAGES)
    application.wsgi_app = StudiesOfRuns(  # type: ignore[method-assign]
        settings.runs, application.wsgi_app, lambda where: _of_run(services, where)
    )
    return application


def _of_run(services: Services, where: Place) -> Flask:
    """Return the pages about a run's study."""
    settings = replace(
        services.settings,
        store=where.out / "store",
        landing=where.out / "landing",
        journal=where.out / "landing" / ".journal",
        runs=where.folder,
        key=services.settings.secret_file,
    )
    application = _application(Services(settings, services.streams), studies.PAGES)
    application.before_request(studies.refuse_publishing)
    application.context_processor(lambda: {"of_run": where})
    return application


def _application(services: Services, pages: Sequence[str]) -> Flask:
    """Return an application with some of the pages."""
    settings = services.settings
    application = Flask("fedping.dashboard")
    application.json.sort_keys = False  # type: ignore[attr-defined]
    guard(application, settings)
    stay_here(application)
    for page in pages:
        views = importlib.import_module(f"fedping.dashboard.{page}.views")
        application.register_blueprint(views.blueprint(services))
    application.context_processor(lambda: _shared(settings))
    application.add_template_filter(as_sentence, "sentence")
    application.add_template_filter(with_minus, "minus")
    application.register_error_handler(FedpingError, _sentence)
    application.register_error_handler(OSError, _sentence)
    application.register_error_handler(RecursionError, _too_deep)
    application.register_error_handler(HTTPException, _http_error)
    application.add_url_rule("/", "home", lambda: _home(settings))
    return application


def _shared(settings: DashboardSettings) -> dict[str, object]:
    """Return the variables of all templates."""
    return {
        "navigation": NAVIGATION,
        "version": __version__,
        "csrf_value": generate_csrf,
        "csrf_field": lambda: Markup('<input type="hidden" name="csrf_token" value="{}">').format(generate_csrf()),
        "settings": settings,
    }


def _has_store(settings: DashboardSettings) -> bool:
    try:
        open_store(settings.store)
    except StoreError:
        return False
    return True


def _home(settings: DashboardSettings) -> AnyResponse:
    """Redirect to studies if there are any, else to experiments."""
    return redirect(url_for("live.overview") if _has_store(settings) else "/runs/")


def _status(error: FedpingError | OSError) -> HTTPStatus:
    if isinstance(error, OSError):
        return HTTPStatus.INTERNAL_SERVER_ERROR
    if isinstance(error, StorageAway):
        return HTTPStatus.SERVICE_UNAVAILABLE
    if isinstance(error, Closed):
        return HTTPStatus.UNAUTHORIZED
    if isinstance(error, Refused):
        return HTTPStatus.FORBIDDEN
    if isinstance(error, VersionConflict | WrongState):
        return HTTPStatus.CONFLICT
    return HTTPStatus.NOT_FOUND if isinstance(error, StoreError | NotThere) else HTTPStatus.BAD_REQUEST


def _sentence(error: FedpingError | OSError) -> tuple[Response | str, int]:
    return _told(sentence_of(error), _status(error))


def _too_deep(error: RecursionError) -> tuple[Response | str, int]:
    return _told("the request is nested too deeply; send fewer levels", HTTPStatus.BAD_REQUEST)


def _http_error(error: HTTPException) -> tuple[Response | str, int]:
    status = HTTPStatus(error.code or 500)
    if status == HTTPStatus.NOT_FOUND:
        return _told(f"there is no page {request.path[:MOST]}; go back to the start", status)
    if status == HTTPStatus.INTERNAL_SERVER_ERROR:
        return _told("this is a bug in the dashboard; see the details in the terminal where it was started", status)
    return _told(f"{status.phrase}: {error.description}", status)


def _told(sentence: str, status: HTTPStatus) -> tuple[Response | str, int]:
    """Answer a person with a page, and a program with JSON."""
    if wants_page(request) and not request.path.endswith((".json", ".csv")):
        return render_template("error.html", sentence=sentence, status=status), status
    return jsonify(error=sentence), status
