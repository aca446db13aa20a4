"""A real `fedping ingest` on a free port, in separate processes that all end with it."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from benchmarks.hostile import children
from benchmarks.ingest import free_port
from tests.support import forked

ROOT = Path(__file__).parents[2]


class IngestServer:
    """An ingest that can be started repeatedly over the same folders.

    Args:
        store: an existing model store.
        landing: the landing folder; created by ingest if missing.
        options: more options of ``fedping ingest``.
        cwd: the working directory of its processes.
        python: the interpreter.
        says: the target of stdout and stderr; by default the tests' own.
    """

    def __init__(
        self,
        store: Path,
        landing: Path,
        *options: str,
        cwd: Path = ROOT,
        python: str = sys.executable,
        says: tuple[Path, Path] | None = None,
    ) -> None:
        self.landing, self._cwd, self._says = landing, cwd, says
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self._command = [python, "-m", "fedping", "ingest", "--store", str(store), "--landing", str(landing)]
        self.operations_port = free_port()
        self._operator = f"http://127.0.0.1:{self.operations_port}"
        self._command += ["--port", str(self.port), "--operations-port", str(self.operations_port)]
        self._command += ["--compact-every", "0.5", *options]
        self._start = forked.Popen if python == sys.executable else subprocess.Popen
        words = (2, *(int(options[at + 1]) for at, word in enumerate(options) if word == "--workers"))
        self._number = words[-1]
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def is_up(self) -> bool:
        """Return whether it was started, and neither stopped nor killed since."""
        return self._process is not None

    def start(self, *, well: bool = True) -> None:
        """Start ingest; return when its heartbeat is healthy or, with ``well=False``, when the load balancers' is."""
        assert self._process is None
        with contextlib.ExitStack() as streams:
            out, err = [streams.enter_context(open(each, "ab")) for each in self._says or ()] or (None, None)
            self._process = self._start(self._command, cwd=self._cwd, stdout=out, stderr=err)
        deadline = time.monotonic() + 240
        while not (self.is_well() and self._all_serve() if well else self.answers()):
            assert self._process.poll() is None, "ingest ended at its start"
            assert time.monotonic() < deadline, "ingest did not become well"
            time.sleep(0.02)

    def is_well(self) -> bool:
        """Return whether the heartbeats answer 200, on the public and the operations port."""
        with contextlib.suppress(OSError):
            asked = (self.ask("/__heartbeat__"), self.operator_asks("/__heartbeat__"))
            return all(bool(answer["status"] == "ok") for answer in asked)
        return False

    def _all_serve(self) -> bool:
        """Return whether every worker handles signals; before that, a stop takes ten seconds."""
        workers = self.workers()
        return len(workers) >= self._number and all(map(_serves, workers))

    def answers(self) -> bool:
        """Return whether both ports answer."""
        with contextlib.suppress(OSError):
            return bool(self.ask("/__lbheartbeat__") and self.operator_asks("/__lbheartbeat__"))
        return False

    def stop(self, number: signal.Signals = signal.SIGTERM) -> int:
        """Stop ingest normally, and return its exit code; check that no process is left."""
        return self._end(number)

    def kill(self) -> int:
        """Kill all processes of ingest at once, like a power cut."""
        pids = self.pids()
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        return self._end(signal.SIGKILL)

    def kill_supervisor(self) -> int:
        """Kill only the supervisor; the other processes must notice."""
        return self._end(signal.SIGKILL)

    def _end(self, number: signal.Signals) -> int:
        assert self._process is not None
        pids = self.pids()
        self._process.send_signal(number)
        code = self._process.wait(60)
        self._process = None
        deadline = time.monotonic() + 5
        while any(map(is_alive, pids)) and time.monotonic() < deadline:
            time.sleep(0.01)
        assert not [pid for pid in pids if is_alive(pid)], "ingest left a process behind"
        return code

    def pids(self) -> list[int]:
        """Return the process ids of ingest, the supervisor first."""
        assert self._process is not None
        return [self._process.pid, *descendants(self._process.pid)]

    def workers(self) -> list[int]:
        """Return the process ids of the workers: the grandchildren."""
        assert self._process is not None
        return [pid for child in children(self._process.pid) for pid in children(child)]

    def compactor(self) -> int:
        """Return the compactor's process id: the child that holds its lock file. It may just be restarting."""
        return self._child(lambda child: any(name.endswith(".compactor.lock") for name in open_files(child)))

    def operations(self) -> int:
        """Return the process id of the operations port: the only child that accepts connections there."""
        compactor = self.compactor()
        return self._child(lambda child: child != compactor and not children(child))

    def _child(self, is_it: Callable[[int], bool]) -> int:
        assert self._process is not None
        deadline = time.monotonic() + 240
        while not (found := [child for child in children(self._process.pid) if is_it(child)]):
            assert time.monotonic() < deadline, "there is no such process"
            time.sleep(0.02)
        return found[0]

    def ask(self, path: str, method: str = "GET") -> Any:
        """Return the JSON answer of a public path."""
        return _json_of(self.url + path, method)

    def operator_asks(self, path: str, method: str = "GET") -> Any:
        """Return the JSON answer of a path on the operations port."""
        return _json_of(self._operator + path, method)

    def flush(self) -> Any:
        """Land all pings accepted so far, and return the status."""
        return self.operator_asks("/__flush__", "POST")


@contextlib.contextmanager
def running_ingest(
    store: Path, landing: Path, *options: str, cwd: Path = ROOT, python: str = sys.executable
) -> Iterator[IngestServer]:
    """Run ingest over a store and a landing folder; stop it normally at the end."""
    server = IngestServer(store, landing, *options, cwd=cwd, python=python)
    server.start()
    try:
        yield server
    finally:
        code = server.stop()
    assert code == 0, f"ingest ended with code {code}"


def _json_of(url: str, method: str) -> Any:
    with urllib.request.urlopen(urllib.request.Request(url, method=method), timeout=240) as answer:
        return json.loads(answer.read())


def _serves(pid: int) -> bool:
    """Return whether a worker runs its event loop, which shows by its threads."""
    try:
        return len(os.listdir(f"/proc/{pid}/task")) >= 4
    except OSError:
        return False


def open_files(pid: int) -> list[str]:
    """Return the open files of a process."""
    found = []
    with contextlib.suppress(OSError):
        for file in Path(f"/proc/{pid}/fd").iterdir():
            with contextlib.suppress(OSError):
                found.append(str(file.readlink()))
    return found


def descendants(pid: int) -> list[int]:
    """Return the children of a process, and their children."""
    below = children(pid)
    return below + [grandchild for child in below for grandchild in descendants(child)]


def is_alive(pid: int) -> bool:
    """Return whether a process runs; a zombie doesn't."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False
