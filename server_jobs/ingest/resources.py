"""Memory of ingest's processes and free space on its disks, for the metrics page.

Each process registers under a name in :data:`NAMES` in the counters' folder, which is recreated when ingest starts. A
process id is trusted only together with the start time of its process, because the system reuses ids.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from fedping.protocol.local_files import make_folder
from fedping.server_jobs.ingest.counters import write_counts
from fedping.server_jobs.ingest.settings import IngestSettings

NAMES = ("supervisor", "server", "worker", "compactor", "operations", "dashboard")
"""The processes of ingest. The server starts the workers; the supervisor starts all others."""

_SUFFIX = ".process"


@dataclass(frozen=True)
class Disk:
    """The free bytes for unprivileged users, and the size of the file system."""

    free: int
    size: int


@dataclass(frozen=True)
class Resources:
    """Number and memory of running processes by name, and disks by contents; empty if unknown."""

    processes: Mapping[str, int] = field(default_factory=dict)
    memory: Mapping[str, int] = field(default_factory=dict)
    disks: Mapping[str, Disk] = field(default_factory=dict)


def register(counters: Path, name: str) -> None:
    """Record this process under a name. This has no effect without /proc, or if the disk is full."""
    pid = os.getpid()
    with contextlib.suppress(OSError):
        started = _started(pid)
        make_folder(counters)
        write_counts(counters / f"{pid}-{name}{_SUFFIX}", started)


def resources(settings: IngestSettings, *, disks: bool = True) -> Resources:
    """Return the current resources. Pass ``disks=False`` if reading the disks may hang."""
    number: dict[str, int] = defaultdict(int)
    memory: dict[str, int] = defaultdict(int)
    for path in settings.counters.glob(f"*{_SUFFIX}"):
        pid, _, name = path.name.removesuffix(_SUFFIX).partition("-")
        try:
            if _started(int(pid)) != json.loads(path.read_bytes()):
                raise ProcessLookupError
            memory[name] += _memory(int(pid))
            number[name] += 1
        except (FileNotFoundError, ProcessLookupError):  # it has died
            with contextlib.suppress(OSError):
                path.unlink(missing_ok=True)
        except (OSError, ValueError):  # not ours to read, or not written yet
            continue
    return Resources(dict(number), dict(memory), _disks(settings) if disks else {})


def _disks(settings: IngestSettings) -> dict[str, Disk]:
    found = {}
    for name, place in (("journal", settings.journal), ("landing", settings.landing), ("store", settings.store)):
        if isinstance(place, Path):  # a bucket has no such limits
            with contextlib.suppress(OSError):
                disk = os.statvfs(place)
                found[name] = Disk(disk.f_bavail * disk.f_frsize, disk.f_blocks * disk.f_frsize)
    return found


def _started(pid: int) -> str:
    """Return a process's start in ticks since boot; raise :class:`OSError` without the process or /proc."""
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19]


def _memory(pid: int) -> int:
    """Return a process's memory in bytes. Shared pages count in equal parts if Linux reports that."""
    with contextlib.suppress(PermissionError, FileNotFoundError):
        for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
            if line.startswith("Pss:"):
                return int(line.split()[1]) * 1024
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
