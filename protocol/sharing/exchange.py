"""The exchange between the two servers: the leader's request for the sums of a version, and the helper's answer.

Both are bytes signed by the sender, so they can be sent over HTTP or as files. For every client that counts, the
request has the document id and the helper's sealed share. The answer has the sum of the helper's shares by arm, with
noise, and lists the clients whose shares could not be used, so that the leader leaves out its shares of the same
clients. A version has one answer: the same request gets the same bytes again, and other requests are refused.
"""

from __future__ import annotations

from hashlib import sha256
from typing import TYPE_CHECKING, Annotated, Literal, TypeVar

from msgspec import DecodeError, Meta, Struct, ValidationError, msgpack

from fedping.protocol.errors import FedpingError
from fedping.protocol.sharing.keys import SIGNATURE_BYTES, Identity, is_signed, signature
from fedping.protocol.weights import Name

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

DOCUMENT_BYTES = 16

MOST_CLIENTS = 1_000_000
"""Maximum clients of all arms in one request, which then has 100 MB if shares are sealed by X25519."""

Digest = Annotated[str, Meta(pattern=r"^[0-9a-f]{64}\Z")]


class AskedArm(Struct, frozen=True, kw_only=True, array_like=True):
    """The k clients of an arm that count, in ascending order of document ids.

    Attributes:
        arm: the arm's name.
        documents: ids of their pings, 16 k bytes.
        offers: ids of the offers that the clients sealed for, 8 k bytes.
        sealed: their sealed shares for the helper, all of the same length.
        public: the public part of each proof, which both servers read, all of the same length; empty without proofs.
        prepared: the leader's result for its part of each proof, all of the same length; empty without proofs.
    """

    arm: Name
    documents: bytes
    offers: bytes
    sealed: bytes
    public: bytes = b""
    prepared: bytes = b""

    @property
    def clients(self) -> int:
        """The number of clients."""
        return len(self.documents) // DOCUMENT_BYTES


class Request(Struct, frozen=True, kw_only=True):
    """A leader's request for the sums of the helper's shares of the listed clients.

    ``made`` is the request's time, ISO 8601 in UTC. ``verify_key`` is the secret with which both servers verify proofs,
    32 bytes drawn for this request; empty without proofs.
    """

    study: Name
    line: Name
    version: Annotated[int, Meta(ge=0)]
    arms: tuple[AskedArm, ...]
    made: str
    verify_key: bytes = b""
    format: Literal[1] = 1


class AnsweredArm(Struct, frozen=True, kw_only=True, array_like=True):
    """The sum of the helper's shares for an arm, noise included, and the clients that are not in the sum.

    ``total`` has d numbers of 64 bits, little-endian; ``refused`` has these clients' positions in the request,
    ascending.
    """

    arm: Name
    total: bytes
    refused: tuple[int, ...] = ()


class Answer(Struct, frozen=True, kw_only=True):
    """A helper's answer to the request with the digest ``request``."""

    study: Name
    line: Name
    version: int
    request: Digest
    arms: tuple[AnsweredArm, ...]
    made: str
    format: Literal[1] = 1


Reason = Literal[
    "unreadable",
    "unknown",
    "forged",
    "other_terms",
    "too_few",
    "too_many",
    "too_old",
    "from_the_future",
    "answered",
    "repeated",
    "other_weights",
    "storage",
]
"""Reasons for which a helper refuses a request.

After ``answered`` and ``other_weights``, no other request for the version can succeed; after other reasons, one may.
"""


class Refusal(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A helper's refusal: a reason for programs, and a sentence for people.

    ``request`` is the digest of the refused request, so that a stray refusal in a file is not taken as the answer to
    another request; None if the request was not read. If a refusal makes a leader give up a request (:data:`SIGNED`),
    the helper signs it: ``signature``, in hexadecimal, covers reason and digest.
    """

    refused: Reason
    why: str
    request: Digest | None = None
    signature: Annotated[str, Meta(pattern=r"^[0-9a-f]{128}\Z")] | None = None


SIGNED: frozenset[Reason] = frozenset(
    {"too_few", "too_old", "from_the_future", "repeated", "answered", "other_weights"}
)
"""Reasons of refusals that a helper signs; when it finds them, it has verified that the request is the leader's."""

_REFUSED_AS = "fedping refusal v1"


class Refused(FedpingError):
    """A helper refuses a request, or another party claims so."""

    def __init__(self, reason: Reason, why: str, signature: str | None = None) -> None:
        super().__init__(why)
        self.reason: Reason = reason
        self.signature = signature

    def sign(self, request: Digest, key: Ed25519PrivateKey) -> None:
        """Sign the refusal as the helper for the request with this digest."""
        self.signature = signature(key, _REFUSED_AS, self._said(request)).hex()

    def is_from(self, helper: Identity, request: Digest) -> bool:
        """Return whether the helper has signed this refusal of the request with this digest."""
        given = bytes.fromhex(self.signature or "")
        return is_signed(helper, _REFUSED_AS, self._said(request), given)

    def refusal(self, request: Digest | None = None) -> Refusal:
        """Return the refusal as a document to send, for the request with this digest."""
        return Refusal(refused=self.reason, why=str(self), request=request, signature=self.signature)

    def _said(self, request: Digest) -> bytes:
        return f"{self.reason}|{request}".encode()


_Body = TypeVar("_Body", Request, Answer)
_SIGNED_AS: dict[type, str] = {Request: "fedping request v1", Answer: "fedping answer v1"}


def signed(document: Request | Answer, key: Ed25519PrivateKey) -> bytes:
    """Return the bytes to send: the signature, and then the document as MessagePack."""
    body = msgpack.encode(document)
    return signature(key, _SIGNED_AS[type(document)], body) + body


def digest_of_signed(data: bytes) -> str:
    """Return the identity of a received document: the SHA-256 of its signed bytes, in hexadecimal."""
    return sha256(memoryview(data)[SIGNATURE_BYTES:]).hexdigest()


def read_signed(data: bytes, kind: type[_Body]) -> _Body:
    """Return a received document without verifying its signature.

    Raises:
        ValueError: the bytes aren't a document of this kind.
    """
    try:
        return msgpack.decode(memoryview(data)[SIGNATURE_BYTES:], type=kind)
    except (DecodeError, ValidationError, UnicodeDecodeError, RecursionError) as error:
        raise ValueError(f"no {_SIGNED_AS[kind]}: {error}") from error


def is_from(data: bytes, kind: type[Request] | type[Answer], identity: Identity) -> bool:
    """Return whether this identity has signed a received document."""
    return is_signed(identity, _SIGNED_AS[kind], data[SIGNATURE_BYTES:], data[:SIGNATURE_BYTES])
