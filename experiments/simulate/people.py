"""Everyone in an experiment: ids, arms, habits; made once at the start from the seed."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from fedping.client_sim.attacks import Attack, hostile_among
from fedping.client_sim.models import model_for
from fedping.client_sim.population.behaving import Activity, Users
from fedping.experiments.simulate.settings import Experiment
from fedping.protocol.draws import Keys, bits, child_keys, root_key
from fedping.protocol.enrolment import parts_of, position
from fedping.protocol.study import Study

_IDS, _INVENTED = range(2)
_ROOTS = 0x5EC2


class People:
    """The clients of an experiment; a client is an integer below ``experiment.clients``.

    Ids that an attack invents are further clients behind them, who search as everybody does.

    Attributes:
        ids: the client ids, shape (N, 16).
        arm: the position of each client's arm in the study, ``len(study.arms)`` if it is not enrolled, shape (N,).
        hostile: which of them are hostile, shape (N,); those are in arms that submit updates.
        activity: when they search, and with which version.
    """

    def __init__(self, experiment: Experiment, study: Study) -> None:
        self._experiment = experiment
        self._users: dict[str, Users] = {}
        keys = child_keys(child_keys(root_key(experiment.seed), _IDS), np.arange(experiment.clients))
        self.ids = uuid_bytes(keys)
        self.arm = _arms(self.ids, study)
        self.hostile = np.zeros(len(self.ids), np.bool_)
        if experiment.attack is not None:
            self._add_hostile(experiment.attack, study)
        start = experiment.start
        self.activity = Activity(
            len(self.ids),
            experiment.activity,
            experiment.seed,
            experiment.tick_minutes / 1440,
            start.hour + start.minute / 60 + start.second / 3600,
        )

    def _add_hostile(self, attack: Attack, study: Study) -> None:
        submits = np.array([*(arm.submits for arm in study.arms), False])
        submitting = np.flatnonzero(submits[self.arm])
        self.hostile[hostile_among(attack, submitting, self._experiment.seed)] = True
        count = attack.invented_for(len(submitting))
        root, tried = child_keys(root_key(self._experiment.seed), _INVENTED), 0
        while len(self.hostile) < self._experiment.clients + count:
            ids = uuid_bytes(child_keys(root, np.arange(tried, tried + count)))
            arms = _arms(ids, study)
            taken = np.flatnonzero(submits[arms])[: self._experiment.clients + count - len(self.hostile)]
            self.ids, self.arm = np.concatenate([self.ids, ids[taken]]), np.append(self.arm, arms[taken])
            self.hostile = np.append(self.hostile, np.ones(len(taken), np.bool_))
            tried += count

    def roots(self, users: NDArray[np.int64]) -> Keys:
        """Return a key of each of these clients that is always the same: what is a secret of its own, if it has one."""
        return child_keys(child_keys(root_key(self._experiment.seed), _ROOTS), users)

    def users(self, ranker: str) -> Users:
        """Return the users of a ranking model, whose true weights determine the pages they want."""
        if ranker not in self._users:
            self._users[ranker] = Users(model_for(ranker), self._experiment.users, self._experiment.seed)
        return self._users[ranker]


def uuid_bytes(keys: Keys) -> NDArray[np.uint8]:
    """Return a version 4 UUID for each key, shape (k, 16)."""
    halves = bits(keys, 2)
    halves[:, 0] = (halves[:, 0] & np.uint64(0xFFFFFFFFFFFF0FFF)) | np.uint64(0x4000)
    halves[:, 1] = (halves[:, 1] & np.uint64(0x3FFFFFFFFFFFFFFF)) | np.uint64(0x8000000000000000)
    return halves.astype(">u8").view(np.uint8)


def _arms(ids: NDArray[np.uint8], study: Study) -> NDArray[np.int16]:
    """Return each client's arm as :func:`fedping.protocol.enrolment.enrol` decides it."""
    digits = ids.tobytes().hex()
    texts = (_uuid_text(digits[at : at + 32]) for at in range(0, len(digits), 32))
    places = np.fromiter((position(study.name, text) for text in texts), np.float64, len(ids))
    of, ends = zip(*parts_of(study), strict=True)
    parts = np.searchsorted(np.array(ends), places, side="right")
    places_of = [place if place >= 0 else len(study.arms) for place in (*of, -1)]
    return np.array(places_of, np.int16)[parts]


def _uuid_text(digits: str) -> str:
    """Return 32 hexadecimal digits in the form of a UUID; several times as fast as by way of an object."""
    return f"{digits[:8]}-{digits[8:12]}-{digits[12:16]}-{digits[16:20]}-{digits[20:]}"
