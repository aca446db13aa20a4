"""Running Spark's program of submissions and reading what it says: its exit code alone does not tell a driver's."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Mapping, Sequence

from fedping.protocol.errors import FedpingError
from fedping.server_jobs.shutdown import Interrupted, ended_by_signals

EXIT_CODE = re.compile(r"^\s*exit code: (\d+)$", re.MULTILINE)


def to_kubernetes(words: Sequence[str], environment: Mapping[str, str]) -> int:
    """Run a submission to Kubernetes; return the exit code of the driver's container, where one is waited for."""
    code, said = run_and_read(words, environment)
    ended = EXIT_CODE.findall(said)
    return code or int(ended[-1]) if ended else code


def run_and_read(words: Sequence[str], environment: Mapping[str, str]) -> tuple[int, str]:
    """Run a program and pass on to stderr what it says; return its exit code, and what it has said.

    Raises:
        FedpingError: it cannot be run.
        EndedBySignal: SIGINT or SIGTERM came; the program is killed, and the driver that it waits for goes on.
    """
    said = []
    with ended_by_signals():
        try:
            process = subprocess.Popen(
                words,
                env=dict(environment),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                errors="replace",
            )
        except OSError as error:
            raise FedpingError(
                f"cannot run {words[0]} ({error}): SPARK_HOME has to be a Spark 4.3, or unset"
            ) from error
        try:
            for line in process.stdout or ():
                said.append(line)
                print(line, end="", file=sys.stderr, flush=True)
        except Interrupted:
            process.kill()
            raise
        finally:
            process.wait()
    return process.returncode, "".join(said)
