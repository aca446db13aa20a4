"""The Flask application, which guards all pages, and the process that serves it.

Each page has a folder of its own. The process has one worker, separate from ingest's workers, with low CPU priority.
"""

from __future__ import annotations

import importlib
import os
import threading
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from http import HTTPStatus
from importlib.util import find_spec
from typing import TYPE_CHECKING

from flask import Flask, Response, jsonify, redirect, render_template, request, url_for
from flask_wtf.csrf import generate_csrf
from markupsafe import Markup
from werkzeug.exceptions import HTTPException
from werkzeug.wrappers import Response as AnyResponse

from fedping.dashboard import studies
from fedping.dashboard.answers import MOST, NotThere, WrongState, sentence_of, wants_page
from fedping.dashboard.changes import recording
from fedping.dashboard.changes.log import NotRecorded
from fedping.dashboard.feeds import Streams
from fedping.dashboard.guard import Closed, Refused, guard
from fedping.dashboard.runs.places import Place
from fedping.dashboard.settings import DashboardSettings, Services
from fedping.dashboard.studies import StudiesOfRuns
from fedping.model_store import StoreError, Unreadable, open_store
from fedping.model_store.notes import NoteConflict
from fedping.model_store.store import VersionConflict
from fedping.protocol import __version__
from fedping.protocol.errors import FedpingError, as_sentence
from fedping.protocol.notation import with_minus
from fedping.protocol.object_store import StorageAway
from fedping.server_jobs.listener import CannotStart, check_port, stay_here
from fedping.server_jobs.processes import exit_with_parent

if TYPE_CHECKING:
    from flask import Flask


PAGES = ("live", "results", "notes", "runs", "watching", "changes")
"""Folders of the pages, each with a ``views.py``."""

NAVIGATION = {"/live/": "Live", "/results/": "Results", "/runs/": "Experiments", "/compare/": "Compare"}
"""The links at the top of every page: labels by address."""


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
    """Return an application with the pages about the study of a run."""
    settings = replace(
        services.settings,
        store=where.out / "store",
        landing=where.out / "landing",
        journal=where.out / "landing" / ".journal",
        runs=where.folder,
        key=services.settings.secret_file,
        changes=services.settings.changes_folder,
    )
    application = _application(Services(settings, services.streams), studies.PAGES)
    application.before_request(studies.refuse_publishing)
    application.context_processor(lambda: {"of_run": where})
    return application


def _application(services: Services, pages: Sequence[str]) -> Flask:
    """Return an application with the given pages."""
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
    """Return the variables that all templates share."""
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
    """Redirect to the studies if a store exists, else to the experiments."""
    return redirect(url_for("live.overview") if _has_store(settings) else "/runs/")


def _status(error: FedpingError | OSError) -> HTTPStatus:
    if isinstance(error, OSError | NotRecorded):
        return HTTPStatus.INTERNAL_SERVER_ERROR
    if isinstance(error, StorageAway | Unreadable):
        return HTTPStatus.SERVICE_UNAVAILABLE
    if isinstance(error, Closed):
        return HTTPStatus.UNAUTHORIZED
    if isinstance(error, Refused):
        return HTTPStatus.FORBIDDEN
    if isinstance(error, VersionConflict | NoteConflict | WrongState):
        return HTTPStatus.CONFLICT
    return HTTPStatus.NOT_FOUND if isinstance(error, StoreError | NotThere) else HTTPStatus.BAD_REQUEST


def _sentence(error: FedpingError | OSError) -> tuple[Response | str, int]:
    return _error_answer(sentence_of(error), _status(error))


def _too_deep(error: RecursionError) -> tuple[Response | str, int]:
    return _error_answer("the request is nested too deeply; send fewer levels", HTTPStatus.BAD_REQUEST)


def _http_error(error: HTTPException) -> tuple[Response | str, int]:
    status = HTTPStatus(error.code or 500)
    if status == HTTPStatus.NOT_FOUND:
        return _error_answer(f"the page {request.path[:MOST]} does not exist; go back to the start page", status)
    if status == HTTPStatus.INTERNAL_SERVER_ERROR:
        return _error_answer(
            "this is a bug in the dashboard; the details are in the terminal where it was started", status
        )
    return _error_answer(f"{status.phrase}: {error.description}", status)


def _error_answer(sentence: str, status: HTTPStatus) -> tuple[Response | str, int]:
    """Return an error's message as a page for a browser, as JSON for a program."""
    recording.refused(sentence)
    if wants_page(request) and not request.path.endswith((".json", ".csv")):
        return render_template("error.html", sentence=sentence, status=status), status
    return jsonify(error=sentence), status


SPARE_THREADS = 16
"""Threads for pages and polls, in addition to those that hold streams."""

STOP_SECONDS = 2
"""Seconds that a stop waits for open streams, which never end by themselves."""

NICENESS = 10

NEEDED = ("flask_wtf", "scipy")
"""Packages of the extra `dashboard`, checked before the start because the worker imports them only later."""


def prepare(settings: DashboardSettings, port_option: str = "--port") -> None:
    """Check the packages, the port and the folder of runs before the dashboard starts.

    ``port_option`` is the command's option for another port, named in the error.

    Raises:
        CannotStart: the port is taken, or the folder of runs is not writable.
        ModuleNotFoundError: a package of :data:`NEEDED` is not installed.
    """
    for package in NEEDED:
        if find_spec(package) is None:
            raise ModuleNotFoundError(f"No module named '{package}'", name=package)
    check_port(settings.host, settings.port, port_option)
    try:
        settings.runs.mkdir(parents=True, exist_ok=True)
        if not os.access(settings.runs, os.W_OK | os.X_OK):
            raise PermissionError(13, "permission denied")
    except OSError as error:
        raise CannotStart(
            f"can't write to the folder of runs {settings.runs} ({error.strerror}); give another with --runs"
        ) from error


def serve(settings: DashboardSettings, parent: int | None = None, ready: Callable[[], None] = lambda: None) -> None:
    """Serve until SIGINT or SIGTERM.

    Args:
        settings: the dashboard's settings, with its address and folders.
        parent: id of the process at whose end the dashboard ends too; None to run on its own.
        ready: called by the worker process once it can answer, and by each process that replaces a dead one.
    """
    if parent is not None:
        exit_with_parent(parent)
        os.setpgrp()
    from granian.constants import HTTPModes, Interfaces, Loops
    from granian.log import LogLevels

    from fedping.server_jobs.forking_server import ForkingServer

    server = ForkingServer(
        "fedping.dashboard",
        address=settings.host,
        port=settings.port,
        interface=Interfaces.WSGI,
        workers=1,
        blocking_threads=settings.viewers + SPARE_THREADS,
        http=HTTPModes.http1,
        loop=Loops.asyncio,
        websockets=False,
        log_level=LogLevels.error,
        respawn_failed_workers=True,
        workers_kill_timeout=STOP_SECONDS,
    )
    server.serve(target_loader=partial(_worker, settings, os.getpid(), ready), wrap_loader=False)


def _worker(settings: DashboardSettings, parent: int, ready: Callable[[], None]) -> Flask:
    exit_with_parent(parent)
    os.nice(NICENESS)
    from fedping.dashboard.application import create_application

    application = create_application(settings)
    if settings.refresh is not None:
        _refresh(settings, settings.refresh)
    ready()
    return application


def _refresh(settings: DashboardSettings, minutes: float) -> None:
    """Refresh the results in a daemon thread; the counts themselves are separate processes."""
    from fedping.dashboard.results.counts import Counts, keep_refreshing
    from fedping.dashboard.results.views import FOLDER

    counts = Counts(settings.runs / FOLDER, settings.store, settings.landing)
    threading.Thread(target=keep_refreshing, args=(counts, minutes, threading.Event()), daemon=True).start()
