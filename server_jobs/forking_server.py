"""Variant of granian's server whose worker-forking process has a single thread.

A fork copies one thread, but the locks of all threads; in the child, the other threads' locks are never released.
Python 3.12 and later warn about such forks. granian starts a thread for each worker to notice its death, so it forks
the second worker and every replacement in a process with threads. Here, the main thread waits for both deaths and
signals.

Workers are always forked, also where Python starts processes otherwise (3.14 and later), because they inherit this
process' locks (`fedping.server_jobs.processes.Lock`) and its tie to its parent.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from multiprocessing import connection
from multiprocessing.context import ForkProcess
from typing import Any, TypeAlias

from granian.constants import HTTPModes, Interfaces, Loops
from granian.http import HTTP1Settings
from granian.log import LogLevels
from granian.server.mp import MPServer, WorkerProcess

from fedping.protocol import log
from fedping.server_jobs.shutdown import describe_exit

HEADER_MILLISECONDS = 15_000
"""Maximum time of a slow or idle connection without a complete request, in milliseconds."""

_TO_STDERR = {"class": "logging.StreamHandler", "formatter": "generic", "stream": "ext://sys.stderr"}
"""Logging handler for granian's errors if the log is JSON. By default, granian writes them to stdout."""

_LAST_SECONDS = 5.0

_HANDLED = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


Died: TypeAlias = Callable[[str], object]
"""Function that is called with a description of a worker's unexpected end, before the worker is replaced."""


class ForkingServer(MPServer):
    """granian's multi-process server without threads; used like `MPServer`, with the additional argument ``died``."""

    def __init__(self, *args: Any, died: Died = lambda how: None, **settings: Any) -> None:
        if log.is_json():
            settings["log_dictconfig"] = {"handlers": dict.fromkeys(("console", "access"), _TO_STDERR)}
        super().__init__(*args, **settings)
        self.died = died
        self.main_loop_interrupt = _Interrupt(self)  # type: ignore[assignment]

    def _spawn_worker(self, *args: Any, **settings: Any) -> WorkerProcess:
        settings["callback_loader"] = partial(_load, settings["callback_loader"])
        worker = super()._spawn_worker(*args, **settings)
        made = worker.inner
        worker.inner = _Forked(name=made.name, target=made._target, args=made._args)
        worker._watch = lambda: None  # type: ignore[method-assign]
        return worker


@dataclass(frozen=True, kw_only=True)
class ServerSettings:
    """The settings of an HTTP server.

    Attributes:
        host: address to listen on.
        port: port to listen on.
        workers: number of processes.
        connections: maximum number of open connections of each worker, and also of waiting connections.
        connection_bytes: bytes read ahead from a connection.
        kill_after: seconds that a stopping worker has to finish its requests.
    """

    host: str
    port: int
    workers: int
    connections: int
    connection_bytes: int
    kill_after: int


def http_server(name: str, settings: ServerSettings, died: Died) -> ForkingServer:
    """Return a server of RSGI applications over HTTP/1.1; call ``serve`` with the loader of a worker's application.

    Args:
        name: granian's name for the application.
        settings: settings of the server.
        died: called with a description of each unexpected end of a worker.
    """
    return ForkingServer(
        name,
        died=died,
        address=settings.host,
        port=settings.port,
        interface=Interfaces.RSGI,
        workers=settings.workers,
        backlog=settings.connections,
        backpressure=settings.connections,
        http=HTTPModes.http1,
        http1_settings=HTTP1Settings(
            header_read_timeout=HEADER_MILLISECONDS, max_buffer_size=settings.connection_bytes
        ),
        loop=Loops.uvloop if sys.platform != "win32" else Loops.asyncio,
        websockets=False,
        log_level=LogLevels.error,
        respawn_failed_workers=True,
        workers_kill_timeout=settings.kill_after,
    )


class _Forked(ForkProcess):
    """Worker process that ends on a signal that arrives before its own handlers are installed.

    Otherwise the inherited handler of its parent would handle the signal; the worker would continue, and be killed
    after a wait.
    """

    def start(self) -> None:
        before = signal.pthread_sigmask(signal.SIG_BLOCK, _HANDLED)
        try:
            super().start()
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)

    def run(self) -> None:
        for number in _HANDLED:
            signal.signal(number, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, _HANDLED)
        super().run()


def _load(loader: Callable[[], Any]) -> Any:
    """Load a worker's application, and make its event loop handle early signals in the first iteration."""
    application = loader()
    asyncio.get_event_loop().call_soon(_handle_early_signals)
    return application


def _handle_early_signals() -> None:
    """Wake the event loop for signals that arrived after their handlers were installed and before its first iteration.

    uvloop only records such a signal, and handles it with the next byte in the wakeup pipe. Without that byte, a
    worker that is asked to stop just before its loop runs would continue until it is killed.
    """
    wakeup = signal.set_wakeup_fd(-1)
    signal.set_wakeup_fd(wakeup, warn_on_full_buffer=False)
    if wakeup >= 0:
        with contextlib.suppress(BlockingIOError):  # the pipe is full, so it wakes anyway
            os.write(wakeup, b"\0")


class _Interrupt:
    """Replacement of the event for which granian's first process waits; signals and workers' deaths set it.

    It is a pipe: the thread that a signal handler interrupts could hold the lock of a `threading.Event`.
    """

    def __init__(self, server: ForkingServer) -> None:
        self._server = server
        self._reader, self._writer = os.pipe()
        os.set_blocking(self._reader, False)
        os.set_blocking(self._writer, False)

    def set(self) -> None:
        """End the wait."""
        with contextlib.suppress(BlockingIOError):  # it is full: the wait ends
            os.write(self._writer, b".")

    def clear(self) -> None:
        """Reset the event."""
        with contextlib.suppress(BlockingIOError):
            while os.read(self._reader, 4096):
                pass

    def wait(self) -> None:
        """Wait for a signal or the death of workers; dead workers are recorded for replacement."""
        server = self._server
        if server.interrupt_signal or server.reload_signal:  # the event may have been reset since
            return
        living = {each.inner.sentinel: each for each in server.wrks if each.idx not in server.interrupt_children}
        ended = connection.wait([self._reader, *living])
        if not server.interrupt_signal:  # otherwise the same Ctrl-C may have ended them
            for worker in (living[each] for each in ended if each in living):
                server.interrupt_children.append(worker.idx)
                worker.inner.join(_LAST_SECONDS)  # its end of the pipe is closed a moment before it has ended
                server.died(describe_exit(worker.inner.exitcode))
