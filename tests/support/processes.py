"""Finding what a command left behind: processes carry a mark in their environment, inherited by whatever they start."""

import os
import secrets
import time
from pathlib import Path

MARK = "FEDPING_TEST_MARK"


def marked_environment() -> tuple[str, dict[str, str]]:
    """Return a fresh mark and an environment that has it."""
    mark = secrets.token_hex(8)
    return mark, {**os.environ, MARK: mark}


def marked_processes(mark: str) -> dict[int, str]:
    """Return the living processes that have the mark: number and command line. Linux."""
    found = {}
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            try:
                if f"{MARK}={mark}".encode() in (folder / "environ").read_bytes().split(b"\0"):
                    found[int(folder.name)] = (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode()
            except (OSError, ProcessLookupError):
                continue
    return found


def left_behind(mark: str, patience: float = 10.0) -> dict[int, str]:
    """Return the marked processes that are still there after so many seconds; none as soon as there are none."""
    deadline = time.monotonic() + patience
    while (found := marked_processes(mark)) and time.monotonic() < deadline:
        time.sleep(0.05)
    return found
