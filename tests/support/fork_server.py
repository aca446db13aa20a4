"""A process with fedping's commands imported, which forks a child for each command that tests start.

`tests.support.forked` starts it with one end of a socket, and sends commands over it; the process ends with the
socket. It has one thread, and imports nothing of pytest. A child behaves like `python -m MODULE` or `python -c CODE`,
in a new session.
"""

import array
import atexit
import contextlib
import ctypes
import gc
import importlib
import io
import json
import os
import resource
import runpy
import signal
import socket
import sys
import threading
import traceback
import types
from typing import Any

IMPORTED = (
    *("fedping.main", "fedping.commands.ingest", "fedping.commands.fleet", "fedping.commands.join"),
    *("fedping.commands.simulate", "fedping.commands.round", "fedping.commands.store", "fedping.commands.dashboard"),
    *("fedping.commands.study", "fedping.commands.schedule", "fedping.commands.landing", "fedping.commands.analyze"),
    *("fedping.server_jobs.ingest.supervisor", "fedping.server_jobs.ingest.supervisor"),
    *("fedping.server_jobs.ingest.operations", "fedping.server_jobs.ingest.compactor"),
    *("fedping.server_jobs.forking_server", "fedping.dashboard", "flask", "uvloop", "granian", "requests"),
    *("numpy", "pyarrow.parquet", "pyarrow.dataset"),
)
"""Modules that the process imports; none starts a thread or a JVM on import."""

DIES_WITH_PARENT = 1
DESCRIPTORS = 4
"""Number of descriptors sent with a command: stdin, stdout, stderr, and a pipe for the report of its end."""
MOST_BYTES = 1 << 20


def serve(requests: socket.socket) -> None:
    """Fork a child for each request, and report the child's exit on its pipe; never returns in a child."""
    woken, wakes = os.pipe()
    os.set_blocking(woken, False)
    os.set_blocking(wakes, False)
    signal.set_wakeup_fd(wakes, warn_on_full_buffer=False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the tests, which end this process
    reports: dict[int, int] = {}
    from multiprocessing.connection import wait

    while True:
        ready = wait([requests, woken])
        if woken in ready:
            with contextlib.suppress(BlockingIOError):
                os.read(woken, 4096)
            _report(reports)
        if requests not in ready:
            continue
        text, descriptors = _receive(requests)
        if not text:
            return
        ours, report = descriptors[:-1], descriptors[-1]
        assert len(os.listdir("/proc/self/task")) == 1, "the process that forks has threads"
        parent, pid = os.getpid(), os.fork()
        if pid == 0:
            signal.set_wakeup_fd(-1)
            requests.close()
            for descriptor in (woken, wakes, report, *reports.values()):
                os.close(descriptor)
            _end(_run(json.loads(text), ours, parent))
        reports[pid] = report
        for descriptor in ours:
            os.close(descriptor)
        requests.sendall(pid.to_bytes(4, "little"))


def _receive(requests: socket.socket) -> tuple[bytes, list[int]]:
    """Return one request and its descriptors."""
    numbers = array.array("i")
    text, more, _, _ = requests.recvmsg(MOST_BYTES, socket.CMSG_SPACE(DESCRIPTORS * numbers.itemsize))
    for _, _, data in more:
        numbers.frombytes(data)
    return text, list(numbers)


def _report(reports: dict[int, int]) -> None:
    with contextlib.suppress(ChildProcessError):
        while (ended := os.waitpid(-1, os.WNOHANG))[0]:
            report = reports.pop(ended[0])
            with contextlib.suppress(BrokenPipeError):
                os.write(report, ended[1].to_bytes(4, "little"))
            os.close(report)


def _run(request: dict[str, Any], descriptors: list[int], parent: int) -> int:
    """Run the requested command in this child; return its exit code."""
    os.setsid()
    ctypes.CDLL(None).prctl(DIES_WITH_PARENT, signal.SIGKILL)
    if os.getppid() != parent:
        return 1
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    for number, descriptor in enumerate(descriptors):
        os.dup2(descriptor, number)
        os.close(descriptor)
    os.umask(request["umask"])
    os.sched_setaffinity(0, request["cores"])
    for number, soft, hard in request["limits"]:
        resource.setrlimit(number, (soft, hard))
    os.environ.clear()
    os.environ.update(request["environment"])
    try:
        os.chdir(request["cwd"])
        _streams(bool(os.environ.get("PYTHONUNBUFFERED")))
        sys.path[:] = [request["cwd"], *filter(None, os.environ.get("PYTHONPATH", "").split(":")), *sys.path]
        importlib.invalidate_caches()
        return _program(request["words"])
    except BaseException:
        traceback.print_exc()
        return 1


def _streams(unbuffered: bool) -> None:
    """Open stdin, stdout and stderr as Python does on startup."""
    sys.stdin = sys.__stdin__ = os.fdopen(0, encoding="utf-8", closefd=False)
    for name, number, errors in (("stdout", 1, "strict"), ("stderr", 2, "backslashreplace")):
        lines = unbuffered or name == "stderr" or os.isatty(number)
        written = os.fdopen(number, "wb", closefd=False)
        stream = io.TextIOWrapper(written, "utf-8", errors, line_buffering=lines, write_through=unbuffered)
        setattr(sys, name, stream)
        setattr(sys, f"__{name}__", stream)


def _program(words: list[str]) -> int:
    """Run ``-m MODULE WORD...`` or ``-c CODE WORD...`` as Python does, and return the exit code."""
    sys.modules["__main__"] = types.ModuleType("__main__")
    what, program, *rest = words
    sys.argv[:] = [what, *rest]
    try:
        if what == "-m":
            runpy._run_module_as_main(program)  # type: ignore[attr-defined]
        else:
            exec(compile(program, "<string>", "exec"), sys.modules["__main__"].__dict__)
    except SystemExit as ended:
        if ended.code is None or isinstance(ended.code, int):
            return ended.code or 0
        print(ended.code, file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        traceback.print_exc()
        return -signal.SIGINT
    except BaseException:
        error = sys.exc_info()
        sys.excepthook(error[0], error[1], error[2].tb_next if error[2] else None)  # type: ignore[arg-type]
        return 1
    return 0


def _end(code: int) -> None:
    """End this process as Python would, without freeing objects."""
    with contextlib.suppress(BaseException):
        threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):
            stream.flush()
    if code < 0:
        signal.signal(-code, signal.SIG_DFL)
        os.kill(os.getpid(), -code)
    os._exit(code & 0xFF)


if __name__ == "__main__":
    for each in IMPORTED:
        importlib.import_module(each)
    del sys.path[0]  # the folder in which this was started; a child has its own
    gc.collect()
    gc.freeze()
    serve(socket.socket(fileno=int(sys.argv[1])))
