"""The four operations that a model store needs of whatever keeps its bytes, and the local folder that offers them.

An object store offers the same four: a conditional put (``If-None-Match: *``), a put, a get and a listing.
"""

from __future__ import annotations

import errno
import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Protocol

from protocol.errors import FedpingError
from protocol.landing import sync_folder

_NO_LINKS = frozenset({errno.EPERM, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK})
"""What file systems without hard links answer to one: FAT and exFAT, FUSE of object stores, some of SMB."""


class Blobs(Protocol):
    """Named bytes. Keys are relative paths with '/'; a write is whole and durable when the call returns, or absent."""

    def create(self, key: str, data: bytes) -> bool:
        """Write a new blob; return False, and change nothing, if the key exists already."""
        ...

    def replace(self, key: str, data: bytes) -> None:
        """Write a blob, in place of any that is there."""
        ...

    def read(self, key: str) -> bytes | None:
        """Return a blob's bytes, None if there is none."""
        ...

    def names(self, folder: str) -> list[str]:
        """Return the names directly below a folder, in no particular order; none if there is no such folder."""
        ...


class LocalBlobs:
    """Blobs as files below a folder.

    A new file is written under a hidden name, flushed, and then *linked* to its name: the link either makes the name or
    fails because it is there, which is the compare-and-swap that publishing needs, and holds between processes.
    """

    def __init__(self, root: Path) -> None:
        self.root = root

    def create(self, key: str, data: bytes) -> bool:
        """See :meth:`Blobs.create`."""
        path = self.root / key
        with _hidden(path, data) as hidden, _told(path):
            try:
                os.link(hidden, path)
            except FileExistsError:
                return False
            except OSError as error:
                if error.errno in _NO_LINKS:
                    raise _no_links(self.root) from error
                raise
            sync_folder(path.parent)
        return True

    def replace(self, key: str, data: bytes) -> None:
        """See :meth:`Blobs.replace`."""
        path = self.root / key
        with _hidden(path, data) as hidden, _told(path):
            os.replace(hidden, path)
            sync_folder(path.parent)

    def read(self, key: str) -> bytes | None:
        """See :meth:`Blobs.read`."""
        try:
            return (self.root / key).read_bytes()
        except (FileNotFoundError, NotADirectoryError):
            return None

    def names(self, folder: str) -> list[str]:
        """See :meth:`Blobs.names`; hidden names are unfinished writes and are left out."""
        try:
            return [name for name in os.listdir(self.root / folder) if not name.startswith(".")]
        except (FileNotFoundError, NotADirectoryError):
            return []


def check_publishing(root: Path) -> None:
    """Find what would keep a version from being published below ``root``, before the work for one is done.

    Raises:
        FedpingError: the folder cannot be written, or its file system has no hard links.
    """
    name = root / f".probe-{secrets.token_hex(6)}"
    try:
        with _hidden(name, b"x") as hidden, _told(name):
            os.link(hidden, name)
    except FedpingError as error:
        if isinstance(error.__cause__, OSError) and error.__cause__.errno in _NO_LINKS:
            raise _no_links(root) from error
        raise
    finally:
        name.unlink(missing_ok=True)


def _no_links(root: Path) -> FedpingError:
    return FedpingError(
        f"the file system of the model store {root} has no hard links, by which a version is published once and whole; "
        "put the store on a local disk with ext4, XFS, Btrfs or APFS, say, or on NFS"
    )


@contextmanager
def _hidden(path: Path, data: bytes) -> Iterator[Path]:
    """Yield a hidden, flushed file of some bytes beside a path; it is gone at the end, and after Ctrl-C at any step."""
    hidden = path.parent / f".{path.name}.{secrets.token_hex(6)}.tmp"
    try:
        with _told(path):
            path.parent.mkdir(parents=True, exist_ok=True)
            with open(hidden, "xb") as sink:
                sink.write(data)
                sink.flush()
                os.fsync(sink.fileno())
        yield hidden
    finally:
        hidden.unlink(missing_ok=True)


@contextmanager
def _told(path: Path) -> Iterator[None]:
    """Turn what the system says of a write into a sentence."""
    try:
        yield
    except OSError as error:
        raise FedpingError(
            f"cannot write {path} in the model store: {error.strerror}; free space or correct the permissions, "
            "then run the same command again"
        ) from error
