"""The JVM of a session: started so that it can always be ended, and ended without waiting for anything."""

from __future__ import annotations

import logging
import signal
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from protocol.errors import FedpingError
from server_jobs.spark.complaints import Complaints

if TYPE_CHECKING:
    from pyspark import SparkContext

END_SECONDS = 20
"""How long the JVM may take to end before it is killed; it takes a tenth of a second."""


@dataclass(frozen=True)
class Jvm:
    """A JVM of ours: PySpark's connection to it, which knows its process, and what it writes."""

    gateway: Any
    complaints: Complaints


def start_jvm(master: str) -> Jvm:
    """Start a JVM with the environment's Java, Spark and options; Ctrl-C waits until it can be ended.

    Raises:
        FedpingError: it does not start.
        KeyboardInterrupt: Ctrl-C came meanwhile; the JVM has been ended.
    """
    with _interrupts_held() as interrupted:
        jvm = _launch(master)
    if interrupted:
        end_jvm(jvm)
        raise KeyboardInterrupt
    return jvm


def _quieten_py4j() -> None:
    """Keep Py4J from logging the traceback of every call that Ctrl-C interrupts; what it logs it also raises.

    It logs in part by the root logger, whose records can be told by the file that they come from.
    """
    logging.getLogger("py4j").setLevel(logging.CRITICAL)
    logging.getLogger().addFilter(_not_from_py4j)


def _not_from_py4j(record: logging.LogRecord) -> bool:
    return "py4j" not in record.pathname


def _close_here_what_is_interrupted() -> None:
    """Have Ctrl-C in a call to the JVM close connections on this side alone.

    Py4J also asks the JVM to close the interrupted one, by its two ports, over every connection that is open. The JVM
    takes that to mean all connections with one of those ports, so all there are: one is the port that it listens on.
    Whoever opens another meanwhile, such as PySpark to clean up after the call, fails, and the error takes the place of
    the interruption. Nor is the JVM to be asked: it sees by itself that a connection has been closed.
    """
    from py4j.clientserver import ClientServerConnection  # type: ignore[import-untyped]

    ClientServerConnection.shutdown_socket = lambda connection, *_: connection.close()


def _launch(master: str) -> Jvm:
    from pyspark.errors import PySparkRuntimeError
    from pyspark.java_gateway import launch_gateway

    _quieten_py4j()
    _close_here_what_is_interrupted()
    complaints = Complaints()
    output = {"stdout": complaints.write_end, "stderr": complaints.write_end}
    try:
        gateway = launch_gateway(popen_kwargs=output)  # type: ignore[no-untyped-call]
    except OSError as error:
        raise FedpingError(f"Spark cannot be run ({error}): SPARK_HOME has to be a Spark 4.3, or unset") from error
    except PySparkRuntimeError as error:
        complaints.close_write_end()
        raise FedpingError(f"Spark did not start on master {master}: {complaints.cause()}") from error
    finally:
        complaints.close_write_end()
    return Jvm(gateway, complaints)


def end_jvm(jvm: Jvm) -> None:
    """Stop the application and end its JVM, in order if it answers, by force if it does not end."""
    from pyspark import SparkContext

    context, listener = SparkContext._active_spark_context, None
    try:
        if context is not None:
            listener, context._accumulatorServer = context._accumulatorServer, None  # type: ignore[assignment]
            _stop(context)
    finally:
        SparkContext._active_spark_context = SparkContext._gateway = SparkContext._jvm = None
        with _listening_ends(listener):
            jvm.gateway.shutdown()
            _end_process(jvm.gateway.proc)
        jvm.complaints.end()


@contextmanager
def _listening_ends(listener: Any) -> Iterator[None]:
    """End the thread that takes accumulators from the JVM, while the JVM ends.

    Left to Spark this takes a second, a fifth of a short job: the thread looks up once a second, or when its peer goes.
    """
    if listener is None:
        yield
        return
    listener.handle_error = lambda *_: None  # that the peer goes is what we want
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
    # A JVM that has died, or was cut off in mid-answer by Ctrl-C, cannot be asked to stop; it is ended all the same.
    with suppress(Py4JError, OSError):
        context.stop() if session is None else session.stop()
    SparkSession._instantiatedSession = SparkSession._activeSession = None


def _end_process(process: subprocess.Popen[bytes]) -> None:
    """End the JVM in order by closing the pipe it reads, which is how it would also notice our sudden death."""
    if process.stdin is not None:
        process.stdin.close()
    try:
        process.wait(END_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


@contextmanager
def _interrupts_held() -> Iterator[list[int]]:
    """Hold back Ctrl-C while the JVM starts: an interruption there would lose the only handle on its process."""
    received: list[int] = []
    ignored = signal.getsignal(signal.SIGINT) == signal.SIG_IGN
    if ignored or threading.current_thread() is not threading.main_thread():
        yield received
        return
    before = signal.signal(signal.SIGINT, lambda number, _: received.append(number))
    try:
        yield received
    finally:
        signal.signal(signal.SIGINT, before)
