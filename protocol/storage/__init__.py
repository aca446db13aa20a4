"""Named bytes in a folder of this machine or in a bucket: one interface, which the model store and the landing use."""

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
"""The HTTP headers with which a bucket serves the blob of a key."""


def open_storage(place: Place, headers: Headers | None = None) -> Storage:
    """Return the storage whose keys are relative to a place; nothing is read or written.

    Args:
        place: the folder, or the bucket and the folder in it.
        headers: of a storage that clients fetch from: a bucket serves blobs with these HTTP headers, and files in a
            folder have the modes that the umask allows. None keeps files for their owner and group.
    """
    if isinstance(place, Path):
        return FolderStorage(place, served=headers is not None)
    return BucketStorage(place, headers)


def storage_and_key(file: Place) -> tuple[Storage, str]:
    """Return the storage of the folder that a file lies in, and the file's key there."""
    if isinstance(file, Path):
        return FolderStorage(file.parent), file.name
    return BucketStorage(parent(file)), base_name(file)
