"""Memory and termination of a program with all the processes that it starts."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from collections.abc import Iterator
from pathlib import Path


class PeakMemory:
    """Records the peak memory of a session's processes, in MiB, during its block; shared memory counts once."""

    def __init__(self, session: int, every: float = 0.2) -> None:
        self._session, self._every = session, every
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._follow, daemon=True)
        self.peak = 0.0

    def __enter__(self) -> PeakMemory:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    def _follow(self) -> None:
        while not self._over.wait(self._every):
            self.peak = max(self.peak, sum(_proportional_kib(pid) for pid in _pids(self._session)) / 1024)


def kill(session: int) -> None:
    """Kill every process of a session."""
    for pid in _pids(session):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def _pids(session: int) -> Iterator[int]:
    for process in Path("/proc").iterdir():
        if process.name.isdigit():
            with contextlib.suppress(OSError):  # it has ended meanwhile
                if int(process.joinpath("stat").read_text().rpartition(")")[2].split()[3]) == session:
                    yield int(process.name)


def _proportional_kib(pid: int) -> int:
    with contextlib.suppress(OSError):
        for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
            if line.startswith("Pss:"):
                return int(line.split()[1])
    return 0
