"""What keeps landed pings: a folder of this machine, or a bucket; one small interface for both.

A place is a file's or a folder's address (:mod:`fedping.protocol.location`). What is written is whole and durable when
the call returns, or absent. When a file landed is read from its name, never from the time that its storage gives it.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import stat
from collections.abc import Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Protocol, TypeAlias, cast

from fedping.protocol.errors import TemporaryFailure
from fedping.protocol.file_stamp import is_settled
from fedping.protocol.folders import for_the_group, make_folder, sync_folder
from fedping.protocol.location import Place

Bytes: TypeAlias = bytes | memoryview


class NotAFile(OSError):
    """Something else is where a file should be; the words say what."""


class ShortFile(OSError):
    """A file ends before the bytes that were asked for."""

    def __init__(self) -> None:
        super().__init__("it is shorter than its footer says")


class ChangedMeanwhile(TemporaryFailure):
    """Somebody else has written a file that was to be written again."""

    def __init__(self, file: Place) -> None:
        super().__init__(
            f"{file} was changed by somebody else at the same time, and is as they left it; run the same command again"
        )


class Opened(Protocol):
    """A file that is open to be read, from any thread."""

    @property
    def size(self) -> int:
        """Its bytes."""
        ...

    def read(self, start: int, size: int) -> Bytes:
        """Return ``size`` bytes from ``start`` on.

        Raises:
            ShortFile: there are not as many.
        """
        ...


class Storage(Protocol):
    """The operations that the landing layout needs.

    Every method may raise :class:`OSError`, or :class:`fedping.protocol.object_store.StorageAway` of a bucket.
    """

    far: bool
    """Whether each operation is a request over a network, so that few large ones are better than many small ones."""

    def exists(self, place: Place) -> bool:
        """Return whether there is a file of this name, or anything in a folder of it."""
        ...

    def folders(self, folder: Place) -> list[str]:
        """Return the names of the folders directly below one, in no particular order; none if there is no such."""
        ...

    def files(self, folder: Place) -> list[str]:
        """Return the names of the files directly below a folder, in no particular order; none if there is no such."""
        ...

    def tree(self, folder: Place, changed_since_ms: int = 0) -> Mapping[str, list[str]]:
        """Return the names of all files below a folder, by the way from there to the folder that each is in.

        Folders whose names begin with a dot are left out, and so may be those in which nothing has changed since.
        """
        ...

    def token(self, folder: Place, now_ns: int | None = None) -> int | None:
        """Return what changes when a file comes into a folder or leaves it; None if that cannot be told."""
        ...

    def size(self, file: Place) -> int:
        """Return the bytes of a file; raises :class:`FileNotFoundError` if there is none."""
        ...

    def opened(self, file: Place) -> AbstractContextManager[Opened]:
        """Open a file.

        Raises:
            NotAFile: it is something else.
            FileNotFoundError: there is nothing.
        """
        ...

    def tail(self, file: Place, most: int) -> tuple[Bytes, int]:
        """Return the last bytes of a file, at most so many, and its size; raises as :meth:`opened`."""
        ...

    def write(self, file: Place, parts: Iterable[bytes | memoryview]) -> None:
        """Write a file, in the place of any of its name."""
        ...

    def write_again(self, file: Place, parts: Iterable[bytes | memoryview]) -> None:
        """Write other bytes into a file that there is, for whoever may read it now.

        ``parts`` are asked for once it is known what is there, so that they may be made of what is read.

        Raises:
            FileNotFoundError: it is gone.
            ChangedMeanwhile: somebody else has written it since the call; it is as they left it.
        """
        ...

    def remove(self, file: Place) -> None:
        """Remove a file, if there is one, and the folder that is empty then; what is no file stays."""
        ...

    def read_note(self, file: Place, most: int) -> bytes | None:
        """Return the bytes of a small file; None if there is none, it has more than so many, or it cannot be read."""
        ...

    def write_note(self, file: Place, data: bytes) -> None:
        """Write a small file, if it can be written; it need not survive a power loss."""
        ...


def storage_of(place: Place) -> Storage:
    """Return what keeps the bytes at a place: one for all folders, and one for all buckets."""
    if isinstance(place, Path):
        return FOLDERS
    from fedping.protocol.object_storage import BUCKETS

    return BUCKETS


class _OpenedFile:
    """A file of this machine, open."""

    def __init__(self, handle: int) -> None:
        self._handle = handle

    @property
    def size(self) -> int:
        return os.fstat(self._handle).st_size

    def read(self, start: int, size: int) -> Bytes:
        # In a buffer of Arrow's, which takes the same memory again and again where Python would ask the system each
        # time.
        import pyarrow as pa

        data, at = memoryview(pa.allocate_buffer(size)), 0
        while at < size:
            read = os.preadv(self._handle, [data[at:]], start + at)
            if read == 0:
                raise ShortFile
            at += read
        return data


class FolderStorage:
    """Folders of this machine, or of a disk that it shares with others."""

    far = False

    def exists(self, place: Place) -> bool:
        """See :meth:`Storage.exists`; an empty folder is there too."""
        return _path(place).exists()

    def folders(self, folder: Place) -> list[str]:
        """See :meth:`Storage.folders`."""
        try:
            with os.scandir(_path(folder)) as entries:
                return [entry.name for entry in entries if _is_folder(entry)]
        except (FileNotFoundError, NotADirectoryError):
            return []

    def files(self, folder: Place) -> list[str]:
        """See :meth:`Storage.files`; whatever is no folder counts as a file, for a pipe in its place is to be told."""
        try:
            return os.listdir(_path(folder))
        except (FileNotFoundError, NotADirectoryError):
            return []

    def tree(self, folder: Place, changed_since_ms: int = 0) -> Mapping[str, list[str]]:
        """See :meth:`Storage.tree`."""
        found: dict[str, list[str]] = {}
        self._walk(_path(folder), "", changed_since_ms, found)
        return found

    def _walk(self, folder: Path, way: str, changed_since_ms: int, found: dict[str, list[str]]) -> None:
        # a folder that is named as a landed file is told as what is in the place of one
        below = [name for name in self.folders(folder) if not name.startswith(".") and not name.endswith(".parquet")]
        for name in below:
            self._walk(folder / name, f"{way}/{name}" if way else name, changed_since_ms, found)
        with contextlib.suppress(FileNotFoundError):
            if changed_since_ms and folder.stat().st_mtime * 1000 < changed_since_ms:
                return
            if names := [name for name in self.files(folder) if name not in below]:
                found[way] = names

    def token(self, folder: Place, now_ns: int | None = None) -> int | None:
        """See :meth:`Storage.token`: when the folder was changed, once a further change would show."""
        try:
            changed = _path(folder).stat().st_mtime_ns
        except FileNotFoundError:
            return None
        return changed if is_settled(changed, now_ns) else None

    def size(self, file: Place) -> int:
        """See :meth:`Storage.size`."""
        return _path(file).stat().st_size

    @contextmanager
    def opened(self, file: Place) -> Iterator[Opened]:
        """See :meth:`Storage.opened`; to open a pipe would wait for ever for somebody to write."""
        handle = _handle(_path(file))
        try:
            yield _OpenedFile(handle)
        finally:
            os.close(handle)

    def tail(self, file: Place, most: int) -> tuple[Bytes, int]:
        """See :meth:`Storage.tail`."""
        with self.opened(file) as opened:
            size = opened.size
            return opened.read(max(0, size - most), min(most, size)), size

    def write(self, file: Place, parts: Iterable[bytes | memoryview]) -> None:
        """See :meth:`Storage.write`: under a hidden name, flushed, and renamed; then the folder is flushed.

        After a crash at any point there is either the whole file or an unread hidden one.
        """
        make_folder(_path(file).parent)
        _write(_path(file), parts)

    def write_again(self, file: Place, parts: Iterable[bytes | memoryview]) -> None:
        """See :meth:`Storage.write_again`: what a symbolic link names is replaced, and not the link."""
        place = Path(os.path.realpath(_path(file)))
        seen, made = place.stat(), list(parts)
        if place.stat().st_ino != seen.st_ino:  # whoever writes it makes another file
            raise ChangedMeanwhile(file)
        _write(place, made, like=seen)

    def remove(self, file: Place) -> None:
        """See :meth:`Storage.remove`."""
        path = _path(file)
        with contextlib.suppress(IsADirectoryError):
            path.unlink(missing_ok=True)
        with contextlib.suppress(OSError):  # there is something left
            path.parent.rmdir()

    def read_note(self, file: Place, most: int) -> bytes | None:
        """See :meth:`Storage.read_note`."""
        try:
            with open(_path(file), "rb", opener=lambda p, flags: os.open(p, flags | os.O_NONBLOCK)) as note:
                data = note.read(most + 1) or b""  # None of a pipe that nobody writes into
                return data if len(data) <= most else None
        except OSError:
            return None

    def write_note(self, file: Place, data: bytes) -> None:
        """See :meth:`Storage.write_note`."""
        note = _path(file)
        hidden = note.with_name(f".{note.name}.{secrets.token_hex(6)}.tmp")
        try:
            make_folder(note.parent)
            hidden.write_bytes(data)
            hidden.rename(note)
        except BaseException as error:  # Ctrl-C leaves no hidden file either
            with contextlib.suppress(OSError):
                hidden.unlink(missing_ok=True)
            if not isinstance(error, OSError):
                raise


FOLDERS = FolderStorage()


def _is_folder(entry: os.DirEntry[str]) -> bool:
    """Return whether an entry is a folder, or a symbolic link to one that it does not lie in itself."""
    if not entry.is_symlink():
        return entry.is_dir()
    there = Path(os.path.realpath(entry.path))
    return there.is_dir() and not Path(os.path.realpath(Path(entry.path).parent)).is_relative_to(there)


def _path(place: Place) -> Path:
    return cast("Path", place)


def _write(final: Path, parts: Iterable[bytes | memoryview], like: os.stat_result | None = None) -> None:
    """Write a file, which appears or is replaced when it is whole and on disk; ``like`` has its owner and its mode."""
    hidden = final.with_name(f".{final.name}.tmp")
    try:
        with open(hidden, "wb", opener=for_the_group) as sink:
            if like is not None:
                os.fchown(sink.fileno(), like.st_uid, like.st_gid)
                os.fchmod(sink.fileno(), stat.S_IMODE(like.st_mode))
            sink.writelines(parts)
            sink.flush()
            os.fsync(sink.fileno())
        os.rename(hidden, final)
    except BaseException:
        hidden.unlink(missing_ok=True)
        raise
    sync_folder(final.parent)


def _handle(path: Path) -> int:
    """Open a regular file to be read, and nothing else."""
    _refuse_unless_file(path.stat().st_mode)
    handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        _refuse_unless_file(os.fstat(handle).st_mode)  # whatever took its place in between
    except BaseException:
        os.close(handle)
        raise
    return handle


def _refuse_unless_file(mode: int) -> None:
    if not stat.S_ISREG(mode):
        raise NotAFile("a folder" if stat.S_ISDIR(mode) else "a pipe, a socket or a device")
