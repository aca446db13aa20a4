"""The storage interface of the model store and the landing folder: named bytes in a folder or a bucket."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TypeAlias

from fedping.protocol.location import Place, base_name, parent
from fedping.protocol.storage.bucket import BucketStorage
from fedping.protocol.storage.folder import FolderStorage
from fedping.protocol.storage.interface import (
    LARGEST_BLOB,
    Bytes,
    ChangedMeanwhile,
    NoConditionalWrites,
    NotAFile,
    Opened,
    ShortFile,
    Stamp,
    Storage,
    TooLarge,
)

__all__ = [
    "LARGEST_BLOB",
    "BucketStorage",
    "Bytes",
    "ChangedMeanwhile",
    "FolderStorage",
    "Headers",
    "NoConditionalWrites",
    "NotAFile",
    "Opened",
    "ShortFile",
    "Stamp",
    "Storage",
    "TooLarge",
    "open_storage",
    "storage_and_key",
]

Headers: TypeAlias = Callable[[str], Mapping[str, str]]
"""A function from a key to the HTTP headers with which a bucket serves its blob."""


def open_storage(place: Place, headers: Headers | None = None) -> Storage:
    """Return the storage whose keys are relative to a place; nothing is read or written.

    Args:
        place: the folder, or the bucket and the folder in it.
        headers: for a storage that clients fetch from: a bucket serves blobs with these HTTP headers, and files in a
            folder have the modes that the umask allows. With None, only owner and group can read the files.
    """
    if isinstance(place, Path):
        return FolderStorage(place, served=headers is not None)
    return BucketStorage(place, headers)


def storage_and_key(file: Place) -> tuple[Storage, str]:
    """Return the storage of the folder that contains a file, and the file's key in this storage."""
    if isinstance(file, Path):
        return FolderStorage(file.parent), file.name
    return BucketStorage(parent(file)), base_name(file)
