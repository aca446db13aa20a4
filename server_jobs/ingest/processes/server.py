"""The HTTP server process: granian, whose workers are ours."""

from __future__ import annotations

import os
from functools import partial

from server_jobs.ingest.edge.application import Edge
from server_jobs.ingest.processes.bonds import die_with_parent
from server_jobs.ingest.processes.worker import MakeApplication, start_worker
from server_jobs.ingest.settings import IngestSettings

KILL_AFTER = 10
"""Seconds that a worker has, when asked to stop, to finish what it is answering."""

BACKLOG = 2048


def run_server(settings: IngestSettings, parent: int, make: MakeApplication = Edge) -> None:
    """Serve until told to stop: SIGTERM ends it when the requests that were begun are answered."""
    die_with_parent(parent)
    os.setpgrp()
    from granian.constants import HTTPModes, Interfaces, Loops
    from granian.log import LogLevels

    from server_jobs.forking_server import ForkingServer

    server = ForkingServer(
        "fedping.ingest",
        address=settings.host,
        port=settings.port,
        interface=Interfaces.WSGI,
        workers=settings.workers,
        blocking_threads=settings.threads,
        backlog=BACKLOG,
        backpressure=BACKLOG,
        http=HTTPModes.http1,
        loop=Loops.asyncio,
        websockets=False,
        log_level=LogLevels.error,
        respawn_failed_workers=True,
        workers_kill_timeout=KILL_AFTER,
    )
    server.serve(target_loader=partial(start_worker, settings, os.getpid(), make), wrap_loader=False)
