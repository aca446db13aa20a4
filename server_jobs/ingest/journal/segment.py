"""A segment file: one writer, held by a lock that the system takes away when the writer dies.

<milliseconds>-<random>.<type>.open     being written; its lock is held as long as its writer lives
<milliseconds>-<random>.<type>.closed   rolled: whole, waiting to be compacted

The type is that of its documents; a name without one is of the time when there was one type only.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import secrets
import time
from pathlib import Path

from protocol.documents import FRECENCY_UPDATE
from protocol.landing import sync_folder
from server_jobs.ingest.journal.frames import frame_header

OPEN = ".open"
CLOSED = ".closed"


class SegmentWriter:
    """The one writer of one segment.

    It is made under a hidden name, locked, and only then named: nobody can find it unlocked while its writer lives.

    Raises:
        OSError: it cannot be made.
    """

    def __init__(self, folder: Path, now_ms: int, document: str) -> None:
        stem = f"{now_ms:013d}-{secrets.token_hex(6)}.{document}"
        self.path = folder / f"{stem}{OPEN}"
        self.began = time.monotonic()
        self.size = 0
        hidden = folder / f".{stem}.new"
        self._file = os.open(hidden, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_APPEND, 0o640)
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            os.rename(hidden, self.path)
            sync_folder(folder)
        except OSError:
            os.close(self._file)
            hidden.unlink(missing_ok=True)
            self.path.unlink(missing_ok=True)
            raise

    def append(self, payload: bytes, rows: int) -> int:
        """Write one frame and flush it to disk; return its bytes.

        Raises:
            OSError: it could not be written or flushed. Call :meth:`abandon`, and write to another segment.
        """
        frame = frame_header(payload, rows) + payload
        write_all(self._file, frame)
        os.fdatasync(self._file)
        self.size += len(frame)
        return len(frame)

    def roll(self) -> None:
        """Close the segment and name it as ready to be compacted. It is named before its lock is let go.

        If it cannot be renamed it is found all the same: an ``.open`` segment without a lock is ready as well.
        """
        with contextlib.suppress(OSError):
            os.rename(self.path, self.path.with_suffix(CLOSED))
        os.close(self._file)

    def abandon(self) -> None:
        """Cut off what a failed append left behind, and roll; if even that fails, recovery will cut it."""
        with contextlib.suppress(OSError):
            os.ftruncate(self._file, self.size)
            os.fdatasync(self._file)
            os.rename(self.path, self.path.with_suffix(CLOSED))
        os.close(self._file)


def write_all(file: int, data: bytes) -> None:
    """Write all the bytes; a full disk may take a part of them first and complain about the rest."""
    written = os.write(file, data)
    view = memoryview(data)
    while written < len(data):
        written += os.write(file, view[written:])


def is_abandoned(path: Path) -> bool:
    """Return whether an ``.open`` segment has no living writer any more."""
    try:
        file = os.open(path, os.O_RDONLY)
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
    return sorted(path for path in folder.glob(f"*{suffix}") if not path.name.startswith("."))


def created_ms(segment: Path) -> int:
    """Return when a segment was begun (milliseconds since 1970), read from its name; 0 for a foreign name."""
    stamp = segment.name.partition("-")[0]
    return int(stamp) if stamp.isascii() and stamp.isdigit() else 0


def document_in(segment: Path) -> str:
    """Return the name of the type of a segment's documents, which need not be one that is known here."""
    return segment.stem.partition(".")[2] or FRECENCY_UPDATE.name
