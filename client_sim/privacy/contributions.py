"""When a client contributes to a private line: how often, in which versions, and under which id.

A client counts its contributions and stops at its cap. Its id differs in every version, so that no server can link its
pings.
"""

from __future__ import annotations

import hmac
from itertools import count
from typing import TYPE_CHECKING, NamedTuple
from uuid import UUID

from fedping.protocol.enrolment import enrol

if TYPE_CHECKING:
    from fedping.protocol.study import PublicStudy, Study


class Contributed(NamedTuple):
    """What a client keeps of its contributions to a line, in whatever outlives it.

    Attributes:
        times: how many there were.
        last: to which version the last one was; -1 before the first.
    """

    times: int
    last: int

    def may(self, version: int, most: int | None) -> bool:
        """Return whether the client may contribute to a version, if it may at most so often: once to each, in order.

        A version's number is never used again, whatever is rolled back, so an older one is one that has had its turn.
        """
        return version > self.last and (most is None or self.times < most)

    def after(self, version: int) -> Contributed:
        """Return what is kept from the moment at which a contribution is decided, whether or not it arrives."""
        return Contributed(self.times + 1, version)


NEVER = Contributed(0, -1)


SECRET_BYTES = 32


def rotating_id(study: Study | PublicStudy, secret: bytes, line: str, version: int, arm: str) -> UUID:
    """Return the id of a client for one version of a line: a UUID of version 8 (RFC 9562).

    It is the first of HMAC-SHA256(secret, "study|line|version|counter") for counter = 0, 1, ... that belongs to the
    client's arm, so that ingest need not believe it. Which arm that is follows from an id that never travels.

    Args:
        study: what it takes part in.
        secret: the client's, random bytes that never leave it.
        line: the line's name.
        version: the one that the client holds.
        arm: the client's.
    """
    begun = hmac.new(secret, f"{study.name}|{line}|{version}|".encode(), "sha256")
    for counter in count():
        tried = begun.copy()
        tried.update(str(counter).encode())
        found = _uuid(tried.digest()[:16])
        dealt = enrol(study, str(found))
        if dealt is not None and dealt.name == arm:
            return found
    raise AssertionError


def has_turn(study: str, secret: bytes, line: str, version: int, share: float) -> bool:
    """Return whether a client has drawn a version to contribute to, as a ``share`` of all versions.

    It has if the first 48 bits of HMAC-SHA256(secret, "study|line|version|turn") are, as a fraction, below the share.
    """
    drawn = hmac.digest(secret, f"{study}|{line}|{version}|turn".encode(), "sha256")
    return int.from_bytes(drawn[:6], "big") / 2**48 < share


def _uuid(data: bytes) -> UUID:
    number = int.from_bytes(data, "big")
    number &= ~(0xF << 76) & ~(0x3 << 62)
    return UUID(int=number | 8 << 76 | 2 << 62)
