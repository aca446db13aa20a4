"""The six operations that a model store needs from its storage, and a local folder that provides them.

An object store provides the same (:mod:`fedping.model_store.objects`): a conditional put (``If-None-Match: *``), a put,
a get, a head, a listing and a delete, which versions never need.
"""

from __future__ import annotations

import errno
import os
import secrets
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Protocol, TypeAlias

from fedping.protocol.errors import FedpingError
from fedping.protocol.folders import sync_folder

LARGEST_BLOB = 2**30
"""Limit on the size of a blob: a version of two million weights with any optimizer's state takes a third of it."""

Sight: TypeAlias = tuple[int, ...]
"""Metadata that change when a blob is replaced; the last number is its size."""

_NO_LINKS = frozenset({errno.EPERM, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK})
"""Errors of file systems without hard links: FAT and exFAT, FUSE of object stores, some of SMB."""


def is_key(key: str) -> bool:
    """Return whether something can be stored under a key: a study that somebody asks for may have any name."""
    return not {"", ".", ".."} & {*key.split("/")} and "\0" not in key


class Blobs(Protocol):
    """Named bytes. Keys are relative paths with '/'; when a write returns, it is whole and durable, or absent.

    There is nothing at what is no key (:func:`is_key`): a part of it is empty, or leads out of its folder.
    """

    def create(self, key: str, data: bytes) -> bool:
        """Write a new blob; return False, and change nothing, if the key already exists."""
        ...

    def replace(self, key: str, data: bytes) -> None:
        """Write a blob, replacing any that exists."""
        ...

    def read(self, key: str) -> bytes | None:
        """Return a blob's bytes, or None if it does not exist."""
        ...

    def sight(self, key: str) -> Sight | None:
        """Return a blob's metadata without reading it, or None if it does not exist."""
        ...

    def names(self, folder: str) -> list[str]:
        """Return the names directly below a folder, in no particular order; empty if there is no such folder."""
        ...

    def delete(self, key: str) -> None:
        """Delete a blob, if there is one."""
        ...

    def check_writing(self) -> None:
        """Check for anything that would prevent a version from being published once, and whole.

        Raises:
            FedpingError: nothing can be written here, or not only if it does not exist.
        """
        ...


class LocalBlobs:
    """Blobs as files below a folder.

    A new file is written under a hidden name, flushed, and then *linked* to its name. The link either creates the name
    or fails because it exists: the compare-and-swap that publishing needs, which works between processes.
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
        """See :meth:`Blobs.read`.

        Raises:
            FedpingError: it is not a file, is larger than any that the store writes, or may not be read.
        """
        path = self.root / key
        if not is_key(key):
            return None
        try:
            with open(path, "rb", opener=_without_waiting) as source:
                found = os.fstat(source.fileno())
                if not stat.S_ISREG(found.st_mode):
                    raise _odd(path, "is no file")
                if found.st_size > LARGEST_BLOB:
                    raise _odd(path, f"has {found.st_size:,} bytes, more than anything that the store writes")
                return source.read()
        except (FileNotFoundError, NotADirectoryError):
            return None
        except OSError as error:
            raise _odd(path, f"cannot be read ({error.strerror})", "correct its permissions, or ") from error

    def sight(self, key: str) -> Sight | None:
        """See :meth:`Blobs.sight`."""
        if not is_key(key):
            return None
        try:
            found = (self.root / key).stat()
        except (FileNotFoundError, NotADirectoryError):
            return None
        except OSError as error:
            raise _odd(self.root / key, f"cannot be looked at ({error.strerror})") from error
        return found.st_dev, found.st_ino, found.st_mtime_ns, found.st_ctime_ns, found.st_size

    def names(self, folder: str) -> list[str]:
        """See :meth:`Blobs.names`; hidden names are unfinished writes and are left out."""
        if folder and not is_key(folder):
            return []
        try:
            return [name for name in os.listdir(self.root / folder) if not name.startswith(".")]
        except (FileNotFoundError, NotADirectoryError):
            return []
        except OSError as error:
            raise _odd(
                self.root / folder, f"cannot be listed ({error.strerror})", "correct its permissions, or "
            ) from error

    def delete(self, key: str) -> None:
        """See :meth:`Blobs.delete`."""
        path = self.root / key
        with _told(path):
            path.unlink(missing_ok=True)

    def check_writing(self) -> None:
        """See :meth:`Blobs.check_writing`: the folder must be writable, and its file system have hard links."""
        name = self.root / f".probe-{secrets.token_hex(6)}"
        try:
            with _hidden(name, b"x") as hidden, _told(name):
                os.link(hidden, name)
        except FedpingError as error:
            if isinstance(error.__cause__, OSError) and error.__cause__.errno in _NO_LINKS:
                raise _no_links(self.root) from error
            raise
        finally:
            with suppress(OSError):  # as below
                name.unlink(missing_ok=True)


def _without_waiting(path: str, flags: int) -> int:
    """Open a file without blocking; a FIFO without a writer would otherwise block the reader forever."""
    return os.open(path, flags | os.O_NONBLOCK)


def _odd(path: Path, what: str, first: str = "") -> FedpingError:
    return FedpingError(f"{path} {what}; {first}move it out of the model store if it does not belong there")


def _no_links(root: Path) -> FedpingError:
    return FedpingError(
        f"the file system of the model store {root} has no hard links, by which a version is published once and whole; "
        "put the store on a local disk with ext4, XFS, Btrfs or APFS, say, or on NFS"
    )


@contextmanager
def _hidden(path: Path, data: bytes) -> Iterator[Path]:
    """Yield a hidden, flushed file of these bytes beside a path; it is removed at the end, even after Ctrl-C."""
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
        with suppress(OSError):  # where writing fails, so does removal; the write's own error is reported
            hidden.unlink(missing_ok=True)


@contextmanager
def _told(path: Path) -> Iterator[None]:
    """Turn the system's write errors into a sentence."""
    try:
        yield
    except OSError as error:
        raise FedpingError(
            f"cannot write {path} in the model store: {error.strerror}; free space or correct the permissions, "
            "then run the same command again"
        ) from error
