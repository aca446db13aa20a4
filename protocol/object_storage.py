"""Landed pings in a bucket: each operation is a request or a few, tried again while the object store is away."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Literal, TypeVar, cast

from fedping.protocol.errors import FedpingError
from fedping.protocol.location import Bucket, Place
from fedping.protocol.object_store import BROKEN_ANSWERS, BROKEN_PUTS, again, check_bucket, connection, heeding, told
from fedping.protocol.storage import Bytes, ChangedMeanwhile, Opened, ShortFile

if TYPE_CHECKING:
    from obstore import ObjectMeta, UpdateVersion
    from obstore.store import ObjectStore

_T = TypeVar("_T")

A_LIST = 1000
"""Objects in one answer to a list, as these services give at most or by default."""

PART_BYTES = 2**24
"""A file of more than twice as many bytes is sent in parts of this size, for each has its own time to arrive."""

_NO_SUCH_RANGE = ("InvalidRange", "416 Range Not Satisfiable", "non-partial response when range requested")

_WITHOUT_SUFFIX = "az"
"""Azure knows no request for the last bytes of an object; its size is asked for first."""


class BucketStorage:
    """Objects whose names are the way to them, with '/'."""

    far = True

    def exists(self, place: Place) -> bool:
        """See :meth:`fedping.protocol.storage.Storage.exists`."""
        where = _bucket(place)
        return self._head(where) is not None or bool(next(self._listed(where, 1), []))

    def folders(self, folder: Place) -> list[str]:
        """See :meth:`fedping.protocol.storage.Storage.folders`."""
        return [path.rstrip("/").rpartition("/")[2] for path in self._below(folder)[0]]

    def files(self, folder: Place) -> list[str]:
        """See :meth:`fedping.protocol.storage.Storage.files`."""
        return self._below(folder)[1]

    def _below(self, folder: Place) -> tuple[list[str], list[str]]:
        import obstore

        where = _bucket(folder)
        found = self._asked(
            "list", where, lambda: obstore.list_with_delimiter(_objects(where), where.prefix or None), BROKEN_ANSWERS
        )
        names = [_name(each, where) for each in found["objects"]]
        return list(found["common_prefixes"]), [name for name in names if name]

    def tree(self, folder: Place, changed_since_ms: int = 0) -> Mapping[str, list[str]]:
        """See :meth:`fedping.protocol.storage.Storage.tree`: one request for every :data:`A_LIST` objects."""
        where = _bucket(folder)
        found: dict[str, list[str]] = {}
        for listed in self._listed(where, A_LIST):
            for each in listed:
                way, _, name = _name(each, where).rpartition("/")
                if name and not any(part.startswith(".") for part in way.split("/")):
                    found.setdefault(way, []).append(name)
        return found

    def _listed(self, where: Bucket, at_once: int) -> Iterator[list[ObjectMeta]]:
        """Yield what is below a folder, so many objects at a time; after a broken answer it goes on where it was."""
        import obstore

        last: str | None = None
        pages: Iterator[list[ObjectMeta]] | None = None

        def ask() -> list[ObjectMeta]:
            nonlocal pages
            if pages is None:
                listing = obstore.list(_objects(where), where.prefix or None, offset=last, chunk_size=at_once)
                pages = iter(cast("Iterable[list[ObjectMeta]]", listing))
            try:
                return next(pages, [])
            except Exception:
                pages = None
                raise

        while listed := self._asked("list", where, ask, BROKEN_ANSWERS):
            yield listed
            last = max(each["path"] for each in listed)

    def token(self, folder: Place, now_ns: int | None = None) -> int | None:
        """See :meth:`fedping.protocol.storage.Storage.token`: a bucket has no folders that could tell."""
        return None

    def size(self, file: Place) -> int:
        """See :meth:`fedping.protocol.storage.Storage.size`."""
        found = self._head(_bucket(file))
        if found is None:
            raise FileNotFoundError(f"there is no {file}")
        return found["size"]

    def _head(self, where: Bucket) -> ObjectMeta | None:
        import obstore

        def ask() -> ObjectMeta | None:
            try:
                return obstore.head(_objects(where), where.prefix)
            except FileNotFoundError as error:
                check_bucket(error)
                return None

        return self._asked("look at", where, ask, BROKEN_ANSWERS) if where.prefix else None

    @contextmanager
    def opened(self, file: Place) -> Iterator[Opened]:
        """See :meth:`fedping.protocol.storage.Storage.opened`; nothing is asked before it is read from."""
        yield _OpenedObject(self, _bucket(file))

    def tail(self, file: Place, most: int) -> tuple[Bytes, int]:
        """See :meth:`fedping.protocol.storage.Storage.tail`."""
        import obstore
        from obstore.exceptions import GenericError

        where = _bucket(file)
        if where.scheme == _WITHOUT_SUFFIX:
            size = self.size(file)
            return self.read(where, max(0, size - most), min(most, size)), size

        def ask() -> tuple[Bytes, int]:
            try:
                found = obstore.get(_objects(where), where.prefix, options={"range": {"suffix": most}})
            except GenericError as error:
                if self._is_empty(error, where):
                    return b"", 0
                raise
            return memoryview(found.bytes()), found.meta["size"]

        with _gone_or_away("read", where):
            return again(lambda: heeding(ask), BROKEN_ANSWERS)

    def _is_empty(self, error: Exception, where: Bucket) -> bool:
        """Return whether an object has no last bytes because it has none, which services answer in two ways."""
        return any(words in str(error) for words in _NO_SUCH_RANGE) and self.size(where) == 0

    def read(self, where: Bucket, start: int, size: int) -> Bytes:
        """Return some bytes of an object; raises :class:`FileNotFoundError` if it is gone."""
        import obstore
        from obstore.exceptions import GenericError

        if size == 0:
            return b""

        def ask() -> Bytes:
            try:
                return memoryview(obstore.get_range(_objects(where), where.prefix, start=start, length=size))
            except GenericError as error:
                if any(words in str(error) for words in _NO_SUCH_RANGE):
                    return b""
                raise

        with _gone_or_away("read", where):
            found = again(lambda: heeding(ask), BROKEN_ANSWERS)
        if len(found) != size:
            raise ShortFile
        return found

    def write(self, file: Place, parts: Iterable[bytes | memoryview]) -> None:
        """See :meth:`fedping.protocol.storage.Storage.write`: a put is whole, or it is not there."""
        self._put(_bucket(file), b"".join(parts), None)

    def write_again(self, file: Place, parts: Iterable[bytes | memoryview]) -> None:
        """See :meth:`fedping.protocol.storage.Storage.write_again`: only if nobody else has written it meanwhile."""
        where = _bucket(file)
        found = self._head(where)
        if found is None:
            raise FileNotFoundError(f"there is no {file}")
        self._put(where, b"".join(parts), found)

    def _put(self, where: Bucket, data: bytes, instead_of: ObjectMeta | None) -> None:
        """Write an object; instead of one that was seen, if that is not None and still there."""
        import obstore
        from obstore.exceptions import PreconditionError

        mode: Literal["overwrite"] | UpdateVersion = "overwrite"
        if instead_of is not None:
            seen = {"e_tag": instead_of["e_tag"], "version": instead_of["version"]}
            mode = cast("UpdateVersion", {name: tag for name, tag in seen.items() if tag is not None})

        def ask() -> None:
            obstore.put(
                _objects(where),
                where.prefix,
                data,
                mode=mode,
                use_multipart=instead_of is None and len(data) > 2 * PART_BYTES,
                chunk_size=PART_BYTES,
            )

        try:
            self._asked("write", where, ask, BROKEN_PUTS)
        except PreconditionError as error:
            if bytes(self.tail(where, len(data) + 1)[0]) == data:
                return  # by this very put, whose answer was lost
            raise ChangedMeanwhile(where) from error

    def remove(self, file: Place) -> None:
        """See :meth:`fedping.protocol.storage.Storage.remove`."""
        import obstore

        where = _bucket(file)

        def ask() -> None:
            with suppress(FileNotFoundError):
                obstore.delete(_objects(where), where.prefix)

        self._asked("delete", where, ask, BROKEN_PUTS)

    def read_note(self, file: Place, most: int) -> bytes | None:
        """See :meth:`fedping.protocol.storage.Storage.read_note`; raises where the bucket is away."""
        import obstore

        where = _bucket(file)

        def ask() -> bytes | None:
            try:
                found = obstore.get(_objects(where), where.prefix)
                return bytes(found.bytes()) if found.meta["size"] <= most else None
            except FileNotFoundError as error:
                check_bucket(error)
                return None

        return self._asked("read", where, ask, BROKEN_ANSWERS)

    def write_note(self, file: Place, data: bytes) -> None:
        """See :meth:`fedping.protocol.storage.Storage.write_note`."""
        with suppress(FedpingError):
            self._put(_bucket(file), data, None)

    def _asked(self, what: str, where: Bucket, ask: Callable[[], _T], broken: tuple[str, ...]) -> _T:
        from obstore.exceptions import PreconditionError

        with told(what, where, let=(PreconditionError,)):
            return again(lambda: heeding(ask), broken)


BUCKETS = BucketStorage()


class _OpenedObject:
    """An object, whose bytes are asked for as they are read."""

    def __init__(self, storage: BucketStorage, where: Bucket) -> None:
        self._storage, self._where = storage, where

    @property
    def size(self) -> int:
        return self._storage.size(self._where)

    def read(self, start: int, size: int) -> Bytes:
        return self._storage.read(self._where, start, size)


@contextmanager
def _gone_or_away(what: str, where: Bucket) -> Iterator[None]:
    """Let an object that is gone be told from a bucket that is."""
    with told(what, where, let=(FileNotFoundError,)):
        try:
            yield
        except FileNotFoundError as error:
            check_bucket(error)
            raise FileNotFoundError(f"there is no {where}") from error


def _objects(where: Bucket) -> ObjectStore:
    """Return the connection to the whole bucket, which all places there share."""
    return connection(Bucket(where.scheme, where.name))


def _name(found: ObjectMeta, folder: Bucket) -> str:
    """Return the way to an object from a folder; "" for the object by which web consoles mark the folder itself."""
    path = found["path"]
    return path if not folder.prefix else path.removeprefix(folder.prefix).removeprefix("/")


def _bucket(place: Place) -> Bucket:
    return cast("Bucket", place)
