"""The leader's identity: what its requests to helpers are signed with, which follows from its privacy key."""

from __future__ import annotations

import hmac
from typing import TYPE_CHECKING

from fedping.protocol.sharing.keys import Identity, identity_of, signing_key

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

PURPOSE = "fedping leader v1"


def leader_key(secret: bytes) -> Ed25519PrivateKey:
    """Return the key that requests are signed with, of the secret in a file of 'fedping privacy key'."""
    return signing_key(secret, PURPOSE)


def leader_identity(secret: bytes) -> Identity:
    """Return the identity by which helpers know who asks."""
    return identity_of(leader_key(secret))


def verify_key(secret: bytes, study: str, line: str, version: int) -> bytes:
    """Return the key that both servers look at the proofs of a version with, 32 bytes, which no client knows."""
    return hmac.digest(secret, f"fedping verify v1|{study}|{line}|{version}".encode(), "sha256")
