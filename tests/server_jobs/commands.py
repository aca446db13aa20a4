"""Commands on Spark that a test can pause, for tests of clusters and of how commands end."""

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from fedping.model_store.store import ModelStore, open_store
from tests.server_jobs.standalone import QUICK_EXECUTORS
from tests.support.processes import left_over, marked, new_mark, wait_until
from tests.support.rounds import FIRST_MS, Ping, land, store_with
from tests.support.versions import small_study

ROOT = Path(__file__).parents[2]
EVENT_SECONDS = 400
"""Timeout of events in seconds, after which a test fails; durations are not asserted."""


@dataclass
class Place:
    """A store with a study, a landing folder with a ping of version 0, and the commands run on them."""

    folder: Path
    started: list["Running"] = field(default_factory=list)

    def __post_init__(self) -> None:
        store_with(self.folder / "store", small_study())
        land(self.folder / "landing", [Ping(1, 1)])

    @property
    def store(self) -> ModelStore:
        return open_store(self.folder / "store")

    @property
    def version(self) -> int:
        return self.store.head("study", "main").iteration

    def land_for(self, version: int) -> None:
        ping = Ping(100 + version, 1, version=version)
        land(self.folder / "landing", [ping], iteration=version, at_ms=FIRST_MS + version)

    def start(
        self, *command: str, program: tuple[str, ...] = (), conf: dict[str, str] | None = None, **environment: str
    ) -> "Running":
        """Start a fedping command with the store and the landing folder; with Spark's settings if it is the driver."""
        conf = QUICK_EXECUTORS | {"spark.starvation.timeout": "1s"} | (conf or {})
        options = [word for key, value in conf.items() for word in ("--conf", f"'{key}={value}'")]
        mark, said = new_mark(), self.folder / f"said-{len(self.started)}"
        where = ["--store", str(self.folder / "store"), "--landing", str(self.folder / "landing")]
        made = os.environ | mark | {"PYTHONPATH": str(ROOT), "SPARK_LOCAL_IP": "127.0.0.1"}
        made |= {"PYSPARK_SUBMIT_ARGS": " ".join([*options, "pyspark-shell"])}
        made |= {"SPARK_LOCAL_DIRS": str(self.folder / "local"), **environment}
        with open(said, "w") as out:
            process = subprocess.Popen(
                [*(program or (sys.executable, "-m", "fedping")), *command, "study", *where],
                cwd=self.folder,
                stdout=out,
                stderr=out,
                env=made,
                start_new_session=True,
            )
        self.started.append(Running(process, mark, said))
        return self.started[-1]


@dataclass
class Running:
    """A started command."""

    process: "subprocess.Popen[bytes]"
    mark: dict[str, str]
    path: Path

    def said(self) -> str:
        return self.path.read_text()

    def wait_for(self, text: str) -> None:
        """Wait until the command has printed a text."""
        self.wait_until(lambda: text in self.said())

    def wait_until(self, happened) -> None:
        """Wait until a condition is true; the command must not end before."""
        assert wait_until(lambda: happened() or self.process.poll() is not None, EVENT_SECONDS), self.said()
        assert happened(), f"it ended with {self.process.returncode}: {self.said()}"

    def runs(self, program: str) -> bool:
        """Return whether a process of the command has ``program`` in its command line."""
        return any(program in command for command in marked(self.mark).values())

    def java(self) -> int:
        return next(pid for pid, command in marked(self.mark).items() if "org.apache.spark.deploy" in command)

    def ended(self) -> int:
        """Wait for the end of the command and of all its processes; return its exit code."""
        code = self.process.wait(EVENT_SECONDS)
        assert not left_over(self.mark), self.said()
        assert not re.search("^Traceback", self.said(), re.MULTILINE), self.said()  # Spark's log may quote others
        return code

    def sentence(self) -> str:
        """Return the last line of the command's own output."""
        return [line for line in self.said().splitlines() if line.startswith("fedping: ")][-1]


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    """Give a place for commands; no process started there outlives the test."""
    made = Place(tmp_path)
    yield made
    for running in made.started:
        left_over(running.mark, seconds=0)
        running.process.wait()


class Hold:
    """A Python for executors that waits before it begins, so that a job stays in progress as long as a test needs."""

    def __init__(self, folder: Path) -> None:
        self._file, self.begun, self.program = folder / "hold", folder / "begun", folder / "held-python"
        self._file.touch()
        self.program.write_text(
            f"#!/bin/sh\n[ -e '{self._file}' ] && touch '{self.begun}'\n"
            f"while [ -e '{self._file}' ]; do kill -0 $PPID || exit 1; sleep 0.1; done\n"
            f"exec '{sys.executable}' \"$@\"\n"
        )
        self.program.chmod(0o755)

    def release(self) -> None:
        self._file.unlink()


@pytest.fixture
def hold(tmp_path: Path) -> Hold:
    return Hold(tmp_path)


def script(*options: str) -> tuple[str, ...]:
    """Return the words that run a command by `spark-submit.sh` with these options."""
    return (str(ROOT / "spark-submit.sh"), *options, "--")


def numpy_weights(place: Place, folder: Path) -> tuple[float, ...]:
    """Return the weights of the next version by the NumPy engine, in a copy of the store."""
    shutil.copytree(place.folder / "store", folder)
    made = place.version + 1
    where = ["--store", str(folder), "--landing", str(place.folder / "landing"), "--engine", "numpy", "study"]
    subprocess.run([sys.executable, "-m", "fedping", "round", *where], cwd=ROOT, check=True, capture_output=True)
    return tuple(open_store(folder).version("study", "main", made).weights)
