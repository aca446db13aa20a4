"""The team of a dashboard: readers, analysts and operators, identified by a token or by a proxy's header.

The team is one JSON file, which ``fedping dashboard team`` writes. It stores only the SHA-256 of each token: a token is
24 random bytes, which can't be guessed from its digest. The file is read again when it changes, so that a removal takes
effect at the next request.
"""

from __future__ import annotations

import fcntl
import hashlib
import hmac
import re
import secrets
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv6Address, ip_address, ip_network
from pathlib import Path
from typing import Annotated, Literal, TypeAlias, get_args

import msgspec
from msgspec import Meta, Struct
from msgspec.structs import replace

from fedping.protocol.errors import FedpingError, InvalidSettings
from fedping.protocol.formats import with_format, without_format
from fedping.protocol.local_files import FileStamp, file_stamp, replace_private

Role: TypeAlias = Literal["reader", "analyst", "operator"]

ROLES: tuple[Role, ...] = get_args(Role)
"""The roles in ascending order: each includes the permissions of the roles before it."""

MOST_MEMBERS = 1000

MOST_BYTES = 1 << 20

_NAME = re.compile(r"[\w.@+-](?:[\w .@+-]{0,78}[\w.@+-])?\Z")

_HEADER = re.compile(r"[A-Za-z][A-Za-z0-9]{2,39}\Z")

_TAKEN = frozenset(
    "accept authorization connection cookie date expect forwarded from host origin pragma range referer".split()  # noqa: SIM905
)
"""Names of headers without a hyphen that have another meaning."""


class Member(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A member of the team.

    Attributes:
        name: the name in the list of changes and in a proxy's header.
        role: the person's role, which determines the permitted changes.
        digest: SHA-256 of the token, hexadecimal; empty for a person who is identified only by the proxy.
        since: when the entry was made, ISO 8601 in UTC.
        by: the user who made the entry.
    """

    name: str
    role: Role
    digest: Annotated[str, Meta(pattern=r"^([0-9a-f]{64})?\Z")] = ""
    since: str = ""
    by: str = ""


class Proxy(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A proxy that authenticates people and sends their names in a header.

    Attributes:
        header: the name of the header, which has only letters and digits: a server can't distinguish ``Remote-User``
            from ``Remote_User``, which a visitor may send through the proxy.
        addresses: addresses or networks that the proxy connects from; the header is ignored from all others.
        others: the role of people who are not in the team; None refuses them.
    """

    header: str
    addresses: Annotated[tuple[str, ...], Meta(min_length=1, max_length=100)]
    others: Role | None = None


class Team(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The people who may use a dashboard, and the proxy whose header is trusted, if any."""

    members: Annotated[tuple[Member, ...], Meta(max_length=MOST_MEMBERS)] = ()
    proxy: Proxy | None = None

    def member(self, name: str) -> Member | None:
        """Return the member with a name; None if there is no such member."""
        return next((each for each in self.members if each.name == name), None)

    def by_token(self, token: str) -> Member | None:
        """Return the member with a token; all tokens are compared, each in constant time."""
        given, found = token_digest(token), None
        for each in self.members:
            if hmac.compare_digest(given, each.digest):
                found = each
        return found

    def by_mark(self, mark: str) -> Member | None:
        """Return the member with a cookie's mark."""
        given, found = mark.encode(), None
        for each in self.members:
            if each.digest and hmac.compare_digest(given, mark_of(each).encode()):
                found = each
        return found

    def trusts(self, address: str | None) -> bool:
        """Return whether an address belongs to the trusted proxy."""
        if self.proxy is None or address is None:
            return False
        try:
            caller = _plain(address)
        except ValueError:
            return False
        return any(caller in ip_network(each, strict=False) for each in self.proxy.addresses)


def mark_of(member: Member) -> str:
    """Return the contents of a member's cookie, which becomes invalid if the token or the name changes."""
    return hashlib.sha256(f"fedping dashboard member:{member.name}:{member.digest}".encode()).hexdigest()


def new_token() -> str:
    """Return an unguessable token."""
    return secrets.token_urlsafe(24)


def token_digest(token: str) -> str:
    """Return a token's digest, which the team's file stores."""
    return hashlib.sha256(token.encode()).hexdigest()


def _plain(address: str) -> IPv4Address | IPv6Address:
    """Return an address; an IPv4 address in IPv6 notation becomes an IPv4 address."""
    found = ip_address(address.partition("%")[0])
    return (found.ipv4_mapped or found) if isinstance(found, IPv6Address) else found


def is_loopback(proxy: Proxy) -> bool:
    """Return whether every program on this machine can pose as the proxy."""
    return any(ip_network(each, strict=False)[0].is_loopback for each in proxy.addresses)


def checked_name(name: str) -> str:
    """Return a person's name, if it is valid.

    Raises:
        InvalidSettings: the name is too long, or has characters other than letters, digits, spaces and ``. @ + - _``.
    """
    if not _NAME.match(name):
        raise InvalidSettings(
            f"{name[:80]!r} is not a name: give up to 80 letters, digits, spaces and any of . @ + - _, without a space "
            "at either end"
        )
    return name


def checked_proxy(proxy: Proxy) -> Proxy:
    """Return a proxy's settings, if they are valid.

    Raises:
        InvalidSettings: the header can't be trusted, or an address is invalid.
    """
    if not _HEADER.match(proxy.header) or proxy.header.lower() in _TAKEN:
        raise InvalidSettings(
            f"the header {proxy.header[:40]!r} can't identify a person: give an otherwise unused one of 3 to 40 "
            "letters and digits, such as RemoteUser. Visitors could pass Remote-User through the proxy in another "
            "spelling, Remote_User"
        )
    for each in proxy.addresses:
        try:
            network = ip_network(each, strict=False)
        except ValueError as error:
            raise InvalidSettings(
                f"{each[:80]!r} is not an address: give the address that the proxy connects from, such as 10.0.0.5, "
                "or its network, such as 10.0.0.0/24"
            ) from error
        if network.prefixlen == 0:
            raise InvalidSettings(
                f"{each} includes all addresses, so everyone could send the header; give the proxy's address"
            )
    return proxy


def read_team(file: Path) -> Team:
    """Return the team in a file.

    Raises:
        InvalidSettings: the file can't be read, has no valid team, or every user may write it.
    """
    how = "create it with 'fedping dashboard team add NAME --role operator', or correct --team"
    try:
        with file.open("rb") as source:
            data = source.read(MOST_BYTES + 1)
    except OSError as error:
        raise InvalidSettings(
            f"the team's file {file} can't be read: {(error.strerror or '').lower()}; {how}"
        ) from error
    _check_owner_writes(file)
    try:
        if len(data) > MOST_BYTES:
            raise FedpingError(f"it has more than {MOST_BYTES:,} bytes")
        team = msgspec.json.decode(without_format(data, str(file)), type=Team)
        for each in team.members:
            checked_name(each.name)
        names = [each.name for each in team.members]
        digests = [each.digest for each in team.members if each.digest]
        if len(set(names)) < len(names) or len(set(digests)) < len(digests):
            raise FedpingError("two members have one name or one token")
        if team.proxy is not None:
            checked_proxy(team.proxy)
    except (FedpingError, msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise InvalidSettings(
            f"the team's file {file} can't be used: {error}; correct it, or restore a copy"
        ) from error
    return team


def _check_owner_writes(file: Path) -> None:
    """Check that not everyone can write the team's file.

    Raises:
        InvalidSettings: every user of the machine can write it.
    """
    with suppress(OSError):  # the reader of the file reports it
        if file.stat().st_mode & stat.S_IWOTH:
            raise InvalidSettings(f"every user of this machine can write the team's file {file}; run chmod 600 {file}")


@contextmanager
def changing(file: Path) -> Iterator[Callable[[Team], None]]:
    """Yield a function that writes the team's file; a lock admits one process at a time.

    Raises:
        InvalidSettings: the file can't be written.
    """
    lock = file.with_name(f".{file.name}.lock")
    try:
        with lock.open("w") as held:
            fcntl.flock(held, fcntl.LOCK_EX)
            yield lambda team: replace_private(
                file, with_format(msgspec.json.format(msgspec.json.encode(team))) + b"\n"
            )
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
        raise InvalidSettings(f"the team's file {file} can't be written: {reason}; correct --team") from error


def with_member(team: Team, member: Member) -> Team:
    """Return the team with one more member.

    Raises:
        InvalidSettings: a member has the name already, or there are too many members.
    """
    if team.member(checked_name(member.name)) is not None:
        raise InvalidSettings(
            f"the team already has {member.name!r}; change it with 'fedping dashboard team change', or give another "
            "name"
        )
    if len(team.members) >= MOST_MEMBERS:
        raise InvalidSettings(f"a team has at most {MOST_MEMBERS:,} members; remove some first")
    return replace(team, members=(*team.members, member))


def without_member(team: Team, name: str) -> Team:
    """Return the team without a member.

    Raises:
        InvalidSettings: no member has the name.
    """
    known_member(team, name)
    return replace(team, members=tuple(each for each in team.members if each.name != name))


def known_member(team: Team, name: str) -> Member:
    """Return the member with a name.

    Raises:
        InvalidSettings: no member has the name.
    """
    found = team.member(name)
    if found is None:
        there = ", ".join(sorted(each.name for each in team.members)[:20]) or "nobody yet"
        raise InvalidSettings(f"{name[:80]!r} is not on the team; it has {there}")
    return found


@dataclass
class TeamFile:
    """The team in a file, read again whenever the file has changed."""

    path: Path
    _known: tuple[FileStamp, Team] | None = None

    def now(self) -> Team:
        """Return the team.

        Raises:
            InvalidSettings: see :func:`read_team`.
        """
        _check_owner_writes(self.path)  # a stamp doesn't show it
        stamp = file_stamp(self.path)
        if self._known is None or self._known[0] != stamp:
            self._known = stamp, read_team(self.path)
        return self._known[1]
