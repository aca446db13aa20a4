"""The clients of a fleet: their ids, arms and versions, and misbehaviour like that of real clients."""

from __future__ import annotations

from dataclasses import dataclass, fields
from uuid import UUID

import numpy as np
from numpy.typing import NDArray

from fedping.client_sim.client import NOT_ENROLLED, arm_position
from fedping.protocol.draws import Keys, bits, child_keys, root_key, uniforms
from fedping.protocol.errors import InvalidSettings
from fedping.protocol.ping import NO_VERSION
from fedping.protocol.study import Arm, PublicStudy

_IDS, _ITERATIONS, _INVENTED, _CLIENTS = range(4)


@dataclass(frozen=True)
class Attendance:
    """The clients of one iteration: positions of those that take part, and of those that fetch."""

    present: NDArray[np.int64]
    fetching: NDArray[np.int64]
    late: int
    silent: int


class Roster:
    """N clients. Their ids follow from the seed, their arms from their ids.

    Attributes:
        ids: the N client ids.
        arm: the position of each client's arm in the study, -1 if it is not enrolled, shape (N,).
        version: the version that each client holds, -1 before its first fetch, shape (N,).
    """

    def __init__(self, study: PublicStudy, clients: int, seed: int) -> None:
        self._root, self._study = root_key(seed), study
        self.ids = uuids(child_keys(child_keys(self._root, _IDS), np.arange(clients)))
        self.arms = study.arms
        self.arm = np.array([arm_position(study, client_id) for client_id in self.ids], np.int64)
        self.version = np.full(clients, NO_VERSION, np.int64)
        self._silent_until = np.zeros(clients, np.int64)

    def invent(self, count: int) -> NDArray[np.int64]:
        """Add clients whose ids were chosen to fall into arms that submit; return their positions.

        Raises:
            InvalidSettings: the shares of these arms are too small.
        """
        chosen: list[tuple[UUID, int]] = []
        submits = {position for position, arm in enumerate(self.arms) if arm.submits}
        tried = 0
        while len(chosen) < count:
            if tried > 10_000 * count:
                raise InvalidSettings("the arms that submit are too small for ids to be invented for them")
            ids = uuids(child_keys(child_keys(self._root, _INVENTED), np.arange(tried, tried + count)))
            arms = [arm_position(self._study, one) for one in ids]
            chosen += [each for each in zip(ids, arms, strict=True) if each[1] in submits]
            tried += count
        first = len(self.ids)
        self.ids += [one for one, _ in chosen[:count]]
        self.arm = np.append(self.arm, np.array([arm for _, arm in chosen[:count]], np.int64))
        self.version = np.append(self.version, np.full(count, NO_VERSION, np.int64))
        self._silent_until = np.append(self._silent_until, np.zeros(count, np.int64))
        return np.arange(first, first + count)

    def arm_of(self, client: int) -> Arm:
        """Return the arm of an enrolled client."""
        return self.arms[int(self.arm[client])]

    @property
    def roots(self) -> Keys:
        """The key of each client that is the same in every iteration, shape (N,)."""
        return child_keys(child_keys(self._root, _CLIENTS), np.arange(len(self.ids)))

    def keys(self, iteration: int) -> Keys:
        """Return the key of each client in an iteration, shape (N,)."""
        return child_keys(child_keys(child_keys(self._root, _ITERATIONS), iteration), np.arange(len(self.ids)))

    def attend(self, iteration: int, behaviour: Behaviour) -> Attendance:
        """Return the clients that take part in an iteration; call this once per iteration, in order."""
        mood = moods(behaviour, self.keys(iteration))
        enrolled = self.arm != NOT_ENROLLED
        returning = (self._silent_until == iteration) & (iteration > 0)
        leaving = enrolled & mood.goes_silent & (self._silent_until <= iteration)
        self._silent_until[leaving] = iteration + behaviour.silent_for
        present = enrolled & (self._silent_until <= iteration)
        follows = np.array([arm.line is not None for arm in self.arms])[self.arm]
        wants = present & follows
        late = wants & (mood.fetches_late | (returning & mood.returns_stale))
        return Attendance(
            np.flatnonzero(present),
            np.flatnonzero(wants & ~late),
            int(late.sum()),
            int((enrolled & ~present).sum()),
        )


def uuids(keys: Keys) -> list[UUID]:
    """Return a version 4 UUID for each key."""
    halves = bits(keys, 2)
    high = (halves[:, 0] & np.uint64(0xFFFFFFFFFFFF0FFF)) | np.uint64(0x4000)
    low = (halves[:, 1] & np.uint64(0x3FFFFFFFFFFFFFFF)) | np.uint64(0x8000000000000000)
    return [UUID(int=(a << 64) | b) for a, b in zip(high.tolist(), low.tolist(), strict=True)]


_GO_SILENT, _FETCH_LATE, _RETURN_STALE, _DUPLICATE = range(4)


@dataclass(frozen=True, kw_only=True)
class Behaviour:
    """Probabilities of clients' misbehaviour, each 0 by default.

    Attributes:
        fetch_late: a client doesn't fetch in an iteration and keeps its version.
        duplicate: a client sends a ping a second time after it was accepted, as if the answer had been lost.
        go_silent: a client becomes silent in an iteration: it doesn't fetch, search or send.
        silent_for: number of iterations without pings.
        return_stale: a returning client searches before it fetches, with the version that it held.

    Raises:
        InvalidSettings: a probability outside 0 to 1, or a silence of less than one iteration.
    """

    fetch_late: float = 0.0
    duplicate: float = 0.0
    go_silent: float = 0.0
    silent_for: int = 3
    return_stale: float = 0.0

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if field.name != "silent_for" and not 0 <= value <= 1:
                raise InvalidSettings(f"the probability {field.name} is {value:g}; it has to be between 0 and 1")
        if self.silent_for < 1:
            raise InvalidSettings(f"clients cannot be silent for {self.silent_for} iterations; give at least 1")


@dataclass(frozen=True)
class Moods:
    """The misbehaviour of each client in one iteration; each of shape (N,)."""

    goes_silent: NDArray[np.bool_]
    fetches_late: NDArray[np.bool_]
    returns_stale: NDArray[np.bool_]


def moods(behaviour: Behaviour, keys: Keys) -> Moods:
    """Draw the misbehaviour of clients, from their keys in the iteration."""
    return Moods(
        _happens(keys, _GO_SILENT, behaviour.go_silent),
        _happens(keys, _FETCH_LATE, behaviour.fetch_late),
        _happens(keys, _RETURN_STALE, behaviour.return_stale),
    )


def sent_twice(behaviour: Behaviour, keys: Keys) -> NDArray[np.bool_]:
    """Draw whether each ping is sent twice, from its key, shape (S,)."""
    return _happens(keys, _DUPLICATE, behaviour.duplicate)


def _happens(keys: Keys, event: int, probability: float) -> NDArray[np.bool_]:
    return uniforms(child_keys(keys, event), 1)[:, 0] < probability
