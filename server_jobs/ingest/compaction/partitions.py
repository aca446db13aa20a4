"""Which records go to which partition, and which of them a compaction that died has landed there already."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import msgspec
import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from protocol.errors import FedpingError
from protocol.landed_file import open_landed
from protocol.landing import landed_at, landed_files, partition
from server_jobs.ingest.compaction.columns import LINE, STUDY

SEGMENTS_KEY = b"fedping.segments"
"""In the footer of a landed file: the names of the journal segments that its pings came from."""


@dataclass(frozen=True)
class Part:
    """The records of one partition, as row numbers of the table they came in."""

    folder: Path
    rows: NDArray[np.int64]


def parts_of(records: pa.Table, landing: Path) -> Iterator[Part]:
    """Yield the partitions that records go to; together they hold every row once."""
    studies, lines = (records.column(name).combine_chunks().dictionary_encode() for name in (STUDY, LINE))
    versions = records.column("model_version").to_numpy()
    keys = np.stack([_codes(studies), _codes(lines), versions.astype(np.int64)], axis=1)
    distinct, inverse = np.unique(keys, axis=0, return_inverse=True) if len(keys) else (keys, np.zeros(0, np.int64))
    order = np.argsort(inverse.ravel(), kind="stable")
    bounds = np.searchsorted(inverse.ravel()[order], np.arange(len(distinct) + 1))
    for (study, line, version), low, high in zip(distinct, bounds[:-1], bounds[1:], strict=True):
        line_name = None if line < 0 else lines.dictionary[int(line)].as_py()
        folder = partition(landing, studies.dictionary[int(study)].as_py(), line_name, int(version))
        yield Part(folder, order[low:high])


def _codes(column: pa.DictionaryArray) -> NDArray[np.int64]:
    codes: NDArray[np.int64] = column.indices.fill_null(-1).to_numpy(zero_copy_only=False).astype(np.int64)
    return codes


def segment_note(names: Iterable[str]) -> dict[bytes, bytes]:
    """Return the footer entry that names source segments."""
    return {SEGMENTS_KEY: msgspec.json.encode(sorted(names))}


def landed_segments(folder: Path, since_ms: int) -> set[str]:
    """Return the segments named in the footers of a partition's files that were landed at or after ``since_ms``."""
    names: set[str] = set()
    for file in landed_files(folder):
        stamp = landed_at(file)
        if stamp is not None and stamp >= since_ms:
            names.update(_segments_named(file))
    return names


def _segments_named(file: Path) -> list[str]:
    try:
        metadata = open_landed(file).footer.metadata or {}
        return msgspec.json.decode(metadata.get(SEGMENTS_KEY, b"[]"), type=list[str])
    except (FedpingError, msgspec.MsgspecError, OSError):
        return []  # A foreign or damaged file: not one of ours, and the round will name it.
