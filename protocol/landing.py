"""The landing folder, on a disk or in a bucket: pings in Parquet, their partitions, and the layout of a file.

    <landing>/study=<name>/line=<line>/iteration=<model version>/<milliseconds>-<random>.parquet

Pings of versions that are far behind share one folder, ``iteration=-2`` (:data:`OLDER`); their column ``model_version``
has the version. So the number of folders doesn't depend on the versions that clients claim.

    <landing>/_outcomes/study=<name>/day=<YYYY-MM-DD>/<milliseconds>-<random>.parquet

Later outcomes (`fedping.protocol.outcomes`) are stored separately, by the UTC day of their receipt. No round lists that
folder.

The folders are Hive partitions, which Spark, DuckDB and pyarrow read as columns. A file appears under its name only
when it is whole and on disk. Names beginning with a dot are unfinished or foreign and are never read as pings.

    <landing>/.published/<study>/<line>/<store>    the newest version that a round has seen or published in a store
    <landing>/.attempts/<study>/<line>/<store>     status of a line's rounds in a store: the latest, and counts
    <landing>/.landing                             in a bucket, which has no folders: marks a landing folder

**Shards.** Within a file, rows are ordered by client into row groups, by default :data:`SHARDS`: row group k holds the
clients whose first two id bytes fall in the k-th part of their range. All pings of a client are therefore in the same
shard of every file, so one task handles a client completely (its duplicates, its weight, its privacy bound) without
moving a row between machines. Client ids are random, so the shards are of about equal size. The study sets the number
of shards of a round (`fedping.protocol.study`), and a file's footer has the number of shards in the file. A round can
read any file: both numbers are powers of two, so a shard is part of one row group, or several whole groups.

A :class:`Landing` is opened once from an address, carries its storage, and implements the only rule for listing files.
A task with the address of one file or partition uses the functions below the class. `fedping.protocol.landed_file`
verifies files when they are read.
"""

from __future__ import annotations

import hashlib
import os
import re
import secrets
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from fedping.protocol.errors import FedpingError
from fedping.protocol.formats import FORMAT_KEY, format_of, refuse_newer
from fedping.protocol.location import P, Place, base_name, child, key_in, parent
from fedping.protocol.object_store import StorageAway
from fedping.protocol.storage import Bytes, Opened, ShortFile, Storage, open_storage, storage_and_key

if TYPE_CHECKING:
    import numpy as np
    import pyarrow as pa
    from numpy.typing import NDArray

    from fedping.protocol.landed_file import LandedFile

SHARDS = 16
"""Default number of shards of a study. It must never change, since the bits of published versions depend on it."""

MOST_SHARDS = 4096
"""Maximum number of shards of a study: four tasks for each of a thousand cores. Two bytes of an id would allow more,
but the driver merges shards one by one."""

SHARDS_KEY = b"fedping.shards"
SINGLE_GROUP_ROWS = 4096
"""Files with fewer rows have one row group: sixteen tiny groups would cost more than reading the whole file."""

GROUP_ROWS = 2048
"""Minimum average rows of a group in a file with over :data:`SHARDS` groups, since readers open each separately."""

MARK = ".landing"

NO_LINE = "none"
"""Partition of pings from arms without a model line."""

_DAY = re.compile(r"day=\d{4}-\d{2}-\d{2}")
_ID_PARTS = 2**16
_COPIED_AT_ONCE = 2**24
_MOST_NOTED = 64
_MOST_ATTEMPT = 10_000
_MOST_DIGITS = 12


OUTCOMES = "_outcomes"
"""Folder of later outcomes. Rounds never list it, and readers of Hive partitions skip names with an underscore."""

OLDER = -2
"""Partition of pings of all versions more than :data:`APART` behind; a number, as the partition column requires."""

APART = 100
"""Number of versions behind the newest whose pings get their own folders; late pings count up to the same number
(`fedping.protocol.pipeline.Staleness`)."""


@dataclass(frozen=True)
class Landing:
    """A landing folder or bucket with its storage: opened once from an address (:func:`open_landing`), and passed on.

    Attributes:
        place: the folder, or the bucket and the folder in it.
        storage: storage of its files; keys are relative to the place.
    """

    place: Place
    storage: Storage = field(repr=False)

    def __str__(self) -> str:
        """Return the landing's address, for messages."""
        return str(self.place)

    def exists(self) -> bool:
        """Return whether ingest has been started with this landing, or anything has landed in it."""
        # the mark costs one request, the folder two
        return (self.storage.far and self.storage.exists(MARK)) or self.storage.exists("")

    def check(self) -> None:
        """Raise :class:`FedpingError` if the landing doesn't exist."""
        if not self.exists():
            raise FedpingError(
                f"no landing folder exists at {self.place}. Start 'fedping ingest' with it, or correct --landing"
            )

    def mark(self) -> None:
        """Mark a bucket's folder as a landing folder before anything has landed there.

        Raises:
            StorageAway: nothing can be written there.
        """
        self.storage.write(MARK, [b""])

    def studies(self) -> list[str]:
        """Return the studies with landed pings, in order."""
        return self._values("", "study")

    def lines(self, study: str) -> list[str]:
        """Return the lines with landed pings, in order; :data:`NO_LINE` may be among them."""
        return self._values(f"study={study}", "line")

    def _values(self, folder: str, column: str) -> list[str]:
        """Return the values of a partition column, from the names of a folder's subfolders, in order."""
        names = (name.partition("=") for name in self.storage.folders(folder))
        return sorted(value for key, _, value in names if key == column)

    def iterations(self, study: str, line: str | None) -> list[int]:
        """Return the iterations with a folder, in numeric order: 10 comes after 9, unlike in string order.

        OLDER may be among them, for pings of versions that are far behind.
        """
        names = self.storage.folders(_line_key(study, line))
        return sorted(number for name in names if (number := _iteration(name)) is not None)

    def files(self, study: str, line: str | None, iteration: int) -> list[Place]:
        """Return the Parquet files of a partition in the order of their names; none if the folder doesn't exist."""
        key = _partition_key(study, line, iteration)
        return _landed(child(self.place, key), self.storage.files(key))

    def changed(self, study: str, line: str | None, iteration: int, now_ns: int | None = None) -> int | None:
        """Return a number that changes when a file is added to or removed from a partition; None if it is unknown.

        ``now_ns`` is the present time in nanoseconds since 1970, the clock's if None.
        """
        return self.storage.token(_partition_key(study, line, iteration), now_ns)

    def files_by_iteration(self, study: str, line: str | None) -> dict[int, list[Place]]:
        """Return the files of a line by iteration, in order; a bucket is listed in few requests."""
        key = _line_key(study, line)
        folder, found = child(self.place, key), self.storage.tree(key)
        named = [(number, way) for way in found if (number := _iteration(way)) is not None]
        by_iteration = {number: _landed(child(folder, way), found[way]) for number, way in sorted(named)}
        return {number: files for number, files in by_iteration.items() if files}

    def outcome_files(self, study: str) -> list[Place]:
        """Return the files of a study's later outcomes, by day and in the order of their names."""
        key = f"{OUTCOMES}/study={study}"
        folder, found = child(self.place, key), self.storage.tree(key)
        return [file for way in sorted(filter(_is_day, found)) for file in _landed(child(folder, way), found[way])]

    def all_files(self, since_ms: int = 0) -> list[Place]:
        """Return the files of all partitions that landed at ``since_ms`` (Unix ms) or later, in order.

        The files of later outcomes are included.
        """
        found = self.storage.tree("", since_ms)
        ways = sorted(filter(_is_partition, found), key=lambda way: way.split("/"))
        files = [file for way in ways for file in _landed(child(self.place, way), found[way])]
        return files if not since_ms else [file for file in files if (landed_at(file) or 0) >= since_ms]

    def unfinished_files(self) -> list[Path]:
        """Return the hidden files of running writers and of writers that died; a bucket has none."""
        if not isinstance(self.place, Path):
            return []
        return [
            self.place / way / name
            for way, names in self.storage.tree("").items()
            if _is_partition(way)
            for name in names
            if name.startswith(".") and name.endswith(".tmp") and ".parquet." in name
        ]

    def open(self, file: Place) -> LandedFile:
        """Read and verify the footer of a landed file; see :func:`fedping.protocol.landed_file.open_landed`."""
        from fedping.protocol.landed_file import read_footer

        return read_footer(self.storage, key_in(self.place, file), file)

    def remove(self, file: Place) -> None:
        """Remove a landed file, if it exists, and its folder if it is then empty."""
        self.storage.remove(key_in(self.place, file))

    def size(self, file: Place) -> int:
        """Return a landed file's size in bytes; raise :class:`FileNotFoundError` if the file is gone."""
        stamp = self.storage.stamp(key_in(self.place, file))
        if stamp is None:
            raise FileNotFoundError(f"{file} does not exist")
        return stamp[-1]

    def read_published(self, store: str, study: str, line: str) -> int:
        """Return the newest version that a round has seen or published in the store at a path; -1 if none is recorded.

        Raises:
            NewerFormat: a later version of fedping has written the record.
            StorageAway: the bucket doesn't answer.
        """
        key = self._note(store, study, line)
        text = self._read_note(key, _MOST_NOTED)
        if text is None:
            return -1
        refuse_newer(format_of(text), f"the note {child(self.place, key)}")  # of format 1 it is the number alone
        return int(text) if text.isdigit() and len(text) < _MOST_DIGITS else -1

    def record_published(self, store: str, study: str, line: str, iteration: int) -> None:
        """Record a line's newest version next to the pings, where it survives when a backup of the store is restored.

        Each store has its own record, by its path, even a copy that is tried out on the same pings. The record isn't
        flushed: after a power loss it may have an older number, which is harmless. Writing may fail without an error:
        rounds may run as a user who can only read the landing folder, and then only the store's static files show the
        number.
        """
        self._write_note(self._note(store, study, line), str(iteration).encode())

    def read_status(self, store: str, study: str, line: str) -> bytes | None:
        """Return the recorded status of a line's last round; None if it doesn't exist or can't be read."""
        return self._read_note(self._note(store, study, line, ".attempts"), _MOST_ATTEMPT)

    def record_status(self, store: str, study: str, line: str, data: bytes) -> None:
        """Record the status of a line's last round, as :meth:`record_published` does, if anything has landed."""
        if self.exists():
            self._write_note(self._note(store, study, line, ".attempts"), data)

    def _note(self, store: str, study: str, line: str, folder: str = ".published") -> str:
        # The relative path stays the same if both are moved together; a bucket is not moved.
        way = store
        if isinstance(self.place, Path) and "://" not in store:
            way = os.path.relpath(Path(store).resolve(), self.place.resolve())
        return f"{folder}/{study}/{line}/{hashlib.sha256(os.fsencode(way)).hexdigest()[:16]}"

    def _read_note(self, key: str, most: int) -> bytes | None:
        """Return the bytes of a small file; None if it doesn't exist, has more than ``most``, or can't be read."""
        try:
            return self.storage.read(key, most)
        except OSError:
            return None

    def _write_note(self, key: str, data: bytes) -> None:
        """Write a small file if possible; it may be lost in a power failure."""
        with suppress(OSError, StorageAway):
            self.storage.write(key, [data], durable=False)


def open_landing(place: Place | Landing) -> Landing:
    """Return the landing at a place, which needn't exist; nothing is read or written.

    A landing is returned unchanged, so a function can accept either.
    """
    return place if isinstance(place, Landing) else Landing(place, open_storage(place))


def partition(landing: P, study: str, line: str | None, iteration: int) -> P:
    """Return the folder of the pings of a version of a line, or the folder of OLDER."""
    return child(landing, _partition_key(study, line, iteration))


def line_folder(landing: P, study: str, line: str | None) -> P:
    """Return the folder of all the pings of a line."""
    return child(landing, _line_key(study, line))


def outcome_folder(landing: P, study: str, day: str) -> P:
    """Return the folder of a study's later outcomes that were received on a day in UTC, as "2026-11-26"."""
    return child(landing, f"{OUTCOMES}/study={study}/day={day}")


def _line_key(study: str, line: str | None) -> str:
    return f"study={study}/line={line or NO_LINE}"


def _partition_key(study: str, line: str | None, iteration: int) -> str:
    return f"{_line_key(study, line)}/iteration={iteration}"


def _iteration(folder: str) -> int | None:
    """Return the iteration in a folder's name; None for a foreign name."""
    beginning, _, number = folder.partition("=")
    is_ours = beginning == "iteration" and _is_integer(number) and str(int(number)) == number
    return int(number) if is_ours else None


def landed_files(folder: P) -> list[P]:
    """Return the Parquet files of a partition, as :meth:`Landing.files` does, by the partition's address."""
    return _landed(folder, open_storage(folder).files(""))


def _is_partition(way: str) -> bool:
    parts = way.split("/")
    if parts[0] == OUTCOMES:
        return len(parts) == 3 and parts[1].startswith("study=") and _is_day(parts[2])
    are_ours = [part.partition("=")[0] for part in parts] == ["study", "line", "iteration"]
    return are_ours and _iteration(parts[-1]) is not None


def _is_day(folder: str) -> bool:
    return _DAY.fullmatch(folder) is not None


def _landed(folder: P, names: Sequence[str]) -> list[P]:
    return [child(folder, name) for name in sorted(names) if name.endswith(".parquet") and name[0] not in "._"]


def study_of(file: Place) -> str:
    """Return the study whose pings a landed file contains."""
    of_outcomes = base_name(above := parent(parent(file))).startswith("study=")
    return base_name(above if of_outcomes else parent(above)).removeprefix("study=")


def copy_landed(file: Place, to: Place) -> bool:
    """Copy a landed file to another place, byte for byte; return False if the same undamaged file is there already.

    Raises:
        UnreadableFile: the file is damaged, or was changed meanwhile; nothing was copied.
        FileNotFoundError: the file doesn't exist.
    """
    from fedping.protocol.landed_file import UnreadableFile, open_landed

    mine = open_landed(file)
    columns = mine.footer.schema.to_arrow_schema().names
    with suppress(FileNotFoundError, UnreadableFile):
        there = open_landed(to)
        if (there.digest, there.size) == (mine.digest, mine.size):
            there.verify(columns)
            if mine.entries is not None or _are_equal(mine, there):
                return False
    mine.verify(columns)
    target, key = storage_and_key(to)
    with mine.storage.opened(mine.key) as opened:
        try:
            target.write(key, map(memoryview, _pieces(opened, mine.size)))
        except ShortFile as error:
            raise UnreadableFile(file, "was changed while it was copied") from error
    return True


def _are_equal(one: LandedFile, other: LandedFile) -> bool:
    with one.storage.opened(one.key) as mine, other.storage.opened(other.key) as theirs:
        pairs = zip(_pieces(mine, one.size), _pieces(theirs, other.size), strict=True)
        return all(bytes(a) == bytes(b) for a, b in pairs)


def _pieces(opened: Opened, size: int) -> Iterator[Bytes]:
    for start in range(0, size, _COPIED_AT_ONCE):
        yield opened.read(start, min(_COPIED_AT_ONCE, size - start))


def landed_at(file: Place) -> int | None:
    """Return the landing time of a file (Unix ms) from its name; None for a foreign name."""
    stamp = base_name(file).partition("-")[0]
    return int(stamp) if _is_integer(stamp) else None


def _is_integer(text: str) -> bool:
    return text.removeprefix("-").isascii() and text.removeprefix("-").isdigit()


def shard_of(client_ids: NDArray[np.uint8], shards: int = SHARDS) -> NDArray[np.uint16]:
    """Return the shard of each client, shape (k,), from client ids, shape (k, 16).

    ``shards``, the number of shards, is a power of two.
    """
    import numpy as np

    first = client_ids[:, 0].astype(np.uint16) << np.uint16(8)
    return (first | client_ids[:, 1]) >> np.uint16(_ID_PARTS.bit_length() - shards.bit_length())


def groups_for(rows: int, shards: int = SHARDS) -> int:
    """Return the number of row groups of a file with ``rows`` rows in a study of ``shards`` shards: a power of two."""
    if rows < SINGLE_GROUP_ROWS:
        return 1
    most = max(SHARDS, rows // GROUP_ROWS)
    return min(shards, 1 << (most.bit_length() - 1))


def shards_in(metadata: Mapping[bytes, bytes] | None, groups: int) -> int:
    """Return the number of shards that a file's row groups hold, from its footer; 1 if rows aren't grouped by shard."""
    said = (metadata or {}).get(SHARDS_KEY, b"")
    is_theirs = said == str(groups).encode() and 1 < groups <= _ID_PARTS and groups.bit_count() == 1
    return groups if is_theirs else 1


def id_bytes(column: pa.FixedSizeBinaryArray) -> NDArray[np.uint8]:
    """Return a column of 16-byte ids as an array of shape (k, 16), without a copy."""
    import numpy as np

    _, data = column.buffers()
    return np.frombuffer(data, dtype=np.uint8, count=16 * len(column), offset=16 * column.offset).reshape(-1, 16)


def write_landed(
    folder: P,
    table: pa.Table,
    landed_ms: int,
    metadata: Mapping[bytes, bytes] | None = None,
    token: str | None = None,
    shards: int = SHARDS,
) -> P:
    """Write pings as one new file of a partition, whole and durable, and return its place.

    Args:
        folder: the partition (see :func:`partition`); made if missing.
        table: pings of :func:`fedping.protocol.arrow.landed_schema`, in any order.
        landed_ms: now, in milliseconds since 1970; becomes part of the name.
        metadata: added to the file's footer, for the writer's own use.
        token: the second half of the name, for a writer that chooses its names, such as a simulation that must
            reproduce the same bytes; a file of the same name is replaced. Random if None.
        shards: the number of shards of the study, for the layout of a large file.

    Raises:
        OSError: the file couldn't be written, and doesn't exist.
        StorageAway: the bucket doesn't answer; the file may exist now or later.
    """
    file = child(folder, f"{landed_ms:013d}-{token or secrets.token_hex(6)}.parquet")
    storage, key = storage_and_key(file)
    storage.write(key, _sealed(table, metadata, shards))
    return file


def rewrite(file: Place, change: Callable[[pa.Table], pa.Table]) -> None:
    """Replace the pings of a landed file, as durably as :func:`write_landed`, keeping its owner and mode.

    Args:
        file: its address.
        change: computes the new table from the present one; the metadata of its schema stay.

    Raises:
        FileNotFoundError: the file doesn't exist.
        UnreadableFile: the file is damaged.
        ChangedMeanwhile: another process has written the file since it was read; its bytes stay.
    """
    storage, key = storage_and_key(file)
    storage.rewrite(key, _changed(file, change))


def _changed(file: Place, change: Callable[[pa.Table], pa.Table]) -> Iterator[memoryview | bytes]:
    """Yield the new bytes of a landed file; the present file is read when the first part is requested."""
    from fedping.protocol.landed_file import SEALED_KEY, open_landed

    with open_landed(file).opened() as opened:
        table = change(opened.read())
    notes = dict(table.schema.metadata or {})
    notes.pop(SEALED_KEY, None)
    said = notes.pop(SHARDS_KEY, b"")
    shards = shards_in({SHARDS_KEY: said}, int(said)) if said.isdigit() else 1
    yield from _sealed(table.replace_schema_metadata(notes), shards=max(shards, SHARDS))


def _sealed(
    table: pa.Table, metadata: Mapping[bytes, bytes] | None = None, shards: int = SHARDS
) -> Iterator[memoryview | bytes]:
    """Return the bytes of a landed file with these pings."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    from fedping.protocol.landed_file import SEALED_KEY, sealed

    groups = list(_row_groups(table, groups_for(table.num_rows, shards)))
    notes = {**(table.schema.metadata or {}), **(metadata or {})}
    if len(groups) > 1:
        notes[SHARDS_KEY] = str(len(groups)).encode()
    notes.setdefault(FORMAT_KEY, b"1")
    notes[SEALED_KEY] = b"1"
    schema = table.schema.with_metadata(notes)
    made = pa.BufferOutputStream()
    with pq.ParquetWriter(made, schema, **_parquet_options(table)) as writer:
        for group in groups:
            writer.write_table(group, row_group_size=max(1, group.num_rows))
    return sealed(made.getvalue())


def _row_groups(table: pa.Table, groups: int) -> Iterator[pa.Table]:
    import numpy as np

    if groups == 1:
        yield table
        return
    column = table.column("client_id").combine_chunks()
    shards = shard_of(id_bytes(column.chunk(0) if hasattr(column, "chunk") else column), groups)
    order = np.argsort(shards, kind="stable")
    bounds = np.searchsorted(shards[order], np.arange(groups + 1))
    for low, high in zip(bounds[:-1], bounds[1:], strict=True):
        yield table.take(order[low:high])


def _parquet_options(table: pa.Table) -> dict[str, object]:
    import pyarrow as pa

    repeated = [f.name for f in table.schema if pa.types.is_dictionary(f.type) or pa.types.is_integer(f.type)]
    return {
        "compression": "zstd",
        "compression_level": 1,
        "use_dictionary": repeated,
        "write_statistics": False,
        "write_page_checksum": True,
    }
