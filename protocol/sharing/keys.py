"""Keys of the two servers: Ed25519 signatures (RFC 8032) and the sealing of shares by HPKE (RFC 9180).

A signature covers words that name the kind of document, so that it is not valid for another kind. Shares are sealed in
HPKE's base mode with HKDF-SHA256 and AES-128-GCM. The key encapsulation is X25519, or X25519 together with ML-KEM-768
(draft-ietf-hpke-pq) for pings that are kept for longer than X25519 may last. HPKE's ``info`` binds a share to its ping.
"""

from __future__ import annotations

from collections.abc import Callable
from hashlib import sha256
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeAlias

from msgspec import Meta

from fedping.protocol.errors import InvalidSettings

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey


Identity: TypeAlias = Annotated[str, Meta(pattern=r"^[0-9a-f]{64}\Z")]
"""A server's public Ed25519 key, 32 bytes, in hexadecimal."""

Seal: TypeAlias = Literal["x25519", "mlkem768-x25519"]
"""Method of sealing shares: X25519, or X25519 together with ML-KEM-768, which also resists quantum computers."""

SIGNATURE_BYTES = 64

OVERHEAD: dict[Seal, int] = {"x25519": 32 + 16, "mlkem768-x25519": 1088 + 32 + 16}
"""Number of bytes that sealing adds: the encapsulated key, and the tag of the cipher."""

_MLKEM_PUBLIC, _MLKEM_SEED = 1184, 64

Opener: TypeAlias = Callable[[bytes, bytes], bytes | None]
"""A function of (sealed bytes, info) that returns the original bytes; None if key or info differ."""
Sealer: TypeAlias = Callable[[bytes, bytes], bytes]
"""A function of (bytes, info) that returns the sealed bytes."""


def signing_key(secret: bytes, purpose: str) -> Ed25519PrivateKey:
    """Return the signing key for a purpose, derived from a secret: HMAC-SHA256(secret, purpose)."""
    import hmac

    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

    return Ed25519PrivateKey.from_private_bytes(hmac.digest(secret, purpose.encode(), "sha256"))


def identity_of(key: Ed25519PrivateKey) -> Identity:
    """Return the identity of a signing key: its public key."""
    return key.public_key().public_bytes_raw().hex()


def signature(key: Ed25519PrivateKey, what: str, body: bytes) -> bytes:
    """Return the signature, 64 bytes, of a body; ``what`` names its kind, such as "fedping offer v1"."""
    return key.sign(_said(what, body))


def is_signed(identity: Identity, what: str, body: bytes, signed: bytes) -> bool:
    """Return whether ``signed`` is an identity's signature of a body of the kind ``what``."""
    from cryptography.exceptions import InvalidSignature
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

    try:
        Ed25519PublicKey.from_public_bytes(bytes.fromhex(identity)).verify(signed, _said(what, body))
    except (InvalidSignature, ValueError):
        return False
    return True


def _said(what: str, body: bytes) -> bytes:
    return what.encode() + b"\n" + sha256(body).digest()


def new_private_key(seal: Seal) -> bytes:
    """Return a new private key from the operating system's randomness: 32 bytes, or 96 with ML-KEM."""
    import os

    return os.urandom(32 if seal == "x25519" else _MLKEM_SEED + 32)


def public_key(seal: Seal, private: bytes) -> bytes:
    """Return the public key of a private key: 32 bytes, or 1,216 with ML-KEM, whose key comes first."""
    from cryptography.hazmat.primitives.asymmetric.mlkem import MLKEM768PrivateKey
    from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

    classical = X25519PrivateKey.from_private_bytes(private[-32:]).public_key().public_bytes_raw()
    if seal == "x25519":
        return classical
    return MLKEM768PrivateKey.from_seed_bytes(private[:_MLKEM_SEED]).public_key().public_bytes_raw() + classical


def sealer(seal: Seal, public: bytes) -> Sealer:
    """Return a function that seals bytes so that only the owner of a public key can open them.

    Raises:
        InvalidSettings: the bytes aren't a public key of this kind.
    """
    from cryptography.hazmat.primitives.asymmetric.mlkem import MLKEM768PublicKey
    from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PublicKey
    from cryptography.hazmat.primitives.hpke import MLKEM768X25519PublicKey

    suite = _suite(seal)
    key: X25519PublicKey | MLKEM768X25519PublicKey | None = None
    fits = False
    try:
        classical = X25519PublicKey.from_public_bytes(public[-32:])
        if seal == "x25519" and len(public) == 32:
            key = classical
        elif seal != "x25519" and len(public) == _MLKEM_PUBLIC + 32:
            key = MLKEM768X25519PublicKey(MLKEM768PublicKey.from_public_bytes(public[:-32]), classical)
        fits = key is not None and bool(suite.encrypt(b"", key))  # refuses points that give away what is sealed
    except ValueError:
        pass
    if not fits:
        raise InvalidSettings(f"the helper's offer has a key of {len(public)} bytes that is none of '{seal}'")
    return lambda what, info: bytes(suite.encrypt(what, key, info=info))


def opener(seal: Seal, private: bytes) -> Opener:
    """Return a function that opens sealed bytes with a private key."""
    from cryptography.exceptions import InvalidTag
    from cryptography.hazmat.primitives.asymmetric.mlkem import MLKEM768PrivateKey
    from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
    from cryptography.hazmat.primitives.hpke import MLKEM768X25519PrivateKey

    suite, classical = _suite(seal), X25519PrivateKey.from_private_bytes(private[-32:])
    key: X25519PrivateKey | MLKEM768X25519PrivateKey = classical
    if seal != "x25519":
        key = MLKEM768X25519PrivateKey(MLKEM768PrivateKey.from_seed_bytes(private[:_MLKEM_SEED]), classical)

    def opened(sealed: bytes, info: bytes) -> bytes | None:
        try:
            return bytes(suite.decrypt(sealed, key, info=info))
        except (InvalidTag, ValueError):  # the sender chooses these bytes
            return None

    return opened


def _suite(seal: Seal) -> Any:
    from cryptography.hazmat.primitives.hpke import AEAD, KDF, KEM, Suite

    kem = KEM.X25519 if seal == "x25519" else KEM.MLKEM768_X25519
    return Suite(kem, KDF.HKDF_SHA256, AEAD.AES_128_GCM)
