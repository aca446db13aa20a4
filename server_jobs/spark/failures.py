"""Sentences for failures of Spark and Java."""

from __future__ import annotations

import re
from dataclasses import dataclass

from fedping.protocol.errors import FedpingError
from fedping.server_jobs.shutdown import TemporaryFailure
from fedping.server_jobs.spark.settings import is_local


@dataclass(frozen=True)
class Job:
    """A job on a session, for messages: its name, and the remedy after a failure."""

    name: str
    again: str


ROUND = Job("the round", "no version was published; run the same command again")

MISMATCH = re.compile(r"Python in worker has different version: '?([\d.]+)'? than that in driver: '?([\d.]+)'?")
NO_MODULE = re.compile(r"ModuleNotFoundError: No module named '([\w.]+)'")
NO_PROGRAM = re.compile(r'Cannot run program "([^"]+)"')
LOST_EXECUTOR = re.compile(r"ExecutorLostFailure \([^)]*\) *(?:Reason: )?([^\n]*)")
ENDED = re.compile(r"SparkContext was shut down|stopped SparkContext|Master removed our application|has been killed")
REFUSED = re.compile(
    r"Expected SaslMessage|Exception while bootstrapping client|[Aa]uthentication failed|SaslException"
)
NOT_ANSWERING = re.compile(r"All masters are unresponsive|stopped SparkContext|Connection refused|Failed to connect")


def failure_sentence(error: BaseException, master: str, job: Job = ROUND) -> FedpingError | None:
    """Return an error with a sentence for a job's error, or None for a defect, whose traceback is needed.

    The result is a :class:`TemporaryFailure` if the error may disappear by itself, else a :class:`FedpingError`.
    """
    from py4j.protocol import Py4JError, Py4JNetworkError  # type: ignore[import-untyped]

    # A plain Py4JError is an error of the protocol; errors from Java have a derived class.
    if isinstance(error, Py4JNetworkError | ConnectionError | EOFError) or type(error) is Py4JError:
        return jvm_lost(job)
    text = str(error)
    if found := MISMATCH.search(text):
        return FedpingError(
            f"the executors of {master} run Python {found[1]}, but this is Python {found[2]}, and their minor "
            f"versions must be equal; set PYSPARK_PYTHON to a Python {found[2]} on the workers, or run this with "
            f"{found[1]}"
        )
    if (found := NO_MODULE.search(text)) and found[1].partition(".")[0] != "fedping":
        return FedpingError(
            f"the executors' Python lacks the package {found[1]}; install fedping's dependencies on the workers, or "
            "set PYSPARK_PYTHON to a Python with them"
        )
    if found := NO_PROGRAM.search(text):
        return FedpingError(
            f"the executors of {master} have no Python at {found[1]}; set PYSPARK_PYTHON to the workers' Python"
        )
    if found := LOST_EXECUTOR.search(text):
        return TemporaryFailure(
            f"executors of {master} were lost repeatedly during {job.name} "
            f"({found[1].strip().rstrip('.') or 'without a word'}): check their logs and memory; {job.again}"
        )
    if ENDED.search(text):
        return application_ended(master, job)
    return None


def jvm_lost(job: Job) -> TemporaryFailure:
    """Return the error for a JVM that no longer responds."""
    return TemporaryFailure(
        f"Spark's JVM on this machine ended during {job.name}, possibly killed or out of memory: give it more with "
        f"--driver-memory of spark-submit.sh; {job.again}"
    )


def application_ended(master: str, job: Job) -> TemporaryFailure:
    """Return the error for an application that was ended from outside."""
    return TemporaryFailure(
        f"Spark's application was ended during {job.name}, by {master} or because it is unreachable: check the "
        f"master's log; {job.again}"
    )


def executors_lost(master: str, seconds: float, job: Job) -> TemporaryFailure:
    """Return the error for a job whose executors have all ended without replacement."""
    return TemporaryFailure(
        f"all executors were lost during {job.name}, and {master} provided no others within {seconds:.0f} s: check "
        f"whether it was restarted, and its workers; {job.again}"
    )


def not_started(error_line: str, master: str, said: str = "") -> FedpingError:
    """Return the error for a Spark that doesn't start. It is temporary if only the master's response is missing.

    Args:
        error_line: the line with the error that ended the start.
        master: the URL of Spark's master.
        said: the output of the JVM.
    """
    if is_local(master) or not NOT_ANSWERING.search(error_line):
        return FedpingError(f"Spark did not start on master {master}: {error_line}")
    if REFUSED.search(said):
        return secret_refused(master)
    return TemporaryFailure(
        f"Spark did not start on master {master}, which does not answer: check that it runs, and that this machine "
        "can reach it"
    )


def secret_refused(master: str) -> FedpingError:
    """Return the error for a master that responds, but has another secret."""
    return FedpingError(
        f"the master {master} and this machine have different secrets: set the same spark.authenticate, "
        "spark.authenticate.secret and spark.network.crypto.enabled in both properties files"
    )


NO_EXECUTOR = (
    "no executor started: check that {master} has live workers with enough free cores and memory for an executor"
)
"""Reason if a time limit is reached before an executor has started."""

NO_START = "Spark had not started on master {master}: check that it runs, and that this machine can reach it"
"""Reason if a time limit is reached before the session has started."""
