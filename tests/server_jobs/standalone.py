"""A real standalone Spark cluster on this machine: a master and workers, in separate processes, on loopback."""

import os
import re
import signal
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from fedping.server_jobs.spark.installation import java_home, spark_home
from fedping.server_jobs.spark.settings import QUICK_START
from tests.support.effort import few_or_all
from tests.support.processes import left_over, marked, new_mark, wait_until

START_SECONDS = 120

QUICK_EXECUTORS = {"spark.executor.extraJavaOptions": " ".join(QUICK_START)}
"""Spark settings for short-lived executors, whose JVMs, like the driver's, shouldn't spend time on optimising."""


@dataclass(frozen=True)
class Cluster:
    """A running cluster: its master's URL, and the folder with its logs and its executors' working folders."""

    master: str
    folder: Path

    def executor_logs(self) -> str:
        """Return the stderr of all executors."""
        return "\n".join(path.read_text() for path in sorted(self.folder.glob("work-*/app-*/*/stderr")))


@pytest.fixture(scope="session")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Give a shared cluster with one worker or, in `make test-long`, two, and room for a driver."""
    with standalone_cluster(tmp_path_factory.mktemp("cluster"), workers=few_or_all(1, 2)) as running:
        yield running


@contextmanager
def standalone_cluster(folder: Path, workers: int) -> Iterator[Cluster]:
    """Start a master and workers with four cores in all; end all processes afterwards.

    Their working folder is empty and their environment doesn't include this checkout, so that executors can import
    fedping only if it was shipped to them.
    """
    with machines(folder) as made:
        url = made.start_master()
        for _ in range(workers):
            made.start_worker(cores=4 // workers)
        made.wait_for_workers()
        yield Cluster(url, folder)


@contextmanager
def machines(folder: Path, settings: Mapping[str, str] | None = None) -> Iterator["Machines"]:
    """Yield a cluster's machines with some settings, not started yet; end all processes afterwards."""
    folder.mkdir(parents=True, exist_ok=True)
    write_settings(folder / "conf", settings or {})
    mark = new_mark()
    try:
        with ExitStack() as running:
            yield Machines(folder, _clean_environment(folder), mark, running)
    finally:
        left = left_over(mark)
    assert not left, f"processes of the cluster are left: {left}"


def write_settings(folder: Path, settings: Mapping[str, str]) -> Path:
    """Write a folder of Spark settings for SPARK_CONF_DIR, readable only by its owner."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "spark-defaults.conf"
    path.write_text("".join(f"{name} {value}\n" for name, value in settings.items()))
    path.chmod(0o600)
    return folder


class Machines:
    """The master and workers of a cluster, each of which can be killed and restarted."""

    def __init__(self, folder: Path, environment: dict[str, str], mark: dict[str, str], running: ExitStack) -> None:
        self.folder, self.master, self.conf = folder, "", folder / "conf"
        self._environment, self._mark, self._running = environment | mark, mark, running
        self._masters: list[tuple[subprocess.Popen[bytes], Path]] = []
        self._workers: list[subprocess.Popen[bytes]] = []

    def start_master(self, elected: str = "ALIVE") -> str:
        """Start a master, at the last one's address if any, and return its URL once it has the state ``elected``."""
        log = self.folder / f"master-{len(self._masters)}.log"
        port = self.master.rpartition(":")[2] or "0"
        process = self._start("master.Master", ["--port", port], log)
        self._masters.append((process, log))
        self.master = _said(process, log, r"Starting Spark master at (spark://\S+)")[0]
        _said(process, log, rf"I have been elected leader! New state: ({elected})")
        return self.master

    def kill_master(self) -> None:
        """Kill the master, as if its machine were lost."""
        process, _ = self._masters[-1]
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()

    def start_worker(self, cores: int = 2, memory: str = "1g") -> None:
        """Start a worker, which finds the master by itself."""
        number = len(self._workers)
        arguments = ["--cores", str(cores), "--memory", memory, "--work-dir", str(self.folder / f"work-{number}")]
        log = self.folder / f"worker-{number}.log"
        self._workers.append(self._start("worker.Worker", [*arguments, self.master], log))

    def wait_for_workers(self, times: int | None = None) -> None:
        """Wait until the current master knows the workers."""
        process, log = self._masters[-1]
        _said(process, log, r"Registering worker (\S+)", times=len(self._workers) if times is None else times)

    def running(self, word: str) -> list[int]:
        """Return the cluster's processes with a word in their command line, such as executors' JVMs."""
        return [pid for pid, command in marked(self._mark).items() if word in command]

    def executors(self) -> list[int]:
        """Return the process ids of executors' JVMs."""
        return self.running("CoarseGrainedExecutorBackend --driver-url")

    def master_log(self) -> str:
        """Return the log of the current master."""
        return self._masters[-1][1].read_text()

    def _start(self, name: str, arguments: list[str], log: Path) -> "subprocess.Popen[bytes]":
        return self._running.enter_context(_daemon(name, arguments, self._environment, log))


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
        if process.poll() is None:
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
        "SPARK_CONF_DIR": str(folder / "conf"),
        "SPARK_LOCAL_IP": "127.0.0.1",
        "SPARK_LOCAL_DIRS": str(folder / "local"),
        "SPARK_DAEMON_MEMORY": "256m",
        "SPARK_DAEMON_JAVA_OPTS": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
    }
