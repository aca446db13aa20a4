"""The landing folder: where pings lie in Parquet, and how one file is laid out.

    <landing>/study=<name>/line=<line>/iteration=<model version>/<milliseconds>-<random>.parquet

Pings of versions that are far behind share one folder, ``iteration=-2`` (:data:`OLDER`); their column ``model_version``
says which each is of. How many folders there are is so decided here and not by what clients say they know.

The folders are Hive partitions, which Spark, DuckDB and pyarrow read as columns. A file appears under its name only
when it is whole and on disk. Names beginning with a dot are unfinished or foreign and are never read as pings.

    <landing>/.published/<study>/<line>/<store>    the newest version that a round has seen or published in a store
    <landing>/.attempts/<study>/<line>/<store>     how the last round of a line in a store ended, and how many ended how

**Shards.** Within a file, rows are ordered by client into row groups, by default :data:`SHARDS`: row group k holds the
clients whose first two id bytes fall in the k-th part of their range. All pings of a client are therefore in the same
shard of every file, so that whatever concerns one client (its duplicates, its weight, later its privacy bound) is
decided by one task without moving a row between machines. Client ids are random, so the shards are even. How many a
round has is the study's to say (`fedping.protocol.study`); how many a file has says its footer, and a round takes any:
both are powers of two, so that a shard is a part of one row group, or some of them.

How a file is verified when it is read: `fedping.protocol.landed_file`.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import secrets
import stat
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from fedping.protocol.formats import format_of, refuse_newer

if TYPE_CHECKING:
    import numpy as np
    import pyarrow as pa
    from numpy.typing import NDArray

SHARDS = 16
"""The shards of a study that does not say how many; a constant of what is published, since the bits depend on it."""

MOST_SHARDS = 4096
"""The shards of a study at most: four tasks for each of a thousand cores. Two bytes of an id would do for more, but the
driver merges one after the other."""

SHARDS_KEY = b"fedping.shards"
SINGLE_GROUP_ROWS = 4096
"""A file of fewer rows than this has one row group: sixteen tiny ones would cost more than reading it whole."""

GROUP_ROWS = 2048
"""Rows that a row group has on average at least, where a file has more than :data:`SHARDS` of them: a reader opens
each for itself."""

FOLDER_MODE, FILE_MODE = 0o750, 0o640
"""What clients send is for the owner and the group, whatever the umask allows beyond that."""

NO_LINE = "none"
"""The partition of the pings whose arm follows no model line."""

_ID_PARTS = 2**16
_MOST_NOTED = 64
_MOST_ATTEMPT = 10_000
_MOST_DIGITS = 12


OLDER = -2
"""The partition of the pings of all versions that are older than :data:`APART`; a number, so that the partitions' type
stays one."""

APART = 100
"""How many versions behind the newest the pings of a version still get a folder of their own; as many as late pings may
ever count (`fedping.protocol.pipeline.Staleness`)."""


def partition(landing: Path, study: str, line: str | None, iteration: int) -> Path:
    """Return the folder of the pings that were ranked with version ``iteration`` of a line, or of those of OLDER."""
    return line_folder(landing, study, line) / f"iteration={iteration}"


def line_folder(landing: Path, study: str, line: str | None) -> Path:
    """Return the folder of all the pings of a line."""
    return landing / f"study={study}" / f"line={line or NO_LINE}"


def iterations(landing: Path, study: str, line: str | None) -> list[int]:
    """Return the iterations that have a folder, in numeric order (10 after 9; string order would put it before).

    OLDER is among them: whoever asks for versions one by one has to look there for all that are not new.
    """
    found = line_folder(landing, study, line).glob("iteration=*")
    return sorted(int(number) for p in found if _is_integer(number := p.name.partition("=")[2]))


def partitions(landing: Path) -> Iterator[Path]:
    """Yield the folders of all studies, lines and iterations, in any order."""
    for study in _folders(landing, "study="):
        for line in _folders(study.path, "line="):
            yield from (Path(folder.path) for folder in _folders(line.path, "iteration="))


def _folders(folder: Path | str, beginning: str) -> list[os.DirEntry[str]]:
    with os.scandir(folder) as entries:
        return [entry for entry in entries if entry.name.startswith(beginning) and entry.is_dir()]


def unfinished_files(folder: Path) -> list[Path]:
    """Return the hidden files of a partition that are being written, or were by a writer that died."""
    return [folder / name for name in os.listdir(folder) if name.startswith(".") and name.endswith(".parquet.tmp")]


def landed_files(folder: Path) -> list[Path]:
    """Return the Parquet files of a partition in the order of their names; none if there is no such folder."""
    return sorted(p for p in folder.glob("*.parquet") if not p.name.startswith((".", "_")))


def landed_at(file: Path) -> int | None:
    """Return when a file was landed (milliseconds since 1970), read from its name; None for a foreign name."""
    stamp = file.name.partition("-")[0]
    return int(stamp) if _is_integer(stamp) else None


def _is_integer(text: str) -> bool:
    return text.removeprefix("-").isascii() and text.removeprefix("-").isdigit()


def shard_of(client_ids: NDArray[np.uint8], shards: int = SHARDS) -> NDArray[np.uint16]:
    """Return the shard of each client from its id; ids have shape (k, 16), what is returned shape (k,).

    ``shards``, how many there are, is a power of two.
    """
    import numpy as np

    first = client_ids[:, 0].astype(np.uint16) << np.uint16(8)
    return (first | client_ids[:, 1]) >> np.uint16(_ID_PARTS.bit_length() - shards.bit_length())


def groups_for(rows: int, shards: int = SHARDS) -> int:
    """Return how many row groups a file of so many rows has in a study of so many shards: a power of two."""
    if rows < SINGLE_GROUP_ROWS:
        return 1
    most = max(SHARDS, rows // GROUP_ROWS)
    return min(shards, 1 << (most.bit_length() - 1))


def shards_in(metadata: Mapping[bytes, bytes] | None, groups: int) -> int:
    """Return how many shards the row groups of a file are, from its footer; 1 where any row may be in any of them."""
    said = (metadata or {}).get(SHARDS_KEY, b"")
    is_theirs = said == str(groups).encode() and 1 < groups <= _ID_PARTS and groups.bit_count() == 1
    return groups if is_theirs else 1


def id_bytes(column: pa.FixedSizeBinaryArray) -> NDArray[np.uint8]:
    """Return a column of 16-byte ids as an array of shape (k, 16), without a copy."""
    import numpy as np

    _, data = column.buffers()
    return np.frombuffer(data, dtype=np.uint8, count=16 * len(column), offset=16 * column.offset).reshape(-1, 16)


def write_landed(
    folder: Path,
    table: pa.Table,
    landed_ms: int,
    metadata: Mapping[bytes, bytes] | None = None,
    token: str | None = None,
    shards: int = SHARDS,
) -> Path:
    """Write pings as one new file of a partition, durably, and return its path.

    The file is written under a hidden name, flushed to disk and renamed; then the folder is flushed. After a crash at
    any point there is either the whole file or an unread hidden one.

    Args:
        folder: the partition (see :func:`partition`); made if need be.
        table: pings of :func:`fedping.protocol.arrow.landed_schema`, in any order.
        landed_ms: now, in milliseconds since 1970; becomes part of the name.
        metadata: kept in the file's footer beside our own, for the writer's own use.
        token: the second half of the name, for a writer whose names are its own to choose, such as a simulation that
            has to give the same bits again; a file of the same name is replaced. Random if None.
        shards: those of the study, by which a large file is laid out.

    Raises:
        OSError: the file cannot be written; the hidden file is removed.
    """
    return _write(folder / f"{landed_ms:013d}-{token or secrets.token_hex(6)}.parquet", table, metadata, shards=shards)


def write_again(file: Path, table: pa.Table) -> None:
    """Write a landed file anew in its place, with some of its pings, as durably as :func:`write_landed`.

    It stays readable for whom it was; what a symbolic link names is replaced, and not the link.

    Args:
        file: its path.
        table: what it had, or a part of that, with the metadata of its schema.
    """
    from fedping.protocol.landed_file import SEALED_KEY

    notes = dict(table.schema.metadata or {})
    notes.pop(SEALED_KEY, None)
    said = notes.pop(SHARDS_KEY, b"")
    shards = shards_in({SHARDS_KEY: said}, int(said)) if said.isdigit() else 1
    place = Path(os.path.realpath(file))
    _write(place, table.replace_schema_metadata(notes), like=place.stat(), shards=max(shards, SHARDS))


def _write(
    final: Path,
    table: pa.Table,
    metadata: Mapping[bytes, bytes] | None = None,
    like: os.stat_result | None = None,
    shards: int = SHARDS,
) -> Path:
    """Write pings as a file of this path, which appears, or is replaced, when it is whole and on disk."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    from fedping.protocol.landed_file import FORMAT_KEY, SEALED_KEY, sealed

    folder = final.parent
    make_folder(folder)
    hidden = folder / f".{final.name}.tmp"
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
    try:
        with open(hidden, "wb", opener=for_the_group) as sink:
            if like is not None:
                os.fchown(sink.fileno(), like.st_uid, like.st_gid)
                os.fchmod(sink.fileno(), stat.S_IMODE(like.st_mode))
            sink.writelines(sealed(made.getvalue()))
            sink.flush()
            os.fsync(sink.fileno())
        os.rename(hidden, final)
    except BaseException:
        hidden.unlink(missing_ok=True)
        raise
    sync_folder(folder)
    return final


def for_the_group(path: str, flags: int) -> int:
    """Open a file that others than owner and group cannot read; the ``opener`` of :func:`open`."""
    return os.open(path, flags, FILE_MODE)


def make_folder(folder: Path) -> None:
    """Make a folder and those above it, as far as they are missing, which others than owner and group cannot enter.

    Each is on disk before anything is written into it.
    """
    for each in [*reversed(folder.parents), folder]:
        if not each.is_dir():
            each.mkdir(mode=FOLDER_MODE, exist_ok=True)
            with contextlib.suppress(PermissionError):  # a folder that may be passed through and not be listed
                sync_folder(each.parent)


def sync_folder(folder: Path) -> None:
    """Flush a folder's entries to disk, so that a rename or a new name in it survives a power loss."""
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


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


def newest_noted(landing: Path, store: str, study: str, line: str) -> int:
    """Return the newest version that a round is known to have seen or published in the store at a path; -1 if none.

    Raises:
        NewerFormat: a later version of fedping has noted it.
    """
    path = _note(landing, store, study, line)
    try:
        with open(path, "rb", opener=lambda p, flags: os.open(p, flags | os.O_NONBLOCK)) as note:
            text = note.read(_MOST_NOTED) or b""
    except OSError:
        return -1
    refuse_newer(format_of(text), f"the note {path}")  # of format 1 it is the number alone
    return int(text) if text.isdigit() and len(text) < _MOST_DIGITS else -1


def note_newest(landing: Path, store: str, study: str, line: str, iteration: int) -> None:
    """Note a line's newest version beside the pings, where it stays if an older copy of the store is put back.

    By the store's path: a copy elsewhere that is tried out on the same pings is another store. It is not flushed to
    disk: after a power loss an older number is there, which says less and nothing wrong. Nor does it have to succeed:
    rounds may run as a user who can only read the landing folder, and then the store's static files alone tell.
    """
    _replace_note(_note(landing, store, study, line), str(iteration).encode())


def noted_attempt(landing: Path, store: str, study: str, line: str) -> bytes | None:
    """Return what was noted of the last round of a line; None if nothing was, or it cannot be read."""
    try:
        path = _note(landing, store, study, line, ".attempts")
        with open(path, "rb", opener=lambda p, flags: os.open(p, flags | os.O_NONBLOCK)) as note:
            return note.read(_MOST_ATTEMPT)
    except OSError:
        return None


def note_attempt(landing: Path, store: str, study: str, line: str, data: bytes) -> None:
    """Note how the last round of a line ended, as :func:`note_newest` does; where nothing ever landed, nowhere."""
    if landing.is_dir():
        _replace_note(_note(landing, store, study, line, ".attempts"), data)


def _replace_note(note: Path, data: bytes) -> None:
    hidden = note.with_name(f".{note.name}.{secrets.token_hex(6)}.tmp")
    try:
        make_folder(note.parent)
        hidden.write_bytes(data)
        hidden.rename(note)
    except BaseException as error:  # Ctrl-C leaves no hidden file either
        with contextlib.suppress(OSError):
            hidden.unlink(missing_ok=True)
        if not isinstance(error, OSError):
            raise


def _note(landing: Path, store: str, study: str, line: str, folder: str = ".published") -> Path:
    # By the way from one to the other, the same if both are moved together; a bucket stays where it is.
    way = store if "://" in store else os.path.relpath(Path(store).resolve(), landing.resolve())
    place = hashlib.sha256(os.fsencode(way)).hexdigest()[:16]
    return landing / folder / study / line / place
