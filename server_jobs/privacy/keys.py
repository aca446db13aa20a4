"""The operator's secret key: it samples the clients of private rounds, and signs the leader's requests to helpers.

A sample protects its clients only if readers of the store and the pings don't know it. So it is derived from a key
that is stored elsewhere. With the same key, the sample is the same for every ping of a client, on every engine and in
every repetition of a round; it differs between versions and stores. Lineages contain only the key's SHA-256.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
from dataclasses import dataclass, field
from fractions import Fraction
from math import ceil
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from fedping.protocol.errors import FedpingError, InvalidSettings
from fedping.protocol.local_files import others_may_use, write_secret
from fedping.protocol.sharing.keys import Identity, identity_of, signing_key

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey


KEY_BYTES = 32


@dataclass(frozen=True, slots=True)
class Coins:
    """The secret sample of clients that count in one version of a line.

    Attributes:
        study, line, iteration: the version.
        digest: the version's digest in hexadecimal, which differs between stores even if the names are the same.
        share: the share of clients that count.
        key: the operator's key; never shown.
    """

    study: str
    line: str
    iteration: int
    digest: str
    share: float
    key: bytes = field(repr=False, compare=False)

    def counting(self, clients: NDArray[np.uint64]) -> NDArray[np.bool_]:
        """Return a mask, shape (k,), of the clients that count; ``clients`` has their ids, shape (k, 2).

        A client counts if the first 8 bytes of its encrypted id, big-endian, are less than ``share`` of 2^64. The
        cipher is AES-256, block by block, with a key for the version: HMAC-SHA256(key, "study|line|version|digest").
        Ids are distinct blocks, so the encrypted ids look random without the key.
        """
        from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes

        own = hmac.digest(self.key, f"{self.study}|{self.line}|{self.iteration}|{self.digest}".encode(), "sha256")
        encryptor = Cipher(algorithms.AES256(own), modes.ECB()).encryptor()
        encrypted = encryptor.update(np.ascontiguousarray(clients, "<u8").tobytes()) + encryptor.finalize()
        below = ceil(Fraction(self.share) * 2**64)
        mask: NDArray[np.bool_] = np.frombuffer(encrypted, ">u8")[::2] <= np.uint64(below - 1)
        return mask


def digest_of_key(key: bytes) -> str:
    """Return the digest of a key that a lineage records, in hexadecimal."""
    return hashlib.sha256(key).hexdigest()


def make_key(path: Path) -> None:
    """Write a new key to a file that only its owner can read.

    Raises:
        FedpingError: the file exists or can't be written.
    """
    try:
        write_secret(path, secrets.token_bytes(KEY_BYTES))
    except FileExistsError:
        raise FedpingError(
            f"{path} exists, and keys are never overwritten, because a line keeps the key of its first round. Use "
            "another name."
        ) from None
    except OSError as error:
        raise FedpingError(f"can't write a key to {path} ({error.strerror}). Use another file.") from error


def read_key(path: Path, *, apart_from: tuple[Path, ...] = ()) -> bytes:
    """Return the key in a file, 32 bytes.

    Args:
        path: the file.
        apart_from: folders that must not contain the key, because readers of the folders would know the sample.

    Raises:
        InvalidSettings: the file isn't a key, is in such a folder, or is readable by other users.
    """
    try:
        text, mode = path.read_text().strip(), path.stat().st_mode
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "it isn't text"
        raise InvalidSettings(
            f"can't read the privacy key {path} ({why}). Create one with 'fedping privacy key FILE'."
        ) from error
    if others_may_use(mode):
        raise InvalidSettings(
            f"users other than its owner can access the privacy key {path}. Remove the access with 'chmod 600 {path}'."
        )
    for folder in apart_from:
        if path.resolve().is_relative_to(folder.resolve()):
            raise InvalidSettings(
                f"the privacy key {path} is in {folder}, whose readers could then recognise sampled clients. Move the "
                "key to another folder."
            )
    try:
        key = bytes.fromhex(text)
    except ValueError:
        key = b""
    if len(key) != KEY_BYTES:
        raise InvalidSettings(
            f"{path} isn't a privacy key of {2 * KEY_BYTES} hexadecimal digits. Create one with 'fedping privacy key "
            "FILE'."
        )
    return key


PURPOSE = "fedping leader v1"


def leader_key(secret: bytes) -> Ed25519PrivateKey:
    """Return the key that signs requests, from the secret in a file of 'fedping privacy key'."""
    return signing_key(secret, PURPOSE)


def leader_identity(secret: bytes) -> Identity:
    """Return the identity by which helpers recognise the leader."""
    return identity_of(leader_key(secret))


def verify_key(secret: bytes, study: str, line: str, version: int) -> bytes:
    """Return the 32-byte key with which both servers check a version's proofs; clients don't know it."""
    return hmac.digest(secret, f"fedping verify v1|{study}|{line}|{version}".encode(), "sha256")
