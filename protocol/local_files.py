"""Files of this machine: durable folders for owner and group, secrets only for their owner, and stamps of files."""

from __future__ import annotations

import contextlib
import os
import stat
import time
from pathlib import Path
from typing import TypeAlias

FOLDER_MODE, FILE_MODE = 0o750, 0o640
"""Modes of folders and files with clients' data: only for the owner and the group, even if the umask allows more."""

FileStamp: TypeAlias = tuple[int, int, int]
"""Inode, time of the last write (nanoseconds since 1970) and size (bytes) of a file; zeros if it doesn't exist."""

SETTLED_NS = 2_000_000_000
"""Nanoseconds after which another change certainly has a different time, even if a file system stores whole seconds."""


def for_the_group(path: str, flags: int) -> int:
    """Open a file that only its owner and group can read; for the argument ``opener`` of :func:`open`."""
    return os.open(path, flags, FILE_MODE)


def make_folder(folder: Path, mode: int = FOLDER_MODE) -> None:
    """Create a folder and its missing parents, with a mode that the umask limits further.

    Each folder is on disk before anything is written into it.
    """
    for each in [*reversed(folder.parents), folder]:
        if not each.is_dir():
            each.mkdir(mode=mode, exist_ok=True)
            with contextlib.suppress(PermissionError):  # a folder that may be passed through and not be listed
                sync_folder(each.parent)


def sync_folder(folder: Path) -> None:
    """Flush a folder's entries to disk, so that a rename or a new name in it survives a power loss."""
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def write_secret(path: Path, secret: bytes) -> None:
    """Write a secret, in hexadecimal, durably into a new file that only its owner can read.

    Raises:
        OSError: the file can't be written, or exists (FileExistsError).
    """
    handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(handle, "w") as file:
        file.write(secret.hex() + "\n")
        file.flush()
        os.fsync(handle)
    sync_folder(path.parent)


def replace_private(path: Path, content: bytes) -> None:
    """Write a file that only its owner can use; after a crash or power cut it has either its old or its new content.

    Raises:
        OSError: the file can't be written.
    """
    hidden = path.with_name(f".{path.name}.unfinished")
    handle = os.open(hidden, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(handle, "wb") as file:
        file.write(content)
        file.flush()
        os.fsync(handle)
    os.replace(hidden, path)
    sync_folder(path.parent)


def others_may_use(mode: int) -> bool:
    """Return whether a file of this mode is accessible to anyone but its owner."""
    return bool(mode & (stat.S_IRWXG | stat.S_IRWXO))


def file_stamp(path: Path) -> FileStamp:
    """Return the stamp of a file."""
    try:
        found = path.stat()
    except OSError:
        return (0, 0, 0)
    return found.st_ino, found.st_mtime_ns, found.st_size


def is_settled(changed: int, now: int | None = None) -> bool:
    """Return whether another change would have a different time; after a recent change it might have the same.

    Args:
        changed: time of the last change, nanoseconds since 1970 (``st_mtime_ns``).
        now: the present time in the same unit; the clock's if None.
    """
    return (time.time_ns() if now is None else now) - changed > SETTLED_NS
