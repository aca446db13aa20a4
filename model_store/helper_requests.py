"""Requests to the helper of a two-server line: the open request of a version, until its answer arrives.

    <study>/<line>/asked/<n>.msgpack         the request on version n, and the leader's own sums of the same clients
    <study>/<line>/asked/<n>.request         the request alone, for the helper; derived from the above
    <study>/<line>/asked/<n>.aside.msgpack   the last request that the helper refused, since replaced by another
    <study>/<line>/asked/<n>.json            start and reason of the last round's wait; for status pages
    <study>/<line>/asked/<n>.answer          the answer that version n + 1 was computed from; kept

The first request of a version stays until it is answered or refused: a repeated round continues with the same bytes,
because a helper gives only one answer a version. When the next version is published, all files except the answer are
deleted.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from hashlib import sha256
from typing import Annotated, Literal

import msgspec
from msgspec import Meta, Struct

from fedping.model_store.documents import Documents
from fedping.model_store.version import InputFile, Version
from fedping.protocol.errors import FedpingError
from fedping.protocol.sharing.exchange import Request, digest_of_signed, read_signed

_DIGEST_BYTES = 32


class HelperRequest(Struct, frozen=True, kw_only=True, dict=True):
    """A request, and the data to finish the round when the helper has answered.

    Attributes:
        study, line, version, of: the version that the request is for, with its digest ``of``.
        request: the signed bytes to send.
        sums: the sum of the leader's shares of the clients in the request, by arm, 8 bytes a number, little-endian.
        inputs: the landed files with these shares, from which the shares of refused clients are read again.
    """

    study: str
    line: str
    version: Annotated[int, Meta(ge=0)]
    of: str
    request: bytes
    sums: dict[str, bytes]
    inputs: tuple[InputFile, ...]
    format: Literal[1] = 1

    @cached_property
    def read(self) -> Request:
        """The decoded request."""
        return read_signed(self.request, Request)

    @cached_property
    def digest(self) -> str:
        """The request's digest, which identifies it in an answer."""
        return digest_of_signed(self.request)


class PendingRequest(Struct, frozen=True, kw_only=True):
    """A line's wait for its helper: its start, ISO 8601 in UTC, and the reason as part of a sentence.

    ``for_good`` is whether no answer can arrive any more, so that the operator must decide.
    """

    since: str
    why: str
    for_good: bool = False


@dataclass(frozen=True, slots=True)
class StoredRequest:
    """The stored requests of one line to its helper."""

    documents: Documents
    study: str
    line: str

    def open(self, head: Version) -> HelperRequest | None:
        """Return the open request for the newest version; None if there is none.

        Raises:
            FedpingError: the request can't be read.
        """
        return self._read(self._key(head.iteration, "msgpack"), head)

    def aside(self, head: Version) -> HelperRequest | None:
        """Return the last request for the newest version that was put aside; None if there is none.

        Raises:
            FedpingError: the request can't be read.
        """
        return self._read(self._key(head.iteration, "aside.msgpack"), head)

    def keep(self, asked: HelperRequest, head: Version) -> HelperRequest:
        """Store a request before it is sent, and return the stored request, which is an earlier one if it exists."""
        key, data = self._key(asked.version, "msgpack"), _sealed(asked)
        if not self.documents.create(key, data):
            if (first := self._read(key, head)) is not None:
                return first
            self.documents.replace(key, data)  # one of another version of this number, which can never be published
        return asked

    def sign_again(self, asked: HelperRequest, request: bytes) -> HelperRequest:
        """Store the same request with the signature of another key, and return it."""
        again = msgspec.structs.replace(asked, request=request)
        self.documents.replace(self._key(asked.version, "msgpack"), _sealed(again))
        return again

    def file_of(self, asked: HelperRequest) -> str:
        """Write the request as a file for the helper, and return its address."""
        key = self._key(asked.version, "request")
        if self.documents.read(key) != asked.request:
            self.documents.replace(key, asked.request)
        return f"{self.documents.where}/{key}"

    def put_aside(self, asked: HelperRequest) -> None:
        """Put a request aside, so that the next round sends a new request."""
        self.documents.replace(self._key(asked.version, "aside.msgpack"), _sealed(asked))
        for ending in ("request", "msgpack"):
            self.documents.delete(self._key(asked.version, ending))

    def tell(self, version: int, waiting: PendingRequest | None) -> None:
        """Write a round's wait for the helper, for status pages; None removes it."""
        if waiting is None:
            self.documents.delete(self._key(version, "json"))
            return
        self.documents.replace(self._key(version, "json"), msgspec.json.encode(waiting))

    def told(self, version: int) -> PendingRequest | None:
        """Return the last round's wait for the helper; None if it doesn't wait, or the file can't be read."""
        try:
            data = self.documents.read(self._key(version, "json"))
            return None if data is None else msgspec.json.decode(data, type=PendingRequest)
        except (FedpingError, msgspec.MsgspecError, UnicodeDecodeError):
            return None

    def keep_answer(self, version: int, data: bytes) -> None:
        """Store the answer for a version as received."""
        if self.documents.read(key := self._key(version, "answer")) != data:
            self.documents.replace(key, data)

    def answer(self, version: int) -> bytes | None:
        """Return the answer for a version; None if it isn't stored."""
        return self.documents.read(self._key(version, "answer"))

    def forget(self, before: int) -> None:
        """Delete the requests of all versions before ``before``, but not the answers."""
        for name in self.documents.names(self._folder):
            number, _, ending = name.partition(".")
            if number.isdecimal() and int(number) < before and ending != "answer":
                self.documents.delete(f"{self._folder}/{name}")

    @property
    def _folder(self) -> str:
        return f"{self.study}/{self.line}/asked"

    def _key(self, version: int, ending: str) -> str:
        return f"{self._folder}/{version}.{ending}"

    def _read(self, key: str, head: Version) -> HelperRequest | None:
        """Return the stored request if it is for exactly this version; else None."""
        if (data := self.documents.read(key)) is None:
            return None
        try:
            found = _unsealed(data)
        except (msgspec.MsgspecError, UnicodeDecodeError, ValueError) as error:
            raise FedpingError(
                f"{self.documents.where}/{key}, the open request to the helper, is damaged ({error}). Restore it from "
                "a copy, or move it away: the next round then sends another, which the helper refuses if it has "
                "answered this one"
            ) from error
        here = (found.study, found.line, found.version, found.of)
        return found if here == (self.study, self.line, head.iteration, head.digest) else None


def _sealed(asked: HelperRequest) -> bytes:
    body = msgspec.msgpack.encode(asked)
    return sha256(body).digest() + body


def is_whole_request(data: bytes) -> bool:
    """Return whether a stored request matches the SHA-256 at its start."""
    return sha256(memoryview(data)[_DIGEST_BYTES:]).digest() == data[:_DIGEST_BYTES]


def _unsealed(data: bytes) -> HelperRequest:
    if not is_whole_request(data):
        raise ValueError("it is not what its digest says")
    found = msgspec.msgpack.decode(memoryview(data)[_DIGEST_BYTES:], type=HelperRequest)
    assert found.read  # it raises an error if it isn't a request
    return found
