"""A real `fedping dashboard`, or `fedping ingest --dashboard`, in separate processes that all end with it."""

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import requests

from tests.support import forked
from tests.support.ingest_server import ROOT, free_port
from tests.support.processes import left_over, new_mark, wait_until


@dataclass
class DashboardServer:
    """A running dashboard: its address, first process and output, and the mark of all its processes."""

    url: str
    process: subprocess.Popen[bytes]
    said: Path
    mark: dict[str, str]

    def get(self, path: str, **how: object) -> requests.Response:
        """Return the answer to a GET; ``how`` goes to requests."""
        return requests.get(self.url + path, timeout=240, **how)  # type: ignore[arg-type]

    def is_up(self) -> bool:
        """Return whether the dashboard answers."""
        assert self.process.poll() is None, self.said.read_text()
        with contextlib.suppress(requests.ConnectionError):
            return self.get("/static/css/base.css").ok
        return False

    def stop(self, number: signal.Signals = signal.SIGTERM) -> int:
        """Stop the first process and return its exit code; check that no process is left, except runs."""
        self.process.send_signal(number)
        return self.process.wait(30)


def start_dashboard(said: Path, *arguments: str, port: int | None = None, cwd: Path = ROOT) -> DashboardServer:
    """Start ``fedping dashboard``, or the command in ``arguments``, and return when it answers.

    It has no token unless the arguments say who may reach it.
    """
    mark, port = new_mark(), port or free_port()
    of_access = {"--host", "--token-file", "--team"}.intersection(arguments)
    dashboard = ["dashboard", *arguments, *([] if of_access else ["--no-token"])]
    command = list(arguments) if arguments[0] == "ingest" else dashboard
    option = "--dashboard" if command[0] == "ingest" else "--port"
    with said.open("wb") as output:
        process = forked.Popen(
            [sys.executable, "-m", "fedping", *command, option, str(port)],
            cwd=cwd,
            env=os.environ | mark,
            stdout=output,
            stderr=subprocess.STDOUT,
        )
    server = DashboardServer(f"http://127.0.0.1:{port}", process, said, mark)
    assert wait_until(server.is_up)
    return server


@contextlib.contextmanager
def running_dashboard(folder: Path, *options: str, cwd: Path = ROOT) -> Iterator[DashboardServer]:
    """Run ``fedping dashboard`` over ``folder`` (store, landing, runs); check that no process is left at the end."""
    places = [f"--{name}={folder / name}" for name in ("store", "landing", "runs")]
    server = start_dashboard(folder / "dashboard.log", *places, *options, cwd=cwd)
    ended = 0
    try:
        yield server
    finally:
        if server.process.poll() is None:
            ended = server.stop()
    assert ended == 0, server.said.read_text()
    left = left_over(server.mark)
    assert not left, left
