"""A Spark session that starts fast, prints little, and leaves no processes, folders or settings behind."""

from __future__ import annotations

import os
import shlex
import signal
import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from itertools import takewhile
from pathlib import Path
from typing import TYPE_CHECKING

from fedping.server_jobs.shutdown import ApplicationGone, DeadlineReached
from fedping.server_jobs.spark.failures import NO_START, not_started
from fedping.server_jobs.spark.installation import Java, current_archive, find_java, spark_home
from fedping.server_jobs.spark.jvm import (
    CUT_OFF_SECONDS,
    END_SECONDS,
    Jvm,
    end_jvm,
    kill_what_is_left,
    may_use_private_names,
    prepare_py4j,
    quieten_listening,
    start_jvm,
)
from fedping.server_jobs.spark.settings import (
    SparkSettings,
    Start,
    is_local,
    option_pairs,
    plan,
    properties_of,
    submit_arguments,
    value_of,
)
from fedping.server_jobs.spark.shipping import package_roots, ship_code

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SET_BY_SPARK = ("SPARK_AUTH_SOCKET_TIMEOUT", "SPARK_BUFFER_SIZE")
"""Environment variables that PySpark sets in this process from the session's settings."""


SECRET_FROM_WORKER = "_SPARK_AUTH_SECRET"
"""Variable in which a standalone worker passes the cluster's secret to a driver, whose settings don't contain it."""


@contextmanager
def spark_session(settings: SparkSettings | None = None) -> Iterator[SparkSession]:
    """Start Spark, yield its session, and end it with its JVM.

    Under `spark-submit`, the JVM already exists, with the operator's settings, and ends by itself. Otherwise it is
    started here: it ignores Ctrl-C, so that Python can end the job in order, and always ends with this process. If
    the master isn't local, the code of this installation is shipped to the executors. If private names may not be
    used (:mod:`fedping.server_jobs.spark.jvm`), the JVM is kept for later sessions until this process ends.

    Raises:
        FedpingError: there is no Java, or Spark doesn't start with these settings; a temporary failure if its master
            is unreachable.
        RuntimeError: this process already has a session.
    """
    settings = settings or SparkSettings()
    if "PYSPARK_GATEWAY_PORT" in os.environ:
        with _adopted(settings) as session:
            yield session
        return
    with (_own if may_use_private_names() else _documented)(settings) as session:
        yield session


@contextmanager
def _adopted(settings: SparkSettings) -> Iterator[SparkSession]:
    from py4j.protocol import Py4JError, Py4JNetworkError  # type: ignore[import-untyped]
    from pyspark.sql import SparkSession

    if may_use_private_names():
        prepare_py4j()
    builder = SparkSession.builder
    for key, value in settings.conf.items():
        builder = builder.config(key, value)
    if secret := os.environ.get(SECRET_FROM_WORKER):
        builder = builder.config("spark.authenticate.secret", secret)
    try:
        with _interrupts_kept():
            session = builder.getOrCreate()
    except (Py4JNetworkError, OSError) as error:
        raise ApplicationGone(
            "the JVM of spark-submit that started this program has ended; run the command again"
        ) from error
    try:
        ship_code(session, settings.packages)
        with _interruption_first():
            yield session
    finally:
        # After a failure or an interruption, Spark can't always be asked to stop. The JVM was started elsewhere.
        with suppress(Py4JError, OSError):
            session.stop()


@contextmanager
def _own(settings: SparkSettings) -> Iterator[SparkSession]:
    from pyspark import SparkContext

    if SparkContext._gateway is not None:
        raise RuntimeError("this process already runs a Spark session")
    home, java = spark_home(), find_java()
    start = plan(settings, submit_arguments(os.environ), home, current_archive(java, home))
    path_before, jvm, seconds = list(sys.path), None, END_SECONDS
    try:
        with _environment(_variables(start, java, home)), _start_told_of(start.master):
            jvm = start_jvm(start.master)
            with _interrupts_kept():
                session = _connect(jvm, start)
        quieten_listening(session.sparkContext)
        jvm.complaints.pass_on()
        ship_code(session, settings.packages)
        with _interruption_first():
            yield session
    except BaseException:
        seconds = CUT_OFF_SECONDS
        raise
    finally:
        if jvm is not None:
            end_jvm(jvm, seconds)
        kill_what_is_left()
        sys.path[:] = path_before
        for name in SET_BY_SPARK:
            os.environ.pop(name, None)


@contextmanager
def _documented(settings: SparkSettings) -> Iterator[SparkSession]:
    """Start and stop Spark with only documented calls of PySpark."""
    from py4j.protocol import Py4JError
    from pyspark.errors import PySparkException
    from pyspark.sql import SparkSession

    if SparkSession.getActiveSession() is not None:
        raise RuntimeError("this process already runs a Spark session")
    home, java = spark_home(), find_java()
    start = plan(settings, submit_arguments(os.environ), home, current_archive(java, home))
    path_before = list(sys.path)
    builder = SparkSession.builder.master(start.master)
    for name, value in option_pairs(start.arguments):
        if name == "--conf":  # for a JVM that has served an earlier session
            builder = builder.config(*value.split("=", 1))
    try:
        with _environment(_variables(start, java, home)), _start_told_of(start.master), _interrupts_kept():
            session = builder.getOrCreate()
    except (Py4JError, PySparkException, OSError) as error:
        raise not_started(_cause(error), start.master) from error
    try:
        ship_code(session, settings.packages)
        with _interruption_first():
            yield session
    finally:
        with suppress(Py4JError, OSError):  # a dead JVM cannot be asked to stop
            session.stop()
        sys.path[:] = path_before
        for name in SET_BY_SPARK:
            os.environ.pop(name, None)


def _variables(start: Start, java: Java, home: Path) -> dict[str, str]:
    made = {
        "JAVA_HOME": str(java.home()),
        "SPARK_HOME": str(home),
        "PYSPARK_SUBMIT_ARGS": shlex.join([*start.arguments, "pyspark-shell"]),
        "PYSPARK_PYTHON": _python_of_executors(start, home) or sys.executable,
    }
    if is_local(start.master):
        made["PYSPARK_PYTHON"] = sys.executable
        made["SPARK_LOCAL_IP"] = os.environ.get("SPARK_LOCAL_IP") or "127.0.0.1"
        # Workers find modules where this process finds them, wherever it was started. The neighbours of our package,
        # such as the folders of a checkout, must not shadow the operator's own modules, so it comes last.
        roots = [*_own_path(), *os.environ.get("PYTHONPATH", "").split(os.pathsep), *package_roots()]
        made["PYTHONPATH"] = os.pathsep.join(filter(None, dict.fromkeys(roots)))
        made["PYTHONSAFEPATH"] = "1"  # nor must modules in the folder where workers are started
    return made


def _own_path() -> list[str]:
    """Return the module search path that precedes Python's own paths, such as a script's folder."""
    last = f"python{sys.version_info.major}{sys.version_info.minor}.zip"  # the first of Python's own paths
    return [str(Path(each).absolute()) for each in takewhile(lambda each: Path(each).name != last, sys.path)]


def _python_of_executors(start: Start, home: Path) -> str | None:
    """Return the Python that the operator set for executors, by Spark's precedence; PySpark only reads the variable."""
    properties = properties_of(start.arguments, os.environ, home)
    return value_of(start.arguments, "", "spark.pyspark.python", properties) or os.environ.get("PYSPARK_PYTHON")


def _connect(jvm: Jvm, start: Start) -> SparkSession:
    from py4j.protocol import Py4JError
    from pyspark import SparkContext
    from pyspark.errors import PySparkException
    from pyspark.sql import SparkSession

    try:
        SparkContext._ensure_initialized(gateway=jvm.gateway)
        return SparkSession.builder.getOrCreate()
    except (Py4JError, PySparkException) as error:
        raise not_started(_cause(error), start.master, jvm.complaints.said()) from error


@contextmanager
def _start_told_of(master: str) -> Iterator[None]:
    """Name Spark's start in the error if a time limit is reached within this context."""
    try:
        yield
    except DeadlineReached as error:
        error.waited_for = NO_START.format(master=master)
        raise


def _cause(error: Exception) -> str:
    """Return the informative line of a Java error, without its stack trace."""
    java = getattr(error, "java_exception", None)
    while java is not None and java.getCause() is not None:
        java = java.getCause()
    said = str(java.getMessage() or java.toString()) if java is not None else str(error)
    return next(iter(said.strip().splitlines()), type(error).__name__)


@contextmanager
def _interruption_first() -> Iterator[None]:
    """Raise Ctrl-C's exception instead of a subsequent error in PySpark's clean-up after the JVM has ended, too."""
    from py4j.protocol import Py4JError

    try:
        yield
    except (Py4JError, OSError) as error:
        earlier: BaseException | None = error
        while earlier is not None and not isinstance(earlier, KeyboardInterrupt):
            earlier = earlier.__context__
        if earlier is None:
            raise
        raise KeyboardInterrupt from error


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
def _interrupts_kept() -> Iterator[None]:
    """Restore the caller's handler of Ctrl-C after the context; Spark replaces it permanently."""
    before = signal.getsignal(signal.SIGINT)
    try:
        yield
    finally:
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGINT, before)
