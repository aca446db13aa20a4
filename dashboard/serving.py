"""The dashboard's process: one worker, separate from ingest's, with low priority for the cores."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from functools import partial
from importlib.util import find_spec
from typing import TYPE_CHECKING

from fedping.dashboard.settings import DashboardSettings
from fedping.server_jobs.listener import CannotStart, check_port
from fedping.server_jobs.processes import exit_with_parent

if TYPE_CHECKING:
    from flask import Flask

SPARE_THREADS = 16
"""Threads for pages and polls, in addition to those that hold streams."""

STOP_SECONDS = 2
"""Streams never end by themselves, so a stop must not wait long for them."""

NICENESS = 10

NEEDED = ("flask_wtf", "scipy")
"""Packages that may be missing without the extra `dashboard`; the worker imports them only after it has started."""


def prepare(settings: DashboardSettings, port_option: str = "--port") -> None:
    """Check for anything that would keep the dashboard from starting; ``port_option`` is the option for another port.

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
            f"the folder of runs {settings.runs} cannot be written ({error.strerror}); give another with --runs"
        ) from error


def serve(settings: DashboardSettings, parent: int | None = None, ready: Callable[[], None] = lambda: None) -> None:
    """Serve until told to stop by SIGINT or SIGTERM.

    Args:
        settings: what to serve, and where.
        parent: the process to end with, if any.
        ready: called by the process that answers once it can, also by a replacement for one that died.
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
    from fedping.dashboard.results.counts import Counts
    from fedping.dashboard.results.refreshing import keep_refreshing
    from fedping.dashboard.results.views import FOLDER

    counts = Counts(settings.runs / FOLDER, settings.store, settings.landing)
    threading.Thread(target=keep_refreshing, args=(counts, minutes, threading.Event()), daemon=True).start()
