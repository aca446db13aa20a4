"""Breaks running systems in several ways, and records the reported health and the delay of each report.

    python -m benchmarks.health_faults [FAULT …] [--interval 60]

Each fault gets a real ingest with its own store, a landing folder and, for faults of rounds, real rounds. The study's
health and the operator's heartbeat are polled until they report the fault. The exit code is 1 if a fault is not
reported within the interval. Linux only: limits of running processes are changed (prlimit).
"""

from __future__ import annotations

import argparse
import contextlib
import json
import resource
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from fedping.server_jobs.health.snapshot import StudyMonitor, ingest_snapshot
from fedping.server_jobs.ingest.settings import IngestSettings
from tests.support.ingest_app import PATH, STUDY, make_store
from tests.support.ingest_server import IngestServer, open_files
from tests.support.pings import ping_json
from tests.support.rounds import crowd, land, store_with
from tests.support.versions import small_study

CLIENTS = 120
INTERVAL = 60.0
_WITHOUT_OVERRIDE = """
import ctypes, os, sys
ctypes.CDLL(None).prctl(24, 1, 0, 0, 0)
os.execv(sys.executable, [sys.executable, *sys.argv[1:]])
"""
"""Program that starts Python without root's capability to write read-only files (CAP_DAC_OVERRIDE)."""


@dataclass
class Running:
    """A running system: its folder, and its ingest."""

    folder: Path
    server: IngestServer

    @property
    def places(self) -> IngestSettings:
        """The locations of the system's files."""
        landing = self.folder / "landing"
        return IngestSettings(store=self.folder / "store", landing=landing, journal=landing / ".journal")

    def post(self, body: bytes | None = None) -> int:
        """Post a ping, or another body in its place, and return the status; 0 without an answer."""
        data = json.dumps(ping_json()).encode() if body is None else body
        asked = urllib.request.Request(
            f"{self.server.url}{PATH}/{uuid.uuid4()}", data, {"Content-Type": "application/json"}
        )
        try:
            with urllib.request.urlopen(asked, timeout=5) as answer:
                return int(answer.status)
        except urllib.error.HTTPError as error:
            return error.code
        except OSError:
            return 0

    def post_batch(self, pings: int) -> None:
        """Post a batch of good pings."""
        lines = (json.dumps({"documentId": str(uuid.uuid4()), **ping_json()}) for _ in range(pings))
        header = {"Content-Type": "application/x-ndjson"}
        asked = urllib.request.Request(f"{self.server.url}{PATH}", "\n".join(lines).encode(), header)
        with urllib.request.urlopen(asked, timeout=60) as answer:
            assert json.load(answer)["accepted"] == pings

    def round(self) -> int:
        """Run a round in a separate process, which obeys permissions even as root, and return its exit code."""
        places = ["--store", str(self.folder / "store"), "--landing", str(self.folder / "landing")]
        command = [sys.executable, "-c", _WITHOUT_OVERRIDE, "-m", "fedping", "round", STUDY, *places]
        return subprocess.run([*command, "--engine", "numpy"], capture_output=True).returncode

    def findings(self) -> list[tuple[str, str, str]]:
        """Return the name, severity and sentence of each finding about the study."""
        _, health = StudyMonitor(self.places).study(STUDY, ingest_snapshot(self.places))
        return [(one.name, one.severity, one.sentence) for one in health.findings]

    def heartbeat(self) -> dict[str, str]:
        """Return the failing checks of the operator's heartbeat, with their reasons."""
        port = self.server.operations_port
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/__heartbeat__", timeout=30) as answer:
                found = json.load(answer)
        except urllib.error.HTTPError as error:
            found = json.load(error)
        return {name: said for name, said in found["checks"].items() if said != "ok"}


@dataclass(frozen=True)
class Fault:
    """A way to break a system, with the finding and the heartbeat's check that report it (empty for no check)."""

    does: Callable[[Running], None]
    finding: str
    check: str = ""
    of_rounds: bool = False


def limit(pid: int, what: int, most: int) -> None:
    """Lower a limit of a running process."""
    resource.prlimit(pid, what, (most, resource.prlimit(pid, what)[1]))


def damaged_file(system: Running) -> None:
    """Change bytes in the middle of a landed file, and run a round."""
    file = land(system.folder / "landing", crowd(CLIENTS))
    data = bytearray(file.read_bytes())
    for at in range(len(data) // 3, len(data) // 3 + 64):
        data[at] ^= 255
    file.write_bytes(data)
    system.round()


def read_only_store(system: Running) -> None:
    """Make the store read-only, and run a round."""
    land(system.folder / "landing", crowd(CLIENTS))
    store = system.folder / "store"
    folders = [store, *(path for path in store.rglob("*") if path.is_dir())]
    for folder in folders:
        folder.chmod(0o555)
    system.round()
    for folder in folders:
        folder.chmod(0o755)  # so that it can be removed; no round has run since


def refusals_in_a_row(system: Running) -> None:
    """Post 2,400 good pings and then 60 bodies that are not pings."""
    system.post_batch(2_400)
    for _ in range(60):
        system.post(b"{}")


def full_disk(system: Running) -> None:
    """Prevent the workers from writing to any file, and post pings."""
    for pid in system.server.workers():
        limit(pid, resource.RLIMIT_FSIZE, 0)
    for _ in range(20):
        system.post()


def no_descriptors(system: Running) -> None:
    """Prevent the workers from opening further files, and post pings."""
    for pid in system.server.workers():
        limit(pid, resource.RLIMIT_NOFILE, len(open_files(pid)))
    for _ in range(3):
        system.post()


def killed_ingest(system: Running) -> None:
    """Kill every process of ingest while its journal has pings."""
    system.post_batch(10)
    system.server.kill()


FAULTS = {
    "read-only-store": Fault(read_only_store, "store", "rounds", of_rounds=True),
    "full-disk": Fault(full_disk, "ingest", "requests"),
    "no-descriptors": Fault(no_descriptors, "ingest", "requests"),
    "refusals-in-a-row": Fault(refusals_in_a_row, "refused"),
    "damaged-file": Fault(damaged_file, "landing", "rounds", of_rounds=True),
    "killed-ingest": Fault(killed_ingest, "ingest"),
}


@contextlib.contextmanager
def running(of_rounds: bool) -> Iterator[Running]:
    """Run a system in a folder of its own."""
    with tempfile.TemporaryDirectory(prefix="fedping-health-") as name:
        folder = Path(name)
        (store_with(folder / "store", small_study(STUDY, m=2)) if of_rounds else make_store(folder / "store"))
        says = folder / "stdout", folder / "stderr"
        server = IngestServer(folder / "store", folder / "landing", "--compact-every", "3600", says=says)
        server.start()
        try:
            yield Running(folder, server)
        finally:
            if server.is_up:
                server.kill()


def reported(fault: Fault, interval: float = INTERVAL) -> tuple[float, str, str]:
    """Break a system; return the seconds until the report, the finding, and the heartbeat's reason.

    Raises:
        TimeoutError: the fault was not reported within the interval.
    """
    with running(fault.of_rounds) as system:
        if before := [one for one in system.findings() if one[0] == fault.finding]:
            raise AssertionError(f"reported before: {before}")
        fault.does(system)
        began = time.monotonic()
        while True:
            said = [f"{severity}: {text}" for name, severity, text in system.findings() if name == fault.finding]
            checks = system.heartbeat() if fault.check else {}
            if said and (not fault.check or fault.check in checks):
                return time.monotonic() - began, said[0], checks.get(fault.check, "")
            if time.monotonic() - began > interval:
                raise TimeoutError(f"fault not reported within {interval:g} s; found {system.findings()}, {checks}")
            time.sleep(0.2)


def main(arguments: list[str] | None = None) -> int:
    """Try the faults, and print the reports."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("faults", nargs="*", metavar="FAULT", help=", ".join(FAULTS))
    parser.add_argument("--interval", type=float, default=INTERVAL, help="seconds within which a fault has to show")
    given = parser.parse_args(arguments)
    if unknown := [name for name in given.faults if name not in FAULTS]:
        parser.error(f"unknown fault '{unknown[0]}'; faults: {', '.join(FAULTS)}")
    missed = 0
    for name in given.faults or FAULTS:
        try:
            seconds, said, beat = reported(FAULTS[name], given.interval)
        except TimeoutError as error:
            missed += 1
            print(f"{name}: {error}", flush=True)
            continue
        print(
            f"{name}: after {seconds:.1f} s\n  {said}",
            *([f"  heartbeat: {beat}"] if beat else []),
            sep="\n",
            flush=True,
        )
    return int(bool(missed))


if __name__ == "__main__":
    sys.exit(main())
