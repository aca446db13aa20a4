r"""Segments of the journal: files that consist of frames, which contain records.

    <milliseconds>-<random>.<type>.open     being written; its lock is held as long as its writer lives
    <milliseconds>-<random>.<type>.closed   rolled: complete, waiting for compaction

``<type>`` is the type of the segment's documents; earlier versions, which had a single type, left it out. If the
records' format is not 1, its number follows, as in `frecency-update.2`. A program that doesn't know the format treats
this as an unknown type and ignores the segment, instead of reporting damage. If the columns of a type differ by
study, each study has separate segments, as in `list-update@shop`.

A segment consists of frames, one per commit:

    FPJ2 <crc32 of the payload, 8 hex> <its bytes, 10 digits> <pings, 8 digits> <crc32 of all that, 8 hex>\n<payload>

A frame is completely on disk before the next frame begins, so a crash can only leave the last frame incomplete. A
header has its own checksum, so the payload's length in it can be trusted. A frame with a shorter payload was never
finished; a frame with a payload of that length but another checksum is damaged. `FPJ1` headers, written by earlier
versions, end after the number of pings. A payload can't contain a header: a header ends with a newline, and lines of
JSON contain no newlines.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import re
import secrets
import time
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Literal, TypeAlias
from uuid import UUID

import msgspec

from fedping.protocol.landed_file import printable
from fedping.protocol.local_files import make_folder, sync_folder
from fedping.protocol.ping import BY_STUDY, DOCUMENT_TYPES, FRECENCY_UPDATE, LandedPing, Payload
from fedping.protocol.spec import Name
from fedping.protocol.update import EncodedUpdate


class JournalRecord(LandedPing, frozen=True, kw_only=True, omit_defaults=True):
    """A ping in the journal, with the study and line of its partition. ``line`` is null for an arm without a line.

    ``encoded`` is an update that isn't dense. The payload's own update is then null, so that its column has a single
    type, which columnar readers require.
    """

    study: Name
    line: Name | None
    encoded: EncodedUpdate | None = None


def journal_record(
    document_id: UUID, client_id: UUID, payload: Payload, received_at: int, study: Name, line: Name | None
) -> JournalRecord:
    """Return a ping as a journal record, received at ``received_at`` (milliseconds since 1970, UTC)."""
    update = getattr(payload, "update", None)
    encoded = update if isinstance(update, EncodedUpdate) else None
    if encoded is not None:
        payload = msgspec.structs.replace(payload, update=None)
    return JournalRecord(
        document_id=document_id,
        client_id=client_id,
        received_at=received_at,
        payload=payload,
        study=study,
        line=line,
        encoded=encoded,
    )


_encoder = msgspec.json.Encoder()


def encode_records(records: Sequence[JournalRecord]) -> bytes:
    """Return records as JSON lines, each with a final newline. White space of requests isn't preserved."""
    return _encoder.encode_lines(records)


_MAGIC = b"FPJ2 "
_HEADER = re.compile(rb"FPJ([12]) ([0-9a-fA-F]{8}) ([0-9]{10}) ([0-9]{8})(?: ([0-9a-f]{8}))?\n")
_HEADER_BYTES = len(_MAGIC) + 8 + 1 + 10 + 1 + 8 + 1 + 8 + 1
"""Bytes of a header. Every stored frame is longer, because a ping has two ids, which are longer than a header."""

Cause: TypeAlias = Literal["torn", "checksum", "header", "short", "records"]
"""Reason why a piece of a segment is unreadable, in this order: it was never finished; its payload has another
checksum; its header is damaged; its end is missing; it is complete, but its lines aren't pings."""


@dataclass(frozen=True)
class Frame:
    """One commit: the position of its payload in the segment, and its number of pings."""

    start: int
    end: int
    rows: int


@dataclass(frozen=True)
class Damage:
    """An unreadable piece of a segment, and its number of pings, if known.

    A ``torn`` piece is the remainder of an unfinished write. Its pings were never accepted, so it counts no pings.
    """

    start: int
    end: int
    rows: int
    cause: Cause


@dataclass(frozen=True)
class Contents:
    """The contents of a segment: complete frames, and damaged pieces. Together they cover each byte once."""

    frames: tuple[Frame, ...]
    damaged: tuple[Damage, ...]

    @property
    def rows(self) -> int:
        """The number of pings, including those in damaged pieces."""
        return sum(frame.rows for frame in self.frames) + sum(piece.rows for piece in self.damaged)


@dataclass(frozen=True)
class _Header:
    """The fields of a header, and the start of its payload. ``sure``: the header's own checksum is correct."""

    payload: int
    crc: int
    length: int
    rows: int
    sure: bool

    @property
    def end(self) -> int:
        return self.payload + self.length


def frame_header(payload: bytes, rows: int) -> bytes:
    """Return the header of a frame."""
    fields = _MAGIC + b"%08x %010d %08d " % (zlib.crc32(payload), len(payload), rows)
    return fields + b"%08x\n" % zlib.crc32(fields)


def scan(data: bytes, *, unfinished: bool = False) -> Contents:
    """Return the contents of a segment's bytes. Damage is skipped and reported; it never raises an exception.

    Args:
        data: the whole segment.
        unfinished: whether the segment's writer died or may still be writing, so that the last frame may be torn. A
            rolled segment has no torn frames; an incomplete piece in it is damaged.
    """
    frames: list[Frame] = []
    damaged: list[Damage] = []
    at = 0
    while at < len(data):
        found = _piece_at(data, at, unfinished)
        if isinstance(found, Frame):
            frames.append(found)
        else:
            damaged.append(found)
        at = found.end
    return Contents(tuple(frames), tuple(damaged))


def _piece_at(data: bytes, at: int, unfinished: bool) -> Frame | Damage:
    """Return the frame or the damage that begins at ``at``. A piece is called torn only if that is certain."""
    header = _header_at(data, at)
    if header is not None and _is_whole(data, header):
        rows = header.rows if header.sure else _lines(data, header.payload, header.end)
        return Frame(header.payload, header.end, rows)
    if header is None or not header.sure:
        if unfinished and len(data) - at <= _HEADER_BYTES:
            return Damage(at, len(data), 0, "torn")
        end = _next_frame(data, at + 1, len(data))
        return Damage(at, end, _lines(data, at + _HEADER_BYTES, end), "checksum" if header else "header")
    end = _next_frame(data, at + 1, min(header.end, len(data)))
    if end == header.end:
        return Damage(at, end, header.rows, "checksum")
    torn = unfinished and end == len(data)
    return Damage(at, end, 0, "torn") if torn else Damage(at, end, header.rows, "short")


def _header_at(data: bytes, at: int) -> _Header | None:
    found = _HEADER.match(data, at)
    return None if found is None else _header_of(found)


def _header_of(found: re.Match[bytes]) -> _Header:
    version, crc, length, rows, own = found.groups()
    sure = version == b"2" and own is not None and zlib.crc32(found[0][: -len(own) - 1]) == int(own, 16)
    return _Header(found.end(), int(crc, 16), int(length), int(rows), sure)


def _is_whole(data: bytes, header: _Header) -> bool:
    payload = memoryview(data)[header.payload : header.end]
    return len(payload) == header.length and zlib.crc32(payload) == header.crc


def _next_frame(data: bytes, start: int, stop: int) -> int:
    """Return the start of the next frame between ``start`` and ``stop``, or ``stop``."""
    for found in _HEADER.finditer(data, start, stop):
        header = _header_of(found)
        if header.sure or _is_whole(data, header):
            return found.start()
    return stop


def _lines(data: bytes, start: int, end: int) -> int:
    return data.count(b"\n", start, end)


def count_rows(file: BinaryIO) -> int:
    """Return the number of pings in a segment from its headers, or from all its bytes if a header is damaged."""
    total = at = 0
    while head := file.read(_HEADER_BYTES):
        found = _HEADER.match(head)
        header = None if found is None else _header_of(found)
        if header is None or not (header.sure or head.startswith(b"FPJ1 ")):
            file.seek(at)
            return total + scan(file.read(), unfinished=True).rows
        total += header.rows
        at += header.end
        file.seek(at)
    return total


def payloads(data: bytes, frames: tuple[Frame, ...]) -> Iterator[bytes]:
    """Yield the payloads of frames."""
    for frame in frames:
        yield data[frame.start : frame.end]


OPEN = ".open"
CLOSED = ".closed"
LOOK_EVERY = 0.005
_COPIED_AT_ONCE = 1 << 20


class SegmentWriter:
    """The only writer of one segment.

    The file is created under a hidden name, locked, and then renamed, so that other processes never find it unlocked
    while its writer lives.

    Raises:
        OSError: the file can't be created.
    """

    def __init__(self, folder: Path, now_ms: int, document: str) -> None:
        self._folder, self._document = folder, document
        make_folder(folder)
        stem = f"{now_ms:013d}-{secrets.token_hex(6)}.{_named_type(document)}"
        self.path = folder / f"{stem}{OPEN}"
        self.began = time.monotonic()
        self.size = 0
        self._looked = self.began
        hidden = folder / f".{stem}.new"
        # Readable as well, so that its contents can be saved if the file is removed.
        self._file = os.open(hidden, os.O_CREAT | os.O_EXCL | os.O_RDWR | os.O_APPEND, 0o640)
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            os.rename(hidden, self.path)
            sync_folder(folder)
            self._name = str(self.path)
            self._identity = _identity(self._name)
        except OSError:
            os.close(self._file)
            hidden.unlink(missing_ok=True)
            self.path.unlink(missing_ok=True)
            raise

    def append(self, payload: bytes, rows: int) -> int:
        """Write one frame and flush it to disk; return its size in bytes.

        Raises:
            OSError: the frame couldn't be written or flushed. Call :meth:`cut`, and write to another segment.
        """
        frame = frame_header(payload, rows) + payload
        write_all(self._file, frame)
        os.fdatasync(self._file)
        self.size += len(frame)
        return len(frame)

    def seems_in_place(self) -> bool:
        """Return :meth:`is_in_place`, with a check that is fast enough for every commit.

        Each call checks whether the file was unlinked. Its path is checked at most every :data:`LOOK_EVERY` seconds,
        in case the file or its folder was moved; until then, bytes are written to the moved file.
        """
        if os.fstat(self._file).st_nlink == 0:
            return False
        return time.monotonic() - self._looked < LOOK_EVERY or self.is_in_place()

    def is_in_place(self) -> bool:
        """Return whether the segment still exists under its name, that is, neither it nor its folder was removed."""
        self._looked = time.monotonic()
        try:
            return _identity(self._name) == self._identity
        except OSError:
            return False

    def saved(self) -> SegmentWriter:
        """Write this segment's contents to another segment, close this segment, and return the other.

        Raises:
            OSError: the other segment couldn't be written. This segment is unchanged.
        """
        other = SegmentWriter(self._folder, int(time.time() * 1000), self._document)
        try:
            while other.size < self.size:
                piece = os.pread(self._file, min(_COPIED_AT_ONCE, self.size - other.size), other.size)
                if not piece:
                    raise OSError(errno.EIO, "the rest of a removed journal segment cannot be read")
                write_all(other._file, piece)
                other.size += len(piece)
            os.fdatasync(other._file)
            if not other.is_in_place():
                raise OSError(errno.ENOENT, "files in the journal folder are removed right after they are written")
        except OSError:
            other.discard()
            raise
        other.began = self.began
        os.close(self._file)
        return other

    def discard(self) -> None:
        """Close and remove the segment."""
        with contextlib.suppress(OSError):
            self.path.unlink()
        os.close(self._file)

    def cut(self) -> bool:
        """Cut off the remains of a failed append; return whether the cut is on disk."""
        try:
            os.ftruncate(self._file, self.size)
            os.fdatasync(self._file)
        except OSError:
            return False
        return True

    def leave(self) -> None:
        """Close the segment without renaming. Readers of unlocked ``.open`` segments cut off their unfinished end."""
        os.close(self._file)

    def roll(self) -> bool:
        """Rename the segment as ready for compaction, and close it. Its lock is released after the renaming.

        If it can't be renamed, it is still compacted, because an ``.open`` segment without a lock is ready, too.

        Returns:
            False if the segment's file was removed or moved. The segment is then not closed; call :meth:`saved`.
        """
        if not self.is_in_place():
            return False
        try:
            os.rename(self.path, self.path.with_suffix(CLOSED))
        except FileNotFoundError:
            return False
        except OSError:
            pass
        os.close(self._file)
        return True


def _identity(path: str) -> tuple[int, int]:
    status = os.stat(path)  # noqa: PTH116 - of a text it takes a third of the time, and commits wait for it
    return status.st_dev, status.st_ino


def write_all(file: int, data: bytes) -> None:
    """Write all the bytes; a full disk may accept some of them before it reports an error."""
    written = os.write(file, data)
    view = memoryview(data)
    while written < len(data):
        written += os.write(file, view[written:])


def is_abandoned(path: Path) -> bool:
    """Return whether an ``.open`` segment no longer has a living writer."""
    try:
        file = os.open(path, os.O_RDWR)  # a network file system only locks files opened for writing
    except FileNotFoundError:
        return False
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    finally:
        os.close(file)
    return True


def segments(folder: Path, suffix: str) -> list[Path]:
    """Return the segments with a suffix, oldest first."""
    return sorted(Path(entry.path) for entry in _named(folder, (suffix,)) if _can_be_segment(entry))


def no_segments(folder: Path) -> list[Path]:
    """Return entries that have a segment's name but aren't files. They are never opened, because a pipe could block."""
    return sorted(Path(entry.path) for entry in _named(folder, (OPEN, CLOSED)) if not _can_be_segment(entry))


def _named(folder: Path, suffixes: tuple[str, ...]) -> list[os.DirEntry[str]]:
    try:
        with os.scandir(folder) as entries:
            return [entry for entry in entries if entry.name.endswith(suffixes) and not entry.name.startswith(".")]
    except (FileNotFoundError, NotADirectoryError):
        return []


def _can_be_segment(entry: os.DirEntry[str]) -> bool:
    """Return whether an entry is a file, or a link to a file, with a name that can be written into Parquet footers."""
    try:
        return entry.is_file() and printable(entry.name) == entry.name
    except OSError:  # a link to itself
        return False


def created_ms(segment: Path) -> int:
    """Return a segment's creation time from its name, in milliseconds since 1970; 0 for a foreign name."""
    stamp = segment.name.partition("-")[0]
    return int(stamp) if stamp.isascii() and stamp.isdigit() else 0


def document_in(segment: Path) -> str:
    """Return the name of a segment's document type, which may be unknown to this version.

    If the format is unknown to this version, its number is part of the name.
    """
    type_and_format = segment.stem.partition(".")[2].partition(BY_STUDY)[0] or FRECENCY_UPDATE.name
    name, _, number = type_and_format.partition(".")
    known = DOCUMENT_TYPES.get(name)
    if known is not None and number in {str(each) for each in range(2, known.format + 1)}:
        return name
    return type_and_format


def journal_in(segment: Path) -> str:
    """Return the name of a segment's journal: its type, and its study, if the name has one."""
    _, mark, study = segment.stem.partition(BY_STUDY)
    return f"{document_in(segment)}{mark}{study}"


def _named_type(journal: str) -> str:
    """Return a journal's name as it appears in the names of new segments."""
    document, mark, study = journal.partition(BY_STUDY)
    number = DOCUMENT_TYPES[document].format
    return f"{document}{'' if number == 1 else f'.{number}'}{mark}{study}"
