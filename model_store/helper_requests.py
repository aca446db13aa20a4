"""What the helper of a line of shares is asked for: the request of a version as long as its answer is not there.

    <study>/<line>/asked/<n>.msgpack         the request on version n, and the leader's own sums of the same clients
    <study>/<line>/asked/<n>.request         the request alone, for the helper; derived from the above
    <study>/<line>/asked/<n>.aside.msgpack   the last one that the helper has refused, so that another was made
    <study>/<line>/asked/<n>.json            since when the last round has waited for what; not the truth, but told
    <study>/<line>/asked/<n>.answer          the answer that version n + 1 is made of, for good

The first request of a version stays until it is answered or refused: whoever repeats a round goes on with its bytes,
for a helper gives one answer a version. All but the answer are deleted once the next version is published.
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
    """A request, and what takes to finish the round once it is answered.

    Attributes:
        study, line, version: on which version, and ``of`` is its digest.
        request: as it travels, signed.
        sums: by arm the sum of the leader's shares of the clients in the request, 8 bytes a number, little-endian.
        inputs: the landed files that they were read from, in which those of refused clients are found again.
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
        """The request itself."""
        return read_signed(self.request, Request)

    @cached_property
    def digest(self) -> str:
        """What stands for it in an answer."""
        return digest_of_signed(self.request)


class PendingRequest(Struct, frozen=True, kw_only=True):
    """Since when a line waits for its helper, ISO 8601 in UTC, and for what, as part of a sentence.

    ``for_good`` says that no answer can come any more, and somebody has to decide.
    """

    since: str
    why: str
    for_good: bool = False


@dataclass(frozen=True, slots=True)
class StoredRequest:
    """The requests to the helper of one line, as stored."""

    documents: Documents
    study: str
    line: str

    def open(self, head: Version) -> HelperRequest | None:
        """Return the request on the newest version that is not answered yet; None if there is none.

        Raises:
            FedpingError: it cannot be read.
        """
        return self._read(self._key(head.iteration, "msgpack"), head)

    def aside(self, head: Version) -> HelperRequest | None:
        """Return the last request on the newest version that was put aside; None if there is none.

        Raises:
            FedpingError: it cannot be read.
        """
        return self._read(self._key(head.iteration, "aside.msgpack"), head)

    def keep(self, asked: HelperRequest, head: Version) -> HelperRequest:
        """Keep a request before anybody is asked; the first stays. Return the one that does."""
        key, data = self._key(asked.version, "msgpack"), _sealed(asked)
        if not self.documents.create(key, data):
            if (first := self._read(key, head)) is not None:
                return first
            self.documents.replace(key, data)  # one of another version of this number, which can never be published
        return asked

    def sign_again(self, asked: HelperRequest, request: bytes) -> HelperRequest:
        """Keep the same request as another key has signed it, and return it."""
        again = msgspec.structs.replace(asked, request=request)
        self.documents.replace(self._key(asked.version, "msgpack"), _sealed(again))
        return again

    def file_of(self, asked: HelperRequest) -> str:
        """Return where the request lies as a file for the helper, having put it there."""
        key = self._key(asked.version, "request")
        if self.documents.read(key) != asked.request:
            self.documents.replace(key, asked.request)
        return f"{self.documents.where}/{key}"

    def put_aside(self, asked: HelperRequest) -> None:
        """Put a request aside, so that the next round makes another."""
        self.documents.replace(self._key(asked.version, "aside.msgpack"), _sealed(asked))
        for ending in ("request", "msgpack"):
            self.documents.delete(self._key(asked.version, ending))

    def tell(self, version: int, waiting: PendingRequest | None) -> None:
        """Keep what a round waits for, for those who ask; None if it does not wait for the helper."""
        if waiting is None:
            self.documents.delete(self._key(version, "json"))
            return
        self.documents.replace(self._key(version, "json"), msgspec.json.encode(waiting))

    def told(self, version: int) -> PendingRequest | None:
        """Return what the last round on a version waits for; None if it does not, or that cannot be read."""
        try:
            data = self.documents.read(self._key(version, "json"))
            return None if data is None else msgspec.json.decode(data, type=PendingRequest)
        except (FedpingError, msgspec.MsgspecError, UnicodeDecodeError):
            return None

    def keep_answer(self, version: int, data: bytes) -> None:
        """Keep the answer of a version for good, as it came."""
        if self.documents.read(key := self._key(version, "answer")) != data:
            self.documents.replace(key, data)

    def answer(self, version: int) -> bytes | None:
        """Return the answer of a version; None if it was not kept."""
        return self.documents.read(self._key(version, "answer"))

    def forget(self, before: int) -> None:
        """Delete what is left of the requests of all versions before one."""
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
        """Return what is kept if it is on this very version, None if there is none."""
        if (data := self.documents.read(key)) is None:
            return None
        try:
            found = _unsealed(data)
        except (msgspec.MsgspecError, UnicodeDecodeError, ValueError) as error:
            raise FedpingError(
                f"{self.documents.where}/{key}, the open request to the helper, cannot be read ({error}); it was "
                "damaged: restore it from a copy, or move it away, and the next round sends another, which the helper "
                "refuses if it has answered this one"
            ) from error
        here = (found.study, found.line, found.version, found.of)
        return found if here == (self.study, self.line, head.iteration, head.digest) else None


def _sealed(asked: HelperRequest) -> bytes:
    body = msgspec.msgpack.encode(asked)
    return sha256(body).digest() + body


def is_whole_request(data: bytes) -> bool:
    """Return whether the bytes of a request that is kept are those that were written."""
    return sha256(memoryview(data)[_DIGEST_BYTES:]).digest() == data[:_DIGEST_BYTES]


def _unsealed(data: bytes) -> HelperRequest:
    if not is_whole_request(data):
        raise ValueError("it is not what its digest says")
    found = msgspec.msgpack.decode(memoryview(data)[_DIGEST_BYTES:], type=HelperRequest)
    assert found.read  # or it is none
    return found
