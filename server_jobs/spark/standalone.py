"""Cluster mode of Spark's standalone clusters, which run no Python drivers by themselves, but Java programs.

One of these is Spark's own ``PythonRunner``, by which every other cluster runs a Python driver. It is submitted as the
application. What Spark takes for the application's jar, and has the driver's machine fetch, is the zip of our packages.

A submission goes by the RPC of the master, which asks for the secret where ``spark.authenticate`` is on, and never by
its REST gateway, which does not.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Sequence
from pathlib import Path

from fedping.protocol import log
from fedping.protocol.errors import FedpingError, InvalidSettings
from fedping.server_jobs.shutdown import TemporaryFailure
from fedping.server_jobs.spark.arguments import pairs
from fedping.server_jobs.spark.cache import cache_folder, put
from fedping.server_jobs.spark.failures import REFUSED, secret_refused
from fedping.server_jobs.spark.java import find_java
from fedping.server_jobs.spark.settings import LOG4J, QUICK_START, class_path
from fedping.server_jobs.spark.shipping import STAGING, code_jar_file, needed_by
from fedping.server_jobs.spark.submission import run_and_read

SUBMIT = "org.apache.spark.deploy.SparkSubmit"
RUNNER = "org.apache.spark.deploy.PythonRunner"
CLIENT = "org.apache.spark.deploy.Client"

LOG4J_OF_CLIENT = """\
logger.client.name = org.apache.spark.deploy.ClientEndpoint
logger.client.level = info
"""
"""Spark tells only by its log what has become of a submission: its exit code is 0 even of a driver that has failed."""

OPENED = tuple(
    f"--add-opens=java.base/{package}=ALL-UNNAMED"
    for package in (
        "java.lang",
        "java.lang.invoke",
        "java.io",
        "java.net",
        "java.nio",
        "java.util",
        "java.util.concurrent",
    )
)
"""What Spark opens of Java for every JVM that it starts but this one: Arrow needs ``java.nio``."""

SUBMITTED = re.compile(r"Driver successfully submitted as (\S+)")
ENDED = re.compile(r"State of driver (\S+) is ([A-Z]+), exiting")
NO_MASTER = re.compile(r"No master is available|All masters are unresponsive")


def submit(options: Sequence[str], command: Sequence[str], master: str, home: Path) -> int:
    """Submit a command, and wait for its end unless ``spark.standalone.submit.waitAppCompletion`` is false.

    Returns:
        0 if the driver was submitted and has not failed, else 1; 130 or 143 if a signal ended the wait.

    Raises:
        InvalidSettings: nothing says where the code can be put for the driver's machine to fetch it.
        FedpingError: it cannot be put there, or Java does not run.
        TemporaryFailure: the master does not answer.
    """
    named = os.environ.get(STAGING)
    if not named:
        raise InvalidSettings(
            f"for a driver on a standalone cluster, set {STAGING} to a folder that all its machines see under one "
            "path: the driver's machine fetches the code from there"
        )
    code = code_jar_file(Path(named).absolute(), needed_by(command))
    theirs = [value for name, value in pairs(options) if name == "--py-files"][-1:]
    ours = ["--conf", "spark.standalone.submit.waitAppCompletion=true"]
    ours += ["--conf", f"spark.driver.extraJavaOptions={' '.join((*QUICK_START, *OPENED))}"]
    ours += ["--conf", f"spark.pyspark.python={os.environ.get('PYSPARK_PYTHON') or sys.executable}"]
    application = ["--conf", "spark.master.rest.enabled=false", "--class", RUNNER, code.as_uri()]
    # To PythonRunner: the program, which is in the driver's folder by then; what Python's path gets; its arguments.
    arguments = [code.name, ",".join([code.name, *theirs]), *command]
    words = [*ours, *_without(options, "--py-files"), *application, *arguments]
    said = _told_by_spark(words, home)
    if ended := ENDED.search(said):
        return _outcome(ended[1], ended[2])
    if SUBMITTED.search(said):
        return 0
    if REFUSED.search(said):
        raise secret_refused(master)
    if NO_MASTER.search(said):
        raise TemporaryFailure(
            f"the driver was not submitted: {master} does not answer; does it run, and can this machine reach it?"
        )
    raise FedpingError(f"the driver was not submitted to {master}; Spark says why, above")


def kill(options: Sequence[str], master: str, driver: str, home: Path) -> int:
    """Ask a master to kill a driver, by the same way as it was submitted; return 0 if it does so."""
    # Any file will do for the jar: the class is Spark's own.
    jar = str(next(home.glob("jars/spark-core_*.jar"), home))
    client = ["--master", "local", "--deploy-mode", "client", "--class", CLIENT, jar, "kill", master, driver]
    return 0 if "kill request for" in _told_by_spark([*_without(options, "--kill"), *client], home).lower() else 1


def _outcome(driver: str, state: str) -> int:
    if state == "FINISHED":
        return 0
    where = f"what it said is in the folder work/{driver} of its worker, and on that worker's page"
    log.tell(f"{driver} ended as {state}; {where}", before="spark-submit.sh: ")
    return 1


def _without(options: Sequence[str], left_out: str) -> list[str]:
    """Return options for spark-submit without one of them, such as ``--py-files``, which only Python programs have."""
    kept: list[str] = []
    for name, value in pairs(options):
        if name != left_out:
            kept += [name, value] if value else [name]
    return kept


def _told_by_spark(words: Sequence[str], home: Path) -> str:
    """Run Spark's program of submissions, pass on to stderr what it logs, and return that."""
    java = find_java().runtime / "bin" / "java"
    logging = put(cache_folder() / "spark" / "log4j2-submit.properties", (LOG4J + LOG4J_OF_CLIENT).encode())
    started = [
        str(java),
        *QUICK_START,
        f"-Dlog4j2.configurationFile={logging.as_uri()}",
        "-cp",
        class_path(home),
        SUBMIT,
    ]
    _, said = run_and_read([*started, *words], {**os.environ, "SPARK_HOME": str(home)})
    return said
