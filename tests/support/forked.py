"""Processes that run fedping without importing it first: `Popen` and `run`, like those of `subprocess`.

In `make test-long`, and on systems other than Linux, they are `subprocess`'s own.

A Python started by `subprocess` spends up to a second on imports, ingest twice that. Here a process that has already
imported them (`tests.support.fork_server`, one for each process of the tests) forks. Use this module if a test needs
a process to signal, kill or run in parallel; use `subprocess` if the test is about Python's startup, imports, or
variables that Python, NumPy or libraries' threads read on startup.
"""

import atexit
import json
import os
import resource
import select
import signal
import socket
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

from tests.support.effort import in_full
from tests.support.fork_server import MOST_BYTES
from tests.support.processes import MARK, note_session

ROOT = Path(__file__).parents[2]
WITHOUT_THREADS = {"OPENBLAS_NUM_THREADS": "1", "JE_ARROW_MALLOC_CONF": "background_thread:false"}
"""Variables that keep NumPy and Arrow from starting threads on import."""


class _Server:
    """The forking process, started with the first command."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._requests: socket.socket | None = None
        self._of = 0

    def start(self, request: dict[str, Any], descriptors: list[int]) -> int:
        """Have a child forked; return its process id."""
        text = json.dumps(request).encode()
        assert len(text) < MOST_BYTES
        with self._lock:
            if self._requests is None or self._of != os.getpid():
                self._requests = self._begin()
            socket.send_fds(self._requests, [text], descriptors)
            pid = int.from_bytes(self._requests.recv(4), "little")
        assert pid, "the process that forks has ended"
        return pid

    def _begin(self) -> socket.socket:
        ours, its = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        ours.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, MOST_BYTES)
        command = [sys.executable, "-m", "tests.support.fork_server", str(its.fileno())]
        environment = os.environ | WITHOUT_THREADS
        environment.pop("PYTHONPATH", None)
        environment.pop(MARK, None)  # it outlives the test that begins it
        with its:
            self._process = subprocess.Popen(
                command, cwd=ROOT, env=environment, stdin=subprocess.DEVNULL, pass_fds=[its.fileno()]
            )
        self._of = os.getpid()
        return ours

    def end(self) -> None:
        """End the forking process and all remaining children."""
        if self._process is not None and self._of == os.getpid():
            assert self._requests is not None
            self._requests.close()
            self._process.wait()
            self._process = self._requests = None


LIMITS = (resource.RLIMIT_NOFILE, resource.RLIMIT_FSIZE, resource.RLIMIT_AS, resource.RLIMIT_CORE)

_SERVER = _Server()
atexit.register(_SERVER.end)


def _umask() -> int:
    """Return this process's umask; reading it requires setting it for a moment."""
    status = Path("/proc/self/status").read_text()
    return int(next(line for line in status.splitlines() if line.startswith("Umask:")).split()[1], 8)


class ForkedPopen(subprocess.Popen):  # type: ignore[type-arg]
    """A Python process forked from one that has fedping in memory, always in a new session.

    The command begins with ``sys.executable``, then ``-m`` or ``-c``.
    """

    def _execute_child(self, *given: Any) -> None:
        (command, _, preexec, _, passed, cwd, environment), pipes = given[:7], given[10:16]
        words = [os.fsdecode(word) for word in command]
        assert words[0] == sys.executable, words
        assert words[1] in ("-m", "-c"), words
        assert (preexec, passed) == (None, ()), "a process that is forked has only its own streams"
        child_in, our_in, our_out, child_out, our_err, child_err = pipes
        environment = dict(os.environ if environment is None else environment)
        request = {
            "words": words[1:],
            "cwd": os.fspath(cwd) if cwd is not None else str(Path.cwd()),
            "environment": {str(name): str(value) for name, value in environment.items()},
            "umask": _umask(),
            "limits": [[number, *resource.getrlimit(number)] for number in LIMITS],
            "cores": sorted(os.sched_getaffinity(0)),
        }
        self._ended, report = os.pipe()
        streams = [own if number == -1 else number for own, number in enumerate((child_in, child_out, child_err))]
        try:
            self.pid = _SERVER.start(request, [*streams, report])
        finally:
            os.close(report)
            self._close_pipe_fds(child_in, our_in, our_out, child_out, our_err, child_err)
        self._child_created = True
        if mark := environment.get(MARK):
            note_session(mark, self.pid, " ".join(words))

    def __del__(self, *given: Any) -> None:
        """Poll like any Popen, then close the pipe; while the process lives, the pipe stays open for a later poll."""
        super().__del__(*given)  # type: ignore[misc]
        if self.returncode is not None:
            os.close(self._ended)

    def _ended_within(self, seconds: float | None) -> bool:
        """Wait for the process's end; return whether it has ended."""
        if self.returncode is None and not select.select([self._ended], [], [], seconds)[0]:
            return False
        with self._waitpid_lock:
            if self.returncode is None:
                status = os.read(self._ended, 4)
                code = os.waitstatus_to_exitcode(int.from_bytes(status, "little")) if status else -signal.SIGKILL
                self.returncode = code
        return True

    def _internal_poll(self, *_: Any, **__: Any) -> int | None:
        self._ended_within(0)
        return self.returncode

    def _wait(self, timeout: float | None) -> int | None:
        if not self._ended_within(timeout):
            assert timeout is not None
            raise subprocess.TimeoutExpired(self.args, timeout)
        return self.returncode


def run_forked(
    command: list[Any], *, check: bool = False, capture_output: bool = False, timeout: float | None = None, **how: Any
) -> "subprocess.CompletedProcess[Any]":
    """Run a command to its end, like `subprocess.run`."""
    given = how.pop("input", None)
    if capture_output:
        how |= {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    if given is not None:
        how["stdin"] = subprocess.PIPE
    with ForkedPopen(command, **how) as process:
        try:
            out, err = process.communicate(given, timeout=timeout)
        except BaseException:
            process.kill()
            raise
    ended = subprocess.CompletedProcess(command, process.returncode, out, err)
    if check:
        ended.check_returncode()
    return ended


if in_full() or sys.platform != "linux":
    Popen, run = subprocess.Popen, subprocess.run
else:
    Popen, run = ForkedPopen, run_forked
