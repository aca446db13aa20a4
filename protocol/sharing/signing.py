"""Signatures and identities: Ed25519 (RFC 8032), with words that keep a signature of one kind from being another's."""

from __future__ import annotations

from hashlib import sha256
from typing import TYPE_CHECKING, Annotated, TypeAlias

from msgspec import Meta

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

Identity: TypeAlias = Annotated[str, Meta(pattern=r"^[0-9a-f]{64}\Z")]
"""A server's public Ed25519 key, 32 bytes, in hexadecimal."""

SIGNATURE_BYTES = 64


def signing_key(secret: bytes, purpose: str) -> Ed25519PrivateKey:
    """Return the key that follows from a secret for a purpose: HMAC-SHA256(secret, purpose)."""
    import hmac

    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

    return Ed25519PrivateKey.from_private_bytes(hmac.digest(secret, purpose.encode(), "sha256"))


def identity_of(key: Ed25519PrivateKey) -> Identity:
    """Return the identity that a key signs for."""
    return key.public_key().public_bytes_raw().hex()


def signature(key: Ed25519PrivateKey, what: str, body: bytes) -> bytes:
    """Return the signature, 64 bytes, of a body that is ``what``, such as "fedping offer v1"."""
    return key.sign(_said(what, body))


def is_signed(identity: Identity, what: str, body: bytes, signed: bytes) -> bool:
    """Return whether a signature is that of an identity for a body that is ``what``."""
    from cryptography.exceptions import InvalidSignature
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

    try:
        Ed25519PublicKey.from_public_bytes(bytes.fromhex(identity)).verify(signed, _said(what, body))
    except (InvalidSignature, ValueError):
        return False
    return True


def _said(what: str, body: bytes) -> bytes:
    return what.encode() + b"\n" + sha256(body).digest()
