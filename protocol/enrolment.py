"""Hash enrolment: the assignment of clients to arms by a hash of their id, the same on every visit.

Enrolment needs no request to a server and stores nothing. Both sides and every language compute the same arm: SHA-256,
48 bits as a fraction that a double holds exactly, and shares added from left to right in doubles, or the ends of the
study's intervals. The server computes it as well, and rejects pings of other arms (:class:`Assignment`).

Hashes also select the clients of a staged version (:func:`staged_for`) and those that send updates
(:func:`is_selected`).
"""

from __future__ import annotations

import hashlib
import math
from bisect import bisect_right
from dataclasses import dataclass
from itertools import accumulate
from typing import TYPE_CHECKING

from fedping.protocol.study import Arm, PublicStudy, Study

if TYPE_CHECKING:
    from uuid import UUID

    import numpy as np
    from numpy.typing import NDArray

_BITS = 48
_BYTES = _BITS // 8
_WHOLE = float(2**_BITS)


def hash_fraction(study: str, client_id: str) -> float:
    """Return the position of a client in [0, 1): the first 48 bits of SHA-256(study, newline, client id) as a fraction.

    The study's name is part of the hash, so that the arms of two studies are independent of each other.
    """
    return _fraction(f"{study}\n{client_id}")


def staged_for(study: str, line: str, iteration: int, share: float, client_id: str) -> bool:
    """Return whether a client gets a staged version of a line; about this share of the clients does.

    It depends on the first 48 bits of SHA-256(study, newline, line, newline, number, newline, client id), so that each
    version goes to other clients first, independently of their arms.
    """
    return _fraction(f"{study}\n{line}\n{iteration}\n{client_id}") < share


def is_selected(study: str, line: str, iteration: int, share: float, client_id: str) -> bool:
    """Return whether a client sends an update of a version; about this share of the clients does.

    It depends on the first 48 bits of SHA-256("turn", newline, study, newline, line, newline, number, newline, client
    id), so that each version selects other clients. Clients compute it without a server, and the server can check it.
    """
    return _fraction(f"turn\n{study}\n{line}\n{iteration}\n{client_id}") < share


def _fraction(text: str) -> float:
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:_BYTES], "big") / _WHOLE


def enrol(study: Study | PublicStudy, client_id: str) -> Arm | None:
    """Return the arm of a client, or None if it is not enrolled."""
    position = hash_fraction(study.name, client_id)
    for place, end in arm_intervals(study):
        if position < end:
            return None if place < 0 else study.arms[place]
    return None


def arm_intervals(study: Study | PublicStudy) -> tuple[tuple[int, float], ...]:
    """Return the intervals of [0, 1) in order: the index of the interval's arm, -1 for none, and its end."""
    if not study.pieces:
        return tuple(enumerate(accumulate(arm.share for arm in study.arms)))
    places = {arm.name: place for place, arm in enumerate(study.arms)}
    return tuple((-1 if piece.arm is None else places[piece.arm], piece.end) for piece in study.pieces)


@dataclass(frozen=True, slots=True)
class Assignment:
    """The assignment of client ids to the arms of a study.

    Attributes:
        study: name of the study.
        arms: names of its arms.
        of: index of each interval's arm in ``arms``, -1 for none. The intervals cover [0, 1).
        ends: end of each interval, where the next one begins.
        limits: the ends as digests: the smallest digest beyond each.
    """

    study: str
    arms: tuple[str, ...]
    of: tuple[int, ...]
    ends: tuple[float, ...]
    limits: tuple[bytes, ...]

    def arm_of(self, client_id: UUID) -> str | None:
        """Return the name of a client's arm, in half the time of :func:`enrol`, because every ping needs it."""
        digest = hashlib.sha256(f"{self.study}\n{client_id}".encode()).digest()
        part = bisect_right(self.limits, digest)
        place = self.of[part] if part < len(self.of) else -1
        return self.arms[place] if place >= 0 else None

    def places(self, ids: NDArray[np.uint8]) -> NDArray[np.int16]:
        """Return the index of each client's arm in :attr:`arms`, shape (k,); -1 if it is not enrolled.

        Args:
            ids: client ids as bytes, shape (k, 16).
        """
        import numpy as np

        head, sha256 = f"{self.study}\n".encode(), hashlib.sha256
        digests = b"".join([sha256(head + text).digest() for text in uuid_texts(ids)])
        parts = np.frombuffer(digests, np.uint8).reshape(-1, sha256().digest_size)[:, :_BYTES].astype(np.float64)
        fractions = parts @ (256.0 ** np.arange(_BYTES - 1, -1, -1)) / _WHOLE  # exact: 48 bits
        intervals = np.searchsorted(np.array(self.ends), fractions, side="right")
        places: NDArray[np.int16] = np.array([*self.of, -1], np.int16)[intervals]
        return places


def hash_assignment(study: Study) -> Assignment | None:
    """Return the hash assignment of a study; None if clients are enrolled by other means."""
    if study.enrolment != "hash":
        return None
    of, ends = zip(*arm_intervals(study), strict=True)
    return Assignment(study.name, tuple(arm.name for arm in study.arms), of, ends, tuple(map(_beyond, ends)))


def _beyond(end: float) -> bytes:
    """Return the smallest digest whose fraction is at least the end; if none exists, a value above all digests."""
    least = math.ceil(end * _WHOLE)  # exact: the factor is a power of two
    return least.to_bytes(_BYTES, "big") if least < _WHOLE else b"\xff" * 33


def uuid_texts(ids: NDArray[np.uint8]) -> list[bytes]:
    """Return ids of shape (k, 16) as texts in lower case with hyphens."""
    import numpy as np

    digits = np.frombuffer(b"0123456789abcdef", np.uint8)
    written = np.full((len(ids), 36), ord("-"), np.uint8)
    places = np.delete(np.arange(36), [8, 13, 18, 23])
    written[:, places[0::2]] = digits[ids >> 4]
    written[:, places[1::2]] = digits[ids & 15]
    texts: list[bytes] = written.view("S36")[:, 0].tolist()
    return texts
