"""Failures of Spark and Java in one sentence for people."""

from __future__ import annotations

import os
import re
import sys
import threading
from dataclasses import dataclass

from fedping.protocol.errors import FedpingError
from fedping.server_jobs.shutdown import TemporaryFailure
from fedping.server_jobs.spark.arguments import is_local

UNCAUGHT = re.compile(r'Exception in thread "main" [\w.$]+: (.+)')
LAST_WORD_SECONDS = 5
ERROR = re.compile(r"Error: (.+)")


class Complaints:
    """A pipe for the JVM's output, whose content goes to stderr once Spark has started.

    The JVM's output must not mix with ours, which may be JSON for a machine, so both of its streams come here.
    """

    def __init__(self) -> None:
        self._read_end, self.write_end = os.pipe()
        self._held: list[bytes] | None = []
        self._closed = False
        self._lock = threading.Lock()
        self._reader = threading.Thread(target=self._read, name="spark-complaints", daemon=True)
        self._reader.start()

    def pass_on(self) -> None:
        """Write the held-back output to stderr, and everything from now on immediately."""
        with self._lock:
            held, self._held = self._held or [], None
            _write(b"".join(held))

    def close_write_end(self) -> None:
        """Close our handle once the JVM has its own, so that the end of its output is seen."""
        if not self._closed:
            self._closed = True
            os.close(self.write_end)

    def end(self) -> None:
        """Wait until the JVM's last word has been read, but not for a process that may have inherited the pipe."""
        self._reader.join(LAST_WORD_SECONDS)

    def said(self) -> str:
        """Return the output that is held back so far."""
        with self._lock:
            return b"".join(self._held or []).decode(errors="replace").strip()

    def cause(self) -> str:
        """Wait for the JVM's end and return in one line why Spark did not start: its error, or else its last word."""
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
class Job:
    """What is told of whatever is done on a session: its name, and what to do when it has failed."""

    name: str
    again: str


ROUND = Job("the round", "nothing was published; run the same command again")

MISMATCH = re.compile(r"Python in worker has different version: '?([\d.]+)'? than that in driver: '?([\d.]+)'?")
NO_MODULE = re.compile(r"ModuleNotFoundError: No module named '([\w.]+)'")
NO_PROGRAM = re.compile(r'Cannot run program "([^"]+)"')
LOST_EXECUTOR = re.compile(r"ExecutorLostFailure \([^)]*\) *(?:Reason: )?([^\n]*)")
ENDED = re.compile(r"SparkContext was shut down|stopped SparkContext|Master removed our application|has been killed")
REFUSED = re.compile(
    r"Expected SaslMessage|Exception while bootstrapping client|[Aa]uthentication failed|SaslException"
)
NOT_ANSWERING = re.compile(r"All masters are unresponsive|stopped SparkContext|Connection refused|Failed to connect")


def told(error: BaseException, master: str, job: Job = ROUND) -> FedpingError | None:
    """Return the sentence for a job's error, or None for a defect, which keeps its traceback.

    Errors that a person must fix are a :class:`FedpingError`; those that may pass are a temporary failure.
    """
    from py4j.protocol import Py4JError, Py4JNetworkError  # type: ignore[import-untyped]

    # A plain Py4JError is the protocol's own: errors from Java are of a derived class.
    if isinstance(error, Py4JNetworkError | ConnectionError | EOFError) or type(error) is Py4JError:
        return jvm_lost(job)
    said = str(error)
    if found := MISMATCH.search(said):
        return FedpingError(
            f"the executors of {master} run Python {found[1]}, and this is Python {found[2]}: both have to be of the "
            f"same minor version; set PYSPARK_PYTHON to a Python {found[2]} on the workers, or run this with {found[1]}"
        )
    if (found := NO_MODULE.search(said)) and found[1].partition(".")[0] != "fedping":
        return FedpingError(
            f"the executors' Python lacks the package {found[1]}: install fedping's dependencies on the workers, or "
            "set PYSPARK_PYTHON to a Python there that has them"
        )
    if found := NO_PROGRAM.search(said):
        return FedpingError(
            f"the executors of {master} have no Python at {found[1]}: set PYSPARK_PYTHON to where the workers have one"
        )
    if found := LOST_EXECUTOR.search(said):
        return TemporaryFailure(
            f"executors of {master} were lost in the middle of {job.name}, again and again "
            f"({found[1].strip().rstrip('.') or 'without a word'}): look at their logs and memory; {job.again}"
        )
    if ENDED.search(said):
        return application_ended(master, job)
    return None


def jvm_lost(job: Job) -> TemporaryFailure:
    """Return the sentence for a JVM that no longer answers."""
    return TemporaryFailure(
        f"Spark's JVM on this machine ended in the middle of {job.name}: was it killed, or is the memory short? "
        f"(--driver-memory of spark-submit.sh gives it more); {job.again}"
    )


def application_ended(master: str, job: Job) -> TemporaryFailure:
    """Return the sentence for an application that was ended from outside."""
    return TemporaryFailure(
        f"Spark's application was ended in the middle of {job.name}, by {master} or because it cannot be reached: "
        f"look at its log; {job.again}"
    )


def executors_lost(master: str, seconds: float, job: Job) -> TemporaryFailure:
    """Return the sentence for a job whose executors are all gone without replacement."""
    return TemporaryFailure(
        f"all executors were lost in the middle of {job.name}, and {master} gave no other within {seconds:.0f} s: has "
        f"it been restarted, are its workers there? {job.again}"
    )


def not_started(error_line: str, master: str, said: str = "") -> FedpingError:
    """Return the sentence for a Spark that does not start; it is temporary if only the master's answer is missing.

    Args:
        error_line: the error that it ended with.
        master: its master.
        said: what its JVM has written until then.
    """
    if is_local(master) or not NOT_ANSWERING.search(error_line):
        return FedpingError(f"Spark did not start on master {master}: {error_line}")
    if REFUSED.search(said):
        return secret_refused(master)
    return TemporaryFailure(
        f"Spark did not start on master {master}: it does not answer; does it run, and can this machine reach it?"
    )


def secret_refused(master: str) -> FedpingError:
    """Return the sentence for a master with which a connection came about, and no agreement on the secret."""
    return FedpingError(
        f"the master {master} and this machine do not agree on their secret: give both the same "
        "spark.authenticate, spark.authenticate.secret and spark.network.crypto.enabled, in the properties file of each"
    )


NO_EXECUTOR = (
    "no executor has come; does {master} have workers that are alive, with as many free cores and as much memory as "
    "an executor asks for?"
)
"""What a round was waiting for when nobody took its job."""

NO_START = "Spark had not started on master {master}; does it run, and can this machine reach it?"
"""What a round was waiting for when it had no session yet."""
