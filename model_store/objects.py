"""The blobs of a store in an object store: S3 and what speaks like it, Google Cloud Storage, Azure Blob Storage.

A version is created by a conditional put (``If-None-Match: *``), so that of any number of writers one wins; what is
seen of an object is its entity tag, never a time. Credentials, region and endpoint come from the environment, by the
variables that the tools of these services read (``docs/object-stores.md``).

What fails in passing (no connection, a time-out, 429, 5xx, an answer that is cut off) is tried again, ever later, for
:data:`PATIENCE` seconds.
"""

from __future__ import annotations

import hashlib
import os
import re
import secrets
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from datetime import timedelta
from functools import cache
from typing import TYPE_CHECKING, Any, TypeVar

from fedping.model_store.blobs import LARGEST_BLOB, Sight, StorageAway
from fedping.model_store.place import Bucket
from fedping.protocol.errors import FedpingError, InvalidSettings

if TYPE_CHECKING:
    from obstore.store import ObjectStore

_T = TypeVar("_T")

PATIENCE = 20.0
"""Seconds in which a request is tried again; the variable :data:`PATIENCE_VARIABLE` sets others."""

PATIENCE_VARIABLE = "FEDPING_STORAGE_PATIENCE"

LONGEST_PATIENCE = 300.0
"""Seconds; credentials that are renewed last a few minutes longer than they are handed out."""

ANSWERS_WITHIN = 60.0
"""Seconds that one answer may take; what stops arriving earlier is given up after 15."""

_WRITER = "writer"
"""Metadata of an object: who created it. Told by it, a writer whose answer was lost knows its own object."""

_MOST_TRIES = 10_000
"""More than fit into :data:`LONGEST_PATIENCE`: only time ends the tries."""

_BROKEN_ANSWERS = ("body error",)
_BROKEN_PUTS = (*_BROKEN_ANSWERS, "error sending request")
"""What the library says of connections that broke. It leaves a put alone then that may have been carried out."""

_FOREVER, _REVALIDATE = "public, max-age=31536000, immutable", "no-cache"
_NUMBERED = re.compile(r"public/[0-9]+\.json\Z")
_NO_BUCKET = ("NoSuchBucket", "ContainerNotFound", "The specified bucket does not exist")
_NOT_ALLOWED = ("AccessDenied", "AuthenticationFailed", "ExpiredToken", "InvalidAccessKeyId", "SignatureDoesNotMatch")
_LONGEST_REASON = 300


class _Unsettled(OSError):
    """Whether an object is created, and by whom, is not to be told yet."""


class ObjectBlobs:
    """Blobs as objects below the folder of a bucket; see :class:`fedping.model_store.blobs.Blobs`.

    Every method raises :class:`StorageAway` if the object store does not answer as it should.
    """

    def __init__(self, place: Bucket) -> None:
        self.place = place

    def create(self, key: str, data: bytes) -> bool:
        """See :meth:`Blobs.create`."""
        writer = secrets.token_hex(16)
        with self._told("write", key):
            return _again(lambda: self._created(key, data, writer), _BROKEN_PUTS)

    def _created(self, key: str, data: bytes, writer: str) -> bool:
        """Return whether an object was created by this writer; the same call may be repeated when it has failed."""
        import obstore
        from obstore.exceptions import AlreadyExistsError, PreconditionError

        attributes = {**_attributes(key), _WRITER: writer}
        try:
            _heeding(lambda: obstore.put(self._objects, key, data, mode="create", attributes=attributes))
        except (AlreadyExistsError, PreconditionError):
            # By another writer; or by this one, whose first try was carried out and its answer lost.
            try:
                return self._written_by(key) == writer
            except FileNotFoundError as error:  # S3 answers 409 while another put is under way, which may yet fail
                _check_bucket(error)
                raise _Unsettled("another writer is at it, and did not end") from error
        except Exception:
            with suppress(Exception):
                if self._written_by(key) == writer:
                    return True
            raise
        return True

    def replace(self, key: str, data: bytes) -> None:
        """See :meth:`Blobs.replace`."""
        import obstore

        with self._told("write", key):
            _heeding(lambda: obstore.put(self._objects, key, data, mode="overwrite", attributes=_attributes(key)))

    def read(self, key: str) -> bytes | None:
        """See :meth:`Blobs.read`."""
        with self._told("read", key):
            return _again(lambda: self._read(key), _BROKEN_ANSWERS)

    def _read(self, key: str) -> bytes | None:
        import obstore

        try:
            found = _heeding(lambda: obstore.get(self._objects, key))
        except FileNotFoundError as error:
            _check_bucket(error)
            return None
        if found.meta["size"] > LARGEST_BLOB:
            raise FedpingError(
                f"{self.place}/{key} has {found.meta['size']:,} bytes, more than anything that the store writes; "
                "move it out of the model store"
            )
        return _heeding(lambda: bytes(found.bytes()))

    def sight(self, key: str) -> Sight | None:
        """See :meth:`Blobs.sight`: a hash of the object's entity tag, and its size."""
        import obstore

        with self._told("look at", key):
            try:
                found = _heeding(lambda: obstore.head(self._objects, key))
            except FileNotFoundError as error:
                _check_bucket(error)
                return None
        tag = found["e_tag"] or found["version"] or found["last_modified"].isoformat()
        return int.from_bytes(hashlib.sha256(tag.encode()).digest()[:8]), found["size"]

    def names(self, folder: str) -> list[str]:
        """See :meth:`Blobs.names`."""
        import obstore

        with self._told("list", folder):
            found = _again(
                lambda: _heeding(lambda: obstore.list_with_delimiter(self._objects, folder or None)), _BROKEN_ANSWERS
            )
        paths = [*found["common_prefixes"], *(each["path"] for each in found["objects"])]
        # Web consoles mark a folder by an object of its own name.
        names = {path.rstrip("/").rpartition("/")[2] for path in paths if path.rstrip("/") != folder}
        return [name for name in names if name and not name.startswith(".")]

    def delete(self, key: str) -> None:
        """See :meth:`Blobs.delete`."""
        import obstore

        with self._told("delete", key), suppress(FileNotFoundError):
            _heeding(lambda: obstore.delete(self._objects, key))

    def check_writing(self) -> None:
        """Check that a conditional put is obeyed, on an object that is deleted again.

        Raises:
            FedpingError: nothing can be written here, or an object was created twice.
        """
        key = f".probe-{secrets.token_hex(8)}"
        try:
            if not (self.create(key, b"1") and not self.create(key, b"2")):
                raise FedpingError(
                    f"the object store of {self.place} has no conditional writes (a put with 'If-None-Match: *'), by "
                    "which a version is published once; two rounds could each publish another: use one that has them"
                )
        finally:
            with suppress(FedpingError):  # where writing fails, so does this; the write's own error is reported
                self.delete(key)

    @property
    def _objects(self) -> ObjectStore:
        return _opened(self.place)

    def _written_by(self, key: str) -> str | None:
        import obstore

        attributes: dict[str, str] = dict(_heeding(lambda: obstore.get(self._objects, key)).attributes)
        return attributes.get(_WRITER)

    @contextmanager
    def _told(self, what: str, key: str) -> Iterator[None]:
        """Turn the library's errors into a sentence."""
        from obstore.exceptions import BaseError, PermissionDeniedError, UnauthenticatedError

        try:
            yield
        except (BaseError, OSError) as error:
            if isinstance(error, PermissionDeniedError | UnauthenticatedError) or _code(error) in _NOT_ALLOWED:
                remedy = "give credentials that may, and have not expired, by the environment"
            elif any(code in str(error) for code in _NO_BUCKET):
                remedy = f"there is no '{self.place.name}': make it first, or correct --store"
            else:
                remedy = "correct the endpoint, region or credentials in the environment if it stays so"
            where = f"{self.place}/{key}" if key else str(self.place)
            raise StorageAway(f"cannot {what} {where} in the object store ({_reason(error)}); {remedy}") from error


@cache
def _opened(place: Bucket) -> ObjectStore:
    """Return the connection to a bucket that the process shares; raises :class:`InvalidSettings`."""
    from obstore.exceptions import BaseError
    from obstore.store import from_url

    _check_endpoints()
    given: dict[str, Any] = {
        "client_options": {
            "allow_http": any(os.environ.get(name, "").startswith("http://") for name in _ENDPOINTS),
            "connect_timeout": timedelta(seconds=5),
            "read_timeout": timedelta(seconds=15),
            "timeout": timedelta(seconds=ANSWERS_WITHIN),
            "user_agent": "fedping",
        },
        "retry_config": {
            "max_retries": _MOST_TRIES,
            "retry_timeout": timedelta(seconds=_patience()),
            "backoff": {"init_backoff": timedelta(milliseconds=100), "max_backoff": timedelta(seconds=5), "base": 2},
        },
    }
    if place.scheme == "s3" and (provider := _of_profile()) is not None:
        given["credential_provider"] = provider
    try:
        return from_url(str(place), **given)
    except (BaseError, ValueError) as error:
        raise InvalidSettings(
            f"{place} cannot be opened ({_reason(error)}); give what is missing by the environment"
        ) from error


_ENDPOINTS = ("AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT", "AZURE_STORAGE_ENDPOINT", "AZURE_ENDPOINT")


def _check_endpoints() -> None:
    """Refuse an endpoint that no request can be made of, or that has a secret in it, which errors would repeat."""
    for name in _ENDPOINTS:
        said = os.environ.get(name)
        if said and not re.fullmatch(r"https?://[A-Za-z0-9.:_\[\]-]+(/[A-Za-z0-9._~/-]*)?", said):
            raise InvalidSettings(
                f"{name} is no endpoint of an object store; give http://HOST:PORT or https://HOST alone, and "
                "credentials by their own variables"
            )


def _of_profile() -> Any | None:
    """Return what gives the credentials of a profile of AWS' own tools; None if the environment has others."""
    if "AWS_ACCESS_KEY_ID" in os.environ or not (profile := os.environ.get("AWS_PROFILE")):
        return None
    try:
        import boto3
        from botocore.exceptions import BotoCoreError
        from obstore.auth.boto3 import Boto3CredentialProvider
    except ImportError as error:
        raise InvalidSettings(
            f"the credentials of AWS_PROFILE={profile} are read by boto3, which is not installed; install it with "
            "'pip install boto3', or set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY"
        ) from error
    try:
        return Boto3CredentialProvider(boto3.Session(profile_name=profile))
    except (BotoCoreError, ValueError) as error:
        raise InvalidSettings(
            f"the credentials of AWS_PROFILE={profile} cannot be read ({_reason(error)}); correct its name, or log in"
        ) from error


def _patience() -> float:
    said = os.environ.get(PATIENCE_VARIABLE)
    if said is None:
        return PATIENCE
    try:
        seconds = float(said)
    except ValueError:
        seconds = -1.0
    if not 0.0 <= seconds <= LONGEST_PATIENCE:
        raise InvalidSettings(
            f"{PATIENCE_VARIABLE}={said} is not for how many seconds a request is tried again; give 0 to "
            f"{LONGEST_PATIENCE:.0f}"
        )
    return seconds


def _heeding(ask: Callable[[], _T]) -> _T:
    """Return what is asked for; Ctrl-C and other signals are heeded meanwhile, which the library would not do."""
    if threading.current_thread() is not threading.main_thread():  # where no signal is handled
        return ask()
    answer: Future[_T] = Future()

    def work() -> None:
        try:
            answer.set_result(ask())
        except BaseException as error:
            answer.set_exception(error)

    threading.Thread(target=work, name="object store", daemon=True).start()
    return answer.result()


def _again(ask: Callable[[], _T], broken: tuple[str, ...]) -> _T:
    """Return what is asked for, having tried it again if the connection broke: the library does not do so here."""
    from obstore.exceptions import GenericError

    until, pause = time.monotonic() + _patience(), 0.1
    while True:
        try:
            return ask()
        except (GenericError, _Unsettled) as error:
            broke = isinstance(error, _Unsettled) or any(words in str(error) for words in broken)
            if not broke or time.monotonic() + pause > until:
                raise
            time.sleep(pause)
            pause = min(2 * pause, 5.0)


def _attributes(key: str) -> dict[str, str]:
    """Return what an object is served with by a bucket that clients fetch from."""
    kind = "application/json" if key.endswith(".json") else "application/octet-stream"
    return {"Content-Type": kind, "Cache-Control": _FOREVER if _NUMBERED.search(key) else _REVALIDATE}


def _check_bucket(error: FileNotFoundError) -> None:
    """Raise an error again that says that there is no bucket, and not that there is no object."""
    if any(code in str(error) for code in _NO_BUCKET):
        raise error


def _reason(error: BaseException) -> str:
    """Return the first line of what an object store answered, without what may be a signature in an address."""
    said = re.split(r"<\?xml|<Error\b|Debug source:", str(error))[0]
    code = _code(error)
    text = " ".join(re.sub(r"<[^>]*>", " ", re.sub(r"\?\S*", "", said)).split()).rstrip(": ")
    return (f"{code}: " if code else "") + text[:_LONGEST_REASON]


def _code(error: BaseException) -> str:
    """Return the code of S3's or Azure's answer; "" if it has none."""
    found = re.search(r"<Code>([^<]{1,80})</Code>", str(error))
    return found[1] if found else ""
