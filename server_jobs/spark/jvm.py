"""Start and end of a session's JVM, which always ends with its session or process, without a wait.

This module uses undocumented names of PySpark and Py4J. With them, a session starts a second sooner, ends without
waiting, reports in one sentence why its JVM didn't start, and always ends its JVM. If these names differ from those
of supported releases, or FEDPING_SPARK_PRIVATE is ``off``, sessions are started and stopped in the documented way,
with the same results.
"""

from __future__ import annotations

import logging
import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING, Any

from fedping.protocol.errors import FedpingError
from fedping.server_jobs.shutdown import BY_FORCE, signals_held
from fedping.server_jobs.spark.installation import cannot_run_spark

if TYPE_CHECKING:
    from pyspark import SparkContext


VARIABLE = "FEDPING_SPARK_PRIVATE"


RELEASES = {"pyspark": "4.3.", "py4j": "0.10.9."}
"""Prefixes of the versions in which the undocumented names have the expected meaning."""


NAMES = {
    "pyspark": (
        "SparkContext._active_spark_context",
        "SparkContext._ensure_initialized",
        "SparkContext._gateway",
        "SparkContext._jvm",
    ),
    "pyspark.java_gateway": ("Popen", "launch_gateway"),
    "pyspark.sql": ("SparkSession._activeSession", "SparkSession._instantiatedSession"),
    "py4j.clientserver": ("ClientServerConnection.shutdown_socket",),
}
"""The undocumented names that are set or called, by module."""


def may_use_private_names() -> bool:
    """Return whether the private names are as expected, and their use isn't disabled."""
    return os.environ.get(VARIABLE) != "off" and private_name_mismatch() is None


def private_name_mismatch() -> str | None:
    """Return a version or name that differs from supported releases; None if there is no difference."""
    for package, beginning in RELEASES.items():
        try:
            found = version(package)
        except PackageNotFoundError:  # as with a SPARK_HOME on the path: use the module's version
            found = str(getattr(import_module(package), "__version__", beginning))
        if not found.startswith(beginning):
            return f"{package} {found}"
    for module, names in NAMES.items():
        for name in names:
            where: object = import_module(module)
            for part in name.split("."):
                if not hasattr(where, part):
                    return f"{module}.{name}"
                where = getattr(where, part)
    return None


END_SECONDS = 20
"""Maximum seconds until the JVM ends before it is killed. It usually takes a tenth of a second."""

CUT_OFF_SECONDS = 5
"""Value of :data:`END_SECONDS` if a user or a time limit waits for the end, and the JVM's work is no longer needed."""

LIVING: list[subprocess.Popen[bytes]] = []
"""The JVMs that were started and haven't ended yet."""


UNCAUGHT = re.compile(r'Exception in thread "main" [\w.$]+: (.+)')


ERROR = re.compile(r"Error: (.+)")


LAST_WORD_SECONDS = 5


class Complaints:
    """A pipe for the JVM's output. Its content is written to stderr after Spark has started.

    The pipe gets both of the JVM's streams, because they must not mix with this process's output, which may be JSON.
    """

    def __init__(self) -> None:
        self._read_end, self.write_end = os.pipe()
        self._held: list[bytes] | None = []
        self._closed = False
        self._lock = threading.Lock()
        self._reader = threading.Thread(target=self._read, name="spark-complaints", daemon=True)
        self._reader.start()

    def pass_on(self) -> None:
        """Write the collected output to stderr, and all later output immediately."""
        with self._lock:
            held, self._held = self._held or [], None
            _write(b"".join(held))

    def close_write_end(self) -> None:
        """Close this process's write end once the JVM has its own, so that the end of its output is noticed."""
        if not self._closed:
            self._closed = True
            os.close(self.write_end)

    def end(self) -> None:
        """Wait until the JVM's last output has been read, but not for processes that may have inherited the pipe."""
        self._reader.join(LAST_WORD_SECONDS)

    def said(self) -> str:
        """Return the output collected so far."""
        with self._lock:
            return b"".join(self._held or []).decode(errors="replace").strip()

    def cause(self) -> str:
        """Wait for the JVM's end; return the reason why Spark didn't start: its error, or else its last line."""
        self.end()
        said = self.said()
        found = UNCAUGHT.search(said) or ERROR.search(said)
        return found[1] if found else (said.splitlines() or ["its JVM said nothing"])[-1]

    def _read(self) -> None:
        with os.fdopen(self._read_end, "rb", buffering=0) as pipe:
            while data := pipe.read(65536):
                with self._lock:
                    if self._held is None:
                        _write(data)
                    else:
                        self._held.append(data)


def _write(data: bytes) -> None:
    if sys.stderr is not None and data:
        sys.stderr.write(data.decode(errors="replace"))
        sys.stderr.flush()


@dataclass(frozen=True)
class Jvm:
    """A JVM started here: PySpark's connection to it, its process, and its output."""

    gateway: Any
    process: subprocess.Popen[bytes]
    complaints: Complaints

    def kill(self) -> None:
        """Kill the JVM's process group, which has shell scripts at first, and later only Java."""
        _kill(self.process)


def start_jvm(master: str) -> Jvm:
    """Start a JVM with the environment's Java, Spark and options.

    If this is interrupted, :func:`kill_what_is_left` ends the processes that were started.

    Raises:
        FedpingError: the JVM doesn't start.
    """
    with _process_recorded():
        gateway, complaints = _launch(master)
    return Jvm(gateway, LIVING[-1], complaints)


@contextmanager
def _process_recorded() -> Iterator[None]:
    """Record the process that PySpark starts in :data:`LIVING`; PySpark reveals it only after connecting.

    The process gets its own process group. So all its children can be killed, even while a shell script becomes the
    JVM in four steps, and Ctrl-C in a terminal doesn't reach it. No code between fork and exec is needed, which may
    wait forever for a lock in a process with threads, such as this one.
    """
    from pyspark import java_gateway

    popen = java_gateway.Popen  # type: ignore[attr-defined]

    def noted(*arguments: Any, **keywords: Any) -> subprocess.Popen[bytes]:
        keywords["preexec_fn"] = None
        with signals_held():  # an interruption in between would lose the only handle on the process
            LIVING.append(popen(*arguments, **keywords, process_group=0))
        return LIVING[-1]

    java_gateway.Popen = noted  # type: ignore[attr-defined,assignment]
    try:
        yield
    finally:
        java_gateway.Popen = popen  # type: ignore[attr-defined]


def _kill(process: subprocess.Popen[bytes]) -> None:
    if process.poll() is None:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)


def _kill_living() -> None:
    for process in LIVING.copy():  # the main thread may end a JVM meanwhile
        _kill(process)


BY_FORCE.append(_kill_living)


def kill_what_is_left() -> None:
    """Kill all JVMs not ended by :func:`end_jvm` because their start was interrupted or failed."""
    with signals_held():
        _kill_living()
        for process in LIVING:
            process.wait()
        LIVING.clear()


def prepare_py4j() -> None:
    """Make Py4J handle interrupted calls without log messages; to be called before the first call."""
    _quieten_py4j()
    _close_here_what_is_interrupted()


def _quieten_py4j() -> None:
    """Prevent Py4J from logging a traceback for each call interrupted by Ctrl-C. All logged errors are also raised.

    Some records are logged to the root logger, where they are recognised by their file.
    """
    logging.getLogger("py4j").setLevel(logging.CRITICAL)
    logging.getLogger().addFilter(_not_from_py4j)


def _not_from_py4j(record: logging.LogRecord) -> bool:
    return "py4j" not in record.pathname


def _close_here_what_is_interrupted() -> None:
    """Make an interruption of a call to the JVM by Ctrl-C close connections only on this side.

    Py4J also asks the JVM, over every open connection, to close the interrupted connection, given by its two ports.
    The JVM closes all connections with either port. One of them is the port on which it listens, so it closes all
    connections. If another connection is opened meanwhile, as by PySpark to clean up after the call, this fails, and
    the error replaces the interruption. The request isn't needed, because the JVM notices that a connection was
    closed.
    """
    from py4j.clientserver import ClientServerConnection  # type: ignore[import-untyped]

    ClientServerConnection.shutdown_socket = lambda connection, *_: connection.close()


def _launch(master: str) -> tuple[Any, Complaints]:
    from pyspark.errors import PySparkRuntimeError
    from pyspark.java_gateway import launch_gateway

    prepare_py4j()
    complaints = Complaints()
    output = {"stdout": complaints.write_end, "stderr": complaints.write_end}
    try:
        gateway = launch_gateway(popen_kwargs=output)  # type: ignore[no-untyped-call]
    except OSError as error:
        raise cannot_run_spark("Spark", error) from error
    except PySparkRuntimeError as error:
        complaints.close_write_end()
        raise FedpingError(f"Spark did not start on master {master}: {complaints.cause()}") from error
    finally:
        complaints.close_write_end()
    return gateway, complaints


def end_jvm(jvm: Jvm, seconds: float = END_SECONDS) -> None:
    """Stop the application and end its JVM, by force if it doesn't end within ``seconds``.

    Calls to the JVM don't block afterwards: a call to a killed JVM returns immediately.
    """
    from pyspark import SparkContext

    context, listener = SparkContext._active_spark_context, None
    overdue = threading.Timer(seconds, jvm.kill)
    overdue.daemon = True
    with signals_held():
        overdue.start()
        try:
            if context is not None:
                listener, context._accumulatorServer = context._accumulatorServer, None  # type: ignore[assignment]
                _stop(context)
        finally:
            SparkContext._active_spark_context = SparkContext._gateway = SparkContext._jvm = None
            with _listening_ends(listener):
                jvm.gateway.shutdown()
                _end_process(jvm.process)
            overdue.cancel()
            LIVING.remove(jvm.process)
            jvm.complaints.end()


def quieten_listening(context: SparkContext) -> None:
    """Prevent the thread that receives accumulators from printing a traceback when the JVM ends for any reason."""
    server = context._accumulatorServer
    if server is not None:
        server.handle_error = lambda *_: None  # type: ignore[method-assign]


@contextmanager
def _listening_ends(listener: Any) -> Iterator[None]:
    """End the thread that receives accumulators from the JVM, while the JVM ends.

    Without this, the end takes a second, a fifth of a short job: the thread checks once a second, or when its peer
    ends.
    """
    if listener is None:
        yield
        return
    ending = threading.Thread(target=listener.shutdown, daemon=True)
    ending.start()
    try:
        yield
    finally:
        ending.join()


def _stop(context: SparkContext) -> None:
    from py4j.protocol import Py4JError  # type: ignore[import-untyped]
    from pyspark.sql import SparkSession

    session = SparkSession._instantiatedSession
    # A JVM that has died, or was cut off by Ctrl-C in mid-answer, cannot be asked to stop; it is killed.
    with suppress(Py4JError, OSError):
        context.stop() if session is None else session.stop()
    SparkSession._instantiatedSession = SparkSession._activeSession = None


def _end_process(process: subprocess.Popen[bytes]) -> None:
    """End the JVM in order by closing the pipe that it reads. The death of this process would close it, too."""
    if process.stdin is not None:
        with suppress(BrokenPipeError):
            process.stdin.close()
    process.wait()  # bounded: a timer kills it
