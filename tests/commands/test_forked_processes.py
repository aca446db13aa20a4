"""A process forked for a test behaves like a newly started Python."""

import gc
import os
import resource
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.hostile import children
from tests.support.forked import ForkedPopen, run_forked
from tests.support.processes import left_over, marked, new_mark, wait_until

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="forked processes are for Linux")

PROGRAMS = {
    "a command": ["-m", "fedping", "study", "show", "x", "--store", "nowhere"],
    "usage": ["-m", "fedping", "round", "--no-such-option"],
    "help": ["-m", "fedping", "ingest", "--help"],
    "its streams": ["-c", "import sys; print(sys.stdin.read(), sys.argv); sys.stderr.write('é')", "word"],
    "its place": ["-c", "import os, sys; print(os.getcwd(), sys.path[0] in ('', os.getcwd()), os.environ['OF_TEST'])"],
    "a sentence at the end": ["-c", "import sys; sys.exit('no')"],
    "a code": ["-c", "import sys; sys.exit(75)"],
    "a thread": ["-c", "import threading, time; threading.Timer(0.1, print, ['late']).start()"],
    "at exit": ["-c", "import atexit; atexit.register(print, 'last'); print('first')"],
    "a signal": ["-c", "import os, signal; print('x', flush=True); os.kill(os.getpid(), signal.SIGKILL)"],
    "ctrl-c": ["-c", "import os, signal; signal.raise_signal(signal.SIGINT)"],
    "an error": ["-c", "1 / 0"],
}


@pytest.mark.parametrize("program", PROGRAMS)
def test_it_ends_and_says_the_same(tmp_path: Path, program: str) -> None:
    command = [sys.executable, *PROGRAMS[program]]
    how = {"cwd": tmp_path, "env": {**os.environ, "OF_TEST": "1"}, "input": "given", "text": True}
    started = subprocess.run(command, capture_output=True, **how)
    forked = run_forked(command, capture_output=True, **how)
    assert (forked.returncode, forked.stdout) == (started.returncode, started.stdout)
    assert forked.stderr.splitlines()[-1:] == started.stderr.splitlines()[-1:]


def test_it_has_the_limits_of_the_process_that_starts_it() -> None:
    code = (
        "import os, resource; print(os.umask(0), resource.getrlimit(resource.RLIMIT_NOFILE), os.sched_getaffinity(0))"
    )
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    before = os.umask(0o027)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft - 1, hard))
        command = [sys.executable, "-c", code]
        said = run_forked(command, capture_output=True, text=True).stdout
        assert said == subprocess.run(command, capture_output=True, text=True).stdout
    finally:
        os.umask(before)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGKILL])
def test_it_gets_signals_and_its_mark_finds_it_and_what_it_started(number: signal.Signals) -> None:
    mark = new_mark()
    code = "import os, time; print(os.fork() and os.getsid(0) == os.getpid(), flush=True); time.sleep(600)"
    with ForkedPopen([sys.executable, "-c", code], env={**os.environ, **mark}, stdout=subprocess.PIPE, text=True) as it:
        assert it.stdout is not None
        assert {it.stdout.readline(), it.stdout.readline()} == {"True\n", "0\n"}
        assert len(marked(mark)) == 2
        with pytest.raises(subprocess.TimeoutExpired):
            it.wait(0.01)
        it.send_signal(number)
        assert it.wait(60) == -number
        assert wait_until(lambda: len(marked(mark)) == 1)
        assert len(left_over(mark, seconds=0)) == 1
    assert wait_until(lambda: not marked(mark))


def test_two_processes_draw_differently_and_share_nothing() -> None:
    code = "import random, sys, uuid, numpy; print(random.random(), uuid.uuid4(), ['pytest' in sys.modules])"
    first, second = (run_forked([sys.executable, "-c", code], capture_output=True, text=True).stdout for _ in "12")
    assert first != second
    assert first.endswith("[False]\n")


@pytest.mark.filterwarnings("ignore::ResourceWarning")
def test_one_that_nobody_waited_for_is_asked_for_its_end_on_its_own_pipe(monkeypatch: pytest.MonkeyPatch) -> None:
    """The garbage collector calls finalizers first; a closed pipe's descriptor could already be another pipe's."""
    raised: list[object] = []
    monkeypatch.setattr(sys, "unraisablehook", raised.append)
    process = ForkedPopen([sys.executable, "-c", "import time; time.sleep(600)"])
    process.itself = process  # type: ignore[attr-defined]
    pid = process.pid
    del process
    gc.collect()
    os.kill(pid, signal.SIGKILL)
    assert raised == []


def test_the_children_of_a_process_that_ends_meanwhile_are_none(monkeypatch: pytest.MonkeyPatch) -> None:
    process = ForkedPopen([sys.executable, "-c", "pass"])
    assert process.wait(60) == 0
    assert wait_until(lambda: not Path(f"/proc/{process.pid}").exists())
    monkeypatch.setattr(Path, "is_dir", lambda path: True)  # the folder still existed when the search began
    assert children(process.pid) == []
