"""A Spark session that starts fast, says little, and leaves nothing behind: no process, no folder, no setting."""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from protocol.errors import FedpingError
from server_jobs.spark.archive import current_archive
from server_jobs.spark.arguments import is_local
from server_jobs.spark.java import Java, find_java
from server_jobs.spark.settings import SparkSettings, Start, plan, submit_arguments
from server_jobs.spark.shipping import package_roots, ship_code

if TYPE_CHECKING:
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

END_SECONDS = 20
"""How long the JVM may take to end before it is killed; it takes a tenth of a second."""


@contextmanager
def spark_session(settings: SparkSettings | None = None) -> Iterator[SparkSession]:
    """Start Spark, yield its session, and end it with its JVM.

    Under `spark-submit` the JVM is there already, with the operator's settings, and is left to end by itself. Else it
    is ours: it ignores Ctrl-C, so that Python can end the job in order, and ends with this process however that ends.
    On a master that is not local the code of this installation is shipped to the executors.

    Raises:
        FedpingError: no Java, or Spark does not start with these settings.
        RuntimeError: this process has a session already.
    """
    settings = settings or SparkSettings()
    if "PYSPARK_GATEWAY_PORT" in os.environ:
        with _adopted(settings) as session:
            yield session
        return
    with _own(settings) as session:
        yield session


def spark_home() -> Path:
    """Return the folder of the Spark that will run: ``SPARK_HOME``, else that of the pyspark package."""
    import pyspark

    return Path(os.environ.get("SPARK_HOME") or Path(pyspark.__file__).parent)


@contextmanager
def _adopted(settings: SparkSettings) -> Iterator[SparkSession]:
    from pyspark.sql import SparkSession

    builder = SparkSession.builder
    for key, value in settings.conf.items():
        builder = builder.config(key, value)
    session = builder.getOrCreate()
    try:
        ship_code(session)
        yield session
    finally:
        session.stop()


@contextmanager
def _own(settings: SparkSettings) -> Iterator[SparkSession]:
    from pyspark import SparkContext

    if SparkContext._gateway is not None:
        raise RuntimeError("this process runs a Spark session already")
    home, java = spark_home(), find_java()
    start = plan(settings, submit_arguments(os.environ), home, current_archive(java, home))
    path_before, gateway = list(sys.path), None
    try:
        with _environment(_variables(start, java, home)):
            with _interrupts_held():
                gateway = _launch()
            with _interrupts_kept():
                session = _connect(gateway, start)
        ship_code(session)
        yield session
    finally:
        if gateway is not None:
            _end(gateway)
        sys.path[:] = path_before


def _variables(start: Start, java: Java, home: Path) -> dict[str, str]:
    made = {
        "JAVA_HOME": str(java.home()),
        "SPARK_HOME": str(home),
        "PYSPARK_SUBMIT_ARGS": shlex.join([*start.arguments, "pyspark-shell"]),
        "PYSPARK_PYTHON": os.environ.get("PYSPARK_PYTHON") or sys.executable,
    }
    if is_local(start.master):
        made["PYSPARK_PYTHON"] = sys.executable
        made["SPARK_LOCAL_IP"] = os.environ.get("SPARK_LOCAL_IP") or "127.0.0.1"
        # Workers find our packages where this process found them, wherever it was started.
        roots = [*package_roots(), os.environ.get("PYTHONPATH", "")]
        made["PYTHONPATH"] = os.pathsep.join(filter(None, roots))
    return made


def _launch() -> Any:
    from pyspark.errors import PySparkRuntimeError
    from pyspark.java_gateway import launch_gateway

    try:
        # What the JVM prints is no part of our output, which may be JSON for a machine.
        return launch_gateway(popen_kwargs={"stdout": sys.__stderr__})  # type: ignore[no-untyped-call]
    except PySparkRuntimeError as error:
        raise FedpingError("Spark did not start: see what it printed above, and check its options") from error


def _connect(gateway: Any, start: Start) -> SparkSession:
    from py4j.protocol import Py4JError  # type: ignore[import-untyped]
    from pyspark import SparkContext
    from pyspark.errors import PySparkException
    from pyspark.sql import SparkSession

    try:
        SparkContext._ensure_initialized(gateway=gateway)
        return SparkSession.builder.getOrCreate()
    except (Py4JError, PySparkException) as error:
        raise FedpingError(f"Spark did not start on master {start.master}: {_cause(error)}") from error


def _cause(error: Exception) -> str:
    """Return the one line of a Java error that a person needs, without the 40 lines of where in Spark it arose."""
    java = getattr(error, "java_exception", None)
    while java is not None and java.getCause() is not None:
        java = java.getCause()
    said = str(java.getMessage() or java.toString()) if java is not None else str(error)
    return next(iter(said.strip().splitlines()), type(error).__name__)


def _end(gateway: Any) -> None:
    """Stop the application and end its JVM."""
    from pyspark import SparkContext

    context, listener = SparkContext._active_spark_context, None
    try:
        if context is not None:
            listener, context._accumulatorServer = context._accumulatorServer, None  # type: ignore[assignment]
            _stop(context)
    finally:
        SparkContext._gateway = SparkContext._jvm = None
        with _listening_ends(listener):
            gateway.shutdown()
            _end_process(gateway.proc)


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
    from py4j.protocol import Py4JError
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
def _environment(variables: Mapping[str, str]) -> Iterator[None]:
    before = {name: os.environ.get(name) for name in variables}
    os.environ.update(variables)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


@contextmanager
def _interrupts_held() -> Iterator[None]:
    """Hold back Ctrl-C while the JVM starts: an interruption there would lose the only handle on its process."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    received: list[int] = []
    before = signal.signal(signal.SIGINT, lambda number, _: received.append(number))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
    if received:
        raise KeyboardInterrupt


@contextmanager
def _interrupts_kept() -> Iterator[None]:
    """Keep the caller's handler of Ctrl-C, which Spark replaces by its own for good."""
    before = signal.getsignal(signal.SIGINT)
    try:
        yield
    finally:
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGINT, before)
