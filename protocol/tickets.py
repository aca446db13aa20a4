"""Tickets: MACs over client ids, issued by the product, so that attackers can't invent clients.

The product, which knows its users, gives each client a ticket for its id at enrolment. Ingest verifies tickets and
stores none. A ticket is ``<key>.<expiry>.<mac>``: the name of a key, seconds since 1970, and in base64url the
HMAC-SHA256 (RFC 2104) of study, client id, key name and expiry. The issuer of tickets could link client ids to
accounts; docs/operators.md describes how to avoid that.

A file of keys has one key per line, a name and 64 hexadecimal digits. The first key issues tickets, and all keys verify
them, so that a key can be replaced while its tickets stay valid. Only the product and ingest may have the file; it must
not be in the store, which clients read.
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
"""Maximum digits of a ticket's expiry."""


@dataclass(frozen=True)
class TicketKey:
    """A key and its name, which is part of its tickets."""

    name: str
    secret: bytes


def ticket(key: TicketKey, study: str, client_id: UUID, expires: int) -> str:
    """Return the ticket of a client for a study, valid until ``expires`` (seconds since 1970)."""
    return f"{key.name}.{expires}.{_mac(key, study, client_id, str(expires)).decode()}"


def _mac(key: TicketKey, study: str, client_id: UUID, expires: str) -> bytes:
    message = f"fedping ticket\n{key.name}\n{study}\n{client_id}\n{expires}".encode()
    return base64.urlsafe_b64encode(hmac.digest(key.secret, message, "sha256"))[:-1]  # without its padding


def validate_ticket(keys: dict[str, TicketKey], study: str, client_id: UUID, given: str, now: float) -> str | None:
    """Return ``forged`` (also for another client's ticket or a removed key) or ``expired``; None for a valid ticket.

    Args:
        keys: the verifying keys, by name.
        study: study of the ping.
        client_id: client id of the ping.
        given: the ticket.
        now: current time, in seconds since 1970.
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
    """Return the keys of a file, the issuing key first.

    Raises:
        FedpingError: the file cannot be read, or is not a file of keys.
    """
    try:
        lines = path.read_text(encoding="ascii").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is no ASCII text"
        raise FedpingError(
            f"cannot read the ticket keys {path}: {why}; 'fedping study ticket-key' makes some"
        ) from error
    matches = [_LINE.fullmatch(line) for line in lines if line]
    keys = tuple(TicketKey(match[1], bytes.fromhex(match[2])) for match in matches if match)
    if len(keys) < len(matches) or not keys or len({key.name for key in keys}) < len(keys):
        raise FedpingError(
            f"{path} is no file of ticket keys, which has a name and 64 hexadecimal digits a line, and no name twice; "
            "'fedping study ticket-key' makes one"
        )
    return keys


def with_new_key(keys: tuple[TicketKey, ...], name: str) -> tuple[TicketKey, ...]:
    """Return a new issuing key and the previous issuing key, whose tickets stay valid.

    If the previous key has the same name, the new key's name gets a suffix.
    """
    if name in {key.name for key in keys[:1]}:
        name = f"{name}-{secrets.token_hex(2)}"
    return TicketKey(name, secrets.token_bytes(32)), *keys[:1]


def keys_text(keys: tuple[TicketKey, ...]) -> str:
    """Return the text of a file of keys."""
    return "".join(f"{key.name} {key.secret.hex()}\n" for key in keys)
