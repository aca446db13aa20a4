"""A real standalone Spark cluster on this machine: a master and workers, in processes of their own, on loopback."""

import os
import re
import signal
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from server_jobs.spark.home import spark_home
from server_jobs.spark.java import java_home
from server_jobs.spark.settings import QUICK_START
from tests.support.effort import few_or_all
from tests.support.processes import left_over, new_mark, wait_until

START_SECONDS = 120

QUICK_EXECUTORS = {"spark.executor.extraJavaOptions": " ".join(QUICK_START)}
"""What a session is given whose executors live for seconds: as the driver's JVM, they shall not optimise long."""


@dataclass(frozen=True)
class Cluster:
    """A running cluster: the URL of its master, and the folder with its logs and the work of its executors."""

    master: str
    folder: Path

    def executor_logs(self) -> str:
        """Return what all executors have written to stderr."""
        return "\n".join(path.read_text() for path in sorted(self.folder.glob("work-*/app-*/*/stderr")))


@pytest.fixture(scope="session")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """One cluster for all that run something on one: two cores, in one executor or, by `make test-long`, in two."""
    with standalone_cluster(tmp_path_factory.mktemp("cluster"), workers=few_or_all(1, 2)) as running:
        yield running


@contextmanager
def standalone_cluster(folder: Path, workers: int) -> Iterator[Cluster]:
    """Start a master and workers of two cores in all; leave no process behind.

    Their working folder is empty and their environment knows nothing of this checkout, so that executors can import our
    packages only if those were shipped to them.
    """
    folder.mkdir(parents=True, exist_ok=True)
    mark = new_mark()
    environment = _clean_environment(folder) | mark
    try:
        with ExitStack() as running:
            master_log = folder / "master.log"
            master = running.enter_context(_daemon("master.Master", ["--port", "0"], environment, master_log))
            url = _said(master, master_log, r"Starting Spark master at (spark://\S+)")[0]
            for number in range(workers):
                arguments = [
                    "--cores",
                    str(2 // workers),
                    "--memory",
                    "1g",
                    "--work-dir",
                    str(folder / f"work-{number}"),
                    url,
                ]
                log = folder / f"worker-{number}.log"
                running.enter_context(_daemon("worker.Worker", arguments, environment, log))
            _said(master, master_log, r"Registering worker (\S+)", times=workers)
            yield Cluster(url, folder)
    finally:
        left = left_over(mark)
    assert not left, f"processes of the cluster are left: {left}"


@contextmanager
def _daemon(
    name: str, arguments: list[str], environment: dict[str, str], log: Path
) -> Iterator["subprocess.Popen[bytes]"]:
    command = [str(spark_home() / "bin" / "spark-class"), f"org.apache.spark.deploy.{name}"]
    command += ["--host", "127.0.0.1", "--webui-port", "0", *arguments]
    with open(log, "wb") as out:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=subprocess.STDOUT,
            env=environment,
            cwd=log.parent,
            start_new_session=True,
        )
    try:
        yield process
    finally:
        os.killpg(process.pid, signal.SIGTERM)
        process.wait(30)


def _said(process: subprocess.Popen, log: Path, pattern: str, times: int = 1) -> list[str]:
    def found() -> list[str]:
        return re.findall(pattern, log.read_text())

    wait_until(lambda: len(found()) >= times or process.poll() is not None, START_SECONDS)
    assert len(found()) >= times, f"no {times} x {pattern!r} in\n{log.read_text()}"
    return found()


def _clean_environment(folder: Path) -> dict[str, str]:
    return {
        "PATH": "/usr/bin:/bin",
        "HOME": str(folder),
        "JAVA_HOME": str(java_home()),
        "SPARK_HOME": str(spark_home()),
        "SPARK_LOCAL_IP": "127.0.0.1",
        "SPARK_LOCAL_DIRS": str(folder / "local"),
        "SPARK_DAEMON_MEMORY": "256m",
        "SPARK_DAEMON_JAVA_OPTS": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
    }
