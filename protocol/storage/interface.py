"""The storage operations that the model store and the landing folder need.

A key is a relative path with '/'; the empty key is the storage's own place. When a write returns, the blob is complete
and durable; a failed write leaves no partial blob.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import AbstractContextManager
from typing import Protocol, TypeAlias

from fedping.protocol.errors import FedpingError, TemporaryFailure
from fedping.protocol.location import Place

Bytes: TypeAlias = bytes | memoryview

Stamp: TypeAlias = tuple[int, ...]
"""Metadata that change when a blob is replaced; the last number is its size in bytes."""

LARGEST_BLOB = 2**30
"""Maximum bytes of a blob that is read at once; a version of two million weights has a third of them."""


class NotAFile(OSError):
    """A directory, a pipe or a device is in place of a file; the message says which."""


class TooLarge(OSError):
    """A file has more bytes than the caller allows to be read at once."""

    def __init__(self, size: int) -> None:
        super().__init__(f"it has {size:,} bytes")
        self.size = size


class ShortFile(OSError):
    """A file is shorter than its footer or its reader expects."""

    def __init__(self) -> None:
        super().__init__("it is shorter than its footer says")


class ChangedMeanwhile(TemporaryFailure):
    """Another process replaced the file in the meantime."""

    def __init__(self, file: Place) -> None:
        super().__init__(
            f"{file} was changed by another process at the same time, and is as that process left it. Run the same "
            "command again."
        )


class NoConditionalWrites(FedpingError):
    """The file system or the object store can't create a blob only if it is absent."""


class Opened(Protocol):
    """A file that is open for reading, from any thread."""

    @property
    def size(self) -> int:
        """The file's size in bytes."""
        ...

    def read(self, start: int, size: int) -> Bytes:
        """Return ``size`` bytes from ``start`` on.

        Raises:
            ShortFile: the file has fewer bytes.
        """
        ...


class Storage(Protocol):
    """Named bytes below a place.

    Every method may raise :class:`OSError` (in a folder) or :class:`fedping.protocol.object_store.StorageAway` (in a
    bucket).
    """

    far: bool
    """Whether each operation is a network request, so that few large operations are better than many small ones."""

    @property
    def place(self) -> Place:
        """The folder, or the bucket with the folder in it, that keys are relative to."""
        ...

    def exists(self, key: str) -> bool:
        """Return whether a file or a nonempty folder has this name."""
        ...

    def folders(self, folder: str) -> list[str]:
        """Return the names of a folder's subfolders, in no particular order; none if the folder doesn't exist."""
        ...

    def files(self, folder: str) -> list[str]:
        """Return the names of the files directly below a folder, in no particular order; none if it doesn't exist."""
        ...

    def tree(self, folder: str, changed_since_ms: int = 0) -> Mapping[str, list[str]]:
        """Return the names of all files below a folder, grouped by the relative paths of their folders.

        Folders whose names begin with a dot are left out. Folders without a change since ``changed_since_ms`` (Unix ms)
        may be left out.
        """
        ...

    def token(self, folder: str, now_ns: int | None = None) -> int | None:
        """Return a number that changes when a file is added to or removed from a folder; None if it is unknown."""
        ...

    def stamp(self, key: str) -> Stamp | None:
        """Return a file's metadata without reading it; None if it doesn't exist."""
        ...

    def opened(self, key: str) -> AbstractContextManager[Opened]:
        """Open a file.

        Raises:
            NotAFile: the key isn't a regular file.
            FileNotFoundError: the file doesn't exist.
        """
        ...

    def tail(self, key: str, most: int) -> tuple[Bytes, int]:
        """Return at most the last ``most`` bytes of a file, and the file's size; raise the errors of :meth:`opened`."""
        ...

    def read(self, key: str, most: int = LARGEST_BLOB) -> bytes | None:
        """Return all bytes of a file; None if it doesn't exist.

        Raises:
            NotAFile: the key isn't a regular file.
            TooLarge: the file has more than ``most`` bytes.
        """
        ...

    def create(self, key: str, data: bytes) -> bool:
        """Write a new file; return False, without a change, if the key exists. Of concurrent writers exactly one wins.

        Raises:
            NoConditionalWrites: this storage can't guarantee this.
        """
        ...

    def write(self, key: str, parts: Iterable[Bytes], *, durable: bool = True) -> None:
        """Write a file or replace an existing file; it survives a power loss unless ``durable`` is False."""
        ...

    def rewrite(self, key: str, parts: Iterable[Bytes]) -> None:
        """Replace the bytes of an existing file; the same users may read it as before.

        ``parts`` are consumed after the present file is inspected, and may be computed from its bytes.

        Raises:
            FileNotFoundError: the file doesn't exist.
            ChangedMeanwhile: another process has written the file since the call; its bytes stay.
        """
        ...

    def remove(self, key: str) -> None:
        """Remove a file, if it exists, and its folder if it is then empty; anything but a file stays."""
        ...

    def check_conditional_writes(self) -> None:
        """Check that files can be written, created only once, and replaced.

        Raises:
            NoConditionalWrites: a file could be created twice.
        """
        ...
