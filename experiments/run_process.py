"""Runs a command in its own session, which outlives the starting process; files in a folder show its state.

    alive.lock     held by the keeper and the command while one of them lives
    process.json   the keeper's pid, and its start
    stdout stderr  the output of the command
    stop           created by a process that wants the command to end
    ended.json     the command's exit code, and its end; absent if the keeper was killed

The keeper is a small process between the starting process and the command: it waits, passes a stop on to the command,
kills all processes of its session at the end, and records the exit. A lock, unlike a process id, can't belong to a
later process, and a crash of the machine releases it.

Work on Spark's executors holds a lock per task in the run's folder, so that a task that Spark believes lost doesn't run
twice.
"""

from __future__ import annotations

import fcntl
import os
import runpy
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path

import msgspec

from fedping.experiments.run_folder import write_document
from fedping.protocol.errors import FedpingError
from fedping.server_jobs.processes import child_command

LOCK, PROCESS, STOP, ENDED = "alive.lock", "process.json", "stop", "ended.json"
STDOUT, STDERR = "stdout", "stderr"
_POLL = 0.1

SECRETS = ("FEDPING_DASHBOARD_TOKEN", "CREDENTIALS_DIRECTORY")
"""Environment variables of a server that are withheld from its commands, which don't need these secrets and might
print them: the dashboard's token, and the folder of systemd's credentials."""


class Process(msgspec.Struct, frozen=True):
    """The keeper of a command: its process id, which is also its session's and its group's, and its start time."""

    pid: int
    started: datetime


class Ended(msgspec.Struct, frozen=True):
    """The end of a command: its exit code, or minus the signal that ended it, and the time."""

    code: int
    ended: datetime


class Task(msgspec.Struct, frozen=True):
    """A keeper's arguments: the folder, the lock's file descriptor, the time to wait for a stop, and the command.

    ``then`` is a module with its arguments, which the keeper runs at the end; empty for none. ``nice`` is added to the
    command's niceness, and ``environment`` to its variables.
    """

    folder: str
    lock: int
    patience: float
    command: tuple[str, ...]
    then: tuple[str, ...] = ()
    nice: int = 0
    environment: dict[str, str] = {}


def start(
    folder: Path,
    command: Sequence[str],
    *,
    patience: float,
    then: Sequence[str] = (),
    nice: int = 0,
    environment: Mapping[str, str] | None = None,
) -> bool:
    """Start a command with its keeper in a folder; return False if a command is alive there."""
    lock = _take(folder / LOCK)
    if lock is None:
        return False
    try:
        for left in (ENDED, STOP, PROCESS):
            (folder / left).unlink(missing_ok=True)
        task = Task(str(folder), lock, patience, tuple(command), tuple(then), nice, dict(environment or {}))
        keeper = subprocess.Popen(
            [sys.executable, "-m", "fedping.experiments.run_process", msgspec.json.encode(task).decode()],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            env={name: value for name, value in os.environ.items() if name not in SECRETS},
            start_new_session=True,
            pass_fds=(lock,),
        )
    finally:
        os.close(lock)  # the keeper holds it now
    threading.Thread(target=keeper.wait, daemon=True).start()  # so that this process leaves no zombie
    return True


def is_alive(folder: Path) -> bool:
    """Return whether a folder's command or its keeper is alive."""
    try:
        probe = os.open(folder / LOCK, os.O_RDONLY)
    except FileNotFoundError:
        return False
    try:
        fcntl.flock(probe, fcntl.LOCK_SH | fcntl.LOCK_NB)  # shared, so that two checks don't find each other
    except BlockingIOError:
        return True
    finally:
        os.close(probe)
    return False


@contextmanager
def alone(file: Path) -> Iterator[None]:
    """Hold a lock file, after waiting for its current holder."""
    lock = os.open(file, os.O_RDWR | os.O_CREAT, 0o640)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
    finally:
        os.close(lock)


def _take(file: Path) -> int | None:
    """Return a descriptor that holds the lock; None if a live process has it."""
    lock = os.open(file, os.O_RDWR | os.O_CREAT, 0o640)
    while True:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return lock
        except BlockingIOError:  # another process holds the lock, or is checking it
            if is_alive(file.parent):
                os.close(lock)
                return None


def keep(task: Task) -> None:
    """Run a command until it ends or is told to stop; then record its end, and kill all its processes."""
    signal.signal(signal.SIGINT, lambda *_: None)  # the signal is for the command
    folder, keeper = Path(task.folder), os.getpid()
    write_document(folder / PROCESS, Process(keeper, datetime.now(UTC)))
    with open(folder / STDOUT, "wb") as out, open(folder / STDERR, "wb") as err:
        command = subprocess.Popen(
            child_command(task.command, task.nice),
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=err,
            env={**os.environ, **task.environment},
            pass_fds=(task.lock,),
        )
    code = _await(command, folder / STOP, task.patience)
    _end_session(keeper)
    write_document(folder / ENDED, Ended(code, datetime.now(UTC)))


def _await(command: subprocess.Popen[bytes], stop: Path, patience: float) -> int:
    """Wait for the command and return its exit code; interrupt it if ``stop`` exists, and later kill it."""
    while True:
        try:
            return command.wait(_POLL)
        except subprocess.TimeoutExpired:
            if stop.exists():
                break
    os.killpg(0, signal.SIGINT)
    try:
        return command.wait(patience)
    except subprocess.TimeoutExpired:
        _end_session(os.getpid())
        return command.wait()


def _end_session(keeper: int) -> None:
    """Kill all processes of the keeper's session except the keeper, until none is left."""
    while others := [pid for pid in _session(keeper) if pid != keeper]:
        for pid in others:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue
        time.sleep(0.01)


def _session(leader: int) -> list[int]:
    """Return the processes of a session, without zombies; empty on systems other than Linux."""
    pids = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            stat = (folder / "stat").read_text(errors="replace")
        except OSError:  # the process has ended
            continue
        state, _, _, session = stat.rpartition(")")[2].split()[:4]
        if int(session) == leader and state not in "ZX":
            pids.append(int(folder.name))
    return pids


def main() -> None:
    """Run as the keeper of the task in the command line's arguments."""
    task = msgspec.json.decode(sys.argv[1], type=Task)
    keep(task)
    os.close(task.lock)
    if task.then:
        sys.argv = list(task.then)
        runpy.run_module(task.then[0], run_name="__main__")


LOCKS = ".running"
"""Name of the folder with the locks, inside a run's folder, while its work is distributed."""


@contextmanager
def one_at_a_time(out: Path, number: int) -> Iterator[None]:
    """Hold the lock on a task of a run, so that a task that Spark wrongly believes lost isn't run twice at a time.

    Raises:
        FedpingError: the folder does not exist.
    """
    if not out.is_dir():
        raise FedpingError(
            f"the executor on {socket.gethostname()} does not see the folder {out}: give --out in a folder that all "
            "machines of the cluster share, by the same path"
        )
    (out / LOCKS).mkdir(exist_ok=True)
    with alone(out / LOCKS / str(number)):
        yield


def forget_locks(out: Path) -> None:
    """Remove all locks after all work has ended, including locks left by a killed driver."""
    shutil.rmtree(out / LOCKS, ignore_errors=True)


if __name__ == "__main__":
    main()
