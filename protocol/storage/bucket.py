"""A folder of a bucket as a storage: S3 and compatible services, Google Cloud Storage, Azure Blob Storage.

Each operation takes one or a few requests, which are retried while the object store is unreachable. A blob is created
by a conditional put (``If-None-Match: *``, or Google's ``x-goog-if-generation-match: 0``), so that exactly one of
several writers wins. Its stamp is the object's entity tag, never a time. Connections and errors:
:mod:`fedping.protocol.object_store`.
"""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Literal, TypeVar, cast

from fedping.protocol.errors import FedpingError
from fedping.protocol.location import Bucket, child
from fedping.protocol.object_store import (
    BROKEN_ANSWERS,
    BROKEN_PUTS,
    Unsettled,
    again,
    check_bucket,
    connection,
    heeding,
    told,
)
from fedping.protocol.storage.interface import (
    LARGEST_BLOB,
    Bytes,
    ChangedMeanwhile,
    NoConditionalWrites,
    Opened,
    ShortFile,
    Stamp,
    TooLarge,
)

if TYPE_CHECKING:
    import obstore
    from obstore.store import ObjectStore

_T = TypeVar("_T")

A_LIST = 1000
"""Maximum objects in one answer to a list; this is the services' maximum or default."""

PART_BYTES = 2**24
"""Bytes of an upload's part. Files of over twice as many are sent in parts, because each part has its own time-out."""

_WRITER = "writer"
"""Key of an object's metadata for its creator, by which a writer whose answer was lost recognizes its own object."""

_NO_SUCH_RANGE = ("InvalidRange", "416 Range Not Satisfiable", "non-partial response when range requested")

_WITHOUT_SUFFIX = "az"
"""Scheme of Azure, which has no request for the last bytes of an object, so that its size is requested first."""


class BucketStorage:
    """Objects below a folder of a bucket; see :class:`fedping.protocol.storage.interface.Storage`.

    Every method raises :class:`fedping.protocol.object_store.StorageAway` if the object store doesn't answer.

    Args:
        place: the bucket, and the folder in it.
        headers: for a bucket that clients fetch from, the HTTP headers by key; otherwise None.
    """

    far = True

    def __init__(self, place: Bucket, headers: Callable[[str], Mapping[str, str]] | None = None) -> None:
        self.place = place
        self._headers = headers

    def exists(self, key: str) -> bool:
        """See :meth:`Storage.exists`."""
        return self._head(key) is not None or bool(next(self._listed(key, 1), []))

    def folders(self, folder: str) -> list[str]:
        """See :meth:`Storage.folders`."""
        return [path.rstrip("/").rpartition("/")[2] for path in self._below(folder)[0]]

    def files(self, folder: str) -> list[str]:
        """See :meth:`Storage.files`."""
        return self._below(folder)[1]

    def _below(self, folder: str) -> tuple[list[str], list[str]]:
        import obstore

        where = self._at(folder)
        found = self._request(
            "list",
            folder,
            lambda: obstore.list_with_delimiter(self._objects, where.prefix or None),
            BROKEN_ANSWERS,
        )
        names = [_name(each, where) for each in found["objects"]]
        return list(found["common_prefixes"]), [name for name in names if name]

    def tree(self, folder: str, changed_since_ms: int = 0) -> Mapping[str, list[str]]:
        """See :meth:`Storage.tree`: one request for every :data:`A_LIST` objects."""
        where = self._at(folder)
        found: dict[str, list[str]] = {}
        for listed in self._listed(folder, A_LIST):
            for each in listed:
                way, _, name = _name(each, where).rpartition("/")
                if name and not any(part.startswith(".") for part in way.split("/")):
                    found.setdefault(way, []).append(name)
        return found

    def _listed(self, folder: str, at_once: int) -> Iterator[list[obstore.ObjectMeta]]:
        """Yield the objects below a folder, ``at_once`` at a time; continue at the same place after a broken answer."""
        import obstore

        where = self._at(folder)
        last: str | None = None
        pages: Iterator[list[obstore.ObjectMeta]] | None = None

        def ask() -> list[obstore.ObjectMeta]:
            nonlocal pages
            if pages is None:
                listing = obstore.list(self._objects, where.prefix or None, offset=last, chunk_size=at_once)
                pages = iter(cast("Iterable[list[obstore.ObjectMeta]]", listing))
            try:
                return next(pages, [])
            except Exception:
                pages = None
                raise

        while listed := self._request("list", folder, ask, BROKEN_ANSWERS):
            yield listed
            last = max(each["path"] for each in listed)

    def token(self, folder: str, now_ns: int | None = None) -> int | None:
        """See :meth:`Storage.token`; always None, because a bucket doesn't record changes of folders."""
        return None

    def stamp(self, key: str) -> Stamp | None:
        """See :meth:`Storage.stamp`: a hash of the object's entity tag, and its size."""
        found = self._head(key)
        if found is None:
            return None
        tag = found["e_tag"] or found["version"] or found["last_modified"].isoformat()
        return int.from_bytes(hashlib.sha256(tag.encode()).digest()[:8]), found["size"]

    def _size(self, key: str) -> int:
        found = self._head(key)
        if found is None:
            raise FileNotFoundError(f"there is no {self._at(key)}")
        return found["size"]

    def _head(self, key: str) -> obstore.ObjectMeta | None:
        import obstore

        where = self._at(key)

        def ask() -> obstore.ObjectMeta | None:
            try:
                return obstore.head(self._objects, where.prefix)
            except FileNotFoundError as error:
                check_bucket(error)
                return None

        return self._request("look at", key, ask, BROKEN_ANSWERS) if where.prefix else None

    @contextmanager
    def opened(self, key: str) -> Iterator[Opened]:
        """See :meth:`Storage.opened`; nothing is requested before the first read."""
        yield _OpenedObject(self, key)

    def tail(self, key: str, most: int) -> tuple[Bytes, int]:
        """See :meth:`Storage.tail`."""
        import obstore
        from obstore.exceptions import GenericError

        where = self._at(key)
        if where.scheme == _WITHOUT_SUFFIX:
            size = self._size(key)
            return self.read_range(key, max(0, size - most), min(most, size)), size

        def ask() -> tuple[Bytes, int]:
            try:
                found = obstore.get(self._objects, where.prefix, options={"range": {"suffix": most}})
            except GenericError as error:
                if self._is_empty(error, key):
                    return b"", 0
                raise
            return memoryview(found.bytes()), found.meta["size"]

        with _gone_or_away("read", where):
            return again(lambda: heeding(ask), BROKEN_ANSWERS)

    def _is_empty(self, error: Exception, key: str) -> bool:
        """Return whether reading an object's end failed because it is empty; services report that in two ways."""
        return any(words in str(error) for words in _NO_SUCH_RANGE) and self._size(key) == 0

    def read_range(self, key: str, start: int, size: int) -> Bytes:
        """Return some bytes of an object; raise :class:`FileNotFoundError` if the object is gone."""
        import obstore
        from obstore.exceptions import GenericError

        if size == 0:
            return b""
        where = self._at(key)

        def ask() -> Bytes:
            try:
                return memoryview(obstore.get_range(self._objects, where.prefix, start=start, length=size))
            except GenericError as error:
                if any(words in str(error) for words in _NO_SUCH_RANGE):
                    return b""
                raise

        with _gone_or_away("read", where):
            found = again(lambda: heeding(ask), BROKEN_ANSWERS)
        if len(found) != size:
            raise ShortFile
        return found

    def read(self, key: str, most: int = LARGEST_BLOB) -> bytes | None:
        """See :meth:`Storage.read`."""
        import obstore

        where = self._at(key)

        def ask() -> bytes | TooLarge | None:
            try:
                found = obstore.get(self._objects, where.prefix)
            except FileNotFoundError as error:
                check_bucket(error)
                return None
            size = found.meta["size"]
            return bytes(found.bytes()) if size <= most else TooLarge(size)

        found = self._request("read", key, ask, BROKEN_ANSWERS)
        if isinstance(found, TooLarge):
            raise found
        return found

    def create(self, key: str, data: bytes) -> bool:
        """See :meth:`Storage.create`."""
        writer = secrets.token_hex(16)
        with told("write", self._at(key)):
            return again(lambda: self._created(key, data, writer), BROKEN_PUTS)

    def _created(self, key: str, data: bytes, writer: str) -> bool:
        """Create an object; return whether this writer created it. The call may be repeated after a failure."""
        import obstore
        from obstore.exceptions import AlreadyExistsError, PreconditionError

        path, attributes = self._at(key).prefix, self._attributes(key) | {_WRITER: writer}
        try:
            heeding(lambda: obstore.put(self._objects, path, data, mode="create", attributes=attributes))
        except (AlreadyExistsError, PreconditionError) as conflict:
            # Created by another writer, or by this one, if its first try was carried out and the answer lost.
            try:
                return self._written_by(key) == writer
            except FileNotFoundError as error:  # S3 answers 409 while another put is under way, which may yet fail
                check_bucket(error)
                raise Unsettled(f"another writer may be at it, and did not end: {conflict}") from error
        except Exception:
            with suppress(Exception):
                if self._written_by(key) == writer:
                    return True
            raise
        return True

    def _written_by(self, key: str) -> str | None:
        import obstore

        path = self._at(key).prefix
        attributes: dict[str, str] = dict(heeding(lambda: obstore.get(self._objects, path)).attributes)
        return attributes.get(_WRITER)

    def write(self, key: str, parts: Iterable[Bytes], *, durable: bool = True) -> None:
        """See :meth:`Storage.write`; an object is written completely or not at all.

        Documents for clients are put in one request, like versions, because the parts of a killed upload remain,
        invisible, and cost money. The put isn't repeated when the connection breaks: a late repetition would overwrite
        what another publisher has put in the meantime.
        """
        if self._headers is None:
            self._put(key, b"".join(parts), None)
            return
        import obstore

        path, data, attributes = self._at(key).prefix, b"".join(parts), self._attributes(key)

        def put() -> object:
            return obstore.put(self._objects, path, data, mode="overwrite", attributes=attributes, use_multipart=False)

        self._request("write", key, put, ())

    def rewrite(self, key: str, parts: Iterable[Bytes]) -> None:
        """See :meth:`Storage.rewrite`; fails if another process has written the object in the meantime."""
        found = self._head(key)
        if found is None:
            raise FileNotFoundError(f"there is no {self._at(key)}")
        self._put(key, b"".join(parts), found)

    def _put(self, key: str, data: bytes, instead_of: obstore.ObjectMeta | None) -> None:
        """Write an object; if ``instead_of`` is not None, only if the present object is still that one."""
        import obstore
        from obstore.exceptions import PreconditionError

        where = self._at(key)
        mode: Literal["overwrite"] | obstore.UpdateVersion = "overwrite"
        if instead_of is not None:
            seen = {"e_tag": instead_of["e_tag"], "version": instead_of["version"]}
            mode = cast("obstore.UpdateVersion", {name: tag for name, tag in seen.items() if tag is not None})

        def ask() -> None:
            obstore.put(
                self._objects,
                where.prefix,
                data,
                mode=mode,
                use_multipart=instead_of is None and len(data) > 2 * PART_BYTES,
                chunk_size=PART_BYTES,
            )

        let = () if instead_of is None else (PreconditionError,)  # some policies of Google's refuse any put by a 412
        try:
            self._request("write", key, ask, BROKEN_PUTS, let)
        except PreconditionError as error:
            if bytes(self.tail(key, len(data) + 1)[0]) == data:
                return  # by this very put, whose answer was lost
            raise ChangedMeanwhile(where) from error

    def remove(self, key: str) -> None:
        """See :meth:`Storage.remove`."""
        import obstore

        path = self._at(key).prefix

        def ask() -> None:
            with suppress(FileNotFoundError):
                obstore.delete(self._objects, path)

        self._request("delete", key, ask, BROKEN_PUTS)

    def check_conditional_writes(self) -> None:
        """See :meth:`Storage.check_conditional_writes`, on an object that is deleted again.

        Raises:
            NoConditionalWrites: an object was created twice.
            StorageAway: nothing can be written, or the bucket forbids changes of objects (retention, immutability).
        """
        key = f".probe-{secrets.token_hex(8)}"
        try:
            if not (self.create(key, b"1") and not self.create(key, b"2")):
                raise NoConditionalWrites(
                    f"the object store of {self.place} has no conditional writes (a put with 'If-None-Match: *'), "
                    "which publish a version only once; two rounds could publish different ones. Use one that has them"
                )
            self.write(key, [b"3"])
        finally:
            with suppress(FedpingError):  # where writing fails, so does removal; the first error is raised
                self.remove(key)

    def _at(self, key: str) -> Bucket:
        return child(self.place, key) if key else self.place

    @property
    def _objects(self) -> ObjectStore:
        """The connection to the whole bucket, which all storages in it share."""
        return connection(Bucket(self.place.scheme, self.place.name))

    def _attributes(self, key: str) -> dict[str, str]:
        return dict(self._headers(key)) if self._headers else {}

    def _request(
        self,
        what: str,
        key: str,
        ask: Callable[[], _T],
        broken: tuple[str, ...],
        let: tuple[type[Exception], ...] = (),
    ) -> _T:
        with told(what, self._at(key), let):
            return again(lambda: heeding(ask), broken)


class _OpenedObject:
    """An object whose bytes are requested on reading."""

    def __init__(self, storage: BucketStorage, key: str) -> None:
        self._storage, self._key = storage, key

    @property
    def size(self) -> int:
        return self._storage._size(self._key)

    def read(self, start: int, size: int) -> Bytes:
        return self._storage.read_range(self._key, start, size)


@contextmanager
def _gone_or_away(what: str, where: Bucket) -> Iterator[None]:
    """Pass the error of a missing object on, and raise a missing bucket as :class:`StorageAway`."""
    with told(what, where, let=(FileNotFoundError,)):
        try:
            yield
        except FileNotFoundError as error:
            check_bucket(error)
            raise FileNotFoundError(f"there is no {where}") from error


def _name(found: obstore.ObjectMeta, folder: Bucket) -> str:
    """Return an object's path relative to a folder; "" for the object with which web consoles mark a folder."""
    path = found["path"]
    return path if not folder.prefix else path.removeprefix(folder.prefix).removeprefix("/")
