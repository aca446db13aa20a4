"""Processes are forked from a single thread, die with their parent, and stop on request at any time."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from msgspec.structs import replace

from fedping.protocol.links import Upload, traits_of_links
from fedping.protocol.study import Study
from fedping.server_jobs.processes import child_command
from tests.support.encodings import ENCODED
from tests.support.ingest_app import ingest_study, make_store
from tests.support.ingest_server import ROOT, children, free_port, is_alive, running_ingest
from tests.support.processes import left_over, new_mark, wait_until

SERVER = """
import os, sys, time
from granian.constants import Interfaces
from granian.log import LogLevels
from fedping.server_jobs.forking_server import ForkingServer

def load():
    os.write(1, b"loading\\n")
    time.sleep(3600)

quiet = {"websockets": False, "log_level": LogLevels.error}
server = ForkingServer("s", port=int(sys.argv[1]), interface=Interfaces.WSGI, workers=2, blocking_threads=1, **quiet)
server.serve(target_loader=load, wrap_loader=False)
"""
EARLY = """
import os, signal, sys
from fedping.server_jobs.forking_server import ServerSettings, http_server
from fedping.server_jobs.processes import exit_with_parent

class Application:
    def __init__(self):
        exit_with_parent(os.getppid())

    def __rsgi_init__(self, loop):  # granian has installed its handlers, and the loop does not run yet
        os.kill(os.getpid(), signal.SIGTERM)

    async def __rsgi__(self, scope, protocol):
        pass

def died(how):
    print(how, flush=True)
    os.kill(os.getpid(), signal.SIGTERM)

listener = ServerSettings(
    host="127.0.0.1", port=int(sys.argv[1]), workers=1, connections=16, connection_bytes=65536, kill_after=10
)
http_server("s", listener, died).serve(target_loader=Application, wrap_loader=False)
"""
PARENT = """
import subprocess, sys
from fedping.server_jobs.processes import child_command
print(subprocess.Popen(child_command(sys.argv[1:])).pid, flush=True)
sys.stdin.read()
"""
linux = pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc")


NOT_OF_ANY_MODEL = frozenset({"low rank", "private vector"})
"""Traits of links that need a model with matrices, or a guarantee."""


def study_with_links(name: str, links: Upload) -> Study:
    """Return a study whose clients encode their updates by these links."""
    study = ingest_study()
    return replace(study, name=name, lines=(replace(study.lines[0], upload=links), *study.lines[1:]))


def threads(pid: int) -> int:
    return len(os.listdir(f"/proc/{pid}/task"))


@linux
def test_no_process_of_ingest_that_forks_has_a_second_thread(tmp_path: Path) -> None:
    of_any_model = (links for links in ENCODED.values() if NOT_OF_ANY_MODEL.isdisjoint(traits_of_links(links)))
    others = [study_with_links(f"links-{place}", links) for place, links in enumerate(of_any_model)]
    make_store(tmp_path / "store", others=others)
    options = ("--workers", "2", "--dashboard", str(free_port()), "--runs", str(tmp_path / "runs"))
    with running_ingest(tmp_path / "store", tmp_path / "landing", *options) as server:

        def forking() -> list[int]:
            return [pid for pid in server.pids() if children(pid)]

        def counted() -> list[int]:
            return [threads(pid) for pid in forking()]

        assert wait_until(lambda: len(forking()) == 3), "the supervisor, the server, the dashboard's server"
        assert counted() == [1, 1, 1]
        before = server.workers()
        for worker in before:
            os.kill(worker, signal.SIGKILL)
        assert wait_until(lambda: len(server.workers()) == 3 and not {*before} & {*server.workers()}), "none came back"
        assert wait_until(server.is_well)
        assert counted() == [1, 1, 1]


@linux
def test_ingest_imports_numpy_without_threads_and_leaves_them_to_what_it_starts() -> None:
    code = """
import os
from fedping.commands.ingest import _import_numpy_without_threads
before = os.environ.get("OPENBLAS_NUM_THREADS")
_import_numpy_without_threads()
unchanged = os.environ.get("OPENBLAS_NUM_THREADS") == before
from threadpoolctl import threadpool_info
print([pool["num_threads"] for pool in threadpool_info()], len(os.listdir("/proc/self/task")), unchanged)
"""
    for given in ({}, {"OPENBLAS_NUM_THREADS": "2"}):
        environ = {name: value for name, value in os.environ.items() if name != "OPENBLAS_NUM_THREADS"} | given
        assert subprocess.check_output([sys.executable, "-c", code], env=environ, text=True) == "[1] 1 True\n"


def test_workers_that_are_told_to_stop_while_they_start_end() -> None:
    mark = new_mark()
    command = [sys.executable, "-c", SERVER, str(free_port())]
    with subprocess.Popen(command, cwd=ROOT, env={**os.environ, **mark}, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        try:
            assert [server.stdout.readline() for _ in range(2)] == ["loading\n"] * 2
            server.terminate()
            assert server.wait(60) == 0
        finally:
            server.kill()
            assert left_over(mark) == []


def test_a_worker_that_is_told_to_stop_just_before_its_loop_runs_ends_by_itself() -> None:
    mark = new_mark()
    command = [sys.executable, "-c", EARLY, str(free_port())]
    with subprocess.Popen(command, cwd=ROOT, env={**os.environ, **mark}, stdout=subprocess.PIPE, text=True) as server:
        try:
            printed, _ = server.communicate(timeout=60)
            assert printed == "without a reason\n"
        finally:
            server.kill()
    assert not left_over(mark)


@linux
def test_a_bound_command_is_the_process_that_was_started_and_dies_with_its_parent() -> None:
    command = [sys.executable, "-c", PARENT, "sleep", "3600"]
    with subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        child = int(parent.stdout.readline())
        assert wait_until(lambda: Path(f"/proc/{child}/cmdline").read_bytes() == b"sleep\x003600\x00")
        parent.kill()
    assert wait_until(lambda: not is_alive(child))


@linux
def test_a_bound_command_finds_the_signals_as_any_command_does() -> None:
    def seen(command: list[str]) -> dict[bytes, int]:
        lines = [line.split() for line in subprocess.check_output(command).splitlines()]
        return {name: int(mask, 16) & 0x7FFFFFFF for name, mask in lines}  # real-time signals are the C library's

    show = ["grep", "-E", "^Sig(Ign|Blk|Cgt)", "/proc/self/status"]
    assert seen(child_command(show)) == seen(show)


def test_a_bound_command_that_cannot_be_run_is_told_in_a_sentence() -> None:
    done = subprocess.run(child_command(["no-such-command"]), capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (1, "can't run no-such-command: No such file or directory\n")
