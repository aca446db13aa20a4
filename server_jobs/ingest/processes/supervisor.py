"""Ingest's main process: it starts workers, compactor and listeners, and ends all when one ends."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import time
from collections.abc import Callable, Mapping
from functools import partial
from multiprocessing.connection import wait
from multiprocessing.context import ForkProcess
from types import FrameType, MappingProxyType

from fedping.protocol.log import tell
from fedping.server_jobs.ingest.counters import PROCESSES, Counters
from fedping.server_jobs.ingest.processes.compacting import run_compactor
from fedping.server_jobs.ingest.processes.process_lock import exit_with_parent
from fedping.server_jobs.ingest.processes.worker import MakeApplication, front, start_worker
from fedping.server_jobs.ingest.settings import CONNECTION_BYTES, CONNECTIONS, LOGGED, IngestSettings
from fedping.server_jobs.shutdown import describe_exit
from fedping.server_jobs.stop_event import Wakeup

KILL_AFTER = 10
"""Seconds that a stopping worker has to finish its answers."""


def run_server(settings: IngestSettings, parent: int, make: MakeApplication = front) -> None:
    """Serve until told to stop; after SIGTERM it ends once the requests in progress are answered."""
    exit_with_parent(parent)
    os.setpgrp()
    from fedping.server_jobs.forking_server import http_server

    server = http_server(
        "fedping.ingest",
        settings.host,
        settings.port,
        workers=settings.workers,
        connections=CONNECTIONS,
        connection_bytes=CONNECTION_BYTES,
        kill_after=KILL_AFTER,
        died=partial(tell_death, settings, "worker"),
    )
    server.serve(target_loader=partial(start_worker, settings, os.getpid(), make), wrap_loader=False)


def tell_death(settings: IngestSettings, process: str, how: str) -> None:
    """Log and count that a process died by itself, in whose place another one is started."""
    tell(f"the {process} died ({how}) and is started again", before=LOGGED)
    with contextlib.suppress(OSError):  # a full disk: it was logged, and the others go on
        Counters(settings.counters).add(f"died.{process if process in PROCESSES else 'other'}", 1)


LONGEST_PAUSE = 5.0
QUICK_DEATH = 2.0


class Child:
    """One child process, restarted when it dies: immediately at first, and ever later if it keeps dying."""

    def __init__(self, run: Callable[[], None], name: str, died: Callable[[str, str], None]) -> None:
        self._run = run
        self._name = name
        self._died = died
        self._pause = 0.0
        self.start()

    def start(self) -> None:
        """Start the process."""
        self._began = time.monotonic()
        self.process = ForkProcess(target=self._run, name=self._name)
        self.process.start()

    def revive(self) -> None:
        """Start the process again if it has died."""
        if self.process.is_alive():
            return
        quick = time.monotonic() - self._began < QUICK_DEATH
        self._pause = min(LONGEST_PAUSE, self._pause * 2 + 0.1) if quick else 0.0
        self._died(self._name, describe_exit(self.process.exitcode))
        time.sleep(self._pause)
        self.start()

    def stop(self, patience: float | None) -> int:
        """Ask the process to end and return its exit code; kill it after ``patience`` seconds (None: never)."""
        if self.process.is_alive():
            self.process.terminate()
        self.process.join(patience)
        if self.process.is_alive():
            self.process.kill()
            self.process.join()
        return self.process.exitcode or 0


def _asked_by_signals() -> Wakeup:
    """Return the requests by SIGINT and SIGTERM. The second one kills all children."""
    wakeup = Wakeup()

    def on_signal(_signal: int, _frame: FrameType | None) -> None:
        if wakeup.asked:
            for child in multiprocessing.active_children():
                child.kill()
        wakeup.ask()

    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, on_signal)
    return wakeup


def supervise(
    settings: IngestSettings,
    make: MakeApplication = front,
    beside: Mapping[str, Callable[[int], None]] = MappingProxyType({}),
) -> int:
    """Run ingest until SIGINT or SIGTERM; return 0 if everything that was accepted has landed, else 1.

    Args:
        settings: ingest's settings.
        make: makes a worker's application.
        beside: by name, what else to run in separate processes, each given the id of this process to end with.
    """
    wakeup = _asked_by_signals()
    here = os.getpid()
    died = partial(tell_death, settings)
    compactor = Child(_in_child(lambda: run_compactor(settings, here)), "compactor", died)
    server = Child(_in_child(lambda: run_server(settings, here, make)), "server", died)
    others = [Child(_in_child(partial(run, here)), name, died) for name, run in beside.items()]
    children = [compactor, server, *others]
    while not wakeup.asked:
        wait([wakeup.reader, *(child.process.sentinel for child in children)])
        if not wakeup.asked:
            for child in children:
                child.revive()
    server.stop(KILL_AFTER + 5.0)
    # The workers are gone, so their segments have no writer: the compactor's last pass takes them all. This may take a
    # while, during which the others still report the progress.
    code = compactor.stop(None)
    for child in others:
        child.stop(KILL_AFTER + 5.0)
    return 0 if code == 0 else 1


def _in_child(run: Callable[[], None]) -> Callable[[], None]:
    def start() -> None:
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, signal.SIG_DFL)
        run()

    return start
