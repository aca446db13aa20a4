"""The landed files at the time of a count, and the number of pings that have landed since."""

from __future__ import annotations

import functools
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field

from msgspec import Struct

from fedping.analysis.study import Window
from fedping.protocol.digest import digest_of
from fedping.protocol.errors import FedpingError
from fedping.protocol.landing import OLDER, Landing, open_landing, partition
from fedping.protocol.location import Place, base_name, child, key_in, parent
from fedping.protocol.study import Study

FILES_A_LOOK = 256
"""Maximum number of Parquet footers that one reading takes, so that it ends soon; the next reading continues."""

FRESH_S = 2.0

Files = Mapping[str, tuple[str, ...]]
"""Names of landed files by partition; keys are paths relative to the landing folder."""


class Landed(Struct, frozen=True, dict=True):
    """The inputs of a count: the landed files of a window, each line's newest version, and the version of fedping."""

    files: dict[str, tuple[str, ...]]
    versions: dict[str, int]
    code: str

    @functools.cached_property
    def digest(self) -> str:
        """SHA-256 of the inputs; counts with equal digests have equal results."""
        return digest_of(self)


@dataclass(frozen=True)
class Since:
    """The number of pings that landed after a count; ``complete`` is False while there may be more."""

    pings: int
    complete: bool


@dataclass
class Folders:
    """Cache of the names of landed files; a folder is listed again only after a change."""

    _known: dict[str, tuple[int, tuple[str, ...]]] = field(default_factory=dict)

    def files(self, landing: Place, study: Study, window: Window) -> dict[str, tuple[str, ...]]:
        """Return the landed files in a study's window, by non-empty partition, and all files of its later outcomes."""
        pings, found = open_landing(landing), {}
        for line, iteration in _partitions(pings, study, window):
            folder = key_in(landing, partition(landing, study.name, line, iteration))
            found[folder] = self._names(pings, study.name, line, iteration)
        if study.later_outcomes is not None:
            for file in pings.outcome_files(study.name):
                folder = key_in(landing, parent(file))
                found[folder] = (*found.get(folder, ()), base_name(file))
        return {folder: names for folder, names in found.items() if names}

    def _names(self, landing: Landing, study: str, line: str | None, iteration: int) -> tuple[str, ...]:
        folder = str(partition(landing.place, study, line, iteration))
        token = landing.changed(study, line, iteration)
        known = self._known.get(folder)
        if known is not None and known[0] == token:
            return known[1]
        names = tuple(map(base_name, landing.files(study, line, iteration)))
        if token is not None:
            self._known[folder] = (token, names)
        return names


@dataclass
class Watch:
    """Finds the pings that landed after counts; thread-safe, and reads folders at most every two seconds."""

    landing: Place
    clock: Callable[[], float] = time.monotonic
    folders: Folders = field(default_factory=Folders)
    _seen: dict[tuple[str, str, Window], tuple[float, Since]] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def since(self, count: str, study: Study, window: Window, landed: Callable[[], Files]) -> Since:
        """Return the number of a window's pings that landed after a count.

        Args:
            count: the count's id.
            study: the count's study.
            window: the window of the pings.
            landed: returns the files that had landed when the count began.
        """
        with self._lock:
            key = (study.name, count, window)
            known = self._seen.get(key)
            if known is not None and self.clock() - known[0] < FRESH_S:
                return known[1]
            current = self._look(study, window, landed())
            self._seen[key] = (self.clock(), current)
            return current

    def _look(self, study: Study, window: Window, before: Files) -> Since:
        pings = read = 0
        for file in new_files(self.folders.files(self.landing, study, window), before):
            missed = rows.cache_info().misses
            pings += rows(child(self.landing, file), window)
            read += rows.cache_info().misses - missed
            if read >= FILES_A_LOOK:
                return Since(pings, complete=False)
        return Since(pings, complete=True)


def new_files(now: Files, before: Files) -> Iterator[str]:
    """Yield the paths of the files in ``now`` that are not in ``before``."""
    for folder, names in now.items():
        known = before.get(folder, ())
        if names != known:
            yield from (f"{folder}/{name}" for name in sorted(set(names) - set(known)))


@functools.lru_cache(maxsize=65_536)
def rows(file: Place, window: Window) -> int:
    """Return the number of pings of a landed file within a window; 0 if the file is gone."""
    import numpy as np
    import pyarrow as pa

    from fedping.protocol.landed_file import open_landed

    bounds = [("received_at", window.since, None if window.until is None else window.until - 1)]
    if base_name(parent(file)) == f"iteration={OLDER}":
        bounds.append(("model_version", window.first, window.last))
    bounds = [bound for bound in bounds if bound[1:] != (None, None)]
    inside = 0
    try:
        landed = open_landed(file)
        if not bounds:
            return int(landed.footer.num_rows)
        for batch in landed.batches([name for name, _, _ in bounds]):
            within = np.ones(batch.num_rows, np.bool_)
            for name, first, last in bounds:
                column = batch.column(name).cast(pa.int64()).to_numpy(zero_copy_only=False)
                within &= column >= (first if first is not None else -(2**62))
                within &= column <= (last if last is not None else 2**62)
            inside += int(np.count_nonzero(within))
    except (OSError, FedpingError, pa.ArrowInvalid, KeyError):  # the count itself reports unreadable files
        return 0
    return inside


def _partitions(landing: Landing, study: Study, window: Window) -> Iterator[tuple[str | None, int]]:
    for line in [*(line.name for line in study.lines), None]:
        for iteration in landing.iterations(study.name, line):
            if line is None or window.reaches(iteration):
                yield line, iteration
