"""How many updates have landed and their size in bytes, by study, line and encoding.

The compactor sees every update and is one process. It writes its counts since its start into its own file, and readers
sum the files, including those of compactors that died. Like the counters they begin with ingest.
"""

from __future__ import annotations

import os
import secrets
from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from fedping.protocol.local_files import make_folder
from fedping.server_jobs.ingest.counters import write_counts

if TYPE_CHECKING:
    import pyarrow as pa

_SUFFIX = ".uploads"


class Uploaded(NamedTuple):
    """A kind of update: its study, line and encoding."""

    study: str
    line: str
    encoding: str


class UploadCounts:
    """The counts of one compactor."""

    def __init__(self, folder: Path) -> None:
        make_folder(folder)
        self._path = folder / f"{os.getpid()}-{secrets.token_hex(4)}{_SUFFIX}"
        self._counts: dict[Uploaded, tuple[int, int]] = defaultdict(lambda: (0, 0))

    def add(self, study: str, line: str | None, landed: pa.Table) -> None:
        """Count the updates among landed pings of one line."""
        import pyarrow as pa  # not above: counts are read by the supervisor, which forks and may have no threads
        import pyarrow.compute as pc

        from fedping.protocol.arrow import UPDATE, UPDATE_ENCODING

        sizes, tags = pc.binary_length(landed[UPDATE]), landed[UPDATE_ENCODING].cast(pa.string())
        for tag in pc.unique(tags).drop_null().to_pylist():
            mine = sizes.filter(pc.equal(tags, tag))
            what = Uploaded(study, line or "", tag)
            updates, size = self._counts[what]
            self._counts[what] = updates + len(mine), size + (pc.sum(mine).as_py() or 0)

    def write(self) -> None:
        """Let others see the counts so far."""
        write_counts(self._path, [(*what, *counts) for what, counts in self._counts.items()])


def uploaded(folder: Path) -> Mapping[Uploaded, tuple[int, int]]:
    """Return how many updates have landed, and their bytes."""
    sums: dict[Uploaded, tuple[int, int]] = {}
    for path in sorted(folder.glob(f"*{_SUFFIX}")):
        for study, line, encoding, updates, size in msgspec.json.decode(
            path.read_bytes(), type=list[tuple[str, str, str, int, int]]
        ):
            what = Uploaded(study, line, encoding)
            before = sums.get(what, (0, 0))
            sums[what] = before[0] + updates, before[1] + size
    return sums
