"""The documents of a store: bytes by key, with a checksum that reveals damage, and with errors as sentences.

The last member of a stored JSON object is ``,"seal":"<32 hexadecimal digits>"``, the XXH3-128 of all bytes before it.
Without it, a flipped bit would silently change the model. The checksum belongs to the file, not to the document, so no
digest of a study or a version includes it. Documents of older stores have no checksum.

A bit may flip in the checksum itself. So a file with only the frame of a checksum in this place, or only its digits,
counts as damaged and not as a document without a checksum.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

import msgspec

from fedping.model_store.version import NEWEST_FORMAT
from fedping.protocol.errors import FedpingError
from fedping.protocol.formats import NewerFormat, format_of, refuse_newer, without_format
from fedping.protocol.storage import NotAFile, Stamp, Storage, TooLarge

_T = TypeVar("_T")

_MEMBER = re.compile(rb',"seal":"([0-9a-f]{32})"\}')
_BEFORE, _AFTER = b',"seal":"', b'"}'
_LENGTH = len(_BEFORE) + 32 + len(_AFTER)

_MOST_REMEMBERED = 256

_FOREVER, _REVALIDATE = "public, max-age=31536000, immutable", "no-cache"
_NUMBERED = re.compile(r"public/[0-9]+\.json\Z")


class StoreError(FedpingError):
    """The store is missing, lacks the requested document, or has an unreadable one."""


class Unreadable(FedpingError):
    """A file or folder of the store exists but can't be read."""


class Damaged(StoreError, Unreadable):
    """A document differs from what was written, or a published version was lost."""


class MissingStore(StoreError, Unreadable):
    """No store exists at this place at present."""


class StampCache(Generic[_T]):
    """A cache of up to 256 values by key; a value is valid while its source files have the same stamps."""

    def __init__(self) -> None:
        self._values: dict[str, tuple[Hashable, _T]] = {}

    def value(self, key: str, stamps: Hashable, read: Callable[[], _T]) -> _T:
        """Return the value for these stamps; read it if it isn't cached, or always if ``stamps`` is None."""
        known = self._values.get(key)
        if known is None or stamps is None or known[0] != stamps:
            known = stamps, read()
            self.put(key, *known)
        return known[1]

    def get(self, key: str, stamps: Hashable) -> _T | None:
        """Return the value for these stamps; None if it isn't cached."""
        known = self._values.get(key)
        return known[1] if known is not None and known[0] == stamps else None

    def put(self, key: str, stamps: Hashable, value: _T) -> None:
        """Cache a value."""
        if len(self._values) >= _MOST_REMEMBERED:
            self._values.clear()
        self._values[key] = stamps, value


class Documents:
    """The files of a store by key, in any :class:`fedping.protocol.storage.Storage`; ``where`` names it in messages."""

    def __init__(self, storage: Storage, where: str) -> None:
        self.storage = storage
        self.where = where

    def read(self, key: str) -> bytes | None:
        """Return the bytes of a file as stored, damaged or not; None if it doesn't exist.

        Raises:
            FedpingError: it isn't a file, is larger than any file that the store writes, or may not be read.
        """
        if not is_key(key):
            return None
        try:
            return self.storage.read(key)
        except NotAFile as error:
            raise self._odd(key, "is no file") from error
        except TooLarge as error:
            raise self._odd(key, f"has {error.size:,} bytes, more than anything that the store writes") from error
        except OSError as error:
            raise self._odd(key, f"cannot be read ({error.strerror})", "correct its permissions, or ") from error

    def read_whole(self, key: str) -> bytes | None:
        """Return the bytes of a document with a checksum; None if it doesn't exist.

        Raises:
            StoreError: the bytes differ from those that were written.
        """
        data = self.read(key)
        if data is not None and not is_whole(data):
            raise Damaged(self.damaged(key))
        return data

    def stamp(self, key: str) -> Stamp | None:
        """Return a file's stamp; None if it doesn't exist."""
        if not is_key(key):
            return None
        try:
            return self.storage.stamp(key)
        except OSError as error:
            raise self._odd(key, f"cannot be inspected ({error.strerror})") from error

    def visible_stamp(self, key: str) -> Stamp | None:
        """Return a file's stamp; None if it doesn't exist, or the store can't be read."""
        try:
            return self.stamp(key)
        except FedpingError:
            return None

    def names(self, folder: str) -> list[str]:
        """Return the names of the files in a folder, without hidden files, which are unfinished writes."""
        return self._listed(folder, "files")

    def folders(self, folder: str = "") -> list[str]:
        """Return the names of a folder's visible subfolders."""
        return self._listed(folder, "folders")

    def _listed(self, folder: str, kind: str) -> list[str]:
        if folder and not is_key(folder):
            return []
        try:
            names = self.storage.files(folder) if kind == "files" else self.storage.folders(folder)
        except OSError as error:
            what = f"cannot be listed ({error.strerror})"
            raise self._odd(folder, what, "correct its permissions, or ") from error
        return [name for name in names if not name.startswith(".")]

    def create(self, key: str, data: bytes) -> bool:
        """Write a new file; return False, without a change, if the key exists."""
        try:
            return self.storage.create(key, data)
        except OSError as error:
            raise self._unwritable(key, error) from error

    def replace(self, key: str, data: bytes) -> None:
        """Write a file, or replace an existing file."""
        try:
            self.storage.write(key, [data])
        except OSError as error:
            raise self._unwritable(key, error) from error

    def delete(self, key: str) -> None:
        """Delete a file, if it exists."""
        try:
            self.storage.remove(key)
        except OSError as error:
            raise self._unwritable(key, error) from error

    def check_writing(self) -> None:
        """Check that versions can be published here: that files can be written completely, and created only once.

        Raises:
            FedpingError: nothing can be written here, or a file can't be created only if it is absent.
        """
        try:
            self.storage.check_conditional_writes()
        except OSError as error:
            raise self._unwritable("", error) from error

    def decode(self, data: bytes, kind: type[_T], key: str) -> _T:
        """Return a decoded version or part of a version, or another document that has no format member.

        Raises:
            StoreError: the document can't be read, or has a newer format.
        """
        try:
            refuse_newer(format_of(data), f"{self.where}/{key}", NEWEST_FORMAT)
            return msgspec.json.decode(data, type=kind)
        except NewerFormat as error:
            raise Damaged(str(error)) from error
        except (msgspec.MsgspecError, UnicodeDecodeError, FedpingError) as error:
            raise Damaged(
                f"{self.where}/{key} cannot be read ({error}); it was damaged, or written by another "
                "program or a later fedping. Use that version here too, or restore it from a copy"
            ) from error

    def without_format(self, data: bytes, key: str) -> bytes:
        """Return a study or a fence without its format; raise :class:`StoreError` if the format is newer."""
        try:
            return without_format(data, f"{self.where}/{key}")
        except NewerFormat as error:
            raise Damaged(str(error)) from error

    def damaged(self, key: str) -> str:
        """Return the sentence for a document whose bytes differ from those that were written."""
        return f"{self.where}/{key} cannot be read (it doesn't match its seal); it was damaged: restore it from a copy"

    def foreign(self, key: str, what: str) -> str:
        """Return the sentence for a file whose content doesn't match its key."""
        return (
            f"{self.where}/{key} {what}: move it out of the store if it does not belong there, or restore its "
            "original from a copy"
        )

    def _odd(self, key: str, what: str, first: str = "") -> Unreadable:
        path = f"{self.where}/{key}" if key else self.where
        return Unreadable(f"{path} {what}; {first}move it out of the model store if it does not belong there")

    def _unwritable(self, key: str, error: OSError) -> FedpingError:
        path = f"{self.where}/{key}" if key else self.where
        return FedpingError(
            f"cannot write {path} in the model store: {error.strerror}; free space or correct the permissions, then "
            "run the same command again"
        )


def is_key(key: str) -> bool:
    """Return whether a key is valid: requests may name any study, and no key may lead out of the store's folder."""
    return not {"", ".", ".."} & {*key.split("/")} and "\0" not in key


def headers(key: str) -> dict[str, str]:
    """Return the HTTP headers of a document in a bucket that clients fetch from."""
    kind = "application/json" if key.endswith(".json") else "application/octet-stream"
    return {"Content-Type": kind, "Cache-Control": _FOREVER if _NUMBERED.search(key) else _REVALIDATE}


def sealed(document: bytes) -> bytes:
    """Return the JSON of a non-empty object with its checksum added."""
    body = memoryview(document)[:-1]
    return b"".join((body, _BEFORE, _digest(body), _AFTER))


def is_whole(data: bytes) -> bool:
    """Return whether a document matches its checksum, or has none."""
    seal, digest = data[-_LENGTH:], _digest(memoryview(data)[:-_LENGTH])
    before, digits, after = seal[: len(_BEFORE)], seal[len(_BEFORE) : -len(_AFTER)], seal[-len(_AFTER) :]
    if digits == digest:
        return (before, after) == (_BEFORE, _AFTER)
    return before != _BEFORE


def unsealed(data: bytes) -> bytes:
    """Return a document without its checksum, if it has one."""
    return data[:-_LENGTH] + b"}" if _MEMBER.fullmatch(data[-_LENGTH:]) else data


def _digest(body: memoryview) -> bytes:
    import xxhash

    return xxhash.xxh3_128_hexdigest(body).encode()
