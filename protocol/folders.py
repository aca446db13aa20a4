"""Folders and files of this machine: made for their owner and group alone, and flushed to disk."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

FOLDER_MODE, FILE_MODE = 0o750, 0o640
"""What clients send is for the owner and the group, whatever the umask allows beyond that."""


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
