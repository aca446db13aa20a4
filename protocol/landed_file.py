"""A landed file: sealed when written, verified on every read, and checked for the columns of its pings.

In a file that fedping writes, a *seal* between the last row group and the footer, which other readers skip, holds::

    [pages …][an entry a column chunk: first byte, length, XXH3-64][digest][number of entries][fpSEAL01][footer]

A reader of some columns of some row groups verifies exactly these bytes, page headers included. The *digest* is the
XXH3-128 of the entries and the footer: it identifies every byte that can be read from the file, and versions keep it.
The footer says that the file has a seal, so the loss of either is noticed.

A file without a seal (landed by an older version, or written by something else) is read too. Its page checksums are
verified, if it has any; its digest covers only its footer.

Every reader that counts pings opens files with :func:`open_pings`, so a file counts for all readers or for none.
"""

from __future__ import annotations

import os
import shlex
import struct
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedping.protocol.errors import FedpingError
from fedping.protocol.formats import FORMAT_KEY
from fedping.protocol.location import Bucket, Place, is_address, place_of
from fedping.protocol.object_store import heeding
from fedping.protocol.ping import DOCUMENT_TYPES, DocumentType
from fedping.protocol.storage import Bytes, NotAFile, Opened, ShortFile, Storage, storage_and_key

if TYPE_CHECKING:
    import pyarrow as pa
    import pyarrow.parquet as pq


FORMATS = (b"1", b"2")
"""Formats that can be read: "1", where every ping has every field, and "2", where optional fields may be null."""

SEALED_KEY = b"fedping.sealed"
"""Key in the footer of a file with a seal."""

MAGIC = b"fpSEAL01"
_CHUNK = struct.Struct("<QQ8s")
_END = struct.Struct("<16sI8s")
_FOOTER_END = struct.Struct("<I4s")
_PARQUET = b"PAR1"

TAIL = 2**16
"""Bytes read at once from the end of a file; they include footer and seal unless the file has very many row groups."""

MOST_FOOTER = 2**26
"""Maximum bytes of a footer; fedping's own have 2 KB a row group, and at most 8 MB."""

MOST_AT_ONCE = 2**27
"""Maximum bytes of a column chunk read at once from a file without a seal; longer chunks are read in segments."""

BATCH_ROWS = 2**16
"""Rows decoded at a time: a few bytes of Parquet can stand for any number of equal rows."""

_LONGEST_TYPE = 80
"""Maximum characters of a column's type, or of a writer's name, in a message."""

_UNSEALED = {"page_checksum_verification": True, "pre_buffer": False}


class UnreadableFile(FedpingError):
    """A landed file is damaged or doesn't contain landed pings; the message names the file."""

    def __init__(self, path: str | os.PathLike[str] | Bucket, what: str) -> None:
        super().__init__(
            f"{printable(path)} {what}; put a whole copy in its place, or move it out of the way {_aside(path)} (no "
            "name that begins with a dot is read); then run the same command again"
        )
        self.path, self.what = str(path) if isinstance(path, Bucket) else os.fspath(path), what

    def __reduce__(self) -> tuple[type[UnreadableFile], tuple[str, str]]:
        return type(self), (self.path, self.what)


def _aside(path: str | os.PathLike[str] | Bucket) -> str:
    """Return a command that moves a file out of the way, or another remedy."""
    if "://" in (text := str(path)):
        folder, _, name = text.rpartition("/")
        return f"to '{folder}/.{name}', with the tool of the object store"
    where = Path(text)
    return f"by `mv {_quoted(text)} {_quoted(str(where.with_name(f'.{where.name}')))}`"


def printable(path: str | os.PathLike[str] | Bucket) -> str:
    r"""Return a path in printable form: bytes that aren't UTF-8 as ``\xff``."""
    return os.fsencode(str(path)).decode("utf-8", "backslashreplace")


def _quoted(path: str) -> str:
    """Return a path quoted for a shell."""
    if printable(path) == path:
        return shlex.quote(path)
    escaped = path.replace("\\", "\\\\").replace("'", "\\'")
    return f"$'{printable(escaped)}'"


def sealed(parquet: pa.Buffer) -> Iterator[memoryview | bytes]:
    """Yield the bytes of a Parquet file with its seal; the footer must have :data:`SEALED_KEY`.

    Args:
        parquet: the whole file from a writer, without page indexes.
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
    """Yield the first byte and the length of each column chunk, as Arrow reads it."""
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
        path: its address: a path, or an object's address.
        storage, key: the storage with its bytes, and its key there.
        size: its size in bytes.
        footer: its Parquet metadata.
        digest: identity of its content (for a file without a seal, of its footer), 32 hexadecimal digits.
        entries: the seal's entries; None for a file without a seal.
        whole: the content of a small file in a bucket, which was read with its footer and needs no further request.
    """

    path: str
    storage: Storage = field(repr=False)
    key: str
    size: int
    footer: pq.FileMetaData
    digest: str
    entries: bytes | None
    whole: bytes | None = field(default=None, repr=False)

    @contextmanager
    def opened(self, **options: object) -> Iterator[pq.ParquetFile]:
        """Open the file to read from it; every byte that is read is verified, as far as the file allows.

        Args:
            **options: of :class:`pyarrow.parquet.ParquetFile`.

        Raises:
            UnreadableFile: a part that is read, here or in the block, is damaged or too large; or the file is missing.
        """
        import pyarrow as pa
        import pyarrow.parquet as pq

        try:
            with self._bytes() as (opened, far):
                source = _Source(opened, self.size, self.entries)
                if self.entries is not None:
                    # one column chunk at a time; where each takes a request, those side by side in one, all verified
                    options = {"pre_buffer": far, **options}
                else:
                    options = {**_UNSEALED, **options}
                    if any(length > MOST_AT_ONCE for _, length in _chunks(self.footer)):
                        options["buffer_size"] = 2**20
                with pq.ParquetFile(pa.PythonFile(source, "r"), metadata=self.footer, **options) as file:
                    yield _Heeding(file) if far else file
        except MemoryError as error:  # which pa.ArrowMemoryError is too
            raise UnreadableFile(self.path, f"needs more memory than there is ({first_line(error)})") from error
        except (pa.ArrowException, OSError) as error:
            raise UnreadableFile(self.path, _reason("is damaged", error)) from error

    @contextmanager
    def _bytes(self) -> Iterator[tuple[Opened, bool]]:
        """Open the source of the file's bytes; yield the source, and whether each read is a network request."""
        if self.whole is not None:
            yield _Whole(self.whole), False
            return
        with self.storage.opened(self.key) as opened:
            yield opened, self.storage.far

    def batches(
        self, columns: Sequence[str], groups: Sequence[int] | None = None, rows: int = BATCH_ROWS, **options: object
    ) -> Iterator[pa.RecordBatch]:
        """Yield some columns of the given row groups (None: all), at most ``rows`` rows at a time.

        Raises:
            UnreadableFile: as :meth:`opened`.
        """
        with self.opened(**options) as file:
            yield from file.iter_batches(rows, row_groups=groups, columns=list(columns), use_threads=False)

    def verify(self, columns: Sequence[str]) -> None:
        """Verify some columns against the seal, for readers that can't do so themselves; a file without a seal passes.

        Raises:
            UnreadableFile: their bytes differ from what was written.
        """
        if self.entries is None:
            return
        ranges = list(_chunks(self.footer))
        names = [self.footer.schema.column(i).path.partition(".")[0] for i in range(self.footer.num_columns)]
        try:
            with self._bytes() as (opened, _):
                source = _Source(opened, self.size, self.entries)
                for number, (start, length) in enumerate(ranges):
                    if names[number % len(names)] in columns:
                        source.seek(start)
                        source.read(length)
        except OSError as error:
            raise UnreadableFile(self.path, _reason("is damaged", error)) from error


def open_landed(path: str | Place) -> LandedFile:
    """Read and verify the footer of a landed file by its address; see :func:`read_footer`."""
    _refuse_odd_name(path)  # before it is parsed
    return _read_footer(*storage_and_key(place_of(path)), path)


def read_footer(storage: Storage, key: str, path: str | Place) -> LandedFile:
    """Read and verify the footer of a landed file, which may be a Parquet file of any kind.

    Only a regular file is opened, or a symbolic link to one: opening a pipe would block until a writer appears.

    Args:
        storage: the storage that has it.
        key: the file's key in the storage.
        path: its address, for messages and the lineage.

    Raises:
        UnreadableFile: the file isn't readable Parquet, is truncated, or has a damaged footer or seal; or its name
            isn't UTF-8 or can't be part of an address, and so can't be in a version's lineage.
        FileNotFoundError: the file doesn't exist.
        StorageAway: the file's bucket doesn't answer.
    """
    _refuse_odd_name(path)
    return _read_footer(storage, key, path)


def _read_footer(storage: Storage, key: str, path: str | Place) -> LandedFile:
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        size, tail, footer_bytes = _tail(storage, key)
        entries = _entries(tail[: len(tail) - len(footer_bytes)], footer_bytes)
        footer = pq.read_metadata(pa.BufferReader(tail))
    except FileNotFoundError:
        if isinstance(storage.place, Path) and (link := storage.place / key).is_symlink():
            raise UnreadableFile(path, f"is a link to {link.readlink()}, which is missing") from None
        raise
    except NotAFile as error:
        raise UnreadableFile(path, f"is {error}, not a file") from error
    except (pa.ArrowException, OSError, MemoryError, ValueError, struct.error) as error:
        raise UnreadableFile(path, _reason("is not a whole Parquet file", error)) from error
    if (said := (footer.metadata or {}).get(FORMAT_KEY, FORMATS[0])) not in FORMATS:
        raise UnreadableFile(
            path, f"has format {said.decode(errors='replace')}, which this version does not know: upgrade fedping"
        )
    if entries is None and SEALED_KEY in (footer.metadata or {}):
        if _ends(footer) == size - len(footer_bytes):  # a damaged seal still has its bytes
            raise UnreadableFile(path, "is not as ingest wrote it: another program wrote it again, without its seal")
        raise UnreadableFile(path, "is damaged (its seal is missing)")
    whole = tail if len(tail) == size and storage.far else None
    return LandedFile(
        str(path), storage, key, size, footer, _digest(entries or b"", footer_bytes).hex(), entries, whole
    )


def _refuse_odd_name(path: str | Place) -> None:
    if printable(path) != str(path):
        raise UnreadableFile(path, "has a name that is not UTF-8")
    if isinstance(path, Bucket) and not is_address(path):
        raise UnreadableFile(path, "has a name with ?, #, %, a space at an end or what cannot be printed")


def _ends(footer: pq.FileMetaData) -> int:
    """Return the end of a file's last column chunk."""
    return max((start + length for start, length in _chunks(footer)), default=len(_PARQUET))


def _digest(entries: bytes, footer: bytes | memoryview) -> bytes:
    import xxhash

    state = xxhash.xxh3_128(entries)
    state.update(footer)
    return state.digest()


def _tail(storage: Storage, key: str) -> tuple[int, bytes, bytes]:
    """Return a file's size, its last bytes with seal and footer, and the footer with its length and magic word."""
    tail, size = _last(storage, key, TAIL)
    length, magic = _FOOTER_END.unpack(tail[-_FOOTER_END.size :])
    if magic != _PARQUET or not 0 < length <= min(MOST_FOOTER, size - _FOOTER_END.size):
        raise ValueError("it does not end in a footer")
    whole = length + _FOOTER_END.size
    if size > len(tail) and len(tail) < whole + _END.size:
        tail, _ = _last(storage, key, min(whole + _END.size, size))
    if tail[-whole - _END.size : -whole].endswith(MAGIC):
        _, count, _ = _END.unpack(tail[-whole - _END.size : -whole])
        needed = whole + _END.size + count * _CHUNK.size
        if not needed <= min(size, MOST_FOOTER):
            raise ValueError("its seal is damaged")
        if len(tail) < needed:
            tail, _ = _last(storage, key, needed)
    return size, tail, tail[-whole:]


def _last(storage: Storage, key: str, most: int) -> tuple[bytes, int]:
    read, size = storage.tail(key, most)
    return bytes(read), size


def _entries(before: bytes, footer: bytes) -> bytes | None:
    """Return a seal's entries from the bytes before a footer; None without a seal. Raise ValueError on a mismatch."""
    if not before.endswith(MAGIC):
        return None
    digest, count, _ = _END.unpack(before[-_END.size :])
    entries = before[len(before) - _END.size - count * _CHUNK.size : -_END.size]
    if digest != _digest(entries, footer):
        raise ValueError("its footer or its seal is damaged")
    return entries


class _Whole:
    """All bytes of a file, in memory."""

    def __init__(self, data: bytes) -> None:
        self._data = memoryview(data)

    @property
    def size(self) -> int:
        return len(self._data)

    def read(self, start: int, size: int) -> Bytes:
        if start + size > len(self._data):
            raise ShortFile
        return self._data[start : start + size]


class _Heeding:
    """An open Parquet file in a bucket whose reads Ctrl-C can interrupt; Arrow alone would wait for all columns."""

    def __init__(self, file: pq.ParquetFile) -> None:
        self._file = file

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._file, name)
        return partial(_heeded, found) if name.startswith("read") and callable(found) else found

    def iter_batches(self, *args: object, **options: object) -> Iterator[pa.RecordBatch]:
        """See :meth:`pyarrow.parquet.ParquetFile.iter_batches`."""
        batches = self._file.iter_batches(*args, **options)
        while (batch := heeding(lambda: next(batches, None))) is not None:
            yield batch


def _heeded(read: Callable[..., Any], *args: object, **options: object) -> Any:
    return heeding(lambda: read(*args, **options))


class _Source:
    """A file object for Arrow. From a sealed file it returns only column chunks, each verified before use.

    Neighbouring chunks may be read at once. Arrow ignores the bytes of other columns between them.
    """

    closed = False

    def __init__(self, opened: Opened, size: int, entries: bytes | None) -> None:
        self._opened, self._size, self._at = opened, size, 0
        # empty row groups, all at byte 0, have nothing to verify
        self._chunks = None if entries is None else sorted(each for each in _CHUNK.iter_unpack(entries) if each[1])

    def read(self, size: int = -1) -> Bytes:
        """Return the next ``size`` bytes; raise :class:`OSError` if they differ from what was written."""
        left = max(0, self._size - self._at)
        size = left if size < 0 or (self._chunks is None and size > left) else size
        data = self._opened.read(self._at, size)
        if self._chunks is not None and size:
            self._verify(memoryview(data), size)
        self._at += size
        return data

    def _verify(self, data: memoryview, size: int) -> None:
        import xxhash

        assert self._chunks is not None
        first = bisect_left(self._chunks, (self._at,))
        verified = self._at
        for at in range(first, len(self._chunks)):  # no slice: a file of many row groups is read in as many pieces
            start, length, digest = self._chunks[at]
            if start + length > self._at + size:
                break
            low = start - self._at
            if xxhash.xxh3_64_digest(data[low : low + length]) != digest:
                raise OSError(f"the column chunk at byte {start} differs from what was written")
            verified = start + length
        if verified != self._at + size or not first < len(self._chunks) or self._chunks[first][0] != self._at:
            raise OSError(f"{size} bytes at {self._at} are not column chunks of its seal")

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        """Go to a position."""
        if whence == os.SEEK_CUR:
            offset += self._at
        elif whence == os.SEEK_END:
            offset += self._size
        self._at = offset
        return offset

    def tell(self) -> int:
        """Return the position."""
        return self._at

    def readable(self) -> bool:
        """Return True: the source can be read."""
        return True

    def close(self) -> None:
        """Do nothing: the code that opened the file closes it."""


def _reason(damage: str, error: BaseException) -> str:
    """Return the problem behind an error: the ``damage``, or the system's refusal to read the file."""
    if isinstance(error, OSError) and error.errno is not None and error.strerror:
        return f"cannot be read ({error.strerror})"
    return f"{damage} ({first_line(error)})"


def first_line(error: BaseException) -> str:
    """Return the first line of an error's message; its type if it has none."""
    return (str(error).splitlines() or [type(error).__name__])[0]


def open_pings(path: str | Place, document: DocumentType, columns: Iterable[str]) -> LandedFile:
    """Read and verify the footer of a landed file, and compare some of its columns with the schema of landed pings.

    The column of an optional field may be absent, unless it determines whether a ping counts.

    Args:
        path: its address.
        document: the type of its pings.
        columns: the columns to be read.

    Raises:
        UnreadableFile: the file isn't regular, is truncated, damaged or not Parquet, or another program wrote it with
            other types.
        FedpingError: the file is gone.
        StorageAway: the file's bucket doesn't answer.
    """
    try:
        landed = open_landed(path)
    except FileNotFoundError as error:
        raise FedpingError(
            f"{path} is missing, but its pings are needed. Restore it from a copy, then run the same command again"
        ) from error
    check_columns(landed, document, columns)
    return landed


def check_columns(landed: LandedFile, document: DocumentType, columns: Iterable[str]) -> None:
    """Compare some columns of a landed file with the schema of a type's landed pings, as :func:`open_pings` does.

    Raises:
        UnreadableFile: one differs; the message names the column and the difference.
    """
    from fedping.protocol.arrow import UPDATE, UPDATE_ENCODING, landed_schema

    found, schema = schema_of(landed), landed_schema(document)
    always_there = (UPDATE, UPDATE_ENCODING, *document.counted_by[:1])
    for name in columns:
        agreed = schema.field(name)
        if name not in found.names and agreed.nullable and name not in always_there:
            continue
        if trouble := _trouble(found, agreed):
            what = f"is not a file of landed {document.name} pings ({trouble}{_writer(landed)})"
            raise UnreadableFile(landed.path, what)


def closest_document(landed: LandedFile) -> DocumentType:
    """Return the type of pings whose column names are closest to a landed file's.

    Raises:
        UnreadableFile: its footer has no schema.
    """
    from fedping.protocol.arrow import landed_schema

    found = set(schema_of(landed).names)
    return min(DOCUMENT_TYPES.values(), key=lambda document: len(found ^ set(landed_schema(document).names)))


def schema_of(landed: LandedFile) -> pa.Schema:
    """Return the Arrow schema of a landed file.

    Raises:
        UnreadableFile: its footer has none.
    """
    import pyarrow as pa

    try:
        return landed.footer.schema.to_arrow_schema()
    except pa.ArrowException as error:
        raise UnreadableFile(landed.path, f"is not a whole Parquet file ({first_line(error)})") from error


def _trouble(found: pa.Schema, agreed: pa.Field) -> str | None:
    """Return the difference between a column and the agreed one; None if they agree."""
    if (times := found.names.count(agreed.name)) != 1:
        return f"it has {times} columns '{agreed.name}'" if times else f"it has no column '{agreed.name}'"
    column = found.field(agreed.name)
    if column.type != agreed.type:
        return f"its column '{agreed.name}' is {str(column.type)[:_LONGEST_TYPE]}, not {agreed.type}"
    if column.nullable and not agreed.nullable:  # not the other way round: a file must have all such fields
        return f"its column '{agreed.name}' may be null, but a landed ping's may not"
    return None


def _writer(landed: LandedFile) -> str:
    """Return the end of a sentence naming the program that wrote a file, if the footer names one other than ingest."""
    writer = str(landed.footer.created_by or "")
    if not writer.isprintable() or not writer or writer.startswith("parquet-cpp-arrow"):
        return ""
    return f"; {writer[:_LONGEST_TYPE]} wrote it"
