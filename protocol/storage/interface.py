"""The operations that the model store and the landing need from their storage.

A key is a relative path with '/'; the empty key is the place of the storage itself. A written blob is whole and durable
when the call returns, or absent.
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
"""Maximum bytes of a blob that is read at once: a version of two million weights takes a third of it."""


class NotAFile(OSError):
    """A directory, a pipe or a device is in the place of a file; the message says which."""


class TooLarge(OSError):
    """A file has more bytes than the caller wants to read at once."""

    def __init__(self, size: int) -> None:
        super().__init__(f"it has {size:,} bytes")
        self.size = size


class ShortFile(OSError):
    """A file ends before the bytes that its footer promises."""

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
        """Its bytes."""
        ...

    def read(self, start: int, size: int) -> Bytes:
        """Return ``size`` bytes from ``start`` on.

        Raises:
            ShortFile: the file has fewer.
        """
        ...


class Storage(Protocol):
    """Named bytes below a place.

    Every method may raise :class:`OSError` (in a folder) or :class:`fedping.protocol.object_store.StorageAway` (in a
    bucket).
    """

    far: bool
    """Whether each operation is a request over a network, which makes few large ones better than many small ones."""

    @property
    def place(self) -> Place:
        """The folder, or the bucket with the folder in it, that keys are relative to."""
        ...

    def exists(self, key: str) -> bool:
        """Return whether a file has this name, or a folder of this name has anything in it."""
        ...

    def folders(self, folder: str) -> list[str]:
        """Return the names of the folders directly below one, in no particular order; none if it doesn't exist."""
        ...

    def files(self, folder: str) -> list[str]:
        """Return the names of the files directly below a folder, in no particular order; none if it doesn't exist."""
        ...

    def tree(self, folder: str, changed_since_ms: int = 0) -> Mapping[str, list[str]]:
        """Return the names of all files below a folder, by the relative path of the folder that each is in.

        Folders whose names begin with a dot are left out, and so may be those without a change since then (Unix ms).
        """
        ...

    def token(self, folder: str, now_ns: int | None = None) -> int | None:
        """Return a number that changes when a file enters or leaves a folder; None if it is unknown."""
        ...

    def stamp(self, key: str) -> Stamp | None:
        """Return a file's metadata without reading it; None if it doesn't exist."""
        ...

    def opened(self, key: str) -> AbstractContextManager[Opened]:
        """Open a file.

        Raises:
            NotAFile: it is something else.
            FileNotFoundError: it doesn't exist.
        """
        ...

    def tail(self, key: str, most: int) -> tuple[Bytes, int]:
        """Return the last ``most`` bytes of a file or fewer, and the file's size; raises as :meth:`opened`."""
        ...

    def read(self, key: str, most: int = LARGEST_BLOB) -> bytes | None:
        """Return all bytes of a file; None if it doesn't exist.

        Raises:
            NotAFile: it is something else.
            TooLarge: it has more than ``most`` bytes.
        """
        ...

    def create(self, key: str, data: bytes) -> bool:
        """Write a new file; return False, and change nothing, if the key exists. One of any number of writers wins.

        Raises:
            NoConditionalWrites: this storage can't.
        """
        ...

    def write(self, key: str, parts: Iterable[Bytes], *, durable: bool = True) -> None:
        """Write a file, replacing any that exists; it survives a power loss unless ``durable`` is False."""
        ...

    def rewrite(self, key: str, parts: Iterable[Bytes]) -> None:
        """Replace the bytes of an existing file, which keeps its readers.

        ``parts`` are consumed after the present file was inspected, and may be computed from its bytes.

        Raises:
            FileNotFoundError: it doesn't exist.
            ChangedMeanwhile: another process has written it since the call; its bytes stay.
        """
        ...

    def remove(self, key: str) -> None:
        """Remove a file, if it exists, and its folder if that is then empty; anything but a file stays."""
        ...

    def check_conditional_writes(self) -> None:
        """Check that files can be written, created once, and replaced.

        Raises:
            NoConditionalWrites: a file could be created twice.
        """
        ...
