"""Hash enrolment: which arm a client belongs to, decided by the client alone and the same on every visit.

No server is asked and nothing is stored. Both sides and every language compute the same arm: SHA-256, 48 bits as a
fraction that a double holds exactly, and shares added from left to right in doubles, unless the study has pieces, whose
ends are given. So the server can compute it too,
and need not believe a ping that names another arm (:class:`Dealt`).

In the same way a client decides whether it gets a version before the others do (:func:`staged_for`), and whether it
sends an update of one (:func:`takes_part`).
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
    """Return where a client falls in [0, 1): the first 48 bits of SHA-256(study, newline, client id) as a fraction.

    The study's name is part of the hash, so that the arms of two studies are independent of each other.
    """
    return _fraction(f"{study}\n{client_id}")


def staged_for(study: str, line: str, iteration: int, share: float, client_id: str) -> bool:
    """Return whether a client is among those who get a staged version of a line: as a rule that share of them.

    By the first 48 bits of SHA-256(study, newline, line, newline, number, newline, client id). So each version goes to
    others first, and who they are has nothing to do with their arm.
    """
    return _fraction(f"{study}\n{line}\n{iteration}\n{client_id}") < share


def is_selected(study: str, line: str, iteration: int, share: float, client_id: str) -> bool:
    """Return whether a client has drawn a version to send an update of: as a rule that share of them has.

    By the first 48 bits of SHA-256("turn", newline, study, newline, line, newline, number, newline, client id). So it
    is others with each version, nobody has to be asked, and the server can tell whose updates count.
    """
    return _fraction(f"turn\n{study}\n{line}\n{iteration}\n{client_id}") < share


def _fraction(text: str) -> float:
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:_BYTES], "big") / _WHOLE


def enrol(study: Study | PublicStudy, client_id: str) -> Arm | None:
    """Return the arm of a client, or None if it falls into no part of any arm and is not enrolled."""
    where = hash_fraction(study.name, client_id)
    for place, end in arm_intervals(study):
        if where < end:
            return None if place < 0 else study.arms[place]
    return None


def arm_intervals(study: Study | PublicStudy) -> tuple[tuple[int, float], ...]:
    """Return the parts of [0, 1) in their order: the place of its arm among all, -1 for none, and where it ends."""
    if not study.pieces:
        return tuple(enumerate(accumulate(arm.share for arm in study.arms)))
    places = {arm.name: place for place, arm in enumerate(study.arms)}
    return tuple((-1 if piece.arm is None else places[piece.arm], piece.end) for piece in study.pieces)


@dataclass(frozen=True, slots=True)
class Assignment:
    """The arms of a study as ids are dealt to them.

    Attributes:
        study: the study's name.
        arms: the names of its arms.
        of: of which of the arms each part of [0, 1) is, -1 for none.
        ends: where each part ends, at which the next begins.
        limits: the same as the least digests beyond each end.
    """

    study: str
    arms: tuple[str, ...]
    of: tuple[int, ...]
    ends: tuple[float, ...]
    limits: tuple[bytes, ...]

    def arm_of(self, client_id: UUID) -> str | None:
        """Return the name of the arm of a client, as :func:`enrol` does in twice the time: every ping is asked this."""
        digest = hashlib.sha256(f"{self.study}\n{client_id}".encode()).digest()
        part = bisect_right(self.limits, digest)
        place = self.of[part] if part < len(self.of) else -1
        return self.arms[place] if place >= 0 else None

    def places(self, ids: NDArray[np.uint8]) -> NDArray[np.int16]:
        """Return the place of the arm of each client among :attr:`arms`, shape (k,); -1 if it is not enrolled.

        Args:
            ids: client ids as bytes, shape (k, 16).
        """
        import numpy as np

        head, sha256 = f"{self.study}\n".encode(), hashlib.sha256
        digests = b"".join([sha256(head + text).digest() for text in uuid_texts(ids)])
        parts = np.frombuffer(digests, np.uint8).reshape(-1, sha256().digest_size)[:, :_BYTES].astype(np.float64)
        fractions = parts @ (256.0 ** np.arange(_BYTES - 1, -1, -1)) / _WHOLE  # exact: 48 bits
        found = np.searchsorted(np.array(self.ends), fractions, side="right")
        places: NDArray[np.int16] = np.array([*self.of, -1], np.int16)[found]
        return places


def hash_assignment(study: Study) -> Assignment | None:
    """Return how ids are dealt to the arms of a study; None if that is not what decides, so that pings are believed."""
    if study.enrolment != "hash":
        return None
    of, ends = zip(*arm_intervals(study), strict=True)
    return Assignment(study.name, tuple(arm.name for arm in study.arms), of, ends, tuple(map(_beyond, ends)))


def _beyond(end: float) -> bytes:
    """Return the least digest whose fraction is not below the end; longer and above all digests if there is none."""
    least = math.ceil(end * _WHOLE)  # exact: the factor is a power of two
    return least.to_bytes(_BYTES, "big") if least < _WHOLE else b"\xff" * 33


def uuid_texts(ids: NDArray[np.uint8]) -> list[bytes]:
    """Return ids of shape (k, 16) as they are written: in lower case, with hyphens."""
    import numpy as np

    digits = np.frombuffer(b"0123456789abcdef", np.uint8)
    written = np.full((len(ids), 36), ord("-"), np.uint8)
    places = np.delete(np.arange(36), [8, 13, 18, 23])
    written[:, places[0::2]] = digits[ids >> 4]
    written[:, places[1::2]] = digits[ids & 15]
    texts: list[bytes] = written.view("S36")[:, 0].tolist()
    return texts
