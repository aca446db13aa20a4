"""Child processes that end with their parent, stop events, and locks that end with a process.

:func:`child_command` runs this file as a script, without the package, so it imports only the standard library.
"""

from __future__ import annotations

import ctypes
import fcntl
import os
import select
import signal
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path

_PR_SET_PDEATHSIG = 1
_POLL = 0.25


def exit_with_parent(parent: int) -> None:
    """Make the system kill this process when its parent ends. To be called first in a child.

    No pings are lost: accepted pings are on disk, and the next start recovers them.
    """
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    else:
        threading.Thread(target=_watch, args=(parent,), daemon=True).start()
    if os.getppid() != parent:
        os._exit(1)


def child_command(command: Sequence[str], nice: int = 0) -> list[str]:
    """Return a command that runs another command, and ends when this process ends.

    ``nice`` is added to its niceness, without the program `nice`.

    It replaces a ``preexec_fn`` of `subprocess`, which runs Python between fork and exec and may wait forever for a
    lock that another thread held. On systems other than Linux, the command may outlive this process.
    """
    return [sys.executable, "-I", "-S", __file__, str(os.getpid()), str(nice), *command]


def _watch(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(_POLL)
    os.kill(os.getpid(), signal.SIGKILL)


class Lock:
    """A lock file that this process and its forks hold as long as one of them lives."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._file: int | None = None

    def take(self, patience: float = 0.0) -> bool:
        """Try to take the lock for up to ``patience`` seconds; return whether this process holds it."""
        file = os.open(self.path, os.O_RDWR | os.O_CREAT, 0o640)
        deadline = time.monotonic() + patience
        while True:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                if time.monotonic() >= deadline:
                    os.close(file)
                    return False
                time.sleep(0.02)
            else:
                self._file = file
                return True

    def release(self) -> None:
        """Let another process take the lock."""
        if self._file is not None:
            os.close(self._file)
            self._file = None


def is_held(path: Path) -> bool:
    """Return whether a living process holds a lock file."""
    probe = Lock(path)
    if probe.take():
        probe.release()
        return False
    return True


def take_slot(folder: Path) -> int:
    """Return the lowest number, from 0, that no other living worker holds."""
    number = 0
    while not Lock(folder / f".worker-{number}.lock").take():
        number += 1
    return number


class StopEvent:
    """A stop event that signal handlers can set.

    A byte in a pipe ends the wait. With a `threading.Event`, the interrupted thread could hold the event's lock, and
    would wait for itself forever.
    """

    def __init__(self) -> None:
        self.reader, self._writer = os.pipe()
        self.is_set = False

    def set(self) -> None:
        """Set the event. The current wait and all later waits end at once."""
        self.is_set = True
        os.write(self._writer, b".")

    def wait(self, seconds: float) -> bool:
        """Wait for at most ``seconds``; return whether the event is set."""
        if not self.is_set:
            select.select([self.reader], [], [], seconds)
        return self.is_set


def _bind_and_run(parent: int, nice: int, command: list[str]) -> None:
    """Replace this process by a command that ends with its parent. Python's own signal handlers are reset."""
    for number in (signal.SIGINT, signal.SIGPIPE, signal.SIGXFSZ):
        if number != signal.SIGINT or signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, signal.SIG_DFL)
    if sys.platform == "linux":
        exit_with_parent(parent)
    os.nice(nice)
    try:
        os.execvp(command[0], command)
    except OSError as error:
        sys.exit(f"can't run {command[0]}: {error.strerror}")


if __name__ == "__main__":
    _bind_and_run(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3:])
