"""The blobs of a store in an object store: S3 and what speaks like it, Google Cloud Storage, Azure Blob Storage.

A version is created by a conditional put (``If-None-Match: *``, or Google's ``x-goog-if-generation-match: 0``), so that
of any number of writers one wins; what is seen of an object is its entity tag, never a time. How the object store is
talked to, and what fails in passing is tried again: :mod:`fedping.protocol.object_store`.
"""

from __future__ import annotations

import hashlib
import re
import secrets
from contextlib import suppress
from typing import TYPE_CHECKING

from fedping.model_store.blobs import LARGEST_BLOB, Sight, is_key
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

if TYPE_CHECKING:
    from obstore.store import ObjectStore

_WRITER = "writer"
"""Metadata of an object: who created it. Told by it, a writer whose answer was lost knows its own object."""

_FOREVER, _REVALIDATE = "public, max-age=31536000, immutable", "no-cache"
_NUMBERED = re.compile(r"public/[0-9]+\.json\Z")


class ObjectBlobs:
    """Blobs as objects below the folder of a bucket; see :class:`fedping.model_store.blobs.Blobs`.

    Every method raises :class:`StorageAway` if the object store does not answer as it should
    (:mod:`fedping.protocol.object_store`).
    """

    def __init__(self, place: Bucket) -> None:
        self.place = place

    def create(self, key: str, data: bytes) -> bool:
        """See :meth:`Blobs.create`."""
        writer = secrets.token_hex(16)
        with told("write", child(self.place, key)):
            return again(lambda: self._created(key, data, writer), BROKEN_PUTS)

    def _created(self, key: str, data: bytes, writer: str) -> bool:
        """Return whether an object was created by this writer; the same call may be repeated when it has failed."""
        import obstore
        from obstore.exceptions import AlreadyExistsError, PreconditionError

        attributes = {**_attributes(key), _WRITER: writer}
        try:
            heeding(lambda: obstore.put(self._objects, key, data, mode="create", attributes=attributes))
        except (AlreadyExistsError, PreconditionError) as conflict:
            # By another writer; or by this one, whose first try was carried out and its answer lost.
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

    def replace(self, key: str, data: bytes) -> None:
        """See :meth:`Blobs.replace`."""
        import obstore

        # In one request, as versions are: parts of an upload that was killed stay, are paid for and are seen by nobody.
        with told("write", child(self.place, key)):
            heeding(
                lambda: obstore.put(
                    self._objects, key, data, mode="overwrite", attributes=_attributes(key), use_multipart=False
                )
            )

    def read(self, key: str) -> bytes | None:
        """See :meth:`Blobs.read`."""
        if not is_key(key):
            return None
        with told("read", child(self.place, key)):
            return again(lambda: self._read(key), BROKEN_ANSWERS)

    def _read(self, key: str) -> bytes | None:
        import obstore

        try:
            found = heeding(lambda: obstore.get(self._objects, key))
        except FileNotFoundError as error:
            check_bucket(error)
            return None
        if found.meta["size"] > LARGEST_BLOB:
            raise FedpingError(
                f"{self.place}/{key} has {found.meta['size']:,} bytes, more than anything that the store writes; "
                "move it out of the model store"
            )
        return heeding(lambda: bytes(found.bytes()))

    def sight(self, key: str) -> Sight | None:
        """See :meth:`Blobs.sight`: a hash of the object's entity tag, and its size."""
        import obstore

        if not is_key(key):
            return None
        with told("look at", child(self.place, key)):
            try:
                found = heeding(lambda: obstore.head(self._objects, key))
            except FileNotFoundError as error:
                check_bucket(error)
                return None
        tag = found["e_tag"] or found["version"] or found["last_modified"].isoformat()
        return int.from_bytes(hashlib.sha256(tag.encode()).digest()[:8]), found["size"]

    def names(self, folder: str) -> list[str]:
        """See :meth:`Blobs.names`."""
        import obstore

        if folder and not is_key(folder):
            return []
        with told("list", child(self.place, folder) if folder else self.place):
            found = again(
                lambda: heeding(lambda: obstore.list_with_delimiter(self._objects, folder or None)), BROKEN_ANSWERS
            )
        paths = [*found["common_prefixes"], *(each["path"] for each in found["objects"])]
        # Web consoles mark a folder by an object of its own name.
        names = {path.rstrip("/").rpartition("/")[2] for path in paths if path.rstrip("/") != folder}
        return [name for name in names if name and not name.startswith(".")]

    def delete(self, key: str) -> None:
        """See :meth:`Blobs.delete`."""
        import obstore

        with told("delete", child(self.place, key)), suppress(FileNotFoundError):
            heeding(lambda: obstore.delete(self._objects, key))

    def check_writing(self) -> None:
        """Check that a conditional put is obeyed and an object may be replaced, on one that is deleted again.

        Raises:
            FedpingError: nothing can be written here, an object was created twice, or what is written is to stay as it
                is (retention, immutability), where ``latest.json`` could not follow a version.
        """
        key = f".probe-{secrets.token_hex(8)}"
        try:
            if not (self.create(key, b"1") and not self.create(key, b"2")):
                raise FedpingError(
                    f"the object store of {self.place} has no conditional writes (a put with 'If-None-Match: *'), by "
                    "which a version is published once; two rounds could each publish another: use one that has them"
                )
            self.replace(key, b"3")
        finally:
            with suppress(FedpingError):  # where writing fails, so does this; the write's own error is reported
                self.delete(key)

    @property
    def _objects(self) -> ObjectStore:
        return connection(self.place)

    def _written_by(self, key: str) -> str | None:
        import obstore

        attributes: dict[str, str] = dict(heeding(lambda: obstore.get(self._objects, key)).attributes)
        return attributes.get(_WRITER)


def _attributes(key: str) -> dict[str, str]:
    """Return what an object is served with by a bucket that clients fetch from."""
    kind = "application/json" if key.endswith(".json") else "application/octet-stream"
    return {"Content-Type": kind, "Cache-Control": _FOREVER if _NUMBERED.search(key) else _REVALIDATE}
