"""A client's contributions to a private line: their number, their versions, and their ids.

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
    """A client's contributions to a line, as it stores them.

    Attributes:
        times: number of contributions.
        last: version of the last contribution; -1 before the first.
    """

    times: int
    last: int

    def may(self, version: int, most: int | None) -> bool:
        """Return whether the client may contribute to a version: once to each, in order, and at most ``most`` times.

        A version's number is never reused, even after a rollback, so older versions are finished.
        """
        return version > self.last and (most is None or self.times < most)

    def after(self, version: int) -> Contributed:
        """Return the contributions after the client has decided on one more, whether or not it arrives."""
        return Contributed(self.times + 1, version)


NEVER = Contributed(0, -1)


SECRET_BYTES = 32


def rotating_id(study: Study | PublicStudy, secret: bytes, line: str, version: int, arm: str) -> UUID:
    """Return the id of a client for one version of a line: a UUID of version 8 (RFC 9562).

    It is the first of HMAC-SHA256(secret, "study|line|version|counter") for counter = 0, 1, ... that belongs to the
    client's arm, so that ingest can check the arm. The arm itself follows from an id that never leaves the client.

    Args:
        study: the study.
        secret: the client's random bytes, which never leave it.
        line: name of the line.
        version: version that the client holds.
        arm: name of the client's arm.
    """
    prefix = hmac.new(secret, f"{study.name}|{line}|{version}|".encode(), "sha256")
    for counter in count():
        code = prefix.copy()
        code.update(str(counter).encode())
        identifier = _uuid(code.digest()[:16])
        enrolled = enrol(study, str(identifier))
        if enrolled is not None and enrolled.name == arm:
            return identifier
    raise AssertionError


def has_turn(study: str, secret: bytes, line: str, version: int, share: float) -> bool:
    """Return whether a client is selected for a version, with probability ``share``.

    A client is selected if the first 48 bits of HMAC-SHA256(secret, "study|line|version|turn") are, as a fraction,
    below the share.
    """
    digest = hmac.digest(secret, f"{study}|{line}|{version}|turn".encode(), "sha256")
    return int.from_bytes(digest[:6], "big") / 2**48 < share


def _uuid(data: bytes) -> UUID:
    number = int.from_bytes(data, "big")
    number &= ~(0xF << 76) & ~(0x3 << 62)
    return UUID(int=number | 8 << 76 | 2 << 62)
