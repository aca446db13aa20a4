"""Finds the processes that a test has started, directly or indirectly, by a mark in their environment."""

import os
import signal
import time
import uuid
from collections.abc import Callable
from pathlib import Path

MARK = "FEDPING_TEST_MARK"


def new_mark() -> dict[str, str]:
    """Return an environment variable for a process, which its descendants inherit."""
    return {MARK: f"{os.getpid()}-{time.monotonic_ns()}-{uuid.uuid4().hex}"}


_SESSIONS: dict[str, dict[int, str]] = {}


def note_session(mark: str, session: int, command: str) -> None:
    """Record a session leader that shows neither its mark nor its command line."""
    _SESSIONS.setdefault(mark, {})[session] = command


def marked(mark: dict[str, str]) -> dict[int, str]:
    """Return the running processes with a mark, and their command lines."""
    wanted, sessions = f"{MARK}={mark[MARK]}".encode(), _SESSIONS.get(mark[MARK], {})
    found = {}
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit() and int(folder.name) != os.getpid():
            try:
                if wanted in (folder / "environ").read_bytes().split(b"\0"):
                    command = (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
                    found[int(folder.name)] = command
                elif sessions:
                    state, _, _, session = (folder / "stat").read_text().rpartition(")")[2].split()[:4]
                    if int(session) in sessions and state not in "ZX":
                        found[int(folder.name)] = sessions[int(session)]
            except OSError:  # the process has ended, or is another user's
                continue
    return found


PATIENCE = 240.0
"""Timeout in seconds for actions that take one or two on an idle machine; a test has 600 in all."""


def wait_until(happened: Callable[[], object], seconds: float = PATIENCE) -> bool:
    """Poll until something has happened; return whether it has within the time."""
    deadline = time.monotonic() + seconds
    while not happened():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.02)
    return True


def left_over(mark: dict[str, str], seconds: float = PATIENCE) -> list[str]:
    """Kill the marked processes that still run after some seconds, and return their command lines."""
    wait_until(lambda: not marked(mark), seconds)
    left = marked(mark)
    for pid in left:
        os.kill(pid, signal.SIGKILL)
    return [command[:200] for command in left.values()]
