"""A segment file: one writer, with a lock that the system releases when the writer dies.

<milliseconds>-<random>.<type>.open     being written; its lock is held as long as its writer lives
<milliseconds>-<random>.<type>.closed   rolled: whole, waiting to be compacted

The type is that of its documents; a name without a type is from the time when there was only one. If the format of the
records is not 1, its number follows, as in `frecency-update.2`. To a program that does not know this format, that is a
type of a later version, and it leaves such segments where they are instead of reporting them as damaged.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import secrets
import time
from pathlib import Path

from fedping.protocol.documents import DOCUMENT_TYPES, FRECENCY_UPDATE
from fedping.protocol.landed_file import printable
from fedping.protocol.local_files import make_folder, sync_folder
from fedping.server_jobs.ingest.journal.frames import frame_header

OPEN = ".open"
CLOSED = ".closed"
LOOK_EVERY = 0.005
_COPIED_AT_ONCE = 1 << 20


class SegmentWriter:
    """The only writer of one segment.

    The file is created under a hidden name, locked, and only then named, so nobody finds it unlocked while its writer
    lives.

    Raises:
        OSError: it cannot be created.
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
        # Readable as well, so that its contents can be saved if somebody removes it.
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
            OSError: it could not be written or flushed. Call :meth:`cut`, and write to another segment.
        """
        frame = frame_header(payload, rows) + payload
        write_all(self._file, frame)
        os.fdatasync(self._file)
        self.size += len(frame)
        return len(frame)

    def seems_in_place(self) -> bool:
        """Return :meth:`is_in_place`, cheaply enough for every commit.

        Whether the file was unlinked is checked every time. Whether it was moved, possibly with its folder, requires a
        look at its path, at most every :data:`LOOK_EVERY` seconds; until then its bytes go where the file went.
        """
        if os.fstat(self._file).st_nlink == 0:
            return False
        return time.monotonic() - self._looked < LOOK_EVERY or self.is_in_place()

    def is_in_place(self) -> bool:
        """Return whether others find this segment under its name, that is, neither it nor its folder was removed."""
        self._looked = time.monotonic()
        try:
            return _identity(self._name) == self._identity
        except OSError:
            return False

    def saved(self) -> SegmentWriter:
        """Return another segment with the contents of this one, and close this one.

        Raises:
            OSError: it could not be written. This one is unchanged.
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
                raise OSError(errno.ENOENT, "what is written to the journal folder is removed at once")
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
        """Close the segment as it is: whoever finds it ``.open`` and unlocked cuts off what is unfinished."""
        os.close(self._file)

    def roll(self) -> bool:
        """Close the segment and rename it as ready to be compacted. It is renamed before its lock is released.

        If it cannot be renamed it is found all the same: an ``.open`` segment without a lock is also ready.

        Returns:
            False if it is no longer in place; it is then not closed either: call :meth:`saved`.
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
    """Return entries named like segments that are none, which nobody opens: opening a pipe might block forever."""
    return sorted(Path(entry.path) for entry in _named(folder, (OPEN, CLOSED)) if not _can_be_segment(entry))


def _named(folder: Path, suffixes: tuple[str, ...]) -> list[os.DirEntry[str]]:
    try:
        with os.scandir(folder) as entries:
            return [entry for entry in entries if entry.name.endswith(suffixes) and not entry.name.startswith(".")]
    except (FileNotFoundError, NotADirectoryError):
        return []


def _can_be_segment(entry: os.DirEntry[str]) -> bool:
    """Return whether it is a file, or a link to one, with a name that can be written into the footers of others."""
    try:
        return entry.is_file() and printable(entry.name) == entry.name
    except OSError:  # a link to itself
        return False


def created_ms(segment: Path) -> int:
    """Return when a segment was created (milliseconds since 1970), read from its name; 0 for a foreign name."""
    stamp = segment.name.partition("-")[0]
    return int(stamp) if stamp.isascii() and stamp.isdigit() else 0


def document_in(segment: Path) -> str:
    """Return the name of a segment's document type, which may be unknown here.

    If the format is unknown here, its number is a part of the name.
    """
    told = segment.stem.partition(".")[2] or FRECENCY_UPDATE.name
    name, _, number = told.partition(".")
    known = DOCUMENT_TYPES.get(name)
    if known is not None and number in {str(each) for each in range(2, known.format + 1)}:
        return name
    return told


def _named_type(document: str) -> str:
    """Return a document type as it appears in the names of new segments."""
    number = DOCUMENT_TYPES[document].format
    return document if number == 1 else f"{document}.{number}"
