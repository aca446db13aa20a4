"""All clients of an experiment: their ids, arms and habits, computed from the seed."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from fedping.client_sim.attacks import Attack, hostile_among
from fedping.client_sim.models import model_for
from fedping.client_sim.population.behaviour import Activity, Users
from fedping.experiments.simulate.settings import Experiment
from fedping.protocol.draws import Keys, bits, child_keys, root_key
from fedping.protocol.enrolment import arm_intervals, hash_fraction
from fedping.protocol.study import Study

_IDS, _INVENTED = range(2)
_ROOTS = 0x5EC2

_AT_A_TIME = 2**16
"""Number of ids that are converted to text at a time."""


@dataclass(frozen=True)
class Hostile:
    """The hostile clients of an experiment.

    Attributes:
        clients: the positions of the hostile clients, ascending, shape (h,). Clients that an attack invents come after
            all others.
        ids, arm: the ids and arms of the invented clients, shapes (i, 16) and (i,).
    """

    clients: NDArray[np.int64]
    ids: NDArray[np.uint8]
    arm: NDArray[np.int16]


NOBODY = Hostile(np.zeros(0, np.int64), np.zeros((0, 16), np.uint8), np.zeros(0, np.int16))


class Anybody:
    """The clients of an experiment; everything about them is computed on request and follows from the seed.

    A client is an integer below ``experiment.clients``. Ids that an attack invents are further clients after them,
    which search like all others.

    Attributes:
        count: the number of clients, N, including those that an attack invents.
        who_is_hostile: the hostile clients; they are in arms that submit updates.
        activity: the times of the clients' searches, and their versions.
    """

    def __init__(self, experiment: Experiment, study: Study, hostile: Hostile = NOBODY) -> None:
        self._experiment, self._study = experiment, study
        self._users: dict[str, Users] = {}
        self.who_is_hostile = hostile
        self.count = experiment.clients + len(hostile.ids)
        start = experiment.start
        self.activity = Activity(
            self.count,
            experiment.activity,
            experiment.seed,
            experiment.tick_minutes / 1440,
            start.hour + start.minute / 60 + start.second / 3600,
        )

    @cached_property
    def hostile(self) -> NDArray[np.bool_]:
        """Whether each client is hostile, shape (N,)."""
        ids = np.zeros(self.count, np.bool_)
        ids[self.who_is_hostile.clients] = True
        return ids

    def ids_of(self, clients: NDArray[np.int64]) -> NDArray[np.uint8]:
        """Return the ids of these clients, shape (k, 16)."""
        ids = _client_ids(self._experiment, clients)
        invented = clients >= self._experiment.clients
        ids[invented] = self.who_is_hostile.ids[clients[invented] - self._experiment.clients]
        return ids

    def arms_of(self, clients: NDArray[np.int64]) -> NDArray[np.int16]:
        """Return the position of each client's arm in the study, ``len(study.arms)`` if it is not enrolled."""
        once, which = np.unique(clients, return_inverse=True)
        return _arms(self.ids_of(once), self._study)[which]

    def roots(self, users: NDArray[np.int64]) -> Keys:
        """Return a constant key for each of these clients, which stands for its secret, if any."""
        return child_keys(child_keys(root_key(self._experiment.seed), _ROOTS), users)

    def users(self, ranker: str) -> Users:
        """Return the clients as users of a ranking model; its true weights determine the pages that they want."""
        if ranker not in self._users:
            self._users[ranker] = Users(model_for(ranker), self._experiment.users, self._experiment.seed)
        return self._users[ranker]


class People(Anybody):
    """The clients with ids and arms computed at the start, which is faster when every tick needs them.

    Attributes:
        ids: the client ids, shape (N, 16).
        arm: the position of each client's arm in the study, ``len(study.arms)`` if it is not enrolled, shape (N,).
    """

    def __init__(self, experiment: Experiment, study: Study) -> None:
        self.ids = _client_ids(experiment, np.arange(experiment.clients))
        self.arm = _arms(self.ids, study)
        hostile = NOBODY
        if experiment.attack is not None:
            hostile = _hostile(experiment, experiment.attack, study, self.arm)
            self.ids = np.concatenate([self.ids, hostile.ids])
            self.arm = np.append(self.arm, hostile.arm)
        super().__init__(experiment, study, hostile)

    def ids_of(self, clients: NDArray[np.int64]) -> NDArray[np.uint8]:
        """See :meth:`Anybody.ids_of`."""
        return self.ids[clients]

    def arms_of(self, clients: NDArray[np.int64]) -> NDArray[np.int16]:
        """See :meth:`Anybody.arms_of`."""
        return self.arm[clients]


def _client_ids(experiment: Experiment, clients: NDArray[np.int64]) -> NDArray[np.uint8]:
    return uuid_bytes(child_keys(child_keys(root_key(experiment.seed), _IDS), clients))


def _hostile(experiment: Experiment, attack: Attack, study: Study, arm: NDArray[np.int16]) -> Hostile:
    """Return the hostile clients, including invented ones, given each client's arm, shape (clients,)."""
    submits = np.array([*(arm.submits for arm in study.arms), False])
    submitting = np.flatnonzero(submits[arm])
    count = attack.invented_for(len(submitting))
    root, tried, hostile = child_keys(root_key(experiment.seed), _INVENTED), 0, NOBODY
    while len(hostile.ids) < count:
        ids = uuid_bytes(child_keys(root, np.arange(tried, tried + count)))
        arms = _arms(ids, study)
        taken = np.flatnonzero(submits[arms])[: count - len(hostile.ids)]
        hostile = Hostile(
            hostile.clients, np.concatenate([hostile.ids, ids[taken]]), np.append(hostile.arm, arms[taken])
        )
        tried += count
    invented = experiment.clients + np.arange(count)
    return replace(hostile, clients=np.append(hostile_among(attack, submitting, experiment.seed), invented))


def uuid_bytes(keys: Keys) -> NDArray[np.uint8]:
    """Return a version 4 UUID for each key, shape (k, 16)."""
    halves = bits(keys, 2)
    halves[:, 0] = (halves[:, 0] & np.uint64(0xFFFFFFFFFFFF0FFF)) | np.uint64(0x4000)
    halves[:, 1] = (halves[:, 1] & np.uint64(0x3FFFFFFFFFFFFFFF)) | np.uint64(0x8000000000000000)
    return halves.astype(">u8").view(np.uint8)


def _arms(ids: NDArray[np.uint8], study: Study) -> NDArray[np.int16]:
    """Return each client's arm, as :func:`fedping.protocol.enrolment.enrol` assigns it."""
    places = np.fromiter((hash_fraction(study.name, text) for text in _uuid_texts(ids)), np.float64, len(ids))
    of, ends = zip(*arm_intervals(study), strict=True)
    parts = np.searchsorted(np.array(ends), places, side="right")
    places_of = [place if place >= 0 else len(study.arms) for place in (*of, -1)]
    return np.array(places_of, np.int16)[parts]


def _uuid_texts(ids: NDArray[np.uint8]) -> Iterator[str]:
    """Yield the texts of UUIDs for ids, shape (k, 16), several times as fast as with UUID objects."""
    for first in range(0, len(ids), _AT_A_TIME):
        digits = ids[first : first + _AT_A_TIME].tobytes().hex()
        for at in range(0, len(digits), 32):
            one = digits[at : at + 32]
            yield f"{one[:8]}-{one[8:12]}-{one[12:16]}-{one[16:20]}-{one[20:]}"
