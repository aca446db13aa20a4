"""A folder as a storage, on this machine or on a disk shared with other machines."""

from __future__ import annotations

import contextlib
import errno
import os
import secrets
import stat
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from fedping.protocol.local_files import FOLDER_MODE, for_the_group, is_settled, make_folder, sync_folder
from fedping.protocol.storage.interface import (
    LARGEST_BLOB,
    Bytes,
    ChangedMeanwhile,
    NoConditionalWrites,
    NotAFile,
    Opened,
    ShortFile,
    Stamp,
    TooLarge,
)

_BY_THE_UMASK = 0o777

_NO_LINKS = frozenset({errno.EPERM, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK})
"""Errors on file systems without hard links: FAT and exFAT, FUSE mounts of object stores, some SMB shares."""


class _OpenedFile:
    """An open file of this machine."""

    def __init__(self, handle: int) -> None:
        self._handle = handle

    @property
    def size(self) -> int:
        return os.fstat(self._handle).st_size

    def read(self, start: int, size: int) -> Bytes:
        # Arrow's allocator reuses memory, where Python would ask the system for a new buffer each time.
        import pyarrow as pa

        data, at = memoryview(pa.allocate_buffer(size)), 0
        while at < size:
            read = os.preadv(self._handle, [data[at:]], start + at)
            if read == 0:
                raise ShortFile
            at += read
        return data


class FolderStorage:
    """Files below a folder; see :class:`fedping.protocol.storage.interface.Storage`.

    A file is written under a hidden name, flushed, and renamed or *linked* to its name; then the folder is flushed.
    After a crash at any time, either the whole file exists, or a hidden file that nothing reads. A link either creates
    the name or fails because the name exists. This is the compare-and-swap of publishing, which works between
    processes.

    Args:
        place: the folder.
        served: whether all users may read the files, as far as the umask allows, and not only owner and group.
    """

    far = False

    def __init__(self, place: Path, *, served: bool = False) -> None:
        self.place = place
        self._served = served

    def exists(self, key: str) -> bool:
        """See :meth:`Storage.exists`; an empty folder exists too."""
        return (self.place / key).exists()

    def folders(self, folder: str) -> list[str]:
        """See :meth:`Storage.folders`."""
        return _folders(self.place / folder)

    def files(self, folder: str) -> list[str]:
        """See :meth:`Storage.files`; anything but a directory counts as a file, so that a pipe is reported."""
        return _names(self.place / folder)

    def tree(self, folder: str, changed_since_ms: int = 0) -> Mapping[str, list[str]]:
        """See :meth:`Storage.tree`."""
        found: dict[str, list[str]] = {}
        _walk(self.place / folder, "", changed_since_ms, found)
        return found

    def token(self, folder: str, now_ns: int | None = None) -> int | None:
        """See :meth:`Storage.token`; the time of the last change, or None if the next could have the same time."""
        try:
            changed = (self.place / folder).stat().st_mtime_ns
        except FileNotFoundError:
            return None
        return changed if is_settled(changed, now_ns) else None

    def stamp(self, key: str) -> Stamp | None:
        """See :meth:`Storage.stamp`."""
        try:
            found = (self.place / key).stat()
        except (FileNotFoundError, NotADirectoryError):
            return None
        return found.st_dev, found.st_ino, found.st_mtime_ns, found.st_ctime_ns, found.st_size

    @contextmanager
    def opened(self, key: str) -> Iterator[Opened]:
        """See :meth:`Storage.opened`; opening a pipe would block until a writer appears."""
        handle = _handle(os.path.join(self.place, key))  # noqa: PTH118 - `/` takes longer than the system call
        try:
            yield _OpenedFile(handle)
        finally:
            os.close(handle)

    def tail(self, key: str, most: int) -> tuple[Bytes, int]:
        """See :meth:`Storage.tail`."""
        with self.opened(key) as opened:
            size = opened.size
            return opened.read(max(0, size - most), min(most, size)), size

    def read(self, key: str, most: int = LARGEST_BLOB) -> bytes | None:
        """See :meth:`Storage.read`."""
        try:
            with open(self.place / key, "rb", opener=_without_blocking) as source:
                found = os.fstat(source.fileno())
                _refuse_unless_file(found.st_mode)
                if found.st_size > most:
                    raise TooLarge(found.st_size)
                return source.read()
        except (FileNotFoundError, NotADirectoryError):
            return None

    def create(self, key: str, data: bytes) -> bool:
        """See :meth:`Storage.create`."""
        path = self.place / key
        with self._hidden(path, [data]) as hidden:
            try:
                os.link(hidden, path)
            except FileExistsError:
                return False
            except OSError as error:
                if error.errno in _NO_LINKS:
                    raise NoConditionalWrites(
                        f"the file system of {self.place} has no hard links, which publish a version once and "
                        "completely. Put the store on a local disk with, for example, ext4, XFS, Btrfs or APFS, or on "
                        "NFS"
                    ) from error
                raise
            finally:
                _unlink(hidden)
            sync_folder(path.parent)
        return True

    def write(self, key: str, parts: Iterable[Bytes], *, durable: bool = True) -> None:
        """See :meth:`Storage.write`."""
        path = self.place / key
        with self._hidden(path, parts, durable=durable) as hidden:
            os.replace(hidden, path)
        if durable:
            sync_folder(path.parent)

    def rewrite(self, key: str, parts: Iterable[Bytes]) -> None:
        """See :meth:`Storage.rewrite`; a symbolic link's target is replaced. Owner and mode stay."""
        path = Path(os.path.realpath(self.place / key))
        seen, data = path.stat(), list(parts)
        if path.stat().st_ino != seen.st_ino:  # every writer makes another file
            raise ChangedMeanwhile(self.place / key)
        with self._hidden(path, data, like=seen) as hidden:
            os.replace(hidden, path)
        sync_folder(path.parent)

    def remove(self, key: str) -> None:
        """See :meth:`Storage.remove`."""
        path = self.place / key
        with contextlib.suppress(IsADirectoryError):
            path.unlink(missing_ok=True)
        with contextlib.suppress(OSError):  # it isn't empty
            path.parent.rmdir()

    def check_conditional_writes(self) -> None:
        """See :meth:`Storage.check_conditional_writes`: a writable folder, on a file system with hard links."""
        name = f".probe-{secrets.token_hex(6)}"
        try:
            self.create(name, b"x")
        finally:
            _unlink(self.place / name)

    @contextmanager
    def _hidden(
        self, path: Path, parts: Iterable[Bytes], *, durable: bool = True, like: os.stat_result | None = None
    ) -> Iterator[Path]:
        """Yield a hidden, flushed file next to a path, to be renamed; on errors and Ctrl-C the file is removed.

        Args:
            path: the final path; missing parent folders are created.
            parts: the bytes.
            durable: whether to flush the file to disk.
            like: the file whose owner and mode the new file gets.
        """
        hidden = path.parent / f".{path.name}.{secrets.token_hex(6)}.tmp"
        try:
            with self._new_file(hidden) as sink:
                if like is not None:
                    os.fchown(sink.fileno(), like.st_uid, like.st_gid)
                    os.fchmod(sink.fileno(), stat.S_IMODE(like.st_mode))
                sink.writelines(parts)
                if durable:
                    sink.flush()
                    os.fsync(sink.fileno())
            yield hidden
        except BaseException:
            _unlink(hidden)
            raise

    def _new_file(self, path: Path) -> IO[bytes]:
        """Open a new file and create its folder if missing, since :meth:`remove` may just have removed it as empty."""
        attempts = 5
        while True:
            try:
                make_folder(path.parent, _BY_THE_UMASK if self._served else FOLDER_MODE)
                return open(path, "xb", opener=None if self._served else for_the_group)
            except FileNotFoundError:
                attempts -= 1
                if not attempts:
                    raise


def _unlink(path: Path) -> None:
    with contextlib.suppress(OSError):  # where writing fails, so does removal; the first error is raised
        path.unlink(missing_ok=True)


def _names(folder: Path) -> list[str]:
    try:
        return os.listdir(folder)
    except (FileNotFoundError, NotADirectoryError):
        return []


def _folders(folder: Path) -> list[str]:
    try:
        with os.scandir(folder) as entries:
            return [entry.name for entry in entries if _is_folder(entry)]
    except (FileNotFoundError, NotADirectoryError):
        return []


def _is_folder(entry: os.DirEntry[str]) -> bool:
    """Return whether an entry is a folder or a symbolic link to one, but not a link to a folder that contains it."""
    if not entry.is_symlink():
        return entry.is_dir()
    target = Path(os.path.realpath(entry.path))
    return target.is_dir() and not Path(os.path.realpath(Path(entry.path).parent)).is_relative_to(target)


def _walk(folder: Path, way: str, changed_since_ms: int, found: dict[str, list[str]]) -> None:
    # a folder with the name of a landed file is listed as a file, so that readers report it
    below = [name for name in _folders(folder) if not name.startswith(".") and not name.endswith(".parquet")]
    for name in below:
        _walk(folder / name, f"{way}/{name}" if way else name, changed_since_ms, found)
    with contextlib.suppress(FileNotFoundError):
        if changed_since_ms and folder.stat().st_mtime * 1000 < changed_since_ms:
            return
        if names := [name for name in _names(folder) if name not in below]:
            found[way] = names


def _handle(path: str) -> int:
    """Open a regular file for reading; reject anything else."""
    _refuse_unless_file(os.stat(path).st_mode)  # noqa: PTH116 - it is no Path
    handle = _without_blocking(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        _refuse_unless_file(os.fstat(handle).st_mode)  # something else may have taken its place
    except BaseException:
        os.close(handle)
        raise
    return handle


def _without_blocking(path: str, flags: int) -> int:
    """Open a file without blocking; a FIFO without a writer would otherwise block the reader forever."""
    return os.open(path, flags | os.O_NONBLOCK)


def _refuse_unless_file(mode: int) -> None:
    if not stat.S_ISREG(mode):
        raise NotAFile("a folder" if stat.S_ISDIR(mode) else "a pipe, a socket or a device")
