"""Tickets: the product's word that a client is one of its users, without which anybody can invent clients.

The product, which knows its users, gives each client a ticket for its id when it enrols. Ingest verifies it and keeps
it nowhere. A ticket is ``<key>.<expiry>.<mac>``: the name of a key, seconds since 1970, and in base64url the
HMAC-SHA256 (RFC 2104) of study, client id and both. Whoever makes tickets sees for whom, and so could link a client id
to an account; docs/operators.md says how not to.

A file of keys has one a line, a name and 64 hexadecimal digits. The first one makes tickets, all of them verify, so
that a key is replaced without a ticket being lost. It belongs to the product and to ingest, never into the store, which
clients read.
"""

from __future__ import annotations

import base64
import hmac
import re
import secrets
from dataclasses import dataclass
from pathlib import Path
from uuid import UUID

from fedping.protocol.errors import FedpingError

LONGEST = 128
PATTERN = r"^[A-Za-z0-9_.-]*\Z"

_LINE = re.compile(r"([A-Za-z0-9_-]{1,32}) ([0-9a-f]{64})")
MOST_DIGITS = 12
"""Of an expiry."""


@dataclass(frozen=True)
class TicketKey:
    """A key and its name, which tickets tell."""

    name: str
    secret: bytes


def ticket(key: TicketKey, study: str, client_id: UUID, expires: int) -> str:
    """Return the ticket of a client for a study, good until ``expires`` (seconds since 1970)."""
    return f"{key.name}.{expires}.{_mac(key, study, client_id, str(expires)).decode()}"


def _mac(key: TicketKey, study: str, client_id: UUID, expires: str) -> bytes:
    said = f"fedping ticket\n{key.name}\n{study}\n{client_id}\n{expires}".encode()
    return base64.urlsafe_b64encode(hmac.digest(key.secret, said, "sha256"))[:-1]  # without its padding


def validate_ticket(keys: dict[str, TicketKey], study: str, client_id: UUID, given: str, now: float) -> str | None:
    """Return why a ticket is not good: ``forged`` (or another client's, or of a key that is gone) or ``expired``.

    Args:
        keys: those that verify, by name.
        study: the study that the ping is sent to.
        client_id: whose ping it is.
        given: the ticket.
        now: in seconds since 1970.
    """
    name, _, rest = given.partition(".")
    expires, _, mac = rest.partition(".")
    key = keys.get(name)
    if key is None or not (expires.isascii() and expires.isdigit() and len(expires) <= MOST_DIGITS):
        return "forged"
    if not hmac.compare_digest(mac.encode(errors="replace"), _mac(key, study, client_id, expires)):
        return "forged"
    return "expired" if int(expires) < now else None


def read_keys(path: Path) -> tuple[TicketKey, ...]:
    """Return the keys of a file, the one that makes tickets first.

    Raises:
        FedpingError: it cannot be read, or is no file of keys.
    """
    try:
        lines = path.read_text(encoding="ascii").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is no ASCII text"
        raise FedpingError(
            f"cannot read the ticket keys {path}: {why}; 'fedping study ticket-key' makes some"
        ) from error
    found = [_LINE.fullmatch(line) for line in lines if line]
    keys = tuple(TicketKey(each[1], bytes.fromhex(each[2])) for each in found if each)
    if len(keys) < len(found) or not keys or len({key.name for key in keys}) < len(keys):
        raise FedpingError(
            f"{path} is no file of ticket keys, which has a name and 64 hexadecimal digits a line, and no name twice; "
            "'fedping study ticket-key' makes one"
        )
    return keys


def with_new_key(keys: tuple[TicketKey, ...], name: str) -> tuple[TicketKey, ...]:
    """Return a new key, which makes tickets from now on, and the one before it, whose tickets stay good.

    If that one has the name already, the new one gets a longer one.
    """
    if name in {key.name for key in keys[:1]}:
        name = f"{name}-{secrets.token_hex(2)}"
    return TicketKey(name, secrets.token_bytes(32)), *keys[:1]


def keys_text(keys: tuple[TicketKey, ...]) -> str:
    """Return the text of a file of keys."""
    return "".join(f"{key.name} {key.secret.hex()}\n" for key in keys)
