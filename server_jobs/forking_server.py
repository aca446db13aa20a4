"""granian's server, made so that the process that forks the workers has a single thread.

A fork copies one thread and the locks that all the others held, which nobody releases in the child; Python warns of it
from 3.12 on. granian starts a thread for each worker, to notice that it died, and so forks the second worker, and every
worker that takes the place of a dead one, in a process with threads. Here one wait notices deaths and signals alike.

The workers are forked, also where Python would start processes in another way (from 3.14 on), because they inherit
this process's locks (`fedping.server_jobs.ingest.processes.process_lock.Lock`) and its bond to its parent.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
from collections.abc import Callable
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
"""How long a connection may stay without a whole request: it sends its headers slowly, or is kept for another."""

_TO_STDERR = {"class": "logging.StreamHandler", "formatter": "generic", "stream": "ext://sys.stderr"}
"""Where granian writes its errors if all that is told is a log; by itself it writes them to stdout."""

_LAST_SECONDS = 5.0

_HANDLED = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


Died: TypeAlias = Callable[[str], object]
"""What is called with how a worker ended that nobody has told to, in words, before another takes its place."""


class ForkingServer(MPServer):
    """granian's server of processes, without threads of its own; made and used like `MPServer`, but for ``died``."""

    def __init__(self, *args: Any, died: Died = lambda how: None, **settings: Any) -> None:
        if log.is_json():
            settings["log_dictconfig"] = {"handlers": dict.fromkeys(("console", "access"), _TO_STDERR)}
        super().__init__(*args, **settings)
        self.died = died
        self.main_loop_interrupt = _Interrupt(self)  # type: ignore[assignment]

    def _spawn_worker(self, *args: Any, **settings: Any) -> WorkerProcess:
        worker = super()._spawn_worker(*args, **settings)
        made = worker.inner
        worker.inner = _Forked(name=made.name, target=made._target, args=made._args)
        worker._watch = lambda: None  # type: ignore[method-assign]
        return worker


def http_server(
    name: str,
    host: str,
    port: int,
    *,
    workers: int,
    connections: int,
    connection_bytes: int,
    kill_after: int,
    died: Died,
) -> ForkingServer:
    """Return a server of RSGI applications over HTTP/1.1; call ``serve`` with what makes the application of a worker.

    Args:
        name: what granian calls the application.
        host: the address to listen on.
        port: the port to listen on.
        workers: how many processes answer.
        connections: how many may be open in each, and how many may wait.
        connection_bytes: how much of a connection is read before the application asks for more.
        kill_after: seconds that a stopping worker has for what it is at.
        died: is told how a worker ended that nobody has told to.
    """
    return ForkingServer(
        name,
        died=died,
        address=host,
        port=port,
        interface=Interfaces.RSGI,
        workers=workers,
        backlog=connections,
        backpressure=connections,
        http=HTTPModes.http1,
        http1_settings=HTTP1Settings(header_read_timeout=HEADER_MILLISECONDS, max_buffer_size=connection_bytes),
        loop=Loops.uvloop if sys.platform != "win32" else Loops.asyncio,
        websockets=False,
        log_level=LogLevels.error,
        respawn_failed_workers=True,
        workers_kill_timeout=kill_after,
    )


class _Forked(ForkProcess):
    """A worker's process. Told to stop before it can handle that, it ends.

    It would otherwise take the signal by the handler that it was forked with, go on, and be waited for and killed.
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


class _Interrupt:
    """Takes the place of the event on which granian's first process waits: set by signals, and by a worker's death.

    It is a pipe: the lock of a `threading.Event` could be held by the very thread that a signal handler interrupts.
    """

    def __init__(self, server: ForkingServer) -> None:
        self._server = server
        self._reader, self._writer = os.pipe()
        os.set_blocking(self._reader, False)
        os.set_blocking(self._writer, False)

    def set(self) -> None:
        """Make a wait end."""
        with contextlib.suppress(BlockingIOError):  # it is full: the wait ends
            os.write(self._writer, b".")

    def clear(self) -> None:
        """Forget what was set."""
        with contextlib.suppress(BlockingIOError):
            while os.read(self._reader, 4096):
                pass

    def wait(self) -> None:
        """Return when a signal has come, or workers have died, which are noted for the server to replace."""
        server = self._server
        if server.interrupt_signal or server.reload_signal:  # what was set may have been cleared since
            return
        living = {each.inner.sentinel: each for each in server.wrks if each.idx not in server.interrupt_children}
        ended = connection.wait([self._reader, *living])
        if not server.interrupt_signal:  # else they may have heard the same Ctrl-C
            for worker in (living[each] for each in ended if each in living):
                server.interrupt_children.append(worker.idx)
                worker.inner.join(_LAST_SECONDS)  # its end of the pipe is closed a moment before it has ended
                server.died(describe_exit(worker.inner.exitcode))
