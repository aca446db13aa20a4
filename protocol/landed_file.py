"""A landed file: sealed when it is written, and verified whenever anything is read from it.

Between the last row group and the footer of a file that we write lies its *seal*, which other readers of Parquet skip::

    [pages …][an entry a column chunk: first byte, length, XXH3-64][digest][number of entries][fpSEAL01][footer]

So whoever reads some columns of some row groups verifies exactly these bytes, page headers included, and no others. The
*digest* is the XXH3-128 of the entries and the footer: it stands for every byte that can be read from the file, and
versions keep it. The footer says that there is a seal, so neither can be lost without the other telling.

A file without a seal (landed by an older version, or written by something else) is read too. Its page checksums are
verified, if it has any; its digest is that of its footer alone.
"""

from __future__ import annotations

import os
import shlex
import stat
import struct
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from fedping.protocol.errors import FedpingError

if TYPE_CHECKING:
    import pyarrow as pa
    import pyarrow.parquet as pq

FORMAT_KEY = b"fedping.format"
"""In the footer of a landed file: by which rules it was written; 1 if it is not there."""

FORMATS = (b"1", b"2")
"""Those that are read: every ping has every field, or some that a client may leave out are null there."""

SEALED_KEY = b"fedping.sealed"
"""In the footer of a file that has a seal."""

MAGIC = b"fpSEAL01"
_CHUNK = struct.Struct("<QQ8s")
_END = struct.Struct("<16sI8s")
_FOOTER_END = struct.Struct("<I4s")
_PARQUET = b"PAR1"

TAIL = 2**16
"""Bytes read at once from the end of a file: footer and seal of all but files with very many row groups."""

MOST_FOOTER = 2**26
"""Bytes of the longest footer that is read; one of ours has 2 KB a row group, and 8 MB at most."""

MOST_AT_ONCE = 2**27
"""Bytes of a column chunk that are read at once from a file without a seal; a longer one is read piece by piece."""

BATCH_ROWS = 2**16
"""Rows decoded at a time where many may come: a few bytes of Parquet can stand for any number of equal rows."""

_UNSEALED = {"page_checksum_verification": True, "pre_buffer": False}


class UnreadableFile(FedpingError):
    """A file in the landing folder that is not whole, or not of landed pings; the sentence names it."""

    def __init__(self, path: str | os.PathLike[str], what: str) -> None:
        where = Path(path)
        aside = f"mv {_quoted(str(where))} {_quoted(str(where.with_name(f'.{where.name}')))}"
        super().__init__(
            f"{printable(path)} {what}; put a whole copy in its place, or move it out of the way by `{aside}` (no name "
            "that begins with a dot is read); then run the same command again"
        )
        self.path, self.what = os.fspath(path), what

    def __reduce__(self) -> tuple[type[UnreadableFile], tuple[str, str]]:
        return type(self), (self.path, self.what)


def printable(path: str | os.PathLike[str]) -> str:
    r"""Return a path as it can be written anywhere: bytes that are no UTF-8 as ``\xff``."""
    return os.fsencode(path).decode("utf-8", "backslashreplace")


def _quoted(path: str) -> str:
    """Return a path as a shell takes it."""
    if printable(path) == path:
        return shlex.quote(path)
    escaped = path.replace("\\", "\\\\").replace("'", "\\'")
    return f"$'{printable(escaped)}'"


def sealed(parquet: pa.Buffer) -> Iterator[memoryview | bytes]:
    """Yield the bytes of a Parquet file with its seal; the footer has to have :data:`SEALED_KEY`.

    Args:
        parquet: the whole file as a writer made it, without page indexes.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq
    import xxhash

    data = memoryview(parquet)
    length, _ = _FOOTER_END.unpack(data[-_FOOTER_END.size :])
    start = len(data) - _FOOTER_END.size - length
    chunks = list(_chunks(pq.read_metadata(pa.BufferReader(parquet))))
    table = b"".join(_CHUNK.pack(at, n, xxhash.xxh3_64_digest(data[at : at + n])) for at, n in chunks)
    yield data[:start]
    yield table + _END.pack(_digest(table, data[start:]), len(chunks), MAGIC)
    yield data[start:]


def _chunks(footer: pq.FileMetaData) -> Iterator[tuple[int, int]]:
    """Yield from where Arrow reads each column chunk, and its length."""
    for number in range(footer.num_row_groups):
        group = footer.row_group(number)
        for column in map(group.column, range(group.num_columns)):
            start, first = column.data_page_offset, column.dictionary_page_offset
            if column.has_dictionary_page and 0 < first < start:  # without a row there is no data page: start is 0
                start = first
            yield start, column.total_compressed_size


@dataclass(frozen=True, slots=True, eq=False)
class LandedFile:
    """A landed file whose footer has been read and verified.

    Attributes:
        path: where it is.
        footer: its metadata.
        digest: 32 hexadecimal digits that stand for its content (of a file without a seal, for its footer).
        entries: those of the seal; None of a file without one.
    """

    path: str
    footer: pq.FileMetaData
    digest: str
    entries: bytes | None

    @contextmanager
    def opened(self, **options: object) -> Iterator[pq.ParquetFile]:
        """Open the file to read from it; every byte that is read is verified, as far as the file allows.

        Args:
            **options: of :class:`pyarrow.parquet.ParquetFile`.

        Raises:
            UnreadableFile: what is read, here or in the block, is damaged or too large; the file is gone.
        """
        import pyarrow as pa
        import pyarrow.parquet as pq

        try:
            with open(_handle(self.path), "rb", buffering=0) as raw:
                source: object = raw
                if self.entries is not None:
                    source = _VerifiedChunks(raw.fileno(), self.entries)
                    options = {"pre_buffer": False, **options}  # else column chunks would be read in one with others
                else:
                    options = {**_UNSEALED, **options}
                    if any(length > MOST_AT_ONCE for _, length in _chunks(self.footer)):
                        options["buffer_size"] = 2**20
                with pq.ParquetFile(pa.PythonFile(source, "r"), metadata=self.footer, **options) as file:
                    yield file
        except MemoryError as error:  # which pa.ArrowMemoryError is too
            raise UnreadableFile(self.path, f"needs more memory than there is ({first_line(error)})") from error
        except (pa.ArrowException, OSError) as error:
            raise UnreadableFile(self.path, f"is damaged ({first_line(error)})") from error

    def batches(
        self, columns: Sequence[str], groups: Sequence[int] | None = None, rows: int = BATCH_ROWS, **options: object
    ) -> Iterator[pa.RecordBatch]:
        """Yield some columns, at most ``rows`` rows at a time; of all row groups, or of some.

        Raises:
            UnreadableFile: as :meth:`opened`.
        """
        with self.opened(**options) as file:
            yield from file.iter_batches(rows, row_groups=groups, columns=list(columns), use_threads=False)

    def verify(self, columns: Sequence[str]) -> None:
        """Compare some columns with the seal, for a reader that cannot; of a file without one there is nothing to do.

        Raises:
            UnreadableFile: they are not what was written.
        """
        if self.entries is None:
            return
        ranges = list(_chunks(self.footer))
        names = [self.footer.schema.column(i).path.partition(".")[0] for i in range(self.footer.num_columns)]
        try:
            with open(_handle(self.path), "rb", buffering=0) as raw:
                source = _VerifiedChunks(raw.fileno(), self.entries)
                for number, (start, length) in enumerate(ranges):
                    if names[number % len(names)] in columns:
                        source.seek(start)
                        source.read(length)
        except OSError as error:
            raise UnreadableFile(self.path, f"is damaged ({first_line(error)})") from error


def open_landed(path: str | Path) -> LandedFile:
    """Read and verify the footer of a landed file, which may be of anything.

    Only a regular file is opened, or a symbolic link to one: to open a pipe would wait for ever for somebody to write.

    Raises:
        UnreadableFile: it is no file, may not be read, is truncated, no Parquet, or its footer or seal is damaged; or
            its name is no UTF-8, and so can be in no version's lineage.
        FileNotFoundError: there is nothing of that name.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    if printable(path) != str(path):
        raise UnreadableFile(path, "has a name that is not UTF-8")
    try:
        with open(_handle(path), "rb", buffering=0) as raw:
            tail, footer_bytes = _tail(raw.fileno())
        entries = _entries(tail[: len(tail) - len(footer_bytes)], footer_bytes)
        footer = pq.read_metadata(pa.BufferReader(tail))
    except FileNotFoundError:
        if Path(path).is_symlink():
            raise UnreadableFile(path, f"is a link to {Path(path).readlink()}, which is not there") from None
        raise
    except (pa.ArrowException, OSError, MemoryError, ValueError, struct.error) as error:
        raise UnreadableFile(path, f"is not a whole Parquet file ({first_line(error)})") from error
    if (said := (footer.metadata or {}).get(FORMAT_KEY, FORMATS[0])) not in FORMATS:
        raise UnreadableFile(
            path, f"has format {said.decode(errors='replace')}, which this version does not know: upgrade fedping"
        )
    if entries is None and SEALED_KEY in (footer.metadata or {}):
        raise UnreadableFile(path, "is damaged (its seal is gone)")
    return LandedFile(str(path), footer, _digest(entries or b"", footer_bytes).hex(), entries)


def _digest(entries: bytes, footer: bytes | memoryview) -> bytes:
    import xxhash

    state = xxhash.xxh3_128(entries)
    state.update(footer)
    return state.digest()


def _handle(path: str | Path) -> int:
    """Open a regular file to be read, and nothing else."""
    _refuse_unless_file(path, Path(path).stat().st_mode)
    handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        _refuse_unless_file(path, os.fstat(handle).st_mode)  # whatever took its place in between
    except BaseException:
        os.close(handle)
        raise
    return handle


def _refuse_unless_file(path: str | Path, mode: int) -> None:
    if not stat.S_ISREG(mode):
        kind = "a folder" if stat.S_ISDIR(mode) else "a pipe, a socket or a device"
        raise UnreadableFile(path, f"is {kind}, not a file")


def _tail(handle: int) -> tuple[bytes, bytes]:
    """Return the end of a file, with seal and footer, and the footer alone, with its length and the magic word."""
    size = os.fstat(handle).st_size
    tail = _read(handle, max(0, size - TAIL), min(TAIL, size))
    length, magic = _FOOTER_END.unpack(tail[-_FOOTER_END.size :])
    if magic != _PARQUET or not 0 < length <= min(MOST_FOOTER, size - _FOOTER_END.size):
        raise ValueError("it does not end in a footer")
    whole = length + _FOOTER_END.size
    if size > len(tail) and len(tail) < whole + _END.size:
        tail = _read(handle, max(0, size - whole - _END.size), min(whole + _END.size, size))
    if tail[-whole - _END.size : -whole].endswith(MAGIC):
        _, count, _ = _END.unpack(tail[-whole - _END.size : -whole])
        needed = whole + _END.size + count * _CHUNK.size
        if not needed <= min(size, MOST_FOOTER):
            raise ValueError("its seal is damaged")
        if len(tail) < needed:
            tail = _read(handle, size - needed, needed)
    return tail, tail[-whole:]


def _entries(before: bytes, footer: bytes) -> bytes | None:
    """Return a seal's entries, given what comes before a footer; None without a seal, an error if it does not fit."""
    if not before.endswith(MAGIC):
        return None
    digest, count, _ = _END.unpack(before[-_END.size :])
    entries = before[len(before) - _END.size - count * _CHUNK.size : -_END.size]
    if digest != _digest(entries, footer):
        raise ValueError("its footer or its seal is damaged")
    return entries


class _VerifiedChunks:
    """What Arrow reads column chunks from: each is read whole, and compared with the seal before it is used."""

    closed = False

    def __init__(self, handle: int, entries: bytes) -> None:
        self._handle, self._at = handle, 0
        self._known = {(at, length): digest for at, length, digest in _CHUNK.iter_unpack(entries)}

    def read(self, size: int = -1) -> pa.Buffer:
        """Return the next ``size`` bytes, which have to be a column chunk.

        In a buffer of Arrow's, which takes the same memory again and again where Python would ask the system each time.
        """
        import pyarrow as pa
        import xxhash

        digest = self._known.get((self._at, size))
        if digest is None:
            raise OSError(f"{size} bytes at {self._at} are no column chunk that its seal knows")
        data = pa.allocate_buffer(size)
        if os.preadv(self._handle, [memoryview(data)], self._at) != size:
            data = pa.py_buffer(_read(self._handle, self._at, size))
        if xxhash.xxh3_64_digest(data) != digest:
            raise OSError(f"the column chunk at byte {self._at} is not what was written")
        self._at += size
        return data

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        """Go to a position."""
        if whence == os.SEEK_CUR:
            offset += self._at
        elif whence == os.SEEK_END:
            offset += os.fstat(self._handle).st_size
        self._at = offset
        return offset

    def tell(self) -> int:
        """Return the position."""
        return self._at

    def readable(self) -> bool:
        """Whether it can be read."""
        return True

    def close(self) -> None:
        """Leave the file to whoever opened it."""


def _read(handle: int, start: int, size: int) -> bytes:
    data = os.pread(handle, size, start)
    if len(data) == size:
        return data
    parts = [data]
    while data and (left := size - sum(map(len, parts))):
        data = os.pread(handle, left, start + size - left)
        parts.append(data)
    if sum(map(len, parts)) < size:
        raise OSError("it is shorter than its footer says")
    return b"".join(parts)


def first_line(error: BaseException) -> str:
    """Return the first line of what an error says, its type if it says nothing."""
    return (str(error).splitlines() or [type(error).__name__])[0]
